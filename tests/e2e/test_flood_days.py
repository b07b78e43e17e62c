"""Several days of one flood, loaded by the loader of Dagster's assets, against a real broker (`test_flood_lake.py` has twelve).

Compared: the order in which phases of different days begin; certificates and records with those of the same days loaded one after
the other; gates after a day that fails and after an interrupt. A mismatch means that days do not overlap, that one day's failure
disturbs another day, or that an interrupted run leaves open gates or a running job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.assets.resources import ClusterResource
from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.backfill import run
from headgate.pipelines.certificate import Certificate
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.loading import loader
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan, spans_of
from headgate.pipelines.follower import Follower
from headgate.pipelines.progress import Phase, Progress
from headgate.pipelines.spark_rows import ARROW
from tests.support.broker_process import HOST, BrokerProcess, broker_of_module
from tests.support.clients.all import CLIENTS
from tests.support.floods import flood
from tests.support.records import Read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
ROWS = 1000
PARTITIONS = 3
WAIT_S = 120.0
NO_WORD = "no progress of the next day"
SLOW_DAY = f"if(number div {ROWS} = 1, concat(value, java_method('java.lang.Thread', 'sleep', cast(600000 as bigint))), value)"
"""A value that takes ten minutes for each row of the second day."""


broker = broker_of_module()


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
