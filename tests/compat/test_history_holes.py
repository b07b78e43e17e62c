"""Offsets without records: gates that were released, or were filled with fewer rows than their room.

Runs: a real broker; partitions that end with such a hole, that consist of one, or that have holes in the middle, one of them
larger than an offset delta can express; librdkafka (with CRCs checked), aiokafka, kafka-python, kafkajs, the project's own
client and `headgate consume`, from the earliest offset and from inside of a hole; a group's lag; deleting up to a hole's end.
Compared: the records and offsets that each client gets, and its position. A mismatch means that a consumer never reaches the end
of a topic that ends with a hole, or that a hole adds a record, hides one, or causes an error.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from headgate.broker.client import Admin, GateAdmin
from headgate.broker.client import Consumer as OwnConsumer
from headgate.broker.client import TopicPartition as OwnPartition
from headgate.broker.client.fetcher import Fetcher
from headgate.broker.client.group_admin import GroupAdmin
from tests.compat.conftest import EXTERNAL, QUICK
from tests.compat.test_roundtrip import readers
from tests.compat.topics import create_topic, fresh
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.clients.interface import Deadline
from tests.support.history_files import upload
from tests.support.records import Record

pytestmark = pytest.mark.skipif(EXTERNAL is not None, reason="only Headgate takes history by reference")

PARTITIONS = 6
T0 = 1_600_000_000_000
LARGE = (1 << 32) + 10
"""Rows of a gate: a number that needs more than 32 bits."""
SHORT, RELEASED, EMPTY, TWO, MIDDLE, WIDE = range(PARTITIONS)
"""Partitions. SHORT: its last gate has fewer rows than room. RELEASED: its gate was released. EMPTY: it has no record at all.
TWO: it ends with two holes. MIDDLE: it has holes before its last record. WIDE: it ends with the large hole."""


class Holes:
    """A topic with holes. `wanted`: the offsets of its records, `ends`: high watermarks, both by partition."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.cluster = f"{HOST}:{broker.grpc_port}"
        self.topic = create_topic(broker.bootstrap, fresh("holes"), PARTITIONS)
        self.wanted: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self.ends: dict[int, int] = {}
        asyncio.run(self._make())

    async def _make(self) -> None:
        async with GateAdmin(self.cluster) as gates:
            self._produce([SHORT, RELEASED, TWO, MIDDLE, WIDE])
            await self._gate(gates, "short", {SHORT: 50, MIDDLE: 20}, missing=7)
            await self._gate(gates, "released", {RELEASED: 30, EMPTY: 5, TWO: 10, MIDDLE: 10})
            await self._gate(gates, "again", {TWO: 10, WIDE: LARGE})
            self._produce([MIDDLE])
        async with Admin(self.cluster) as admin:
            description = await admin.describe_topic(self.topic)
            self.ends = {part.number: part.high_watermark for part in description.partitions}
        assert self.ends == {SHORT: 53, RELEASED: 33, EMPTY: 5, TWO: 23, MIDDLE: 36, WIDE: 3 + LARGE}

    def _produce(self, partitions: list[int]) -> None:
        records = [Record(partition=number, key=b"key", value=b"live", timestamp_ms=T0) for number in partitions for _ in range(3)]
        for record, offset in zip(records, CLIENTS["confluent"].produce(self.broker.bootstrap, self.topic, records), strict=True):
            self.wanted[record.partition].append(offset)

    async def _gate(self, gates: GateAdmin, gate_id: str, rows: dict[int, int], missing: int | None = None) -> None:
        """Fill a gate except its last `missing` rows in each partition, or (None) release it."""
        gate = await gates.open(self.topic, [rows.get(number, 0) for number in range(PARTITIONS)], gate_id=gate_id)
        if missing is None:
            await gates.release(self.topic, gate_id)
            return
        await gates.fill(self.topic, gate_id, await asyncio.to_thread(upload, gate, missing=missing))
        for window in gate.windows:
            self.wanted[window.partition] += range(window.base_offset, window.end_offset - missing)


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holes]:
    home = tmp_path_factory.mktemp("holes")
    with BrokerProcess(home / "store", home / "broker.log", env={**QUICK, "HEADGATE_FETCH_WAIT_MAX_MS": "300000"}) as broker:
        broker.start()
        yield Holes(broker)
        broker.check_alive()
        assert broker.terminate() == 0, broker.log_tail()
    broker.check_output()


@readers
def test_every_record_to_the_end(holes: Holes, reader: str) -> None:
    """Run each library until it reports the end of the partition."""
    shown = CLIENTS[reader].consume(holes.broker.bootstrap, holes.topic, range(PARTITIONS))
    assert {number: [read.offset for read in reads] for number, reads in shown.items()} == holes.wanted
    if sys.platform == "linux":
        loaded = Path(f"/proc/{holes.broker.pid}/maps").read_text()
        assert "/pyarrow/" in loaded
        assert "/pandas/" not in loaded, "pyarrow imports it with what it is first asked for, and live producers wait half a second"


def test_nobody_waits_for_more_where_there_is_more(holes: Holes) -> None:
    """A consumer that requests many bytes gets the records before a hole, or those of one file, without the records behind."""
    options = {"fetch.min.bytes": 1_000_000, "fetch.wait.max.ms": 300_000, "socket.timeout.ms": 300_000}
    consumer = Consumer({"bootstrap.servers": holes.broker.bootstrap, "group.id": "unused", **options})
    consumer.assign([TopicPartition(holes.topic, MIDDLE, OFFSET_BEGINNING)])
    shown: list[int | None] = []
    deadline = Deadline("reading past the holes")
    while len(shown) < len(holes.wanted[MIDDLE]):
        deadline.check(len(shown))
        shown += [message.offset() for message in consumer.consume(100, 0.1)]
    consumer.close()
    assert shown == holes.wanted[MIDDLE]


@pytest.mark.parametrize("start", ["earliest", "inside"])
async def test_librdkafka_says_where_the_end_is(holes: Holes, start: str) -> None:
    group = f"ends-{start}"
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    ends: dict[int, int] = {}

    def read() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": holes.broker.bootstrap,
                "group.id": group,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 10,
            }
        )
        deadline = Deadline("librdkafka")
        try:
            consumer.assign(
                [
                    TopicPartition(holes.topic, number, OFFSET_BEGINNING if start == "earliest" else end - 2)
                    for number, end in holes.ends.items()
                ]
            )
            while ends.keys() != found.keys():
                deadline.check(len(ends) + sum(map(len, found.values())), ends)
                for message in consumer.consume(1000, 0.1):
                    error, partition, offset = message.error(), message.partition(), message.offset()
                    assert partition is not None and offset is not None
                    if error is None:
                        found[partition].append(offset)
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        ends[partition] = offset
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    await asyncio.to_thread(read)
    assert ends == holes.ends
    assert found == {
        number: [offset for offset in offsets if start == "earliest" or offset >= holes.ends[number] - 2]
        for number, offsets in holes.wanted.items()
    }
    await check_lag(holes, group)


async def test_aiokafka_stands_at_the_end(holes: Holes) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=holes.broker.bootstrap, group_id="aiokafka", enable_auto_commit=False, auto_offset_reset="earliest"
    )
    parts = {AiokafkaPartition(holes.topic, number): end for number, end in holes.ends.items()}
    deadline = Deadline("aiokafka")
    await consumer.start()
    try:
        consumer.assign(list(parts))
        while any([await consumer.position(part) < end for part, end in parts.items()]):
            deadline.check()
            await consumer.getmany(timeout_ms=100)
        assert {part: await consumer.position(part) for part in parts} == parts
        await consumer.commit()
    finally:
        await consumer.stop()
    await check_lag(holes, "aiokafka")


async def test_kafka_python_stands_at_the_end(holes: Holes) -> None:
    def read() -> None:
        consumer: Any = KafkaConsumer(
            bootstrap_servers=holes.broker.bootstrap, group_id="python", enable_auto_commit=False, auto_offset_reset="earliest"
        )
        parts = {PythonPartition(holes.topic, number): end for number, end in holes.ends.items()}
        deadline = Deadline("kafka-python")
        try:
            consumer.assign(list(parts))
            while any(consumer.position(part) < end for part, end in parts.items()):
                deadline.check()
                consumer.poll(timeout_ms=100)
            assert {part: consumer.position(part) for part in parts} == parts
            consumer.commit()
        finally:
            consumer.close()

    await asyncio.to_thread(read)
    await check_lag(holes, "python")


async def check_lag(holes: Holes, group: str) -> None:
    async with GroupAdmin(holes.cluster) as groups:
        description = await groups.describe_group(group)
    assert {position.partition: position.offset for position in description.positions} == holes.ends
    assert {position.lag_records for position in description.positions} == {0}


async def test_own_client_stands_at_the_end(holes: Holes) -> None:
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    parts = {OwnPartition(holes.topic, number): end for number, end in holes.ends.items()}
    deadline = Deadline("own client")
    async with OwnConsumer(holes.cluster) as consumer:
        await consumer.assign(dict.fromkeys(parts, "earliest"))
        while any(consumer.position(part) < end for part, end in parts.items()):
            deadline.check(sum(map(len, found.values())))
            for record in await consumer.poll(timeout_ms=50):
                found[record.partition].append(record.offset)
        assert {part: consumer.position(part) for part in parts} == parts
        assert {part: consumer.high_watermark(part) for part in parts} == parts
    assert found == holes.wanted


async def test_fetched_as_columns(holes: Holes) -> None:
    async with Fetcher(holes.cluster) as fetcher:
        for number, end in holes.ends.items():
            found: list[int] = []
            async for rows in fetcher.read(holes.topic, number, 0, end):
                found += rows.column("offset").to_pylist()
            assert found == holes.wanted[number]


def test_the_command_line_ends_at_the_end(holes: Holes) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "headgate.broker.cli.main",
            "consume",
            holes.topic,
            "-b",
            "-e",
            "--json",
            "--cluster",
            holes.cluster,
        ],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert len(done.stdout.splitlines()) == sum(map(len, holes.wanted.values()))


async def test_deleting_into_a_hole(holes: Holes) -> None:
    """The log may begin in a hole, or at its end: a reader from the beginning is then at the end."""
    name = await asyncio.to_thread(create_topic, holes.broker.bootstrap, fresh("deleted"), 2)
    async with GateAdmin(holes.cluster) as gates, Admin(holes.cluster) as admin:
        await gates.open(name, [10, 10], gate_id="g")
        await gates.release(name, "g")
        assert await admin.delete_records(name, {0: 5, 1: 10}) == {0: 5, 1: 10}
        shown = await asyncio.to_thread(CLIENTS["confluent"].consume, holes.broker.bootstrap, name, range(2))
        assert shown == {0: [], 1: []}
        live = [Record(partition=number, key=None, value=b"live", timestamp_ms=T0) for number in range(2)]
        assert await asyncio.to_thread(CLIENTS["confluent"].produce, holes.broker.bootstrap, name, live) == [10, 10]
        shown = await asyncio.to_thread(CLIENTS["aiokafka"].consume, holes.broker.bootstrap, name, range(2))
        assert {number: [read.offset for read in reads] for number, reads in shown.items()} == {0: [10], 1: [10]}
