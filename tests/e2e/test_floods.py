"""Floods with everything real: `headgate up`, Spark, the flights of 2013; in the long form Dagster's daemon and web server too.

Compared: the certificate (the source against a client's reads of the topic), and the state afterwards: one broker, no
reservation, no open gate. In the long form the run, the daemon, Spark's driver or a broker is killed in the middle of a flood;
afterwards all of that still holds, and the same days can be run again. A mismatch means that a flood loses or doubles history,
or that unused brokers keep running.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headgate.assets.build import flood_definitions
from headgate.assets.definitions import load
from headgate.assets.example import counts_after
from headgate.assets.resources import ClusterResource, SparkResource
from headgate.assets.topics import Message, TopicsResource
from headgate.pipelines.floods.model import Flood, Partitions, Source
from headgate.pipelines.room import ROOM_OFFSETS
from tests.support.broker_process import BrokerProcess
from tests.support.busy import Traffic
from tests.support.flood_world import FLOOD, TOPIC, FloodWorld, flood_world, kill
from tests.support.floods import CHECKS
from tests.support.s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORDS = {"daemon": "dagster._daemon", "spark": "SparkSubmit", "broker": "headgate.broker.cli.main broker"}
"""Text that identifies each victim's command line."""


def materialized(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The metadata of each partition of the topic."""
    events = [event.step_materialization_data.materialization for event in result.all_events if event.is_step_materialization]
    return {str(one.partition): {name: value.value for name, value in one.metadata.items()} for one in events}


@pytest.mark.timeout(1200)
def test_two_days_through_spark(tmp_path: Path, spark: SparkSession) -> None:
    """Dagster takes the session that the process has."""
    with flood_world(tmp_path) as world, dg.DagsterInstance.ephemeral() as instance:
        world.make_flights(brokers=2)
        world.start_brokers(2)
        (declared,) = load(str(tmp_path / "floods.yaml"))
        counts = counts_after(declared)

        def run(flood: Flood = declared) -> dg.ExecuteInProcessResult:
            tags = {"dagster/asset_partition_range_start": "2013-06-10", "dagster/asset_partition_range_end": "2013-06-11"}
            definitions = dg.Definitions.merge(flood_definitions([flood], cluster=world.cluster), dg.Definitions(assets=[counts]))
            job = definitions.resolve_job_def("flights_flood")
            return job.execute_in_process(instance=instance, tags=tags)

        with Traffic(f"127.0.0.1:{world.ports['kafka']}", {"live": 20}):
            first = run()
        assert {one.check_name for one in first.get_asset_check_evaluations() if one.passed} == CHECKS
        found = materialized(first)
        assert {day: one["rows"] for day, one in found.items()} == {day: world.rows[day] for day in ("2013-06-10", "2013-06-11")}
        assert {one["brokers"] for one in found.values()} == {2}
        assert all(one["p99 of producers (ms)"] > 0 and one["lag (records)"] == 0 for one in found.values())
        world.until("the second broker is gone", world.at_rest)
        resources = {"cluster": world.cluster, "spark": SparkResource()}
        after = dg.materialize([counts], instance=instance, resources=resources, partition_key="2013-06-11")
        assert materialized(after)["2013-06-11"]["records"] == world.rows["2013-06-11"], "an asset after the flood reads its day"
        ends = TopicsResource(address=world.cluster.address).ends(TOPIC)
        assert sum(end - ROOM_OFFSETS for end in ends.values()) == sum(world.rows[day] for day in ("2013-06-10", "2013-06-11"))
        topics = TopicsResource(address=world.cluster.address)
        made = topics.produce(TOPIC, [Message("live", key="N1"), Message({"id": 1}), b"bytes"])
        new = topics.consume(TOPIC, {one: ends[one] for one in made}, made)
        assert sorted(one.value for one in new if one.value is not None) == [b"bytes", b"live", b'{"id": 1}']
        assert topics.filled_gates(TOPIC) == ["flights.2013-06-10", "flights.2013-06-11"] and topics.lags(TOPIC) == {}
        again = run()
        assert [one["rows added"] for one in materialized(again).values()] == [0, 0]
        unchanged = next(one for one in again.get_asset_check_evaluations() if one.check_name == "source_unchanged")
        assert (unchanged.passed, unchanged.description) == (True, "2 partitions were in the topic before")
        add_late_flights(tmp_path / "history.parquet")
        for added in (5, 0):
            late = run(replace(declared, late="carrier = 'LATE'"))
            assert {one.check_name for one in late.get_asset_check_evaluations() if one.passed} == CHECKS
            found = materialized(late)
            assert [(one["rows added"], one["rows"]) for one in found.values()] == [
                (added, world.rows["2013-06-10"] + 5), (0, world.rows["2013-06-11"])
            ]  # fmt: skip
        an_hour_comes_twice(world, instance)


def an_hour_comes_twice(world: FloodWorld, instance: dg.DagsterInstance) -> None:
    """On the third of November clocks in New York showed one o'clock at 5 and at 6 UTC."""
    wanted = {"2013-11-03-01:00": 3, "2013-11-03-01:00-0500": 4}
    times = [datetime(2013, 11, 3, 5 + hour, minute, tzinfo=UTC) for hour in (0, 1) for minute in range(3 + hour)]
    path = world.directory / "hours.parquet"
    pq.write_table(pa.table({"at": pa.array(times, pa.timestamp("us", "UTC"))}), path)
    hours = Partitions(by="hour", start=datetime(2013, 11, 1, tzinfo=UTC), timezone="America/New_York")
    flood = Flood(name="hours", topic="hours", topic_partitions=1, source=Source(path=str(path)), event_time="at", partitions=hours)
    first, last = wanted
    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    job = flood_definitions([flood], cluster=world.cluster).resolve_job_def("hours_flood")
    result = job.execute_in_process(instance=instance, tags=tags)
    assert {key: one["rows added"] for key, one in materialized(result).items()} == wanted
    assert {one.check_name for one in result.get_asset_check_evaluations() if one.passed} == CHECKS


def add_late_flights(path: Path) -> None:
    """Add five flights of the tenth of June to the history."""
    table = pq.read_table(path)
    day = table.filter(pc.equal(pc.strftime(table["time_hour"], "%Y-%m-%d"), pa.scalar("2013-06-10"))).slice(0, 5)
    late = day.set_column(day.schema.get_field_index("carrier"), "carrier", pa.array(["LATE"] * 5))
    pq.write_table(pa.concat_tables([table, late]), path)


@pytest.mark.timeout(600)
def test_a_store_without_credentials(tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers have credentials for the topic's bucket; the process of the run has none."""
    for name in [*filter(lambda name: name.startswith("AWS_"), os.environ)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    store = f"s3://{s3_server.bucket()}/floods?endpoint={s3_server.endpoint}&region=us-east-1"
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"at": pa.array([datetime(2026, 1, 1, 5, tzinfo=UTC)] * 9, pa.timestamp("us", "UTC"))}), path)
    days = Partitions(start=datetime(2026, 1, 1, tzinfo=UTC))
    flood = Flood(name="rows", topic="rows", topic_partitions=1, source=Source(path=str(path)), event_time="at", partitions=days)
    with (
        BrokerProcess(store, tmp_path / "broker.log", env=s3_server.environment) as broker,
        dg.DagsterInstance.ephemeral() as instance,
    ):
        broker.start()
        cluster = ClusterResource(address=f"127.0.0.1:{broker.grpc_port}")
        job = flood_definitions([flood], cluster=cluster).resolve_job_def("rows_flood")
        done = job.execute_in_process(instance=instance, tags={"dagster/partition": "2026-01-01"}, raise_on_error=False)
        (failed,) = [event.step_failure_data for event in done.all_events if event.is_step_failure]
        assert failed.user_failure_data is not None and "no credentials were found" in str(failed.user_failure_data.description)
        assert not cluster.reservations()
        assert {str(gate.state) for gate in cluster.gates("rows").values()} <= {"released"}
        broker.kill()
        broker.check_output()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FloodWorld]:
    """One world for the long form: each test floods other days."""
    with flood_world(tmp_path_factory.mktemp("floods")) as found:
        # Enough rows that a kill can hit the middle of a flood.
        found.make_flights(brokers=3, grown=60)
        found.start_brokers(3)
        found.start_dagster()
        yield found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_backfill_of_three_days_as_the_page_launches_it(world: FloodWorld) -> None:
    days = ["2013-06-03", "2013-06-04", "2013-06-05"]
    backfill_id = world.dagster.backfill(FLOOD, days)
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, world.cluster.desired().live_brokers)
        return world.dagster.backfill_status(backfill_id)[0].startswith(("COMPLETED", "FAILED"))

    world.until("the backfill ends", done)
    status, runs = world.dagster.backfill_status(backfill_id)
    assert status == "COMPLETED_SUCCESS" and list(runs.values()) == ["SUCCESS"], "one run for all three days"
    (run_id,) = runs
    assert most == 3
    assert world.dagster.checks(run_id) == dict.fromkeys(CHECKS, True)
    assert world.added(run_id) == sum(world.rows[day] for day in days)
    world.until("the world is at rest", world.at_rest)
    again = world.flood(days[0], days[2])
    assert world.added(again) == 0
    assert world.cluster.desired().live_brokers == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("victim", "day"), [("run", "2013-06-12"), ("daemon", "2013-06-13"), ("spark", "2013-06-14"), ("broker", "2013-06-17")]
)
def test_a_kill_in_the_middle_of_a_flood(world: FloodWorld, victim: str, day: str) -> None:
    last = f"{day[:-2]}{int(day[-2:]) + 1:02}" if victim == "broker" else day
    run_id = world.dagster.launch(FLOOD, day, last)
    # Spark writes files, and the gate is open.
    world.until("Spark works", lambda: "shuffling" in world.messages(run_id) or world.dagster.run_status(run_id) == "FAILURE")
    # Kill at once: Spark works for a short time only.
    worker = world.worker(run_id)
    victims = [worker] if victim == "run" else world.descendants(WORDS[victim])
    for pid in victims[-1:] if victim == "broker" else victims:
        kill(pid)
    assert victims, f"there is no {victim} to kill: {world.dagster.run_status(run_id)} {world.dagster.failure(run_id)}"
    if victim == "daemon":
        # The web server may end with it. The run needs neither of them.
        world.until("the run's process ends", lambda: not Path(f"/proc/{worker}").exists())
        world.processes.stop("dagster")
        world.start_dagster()
    status = world.run_to_end(run_id)
    if victim == "daemon":
        assert status == "SUCCESS"
    if victim in ("run", "spark"):
        assert status == "FAILURE"
    world.until("the world is at rest", world.at_rest)
    again = world.flood(day, last)
    days = [one for one in world.rows if day <= one <= last]
    filled = {name for name, gate in world.cluster.gates(TOPIC).items() if str(gate.state) == "filled"}
    for one in days:
        assert len([name for name in filled if name.startswith(f"flights.{one}")]) == 1, "each day is there once"
    if status != "SUCCESS":
        assert world.dagster.checks(again) == dict.fromkeys(CHECKS, True)
    world.until("the world is at rest", world.at_rest)
