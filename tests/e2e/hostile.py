"""Common code of the hostile tests: a broker with tight limits, a probe that a healthy client passes, and memory bounds."""

from __future__ import annotations

from tests.compat.topics import fresh
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.records import Record
from tests.support.wire import RawConnection

MIB = 1 << 20


def connect(broker: BrokerProcess, timeout_s: float = 60.0) -> RawConnection:
    return RawConnection(HOST, broker.kafka_port, timeout_s=timeout_s)


def produce(connection: RawConnection, topic: str, records: bytes, partition: int = 0) -> int:
    """Write one batch with acks=all and return its base offset."""
    data = {"name": topic, "partition_data": ({"index": partition, "records": records},)}
    answer = oracle.call(connection, oracle.PRODUCE, 9, {"acks": -1, "timeout": 60_000, "topic_data": (data,)})
    one = answer.responses[0].partition_responses[0]
    assert one.error_code == 0, one
    return int(one.base_offset)


def fetch_values(
    topic: str, offset: int, *, max_bytes: int = 50 * MIB, max_wait_ms: int = 10, min_bytes: int = 1
) -> dict[str, object]:
    """A fetch of partition 0, without a session."""
    part = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": max_bytes,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
    }
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_epoch": -1,
        "topics": ({"topic": topic, "partitions": (part,)},),
    }


def check_raw(broker: BrokerProcess) -> None:
    """Check that the broker lives and answers on a new connection."""
    broker.check_alive()
    with connect(broker) as connection:
        assert oracle.call(connection, oracle.METADATA, 9, {"topics": ()}).brokers


def check_healthy(broker: BrokerProcess) -> None:
    """Check that a healthy client can create a topic, write to it and read it."""
    broker.check_alive()
    topic = fresh("healthy")
    client = CLIENTS["confluent"]
    assert client.produce(broker.bootstrap, topic, [Record(partition=0, key=b"k", value=b"v")]) == [0]
    assert [read.value for read in client.consume(broker.bootstrap, topic, [0])[0]] == [b"v"]


def fill(broker: BrokerProcess, topic: str, total_bytes: int) -> None:
    """Write about `total_bytes` to partition 0, in batches of 900 kB."""
    records = batch([b"x" * 900_000])
    with connect(broker, timeout_s=60) as connection:
        for _ in range(max(1, total_bytes // len(records))):
            produce(connection, topic, records)
