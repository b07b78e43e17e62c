"""Wrong requests get Kafka's own error codes.

Runs: wrong fetches, logins and transactions over raw sockets (encoded and decoded by kio), and wrong requests through the clients'
libraries. Compared: the code of each answer with the one that Apache Kafka 4.1 gives to the same bytes (the tests run against it
unchanged, see conftest). A mismatch means that a client retries a request that can never work, or gives up on one that would. Other
requests: `unit/kafka_api`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import OffsetOutOfRangeError

from tests.compat.conftest import EXTERNAL
from tests.compat.topics import create_topic, eventually, fresh
from tests.support import oracle
from tests.support.batches import batch
from tests.support.clients.all import CLIENTS
from tests.support.clients.interface import ClientError
from tests.support.records import Record
from tests.support.wire import ClosedByPeer, RawConnection

NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, INVALID_TOPIC, ILLEGAL_SASL_STATE = 0, 1, 3, 10, 17, 34
UNSUPPORTED_VERSION, TOPIC_EXISTS, INVALID_CONFIG, UNKNOWN_LEADER_EPOCH, INVALID_RECORD, UNKNOWN_TOPIC_ID = 35, 36, 40, 75, 87, 100


@dataclass(frozen=True)
class Broker:
    bootstrap: str
    host: str
    port: int

    def call(self, api_key: int, version: int, values: dict[str, Any]) -> Any:
        with RawConnection(self.host, self.port, timeout_s=60) as connection:
            return oracle.call(connection, api_key, version, values)

    def produce(self, topic: str, records: bytes | None, *, partition: int = 0) -> tuple[int, int]:
        """(error code, base offset)."""
        data = {"name": topic, "partition_data": ({"index": partition, "records": records},)}
        answer = self.call(oracle.PRODUCE, 9, {"acks": -1, "timeout": 60_000, "topic_data": (data,)})
        one = answer.responses[0].partition_responses[0]
        return int(one.error_code), one.base_offset

    def fetch(self, offset: int, *, version: int = 11, partition: int = 0, epoch: int = -1, **topic: Any) -> int:
        """The partition's error code."""
        part = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": epoch,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
        }
        values = {"replica_id": -1, "max_wait": 10, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
        answer = self.call(oracle.FETCH, version, {**values, "topics": ({**topic, "partitions": (part,)},)})
        return int(answer.responses[0].partitions[0].error_code)

    def end(self, topic: str) -> int:
        """The high watermark of partition 0."""
        part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        answer = self.call(oracle.LIST_OFFSETS, 7, {"replica_id": -1, "topics": ({"name": topic, "partitions": (part,)},)})
        return int(answer.topics[0].partitions[0].offset)


@pytest.fixture(scope="module")
def broker(bootstrap: str) -> Iterator[Broker]:
    host, port = bootstrap.rsplit(":", 1)
    yield Broker(bootstrap, host, int(port))


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """One partition that holds one record."""
    name = create_topic(broker.bootstrap, fresh("errors"), 1)
    assert broker.produce(name, batch([b"first"])) == (NONE, 0)
    return name


def test_null_records(broker: Broker, topic: str) -> None:
    """Kafka ends the connection without an answer; an answer is allowed."""
    try:
        code, _ = broker.produce(topic, None)
    except ClosedByPeer:
        return
    except TimeoutError:
        assert EXTERNAL, "neither an answer nor the end of the connection"
        return
    assert code == INVALID_RECORD


def test_fetch_from_nowhere(broker: Broker, topic: str) -> None:
    assert broker.fetch(0, topic=topic) == NONE
    assert broker.fetch(1_000_000, topic=topic) == OFFSET_OUT_OF_RANGE
    assert broker.fetch(-5, topic=topic) == OFFSET_OUT_OF_RANGE
    assert broker.fetch(0, topic=topic, partition=9) == UNKNOWN_TOPIC_OR_PARTITION
    assert broker.fetch(0, topic=topic, partition=-1) == UNKNOWN_TOPIC_OR_PARTITION
    assert broker.fetch(0, topic="no-such-topic") == UNKNOWN_TOPIC_OR_PARTITION
    assert broker.fetch(0, topic_id=uuid.uuid4(), version=13) == UNKNOWN_TOPIC_ID
    assert broker.fetch(0, topic=topic, epoch=1_000_000) == UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("timestamp", [-9, -100, -(2**63)])
def test_list_offsets_of_an_unknown_kind(broker: Broker, topic: str, timestamp: int) -> None:
    part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    answer = broker.call(oracle.LIST_OFFSETS, 7, {"replica_id": -1, "topics": ({"name": topic, "partitions": (part,)},)})
    assert answer.topics[0].partitions[0].error_code == UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "writer", [pytest.param(name, marks=pytest.mark.kafkajs) if name == "kafkajs" else name for name in CLIENTS]
)
def test_producers_create_topics(bootstrap: str, writer: str) -> None:
    name = fresh("auto-produce")
    assert CLIENTS[writer].produce(bootstrap, name, [Record(partition=0, key=None, value=b"first")]) == [0]
    assert [read.value for read in CLIENTS["confluent"].consume(bootstrap, name, [0])[0]] == [b"first"]


@pytest.mark.parametrize(
    "writer", [pytest.param(name, marks=pytest.mark.kafkajs) if name == "kafkajs" else name for name in CLIENTS]
)
def test_messages_that_are_too_large(bootstrap: str, writer: str) -> None:
    """Every producer's library raises the limit's own error, and the next, smaller message is written."""
    name = create_topic(bootstrap, fresh("small"), 1, max_message_bytes="2000")
    with pytest.raises(ClientError) as raised:
        CLIENTS[writer].produce(bootstrap, name, [Record(partition=0, key=None, value=b"x" * 3000)])
    assert raised.value.code == MESSAGE_TOO_LARGE
    assert CLIENTS[writer].produce(bootstrap, name, [Record(partition=0, key=None, value=b"x" * 1000)]) == [0]


def test_consumers_are_told_of_offsets_out_of_range(bootstrap: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "error"})
    try:
        consumer.assign([TopicPartition(topic, 0, 1_000_000)])
        message = eventually(lambda: consumer.poll(0.5), lambda found: found is not None and found.error() is not None)
        assert message is not None
        error = message.error()
        assert error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET
        assert "Broker: Offset out of range" in error.str()
    finally:
        consumer.close()
    other = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False)
    try:
        part = KafkaPythonPartition(topic, 0)
        other.assign([part])
        other.seek(part, 1_000_000)
        with pytest.raises(OffsetOutOfRangeError):
            eventually(lambda: other.poll(timeout_ms=200), bool)
    finally:
        other.close(autocommit=False)


@pytest.mark.parametrize("version", [0, 1])
def test_a_client_that_wants_to_log_in_is_told_that_nobody_does(broker: Broker, version: int) -> None:
    """Java's client ends at once with this code; without an answer it reports for a minute that it finds no broker."""
    offered = {one.api_key for one in broker.call(18, 2, {}).api_keys}
    assert 17 in offered
    answer = broker.call(17, version, {"mechanism": "PLAIN"})
    assert (answer.error_code, answer.mechanisms) == (ILLEGAL_SASL_STATE, ())


@pytest.mark.parametrize(
    ("api_key", "version", "values", "code"),
    [
        # InitProducerId: a time-out of nothing, and one above transaction.max.timeout.ms
        (22, 4, {"transactional_id": "e", "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1}, 50),
        (22, 4, {"transactional_id": "e", "transaction_timeout": 1 << 30, "producer_id": -1, "producer_epoch": -1}, 50),
        # EndTxn and AddOffsetsToTxn of an id that does not exist
        (26, 3, {"transactional_id": "none", "producer_id": 1, "producer_epoch": 0, "committed": True}, 49),
        (25, 3, {"transactional_id": "none", "producer_id": 1, "producer_epoch": 0, "group_id": "g"}, 49),
    ],
)
def test_errors_of_transactions(broker: Broker, api_key: int, version: int, values: dict[str, Any], code: int) -> None:
    # While the coordinator's topic is made, the answers are retriable.
    assert eventually(lambda: broker.call(api_key, version, values).error_code, lambda answer: answer == code) == code


def test_librdkafka_tells_admin_errors(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def code(new: NewTopic) -> int:
        with pytest.raises(KafkaException) as raised:
            admin.create_topics([new])[new.topic].result(30)
        return int(raised.value.args[0].code())

    assert code(NewTopic(topic, 1, 1)) == TOPIC_EXISTS
    assert code(NewTopic("not a name", 1, 1)) == INVALID_TOPIC
    assert code(NewTopic(fresh("x"), 1, 1, config={"no.such": "1"})) == INVALID_CONFIG
