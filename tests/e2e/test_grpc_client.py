"""The gRPC client against a real broker process: through SIGKILLs, beside foreign Kafka clients, and after hostile bytes.

Headgate's producers write and its consumer reads all the time while the broker is killed and restarted. After one more SIGKILL,
a foreign Kafka client reads everything. Compared: every ack, the consumer's reads, and the log. An acked record that is missing,
doubled, moved or out of order fails the test (`tests/support/history.py` judges). Foreign clients read records that were written
over gRPC and the other way round, with every codec. Garbage on the gRPC port must give statuses or a closed connection, and the
broker keeps serving. A mismatch means that the gRPC client loses records or that its port is less safe than Kafka's.

HEADGATE_KILL_SEED replays a run's choices.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable

import grpc
import pytest
import pytest_asyncio

from headgate.broker.client import Admin, Consumer, Producer, TopicPartition
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, kafka_pb2, log_pb2
from tests.conftest import BrokerFactory
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.clients.interface import CODECS
from tests.support.errors import raises
from tests.support.history import Sent, check_log, check_reader, check_writer, payload
from tests.support.records import Record

pytestmark = pytest.mark.asyncio(loop_scope="session")  # grpc.aio has one poller for the process

SEED = int(os.environ.get("HEADGATE_KILL_SEED", time.time_ns() % 1_000_000))
ROUNDS = 4
PARTITIONS = 3
TOPIC = "kill"
PATIENCE_S = 90.0
"""Ends a hang; no test judges by it."""


def address(broker: BrokerProcess) -> str:
    return f"{HOST}:{broker.grpc_port}"


async def start(broker: BrokerProcess) -> None:
    """Start it and wait until gRPC answers."""
    await asyncio.to_thread(broker.start)
    async with Admin(address(broker)) as admin:
        await admin.status()


class Writer:
    """Writes until cancelled, a few hundred records a second, and records every ack."""

    def __init__(self, broker: BrokerProcess, number: int, codec: str, linger_ms: int) -> None:
        self.sent = Sent(name=f"grpc-{codec}", number=number, idempotent=True)
        self.stopping = False
        self._producer = Producer(
            address(broker), compression=codec, linger_ms=linger_ms, batch_bytes=8000, delivery_timeout_ms=300_000
        )
        self._noting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        async with self._producer as producer:
            while not self.stopping:
                for _ in range(10):
                    partition = self.sent.sent_count % PARTITIONS
                    sequence = self.sent.next_sequence(partition)
                    value = payload(self.sent.number, partition, sequence)
                    future = await producer.send(TOPIC, value, partition=partition)
                    future.add_done_callback(lambda done, sequence=sequence: self._note(done, sequence))  # type: ignore[misc]
                await asyncio.sleep(0.02)

    def _note(self, done: asyncio.Future[object], sequence: int) -> None:
        error = done.exception()
        if error is not None:
            self.sent.failed(error)
            return
        delivery = done.result()
        self.sent.acked(delivery.partition, sequence, delivery.offset)  # type: ignore[attr-defined]


class Reader:
    """Reads from the start until cancelled."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.seen: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(PARTITIONS)}
        self._consumer = Consumer(address(broker), prefetch_bytes=1 << 20)

    async def run(self) -> None:
        async with self._consumer as consumer:
            await consumer.assign_topic(TOPIC)
            async for record in consumer:
                self.seen[record.partition].append((record.offset, record.value or b""))

    def has(self, log: dict[int, list[tuple[int, bytes]]]) -> bool:
        return all(len(self.seen[partition]) >= len(records) for partition, records in log.items())


async def read_all(broker: BrokerProcess) -> dict[int, list[tuple[int, bytes]]]:
    shown = await asyncio.to_thread(CLIENTS["confluent"].consume, broker.bootstrap, TOPIC, range(PARTITIONS))
    return {partition: [(read.offset, read.value or b"") for read in reads] for partition, reads in shown.items()}


async def until(condition: Callable[[], object], tasks: list[asyncio.Task[None]], broker: BrokerProcess) -> None:
    """Wait for a condition; fails if one of the tasks ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        for task in tasks:
            if task.done():
                await task
        assert time.monotonic() < deadline, f"nothing moves any more\n{broker.log_tail()}"
        await asyncio.sleep(0.005)


@pytest.mark.timeout(600)
async def test_rounds_of_sigkill(make_broker: BrokerFactory) -> None:
    draw = random.Random(SEED)
    broker = make_broker()
    await start(broker)
    async with Admin(address(broker)) as admin:
        await admin.create_topic(TOPIC, PARTITIONS)
    writers = [Writer(broker, 0, "lz4", 5), Writer(broker, 1, "none", 0), Writer(broker, 2, "zstd", 50)]
    reader = Reader(broker)
    writing = [asyncio.create_task(writer.run()) for writer in writers]
    reading = asyncio.create_task(reader.run())
    for _ in range(ROUNDS):
        wanted = sum(writer.sent.acked_count for writer in writers) + draw.choice([1, 50, 300])
        await until(
            lambda wanted=wanted: sum(writer.sent.acked_count for writer in writers) >= wanted,  # type: ignore[misc]
            [*writing, reading],
            broker,
        )
        await asyncio.sleep(draw.random() * 0.2)
        broker.kill()
        await asyncio.sleep(draw.choice([0, 0, 0.2]))
        await asyncio.to_thread(broker.start)
    for writer in writers:
        writer.stopping = True
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*writing)
    log = await read_all(broker)
    await until(lambda: reader.has(log), [reading], broker)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    broker.kill()
    await start(broker)
    recovered = await read_all(broker)
    wrong = check_log(recovered) + check_reader("before the last kill", log, recovered)
    for writer in writers:
        wrong += check_writer(writer.sent, recovered)
        assert writer.sent.acked_count == writer.sent.sent_count
    wrong += check_reader("grpc", reader.seen, recovered)
    assert not wrong, f"HEADGATE_KILL_SEED={SEED}\n" + "\n".join(wrong[:20])


@pytest_asyncio.fixture(loop_scope="session")
async def broker(make_broker: BrokerFactory) -> BrokerProcess:
    broker = make_broker()
    await start(broker)
    return broker


SHAPES = (
    (b"k1", b"v1", ()),
    (None, b"no key", (("h", b"1"), ("h", b"2"), ("other", b""))),
    (b"tombstone", None, (("ü", b"\xff\x00"),)),
    (b"", b"", ()),
    (b"big", b"0123456789" * 20_000, ()),
)


@pytest.mark.parametrize("codec", CODECS)
async def test_foreign_clients_read_what_we_write_and_we_what_they_write(broker: BrokerProcess, codec: str) -> None:
    async with Admin(address(broker)) as admin:
        await admin.create_topic("ours", 1)
        for name in ("confluent", "aiokafka", "kafka-python"):
            await admin.create_topic(name, 1)
    async with Producer(address(broker), compression=codec) as producer:
        for index, (key, value, headers) in enumerate(SHAPES):
            await producer.send("ours", value, key=key, headers=headers, timestamp_ms=1000 + index)
    expected = [(index, key, value, headers, 1000 + index) for index, (key, value, headers) in enumerate(SHAPES)]
    records = [
        Record(partition=0, key=key, value=value, headers=headers, timestamp_ms=1000 + index)
        for index, (key, value, headers) in enumerate(SHAPES)
    ]
    for name in ("confluent", "aiokafka", "kafka-python"):
        client = CLIENTS[name]
        shown = (await asyncio.to_thread(client.consume, broker.bootstrap, "ours", [0]))[0]
        assert [(read.offset, read.key, read.value, read.headers, read.timestamp_ms) for read in shown] == expected
        produced = await asyncio.to_thread(client.produce, broker.bootstrap, name, records, codec=codec)
        assert produced == list(range(len(SHAPES)))
        async with Consumer(address(broker)) as consumer:
            await consumer.assign_topic(name)
            got = [await anext(consumer) for _ in SHAPES]
        assert [(record.offset, record.key, record.value, record.headers, record.timestamp_ms) for record in got] == expected


async def test_one_log_behind_both_doors(broker: BrokerProcess) -> None:
    """Offsets, topics and limits are the same over gRPC and over Kafka's protocol."""
    async with Admin(address(broker)) as admin, Producer(address(broker)) as producer:
        await admin.create_topic("a", 1, {"max.message.bytes": "2000"})
        client = CLIENTS["confluent"]
        record = [Record(partition=0, key=None, value=b"kafka", timestamp_ms=5)]
        for turn in range(3):
            assert (await producer.send_and_wait("a", b"grpc")).offset == 2 * turn
            assert await asyncio.to_thread(client.produce, broker.bootstrap, "a", record) == [2 * turn + 1]
        with raises(InvalidError, Reason.MESSAGE_TOO_LARGE):
            await producer.send_and_wait("a", bytes(3000))
        status = await admin.status()
        assert [(topic.name, topic.records) for topic in status.topics if topic.name == "a"] == [("a", 6)]
        one = status.brokers[0]
        assert (one.kafka_port, one.grpc_port, one.http_port) == (broker.kafka_port, broker.grpc_port, broker.http_port)


async def test_wrong_types_and_random_messages(broker: BrokerProcess) -> None:
    """Random bytes, and messages of other types, to every method: each gets a status, never UNKNOWN, the status of a crashed
    handler."""
    draw = random.Random(SEED)
    services = [
        *admin_pb2.DESCRIPTOR.services_by_name.values(),
        *kafka_pb2.DESCRIPTOR.services_by_name.values(),
        *log_pb2.DESCRIPTOR.services_by_name.values(),
    ]
    foreign = [
        log_pb2.SubscribeRequest(credit_bytes=2**32 - 1, add=[log_pb2.Subscription(topic="x" * 10_000)]),
        log_pb2.PublishRequest(sequence=1, topic="\x00", partition=2**32 - 1, batch=draw.randbytes(500)),
        log_pb2.FetchRequest(topic="a", offset=2**63 - 1, max_wait_ms=2**32 - 1, max_bytes=2**32 - 1),
        admin_pb2.SkipRecordsRequest(topic="../../etc", partition=2**32 - 1, last_offset=2**63 - 1),
        kafka_pb2.KafkaRequest(request=b"\0\x13\0\x07\0\0\0\0\xff\xff\0" + draw.randbytes(100), broker_id=-(2**31)),
    ]
    messages = [b"", *(message.SerializeToString() for message in foreign)]
    messages += [draw.randbytes(draw.randrange(1, 100)) for _ in range(10)]
    codes: set[grpc.StatusCode] = set()
    async with grpc.aio.insecure_channel(address(broker)) as channel:
        for service in services:
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                for message in messages:
                    try:
                        if method.client_streaming:
                            stream = channel.stream_stream(path)(timeout=PATIENCE_S)
                            await stream.write(message)
                            await stream.done_writing()
                            while await stream.read() is not grpc.aio.EOF:
                                pass
                        else:
                            await channel.unary_unary(path)(message, timeout=PATIENCE_S)
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                        if isinstance(error, grpc.aio.AioRpcError):
                            codes.add(error.code())
    assert codes <= {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.UNIMPLEMENTED,  # a Kafka request that gRPC does not carry
        grpc.StatusCode.UNAVAILABLE,  # a broker that does not exist is to answer
    }
    await serves(broker)


async def serves(broker: BrokerProcess) -> None:
    """Check that a record can be written and read."""
    broker.check_alive()
    name = f"after-{random.randrange(1 << 30)}"
    async with Admin(address(broker)) as admin, Producer(address(broker)) as producer, Consumer(address(broker)) as consumer:
        await admin.create_topic(name, 1)
        await producer.send_and_wait(name, b"x")
        await consumer.assign({TopicPartition(name, 0): "earliest"})
        assert (await anext(consumer)).value == b"x"


async def test_sigterm_acks_what_was_written_and_ends_the_streams(broker: BrokerProcess) -> None:
    async with Admin(address(broker)) as admin:
        await admin.create_topic("a", 1)
    async with Consumer(address(broker)) as consumer, Producer(address(broker)) as producer:
        await consumer.assign_topic("a")
        futures = [await producer.send("a", b"%d" % number) for number in range(500)]
        await futures[0]
        exit_code = await asyncio.to_thread(broker.terminate)
        assert exit_code == 0
        await asyncio.to_thread(broker.start)
        await producer.flush()
        assert [(await future).offset for future in futures] == list(range(500))
        assert [(await anext(consumer)).value for _ in range(500)] == [b"%d" % number for number in range(500)]
