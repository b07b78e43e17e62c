"""A topic whose records are in every place that records can be in, for tests of readers of tables.

Every partition begins with history in the files of a gate; then come live records in folded files, live records in chunks, and
transactions: one committed, one aborted, one open. So consumers of committed records end before the high watermark.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from headgate.broker.client import Admin, GateAdmin, Place
from headgate.broker.client.gate_admin import Layout, RecordRange
from headgate.broker.log.history_columns import SCHEMA, checksum
from tests.compat.topics import create_topic
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.history_files import upload
from tests.support.waiting import until

PARTITIONS = 3
ROWS = 200
"""Rows of history in each partition."""
FOLDED, LIVE = 600, 300
"""Live records of the topic, in files and in chunks."""
PATIENCE_S = 280.0
T0 = 1_700_000_000_000
STEP_MS = 60_000
ENV = {
    "HEADGATE_OFFLINE_CHECK_INTERVAL_MS": "100ms",
    "HEADGATE_OFFLINE_NICENESS": "0",
    "HEADGATE_WAL_CHECKPOINT_INTERVAL_MS": "100ms",
    "HEADGATE_TAIL_BYTES": "1MiB",
}
"""Settings of a broker that folds at once."""


@dataclass
class MixedTopic:
    """The topic, and what holds its transaction open. Close it at the end."""

    name: str
    grpc: str
    open_transaction: Producer

    def close(self) -> None:
        self.open_transaction.abort_transaction(PATIENCE_S)
        del self.open_transaction


def make(broker: BrokerProcess, name: str) -> MixedTopic:
    """Create the topic on a running broker with the settings of `ENV`."""
    grpc = f"{HOST}:{broker.grpc_port}"
    topic = create_topic(broker.bootstrap, name, PARTITIONS, history_room="1000", offline_after_bytes="0")
    asyncio.run(_fill(grpc, topic))
    produce(broker, topic, 0, FOLDED)
    until_folded(grpc, topic, 1000 + FOLDED // PARTITIONS)
    asyncio.run(_stop_folding(grpc, topic))
    transaction(broker, topic, "done", 9).commit_transaction(PATIENCE_S)
    produce(broker, topic, FOLDED, LIVE)
    transaction(broker, topic, "given-up", 7).abort_transaction(PATIENCE_S)
    produce(broker, topic, FOLDED + LIVE, 30)
    return MixedTopic(topic, grpc, transaction(broker, topic, "never-ends", 5))


async def _fill(grpc: str, topic: str) -> None:
    async with GateAdmin(grpc) as gates:
        gate = await gates.open(topic, [ROWS] * PARTITIONS, gate_id="old", place=Place.FRONT)
        await gates.fill(topic, gate.id, await asyncio.to_thread(partial(upload, gate, files=4)))


async def _stop_folding(grpc: str, topic: str) -> None:
    async with Admin(grpc) as admin:
        await admin.alter_topic_config(topic, {"offline.after.bytes": "-1"})


def produce(broker: BrokerProcess, topic: str, first: int, count: int) -> None:
    """Records with all kinds of keys, values and headers, a minute apart."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(first, first + count):
        headers = [("a", b"1"), ("b", b""), ("a", None)] if number % 3 == 0 else None
        key = b"key-%d" % (number % 50) if number % 5 else None
        value = json.dumps({"n": number, "text": "x" * (number % 200)}).encode() if number % 11 else None
        producer.produce(topic, value, key, partition=number % PARTITIONS, headers=headers, timestamp=T0 + number * STEP_MS)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def transaction(broker: BrokerProcess, topic: str, name: str, count: int) -> Producer:
    """A producer with an open transaction of records in each partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "transaction.timeout.ms": 900_000})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for number in range(count * PARTITIONS):
        producer.produce(topic, b'{"by": "%s"}' % name.encode(), b"t", partition=number % PARTITIONS, timestamp=T0 - number)
    assert producer.flush(PATIENCE_S) == 0
    return producer


def layout(grpc: str, topic: str, wanted: RecordRange | None = None) -> Layout:
    async def ask() -> Layout:
        async with GateAdmin(grpc) as gates:
            return await gates.layout(topic, wanted)

    return asyncio.run(ask())


def until_folded(grpc: str, topic: str, end: int) -> None:
    """Wait until all records below an offset are in files."""

    def folded() -> bool:
        parts = layout(grpc, topic, RecordRange()).partitions
        return all(part.folded and part.folded[-1].end_offset >= end for part in parts)

    until(folded, lambda: f"records become files: {layout(grpc, topic, RecordRange()).partitions}", pause_s=0.1)


def consumed(broker: BrokerProcess, topic: str) -> pa.Table:
    """All records that librdkafka reads with `read_committed`, with the columns `partition` and those of `SCHEMA`."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False, "enable.partition.eof": True,
            "isolation.level": "read_committed", "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    rows: list[dict[str, Any]] = []
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"the end does not come. read=`{len(rows)}` ended=`{ended}`"
        for message in consumer.consume(1000, 1.0):
            if message.error() is not None:
                ended.add(message.partition())
                continue
            rows.append(row_of(message))
    consumer.close()
    return pa.Table.from_pylist(rows, pa.schema([pa.field("partition", pa.int32()), *SCHEMA]))


def row_of(message: Any) -> dict[str, Any]:
    """A message of librdkafka with the columns `partition` and those of `SCHEMA`."""
    headers = [{"key": name, "value": value} for name, value in message.headers() or []]
    return {
        "partition": message.partition(), "offset": message.offset(), "timestamp": message.timestamp()[1],
        "key": message.key(), "value": message.value(), "headers": headers or None,
    }  # fmt: skip


def sums(rows: pa.Table) -> list[tuple[int, int]]:
    """Rows and checksum of each partition, of rows in any order. No offset may appear twice."""
    found = []
    for partition in range(PARTITIONS):
        mine = rows.filter(pa.compute.equal(rows.column("partition"), partition)).sort_by("offset")
        offsets = mine.column("offset").to_pylist()
        assert len(set(offsets)) == len(offsets)
        found.append((mine.num_rows, checksum(mine.select(SCHEMA.names).cast(SCHEMA))))
    return found
