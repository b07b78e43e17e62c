"""The Spark data source `headgate`: batch and streaming, read and write, against a real broker.

Compared: Spark's reads with the records of foreign Kafka clients and with the source of a flood, and foreign clients' reads with
Spark's writes. A mismatch means that a job which moved over from Spark's Kafka source loses, doubles or changes records.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.duration_pb2 import Duration
from pyspark.sql.types import StructType

from headgate.broker.client import Admin
from headgate.broker.client.gate_admin import GateAdmin
from headgate.broker.runtime.errors import HeadgateError, InvalidError
from headgate.broker.schemas import registry as client
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.framing.declared import Framing
from headgate.pipelines.room import ROOM_OFFSETS
from headgate.pipelines.session import LazySession
from headgate.pipelines.source import HeadgateDataSource
from headgate.pipelines.topic import read_topic
from tests.support import registry as support
from tests.support.broker_process import HOST, BrokerProcess, broker_of_module
from tests.support.clients.all import CLIENTS
from tests.support.flood_sources import Event, events, expected, write
from tests.support.records import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JUDGE = CLIENTS["confluent"]
PARTITIONS = 2
LIVE_MS = 1_750_000_000_000
HEADERS = (("h", b"1"), ("n", None))
LIVE = [
    Record(partition=number % PARTITIONS, key=b"live", value=b"%d" % number, timestamp_ms=LIVE_MS + number, headers=HEADERS)
    for number in range(40)
]


broker = broker_of_module()


@pytest.fixture(scope="module")
def mixed(broker: BrokerProcess, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The topic `mixed`: a flood, then live records behind it. Returns the flood's rows."""
    rows = events(4000, seed=7)
    path = write(tmp_path_factory.mktemp("rows") / "events", rows)
    flood = Backfill(
        cluster=cluster(broker), topic="mixed", source=str(path), key="user", value="payload", event_time="at",
        partitions=PARTITIONS, file_bytes=64 << 10,
    )  # fmt: skip
    assert run(flood, spark).complete
    JUDGE.produce(broker.bootstrap, "mixed", LIVE)
    return rows


def cluster(broker: BrokerProcess) -> str:
    return f"{HOST}:{broker.grpc_port}"


def load(spark: SparkSession, broker: BrokerProcess, **options: Any) -> DataFrame:
    reader = spark.read.format("headgate").option("cluster", cluster(broker))
    for name, text in options.items():
        reader = reader.option(name, str(text))
    return reader.load()


def create(broker: BrokerProcess, topic: str, partitions: int = PARTITIONS) -> None:
    async def ask() -> None:
        async with Admin(cluster(broker)) as admin:
            await admin.create_topic(topic, partitions)

    asyncio.run(ask())


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Spark fails with a sentence of ours, without the traceback of its worker."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=words) as found:
        yield
    assert "Traceback" not in str(found.value)


def everything(rows: list[Event]) -> dict[int, list[tuple[int, bytes | None, bytes | None]]]:
    """(time, key, value) of every record of the topic `mixed`."""
    found: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {}
    for number, history in expected(rows, PARTITIONS).items():
        live = [(record.timestamp_ms or 0, record.key, record.value) for record in LIVE if record.partition == number]
        found[number] = [*history, *live]
    return found


def test_a_registry_decodes_history_and_live_records(
    broker: BrokerProcess, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged by confluent-kafka's serializers: Spark shows what they were given, in records of producers and of a flood."""
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    arrow: Any = pa
    given = [{"user": f"u{number}", "n": number} for number in range(20)]
    times = arrow.array([1_700_000_000_000 + number for number in range(20)], pa.timestamp("ms", "UTC"))
    pq.write_table(arrow.Table.from_pylist(given).append_column("at", times), tmp_path / "a.parquet")
    columns = {"user": "string", "n": "long"}
    avro_schema = {"type": "record", "name": "Clicks", "fields": [{"name": name, "type": kind} for name, kind in columns.items()]}
    text_schema = {"title": "Clicks", "type": "object"}
    with support.registry() as fake, SchemaRegistryClient({"url": fake.url}) as theirs:
        avro: Any = AvroSerializer(theirs, json.dumps(avro_schema))
        texts: Any = JSONSerializer(json.dumps(text_schema), theirs)
        messages: Any = ProtobufSerializer(Duration, theirs, {"use.deprecated.format": False})
        value = MessageField.VALUE
        live = [
            avro(given[0], SerializationContext("framed", value)), texts(given[1], SerializationContext("texts", value)),
            messages(Duration(seconds=7), SerializationContext("messages", value)), b"plain", b"\xff", None,
        ]  # fmt: skip
        create(broker, "framed", 1)
        framing = Framing(format="avro", registry=fake.url, subject="framed-value")
        flood = Backfill(
            cluster=cluster(broker), topic="framed", source=str(tmp_path), key="user", value_frame=framing, event_time="at",
            partitions=1,
        )  # fmt: skip
        assert run(flood, spark).complete
        records = [Record(partition=0, key=b"k", value=one, timestamp_ms=LIVE_MS, headers=()) for one in live]
        JUDGE.produce(broker.bootstrap, "framed", records)
        shown = [*given, given[0], given[1], "7s", "plain", None, None]
        for frame in (
            load(spark, broker, subscribe="framed", registry=fake.url, columns="offset,value"),
            read_topic(spark, "framed", cluster=cluster(broker), registry=fake.url, columns="offset,value"),
        ):
            assert dict(frame.dtypes) == {"offset": "bigint", "value": "string"}
            found = [row.value for row in sorted(frame.collect(), key=lambda row: int(row.offset))]
            assert [json.loads(text) if text and text[0] in '{"' else text for text in found] == shown
        fake.broken = 10**6
        with refused("registry"):  # a new URL: the schemas of the other one are known
            load(spark, broker, subscribe="framed", registry=f"{fake.url}/").collect()
    with refused("a registry is named by its URL"):
        load(spark, broker, subscribe="framed", registry="nowhere").collect()


def test_a_batch_reads_history_and_what_is_live(broker: BrokerProcess, spark: SparkSession, mixed: list[Event]) -> None:
    frame = load(spark, broker, subscribe="mixed", includeHeaders=True)
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    found: dict[int, list[Any]] = {number: [] for number in range(PARTITIONS)}
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        assert row.topic == "mixed" and row.timestampType == 0
        assert row.offset == ROOM_OFFSETS + len(found[row.partition])
        found[row.partition].append((row.ms, bytes(row.key), bytes(row.value)))
        if row.ms >= LIVE_MS and row.key == b"live":
            assert [(one.key, one.value) for one in row.headers] == [("h", b"1"), ("n", None)]
        else:
            assert row.headers is None
    assert found == everything(mixed)


def test_rows_that_lie_in_the_files_of_their_source(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    rows = events(3000, seed=9)
    path = write(tmp_path / "events", sorted(rows, key=lambda row: row.at_us or 0), files=1)
    flood = Backfill(
        cluster=cluster(broker), topic="adopted", source=str(path), key="user", value="payload", event_time="at",
        partitions=PARTITIONS, files="link",
    )  # fmt: skip
    assert run(flood, LazySession(lambda: spark, "local[2]", {})).adopted_rows == 3000
    JUDGE.produce(broker.bootstrap, "adopted", LIVE)
    found = [
        (row.partition, row.offset, row.key and bytes(row.key), row.value and bytes(row.value))
        for row in load(spark, broker, subscribe="adopted").collect()
    ]
    wanted = JUDGE.consume(broker.bootstrap, "adopted", range(PARTITIONS))
    assert sorted(found) == sorted(
        (number, record.offset, record.key, record.value) for number, records in wanted.items() for record in records
    )
    assert len(found) == 3000 + len(LIVE)


def test_filters_and_columns_choose_what_is_read(broker: BrokerProcess, spark: SparkSession, mixed: list[Event]) -> None:
    whole = everything(mixed)
    frame = load(spark, broker, subscribe="mixed", columns="offset,partition,timestamp")
    assert frame.columns == ["offset", "partition", "timestamp"]
    few = frame.where(f"partition = 1 AND offset >= {ROOM_OFFSETS + 10} AND offset < {ROOM_OFFSETS + 20}")
    assert sorted(row.offset - ROOM_OFFSETS for row in few.collect()) == list(range(10, 20))
    assert few.rdd.getNumPartitions() == 1, "only one piece is read at all"
    late = frame.where(f"timestamp >= timestamp_millis({LIVE_MS}) AND timestamp < timestamp_millis({LIVE_MS + 10})")
    assert late.count() == sum(LIVE_MS <= row[0] < LIVE_MS + 10 for rows in whole.values() for row in rows) == 10
    assert load(spark, broker, subscribe="mixed", columns="value").where("value = 'payload 17'").count() == 1
    assert load(spark, broker, subscribe="mixed").count() == 4040
    assert frame.where("partition = 7").count() == 0
    assert load(spark, broker, subscribe="mixed", minPartitions=6, columns="partition").rdd.getNumPartitions() >= 6


def test_where_a_batch_begins_and_ends(broker: BrokerProcess, spark: SparkSession, mixed: list[Event]) -> None:
    sizes = {number: len(rows) for number, rows in everything(mixed).items()}

    def count(**options: Any) -> int:
        return load(spark, broker, columns="offset", **options).count()

    assert count(assign='{"mixed": [1]}') == sizes[1]
    start = json.dumps({"mixed": {"0": ROOM_OFFSETS + 100, "1": -2}})
    end = json.dumps({"mixed": {"0": ROOM_OFFSETS + 110, "1": ROOM_OFFSETS + 7}})
    assert count(subscribePattern="mi.*", startingOffsets=start, endingOffsets=end) == 17
    assert count(subscribe="mixed", startingTimestamp=7_258_118_400_000, endingOffsets='{"mixed": {"0": -1, "1": -1}}') == count(
        subscribe="mixed", startingOffsetsByTimestamp='{"mixed": {"0": 7258118400000, "1": 7258118400000}}'
    )
    nothing = json.dumps({"mixed": {"0": ROOM_OFFSETS, "1": ROOM_OFFSETS}})
    assert count(subscribe="mixed", endingOffsets=nothing) == 0


def test_offsets_that_were_removed(broker: BrokerProcess, spark: SparkSession) -> None:
    """Removed offsets are an error, unless the reader sets the option that lost records do not matter."""

    create(broker, "cut", 1)
    JUDGE.produce(broker.bootstrap, "cut", [Record(partition=0, key=None, value=b"%d" % number) for number in range(10)])

    async def cut() -> None:
        async with Admin(cluster(broker)) as admin:
            await admin.delete_records("cut", {0: 4})

    asyncio.run(cut())
    span = {"subscribe": "cut", "columns": "offset", "startingOffsets": '{"cut": {"0": 2}}', "endingOffsets": '{"cut": {"0": 20}}'}
    with refused("offset is out of range"):
        load(spark, broker, **span).count()
    found = load(spark, broker, failOnDataLoss=False, **span).collect()
    assert sorted(row.offset for row in found) == list(range(4, 10))


def test_who_set_the_time_of_a_record(broker: BrokerProcess, spark: SparkSession) -> None:
    """Live records of a topic with a setting that changed between them, and history behind them."""

    async def setting(kind: str) -> None:
        async with Admin(cluster(broker)) as admin:
            await admin.alter_topic_config("timed", {"message.timestamp.type": kind})

    create(broker, "timed", 1)
    one = [Record(partition=0, key=None, value=b"x", timestamp_ms=5)]
    for kind in ("CreateTime", "LogAppendTime", "CreateTime"):
        asyncio.run(setting(kind))
        JUDGE.produce(broker.bootstrap, "timed", one * 3)
    asyncio.run(setting("LogAppendTime"))
    frame = spark.sql("SELECT 'x' AS value")
    frame.write.format("headgate").option("cluster", cluster(broker)).option("topic", "timed").mode("append").save()
    rows = load(spark, broker, subscribe="timed", columns="offset,timestampType").collect()
    assert [row.timestampType for row in sorted(rows)] == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]


def test_times_before_1970(broker: BrokerProcess, spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    create(broker, "old", 1)
    first_ms = -315_619_200_000
    frame = spark.range(10).select(F.lit("x").alias("value"), F.timestamp_millis(F.col("id") + first_ms).alias("timestamp"))
    frame.coalesce(1).write.format("headgate").option("cluster", cluster(broker)).option("topic", "old").mode("append").save()

    def count(**options: Any) -> int:
        return load(spark, broker, subscribe="old", columns="offset", **options).count()

    assert count(startingTimestamp=first_ms) == 10
    assert count(startingTimestamp=first_ms + 3, endingTimestamp=first_ms + 5) == 2
    start, end = (f'{{"old": {{"0": {first_ms + after}}}}}' for after in (4, 8))
    assert count(startingOffsetsByTimestamp=start, endingOffsetsByTimestamp=end) == 4


def source(broker: BrokerProcess, **options: str) -> HeadgateDataSource:
    """The data source as Spark's planner makes it, with names of options in lower case."""
    return HeadgateDataSource({name.lower(): text for name, text in {"cluster": cluster(broker), **options}.items()})


WRONG_READS: list[tuple[dict[str, str], str]] = [
    ({}, "subscribe"),
    ({"subscribe": "nope"}, "topic does not exist"),
    ({"subscribe": "mixed", "startingOffsets": "latest"}, "latest"),
    ({"subscribe": "mixed", "columns": "key,nope"}, "no such column"),
    ({"subscribe": "mixed", "startingTimestamp": "99999999999999"}, "startingOffsetsByTimestampStrategy"),
    ({"subscribe": "mixed", "cluster": "nonsense"}, "nonsense"),
    ({"subscribe": "mixed", "startingOffsets": '{"mixt": {"0": 40}}'}, "startingOffsets names a partition that is not read"),
    ({"subscribe": "mixed", "endingOffsets": '{"mixed": {"7": 40}}'}, "endingOffsets names a partition that is not read"),
    ({"subscribe": "mixed", "startingOffsets": '{"mixed": {"1": 40}}'}, "startingOffsets leaves out a partition that is read"),
    ({"subscribe": "mixed", "minOffsetsPerTrigger": "5"}, "a batch read has no such option"),
    ({"subscribe": "mixed", "kafka.group.id": "g"}, "a batch read has no such option"),
]


def test_a_read_that_cannot_be(broker: BrokerProcess, spark: SparkSession, mixed: list[Event]) -> None:
    """By the code that Spark's planner runs, in this process; Spark shows all of its errors in one way."""
    for options, words in WRONG_READS:
        with pytest.raises(HeadgateError, match=words):
            made = source(broker, **options)
            made.reader(StructType.fromDDL(made.schema())).partitions()
    with refused("topic does not exist"):
        load(spark, broker, subscribe="nope").count()


def test_a_pattern_does_not_mean_internal_topics(broker: BrokerProcess, spark: SparkSession, mixed: list[Event]) -> None:
    create(broker, "__consumer_offsets", 1)
    assert load(spark, broker, subscribePattern="__.*|mixed").select("topic").distinct().collect() == [("mixed",)]
    assert load(spark, broker, subscribe="__consumer_offsets").count() == 0


WRONG_STREAMS: list[tuple[dict[str, str], str]] = [
    ({"endingOffsets": "latest"}, "a streaming read has no such option"),
    ({"endingTimestamp": "5"}, "a streaming read has no such option"),
    ({"openGates": "skip"}, "a streaming read has no such option"),
    ({"startingOffsets": '{"mixed": {"7": 40}}'}, "startingOffsets names a partition that is not read"),
]


def test_a_stream_that_cannot_be(broker: BrokerProcess, spark: SparkSession, mixed: list[Event], tmp_path: Path) -> None:
    for options, words in WRONG_STREAMS:
        with pytest.raises(InvalidError, match=words):
            source(broker, subscribe="mixed", **options).streamReader(StructType()).initialOffset()
    with refused(WRONG_STREAMS[0][1]):
        stream(spark, broker, "mixed", tmp_path / "c", subscribe="mixed", **WRONG_STREAMS[0][0]).awaitTermination()


def test_an_open_gate_is_told_stopped_at_or_skipped(broker: BrokerProcess, spark: SparkSession) -> None:

    create(broker, "gated", 1)
    JUDGE.produce(broker.bootstrap, "gated", [Record(partition=0, key=None, value=b"before", timestamp_ms=1)])

    async def gate(release: bool) -> None:
        async with GateAdmin(cluster(broker)) as admin:
            if release:
                await admin.release("gated", "g")
            else:
                await admin.open("gated", [10], gate_id="g")

    asyncio.run(gate(release=False))
    JUDGE.produce(broker.bootstrap, "gated", [Record(partition=0, key=None, value=b"behind", timestamp_ms=2)])

    def values(**options: Any) -> list[bytes]:
        return [bytes(row.value) for row in load(spark, broker, subscribe="gated", columns="value", **options).collect()]

    with refused("openGates"):
        values()
    assert values(openGates="stop") == [b"before"]
    assert values(openGates="skip") == [b"before", b"behind"]
    asyncio.run(gate(release=True))
    assert values() == [b"before", b"behind"]


def test_a_batch_is_written_whole_or_not_at_all(broker: BrokerProcess, spark: SparkSession) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    create(broker, "written")
    frame = spark.range(1000).select(
        F.concat(F.lit("k"), F.col("id") % 7).alias("key"), F.col("id").cast("string").alias("value"),
        F.timestamp_millis(F.col("id")).alias("timestamp"), F.when(F.col("id") == 0, 1).cast("int").alias("partition"),
    )  # fmt: skip
    unlucky = F.when(F.col("value") == "999", F.raise_error(F.lit("no luck"))).otherwise(F.col("value"))
    failing = frame.withColumn("value", unlucky)
    with pytest.raises(PySparkException, match="no luck"):
        failing.write.format("headgate").option("cluster", cluster(broker)).option("topic", "written").mode("append").save()
    assert all(rows == [] for rows in JUDGE.consume(broker.bootstrap, "written", range(PARTITIONS)).values())
    for _ in range(2):
        frame.write.format("headgate").option("cluster", cluster(broker)).option("topic", "written").mode("append").save()
    found = JUDGE.consume(broker.bootstrap, "written", range(PARTITIONS))
    assert sum(len(rows) for rows in found.values()) == 2000, "two writes are two writes"
    from headgate.broker.log.partitioner import partition_for_key

    for number, rows in found.items():
        for row in rows:
            identity = int(row.value or b"")
            assert row.timestamp_ms == identity and row.key == b"k%d" % (identity % 7)
            assert number == (1 if identity == 0 else partition_for_key(row.key or b"", PARTITIONS))
        for key in {row.key for row in rows}:
            mine = [int(row.value or b"") for row in rows if row.key == key]
            assert mine[: len(mine) // 2] == sorted(mine[: len(mine) // 2]), "the order of a key is the frame's"


WRONG_WRITES: list[tuple[str, bool, dict[str, str], str]] = [
    ("key string", False, {}, "no column value"),
    ("value bigint", False, {}, "wrong type"),
    ("value string, nope bigint", False, {}, "nope"),
    ("value string", True, {}, "only ever added"),
    ("value string", False, {"topics": "mixed"}, "a write has no such option"),
]


def test_a_write_that_cannot_be(broker: BrokerProcess, spark: SparkSession, mixed: list[Event]) -> None:
    for columns, overwrite, options, words in WRONG_WRITES:
        with pytest.raises(InvalidError, match=words):
            source(broker, topic="mixed", **options).writer(StructType.fromDDL(columns), overwrite)
    name = "array(named_struct('key',CAST(null AS string),'value',X'00')) AS headers"
    for column, words in (("9 AS partition", "partitions"), (name, "or its name")):
        frame = spark.range(1).selectExpr("'x' AS value", column)
        with refused(words):
            frame.write.format("headgate").option("cluster", cluster(broker)).option("topic", "mixed").mode("append").save()


def stream(spark: SparkSession, broker: BrokerProcess, into: str, checkpoint: Path, *, where: str = "true", **options: Any) -> Any:
    reader = spark.readStream.format("headgate").option("cluster", cluster(broker)).option("columns", "key,value,timestamp")
    for name, text in options.items():
        reader = reader.option(name, str(text))
    writer = reader.load().where(where).writeStream.format("headgate").option("cluster", cluster(broker)).option("topic", into)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def test_a_stream_copies_exactly_once(broker: BrokerProcess, spark: SparkSession, mixed: list[Event], tmp_path: Path) -> None:
    """History and live records go through in small batches, over restarts; at last a batch is replayed as after a crash."""
    create(broker, "copied")
    bites = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 1500}
    first = stream(spark, broker, "copied", tmp_path / "c", subscribe="mixed", **bites)
    first.awaitTermination()
    sizes = [progress.numInputRows for progress in first.recentProgress if progress.numInputRows]
    assert sizes == [1500, 1500, 1040]
    more = [Record(partition=0, key=b"late", value=b"%d" % number, timestamp_ms=LIVE_MS) for number in range(5)]
    JUDGE.produce(broker.bootstrap, "mixed", more)
    stream(spark, broker, "copied", tmp_path / "c", subscribe="mixed").awaitTermination()
    commits = sorted((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) == 4
    for where in ("true", "value <> X'33'"):
        # Stands for a driver that died after the sink's commit and before Spark recorded it; the last pass uses another query.
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
        stream(spark, broker, "copied", tmp_path / "c", subscribe="mixed", where=where).awaitTermination()
    found = JUDGE.consume(broker.bootstrap, "copied", range(PARTITIONS))
    copied = sorted((row.timestamp_ms, row.key or b"", row.value or b"") for rows in found.values() for row in rows)
    wanted = [row for rows in everything(mixed).values() for row in rows]
    wanted += [(LIVE_MS, record.key, record.value) for record in more]
    assert copied == sorted((at, key or b"", value or b"") for at, key, value in wanted)


def test_a_checkpoint_of_before_is_refused(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    """A restored backup of a checkpoint counts from its own last batch. The next numbers belong to batches that were committed
    since.

    Those batches have other records, and may have the same count. If the sink took one batch for the other, records would be
    missing. `unit/pipelines/test_replays.py` has the cases.
    """
    create(broker, "restored", 1)
    create(broker, "restored_to")

    def copy() -> None:
        JUDGE.produce(broker.bootstrap, "restored", [Record(partition=0, key=b"k", value=b"v", timestamp_ms=LIVE_MS)] * 10)
        stream(spark, broker, "restored_to", tmp_path / "c", subscribe="restored", startingOffsets="earliest").awaitTermination()

    copy()
    backup = shutil.copytree(tmp_path / "c", tmp_path / "backup")
    copy()
    shutil.rmtree(tmp_path / "c")
    shutil.copytree(backup, tmp_path / "c")
    with pytest.raises(Exception, match="checkpoint is an older copy"):
        copy()
    assert sum(map(len, JUDGE.consume(broker.bootstrap, "restored_to", range(PARTITIONS)).values())) == 20


class Stream:
    """A streaming read of the column `value` by the code that Spark runs, in this process. Its offsets outlive its readers, as a
    checkpoint does."""

    def __init__(self, broker: BrokerProcess, **options: str) -> None:
        self._broker = broker
        self._options = {"startingOffsets": "earliest", "columns": "value", **options}
        self._end: Any = None

    def batch(self, **more: str) -> list[int]:
        """The numbers of the next batch, by a new reader."""
        reader: Any = source(self._broker, **self._options, **more).streamReader(StructType())
        try:
            start = reader.initialOffset() if self._end is None else self._end
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        finally:
            reader.stop()
        self._end = end
        return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("named", [{"subscribe": "again"}, {"subscribePattern": "agai."}], ids=lambda one: next(iter(one)))
def test_a_topic_that_is_made_again_is_another(broker: BrokerProcess, named: dict[str, str]) -> None:
    """The new topic's offsets go further than those of the old one: only the topic id shows that the checkpoint's offsets mean
    other records."""

    def records(first: int, count: int) -> list[Record]:
        return [Record(partition=0, key=b"k", value=b"%d" % number, timestamp_ms=1) for number in range(first, first + count)]

    def delete() -> None:
        async def ask() -> None:
            async with Admin(cluster(broker)) as admin:
                await admin.delete_topic("again")

        asyncio.run(ask())

    create(broker, "again", 1)
    JUDGE.produce(broker.bootstrap, "again", records(0, 3))
    copied = Stream(broker, **named)
    assert copied.batch() == [0, 1, 2]
    delete()
    with pytest.raises(InvalidError, match="topic does not exist" if "subscribe" in named else "failOnDataLoss"):
        copied.batch()
    create(broker, "again", 1)
    JUDGE.produce(broker.bootstrap, "again", records(100, 5))
    with pytest.raises(InvalidError, match="failOnDataLoss=false"):
        copied.batch()
    assert copied.batch(failOnDataLoss="false") == [100, 101, 102, 103, 104]
    assert copied.batch() == []
    delete()


def test_a_stream_steps_over_a_flood_that_was_given_up(broker: BrokerProcess) -> None:
    """The window of its gate has no records: a trigger does not spend its limit on it, batch by batch."""
    create(broker, "given-up", 1)

    async def give_up() -> None:
        async with GateAdmin(cluster(broker)) as admin:
            await admin.open("given-up", [200], gate_id="g")
            await admin.release("given-up", "g")

    records = [Record(partition=0, key=None, value=b"%d" % number, timestamp_ms=1) for number in range(30)]
    JUDGE.produce(broker.bootstrap, "given-up", records[:15])
    asyncio.run(give_up())
    JUDGE.produce(broker.bootstrap, "given-up", records[15:])
    read = Stream(broker, subscribe="given-up", maxOffsetsPerTrigger="10")
    batches = [read.batch() for _ in range(5)]
    assert list(map(len, batches)) == [10, 5, 10, 5, 0]
    assert [number for batch in batches for number in batch] == list(range(30))
