"""A broker's memory follows live data, and settings bound the memory that clients can make it hold.

Runs: real brokers with small limits; topics from which retention or a client deletes records, frames that are announced and not
sent, readers that request and never read. Compared: the process's resident memory against the settings that bound it, with
generous margins. A mismatch means that deleted records, or clients that do nothing, fill a machine's memory.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient

from headgate.broker.store.read_buffers import BUFFER_BYTES, BUFFERS_MAX
from tests.compat.topics import create_topic, fresh
from tests.conftest import BrokerFactory
from tests.e2e.hostile import MIB, check_raw, connect, fetch_values, fill
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.waiting import until
from tests.support.wire import RawConnection, framed, request_header

PATIENCE_S = 30.0
"""Ends a hang; no test judges by it."""
SLACK_BYTES = 24 * MIB
"""Growth of a broker's memory for other reasons: modules, the allocator's arenas, pending answers."""
READ_BUFFERS_BYTES = BUFFERS_MAX * BUFFER_BYTES
"""Kept by a store from read to read, beside what is in flight."""
TAIL_BYTES = 192 * MIB


def eventually_below(broker: BrokerProcess, bound_bytes: int) -> None:
    """Wait until the broker's resident memory is below a bound."""
    until(
        lambda: broker.resident_bytes() < bound_bytes,
        lambda: f"memory shrinks. resident=`{broker.resident_bytes():,}` bound=`{bound_bytes:,}`",
    )


def delete_records(broker: BrokerProcess, topic: str) -> None:
    part = {"partition_index": 0, "offset": -1}
    with connect(broker) as connection:
        answer = oracle.call(
            connection, oracle.DELETE_RECORDS, 2, {"topics": ({"name": topic, "partitions": (part,)},), "timeout": 10_000}
        )
    assert answer.topics[0].partitions[0].error_code == 0, answer


def delete_topic(broker: BrokerProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def expire(broker: BrokerProcess, topic: str) -> None:
    """Retention by time deletes the records, as the topic's settings say."""


@pytest.mark.parametrize(
    ("config", "delete", "value_bytes"),
    [
        ({"retention_ms": "300"}, expire, 2_000),
        ({}, delete_records, 2_000),
        ({}, delete_topic, 900_000),
        pytest.param({"retention_ms": "300"}, expire, 900_000, marks=pytest.mark.slow),
        pytest.param({}, delete_records, 900_000, marks=pytest.mark.slow),
        pytest.param({}, delete_topic, 2_000, marks=pytest.mark.slow),
    ],
)
def test_records_that_are_deleted_leave_memory(
    make_broker: BrokerFactory, value_bytes: int, config: dict[str, str], delete: Callable[[BrokerProcess, str], None]
) -> None:
    """Large batches, each in its own buffer, and small ones that share buffers."""
    env = {
        "HEADGATE_TAIL_BYTES": str(TAIL_BYTES),
        "HEADGATE_RETENTION_CHECK_INTERVAL_MS": "100",
        "HEADGATE_WAL_CHUNK_BYTES": str(8 * MIB),
        "HEADGATE_WAL_CHECKPOINT_INTERVAL_MS": "100",
    }
    broker = make_broker(env=env)
    broker.start()
    warm = create_topic(broker.bootstrap, fresh("warm"), 1)
    fill(broker, warm, 2 * MIB)
    before = broker.resident_bytes()
    topic = create_topic(broker.bootstrap, fresh("deleted"), 1, **config)
    fill_with(broker, topic, TAIL_BYTES // 2, value_bytes)
    if not config:
        assert broker.resident_bytes() > before + TAIL_BYTES // 3, "the tail holds what was written"
    delete(broker, topic)
    eventually_below(broker, before + SLACK_BYTES)


def fill_with(broker: BrokerProcess, topic: str, total_bytes: int, value_bytes: int) -> None:
    """Write one-record batches to partition 0."""
    data = {"name": topic, "partition_data": ({"index": 0, "records": batch([b"x" * value_bytes])},)}
    body = oracle.encode(oracle.PRODUCE, 9, {"acks": -1, "timeout": 60_000, "topic_data": (data,)})
    lot = max(1, MIB // value_bytes)
    with connect(broker) as connection:
        frame = framed(request_header(oracle.PRODUCE, 9, 1, flexible=True) + body)
        for _ in range(total_bytes // (lot * value_bytes)):
            connection.send(frame * lot)
            for _ in range(lot):
                answer = oracle.decode(oracle.PRODUCE, 9, connection.receive_frame()[4:])
                assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_frame_takes_memory_as_it_arrives(make_broker: BrokerFactory) -> None:
    """Clients announce frames of 60 MB and send 100 KB of each. The broker has room for all announced bytes."""
    broker = make_broker(env={"HEADGATE_INFLIGHT_BYTES_MAX": str(1024 * MIB), "HEADGATE_FRAME_TIMEOUT_MS": "60000"})
    broker.start()
    topic = create_topic(broker.bootstrap, fresh("announced"), 1)
    fill(broker, topic, 2 * MIB)  # what the first records load stays, and does not count
    before = broker.resident_bytes()
    frames = 12
    with ExitStack() as open_connections:
        for _ in range(frames):
            connection = open_connections.enter_context(connect(broker))
            connection.send(struct.pack(">i", 60 * MIB) + request_header(oracle.PRODUCE, 9, 1, flexible=True) + bytes(100_000))
        fill(broker, topic, 2 * MIB)
        assert broker.resident_bytes() < before + frames * MIB + SLACK_BYTES
    check_raw(broker)


@pytest.mark.parametrize(
    ("tail_bytes", "value_bytes"),
    [
        (4 * MIB, 900_000),
        (128 * MIB, 2_000),
        pytest.param(4 * MIB, 2_000, marks=pytest.mark.slow),
        pytest.param(128 * MIB, 900_000, marks=pytest.mark.slow),
    ],
)
def test_readers_that_do_not_read_are_bounded(make_broker: BrokerFactory, tail_bytes: int, value_bytes: int) -> None:
    """Thirty readers request all records and take nothing; the records are in memory and in the store."""
    limit = 16 * MIB
    env = {
        "HEADGATE_TAIL_BYTES": str(tail_bytes),
        "HEADGATE_INFLIGHT_BYTES_MAX": str(limit),
        "HEADGATE_FRAME_BYTES_MAX": str(limit),
        "HEADGATE_CONNECTION_INFLIGHT_BYTES_MAX": str(limit),
        "HEADGATE_FRAME_TIMEOUT_MS": "60000",
    }
    broker = make_broker(env=env)
    broker.start()
    topic = create_topic(broker.bootstrap, fresh("unread"), 1)
    fill_with(broker, topic, 64 * MIB, value_bytes)
    before = broker.resident_bytes()
    worst = 0
    with ExitStack() as open_connections:
        for number in range(30):
            connection = open_connections.enter_context(RawConnection(HOST, broker.kafka_port, receive_buffer_bytes=4096))
            body = oracle.encode(oracle.FETCH, 11, fetch_values(topic, number, max_bytes=50 * MIB))
            connection.send(framed(request_header(oracle.FETCH, 11, 1) + body) * 3)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            worst = max(worst, broker.resident_bytes() - before)
            time.sleep(0.02)
        check_raw(broker)
    assert worst < limit + SLACK_BYTES + READ_BUFFERS_BYTES


def test_answers_that_nobody_takes_pin_little_more_than_they_are(make_broker: BrokerFactory) -> None:
    """Ten readers request the newest 256 KB of each of eight partitions and take nothing, while new records push the old ones
    out."""
    limit, tail_bytes, readers = 64 * MIB, 32 * MIB, 10
    env = {
        "HEADGATE_TAIL_BYTES": str(tail_bytes),
        "HEADGATE_INFLIGHT_BYTES_MAX": str(limit),
        "HEADGATE_FRAME_BYTES_MAX": str(limit),
        "HEADGATE_CONNECTION_INFLIGHT_BYTES_MAX": str(limit),
        "HEADGATE_FRAME_TIMEOUT_MS": "60000",
    }
    broker = make_broker(env=env)
    broker.start()
    topic = create_topic(broker.bootstrap, fresh("pinned"), 8)
    written = [0] * 8

    def write(connection: RawConnection, total_bytes: int) -> None:
        records = batch([b"x" * 20_000])
        parts = tuple({"index": number, "records": records} for number in range(8))
        data = {"name": topic, "partition_data": parts}
        body = oracle.encode(oracle.PRODUCE, 9, {"acks": -1, "timeout": 60_000, "topic_data": (data,)})
        frame = framed(request_header(oracle.PRODUCE, 9, 1, flexible=True) + body)
        for _ in range(total_bytes // (80 * 20_000)):
            connection.send(frame * 10)
            for _ in range(10):
                connection.receive_frame()
            for number in range(8):
                written[number] += 10

    with ExitStack() as open_connections:
        writer = open_connections.enter_context(connect(broker))
        write(writer, 2 * tail_bytes)
        before = broker.resident_bytes()
        for _ in range(readers):
            reader = open_connections.enter_context(RawConnection(HOST, broker.kafka_port, receive_buffer_bytes=4096))
            values = fetch_values(topic, 0)
            (part,) = values["topics"][0]["partitions"]  # type: ignore[index]
            parts = tuple(
                {**part, "partition": number, "fetch_offset": written[number] - 13, "partition_max_bytes": 256 << 10}
                for number in range(8)
            )
            body = oracle.encode(oracle.FETCH, 11, {**values, "topics": ({"topic": topic, "partitions": parts},)})
            reader.send(framed(request_header(oracle.FETCH, 11, 1) + body) * 3)
            write(writer, tail_bytes)
        check_raw(broker)
        eventually_below(broker, before + limit + SLACK_BYTES)
