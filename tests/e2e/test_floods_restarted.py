"""Dagster's daemon, code server and web server are killed together in each step of floods, as when a node is restarted or
Kubernetes moves them while brokers are raised.

Runs: `headgate up`, Dagster; plain floods without Spark, launched as an asset backfill, as a job backfill, and as a single run,
which is what a sensor asks for. After the kill a new Dagster starts on the same home. Compared: every partition is filled once,
whole, after one more run at most, which adds nothing that is there; brokers, reservations and gates end. A mismatch means that a
restart of Dagster keeps brokers or gates, loses a day, or has it twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.flood_world import ENDED, FLOOD, TOPIC, FloodWorld, flood_world, kill

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
DAYS = 40
ROWS = 2000
STEPS = ("plan", "capacity", "load", "release")
SERVERS = ("dagster_dg_cli", "dagster_webserver", "dagster._daemon", "code-server start", "api grpc")
"""Words of the command lines of Dagster's own processes; a run has others."""
FLOODS = """floods:
  - name: flights
    topic: flights
    topic_partitions: 4
    source: {path}/%Y-%m-%d.parquet
    key: user
    event_time: at
    partitions: {{by: day, start: 2026-01-01}}
    brokers: {{min: 2, max: 2, wait: 5m}}
    reservation_ttl: 30s
    gate_ttl: 60s
"""


def day(number: int) -> str:
    return (FIRST + timedelta(days=number)).date().isoformat()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FloodWorld]:
    directory = tmp_path_factory.mktemp("restarted")
    (directory / "lake").mkdir()
    for number in range(DAYS):
        begin = FIRST + timedelta(days=number)
        rows = {
            "user": [f"u{one % 7}" for one in range(ROWS)],
            "at": pa.array([begin + timedelta(seconds=one) for one in range(ROWS)], pa.timestamp("ms", "UTC")),
        }
        pq.write_table(pa.table(rows), directory / "lake" / f"{day(number)}.parquet")
    with flood_world(directory) as found:
        (directory / "floods.yaml").write_text(FLOODS.format(path=directory / "lake"))
        found.start_brokers(2)
        found.start_dagster()
        yield found


class Launched:
    """What was launched for two days: a backfill of assets or of a job, or one run."""

    def __init__(self, world: FloodWorld, kind: str, days: list[str]) -> None:
        self._world, self._backfill, self._run = world, "", ""
        if kind == "run":
            self._run = world.dagster.launch(FLOOD, days[0], days[-1])
        else:
            self._backfill = world.dagster.backfill(FLOOD, days, job=kind == "job")

    def runs(self) -> dict[str, str]:
        """The status of each run that was started."""
        if self._run:
            return {self._run: self._world.dagster.run_status(self._run)}
        return self._world.dagster.backfill_status(self._backfill)[1]

    def is_over(self) -> bool:
        runs = self.runs()
        ended = bool(runs) and all(status in ENDED for status in runs.values())
        return ended and (
            bool(self._run) or self._world.dagster.backfill_status(self._backfill)[0] not in ("REQUESTED", "CANCELING")
        )

    def is_in(self, step: str) -> bool:
        """Whether a run has begun a step. Raises AssertionError if all ended before."""
        return any(
            event["__typename"] == "ExecutionStepStartEvent" and str(event.get("stepKey")).rsplit(".", 1)[-1] == step
            for run in self.runs()
            for event in self._world.dagster.events(run)
        )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["asset", "job", "run"])
def test_dagster_is_killed_and_started_again_in_each_step(world: FloodWorld, kind: str, report: Callable[[str], None]) -> None:
    base = {"asset": 0, "job": 10, "run": 20}[kind]
    for step, number in zip(STEPS, itertools.count(base, 2), strict=False):
        days = [day(number), day(number + 1)]
        launched = Launched(world, kind, days)
        world.until(f"{kind}: a run is in {step}", lambda step=step, launched=launched: launched.is_in(step))
        victims = {pid for word in SERVERS for pid in world.descendants(word)}
        for pid in victims:
            kill(pid)
        assert len(victims) >= 4
        world.start_dagster()
        world.until("the world is at rest", world.at_rest)
        world.until("what was launched is over", launched.is_over)
        report(f"{kind} killed in {step}: {sorted(launched.runs().values())}")
        again = world.flood(days[0], days[-1])
        filled = [name for name, gate in world.cluster.gates(TOPIC).items() if str(gate.state) == "filled"]
        assert [sum(name.startswith(f"{FLOOD}.{one}") for name in filled) for one in days] == [1, 1], "each day is there once"
        whole = set(launched.runs().values()) == {"SUCCESS"}
        assert not whole or world.added(again) == 0
        assert world.added(world.flood(days[0], days[-1])) == 0
        world.until("the world is at rest", world.at_rest)
