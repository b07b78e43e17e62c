"""The asset of a flood's topic, run by Dagster in this process against a stand-in cluster and a stand-in Spark.

Compared: the calls to the cluster and their order, checks, metadata, and the state after a step that fails. A mismatch means
that a flood raises unnecessary brokers, leaves some behind, adds a partition twice, or fails without a reason.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.assets.build import flood_definitions
from headgate.assets.resources import FleetResource, SparkResource
from headgate.assets.steps import DagsterRun
from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError
from headgate.pipelines.cluster import GroupLag
from headgate.pipelines.floods.model import Brokers, Partitions
from headgate.pipelines.reservations import RESERVATIONS
from tests.support.floods import CHECKS, flood
from tests.support.stand_in import StandInCluster, StandInSpark, book

ROOT = Path(__file__).parents[3]
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
ROWS = {"2026-01-01": 10, "2026-01-02": 20, "2026-01-03": 30}


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A Parquet file with the rows of three days."""
    times = [
        datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(minutes=minute)
        for day, rows in ROWS.items()
        for minute in range(rows)
    ]
    path = tmp_path / "clicks.parquet"
    pq.write_table(
        pa.table({"at": pa.array(times, pa.timestamp("us", tz="UTC")), "user": [f"u{n}" for n in range(len(times))]}), path
    )
    return str(path)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


class World:
    """One flood, its stand-ins, and a Dagster."""

    def __init__(self, source: str, instance: dg.DagsterInstance, spark: SparkResource | None = None, **changes: Any) -> None:
        self.name, self.book = book()
        self.book.rows = ROWS
        values: dict[str, Any] = {
            "key": "user",
            # 60 rows of some bytes: a broker that serves 100 bytes per second needs help.
            "brokers": Brokers(minimum=1, maximum=3, bytes_per_s=1, wait_ms=1000),
            "catch_up_ms": 1000,
            "topic_partitions": 8,
        }
        self.flood = flood(source, **{**values, **changes})
        self.instance = instance
        self.definitions = flood_definitions(
            [self.flood],
            cluster=StandInCluster(name=self.name),
            spark=spark or StandInSpark(name=self.name),
            fleet=FleetResource(),
        )

    def run(self, first: str = DAYS[0], last: str = DAYS[-1], tags: dict[str, str] | None = None) -> dg.ExecuteInProcessResult:
        job = self.definitions.resolve_job_def("clicks_flood")
        range_tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        return job.execute_in_process(instance=self.instance, tags={**range_tags, **(tags or {})}, raise_on_error=False)

    def called(self, what: str) -> list[Any]:
        return [call for call in self.book.calls if call[0] == what]


@pytest.fixture
def world(source: str, instance: dg.DagsterInstance) -> Iterator[World]:
    yield World(source, instance)
    assert RESERVATIONS.held() == [], "a run ended and its reservation is still renewed"


def checks(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {one.check_name: one.passed for one in result.get_asset_check_evaluations()}


def partitions(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The metadata of each partition of the topic."""
    events = [event.step_materialization_data.materialization for event in result.all_events if event.is_step_materialization]
    assert events, "the topic was not materialized"
    assert {one.asset_key for one in events} == {dg.AssetKey("clicks")}
    return {str(one.partition): {name: value.value for name, value in one.metadata.items()} for one in events}


def added(result: dg.ExecuteInProcessResult) -> int:
    return sum(one["rows added"] for one in partitions(result).values())


def step(result: dg.ExecuteInProcessResult, name: str) -> dict[str, Any]:
    """The metadata of a step."""
    outputs = [event.step_output_data for event in result.all_events if event.is_successful_output]
    (found,) = [one for one in outputs if one.step_output_handle.step_key == f"clicks.{name}"]
    return {label: value.value for label, value in found.metadata.items()}


def observed(result: dg.ExecuteInProcessResult, key: str) -> list[dg.AssetObservation]:
    events = [event for event in result.all_events if event.event_type_value == "ASSET_OBSERVATION"]
    found = [event.asset_observation_data.asset_observation for event in events]
    return [one for one in found if one.asset_key == dg.AssetKey(key)]


def failure(result: dg.ExecuteInProcessResult) -> str:
    """The reason on the run's page, without the sentence about the state that is left."""
    return told(result).rsplit("\n", 1)[0]


def told(result: dg.ExecuteInProcessResult) -> str:
    """What the run's page says about its end."""
    assert not result.success
    event = next(one for one in result.all_events if one.is_step_failure)
    data = event.step_failure_data
    assert data.user_failure_data is not None, data.error_display_string
    return str(data.user_failure_data.description)


def test_three_days_are_one_scale_up(world: World) -> None:
    result = world.run()
    assert result.success
    assert checks(result) == dict.fromkeys(CHECKS, True)
    assert len({call[1] for call in world.called("reserve")}) == 1, "one reservation for all three days"
    assert {call[2] for call in world.called("reserve")} == {3}
    assert world.called("spark") == [("spark", "clicks", DAYS, 3)], "Spark began once, and with all brokers there"
    assert world.book.reservations == {}
    assert [call[-1] for call in world.called("split")] == [2, 3], "the topic's segments were spread over the brokers"
    assert step(result, "plan")["planned rows"] == 60
    assert step(result, "plan")["memory of a task (MiB)"] == 1280
    assert added(result) == 60
    last = partitions(result)[DAYS[-1]]
    assert last["released"] is True and "image/svg" in last["flood"]
    assert last["segments merged"] == 2 and len(world.book.segments) == 1, "once the brokers that go have handed them over"


def test_each_partition_shows_its_own_figures(world: World) -> None:
    result = world.run()
    found = partitions(result)
    assert {day: one["rows"] for day, one in found.items()} == ROWS
    assert {day: one["bytes"] for day, one in found.items()} == {day: 100 * rows for day, rows in ROWS.items()}
    assert {day: one["planned rows"] for day, one in found.items()} == ROWS
    assert {one["certificate"]["gate_id"] for one in found.values()} == {f"clicks.{day}" for day in DAYS}
    for one in found.values():
        # Numbers that Dagster plots are floats or ints, never text.
        assert one["seconds"] > 0 and one["rows per second"] > 0 and one["brokers"] == 3 and one["broker-seconds"] >= 0
        assert Path(one["certificate file"]).is_file()
    assert {str(one.partition): one.metadata["rows"].value for one in observed(result, "clicks_source")} == ROWS
    assert observed(result, "clicks")[0].metadata["Spark's page (while it runs)"].value == "http://127.0.0.1:4040"


def test_checks_have_figures_that_plot(world: World) -> None:
    result = world.run()
    figures = {
        one.check_name: {name: value.value for name, value in one.metadata.items()} for one in result.get_asset_check_evaluations()
    }
    assert figures["no_duplicates"] == {"offsets read twice": 0, "records read": 60}
    assert figures["in_order"] == {"records out of order": 0, "records read": 60}
    assert figures["plan_against_actual"] == {"planned rows": 60, "rows": 60, "difference %": 0.0}
    assert figures["certificate_complete"]["bytes"] == 6000 and figures["certificate_complete"]["rows added"] == 60
    assert figures["certificate_complete"]["brokers"] == 3
    assert figures["consumers_catching_up"]["lag (records)"] == 0
    described = next(one for one in result.get_asset_check_evaluations() if one.check_name == "no_duplicates").description
    assert described == "0 of 60 offsets were read more than once"


def test_the_same_days_again_add_nothing_and_raise_nothing(world: World) -> None:
    assert world.run().success
    world.book.calls.clear()
    result = world.run()
    assert result.success
    assert added(result) == 0
    assert {day: one["rows"] for day, one in partitions(result).items()} == ROWS, "what is in the topic"
    assert not world.called("reserve") and not world.called("spark")
    assert all(checks(result).values())


def test_only_the_days_that_are_missing_are_run(world: World) -> None:
    assert world.run(DAYS[1], DAYS[1]).success
    world.book.calls.clear()
    assert world.run().success
    assert [call[2] for call in world.called("spark")] == [(DAYS[0], DAYS[2])]


def test_days_that_were_loaded_under_another_definition_are_told_of(
    world: World, source: str, instance: dg.DagsterInstance
) -> None:
    assert world.run(DAYS[0], DAYS[1]).success
    changed = World(source, instance, value="user", key=None)
    changed.book.gates, changed.book.topics = world.book.gates, world.book.topics
    result = changed.run()
    assert result.success and added(result) == ROWS[DAYS[2]], "what is missing is added"
    found = next(one for one in result.get_asset_check_evaluations() if one.check_name == "certificate_complete")
    assert not found.passed and found.description == (
        "these partitions were loaded when the flood was declared differently, and stay as they are: take the change back, or "
        "declare a flood of another name into another topic. "
        f"partitions=`{DAYS[0]}, {DAYS[1]}` count=`2` differs=`key, value`"
    )
    assert not checks(changed.run(DAYS[0], DAYS[0]))["certificate_complete"], "whatever else there is to add"
    assert checks(changed.run(DAYS[2], DAYS[2]))["certificate_complete"]


def late(result: dg.ExecuteInProcessResult) -> tuple[bool, str]:
    told = next(one for one in result.get_asset_check_evaluations() if one.check_name == "source_unchanged")
    return told.passed, str(told.description)


def add_rows(source: str, day: str, rows: int) -> None:
    found = pq.read_table(source)
    times = [datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(hours=1 + number) for number in range(rows)]
    more = pa.table({"at": pa.array(times, pa.timestamp("us", tz="UTC")), "user": ["late"] * rows})
    pq.write_table(pa.concat_tables([found, more]), source)


def test_rows_that_came_late_are_told_of(world: World, source: str) -> None:
    assert late(world.run(DAYS[0], DAYS[1])) == (True, "0 partitions were in the topic before")
    assert late(world.run(DAYS[0], DAYS[1])) == (True, "2 partitions were in the topic before")
    add_rows(source, DAYS[1], 3)
    result = world.run()
    assert result.success and not late(result)[0]
    assert late(result)[1] == (
        "the source has rows that came after their partition was loaded, and they are not in the topic. To add them, declare "
        f"`late` with a condition that only they meet, and load their partition again. rows=`{DAYS[1]}: 3` partitions=`1`"
    )
    assert all(passed for name, passed in checks(result).items() if name != "source_unchanged")


def test_rows_that_came_late_are_added_once(world: World, source: str, instance: dg.DagsterInstance) -> None:
    assert world.run(DAYS[0], DAYS[1]).success
    add_rows(source, DAYS[1], 3)
    declared = World(source, instance, late="user = 'late'")
    declared.book.gates, declared.book.topics = world.book.gates, world.book.topics
    declared.book.rows = {**ROWS, DAYS[1]: 23}
    result = declared.run(DAYS[0], DAYS[1])
    assert added(result) == 3 and all(checks(result).values()), late(result)
    assert {day: one["rows"] for day, one in partitions(result).items()} == {DAYS[0]: 10, DAYS[1]: 23}
    assert {str(one.partition): one.metadata["rows"].value for one in observed(result, "clicks_source")} == {DAYS[1]: 23}
    assert f"late rows stand behind the other rows of their days ({DAYS[1]})" in step(result, "plan")["order"]
    declared.book.calls.clear()
    assert added(declared.run(DAYS[0], DAYS[1])) == 0 and not declared.called("spark")
    add_rows(source, DAYS[1], 2)
    again = declared.run(DAYS[1], DAYS[1])
    assert added(again) == 0 and f"rows=`{DAYS[1]}: 2`" in late(again)[1], "they need a condition of their own"


def test_a_mistake_in_a_column_is_found_before_brokers_are_asked_for(source: str, instance: dg.DagsterInstance) -> None:
    world = World(source, instance, key="usr")
    result = world.run()
    assert failure(result).startswith("the source has no such column: did you mean `user`? key=`usr` columns=`at, user`")
    assert told(result).endswith("No brokers were asked for, and nothing was added: correct it and run the same days again.")
    assert not any(map(world.called, ("analyse", "create_topic", "reserve", "spark")))


def test_spark_judges_expressions_before_brokers_are_asked_for(source: str, instance: dg.DagsterInstance) -> None:
    world = World(source, instance, key="concat('u-', user)")
    assert world.run().success
    assert [call[0] for call in world.book.calls][:3] == ["analyse", "create_topic", "reserve"]


def test_the_plan_says_where_the_history_will_stand(world: World) -> None:
    assert "the history stands first" in step(world.run(DAYS[1], DAYS[1]), "plan")["order"]
    later = step(world.run(DAYS[0], DAYS[0]), "plan")["order"]
    assert f"later days are in the topic and stand before it ({DAYS[1]})" in later


def test_rows_that_no_partition_takes_are_told_of(source: str, instance: dg.DagsterInstance) -> None:
    for day in DAYS:
        shutil.copyfile(source, Path(source).with_name(f"{day}.parquet"))
    world = World(str(Path(source).with_name("%Y-%m-%d.parquet")), instance)

    def told(result: dg.ExecuteInProcessResult) -> dg.AssetCheckEvaluation:
        assert result.success
        return next(one for one in result.get_asset_check_evaluations() if one.check_name == "nothing_left_out")

    first = told(world.run(DAYS[0], DAYS[0]))
    assert not first.passed and first.severity is dg.AssetCheckSeverity.WARN
    assert f"rows=`{Path(source).with_name(DAYS[0])}.parquet: 50` paths=`1`" in str(first.description)
    # The warning stays true once the rows are in the topic.
    assert "paths=`3`" in str(told(world.run()).description)
    assert "paths=`3`" in str(told(world.run()).description)


def test_a_source_that_forgot_what_is_in_the_topic(world: World, source: str) -> None:
    assert world.run(DAYS[0], DAYS[1]).success
    found = pq.read_table(source)
    pq.write_table(found.slice(4), source)
    passed, text = late(world.run(DAYS[0], DAYS[1]))
    assert not passed and "fewer rows than were loaded" in text and f"rows=`{DAYS[0]}: 4`" in text
    os.unlink(source)
    passed, text = late(world.run(DAYS[0], DAYS[1]))
    assert passed and "not compared with the source: it cannot be read (not_found)" in text and f"{DAYS[0]}, {DAYS[1]}" in text


def test_where_metadata_cannot_count_what_came_late_the_check_says_so(source: str, instance: dg.DagsterInstance) -> None:
    world = World(source, instance, where="user != 'nobody'")
    assert world.run(DAYS[0], DAYS[0]).success
    add_rows(source, DAYS[0], 3)
    expected = f"not compared with the source: only Spark could count its rows. partitions=`{DAYS[0]}`"
    assert late(world.run(DAYS[0], DAYS[0])) == (True, expected)


def test_the_next_forecast_rests_on_this_run(world: World) -> None:
    assert world.run(DAYS[1], DAYS[1]).success
    assert "1 earlier run:" in step(world.run(DAYS[2], DAYS[2]), "plan")["forecast rests on"]


def test_an_hour_that_comes_twice_is_two_partitions(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """At midnight UTC, clocks in Berlin show two o'clock; an hour later they do so again."""
    hours = ["2026-10-25-01:00", "2026-10-25-02:00", "2026-10-25-02:00+0100", "2026-10-25-03:00"]
    first = datetime(2026, 10, 24, 23, tzinfo=UTC)
    times = [first + timedelta(hours=hour) for hour in range(4) for _ in range(hour + 1)]
    pq.write_table(
        pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "user": list(map(str, times))}), tmp_path / "a.parquet"
    )
    berlin = Partitions(by="hour", start=datetime(2026, 10, 1, tzinfo=UTC), timezone="Europe/Berlin")
    world = World(str(tmp_path), instance, partitions=berlin)
    world.book.rows = {key: rows for rows, key in enumerate(hours, 1)}
    found = world.run(hours[0], hours[-1])
    assert {key: one["rows"] for key, one in partitions(found).items()} == world.book.rows
    assert step(found, "plan")["planned rows"] == 10 and all(checks(found).values())
    assert added(world.run(hours[2], hours[2])) == 0, "its gate is its own"


def test_a_day_without_rows_is_no_error(world: World) -> None:
    world.book.rows = {}
    result = world.run("2026-02-01", "2026-02-02")
    assert result.success
    assert not world.called("reserve")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), dg.DagsterExecutionInterruptedError()])
def test_a_cancelled_run_ends_with_one_sentence(world: World, interrupt: BaseException) -> None:
    world.book.spark_error = interrupt
    result = world.run()
    assert told(result) == (
        "cancelled while writing 2026-01-01. Brokers and gates are released, and nothing was added: run the same days again."
    )
    assert world.book.reservations == {}
    event = next(one for one in result.all_events if one.is_step_failure)
    assert event.step_failure_data.error is not None
    assert event.step_failure_data.error.cause is None and event.step_failure_data.error.context is None
    assert "headgate" not in "".join(event.step_failure_data.error.stack), "none of our frames"


def test_days_that_were_added_before_the_end_stay_and_are_shown(world: World, instance: dg.DagsterInstance) -> None:
    world.book.spark_error, world.book.spark_error_from = KeyboardInterrupt(), DAYS[1]
    result = world.run()
    assert told(result).endswith("and 1 of 3 partitions were added and stay: run the same days again.")
    (shown,) = [one.asset_materialization for one in instance.fetch_materializations(dg.AssetKey("clicks"), limit=9).records]
    assert shown is not None and (shown.partition, shown.metadata["rows"].value) == (DAYS[0], ROWS[DAYS[0]])
    world.book.spark_error = None
    result = world.run()
    assert result.success and added(result) == ROWS[DAYS[1]] + ROWS[DAYS[2]]


def test_a_run_that_is_cancelled_while_it_plans_held_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headgate.pipelines.floods.steps.make_plan", interrupt)
    assert told(world.run()) == (
        "cancelled while planning. No brokers were asked for, and nothing was added: run the same days again."
    )


@pytest.mark.parametrize("after", [dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED])
@pytest.mark.parametrize("error", [RetryError(Reason.INTERNAL, "Spark's JVM ended"), ValueError("p"), KeyboardInterrupt()])
def test_a_run_that_is_being_cancelled_never_fails_whatever_it_raises(
    world: World, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, after: dg.DagsterRunStatus, error: BaseException
) -> None:
    """Cancelled work fails in many ways, and Dagster may have stopped waiting for its end: a failed run would be retried."""

    def cancelled(run: DagsterRun, *_: object) -> None:
        record = run.context.instance.get_run_by_id(run.context.run.run_id)
        assert record is not None
        run.context.instance.report_run_canceling(record)
        if after is dg.DagsterRunStatus.CANCELED:
            run.context.instance.report_run_canceled(record)
        raise error

    monkeypatch.setattr("headgate.pipelines.floods.steps.make_plan", cancelled)
    result = world.run()
    (record,) = instance.get_runs()
    assert record.status is dg.DagsterRunStatus.CANCELED, result.all_events
    told = [one.user_message for one in instance.all_logs(record.run_id)]
    failures = [one.step_failure_data.user_failure_data for one in result.all_events if one.is_step_failure]
    sentence = "cancelled while planning. No brokers were asked for, and nothing was added: run the same days again."
    assert sentence in told or [one.description for one in failures if one is not None] == [sentence]


def test_a_cluster_that_does_not_answer_holds_no_run_that_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(DagsterRun, "let_go", lambda run: answers.wait(600))
    monkeypatch.setattr("headgate.pipelines.floods.ending.LET_GO_S", 0.01)
    world.book.spark_error = KeyboardInterrupt()
    said = told(world.run())
    answers.set()
    assert said == (
        "cancelled while writing 2026-01-01. The cluster does not answer. Brokers and gates are released, at the latest when their "
        "time is over: run the same days again."
    )
    RESERVATIONS.drop(next(iter(RESERVATIONS.held())))


def test_a_run_that_failed_by_a_mistake_is_not_retried(world: World, instance: dg.DagsterInstance) -> None:
    world.book.spark_error = InvalidError(Reason.INVALID_REQUEST, "key is no expression")
    result = world.run()
    assert told(result) == (
        "key is no expression\nBrokers and gates are released, and nothing was added: correct it and run the same days again."
    )
    run = instance.get_run_by_id(result.run_id)
    assert run is not None and run.tags["dagster/max_retries"] == "0"
    world.book.spark_error = RetryError(Reason.STORE_UNAVAILABLE, "the store does not answer")
    result = world.run()
    assert failure(result) == "the store does not answer"
    run = instance.get_run_by_id(result.run_id)
    assert run is not None and "dagster/max_retries" not in run.tags
    assert world.book.reservations == {} and world.book.live() == 1


def test_runs_of_one_backfill_share_one_reservation(world: World, instance: dg.DagsterInstance) -> None:
    tags = {"dagster/backfill": "abcdefgh"}
    other = instance.create_run_for_job(world.definitions.resolve_job_def("clicks_flood"), tags=tags)  # queued, not started
    result = world.run(DAYS[0], DAYS[0], tags)
    assert result.success
    assert list(world.book.reservations) == ["clicks.abcdefgh"], "left to the other run"
    assert partitions(result)[DAYS[0]]["released"] is False
    instance.delete_run(other.run_id)
    assert world.run(DAYS[2], DAYS[2], tags).success
    assert world.book.reservations == {}
    assert {call[1] for call in world.called("reserve")} == {"clicks.abcdefgh"}


def test_a_topic_of_another_shape_is_refused_in_the_plan(world: World) -> None:
    world.book.topics["clicks"] = 4
    text = failure(world.run())
    assert "another number of partitions" in text and "partitions=`4`" in text and "topic_partitions=`8`" in text
    assert not world.called("reserve")


def test_a_topic_without_room_in_front_is_refused_in_the_plan(source: str, instance: dg.DagsterInstance) -> None:
    world = World(source, instance, place="front")
    world.book.topics["clicks"] = 8
    assert "no room in front" in failure(world.run())
    assert not world.called("reserve")
    del world.book.topics["clicks"]
    assert world.run().success and world.run().success, "a topic that the flood makes has it"


def test_a_source_that_is_not_there(world: World, instance: dg.DagsterInstance) -> None:
    gone = World("/nowhere/at/all.parquet", instance)
    assert failure(gone.run()) == "the source is not there. flood=`clicks` path=`/nowhere/at/all.parquet`"
    gone = World("./nowhere", instance)
    assert failure(gone.run()) == (
        f"the source is not there. flood=`clicks` path=`{Path.cwd()}/nowhere` source=`./nowhere` "
        "(a relative path begins in the directory where the command or Dagster was started)"
    )


def test_a_spark_that_does_not_start(source: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_session.py` has the start itself."""
    text = "spark does not start: no such master. master=`nowhere://at:all`"
    monkeypatch.setattr("headgate.pipelines.floods.loading.start", Mock(side_effect=FatalError(Reason.UNSUPPORTED, text)))
    world = World(source, instance, SparkResource(master="nowhere://at:all"))
    # Spark has a place of its own, so the flood needs a session.
    assert failure(world.run()).endswith(text)
    assert (world.book.reservations, world.book.live()) == ({}, 1), "the brokers are given back"


def test_a_run_without_a_partition(world: World, instance: dg.DagsterInstance) -> None:
    job = world.definitions.resolve_job_def("clicks_flood")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert told(result).splitlines()[0] == "a flood comes in by partitions: launch it for some. flood=`clicks` by=`day`"
    assert not world.called("reserve")


def test_a_deadline_in_the_past(source: str, instance: dg.DagsterInstance) -> None:
    text = failure(World(source, instance, deadline=datetime(2020, 1, 1, tzinfo=UTC)).run())
    assert text.startswith("the deadline is over. deadline=`2020-01-01T00:00:00+00:00`")


def test_a_deadline_that_cannot_be_kept(source: str, instance: dg.DagsterInstance) -> None:
    assert failure(World(source, instance, deadline=1000).run()).startswith("the deadline cannot be kept")


def test_a_cluster_that_lets_nobody_ask_for_so_many(world: World, source: str, instance: dg.DagsterInstance) -> None:
    world.book.reservation_max = 2
    result = world.run()
    assert result.success
    assert step(result, "capacity")["waited (seconds)"] < 1, "no waiting for a broker that nobody asked for"
    assert {call[2] for call in world.called("reserve")} == {2}
    assert step(result, "capacity")["brokers serving"] == 2
    strict = World(source, instance, brokers=Brokers(maximum=3, bytes_per_s=1, short="fail"))
    strict.book.reservation_max = 2
    assert failure(strict.run()) == "a reservation is for 1 to 2 brokers"


def group(lag: int, position: int, members: int = 1) -> GroupLag:
    return GroupLag(lag=lag, position=position, members=members)


def test_consumers_that_stand_still_are_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"gone": group(99, 1, members=0)}
    first = {"a": group(10, 7), "b": group(5, 2), "c": group(0, 9), **gone}
    world.book.lags = [
        first,  # the look of the plan, for the number of lanes
        first,  # the look of the last step, for the topic's own figures
        first,
        {"a": group(12, 8), "b": group(5, 2), "c": group(0, 9), **gone},
    ]
    monkeypatch.setattr("headgate.assets.checks.CATCH_UP_LOOK_S", 0.5)
    result = world.run()
    assert result.success
    found = next(one for one in result.get_asset_check_evaluations() if one.check_name == "consumers_catching_up")
    assert not found.passed and found.description == "not reading: b"
    assert found.metadata["lag (records)"].value == 17 and found.metadata["groups"].value == 3
    assert partitions(result)[DAYS[0]]["lag (records)"] == 15


def test_only_the_named_consumers_count(source: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(source, instance, groups=("billing", "never"))
    world.book.lags = [{"a": group(10, 7), "billing": group(3, 2, members=0)}]
    monkeypatch.setattr("headgate.assets.checks.CATCH_UP_LOOK_S", 0.5)
    result = world.run()
    found = next(one for one in result.get_asset_check_evaluations() if one.check_name == "consumers_catching_up")
    assert found.description == "not reading: billing; without a position in the topic: never"
