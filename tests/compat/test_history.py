"""History that was uploaded as Parquet and committed by reference, as foreign Kafka clients read it.

Runs: a real broker for each codec of `history_compression`. A topic's gate is filled with files of
`headgate.broker.client.upload`, while a foreign producer writes live records behind it. librdkafka (with CRCs checked),
aiokafka, kafka-python, kafkajs and the project's own client read from the earliest offset; positions by time; a file that was
truncated after its commit. Compared: key, value, headers, timestamp and its kind, offset, record for record. A mismatch means
that a Kafka client gets other history than the uploaded one, or history and live records out of order.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from headgate.broker.client import Admin, FileRef, Gate, GateAdmin
from headgate.broker.client import Consumer as OwnConsumer
from headgate.broker.client import TopicPartition as OwnPartition
from headgate.broker.client.upload import Uploader
from headgate.broker.log.history_columns import HEADERS_TYPE, checksum
from headgate.broker.runtime.errors import HeadgateError
from tests.compat.conftest import EXTERNAL, QUICK
from tests.compat.shapes import PARTITIONS, shapes
from tests.compat.test_roundtrip import compare, readers
from tests.compat.topics import create_topic, fresh
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.clients.interface import CODECS
from tests.support.records import Read, Record
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(EXTERNAL is not None, reason="only Headgate takes history by reference")

T0 = 1_600_000_000_000
TIMES_MS = (-315_619_200_000, -2, 0, 1, 7_258_118_400_000)
"""1960, just before and after 1970, 2200."""


def history() -> list[Record]:
    """Every shape of the other tests, unusual times, and enough rows for several row groups and batches."""
    chance = random.Random(5)
    records = list(shapes(CLIENTS["confluent"]))
    records += [Record(partition=1, key=b"time", value=b"%d" % at, timestamp_ms=at) for at in TIMES_MS]
    records += [
        Record(
            partition=0,
            key=chance.choice([None, b"", b"key-%d" % (at % 100)]),
            value=chance.choice([None, b"", b"{%d}" % at, chance.randbytes(600)]),
            headers=(("n", b"%d" % at), ("null", None)) if at % 50 == 0 else (),
            timestamp_ms=T0 + at * 7 - chance.choice((0, 0, 20)),
        )
        for at in range(2_500)
    ]
    return records


def table(records: Sequence[Record]) -> pa.Table:
    headers = [[{"key": name, "value": value} for name, value in record.headers] or None for record in records]
    columns: dict[str, Any] = {
        "timestamp": pa.array([record.timestamp_ms for record in records], pa.int64()).cast(pa.timestamp("ms", tz="UTC")),
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "headers": pa.array(headers, HEADERS_TYPE),
    }
    return pa.table(columns)


def read_of(record: Record, offset: int) -> Read:
    assert record.timestamp_ms is not None
    return Read(
        partition=record.partition,
        offset=offset,
        key=record.key,
        value=record.value,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        append_time=False,
    )


def upload(gate: Gate, records: Sequence[Record], files_per_partition: int = 2) -> list[FileRef]:
    files: list[FileRef] = []
    with Uploader(gate.store_url) as uploader:
        for window in gate.windows:
            mine = [record for record in records if record.partition == window.partition]
            size = -(-len(mine) // files_per_partition)
            for number, start in enumerate(range(0, len(mine), size)):
                key = f"{gate.prefix}partition={window.partition}/{gate.id}-0-{number:03d}.parquet"
                part = table(mine[start : start + size])
                files.append(uploader.write(key, part, window.partition, window.base_offset + start))
    return files


@dataclass
class Flooded:
    """A topic with history, then live records."""

    broker: BrokerProcess
    topic: str
    wanted: dict[int, list[Read]]
    files: list[FileRef]


async def open_gate(cluster: str, topic: str, rows: Sequence[int]) -> Gate:
    async with GateAdmin(cluster) as gates:
        return await gates.open(topic, rows, gate_id="flood")


async def fill_gate(cluster: str, topic: str, files: Sequence[FileRef]) -> Gate:
    async with GateAdmin(cluster) as gates:
        return await gates.fill(topic, "flood", files)


def flood(broker: BrokerProcess, records: Sequence[Record]) -> Flooded:
    """Write live records, open a gate, write live records, fill the gate."""
    bootstrap, cluster = broker.bootstrap, f"{HOST}:{broker.grpc_port}"
    topic = create_topic(bootstrap, fresh("history"), PARTITIONS)
    live = [Record(partition=at % PARTITIONS, key=b"live", value=b"%d" % at, timestamp_ms=T0 + at) for at in range(30)]
    producer = CLIENTS["confluent"]
    before = producer.produce(bootstrap, topic, live[:12])
    counts = [sum(record.partition == number for record in records) for number in range(PARTITIONS)]
    gate = asyncio.run(open_gate(cluster, topic, counts))
    after = producer.produce(bootstrap, topic, live[12:])
    files = upload(gate, records)
    filled = asyncio.run(fill_gate(cluster, topic, files))
    assert filled.rows == len(records)
    wanted: dict[int, list[Read]] = {number: [] for number in range(PARTITIONS)}
    for record, offset in zip(live, [*before, *after], strict=True):
        wanted[record.partition].append(read_of(record, offset))
    for window in gate.windows:
        offset = window.base_offset
        for record in records:
            if record.partition == window.partition:
                wanted[window.partition].append(read_of(record, offset))
                offset += 1
    for reads in wanted.values():
        reads.sort(key=lambda read: read.offset)
    return Flooded(broker, topic, wanted, files)


@pytest.fixture(scope="module")
def floods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Flooded]]:
    """Floods by codec, made on demand: one broker for each codec."""
    made: dict[str, Flooded] = {}
    yield made
    for flooded in made.values():
        flooded.broker.check_alive()
        assert flooded.broker.terminate() == 0, flooded.broker.log_tail()
        flooded.broker.check_output()


@pytest.fixture
def flooded(floods: dict[str, Flooded], tmp_path_factory: pytest.TempPathFactory, codec: str) -> Flooded:
    if codec not in floods:
        home = tmp_path_factory.mktemp("history")
        broker = BrokerProcess(home / "store", home / "broker.log", env={**QUICK, "HEADGATE_HISTORY_COMPRESSION": codec})
        broker.start()
        try:
            floods[codec] = flood(broker, history())
        except BaseException:
            broker.kill()
            raise
    return floods[codec]


@pytest.mark.parametrize("codec", CODECS)
@readers
def test_every_field_survives(flooded: Flooded, reader: str) -> None:
    shown = CLIENTS[reader].consume(flooded.broker.bootstrap, flooded.topic, range(PARTITIONS))
    compare(reader, flooded.wanted, shown)


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_own_client(flooded: Flooded) -> None:
    cluster = f"{HOST}:{flooded.broker.grpc_port}"
    found: dict[int, list[Read]] = {number: [] for number in flooded.wanted}
    total = sum(len(reads) for reads in flooded.wanted.values())
    async with OwnConsumer(cluster) as consumer:
        await consumer.assign({OwnPartition(flooded.topic, number): "earliest" for number in flooded.wanted})
        while total:
            for record in await consumer.poll():
                total -= 1
                found[record.partition].append(
                    Read(
                        partition=record.partition,
                        offset=record.offset,
                        key=record.key,
                        value=record.value,
                        headers=tuple(record.headers),
                        timestamp_ms=record.timestamp_ms,
                    )
                )
    compare("confluent", flooded.wanted, found)


@pytest.mark.parametrize("codec", ["none"])
def test_offsets_by_time(flooded: Flooded) -> None:
    admin = AdminClient({"bootstrap.servers": flooded.broker.bootstrap})
    for partition, reads in flooded.wanted.items():
        place = TopicPartition(flooded.topic, partition)
        for timestamp in (1, T0, T0 + 9_000, T0 + 7 * 2_400, 7_258_118_400_000):
            answer = admin.list_offsets({place: OffsetSpec.for_timestamp(timestamp)})[place].result(30)
            expected = next((read.offset for read in reads if read.timestamp_ms >= timestamp), -1)
            assert answer.offset == expected, (partition, timestamp)
        answer = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(30)
        assert answer.timestamp == max(read.timestamp_ms for read in reads)


@pytest.mark.parametrize("codec", ["lz4"])
def test_seeks_into_history(flooded: Flooded) -> None:
    reads = flooded.wanted[0]
    by_offset = {read.offset: read for read in reads}
    consumer = Consumer(
        {"bootstrap.servers": flooded.broker.bootstrap, "group.id": "seeks", "enable.auto.commit": False, "check.crcs": True}
    )
    try:
        for offset in random.Random(2).sample(sorted(by_offset), 20):
            consumer.assign([TopicPartition(flooded.topic, 0, offset)])
            message = consumer.poll(30)
            assert message is not None and message.error() is None
            assert (message.offset(), message.key(), message.value()) == (offset, by_offset[offset].key, by_offset[offset].value)
    finally:
        consumer.close()


def test_a_file_that_breaks_later(tmp_path: Path) -> None:
    """A reader of the file gets an error, no other client does, and the log gets one line."""
    with BrokerProcess(tmp_path / "store", tmp_path / "broker.log", env=QUICK) as broker:
        broker.start()
        records = [Record(partition=at % PARTITIONS, key=None, value=b"%d" % at, timestamp_ms=T0 + at) for at in range(300)]
        flooded = flood(broker, records)
        broken = next(file for file in flooded.files if file.partition == 1)
        path = tmp_path / "store" / broken.path
        os.chmod(path, 0o644)
        os.truncate(path, broken.size_bytes // 2)
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "x", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        )
        try:
            consumer.assign([TopicPartition(flooded.topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
            found: Mapping[int, list[int]] = {number: [] for number in range(PARTITIONS)}
            while any(len(found[number]) < len(flooded.wanted[number]) for number in (0, 2)):
                for message in consumer.consume(1000, 0.5):
                    if message.error() is None:
                        found[message.partition() or 0].append(message.offset() or 0)
            assert max(found[1]) < broken.base_offset
            until(lambda: "history_unreadable" in broker.output(), "the log tells of the file")
        finally:
            consumer.close()
        broker.check_alive()
        assert broker.terminate() == 0
    broker.check_output()


def test_a_table_published_by_reference(tmp_path: Path) -> None:
    from headgate.broker.client import Producer

    with BrokerProcess(tmp_path / "store", tmp_path / "broker.log", env=QUICK) as broker:
        broker.start()
        topic = create_topic(broker.bootstrap, fresh("published"), PARTITIONS)
        records = [
            Record(partition=0, key=b"key-%d" % (at % 40) if at % 5 else None, value=b"%d" % at, timestamp_ms=T0 + at)
            for at in range(2000)
        ]

        async def publish() -> list[Gate]:
            async with Producer(f"{HOST}:{broker.grpc_port}") as producer:
                first = await producer.publish_table(topic, table(records), publish_id="load-1")
                again = await producer.publish_table(topic, table(records), publish_id="load-1")
                with pytest.raises(HeadgateError):
                    await producer.publish_table(topic, table(records[:5]), publish_id="load-1")
                with pytest.raises(HeadgateError):
                    await producer.publish_table(topic, table(records[::-1]), publish_id="load-1")
                async with Admin(f"{HOST}:{broker.grpc_port}") as admin:
                    await admin.create_partitions(topic, PARTITIONS + 1)
                assert await producer.publish_table(topic, table(records), publish_id="load-1") == again
                with pytest.raises(HeadgateError):
                    await producer.publish_table(topic, table(records[:5]), publish_id="load-1")
                return [first, again]

        first, again = asyncio.run(publish())
        assert first.rows == again.rows == len(records)
        assert first.windows == again.windows
        broker.kill()  # the broker's cache may differ from the files' content
        broker.start()
        shown = CLIENTS["confluent"].consume(broker.bootstrap, topic, range(PARTITIONS))
        found = [read for reads in shown.values() for read in reads]
        assert len(found) == len(records)
        everything = [Record(partition=0, key=one.key, value=one.value, timestamp_ms=one.timestamp_ms) for one in found]
        assert checksum(table(everything)) == checksum(table(records))
        for partition, reads in shown.items():
            assert [read.offset for read in reads] == list(range(len(reads)))
            assert [int(read.value or b"") for read in reads] == sorted(int(read.value or b"") for read in reads)
            live = CLIENTS["confluent"].produce(
                broker.bootstrap, topic, [Record(partition=partition, key=b"live", value=b"live", timestamp_ms=T0)]
            )
            assert live == [len(reads)]
        by_key = {read.key: partition for partition, reads in shown.items() for read in reads if read.key is not None}
        keyed = [Record(partition=by_key[key], key=key, value=b"", timestamp_ms=T0) for key in by_key]
        assert [partition_of(record.key) for record in keyed] == [record.partition for record in keyed]
        assert broker.terminate() == 0
    broker.check_output()


def partition_of(key: bytes | None) -> int:
    """The partition of a key in Kafka's Java client and in kafka-python."""
    from kafka.partitioner.default import murmur2

    assert key is not None
    return int((murmur2(key) & 0x7FFFFFFF) % PARTITIONS)
