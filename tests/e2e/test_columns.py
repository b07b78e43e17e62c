"""Floods on columns against Spark's rows: the same source, the same expressions, on both ways. Real Spark, no broker.

Compared: the count of each partition, the certificate's sums, and every record in the order of offsets. A mismatch means that the
way that a flood takes changes what readers see. Sources that cannot take columns must say why, and take Spark's rows.
"""

from __future__ import annotations

import datetime
import os
import random
import re
import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.backfill import Backfill
from headgate.pipelines.columns import job as columns_job
from headgate.pipelines.columns import tasks, writing
from headgate.pipelines.columns.engine import SparkEngine
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.job import ColumnWork, read_source
from headgate.pipelines.columns.memory import MEMORY_SETTING
from headgate.pipelines.columns.plain import plain_source
from headgate.pipelines.columns.processes import Processes
from headgate.pipelines.columns.task_division import Bucket, Buckets, Limits
from headgate.pipelines.extents import Written
from headgate.pipelines.spark_rows import ARROW, SPARK, Counts, Job, Rows, load, records
from headgate.pipelines.work import RowWork, Work, work_and_counts
from tests.support.errors import raises
from tests.support.in_process import (
    PARTITIONS,
    Found,
    assert_alike,
    assert_as_rows,
    assert_found,
    of_rows,
    of_spark,
    on_columns,
    written,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_750_000_000_000


def rows_of(spark: SparkSession, path: Path, **changed: Any) -> Rows:
    usual: dict[str, Any] = {
        "key": "user", "value": "payload", "event_time": "at", "headers": None, "order_by": (), "where": None, "now_ms": NOW_MS,
        "options": {},
    }  # fmt: skip
    wanted = {**usual, **changed}
    return records(load(spark, str(path), wanted.pop("format", "parquet"), wanted["options"]), **wanted)


def result(work: Work, counts: Counts, store: Path) -> tuple[tuple[int, ...], list[Written], Found]:
    """The counts, the output, and the records by partition, in the order of their offsets."""
    return counts.rows, *written(work, store)


def same_on_both_ways(spark: SparkSession, rows: Rows, place: Path) -> Counts:
    """Write the rows on both ways, on columns with and without Spark's tasks, and compare. Returns the counts."""
    columns = ColumnWork(SparkEngine(spark), read_source(rows), PARTITIONS)
    moved = RowWork(spark, rows, PARTITIONS, "")
    counts, spark_counts = columns.count(), moved.count()
    assert counts == spark_counts
    ours, theirs = result(columns, counts, place / "columns"), result(moved, spark_counts, place / "rows")
    assert ours[2] == theirs[2]
    plain = ColumnWork(Processes(0), read_source(rows), PARTITIONS)
    assert plain.count() == counts and result(plain, counts, place / "plain")[2] == theirs[2]
    assert [(one.partition, one.tally) for one in ours[1]] == [(one.partition, one.tally) for one in theirs[1]]
    return counts


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of two row groups: times that overlap and repeat, empty and equal values, nulls, bytes above 127."""
    dice = random.Random(3)
    path = tmp_path_factory.mktemp("lake") / "events with a space"
    path.mkdir()
    for number in range(4):
        count = 400
        day = datetime.date(1999, 12, 30)
        table = pa.table(
            {
                "user": pa.array([f"user-{dice.randrange(40)}é" for _ in range(count)]),
                "payload": pa.array(
                    [dice.choice([b"", b"\xff\x00", b"same", dice.randbytes(30)]) for _ in range(count)], pa.binary()
                ),
                "at": pa.array([dice.randrange(-1000, 1000) * 1500 for _ in range(count)], pa.timestamp("us", tz="UTC")),
                "local": pa.array([dice.randrange(10**15) for _ in range(count)], pa.timestamp("us")),
                "milli": pa.array([dice.randrange(10**12) for _ in range(count)], pa.timestamp("ms", tz="UTC")),
                "ms": pa.array([dice.randrange(-(10**12), 10**12) for _ in range(count)], pa.int64()),
                "day": pa.array([day + datetime.timedelta(dice.randrange(9)) for _ in range(count)]),
                "n": pa.array([dice.choice([None, 0, 1, -7, 2**31 - 1]) for _ in range(count)], pa.int32()),
                "small": pa.array([dice.choice([-128, 0, 127]) for _ in range(count)], pa.int8()),
                "good": pa.array([dice.choice([True, False, None]) for _ in range(count)]),
                "text": pa.array([dice.choice([None, "", "é", "zz", "Z"]) for _ in range(count)]),
                "price": pa.array([dice.random() for _ in range(count)]),
                "cost": pa.array([Decimal(dice.randrange(-(10**9), 10**9)).scaleb(-8) for _ in range(count)], pa.decimal128(20, 8)),
                "sum": pa.array(
                    [dice.choice([None, Decimal("0.00"), Decimal("-7.10")]) for _ in range(count)], pa.decimal128(9, 2)
                ),
                "pair": pa.array([{"a": dice.randrange(9)} for _ in range(count)]),
            }
        )
        pq.write_table(table, path / f"part {number}.parquet", row_group_size=250, use_dictionary=number % 2 == 0)
    return path


EXPRESSIONS: list[dict[str, Any]] = [
    {},
    {"key": "coalesce(n, 5)"},
    {"key": "small"},
    {"key": "concat(user, '/', small)"},
    {"key": "cast(ms as string)", "value": "text"},
    {"key": "user", "value": "good"},
    {"event_time": "local"},
    {"event_time": "milli"},
    {"event_time": "day"},
    {"event_time": "timestamp_millis(ms)"},
    {"event_time": "timestamp_seconds(small)"},
    {"event_time": "timestamp_micros(ms)"},
    {"where": "n > 0"},
    {"where": "n is null or not (text = 'zz')"},
    {"where": "good and text >= '' and small <= 0"},
    {"where": "text in ('é', 'Z') and n <> 1"},
    {"where": "user = 'user-1é' or at > timestamp_millis(ms)"},
    {"key": "sum", "value": "to_json(struct(sum, cost))", "where": "sum is not null"},
    {"key": "day"},
    {"key": None},
    {"key": "text"},
    {"key": None, "value": "text", "where": "at > timestamp'1970-01-01 00:00:00.25' and day <= date'2000-01-02'"},
    {"key": "sum", "value": "cast(null as string)"},
    {"where": "local > timestamp_ntz'1985-01-01 00:00:00.5'"},
    {"where": "n = 12345"},
]


def test_expressions_give_the_records_of_spark(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    counts = assert_alike({str(changed): rows_of(spark, lake, **changed) for changed in EXPRESSIONS}, tmp_path)
    assert [name for name, found in counts.items() if not found.total] == ["{'where': 'n = 12345'}"]


def test_whole_floods_give_the_same_records(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    """The first one goes through Spark's workers, and so does one whose rows are exchanged, below."""
    changed = {"key": "sum", "event_time": "day", "order_by": ("small", "local", "sum", "cost")}
    same_on_both_ways(spark, rows_of(spark, lake, **changed), tmp_path)
    assert_as_rows(spark, rows_of(spark, lake, order_by=("n", "text", "good")), tmp_path / "ordered")


HEADERS = [
    "pairs", "named", "numbers", "map('a', text, 'b', user)", "map(1, payload)", "map('day', cast(day as string))",
    "array(struct('a' as n, text as v), named_struct('n', text, 'v', user))", "map('source', 'lake')", "array(struct('a', 'é'))",
    "array(named_struct('n', 'a', 'v', payload))", "map('good', good)",
]  # fmt: skip


def test_headers_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Names that repeat, rows without headers and with an empty list, and rows that differ in their headers only."""
    dice = random.Random(23)
    count = 300
    pair = pa.struct([("n", pa.string()), ("v", pa.binary())])
    for number in range(2):
        write(
            tmp_path / "lake" / f"{number}.parquet",
            user=pa.array([dice.choice("ab") for _ in range(count)]),
            payload=pa.array([dice.choice([b"", b"\xff", None]) for _ in range(count)], pa.binary()),
            at=pa.array([dice.randrange(3) for _ in range(count)], pa.timestamp("us", tz="UTC")),
            text=pa.array([dice.choice(["", "é", "zz"]) for _ in range(count)]),
            good=pa.array([dice.choice([True, False, None]) for _ in range(count)]),
            day=pa.array([datetime.date(2024, 1, dice.randrange(1, 9)) for _ in range(count)]),
            pairs=pa.array(
                [dice.choice([None, [], [("x", "1")], [("x", "2"), ("x", None), ("é", "")]]) for _ in range(count)],
                pa.map_(pa.string(), pa.string()),
            ),
            named=pa.array(
                [dice.choice([None, [], [{"n": "x", "v": dice.randbytes(1)}] * dice.randrange(3)]) for _ in range(count)],
                pa.list_(pair),
            ),
            numbers=pa.array([[(dice.randrange(3), number)] for _ in range(count)], pa.map_(pa.int32(), pa.int64())),
        )
    floods = {text: rows_of(spark, tmp_path / "lake", headers=text, where="user is not null") for text in HEADERS}
    assert {found.total for found in assert_alike(floods, tmp_path / "one").values()} == {2 * count}
    same_on_both_ways(spark, floods["pairs"], tmp_path / "whole")


def test_a_header_without_a_name_is_refused_alike(spark: SparkSession, tmp_path: Path) -> None:
    pair = pa.struct([("n", pa.string()), ("v", pa.string())])
    for number, bad in enumerate((None, {"n": None, "v": "x"})):
        place = tmp_path / str(number)
        write(place / "a.parquet", pairs=pa.array([[{"n": "a", "v": "b"}], [bad]], pa.list_(pair)))
        rows = rows_of(spark, place, headers="pairs")
        for work in (on_columns(rows), RowWork(spark, rows, PARTITIONS, "")):
            counts = work.count()
            with pytest.raises(InvalidError, match="header"):
                result(work, counts, tmp_path / "store")


def test_the_row_as_json_is_that_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Byte for byte: every escape, fields without a value, rows without any, names to escape, times before 1970, times without a
    zone."""
    texts = [None, "", "plain", "".join(map(chr, range(0x20))), '"quoted" \\ / \x7f', "é \u2028 \U0001f600", *map(chr, range(0x20))]
    count = 3 * len(texts)
    dice = random.Random(5)

    def some(*values: Any) -> list[Any]:
        return [dice.choice(values) for _ in range(count)]

    times = [-62_135_596_800_000_000, -1, -999_001, 0, 1_700_000_000_123_456, 253_402_300_799_999_999, None]
    table = pa.table(
        {
            "user": pa.array(some("a", "b")),
            "at": pa.array([dice.randrange(10**15) for _ in range(count)], pa.timestamp("us", tz="UTC")),
            "text": pa.array(texts * 3),
            'a "name" \\ é': pa.array(some(None, 1, -(2**63), 2**63 - 1), pa.int64()),
            "small": pa.array(some(None, -1, 127), pa.int8()),
            "good": pa.array(some(None, True, False)),
            "bytes": pa.array(some(None, b"", b"\x00", b"\xff\xfe", bytes(range(256))), pa.binary()),
            "day": pa.array(some(None, datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31))),
            "moment": pa.array([dice.choice(times) for _ in range(count)], pa.timestamp("us", tz="UTC")),
            "local": pa.array([dice.choice(times) for _ in range(count)], pa.timestamp("us")),
        }
    )
    path = tmp_path / "lake" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(table, path)
    nothing = load(spark, str(path), "parquet", {}).select("user", "at", "small", "good")
    usual: dict[str, Any] = {"headers": None, "order_by": (), "where": None, "now_ms": NOW_MS, "options": {}}
    wanted = records(nothing, key="user", value="to_json(struct(small, good))", event_time="at", **usual)
    assert_alike({"the row": rows_of(spark, path.parent, value=None), "rows without any value": wanted}, tmp_path / "found")


def test_text_that_is_not_utf_8_takes_rows_after_all(spark: SparkSession, tmp_path: Path) -> None:
    """Java replaces such bytes. That shows only while a task writes: the flood's work begins again, and the result is Spark's."""
    texts = [b"good"] * tasks.SAMPLED_ROWS + [b"b\xff\xc3d"]
    bad = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    times = pa.array(range(len(texts)), pa.timestamp("us", tz="UTC"))
    write(
        tmp_path / "lake" / "a.parquet",
        user=pa.array(["a"] * len(texts)), payload=pa.array([b"1"] * len(texts)), at=times, text=bad,
    )  # fmt: skip
    rows = rows_of(spark, tmp_path / "lake", value=None)
    work, counts = work_and_counts(spark, rows, PARTITIONS)
    assert (work.engine, work.why) == (ARROW, "")
    found = result(work, counts, tmp_path / "store")[2]
    assert (work.engine, work.why) == (SPARK, "a text is not UTF-8, and Java replaces such bytes")
    assert found == of_rows(spark, rows)


def test_rows_without_a_key_are_spread_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    """Values of every length around XXH64's steps of 1, 4, 8 and 32 bytes."""
    dice = random.Random(11)
    values = [dice.randbytes(size) for size in (*range(140), 1000, 4099)] + [None]
    times = [dice.randrange(-(10**15), 10**15) for _ in values]
    write(
        tmp_path / "lake" / "a.parquet",
        user=pa.array(["a"] * len(values)), payload=pa.array(values, pa.binary()), at=pa.array(times, pa.timestamp("us", tz="UTC")),
    )  # fmt: skip
    counts = assert_alike({"": rows_of(spark, tmp_path / "lake", key=None)}, tmp_path / "found")[""]
    assert counts.keyless == counts.total == len(values)


def test_large_sources_are_exchanged(spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task writes several parts, one after the other. The last size takes a whole flood through Spark's workers."""
    rows = rows_of(spark, lake)
    expected = of_spark({"": rows})
    for size in (1 << 15, 1 << 12, 1 << 14):
        monkeypatch.setattr(columns_job, "task_bytes", lambda *_, size=size: size)
        monkeypatch.setattr(columns_job, "SORT_BYTES", size // 3)
        if size == 1 << 14:
            same_on_both_ways(spark, rows, tmp_path)
        else:
            assert_found({"": rows}, expected, tmp_path / str(size))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_full_disk_for_rows_on_their_way_is_told(
    spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task runs in this process, and its file is /dev/full."""
    source = read_source(rows_of(spark, lake))
    spec = tasks.Spec(source.query, PARTITIONS, (), 1)
    into = Buckets((Bucket(tuple(range(PARTITIONS)), 1),), dict.fromkeys(range(PARTITIONS), 0), {})
    monkeypatch.setattr(tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), "/dev/full"))
    with raises(RetryError, Reason.STORE_FULL, f"full: make room.*spark.local.dir.*directory=`{tmp_path}`"):
        list(writing.exchange(spec, into, source.pieces, str(tmp_path)))


def test_a_large_stretch_of_which_no_row_passes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: 64)
    for number in range(2):
        times = pa.array(range(number * 100, number * 100 + 20), pa.timestamp("us", tz="UTC"))
        some = {"user": pa.array(["a"] * 20), "payload": pa.array([b"1"] * 20), "at": times, "n": pa.array([number] * 20)}
        write(tmp_path / "lake" / f"{number}.parquet", **some)
    assert assert_alike({"": rows_of(spark, tmp_path / "lake", where="n = 1")}, tmp_path / "found")[""].total == 20


def test_a_key_that_columns_cannot_make_shows_while_it_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    texts = [b"good"] * tasks.SAMPLED_ROWS + [b"\xff"]
    bad = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    times = pa.array(range(len(texts)), pa.timestamp("us", tz="UTC"))
    write(tmp_path / "lake" / "a.parquet", user=bad, payload=bad.cast(pa.binary()), at=times)
    work, counts = work_and_counts(spark, rows_of(spark, tmp_path / "lake", key="to_json(struct(user))"), PARTITIONS)
    assert (work.engine, counts.total) == (SPARK, len(texts)) and "not UTF-8" in work.why


def test_files_in_any_order_and_apart_in_time(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small files, one after the other in time: no exchange, and offsets in the order of time."""
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: 4 << 10)
    place = tmp_path / "lake"
    place.mkdir()
    dice = random.Random(1)
    for number, hour in enumerate(dice.sample(range(60), 60)):
        some = 30 if number else 3000
        at = pa.array([hour * 3_600_000_000 + dice.randrange(3_600_000_000) for _ in range(some)], pa.timestamp("us", tz="UTC"))
        users = pa.array([dice.choice(["hot", f"u{dice.randrange(9)}"]) for _ in range(some)])
        pq.write_table(pa.table({"user": users, "at": at, "payload": pa.array([b"x" * 9] * some)}), place / f"{number}.parquet")
    assert_alike({"": rows_of(spark, place)}, tmp_path / "found")


@pytest.mark.parametrize("changed", [{}, {"order_by": ("n", "text", "day", "cost", "good")}, {"event_time": None}], ids=str)
def test_more_rows_of_one_time_than_a_task_sorts(
    spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    """Their runs go through files, within one task or in tasks that exchange rows."""
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: 20 << 10)
    limits = replace(read_source(rows_of(spark, lake)).limits, memory_bytes=24 << 10)
    monkeypatch.setattr(columns_job, "task_limits", lambda _: limits)
    if "event_time" in changed:
        lake = sorted(lake.glob("*.parquet"))[0]
    else:
        changed = {"event_time": "timestamp'2024-01-01'", **changed}
    assert_as_rows(spark, rows_of(spark, lake, **changed), tmp_path)


@pytest.mark.parametrize("text", ["15m", "9g", "much", "1"])
def test_a_memory_that_cannot_be(spark: SparkSession, text: str) -> None:
    spark.conf.set(MEMORY_SETTING, text)
    try:
        with pytest.raises(InvalidError, match=f"16m to 8g.*taskMemory=`{text}`"):
            columns_job.task_limits(spark)
        spark.conf.set(MEMORY_SETTING, "64MB")
        assert columns_job.task_limits(spark).memory_bytes == 64 << 20
    finally:
        spark.conf.unset(MEMORY_SETTING)


UNLIKE: list[tuple[dict[str, Any], str]] = [
    ({"where": "price > 0.5"}, "of type double"),
    ({"where": "price <= coalesce(price, price)"}, "floating-point"),
    ({"order_by": ("price",)}, "order is by floating-point"),
    ({"value": "upper(text)"}, "Upper"),
    ({"value": "cast(at as string)"}, "timestamp to string"),
    ({"key": "cast(cost as string)"}, "decimal"),
    ({"value": "to_json(pair)"}, "JSON of a nested column"),
    ({"value": "to_json(struct(pair.a))"}, "JSON of an expression"),
    ({"key": "cast(monotonically_increasing_id() as string)"}, "numbers of the rows"),
    ({"headers": "map(text, 'a')", "where": "text is not null"}, "names that are not constants"),
    ({"headers": "map('a', price)"}, "of type double"),
    ({"headers": "map_from_arrays(array('a'), array(text))"}, "Spark's MapFromArrays of headers"),
    ({"where": "small % 2 = 0"}, "Remainder"),
    ({"options": {"mergeSchema": "true"}}, "options of its own: mergeschema"),
]


def test_what_columns_cannot_do_says_why_and_takes_rows(
    spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for changed, why in UNLIKE:
        with pytest.raises(UnlikeError, match=why):
            read_source(rows_of(spark, lake, **changed))
    work, counts = work_and_counts(spark, rows_of(spark, lake, **UNLIKE[0][0]), PARTITIONS)
    assert work.engine == SPARK and re.search(UNLIKE[0][1], work.why)
    assert sum(map(len, result(work, counts, tmp_path)[2].values())) == counts.total > 0


def test_times_as_spark_writes_them_by_default(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    """INT96: also times before 1970 and 1677, null, of another writer, and with nanoseconds that are no microseconds."""
    at = "timestampadd(SECOND, id * 86400 * 365 * 9, timestamp'1582-01-01 00:00:00.123456')"
    fields = f"if(id % 9 = 4, null, {at}) sent, {at} at, cast(id % 7 as string) user, binary(cast(id as string)) payload"
    spark.sql(f"select {fields} from range(200)").repartition(3).write.parquet(str(tmp_path / "lake"))
    assert_as_rows(spark, rows_of(spark, tmp_path / "lake", value=None), tmp_path / "row")
    assert_as_rows(spark, rows_of(spark, tmp_path / "lake", order_by=("sent",)), tmp_path / "order")
    # Other writers leave no note about the calendar.
    first, last = (Decimal(f"{year}e9") * 31_556_952 for year in (-292, 292))
    sent = pa.array([int(first + (last - first) * at / 299) + at for at in range(300)], pa.timestamp("ns", tz="UTC"))
    table = pa.table({"at": sent, "user": ["a"] * 300, "payload": [b"%d" % at for at in range(300)], "sent": sent})
    (tmp_path / "other").mkdir()
    pq.write_table(table, tmp_path / "other" / "a.parquet", use_deprecated_int96_timestamps=True)
    other = rows_of(spark, tmp_path / "other", value=None)
    assert_as_rows(spark, other, tmp_path / "of another")
    spark.conf.set("spark.sql.parquet.int96RebaseModeInRead", "LEGACY")
    try:
        with pytest.raises(UnlikeError, match="int96RebaseModeInRead"):
            read_source(other)
    finally:
        spark.conf.unset("spark.sql.parquet.int96RebaseModeInRead")
    spark.sql("select timestamp'+12345-01-01' at, 'a' user, binary('b') payload").write.parquet(str(tmp_path / "late"))
    assert_as_rows(spark, rows_of(spark, tmp_path / "late", value=None), tmp_path / "late rows")


def test_orc_goes_through_rows(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    """With the same records as the same rows in Parquet."""
    spark.read.parquet(str(lake)).repartition(2).write.orc(str(tmp_path / "lake"))
    work, counts = work_and_counts(spark, rows_of(spark, tmp_path / "lake", format="orc", event_time="day"), PARTITIONS)
    assert (work.engine, work.why) == (SPARK, "the source is not Parquet, CSV or JSON: OrcFileFormat")
    columns = on_columns(rows_of(spark, lake, event_time="day"))
    assert counts == columns.count()
    assert result(work, counts, tmp_path / "orc")[2] == result(columns, counts, tmp_path / "parquet")[2]


def write(path: Path, **columns: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    usual = {
        "user": pa.array(["a", "b"]),
        "payload": pa.array([b"1", b"2"]),
        "at": pa.array([1, 2], pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table({**usual, **columns}), path)


def test_files_of_different_schemas_take_rows(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "lake" / "a.parquet")
    write(tmp_path / "lake" / "b.parquet", at=pa.array(["1", "2"]))
    rows = rows_of(spark, tmp_path / "lake")
    with pytest.raises(UnlikeError, match="another type in a file"):
        read_source(rows)
    with pytest.raises(InvalidError, match=r"b\.parquet.*\bat\b"):
        work_and_counts(spark, rows, PARTITIONS)


IN_PATHS: list[dict[str, Any]] = [
    {"key": "day"},
    {"value": None},
    {"key": "text", "event_time": "day"},
    {"where": "day > date'2024-01-01' and n = 3"},
    {"where": "n = 3 or day = date'2024-01-01'"},
    {"key": "n", "value": "text", "event_time": "cast(day as timestamp)"},
]


def test_columns_in_the_paths(spark: SparkSession, tmp_path: Path) -> None:
    paths = (
        "day=2024-01-01/n=3/text=a%20%C3%A9",
        "day=2024-01-02/n=3/text=b",
        "day=2024-01-03/n=__HIVE_DEFAULT_PARTITION__/text=c",
    )
    for path in paths:
        (tmp_path / "lake" / path).mkdir(parents=True)
        write(tmp_path / "lake" / path / "a.parquet")
    floods = {str(changed): rows_of(spark, tmp_path / "lake", **changed) for changed in IN_PATHS}
    assert all(found.total for found in assert_alike(floods, tmp_path / "one").values())
    assert assert_as_rows(spark, rows_of(spark, tmp_path / "lake", event_time=None), tmp_path / "whole").total == 6


def test_files_whose_path_shows_that_no_row_passes_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "lake" / f"n={number}").mkdir(parents=True)
        write(tmp_path / "lake" / f"n={number}" / "a.parquet")
    rows = rows_of(spark, tmp_path / "lake", where="n > 0 and n < 2")
    (tmp_path / "lake" / "n=0" / "a.parquet").write_bytes(b"no file of rows")
    source = read_source(rows)
    assert [piece.file.path for piece in source.pieces] == [str(tmp_path / "lake" / "n=1" / "a.parquet")]


def test_a_path_with_a_column_of_another_type_takes_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lake" / "x=0.5").mkdir(parents=True)
    write(tmp_path / "lake" / "x=0.5" / "a.parquet")
    with pytest.raises(UnlikeError, match="paths is of type double: x"):
        read_source(rows_of(spark, tmp_path / "lake", where="x is not null"))
    assert_alike({"": rows_of(spark, tmp_path / "lake")}, tmp_path / "found")


@pytest.mark.parametrize("changed", [{}, {"key": None}, {"order_by": ("n",), "where": "n is not null"}], ids=str)
def test_without_event_time_the_order_is_that_of_the_source(
    spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    """Files by their paths: the last one is the largest, which Spark reads first."""
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: 4 << 10)
    files = [tmp_path / "lake" / name for name in ("a.parquet", "b.parquet", "c.parquet")]
    files[0].parent.mkdir()
    for number, path in enumerate(files):
        few = pq.read_table(sorted(lake.glob("*.parquet"))[number]).slice(0, 100 * (number + 1))
        pq.write_table(few, path, row_group_size=60)
    rows = rows_of(spark, files[0].parent, event_time=None, **changed)
    found = written(on_columns(rows), tmp_path / "all")[1]
    assert found == of_rows(spark, rows)
    table = pa.concat_tables(pq.read_table(path, partitioning=None) for path in files)
    if "where" in changed:
        table = table.filter(table.column("n").is_valid())
    assert {time for some in found.values() for time, *_ in some} == {NOW_MS * 1000}
    keys = [None if "key" in changed else key.encode() for key in table.column("user").to_pylist()]
    order = dict[tuple[Any, Any], list[int]]()
    for number, one in enumerate(zip(keys, table.column("payload").to_pylist(), strict=True)):
        order.setdefault(one, []).append(number)
    # Equal records are in one partition, and there the first one comes first.
    numbers = {partition: [order[key, value].pop(0) for _, key, value in some] for partition, some in found.items()}
    assert all(some == sorted(some) for some in numbers.values())
    assert sum(map(len, numbers.values())) == table.num_rows


def test_a_file_that_is_not_what_its_name_says_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "lake" / "a.parquet")
    (tmp_path / "lake" / "b.parquet").write_text("user,payload,at\n" * 10)
    with pytest.raises(InvalidError, match=r"b\.parquet.*[Ff]ooter|[Ff]ooter.*b\.parquet"):
        work_and_counts(spark, rows_of(spark, tmp_path / "lake"), PARTITIONS)


def test_keys_longer_than_a_task_reads_at_once(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: 4 << 10)
    keys = pa.array(["a" * (3 << 20), "b", "a" * (3 << 20), "c" * (1 << 20)])
    some = {"payload": pa.array([b"1", b"2", b"3", b"4"]), "at": pa.array([4, 3, 2, 1], pa.timestamp("us", tz="UTC"))}
    write(tmp_path / "lake" / "a.parquet", user=keys, **some)
    write(tmp_path / "lake" / "b.parquet", user=keys, **some)
    assert assert_alike({"": rows_of(spark, tmp_path / "lake")}, tmp_path / "found")[""].total == 8


def test_an_executor_with_an_old_arrow_is_named(spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task runs in this process."""
    source = read_source(rows_of(spark, lake))
    spec = tasks.Spec(source.query, PARTITIONS, (), 1)
    monkeypatch.setattr(tasks, "ARROW_VERSION_MIN", 999)
    with pytest.raises(InvalidError, match=rf"install 999 or later on each executor.*pyarrow=`{pa.__version__}`"):
        tasks.count_stretch(spec, 0, source.pieces)


def change(path: Path) -> None:
    write(path, payload=pa.array([b"3", b"4"]))


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def touch_footer(path: Path) -> None:
    """Another footer of the same size, at the same time."""
    before = os.stat(path)
    data = bytearray(path.read_bytes())
    data[-12] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("harm", [change, grow, Path.unlink, touch_footer])
@pytest.mark.parametrize("counted_before", [False, True])
def test_a_file_that_changes_meanwhile_is_told(spark: SparkSession, tmp_path: Path, harm: Any, counted_before: bool) -> None:
    """In this process: `test_columns_kills.py` has a file that changes before Spark's workers read it."""
    path = tmp_path / "lake" / "a.parquet"
    write(path)
    work = on_columns(rows_of(spark, path.parent))
    if counted_before:
        work.count()
    harm(path)
    with pytest.raises(RetryError, match=f"(changed|vanished).*file=`{path}`"):
        if counted_before:
            work.write(Job(str(tmp_path / "store"), "", "job", 64 << 10, {}))
        else:
            work.count()


def test_a_time_out_of_range_is_named_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "lake" / "a.parquet"
    write(path, at=pa.array([1, (1 << 62) - 1], pa.int64()))
    work, counts = work_and_counts(spark, rows_of(spark, path.parent, event_time="timestamp_micros(at)"), PARTITIONS)
    assert work.engine == ARROW
    work.write(Job(str(tmp_path / "store"), "", "job", 64 << 10, {}))
    assert counts.total == 2
    write(path, at=pa.array([1, 1 << 62], pa.int64()))
    seconds, _ = work_and_counts(
        spark, rows_of(spark, path.parent, event_time="timestamp_millis(at)", where="user = 'a'"), PARTITIONS
    )
    assert seconds.engine == ARROW
    with pytest.raises(HeadgateError, match=r"no value for a row|overflow|range"):
        work_and_counts(spark, rows_of(spark, path.parent, event_time="timestamp_millis(at)"), PARTITIONS)
    count = 2 * tasks.SAMPLED_ROWS
    times = [(1 << 62) if number == count - 7 else 5 for number in range(count)]
    write(path, user=pa.array(["a"] * count), payload=pa.array([b"1"] * count), at=pa.array(times, pa.int64()))
    with raises(InvalidError, Reason.INVALID_RECORD, rf"no value for a row.* file=`{path}` row_group=`0` row=`{count - 7}`"):
        work_and_counts(spark, rows_of(spark, path.parent, event_time="timestamp_millis(at)"), PARTITIONS)


def test_null_times_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "lake" / "a.parquet", at=pa.array([1, None], pa.timestamp("us", tz="UTC")))
    with raises(InvalidError, Reason.INVALID_RECORD, r"event time of some rows is null.*rows=`1` of=`2`"):
        work_and_counts(spark, rows_of(spark, tmp_path / "lake"), PARTITIONS)


NESTED = """
    id, timestampadd(SECOND, id, timestamp'2026-01-01') at, cast(id % 7 as string) user,
    if(id % 3 = 0, null, concat('M\\"', id, '\\n')) text,
    if(id % 5 = 1, null, named_struct('city', if(id % 3 = 0, null, '\\\\'), 'at', struct(id / 8 as x, float(id) as y))) place,
    if(id % 7 = 2, null, transform(sequence(1, id % 4), n -> if(n % 3 = 0, null, named_struct('n', n)))) items,
    if(id % 6 = 3, null, slice(array('a', null, 'é'), 1, cast(id % 4 as int))) words,
    if(id % 4 = 1, null, map_filter(map('a', id, 'b\\t', null), (k, v) -> id % 3 > 0)) counts,
    map(id, array(timestampadd(SECOND, id, timestamp'2026-01-01 00:00:00.5')), id + 1, null) sent,
    map(id % 2 = 0, timestamp_ntz'2026-01-01 12:00:00.123456') flags,
    array(array(1Y, null), null, array()) deep,
    named_struct('raw', binary(cast(id as string)), 'sum', cast(id - 50 as decimal(20, 8)), 'none', cast(null as int)) bits,
    date_add(date'2026-01-01', cast((id - 50) * {days} as int)) day,
    timestampadd(DAY, (id - 50) * {days}, timestamp'2026-01-01 00:00:00.001') far,
    timestampadd(DAY, (id - 50) * {days}, timestamp_ntz'2026-01-01 23:59:59.999') local
"""


@pytest.mark.parametrize(("times", "days"), [("INT96", 20_000), ("TIMESTAMP_MICROS", 200_000)])
def test_a_nested_lake_as_spark_writes_it(spark: SparkSession, tmp_path: Path, times: str, days: int) -> None:
    """The row as JSON, with structs, arrays and maps in one another, and times and dates of any year. Times of 96 bits begin in the
    year -4712."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", times)
    try:
        spark.sql(f"select {NESTED.format(days=days)} from range(100)").repartition(2).write.parquet(str(tmp_path / "lake"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    floods = {
        str(changed): rows_of(spark, tmp_path / "lake", value=None, **changed)
        for changed in ({}, {"where": "id > 90"}, {"key": "day"})
    }
    counts = assert_alike(floods, tmp_path / "found")
    assert [one.total for one in counts.values()] == [100, 9, 100]
    plain = plain_source(Backfill(topic="t", source=str(tmp_path / "lake"), event_time="at", key="user"), Limits())
    assert plain is not None and plain.query.outputs == read_source(floods["{}"]).query.outputs
