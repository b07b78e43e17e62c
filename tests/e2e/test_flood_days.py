"""Several days of one flood, loaded by the loader of Dagster's assets, against a real broker; and a month, by runs of Dagster and
by commands that are cancelled in each phase.

Compared: the order in which phases of different days begin; certificates and records with those of the same days loaded one after
the other; gates after a day that fails and after an interrupt; what a foreign client reads of the month with its files. A mismatch
means that days do not overlap, that one day's failure disturbs another day, or that an interrupted run leaves open gates or a
running job, or adds a day twice.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.assets.build import flood_definitions
from headgate.assets.progress import Follower
from headgate.assets.resources import ClusterResource
from headgate.assets.spark import loader
from headgate.broker.log.partitioner import partition_for_key
from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.backfill import run
from headgate.pipelines.certificate import Certificate
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan, spans_of
from headgate.pipelines.plan import ARROW
from headgate.pipelines.progress import Phase, Progress
from tests.e2e.test_flood_ended import read_until
from tests.support import commands
from tests.support.broker_process import HOST, ROOT, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.floods import CHECKS, flood
from tests.support.records import Read
from tests.support.signals import python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
ROWS = 1000
PARTITIONS = 3
WAIT_S = 120.0
NO_WORD = "no progress of the next day"
SLOW_DAY = f"if(number div {ROWS} = 1, concat(value, java_method('java.lang.Thread', 'sleep', cast(600000 as bigint))), value)"
"""A value that takes ten minutes for each row of the second day."""

# Each test may be the one that starts Spark; on a busy machine that alone takes a minute.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("days")
    with BrokerProcess(place / "store", place / "broker.log") as one:
        one.start()
        yield one
    one.check_output()


@pytest.fixture
def source(tmp_path: Path) -> str:
    """One Parquet file for each day, of which the name is the day."""
    for number, day in enumerate(DAYS):
        first_us = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1_000_000
        rows = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table(
            {
                "at": pa.array([first_us + row % 97 * 1000 for row in rows], pa.timestamp("us", tz="UTC")),
                "user": [f"user-{row % 31}" for row in rows],
                "number": pa.array(rows, pa.int64()),
                "value": [f"value {row}" for row in rows],
            }
        )
        pq.write_table(table, tmp_path / f"{day}.parquet")
    return str(tmp_path / "%Y-%m-%d.parquet")


class World:
    """One flood of three days into a topic, and what its run reports."""

    def __init__(self, broker: BrokerProcess, spark: SparkSession, declared: Flood) -> None:
        self.flood = declared
        self.spans = spans_of(declared.partitions, DAYS)
        self.events: list[str] = []
        """Day and phase, each when it is first reported, and `loaded`."""
        self.began = {day: threading.Event() for day in DAYS}
        """Set when the day's rows are being written."""
        self.on: Callable[[TimeSpan, Progress], None] = lambda span, seen: None
        self._broker = broker
        self._spark = spark
        self._lock = threading.Lock()

    @contextmanager
    def loading(self) -> Iterator[Callable[[TimeSpan], Certificate]]:
        with (
            Follower(print) as follow,
            loader(self._spark, self.flood, self.spans, self.cluster, PARTITIONS, 600.0, follow, self._listen) as load,
        ):

            def one(span: TimeSpan) -> Certificate:
                found = load(span)
                self.events.append(f"{span.key} loaded")
                return found

            yield one

    def load(self) -> list[Certificate]:
        with self.loading() as load:
            return [load(span) for span in self.spans]

    def load_apart(self) -> list[Certificate]:
        """Load the days one after the other, without anything ahead."""
        return [run(job_of(self.flood, span, self.cluster, PARTITIONS), self._spark) for span in self.spans]

    @property
    def cluster(self) -> str:
        return f"{HOST}:{self._broker.grpc_port}"

    def gates(self) -> list[str]:
        return [str(gate.state) for gate in ClusterResource(address=self.cluster).gates(self.flood.topic).values()]

    def read(self) -> dict[int, list[tuple[int, int, bytes | None, bytes | None]]]:
        found: dict[int, list[Read]] = dict(
            CLIENTS["confluent"].consume(self._broker.bootstrap, self.flood.topic, range(PARTITIONS))
        )
        return {n: [(row.offset, row.timestamp_ms, row.key, row.value) for row in rows] for n, rows in found.items()}

    def _listen(self, span: TimeSpan, seen: Progress) -> None:
        with self._lock:
            if (event := f"{span.key} {seen.phase}") not in self.events:
                self.events.append(event)
        if seen.phase is Phase.SHUFFLING:
            self.began[span.key].set()
        self.on(span, seen)


def world(broker: BrokerProcess, spark: SparkSession, source: str, topic: str, value: str = "value") -> World:
    return World(broker, spark, flood(source, topic=topic, key="user", value=value))


def facts(certificate: Certificate) -> Certificate:
    """A certificate without the name of its topic and its times."""
    return replace(certificate, topic="", seconds={}, digest="", size_bytes=0)


def test_a_day_is_written_while_the_day_before_is_read_back(broker: BrokerProcess, spark: SparkSession, source: str) -> None:
    overlapped = world(broker, spark, source, "overlapped")

    def wait_for_the_next_day(span: TimeSpan, seen: Progress) -> None:
        """The day before is not read back before the next one is being written."""
        if seen.phase is Phase.VERIFYING and span.key != DAYS[-1]:
            assert overlapped.began[DAYS[DAYS.index(span.key) + 1]].wait(WAIT_S), NO_WORD

    overlapped.on = wait_for_the_next_day
    certificates = overlapped.load()
    assert all(one.verified and one.added_rows == ROWS for one in certificates)
    assert {(one.engine, one.engine_reason) for one in certificates} == {(ARROW, "")}, "a day's condition is computed on columns"

    at = overlapped.events.index
    for day, after in pairwise(DAYS):
        assert at(f"{day} loaded") < at(f"{after} committing"), "days enter the topic in their order"
    assert at(f"{DAYS[0]} loaded") < at(f"{DAYS[2]} shuffling"), "no more than one day is written ahead"

    apart = world(broker, spark, source, "apart")
    assert list(map(facts, certificates)) == list(map(facts, apart.load_apart()))
    assert overlapped.read() == apart.read()
    assert [one.added_rows for one in overlapped.load_apart()] == [0, 0, 0]


def test_a_day_that_fails_leaves_the_day_before_as_it_is(broker: BrokerProcess, spark: SparkSession, source: str) -> None:
    failing = world(broker, spark, source, "failing")
    second = Path(source).with_name(f"{DAYS[1]}.parquet")
    content = second.read_bytes()

    def remove_the_second_day(span: TimeSpan, seen: Progress) -> None:
        if seen.phase is Phase.SHUFFLING:
            second.unlink(missing_ok=True)

    failing.on = remove_the_second_day
    with pytest.raises(HeadgateError, match=second.name), failing.loading() as load:
        assert load(failing.spans[0]).verified
        load(failing.spans[1])
    assert failing.gates() == ["filled", "released", "released"]
    second.write_bytes(content)
    failing.on = lambda span, seen: None
    assert [one.added_rows for one in failing.load()] == [0, ROWS, ROWS]
    assert [row[-1] for rows in failing.read().values() for row in rows].count(b"value 1500") == 1


def test_an_interrupt_ends_the_day_that_is_written_ahead(broker: BrokerProcess, spark: SparkSession, source: str) -> None:
    slow = world(broker, spark, source, "slow", SLOW_DAY)
    with pytest.raises(KeyboardInterrupt), slow.loading() as load:
        assert load(slow.spans[0]).verified
        assert slow.began[DAYS[1]].wait(WAIT_S), NO_WORD
        raise KeyboardInterrupt
    assert slow.gates() == ["filled", "released", "released"]
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


# -- a month, as Spark leaves it in a lake: times of 96 bits, a mark of success for each day, and a day without rows

MONTH = [f"2026-01-{day:02}" for day in range(1, 31)]
EMPTY = "2026-01-17"
ROWS_A_DAY = 20
MONTH_ROWS = (len(MONTH) - 1) * ROWS_A_DAY


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each day, with two files that overlap in time."""
    place = tmp_path_factory.mktemp("lake")
    for number, day in enumerate(MONTH):
        (place / day).mkdir()
        (place / day / "_SUCCESS").touch()
        first_us = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1_000_000
        for part in range(2 * (day != EMPTY)):
            rows = range(number * ROWS_A_DAY + part, (number + 1) * ROWS_A_DAY, 2)
            times = pa.array([first_us + row * 1_000_000 for row in rows], pa.timestamp("us", tz="UTC"))
            table = pa.table({"user": [f"user-{row % 31}" for row in rows], "at": times, "value": [str(row) for row in rows]})
            pq.write_table(
                table.replace_schema_metadata({"org.apache.spark.version": "4.1.0"}),
                place / day / f"part-{part:05}.snappy.parquet",
                use_deprecated_int96_timestamps=True,
            )
    return place


def month_of(broker: BrokerProcess, topic: str) -> dict[int, list[int]]:
    """The values in a topic, by partition, in their order."""
    found: dict[int, list[Read]] = dict(CLIENTS["confluent"].consume(broker.bootstrap, topic, range(PARTITIONS)))
    return {number: [int(row.value or b"") for row in rows] for number, rows in found.items()}


def whole_month() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for number, day in enumerate(MONTH):
        for row in range(number * ROWS_A_DAY, (number + 1) * ROWS_A_DAY) if day != EMPTY else ():
            found[partition_for_key(b"user-%d" % (row % 31), PARTITIONS)].append(row)
    return found


PLACES = [
    "planning",
    "counting 2026-01-05",
    "opening 2026-01-02",
    "shuffling 2026-01-03",
    "writing 2026-01-05",
    "committing 2026-01-08",
    "verifying 2026-01-12",
]
"""Work of a run of Dagster during which it is cancelled. Days before the last three have been added by then."""


def test_a_month_in_dagster_that_is_cancelled_in_each_phase(
    broker: BrokerProcess, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run after the other for the whole month, each ended by the signal of a terminal."""
    cluster = ClusterResource(address=f"{HOST}:{broker.grpc_port}")
    declared = flood(str(lake / "%Y-%m-%d"), name="month", topic="month", topic_partitions=PARTITIONS, key="user", value="value")
    job = flood_definitions([declared], cluster=cluster).resolve_job_def("month_flood")
    tags = {"dagster/asset_partition_range_start": MONTH[0], "dagster/asset_partition_range_end": MONTH[-1]}
    wanted: list[str] = []
    at = Follower.at

    def interrupt_at(self: Follower, doing: str, text: Callable[[float], str] | None = None) -> None:
        at(self, doing, text)
        if wanted and wanted[0] in f"{doing} {'' if text is None else text(0.0)}":
            wanted.clear()
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Follower, "at", interrupt_at)
    filled = 0
    with dg.DagsterInstance.ephemeral() as instance:
        for place in PLACES:
            wanted.append(place)
            result = job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
            assert not wanted and not result.success, place
            (told,) = [
                failure.description or ""
                for event in result.all_events
                if event.is_step_failure and (failure := event.step_failure_data.user_failure_data) is not None
            ]
            states = [str(gate.state) for gate in cluster.gates("month").values()] if place != "planning" else []
            added, filled = states.count("filled") - filled, states.count("filled")
            says = f"{added} of {len(MONTH)} partitions were added and stay" if added else "nothing was added"
            assert re.fullmatch(rf"cancelled while .*, and {says}: run the same days again\.", told), (place, told)
            assert "open" not in states and not cluster.reservations(), place
        assert 0 < filled < len(MONTH) - 1
        result = job.execute_in_process(instance=instance, tags=tags)
        assert {one.check_name for one in result.get_asset_check_evaluations() if one.passed} == CHECKS
    assert month_of(broker, "month") == whole_month()
    days = [gate.id for gate in cluster.gates("month").values() if str(gate.state) == "filled"]
    assert not any(EMPTY in day for day in days) and len(days) == len(MONTH) - 1


def test_a_month_on_the_command_line_that_is_cancelled_in_each_phase(broker: BrokerProcess, lake: Path, tmp_path: Path) -> None:
    """The month as one flood; `test_flood_plain.py` has interrupts while rows are counted and exchanged. A signal that comes when
    all is done has nothing to end."""
    environment = {**os.environ, "HEADGATE_CLUSTER": f"{HOST}:{broker.grpc_port}", "JAVA_HOME": "/no/java", "PATH": "/no/programs"}
    floods = tmp_path / "floods.yaml"
    floods.write_text(
        f"floods: [{{name: m, topic: new, source: '{lake}/%Y-%m-%d', event_time: at, key: user, "
        "partitions: {by: day, start: 2026-01-01}}]"
    )
    assert commands.run(["flood", "check", str(floods)], environment).returncode == 0
    planned = commands.run(["flood", "plan", str(floods), "--partition", f"{MONTH[0]}..{MONTH[-1]}", "--json"], environment)
    ((plan,),) = [[one["plan"] for one in json.loads(planned.stdout)]]
    assert (plan["rows"], [EMPTY in note for note in plan["notes"]]) == (MONTH_ROWS, [True]), planned.stdout
    for phase in ("opening", "writing", "committing", "verifying"):
        flags = ["--topic", f"month-{phase}", "--partitions", str(PARTITIONS), "--source", f"{lake}/2026-01-*", "--verify"]
        arguments = ["flood", "run", *flags, "--key", "user", "--event-time", "at", "--value", "value"]
        with subprocess.Popen(
            python("-m", "headgate.broker.cli.main", *arguments),
            cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            read_until(process, phase)
            process.send_signal(signal.SIGINT)
            said, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode in (0, 130) and (said == "") is (process.returncode == 130), (phase, errors)
        assert "Traceback" not in errors and "headgate flood run:" not in errors, (phase, errors)
        gates = ClusterResource(address=environment["HEADGATE_CLUSTER"]).gates(f"month-{phase}").values()
        ends = {"filled"} if process.returncode == 0 or phase == "verifying" else {"filled", "released"}
        assert {str(gate.state) for gate in gates} <= ends, phase
        again = commands.run(arguments, environment)
        assert again.returncode == 0, again.stderr
        assert month_of(broker, f"month-{phase}") == whole_month(), phase
