"""Floods of ORC on columns against Spark's rows: the same records, or a reason why columns cannot read a file."""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.orc as orc
import pytest

from headgate.broker.runtime.errors import HeadgateError, RetryError
from headgate.pipelines.columns import job as columns_job
from headgate.pipelines.columns import writing
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.job import ColumnWork, read_source
from headgate.pipelines.columns.stand_ins import hadoop_settings, java_classes
from headgate.pipelines.plan import Rows, records
from headgate.pipelines.work import counted
from tests.e2e.test_columns import PARTITIONS, rows_of, same_on_both_ways

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

CODECS = ("uncompressed", "zlib", "snappy", "lz4", "zstd")
LAST_US = 9_223_000_000_000_000
"""A time shortly before Arrow's nanoseconds end."""


def table(dice: random.Random, count: int) -> pa.Table:
    day = datetime.date(1900, 1, 1)
    return pa.table(
        {
            "user": pa.array([f"user-{dice.randrange(40)}é" for _ in range(count)]),
            "payload": pa.array([dice.choice([b"", b"\xff\x00", b"same", dice.randbytes(30)]) for _ in range(count)], pa.binary()),
            "at": pa.array([dice.randrange(3000) * 1500 for _ in range(count)], pa.timestamp("us")),
            "far": pa.array(
                [dice.choice([None, 0, 1, 999_999, dice.randrange(LAST_US)]) for _ in range(count)], pa.timestamp("us")
            ),
            "fine": pa.array([dice.choice([0, 999, 1000, 1_700_000_000_123_456_789]) for _ in range(count)], pa.timestamp("ns")),
            "ms": pa.array([dice.randrange(-(10**12), 10**12) for _ in range(count)], pa.int64()),
            "day": pa.array([dice.choice([None, day + datetime.timedelta(dice.randrange(2_000_000))]) for _ in range(count)]),
            "n": pa.array([dice.choice([None, 0, 1, -7, 2**31 - 1]) for _ in range(count)], pa.int32()),
            "small": pa.array([dice.choice([-128, 0, 127]) for _ in range(count)], pa.int8()),
            "short": pa.array([dice.choice([-(2**15), None, 127]) for _ in range(count)], pa.int16()),
            "good": pa.array([dice.choice([True, False, None]) for _ in range(count)]),
            "text": pa.array([dice.choice([None, "", "é", "zz", "Z"]) for _ in range(count)]),
            "nothing": pa.array([None] * count, pa.string()),
        }
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several stripes, with each compression."""
    dice = random.Random(3)
    path = tmp_path_factory.mktemp("lake") / "orc"
    path.mkdir()
    for codec in CODECS:
        orc.write_table(table(dice, 3000), path / f"{codec}.orc", compression=codec, stripe_size=1 << 14, batch_size=1024)
    assert any(orc.ORCFile(one).nstripes > 1 for one in path.iterdir())
    return path


CHANGED: list[dict[str, Any]] = [
    {},
    {"key": "small", "value": None},
    {"event_time": "far", "where": "far is not null", "value": "text"},
    {"event_time": "fine", "order_by": ("n", "text", "good", "short")},
    {"event_time": "coalesce(day, date'1970-01-01')", "key": "text"},
    {"event_time": "timestamp_millis(ms)", "key": "day", "where": "n is null or not (text = 'zz')"},
    {"key": None, "where": "at > timestamp'1970-01-01 00:00:01' and day <= date'2000-01-02'"},
]


def orc_rows(spark: SparkSession, path: Path, **changed: Any) -> Rows:
    return rows_of(spark, path, format="orc", **changed)


@pytest.mark.parametrize("changed", CHANGED, ids=str)
def test_both_ways_give_the_same_records(spark: SparkSession, lake: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    assert same_on_both_ways(spark, orc_rows(spark, lake, **changed), tmp_path).total > 0


def test_files_that_spark_wrote(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    """Also columns in the paths. Times without a zone are numbers in such files, and Spark's alone."""
    frame = spark.read.orc(str(lake)).selectExpr(
        "*", "cast(at as timestamp_ntz) as local", "small % 2 as part", "ms / 7.0D as ratio"
    )
    frame.repartition(2).write.partitionBy("part").orc(str(tmp_path / "lake"))
    rows = orc_rows(spark, tmp_path / "lake", value="to_json(struct(far, fine, n, day, text))", key="part")
    assert same_on_both_ways(spark, rows, tmp_path).total == 15_000
    with pytest.raises(UnlikeError, match="type=`long` wanted=`timestamp_ntz`"):
        read_source(orc_rows(spark, tmp_path / "lake", event_time="local"))


def test_without_event_time_the_order_is_that_of_the_source(
    spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: 4 << 10)
    same_on_both_ways(spark, orc_rows(spark, lake / "zlib.orc", event_time=None), tmp_path)


def test_stripes_apart_in_time_are_not_exchanged(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stripes' statistics say so."""
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: 64 << 10)
    monkeypatch.setattr(writing, "exchange", None)
    count = 20_000
    some = pa.table(
        {
            "user": [f"u{number % 7}" for number in range(count)],
            "payload": [os.urandom(8) for _ in range(count)],
            "at": pa.array(range(0, count * 1000, 1000), pa.timestamp("us")),
        }
    )
    orc.write_table(some, tmp_path / "a.orc", stripe_size=1 << 14, batch_size=1024)
    assert orc.ORCFile(tmp_path / "a.orc").nstripes > 4
    assert same_on_both_ways(spark, orc_rows(spark, tmp_path / "a.orc"), tmp_path / "to").total == count


@contextmanager
def java_in(spark: SparkSession, zone: str) -> Iterator[None]:
    """Java works in another zone, as it does on a machine that is not in UTC."""
    zones = java_classes(spark).java.util.TimeZone
    usual = zones.getDefault()
    zones.setDefault(zones.getTimeZone(zone))
    try:
        yield
    finally:
        zones.setDefault(usual)


def test_times_of_other_zones_take_rows(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    with java_in(spark, "Europe/Berlin"):
        spark.read.orc(str(lake)).limit(10).coalesce(1).write.orc(str(tmp_path / "lake"))
        with pytest.raises(UnlikeError, match="Java's zone: Europe/Berlin"):
            read_source(orc_rows(spark, lake))
    with pytest.raises(UnlikeError, match=r"another zone than UTC\. zone=`Europe/Berlin`"):
        read_source(orc_rows(spark, tmp_path / "lake"))
    rows = orc_rows(spark, tmp_path / "lake", event_time="timestamp_millis(ms)")
    assert same_on_both_ways(spark, rows, tmp_path).total == 10


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("at", pa.array([-1000, 5], pa.timestamp("us")), "years 1970 to 2261"),
        ("at", pa.array([1, 2**63 // 1000 - 1], pa.timestamp("us")), "years 1970 to 2261"),
        ("payload", pa.array([datetime.date(1899, 12, 31), None]), "years 1900 to 9999"),
        ("payload", pa.array([Decimal("1.5"), None]), "type=`decimal`"),
        ("payload", pa.array([[1], []]), "nested|type=`list`"),
    ],
    ids=str,
)
def test_what_columns_do_not_read(spark: SparkSession, tmp_path: Path, name: str, values: Any, why: str) -> None:
    usual = {"user": ["a", "b"], "payload": [b"1", b"2"], "at": pa.array([1, 2], pa.timestamp("us"))}
    orc.write_table(pa.table({**usual, name: values}), tmp_path / "a.orc")
    with pytest.raises(UnlikeError, match=why):
        read_source(orc_rows(spark, tmp_path / "a.orc", value="to_json(struct(payload))"))


def test_a_fraction_before_1970_takes_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The statistics do not show it, and Spark cannot read it."""
    rows = {"user": ["a", "b"], "payload": [b"1", b"2"], "at": pa.array([-1, 5], pa.timestamp("us"))}
    orc.write_table(pa.table(rows), tmp_path / "a.orc")
    with pytest.raises(UnlikeError, match="before 1970"):
        ColumnWork(spark, read_source(orc_rows(spark, tmp_path / "a.orc")), (), PARTITIONS)


def test_settings_that_columns_do_not_know(spark: SparkSession, lake: Path) -> None:
    settings = hadoop_settings(spark)
    settings.set("orc.skip.corrupt.data", "true")
    try:
        with pytest.raises(UnlikeError, match=r"setting of its own: orc\.skip\.corrupt\.data"):
            read_source(orc_rows(spark, lake))
    finally:
        settings.unset("orc.skip.corrupt.data")
    with pytest.raises(UnlikeError, match="options of its own: mergeschema"):
        read_source(orc_rows(spark, lake, options={"mergeSchema": "true"}))


def test_a_stripe_that_no_task_can_hold_takes_rows(spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(read_source(orc_rows(spark, lake)).limits, memory_bytes=64 << 10)
    monkeypatch.setattr(columns_job, "task_limits", lambda _: limits)
    with pytest.raises(UnlikeError, match=r"a stripe takes more memory.*taskMemory"):
        read_source(orc_rows(spark, lake))


def test_a_file_that_is_not_orc_is_refused(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    data = (lake / "zlib.orc").read_bytes()
    for number, bad in enumerate((b"no ORC" * 100, data[: len(data) // 2], data[:-100] + bytes(80) + data[-20:])):
        path = tmp_path / str(number) / "lake"
        path.mkdir(parents=True)
        (path / "a.orc").write_bytes(data)
        (path / "b.orc").write_bytes(bad)
        # With a schema Spark does not look into the files before it reads them.
        frame = spark.read.schema("user string, payload binary, at timestamp").orc(str(path))
        rows = records(
            frame, key="user", value="payload", event_time="at", headers=None, order_by=(), where=None, now_ms=0, options={}
        )
        with pytest.raises(HeadgateError, match=r"b\.orc"):
            counted(spark, rows, PARTITIONS)


def test_a_file_that_changes_meanwhile_is_told(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    """The size and the time stay as they were."""
    path = tmp_path / "a.orc"
    path.write_bytes((lake / "zlib.orc").read_bytes())
    source = read_source(orc_rows(spark, path))
    state = os.stat(path)
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(RetryError, match=f"changed or vanished.*file=`{path}`"):
        ColumnWork(spark, source, (), PARTITIONS).count()
