"""`read_topic`, which scans history with Spark's own Parquet reader, against the data source, on a real broker.

Compared: schema and all rows of both ways to read the same range of the same topic. A mismatch means that a job that changes to
`read_topic` loses, doubles or changes records. The plans show that Spark reads only the columns, files and row groups it needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.client import Admin, FileRef, GateAdmin, Layout, Place
from headgate.broker.client.upload import Uploader
from headgate.broker.log.crc import crc32c
from headgate.broker.log.parquet import WrittenExtent, footer_size
from headgate.broker.runtime.errors import InvalidError, RetryError
from headgate.pipelines.source import HeadgateDataSource
from headgate.pipelines.topic import read_topic
from tests.support.broker_process import HOST, BrokerProcess, broker_of_module
from tests.support.clients.all import CLIENTS
from tests.support.records import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JUDGE = CLIENTS["confluent"]
ROOM = 1000
"""Offset of the first live record of the topic `layers`."""
ROWS = 300
FIRST_US = 1_600_000_000_000_500
LIVE_MS = 1_750_000_000_000
UTC_US = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))


broker = broker_of_module()


@pytest.fixture(scope="module")
def layers(broker: BrokerProcess) -> str:
    """History in front, live records, history with headers, live records of which some are skipped, history, live records."""
    create(broker, "layers", 2, {"history.room": str(ROOM)})
    produce(broker, "layers", 0)
    fill(broker, "layers", "front", Place.FRONT, {0: [rows(ROWS, 0), rows(ROWS, 1)], 1: [rows(ROWS, 2)]})
    fill(broker, "layers", "middle", Place.NOW, {0: [rows(ROWS, 3, headers=True)], 1: [rows(ROWS, 4, headers=True), rows(50, 5)]})
    produce(broker, "layers", 1)
    produce(broker, "layers", 2)

    async def skip(admin: Admin) -> None:
        first = ROOM + 10 + ROWS
        await admin.skip_records("layers", 0, first, first)

    on(broker, skip)
    fill(broker, "layers", "last", Place.END, {0: [rows(ROWS, 6)]})
    produce(broker, "layers", 3)
    return "layers"


def cluster(broker: BrokerProcess) -> str:
    return f"{HOST}:{broker.grpc_port}"


def on(broker: BrokerProcess, work: Callable[[Admin], Awaitable[Any]]) -> None:
    async def ask() -> None:
        async with Admin(cluster(broker)) as admin:
            await work(admin)

    asyncio.run(ask())


def create(broker: BrokerProcess, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    on(broker, lambda admin: admin.create_topic(topic, partitions, config))


def produce(broker: BrokerProcess, topic: str, seed: int, count: int = 20, partitions: int = 2) -> None:
    records = [
        Record(
            partition=number % partitions,
            key=None if number % 7 == 0 else b"live",
            value=None if number % 5 == 0 else b"%d" % number,
            timestamp_ms=LIVE_MS + 1000 * seed + number,
            headers=(("h", b"1"), ("n", None)) if number % 2 else (),
        )
        for number in range(count)
    ]
    JUDGE.produce(broker.bootstrap, topic, records)


def rows(count: int, seed: int, *, headers: bool = False, kind: Any = UTC_US) -> pa.Table:
    """History: a row in each ms from a second that depends on `seed`, with nulls in each column that may have them."""
    numbers = range(count)
    times = pa.array([FIRST_US + seed * 1_000_000 + number * 1000 for number in numbers], UTC_US)
    columns: dict[str, Any] = {
        "timestamp": times
        if kind == UTC_US
        else pa.array([time // 1000 for time in times.cast(pa.int64()).to_pylist()]).cast(kind),
        "key": pa.array([None if number % 11 == 0 else b"k%d" % (number % 7) for number in numbers], pa.binary()),
        "value": pa.array([None if number % 13 == 0 else b"%d/%d" % (seed, number) for number in numbers], pa.binary()),
    }
    if headers:
        some = ([("a", b"1"), ("a", None)], [], None)
        columns["headers"] = pa.array([some[number % 3] for number in numbers], HEADERS)
    return pa.table(columns)


def written(table: pa.Table, **options: Any) -> WrittenExtent:
    """A Parquet file of another writer."""
    out = pa.BufferOutputStream()
    pq.write_table(table, out, **options)
    data = out.getvalue()
    times = table.column("timestamp")
    ms = [number // {"us": 1000, "ns": 1_000_000}.get(getattr(times.type, "unit", "ms"), 1) for number in ints(times)]
    footer = memoryview(data)[len(data) - footer_size(memoryview(data)[-8:], len(data)) :]
    return WrittenExtent(data, table.num_rows, crc32c(footer), min(ms), max(ms))


def ints(times: Any) -> list[int]:
    return [int(number) for number in times.cast(pa.int64()).to_pylist()]


def fill(
    broker: BrokerProcess, topic: str, gate_id: str, place: Place, files: dict[int, Sequence[pa.Table | WrittenExtent]]
) -> None:
    """A gate with these files of each partition."""

    async def layout() -> Layout:
        async with GateAdmin(cluster(broker)) as admin:
            return await admin.layout(topic)

    async def windows(counts: list[int]) -> dict[int, int]:
        async with GateAdmin(cluster(broker)) as admin:
            gate = await admin.open(topic, counts, gate_id=gate_id, place=place)
            return {window.partition: window.base_offset for window in gate.windows}

    async def commit(refs: list[FileRef]) -> None:
        async with GateAdmin(cluster(broker)) as admin:
            await (admin.publish(topic, refs, gate_id=gate_id) if place is Place.END else admin.fill(topic, gate_id, refs))

    seen = asyncio.run(layout())
    counts = [sum(len_of(one) for one in files.get(number, ())) for number in range(len(seen.partitions))]
    bases = dict.fromkeys(files, 0) if place is Place.END else asyncio.run(windows(counts))
    refs: list[FileRef] = []
    with Uploader(seen.store_url) as uploader:
        for number, some in files.items():
            for index, one in enumerate(some):
                key = f"{seen.prefix}partition={number}/{gate_id}-{index}.parquet"
                write = uploader.put if isinstance(one, WrittenExtent) else uploader.write
                refs.append(write(key, one, number, bases[number]))  # type: ignore[arg-type]
                bases[number] += len_of(one)
    asyncio.run(commit(refs))


def len_of(one: pa.Table | WrittenExtent) -> int:
    return one.rows if isinstance(one, WrittenExtent) else one.num_rows


def through_source(spark: SparkSession, broker: BrokerProcess, **options: Any) -> DataFrame:
    reader = spark.read.format("headgate").option("cluster", cluster(broker))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def in_process(spark: SparkSession, broker: BrokerProcess, **options: Any) -> DataFrame:
    """What the data source reads, by its planner and its tasks in this process: Spark's are begun for each query."""
    from pyspark.sql.types import StructType

    source = HeadgateDataSource({name.lower(): str(text) for name, text in {"cluster": cluster(broker), **options}.items()})
    schema = StructType.fromDDL(source.schema())
    reader: Any = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return spark.createDataFrame(pa.Table.from_batches(batches) if batches else [], schema)


def natively(spark: SparkSession, broker: BrokerProcess, topic: str | None, **options: Any) -> DataFrame:
    return read_topic(spark, topic, cluster=cluster(broker), **options)


def same(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str | None,
    where: str = "true",
    options: dict[str, Any] | None = None,
    *,
    source: Callable[..., DataFrame] = in_process,
) -> tuple[int, int]:
    """Compare both ways. Returns the number of rows, and of the files that Spark scans. `source`: reads through the data source."""
    named = dict(options or {}) | ({} if topic is None else {"subscribe": topic})
    frame = natively(spark, broker, topic, **(options or {})).where(where)
    expected = source(spark, broker, **named).where(where)
    assert frame.schema == expected.schema
    found, wanted = (sorted(map(str, one.collect())) for one in (frame, expected))
    assert found == wanted
    return len(found), len(frame.inputFiles())


def plan_of(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    frame.explain()
    return capsys.readouterr().out


START, END = '{"layers": {"0": 450, "1": -2}}', '{"layers": {"0": 1100, "1": 1160}}'


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"includeHeaders": "true"}, 7),
        ({"startingOffsets": START, "endingOffsets": END, "includeHeaders": "true"}, 5),
        ({"startingTimestamp": FIRST_US // 1000 + 1100}, 6),
        ({"endingTimestamp": FIRST_US // 1000 + 4010}, 3),
        ({"columns": "offset"}, 7),
        ({"columns": "value,partition"}, 7),
        ({"columns": "headers,timestampType,topic", "minPartitions": "5"}, 7),
        ({"startingOffsets": '{"layers": {"0": 1010, "1": 1010}}', "endingOffsets": '{"layers": {"0": 1010, "1": 1010}}'}, 0),
    ],
    ids=lambda one: ",".join(one) if isinstance(one, dict) else None,
)
def test_a_range_of_a_topic_of_several_gates(
    broker: BrokerProcess, spark: SparkSession, layers: str, options: dict[str, Any], files: int
) -> None:
    count, scanned = same(spark, broker, layers, options=options)
    assert (count > 0) == (files > 0)
    assert scanned == files


@pytest.mark.parametrize(
    "where",
    [
        "partition = 1",
        "offset BETWEEN 500 AND 1320",
        f"timestamp < timestamp_micros({FIRST_US + 3_010_000})",
        "value IS NULL",
        "key = X'6B33' AND topic = 'layers'",
        "topic = 'other'",
    ],
)
def test_filters_of_the_query(broker: BrokerProcess, spark: SparkSession, layers: str, where: str) -> None:
    same(spark, broker, layers, where)


def test_some_partitions_and_the_counts_of_files(broker: BrokerProcess, spark: SparkSession, layers: str) -> None:
    assert same(spark, broker, None, options={"assign": '{"layers": [1]}', "includeHeaders": "true"}, source=through_source)[1] == 3
    assert natively(spark, broker, layers, columns="value").count() == through_source(spark, broker, subscribe=layers).count()


def test_the_plan_reads_only_the_columns_that_the_query_needs(
    broker: BrokerProcess, spark: SparkSession, layers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = natively(spark, broker, layers)
    plan = plan_of(frame.where(f"timestamp > timestamp_micros({FIRST_US})").select("value"), capsys)
    scans = [line for line in plan.splitlines() if "FileScan parquet" in line]
    assert scans
    for line in scans:
        assert "PushedFilters: [IsNotNull(timestamp), GreaterThan(timestamp," in line
        assert "key:binary" not in line and "value:binary" in line
    assert "Join" not in plan, "only `partition` and `offset` need the places of the files"
    assert "Join" in plan_of(frame.select("offset"), capsys)
    named = plan_of(natively(spark, broker, layers, columns="key"), capsys)
    assert "ReadSchema: struct<key:binary>\n" in named
    only_history = natively(spark, broker, layers, endingOffsets={"layers": {"0": ROOM, "1": ROOM}})
    assert "headgate" not in plan_of(only_history, capsys), "no python in the plan of history"


def test_an_action_sees_the_records_of_the_call(broker: BrokerProcess, spark: SparkSession) -> None:
    """One cut: records and gates that come after the call are not in the result."""
    create(broker, "growing", 2)
    frame = natively(spark, broker, "growing")
    assert frame.schema == through_source(spark, broker, subscribe="growing").schema
    produce(broker, "growing", 0)
    assert frame.count() == 0 and same(spark, broker, "growing") == (20, 0)
    frame = natively(spark, broker, "growing")
    fill(broker, "growing", "g", Place.END, {0: [rows(10, 0)]})
    produce(broker, "growing", 1)
    assert frame.count() == 20 and same(spark, broker, "growing") == (50, 1)


def test_records_that_were_deleted_in_the_middle_of_a_file(broker: BrokerProcess, spark: SparkSession) -> None:
    create(broker, "deleted")
    fill(broker, "deleted", "g", Place.END, {0: [rows(100, 0), rows(100, 1)]})
    on(broker, lambda admin: admin.delete_records("deleted", {0: 40}))
    assert same(spark, broker, "deleted") == (160, 2)
    options = {"startingOffsets": '{"deleted": {"0": 10}}', "endingOffsets": '{"deleted": {"0": 190}}', "failOnDataLoss": "false"}
    assert same(spark, broker, "deleted", options=options) == (150, 2)
    with pytest.raises(InvalidError, match="offset is out of range"):
        natively(spark, broker, "deleted", startingOffsets={"deleted": {"0": 10}})


def test_an_open_gate(broker: BrokerProcess, spark: SparkSession) -> None:
    create(broker, "gated")
    fill(broker, "gated", "g", Place.END, {0: [rows(10, 0)]})

    async def open_one() -> None:
        async with GateAdmin(cluster(broker)) as admin:
            await admin.open("gated", [10], gate_id="open")

    asyncio.run(open_one())
    produce(broker, "gated", 0, partitions=1)
    with pytest.raises(RetryError, match="openGates"):
        natively(spark, broker, "gated")
    assert same(spark, broker, "gated", options={"openGates": "stop"}) == (10, 1)
    assert same(spark, broker, "gated", options={"openGates": "skip"}) == (30, 1)


MS = pa.timestamp("ms", tz="UTC")


def foreign() -> dict[str, tuple[pa.Table | WrittenExtent, bool]]:
    """Files of other writers, and for each whether Spark scans it."""
    table, in_ms = rows(40, 1, headers=True), rows(40, 1, kind=MS)
    micros, millis = (one.column("timestamp") for one in (table, in_ms))
    text = pa.array([None if one is None else one.decode() for one in table.column("value").to_pylist()], pa.string())
    nanos = pa.array([time * 1000 + 7 for time in ints(micros)], pa.timestamp("ns", tz="UTC"))
    more = table.append_column("extra", pa.array(range(40))).select(["headers", "extra", "value", "key", "timestamp"])
    return {
        "ms": (written(in_ms, row_group_size=7), True),
        "our own, ms": (in_ms, True),
        "text": (written(table.set_column(2, "value", text)), True),
        "dictionary": (written(table.set_column(2, "value", text.cast(pa.large_string()).dictionary_encode())), True),
        "other columns, gzip": (written(more, compression="gzip", data_page_version="2.0"), True),
        "no headers": (written(table.drop_columns(["headers"]), use_dictionary=False, row_group_size=9), True),
        "integer time": (written(in_ms.set_column(0, "timestamp", pa.array(ints(millis)))), False),
        "ns": (written(table.set_column(0, "timestamp", nanos)), False),
        "local time": (written(table.set_column(0, "timestamp", micros.cast(pa.timestamp("us")))), False),
        "fixed size": (written(table.set_column(1, "key", pa.array([b"abcd"] * 40, pa.binary(4)))), False),
        "no key": (written(table.set_column(1, "key", pa.nulls(40))), False),
        "brotli": (written(table, compression="brotli"), False),
        "names that differ in case": (written(table.append_column("Key", pa.array(["x"] * 40))), False),
        "headers of another form": (written(table, use_compliant_nested_type=False), False),
        "julian calendar": (written(table.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})), False),
    }


def test_files_of_other_writers(broker: BrokerProcess, spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """One partition for each file."""
    cases = foreign()
    create(broker, "foreign", len(cases))
    fill(broker, "foreign", "g", Place.END, {number: [file] for number, (file, _) in enumerate(cases.values())})
    shared = [number for number, (_, is_scanned) in enumerate(cases.values()) if is_scanned]
    with caplog.at_level(logging.WARNING, "headgate.spark"):
        assert same(spark, broker, "foreign", options={"includeHeaders": "true"}) == (40 * len(cases), len(shared))
    assert f"files=`{len(cases) - len(shared)}`" in caplog.text
    caplog.clear()
    names = list(cases)
    for number in range(len(cases)):
        frame = natively(spark, broker, None, assign={"foreign": [number]}, includeHeaders=True)
        assert len(frame.inputFiles()) == (number in shared), names[number]
    # The first row of a row group of ms is half a ms before this time.
    edge_us = FIRST_US + 1_014_000
    for comparison in ("<", "=", "<>"):
        same(spark, broker, "foreign", f"timestamp {comparison} timestamp_micros({edge_us})")


def test_the_times_of_other_writers_are_those_that_consumers_see(broker: BrokerProcess, spark: SparkSession) -> None:
    """An integer is ms, and parts of a microsecond are cut off towards the past."""
    nanos = [1_600_000_000_000_000_999, -1, 0]
    create(broker, "units", 2)
    empty = {"key": pa.nulls(3, pa.binary()), "value": pa.nulls(3, pa.binary())}
    files = {
        0: [written(pa.table({"timestamp": pa.array(nanos, pa.timestamp("ns", tz="UTC")), **empty}))],
        1: [written(pa.table({"timestamp": pa.array([1_600_000_000_000, -1, 0], pa.int64()), **empty}))],
    }
    fill(broker, "units", "g", Place.END, files)
    found = through_source(spark, broker, subscribe="units").selectExpr("partition", "offset", "unix_micros(timestamp)").collect()
    assert sorted(map(tuple, found)) == [
        (0, 0, 1_600_000_000_000_000), (0, 1, -1), (0, 2, 0), (1, 0, 1_600_000_000_000_000), (1, 1, -1000), (1, 2, 0),
    ]  # fmt: skip


def test_a_file_at_two_places_of_a_topic(broker: BrokerProcess, spark: SparkSession) -> None:
    create(broker, "twice")

    async def publish() -> None:
        async with GateAdmin(cluster(broker)) as admin:
            files = (await admin.layout("twice")).partitions[0].extents
            assert len(files) == 1
            await admin.publish("twice", files, gate_id="again")

    fill(broker, "twice", "g", Place.END, {0: [rows(10, 0)]})
    asyncio.run(publish())
    assert same(spark, broker, "twice") == (20, 0)


def test_a_file_that_spark_takes_for_a_hidden_one(broker: BrokerProcess, spark: SparkSession) -> None:
    create(broker, "hidden")
    fill(broker, "hidden", "g", Place.END, {0: [rows(10, 0)]})
    fill(broker, "hidden", "_h", Place.END, {0: [rows(10, 1)]})
    assert same(spark, broker, "hidden") == (20, 1)


def test_a_session_that_leaves_out_missing_files(broker: BrokerProcess, spark: SparkSession) -> None:
    """Retention may delete a file between the call and the action. That is an error that names the file, never fewer records."""
    from pyspark.errors import PySparkException

    create(broker, "gone")
    fill(broker, "gone", "g", Place.END, {0: [rows(10, 0), rows(10, 1)]})
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        frame = natively(spark, broker, "gone")
        assert frame.count() == 20
        path = Path(sorted(frame.inputFiles())[0].removeprefix("file://").replace("%20", " "))
        path.unlink()
        # Spark's own errors in tasks come without a class of PySpark.
        with pytest.raises(Exception, match=f"{path.name}. File does not exist"):
            frame.select("value").collect()
        with pytest.raises(PySparkException, match=path.name):
            natively(spark, broker, "gone").collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_two_topics_and_a_call_that_cannot_be(broker: BrokerProcess, spark: SparkSession, layers: str) -> None:
    create(broker, "second")
    fill(broker, "second", "g", Place.END, {0: [rows(10, 0)]})
    assert same(spark, broker, f"{layers},second")[1] == 8
    with pytest.raises(InvalidError, match="topic does not exist"):
        natively(spark, broker, "nope")
    with pytest.raises(InvalidError, match="no such option"):
        natively(spark, broker, "second", maxRows=5)
