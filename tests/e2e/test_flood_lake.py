"""Twelve days of a lake as Spark leaves it, loaded by runs of Dagster and by commands that are cancelled in each phase: times of 96
bits, nested columns, marks of success, a day without rows, a file that is damaged, and one that comes late.

Runs: a real broker; in the short form files as Spark writes them and a column as the value, without Spark; in the long form Spark
writes the lake with its defaults, and the value is the row as JSON. Compared: what a foreign client reads of the month with its
files; the sentence of each run; gates afterwards. A mismatch means that a run that was cancelled, or that met a damaged file,
leaves an open gate, adds a day twice or in part, or that a late row is lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.assets.build import flood_definitions
from headgate.assets.resources import ClusterResource
from headgate.broker.log.partitioner import partition_for_key
from headgate.pipelines.follower import Follower
from tests.e2e.test_flood_ended import read_until
from tests.support import commands
from tests.support.broker_process import HOST, ROOT, BrokerProcess, broker_of_module
from tests.support.clients.all import CLIENTS
from tests.support.floods import CHECKS, flood
from tests.support.records import Read
from tests.support.signals import python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
PARTITIONS = 3
WAIT_S = 120.0
MONTH = [f"2026-01-{day:02}" for day in range(1, 13)]
EMPTY, LATE, DAMAGED = "2026-01-09", "2026-01-04", "2026-01-11"
ROWS_A_DAY = 20
MONTH_ROWS = (len(MONTH) - 1) * ROWS_A_DAY
LATE_ROWS = range(1000, 1003)


Write: TypeAlias = Callable[[Path, Iterator[dict[str, Any]]], None]


@dataclass(frozen=True, slots=True)
class Lake:
    """A directory for each day. `value`: of the floods; None: the row as JSON. `write`: adds a file of rows to a day."""

    path: Path
    value: str | None
    write: Write


def rows_of(day: str, numbers: range) -> Iterator[dict[str, Any]]:
    first = datetime.fromisoformat(day).replace(tzinfo=UTC)
    for number in numbers:
        yield {
            "user": f"user-{number % 31}",
            "at": first.replace(second=number % 60, minute=number // 60),
            "arrived": "late" if number in LATE_ROWS else day,
            "value": str(number),
            "device": {"os": "é", "ids": [number, number + 1]},
        }


def by_arrow(file: Path, rows: Iterator[dict[str, Any]]) -> None:
    schema = pa.schema(
        {
            "user": pa.string(),
            "at": pa.timestamp("us", tz="UTC"),
            "arrived": pa.string(),
            "value": pa.string(),
            "device": pa.struct({"os": pa.string(), "ids": pa.list_(pa.int64())}),
        },
        {"org.apache.spark.version": "4.3.0"},
    )
    pq.write_table(pa.Table.from_pylist(list(rows), schema), file, use_deprecated_int96_timestamps=True)


def by_spark(spark: SparkSession) -> Write:
    def write(file: Path, rows: Iterator[dict[str, Any]]) -> None:
        schema = "user string, at timestamp, arrived string, value string, device struct<os string, ids array<bigint>>"
        made = file.parent / f"_{file.name}"
        spark.createDataFrame(list(rows), schema).coalesce(1).write.parquet(str(made))
        (written,) = made.glob("part-*.parquet")
        shutil.move(written, file)
        shutil.rmtree(made)

    return write


broker = broker_of_module()


@pytest.fixture(scope="module", params=["columns", pytest.param("row", marks=[pytest.mark.slow])])
def month(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two files a day, which overlap in time."""
    place = tmp_path_factory.mktemp("lake")
    write = by_spark(request.getfixturevalue("spark")) if request.param == "row" else by_arrow
    for number, day in enumerate(MONTH):
        (place / day).mkdir()
        (place / day / "_SUCCESS").touch()
        for part in range(2 * (day != EMPTY)):
            rows = range(number * ROWS_A_DAY + part, (number + 1) * ROWS_A_DAY, 2)
            write(place / day / f"part-{part:05}.snappy.parquet", rows_of(day, rows))
    return Lake(place, "value" if request.param == "columns" else None, write)


@pytest.fixture
def lake(month: Lake, tmp_path: Path) -> Lake:
    """A copy, with a damaged file."""
    path = tmp_path / "lake"
    shutil.copytree(month.path, path)
    file = damaged(path)
    (column,) = [one for one in map(pq.read_metadata(file).row_group(0).column, range(6)) if one.path_in_schema == "value"]
    first, half = column.dictionary_page_offset or column.data_page_offset, column.total_compressed_size // 2
    with file.open("r+b") as handle:
        handle.seek(first + half)
        handle.write(b"\xff" * half)
    return Lake(path, month.value, month.write)


def damaged(path: Path) -> Path:
    return path / DAMAGED / "part-00001.snappy.parquet"


def repair(lake: Lake, month: Lake) -> None:
    shutil.copy(damaged(month.path), damaged(lake.path))


def come_late(lake: Lake) -> None:
    lake.write(lake.path / LATE / "part-00002.snappy.parquet", rows_of(LATE, LATE_ROWS))


def values_of(broker: BrokerProcess, topic: str, lake: Lake) -> dict[int, list[int]]:
    """The values in a topic, by partition, in their order."""
    found: dict[int, list[Read]] = dict(CLIENTS["confluent"].consume(broker.bootstrap, topic, range(PARTITIONS)))
    values = {number: [(row.value or b"").decode() for row in rows] for number, rows in found.items()}
    if lake.value is None:
        rows = {number: list(map(json.loads, texts)) for number, texts in values.items()}
        assert all(row["device"]["ids"][0] == int(row["value"]) for some in rows.values() for row in some)
        values = {number: [row["value"] for row in some] for number, some in rows.items()}
    return {number: list(map(int, texts)) for number, texts in values.items()}


def expected(late_before: str | None = None) -> dict[int, list[int]]:
    """The rows of the month; those that came late stand before this day."""
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for number, day in enumerate(MONTH):
        rows = [*LATE_ROWS] if day == late_before else []
        rows += range(number * ROWS_A_DAY, (number + 1) * ROWS_A_DAY) if day != EMPTY else ()
        for row in rows:
            found[partition_for_key(b"user-%d" % (row % 31), PARTITIONS)].append(row)
    return found


PLACES = [
    "planning",
    "counting 2026-01-05",
    "opening 2026-01-02",
    "shuffling 2026-01-03",
    "writing 2026-01-04",
    "committing 2026-01-06",
    "verifying 2026-01-08",
]
"""Work of a run of Dagster during which it is cancelled. Days before the last three have been added by then."""


def test_a_month_in_dagster(
    broker: BrokerProcess, month: Lake, lake: Lake, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    """One run after the other for the whole month: ended by the signal of a terminal in each phase, then by the damaged file, which
    is the only one that Spark reads. Then the file is whole, and rows come to a day that is in the topic."""
    cluster = ClusterResource(address=f"{HOST}:{broker.grpc_port}")
    topic = f"dagster-{lake.value}"
    declared = flood(
        str(lake.path / "%Y-%m-%d"), name="month", topic=topic, topic_partitions=PARTITIONS, key="user", value=lake.value,
        late="arrived = 'late'",
    )  # fmt: skip
    job = flood_definitions([declared], cluster=cluster).resolve_job_def("month_flood")
    tags = {"dagster/asset_partition_range_start": MONTH[0], "dagster/asset_partition_range_end": MONTH[-1]}
    wanted: list[str] = []
    done: list[str] = []
    at = Follower.at

    def interrupt_at(self: Follower, doing: str, text: Callable[[float], str] | None = None, *, at_once: bool = True) -> None:
        at(self, doing, text, at_once=at_once)
        done.append(doing)
        if wanted and wanted[0] in f"{doing} {'' if text is None else text(0.0)}":
            wanted.clear()
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Follower, "at", interrupt_at)
    filled = 0
    with dg.DagsterInstance.ephemeral() as instance:

        def fails() -> str:
            """The sentence of a run that does not end well."""
            result = job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
            assert not result.success
            (told,) = [
                failure.description or ""
                for event in result.all_events
                if event.is_step_failure and (failure := event.step_failure_data.user_failure_data) is not None
            ]
            assert not cluster.reservations()
            return told

        def added() -> int:
            nonlocal filled
            states = [str(gate.state) for gate in cluster.gates(topic).values()]
            before, filled = filled, states.count("filled")
            assert "open" not in states
            return filled - before

        for place in PLACES:
            wanted.append(place)
            told = fails()
            assert not wanted, place
            count = added() if place != "planning" else 0
            says = f"{count} of {len(MONTH)} partitions were added and stay" if count else "nothing was added"
            assert re.fullmatch(rf"cancelled while .*, and {says}: run the same days again\.", told), (place, told)
        assert 0 < filled < MONTH.index(DAMAGED)
        told = fails()
        assert str(damaged(lake.path)) in told, told
        added()
        assert filled == MONTH.index(DAMAGED) - 1, "the days before, without the empty one"
        repair(lake, month)
        come_late(lake)
        result = job.execute_in_process(instance=instance, tags=tags)
        assert {one.check_name for one in result.get_asset_check_evaluations() if one.passed} == CHECKS
        assert values_of(broker, topic, lake) == expected(late_before=DAMAGED)
        result = job.execute_in_process(instance=instance, tags=tags)
        assert {one.check_name for one in result.get_asset_check_evaluations() if one.passed} == CHECKS
    assert values_of(broker, topic, lake) == expected(late_before=DAMAGED)
    assert not [doing for doing in done if "Spark judge" in doing], "the plans judge columns, and a condition on one, without it"
    days = [gate.id for gate in cluster.gates(topic).values() if str(gate.state) == "filled"]
    assert not any(EMPTY in day for day in days) and len(days) == len(MONTH)


def test_a_month_on_the_command_line(broker: BrokerProcess, month: Lake, lake: Lake, tmp_path: Path) -> None:
    """The month as one flood; `test_flood_plain.py` has interrupts while rows are counted and exchanged. A signal that comes when
    all is done has nothing to end."""
    environment = {**os.environ, "HEADGATE_CLUSTER": f"{HOST}:{broker.grpc_port}"}
    environment |= {"JAVA_HOME": "/no/java", "PATH": "/no/programs"} if lake.value else {}
    floods, days = tmp_path / "floods.yaml", f"{MONTH[0]}..{MONTH[-1]}"
    value = f", value: {lake.value}" if lake.value else ""
    floods.write_text(
        f"floods: [{{name: m, topic: new, source: '{lake.path}/%Y-%m-%d', event_time: at, key: user{value}, "
        "partitions: {by: day, start: 2026-01-01}}]"
    )
    assert commands.run(["flood", "check", str(floods)], environment, timeout_s=WAIT_S).returncode == 0
    planned = commands.run(["flood", "plan", str(floods), "--partition", days, "--json"], environment)
    ((plan,),) = [[one["plan"] for one in json.loads(planned.stdout)]]
    assert (plan["rows"], [EMPTY in note for note in plan["notes"]].count(True)) == (MONTH_ROWS, 1), planned.stdout
    cluster = ClusterResource(address=environment["HEADGATE_CLUSTER"])

    def run_into(topic: str) -> list[str]:
        flags = ["--topic", topic, "--partitions", str(PARTITIONS), "--source", f"{lake.path}/2026-01-*", "--verify"]
        return ["flood", "run", *flags, "--key", "user", "--event-time", "at", *(["--value", lake.value] if lake.value else [])]

    topic = f"command-{lake.value}"
    failed = commands.run(run_into(topic), environment, timeout_s=WAIT_S)
    assert failed.returncode == 1 and str(damaged(lake.path)) in failed.stderr.splitlines()[-1], failed.stderr
    assert {str(gate.state) for gate in cluster.gates(topic).values()} == {"released"}
    repair(lake, month)
    for phase in ("opening", "committing", *(("writing", "verifying") if lake.value is None else ())):
        arguments = run_into(topic := f"command-{phase}-{lake.value}")
        with subprocess.Popen(
            python("-m", "headgate.broker.cli.main", *arguments),
            cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            read_until(process, phase)
            process.send_signal(signal.SIGINT)
            said, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode in (0, 130) and (said == "") is (process.returncode == 130), (phase, errors)
        assert "Traceback" not in errors and "headgate flood run:" not in errors, (phase, errors)
        ends = {"filled"} if process.returncode == 0 or phase == "verifying" else {"filled", "released"}
        assert {str(gate.state) for gate in cluster.gates(topic).values()} <= ends, phase
        again = commands.run(arguments, environment, timeout_s=WAIT_S)
        assert again.returncode == 0, again.stderr
        assert values_of(broker, topic, lake) == expected(), phase
    come_late(lake)
    again = commands.run(arguments, environment, timeout_s=WAIT_S)
    assert again.returncode == 0 and "added\t0: the flood was committed before" in again.stdout, again.stdout
    assert values_of(broker, topic, lake) == expected()
