"""The reservation of a run and its owner: renewals that end with the run, one reservation for all runs of a backfill.

A mismatch means brokers that stay up after their flood, or that leave in the middle of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from headgate.assets.owners import (
    BACKFILL_TAG,
    FLOOD_TAG,
    GRACE,
    HOLD_UNTIL_TAG,
    OCCURRENCE_TAG,
    Owner,
    occurrence_id,
    occurrence_time,
)
from headgate.assets.resources import FleetResource
from headgate.assets.sensors import abandoned, cluster_sensors, reconcile, release_after
from headgate.assets.silent import SILENT_S
from headgate.broker.client.control import Reservation
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.pipelines.reservations import BEATS_PER_TTL, Heartbeat, HeldReservations
from tests.support.floods import flood
from tests.support.stand_in import StandInCluster, book

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
PATIENCE_S = 90


class Clusters:
    """Records renewals; fails the first `failures` of them after the opening."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.failures = failures
        self.enough = threading.Event()

    def reserve(self, reservation_id: str, brokers: int, ttl_ms: int, owner: str, lanes: int = 0) -> None:
        self.calls.append((reservation_id, brokers, lanes))
        if len(self.calls) >= 4:
            self.enough.set()
        if 1 < len(self.calls) <= 1 + self.failures:
            raise RetryError(Reason.TIMED_OUT, "no answer")


def test_a_lease_shows_signs_of_life_until_it_is_dropped() -> None:
    cluster, leases = Clusters(), HeldReservations()
    assert leases.hold(cluster, "a", 3, 30, "me", 60, print)
    assert cluster.enough.wait(PATIENCE_S)
    assert not leases.hold(cluster, "a", 3, 30, "me", 60, print), "held already"
    assert leases.held() == ["a"]
    leases.drop("a")
    seen = len(cluster.calls)
    leases.drop("a")
    assert leases.held() == [] and len(cluster.calls) == seen


def test_a_lost_renewal_is_said_and_tried_again() -> None:
    cluster, leases, said = Clusters(failures=2), HeldReservations(), list[str]()
    leases.hold(cluster, "a", 3, 30, "me", 60, said.append)
    assert cluster.enough.wait(PATIENCE_S)
    leases.drop("a")
    assert said == ["reservation a was not renewed, trying again: no answer"] * 2


def test_another_number_of_brokers_or_lanes_takes_the_place_of_the_first() -> None:
    cluster, leases = Clusters(), HeldReservations()
    leases.hold(cluster, "a", 3, 60_000, "me", 60, print)
    assert not leases.hold(cluster, "a", 5, 60_000, "me", 60, print)
    assert not leases.hold(cluster, "a", 5, 60_000, "me", 60, print, 2)
    leases.drop("a")
    assert cluster.calls == [("a", 3, 0), ("a", 5, 0), ("a", 5, 2)]


def test_a_run_that_hangs_for_ever_stops_renewing() -> None:
    said, over = list[str](), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        over.set()

    beat = Heartbeat("thing", lambda: pytest.fail("too late"), 3 * BEATS_PER_TTL, -1.0, say)
    assert over.wait(PATIENCE_S)
    beat.stop()
    assert said == ["thing is not renewed any more: the run took longer than it may"]


# -- owners


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@dg.op
def nothing() -> None: ...


@dg.job
def flood_job() -> None:
    nothing()


def add_run(instance: dg.DagsterInstance, status: DagsterRunStatus, **tags: str) -> str:
    named = {name.replace("__", "/"): value for name, value in tags.items()}
    return instance.create_run_for_job(flood_job, status=status, tags=named).run_id


@pytest.mark.parametrize(
    ("tags", "kind", "owner_id"),
    [
        ({}, "run", "r1"),
        ({BACKFILL_TAG: "b1"}, "backfill", "b1"),
        ({BACKFILL_TAG: "b1", OCCURRENCE_TAG: "20260501T120000Z"}, "occurrence", "20260501T120000Z"),
    ],
)
def test_owners(tags: dict[str, str], kind: str, owner_id: str) -> None:
    owner = Owner.of("clicks", "r1", tags)
    assert (owner.kind, owner.id, owner.reservation_id) == (kind, owner_id, f"clicks.{owner_id}")
    assert Owner.parse(owner.text) == owner


@pytest.mark.parametrize(
    "text", ["", "somebody", "dagster/run/clicks", "dagster/king/clicks/1", "other/run/clicks/1", "dagster/run/a/b/c"]
)
def test_what_is_not_ours(text: str) -> None:
    assert Owner.parse(text) is None


def test_occurrences_in_tags() -> None:
    assert occurrence_time(occurrence_id(NOW)) == NOW
    assert occurrence_time("nonsense") == datetime.fromtimestamp(0, UTC)


def test_a_run_needs_its_reservation_until_it_ends(instance: dg.DagsterInstance) -> None:
    running = add_run(instance, DagsterRunStatus.STARTED)
    ended = add_run(instance, DagsterRunStatus.FAILURE)
    assert Owner("clicks", "run", running).needs_it(instance, NOW)
    assert not Owner("clicks", "run", running).needs_it(instance, NOW, without=running)
    assert not Owner("clicks", "run", ended).needs_it(instance, NOW)
    assert not Owner("clicks", "run", "unknown").needs_it(instance, NOW)


def test_a_backfill_needs_it_until_its_last_run(instance: dg.DagsterInstance) -> None:
    first = add_run(instance, DagsterRunStatus.STARTED, dagster__backfill="b1")
    owner = Owner("clicks", "backfill", "b1")
    assert not owner.needs_it(instance, NOW, without=first)
    add_run(instance, DagsterRunStatus.NOT_STARTED, dagster__backfill="b1")
    assert owner.needs_it(instance, NOW, without=first)


def test_an_occurrence_keeps_its_brokers_until_its_flood_begins(instance: dg.DagsterInstance) -> None:
    name = occurrence_id(NOW)
    owner = Owner("clicks", "occurrence", name)
    tags = {"headgate__occurrence": name, "headgate__flood": "clicks"}
    add_run(instance, DagsterRunStatus.SUCCESS, **tags, headgate__hold_until=NOW.isoformat())
    assert owner.needs_it(instance, NOW - timedelta(minutes=5)), "prepared, not begun"
    assert owner.needs_it(instance, NOW + timedelta(minutes=5)), "a little late"
    assert not owner.needs_it(instance, NOW + GRACE), "nobody began it"
    run = add_run(instance, DagsterRunStatus.STARTED, **tags)
    assert owner.needs_it(instance, NOW + GRACE)
    assert not owner.needs_it(instance, NOW, without=run)
    assert FLOOD_TAG == "headgate/flood" and HOLD_UNTIL_TAG == "headgate/hold_until"


# -- the reconciler


def reservation(owner: str) -> Reservation:
    return Reservation(id=owner, owner=owner, brokers=3, ttl_ms=1000, left_ms=1000)


def test_only_what_is_known_to_be_over_is_released(instance: dg.DagsterInstance) -> None:
    over = Owner("clicks", "run", add_run(instance, DagsterRunStatus.CANCELED)).text
    alive = Owner("clicks", "run", add_run(instance, DagsterRunStatus.STARTED)).text
    foreign = Owner("clicks", "run", "a run of another Dagster").text
    found = abandoned(instance, [reservation(one) for one in (over, alive, foreign, "somebody by hand")], NOW)
    assert [one.id for one in found] == [over]


def test_reconciling_twice_does_nothing_the_second_time(instance: dg.DagsterInstance) -> None:
    name, its_book = book()
    cluster = StandInCluster(name=name)
    owner = Owner("clicks", "run", add_run(instance, DagsterRunStatus.FAILURE))
    cluster.reserve(owner.reservation_id, 3, 1000, owner.text)
    assert reconcile(instance, cluster, FleetResource(), [], NOW) == [
        f"reservation {owner.reservation_id} is released: {owner.text} is over"
    ]
    assert its_book.reservations == {}
    assert reconcile(instance, cluster, FleetResource(), [], NOW) == []


@dg.job(name="clicks_flood")
def clicks_flood() -> None:
    nothing()


def test_a_run_that_says_nothing_is_over_and_one_that_speaks_is_not(instance: dg.DagsterInstance) -> None:
    """A machine ended with the run's process and Dagster's own: no event tells it. Runs of other jobs may be silent."""
    gone, speaks = (instance.create_run_for_job(clicks_flood, status=DagsterRunStatus.STARTED) for _ in range(2))
    other = instance.get_run_by_id(add_run(instance, DagsterRunStatus.STARTED))
    assert other is not None
    now = datetime.now(UTC) + timedelta(seconds=SILENT_S + 60)
    cluster = StandInCluster(name=book()[0])
    assert reconcile(instance, cluster, FleetResource(), [flood()], datetime.now(UTC)) == []
    line = dg.EventLogEntry(
        error_info=None,
        level=20,
        user_message="writing",
        run_id=speaks.run_id,
        timestamp=now.timestamp() - 5,
        job_name="clicks_flood",
    )
    instance.handle_new_event(line)
    (said,) = reconcile(instance, cluster, FleetResource(), [flood()], now)
    assert said.startswith(f"run {gone.run_id} is over: it said nothing for 11 minutes")
    states = {run.run_id: run.status for run in instance.get_runs()}
    assert states[gone.run_id] is DagsterRunStatus.FAILURE
    assert {states[speaks.run_id], states[other.run_id]} == {DagsterRunStatus.STARTED}
    (last,) = instance.get_records_for_run(gone.run_id, limit=1, ascending=False).records
    assert "a retry adds nothing twice" in last.event_log_entry.message
    assert reconcile(instance, cluster, FleetResource(), [flood()], now) == []


@pytest.mark.parametrize(("others", "left"), [(False, []), (True, ["clicks.2026-05-01"])])
def test_a_run_that_ended_leaves_no_gate_open(instance: dg.DagsterInstance, others: bool, left: list[str]) -> None:
    name, its_book = book()
    cluster = StandInCluster(name=name)
    declared = flood()
    states = {
        "clicks.2026-05-01~1": "released",
        "clicks.2026-05-01": "open",
        "clicks.2026-05-03": "open",
        "views.2026-05-01": "open",
    }
    its_book.gates.update({("clicks", gate): SimpleNamespace(state=state) for gate, state in states.items()})
    tags = {
        "headgate__flood": "clicks",
        "dagster__asset_partition_range_start": "2026-05-01",
        "dagster__asset_partition_range_end": "2026-05-02",
    }
    run = instance.get_run_by_id(add_run(instance, DagsterRunStatus.FAILURE, **tags))
    assert run is not None
    if others:
        add_run(instance, DagsterRunStatus.STARTED, headgate__flood="clicks")
    cluster.reserve(Owner("clicks", "run", run.run_id).reservation_id, 3, 1000, "x")
    release_after(instance, cluster, declared, run, NOW)
    assert its_book.reservations == {}
    assert [
        gate for (_, gate), value in its_book.gates.items() if value.state == "open" and gate.startswith("clicks.2026-05-01")
    ] == left
    assert its_book.gates["clicks", "clicks.2026-05-03"].state == "open", "of another run"


# -- the load


def test_a_cluster_without_a_topic_is_looked_at_like_any_other(instance: dg.DagsterInstance) -> None:
    name, _ = book()
    (sensor,) = (one for one in cluster_sensors([]) if one.name == "fleet_load")
    tick = sensor.evaluate_tick(dg.build_sensor_context(instance, resources={"cluster": StandInCluster(name=name)}))
    (seen,) = tick.asset_events
    assert isinstance(seen, dg.AssetObservation)
    assert (seen.metadata["live"].value, seen.metadata["bytes in per second"].value) == (1, 0.0)
