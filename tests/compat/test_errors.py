"""Wrong requests get Kafka's own error codes.

Runs: wrong produces, fetches and admin requests, over raw sockets (encoded and decoded by kio) and through the clients'
libraries. Compared: the code of each answer with the one that Apache Kafka 4.1 gives to the same bytes (the tests run against it
unchanged, see conftest). For Kafka's UNKNOWN_SERVER_ERROR the tests require any specific reason instead. A mismatch means that a
client retries a request that can never work, or gives up on one that would.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import OffsetOutOfRangeError

from tests.compat.conftest import EXTERNAL
from tests.compat.topics import create_topic, eventually, fresh
from tests.support import oracle
from tests.support.batches import batch, patched
from tests.support.clients.all import CLIENTS
from tests.support.clients.interface import ClientError
from tests.support.records import Record
from tests.support.wire import ClosedByPeer, RawConnection

NONE, OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION = 0, 1, 2, 3
MESSAGE_TOO_LARGE, INVALID_TOPIC, INVALID_REQUIRED_ACKS, INVALID_TIMESTAMP = 10, 17, 21, 32
ILLEGAL_SASL_STATE, UNSUPPORTED_VERSION, TOPIC_EXISTS = 34, 35, 36
INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR = 37, 38
INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION = 39, 40, 42, 44
OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH, UNSUPPORTED_COMPRESSION = 45, 47, 76
UNKNOWN_LEADER_EPOCH, INVALID_RECORD, UNKNOWN_TOPIC_ID = 75, 87, 100

REFUSED = frozenset({CORRUPT_MESSAGE, INVALID_RECORD, UNSUPPORTED_COMPRESSION, -1 if EXTERNAL else CORRUPT_MESSAGE})
"""Any reason to refuse a batch; Apache Kafka's own answer there is UNKNOWN_SERVER_ERROR (-1)."""

OLD_FORMAT = frozenset({INVALID_RECORD, 43})
"""Apache Kafka answers INVALID_RECORD to message formats 0 and 1; UNSUPPORTED_FOR_MESSAGE_FORMAT (43) names the real reason."""


@dataclass(frozen=True)
class Broker:
    bootstrap: str
    host: str
    port: int

    def call(self, api_key: int, version: int, values: dict[str, Any]) -> Any:
        with RawConnection(self.host, self.port, timeout_s=10) as connection:
            return oracle.call(connection, api_key, version, values)

    def produce(
        self, topic: str, records: bytes | None, *, acks: int = -1, partition: int = 0, version: int = 9
    ) -> tuple[int, int]:
        """(error code, base offset)."""
        data = {"name": topic, "partition_data": ({"index": partition, "records": records},)}
        answer = self.call(oracle.PRODUCE, version, {"acks": acks, "timeout": 10_000, "topic_data": (data,)})
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

    def producer_id(self) -> int:
        answer = self.call(oracle.INIT_PRODUCER_ID, 4, {"transactional_id": None, "producer_id": -1, "producer_epoch": -1})
        return int(answer.producer_id)


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


GOOD = batch([b"a", b"b"])
LENGTH_AT, MAGIC_AT, ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT, COUNT_AT = 8, 16, 21, 23, 57


def attributes(bits: int) -> bytes:
    return patched(GOOD, ATTRIBUTES_AT, struct.pack(">h", bits))


BATCHES = [
    pytest.param(patched(GOOD, 30, b"\x01", fix_crc=False), {CORRUPT_MESSAGE}, id="wrong-crc"),
    pytest.param(patched(GOOD, len(GOOD) - 1, b"\x01", fix_crc=False), {CORRUPT_MESSAGE}, id="wrong-last-byte"),
    pytest.param(patched(GOOD, MAGIC_AT, b"\x00", fix_crc=False), OLD_FORMAT, id="magic-0"),
    pytest.param(patched(GOOD, MAGIC_AT, b"\x01", fix_crc=False), OLD_FORMAT, id="magic-1"),
    pytest.param(patched(GOOD, MAGIC_AT, b"\x03", fix_crc=False), {CORRUPT_MESSAGE, INVALID_RECORD}, id="magic-3"),
    pytest.param(GOOD + GOOD, {INVALID_RECORD}, id="two-batches"),
    pytest.param(b"", {INVALID_RECORD}, id="no-batch"),
    pytest.param(GOOD[:-3], {INVALID_RECORD, CORRUPT_MESSAGE}, id="truncated"),
    pytest.param(GOOD[:40], {INVALID_RECORD, CORRUPT_MESSAGE}, id="half-a-header"),
    pytest.param(GOOD[:5], {INVALID_RECORD, CORRUPT_MESSAGE}, id="five-bytes"),
    pytest.param(patched(GOOD, LENGTH_AT, struct.pack(">i", -1), fix_crc=False), {CORRUPT_MESSAGE}, id="negative-length"),
    pytest.param(patched(GOOD, LENGTH_AT, struct.pack(">i", 0), fix_crc=False), {CORRUPT_MESSAGE}, id="zero-length"),
    pytest.param(patched(GOOD, LENGTH_AT, struct.pack(">i", 2**31 - 1), fix_crc=False), REFUSED, id="huge-length"),
    pytest.param(patched(GOOD, LENGTH_AT, struct.pack(">i", len(GOOD) - 13), fix_crc=False), REFUSED, id="length-too-short"),
    pytest.param(patched(GOOD, COUNT_AT, struct.pack(">i", 3)), {INVALID_RECORD}, id="count-too-large"),
    pytest.param(patched(GOOD, COUNT_AT, struct.pack(">i", 2**31 - 1)), {INVALID_RECORD}, id="count-huge"),
    pytest.param(patched(GOOD, COUNT_AT, struct.pack(">i", -1)), {INVALID_RECORD}, id="count-negative"),
    pytest.param(patched(GOOD, COUNT_AT, struct.pack(">i", 0)), {INVALID_RECORD}, id="count-zero"),
    pytest.param(patched(GOOD, LAST_OFFSET_DELTA_AT, struct.pack(">i", 7)), {INVALID_RECORD}, id="last-offset-too-large"),
    pytest.param(patched(GOOD, LAST_OFFSET_DELTA_AT, struct.pack(">i", -1)), {INVALID_RECORD}, id="last-offset-negative"),
    pytest.param(attributes(5), REFUSED, id="codec-5"),
    pytest.param(attributes(7), REFUSED, id="codec-7"),
    pytest.param(attributes(0x20), {INVALID_RECORD}, id="control-batch"),
]


@pytest.mark.parametrize(("records", "codes"), BATCHES)
def test_wrong_batches(broker: Broker, topic: str, records: bytes, codes: set[int]) -> None:
    before = broker.end(topic)
    code, base_offset = broker.produce(topic, records)
    assert code in codes
    assert base_offset == -1
    assert broker.end(topic) == before, "a refused batch was written"


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


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_wrong_acks(broker: Broker, topic: str, acks: int) -> None:
    assert broker.produce(topic, GOOD, acks=acks) == (INVALID_REQUIRED_ACKS, -1)


@pytest.mark.parametrize(
    ("name", "partition"), [("no-such-topic", 0), ("not a name", 0), ("", 0), (None, 1), (None, -1), (None, 2**31 - 1)]
)
def test_produce_to_nowhere(broker: Broker, topic: str, name: str | None, partition: int) -> None:
    """Produce never creates a topic."""
    assert broker.produce(topic if name is None else name, GOOD, partition=partition) == (UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_produce_to_an_unknown_id(broker: Broker) -> None:
    data = {"topic_id": uuid.uuid4(), "partition_data": ({"index": 0, "records": GOOD},)}
    answer = broker.call(oracle.PRODUCE, 13, {"acks": -1, "timeout": 10_000, "topic_data": (data,)})
    assert answer.responses[0].partition_responses[0].error_code == UNKNOWN_TOPIC_ID


def test_one_wrong_partition_does_not_spoil_the_others(broker: Broker) -> None:
    name = create_topic(broker.bootstrap, fresh("mixed"), 2)
    wrong = {"index": 0, "records": patched(GOOD, 30, b"\x01", fix_crc=False)}
    data = ({"name": name, "partition_data": (wrong, {"index": 1, "records": GOOD}, {"index": 9, "records": GOOD})},)
    answer = broker.call(oracle.PRODUCE, 9, {"acks": -1, "timeout": 10_000, "topic_data": data})
    found = {one.index: (int(one.error_code), one.base_offset) for one in answer.responses[0].partition_responses}
    assert found == {0: (CORRUPT_MESSAGE, -1), 1: (NONE, 0), 9: (UNKNOWN_TOPIC_OR_PARTITION, -1)}


SEQUENCES = [
    # rows of (base sequence, records, epoch) -> (error code, base offset)
    pytest.param([(0, 2, 0), (2, 1, 0)], [(NONE, 0), (NONE, 2)], id="in-order"),
    pytest.param([(0, 2, 0), (2, 1, 0), (0, 2, 0), (2, 1, 0)], [(NONE, 0), (NONE, 2), (NONE, 0), (NONE, 2)], id="retries"),
    pytest.param([(0, 2, 0), (3, 1, 0), (2, 1, 0)], [(NONE, 0), (OUT_OF_ORDER_SEQUENCE, -1), (NONE, 2)], id="gap"),
    pytest.param([(0, 2, 0), (0, 3, 0), (1, 1, 0)], [(NONE, 0), *[(OUT_OF_ORDER_SEQUENCE, -1)] * 2], id="other-retries"),
    pytest.param(
        [(0, 1, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1)],
        [(NONE, 0), (NONE, 1), (INVALID_PRODUCER_EPOCH, -1), (NONE, 2)],
        id="new-epoch",
    ),
    pytest.param([(0, 1, 0), (1, 1, 1)], [(NONE, 0), (OUT_OF_ORDER_SEQUENCE, -1)], id="new-epoch-not-from-0"),
]


@pytest.mark.parametrize(("rows", "wanted"), SEQUENCES)
def test_producer_sequences(broker: Broker, rows: list[tuple[int, int, int]], wanted: list[tuple[int, int]]) -> None:
    name = create_topic(broker.bootstrap, fresh("sequences"), 1)
    producer_id = broker.producer_id()
    answers = [
        broker.produce(name, batch([b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))
        for sequence, count, epoch in rows
    ]
    assert answers == wanted


def test_old_retries_are_not_written_twice(broker: Broker) -> None:
    """The broker recognises a producer's last five batches; it may recognise fewer older ones, but never stores one again."""
    name = create_topic(broker.bootstrap, fresh("old-retries"), 1)
    producer_id = broker.producer_id()

    def send(sequence: int) -> tuple[int, int]:
        return broker.produce(name, batch([b"v"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence))

    assert [send(sequence) for sequence in range(8)] == [(NONE, sequence) for sequence in range(8)]
    assert [send(sequence) for sequence in range(3, 8)] == [(NONE, sequence) for sequence in range(3, 8)]
    # Refused as a duplicate (46) or as out of order, or still recognised.
    assert send(0) in ((OUT_OF_ORDER_SEQUENCE, -1), (46, -1), (NONE, 0))
    assert broker.end(name) == 8


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


TOPICS = [
    pytest.param({"name": ""}, INVALID_TOPIC, id="empty-name"),
    pytest.param({"name": "."}, INVALID_TOPIC, id="dot"),
    pytest.param({"name": ".."}, INVALID_TOPIC, id="dots"),
    pytest.param({"name": "a b"}, INVALID_TOPIC, id="space"),
    pytest.param({"name": "../../etc/passwd"}, INVALID_TOPIC, id="path"),
    pytest.param({"name": "topic\x00"}, INVALID_TOPIC, id="zero-byte"),
    pytest.param({"name": "thème-тема-主題"}, INVALID_TOPIC, id="unicode"),
    pytest.param({"name": "x" * 250}, INVALID_TOPIC, id="too-long"),
    pytest.param({"num_partitions": 0}, INVALID_PARTITIONS, id="no-partitions"),
    pytest.param({"num_partitions": -2}, INVALID_PARTITIONS, id="negative-partitions"),
    pytest.param({"replication_factor": 0}, INVALID_REPLICATION_FACTOR, id="no-replicas"),
    pytest.param({"replication_factor": -2}, INVALID_REPLICATION_FACTOR, id="negative-replicas"),
    pytest.param({"configs": ({"name": "no.such", "value": "1"},)}, INVALID_CONFIG, id="unknown-config"),
    pytest.param({"configs": ({"name": "retention.ms", "value": "soon"},)}, INVALID_CONFIG, id="config-not-a-number"),
    pytest.param({"configs": ({"name": "cleanup.policy", "value": "burn"},)}, INVALID_CONFIG, id="config-not-a-choice"),
    pytest.param({"configs": ({"name": "max.message.bytes", "value": "-1"},)}, INVALID_CONFIG, id="config-below-range"),
]


@pytest.mark.parametrize(("fields", "code"), TOPICS)
def test_topics_that_cannot_be(broker: Broker, fields: dict[str, Any], code: int) -> None:
    one = {"name": fresh("wrong"), "num_partitions": 1, "replication_factor": 1, **fields}
    answer = broker.call(oracle.CREATE_TOPICS, 5, {"topics": (one,), "timeout": 30_000})
    assert answer.topics[0].error_code == code
    assert answer.topics[0].error_message, "the reason is not told"
    listed = broker.call(oracle.METADATA, 9, {"topics": None})
    assert one["name"] not in {topic.name for topic in listed.topics}


def test_too_many_partitions(broker: Broker) -> None:
    one = {"name": fresh("wide"), "num_partitions": 10_000_000, "replication_factor": 1}
    answer = broker.call(oracle.CREATE_TOPICS, 5, {"topics": (one,), "timeout": 30_000})
    assert answer.topics[0].error_code in (POLICY_VIOLATION, INVALID_PARTITIONS)


def test_topics_that_exist(broker: Broker, topic: str) -> None:
    one = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    assert broker.call(oracle.CREATE_TOPICS, 5, {"topics": (one,), "timeout": 30_000}).topics[0].error_code == TOPIC_EXISTS
    twice = {"name": fresh("twice"), "num_partitions": 1, "replication_factor": 1}
    answer = broker.call(oracle.CREATE_TOPICS, 5, {"topics": (twice, twice), "timeout": 30_000})
    assert {int(one.error_code) for one in answer.topics} == {INVALID_REQUEST}


def test_admin_requests_for_nothing(broker: Broker, topic: str) -> None:
    answer = broker.call(oracle.DELETE_TOPICS, 5, {"topic_names": ("no-such-topic",), "timeout": 30_000})
    assert answer.responses[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    by_id = ({"name": None, "topic_id": uuid.uuid4()},)
    assert broker.call(oracle.DELETE_TOPICS, 6, {"topics": by_id, "timeout": 30_000}).responses[0].error_code == UNKNOWN_TOPIC_ID
    for name, count, code in ((topic, 1, INVALID_PARTITIONS), ("no-such-topic", 3, UNKNOWN_TOPIC_OR_PARTITION)):
        one = {"name": name, "count": count, "assignments": None}
        assert broker.call(oracle.CREATE_PARTITIONS, 3, {"topics": (one,), "timeout": 30_000}).results[0].error_code == code
    for name, offset, code in (
        (topic, 1_000_000, OFFSET_OUT_OF_RANGE),
        (topic, -7, OFFSET_OUT_OF_RANGE),
        ("no-such-topic", 0, UNKNOWN_TOPIC_OR_PARTITION),
    ):
        one = {"name": name, "partitions": ({"partition_index": 0, "offset": offset},)}
        answer = broker.call(oracle.DELETE_RECORDS, 2, {"topics": (one,), "timeout": 30_000})
        assert answer.topics[0].partitions[0].error_code == code
    answer = broker.call(oracle.DESCRIBE_PRODUCERS, 0, {"topics": ({"name": "no-such-topic", "partition_indexes": (0,)},)})
    assert answer.topics[0].partitions[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    answer = broker.call(
        oracle.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": ({"name": "no-such-topic"},), "response_partition_limit": 10}
    )
    assert answer.topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    part = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}
    answer = broker.call(
        oracle.OFFSET_FOR_LEADER_EPOCH, 3, {"replica_id": -1, "topics": ({"topic": "no-such-topic", "partitions": (part,)},)}
    )
    assert answer.topics[0].partitions[0].error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_config_requests_for_nothing(broker: Broker, topic: str) -> None:
    for kind, name, code in (
        (2, "no-such-topic", UNKNOWN_TOPIC_OR_PARTITION),
        (99, "x", INVALID_REQUEST),
        (4, "99", INVALID_REQUEST),
    ):
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        assert broker.call(oracle.DESCRIBE_CONFIGS, 4, {"resources": (resource,)}).results[0].error_code == code
    for name, config, operation, value, code in (
        (topic, "no.such", 0, "1", INVALID_CONFIG),
        (topic, "retention.ms", 0, "soon", INVALID_CONFIG),
        (topic, "retention.ms", 2, "1", INVALID_CONFIG),  # append to a setting that is no list
        ("no-such-topic", "retention.ms", 0, "1", UNKNOWN_TOPIC_OR_PARTITION),
    ):
        change = {"name": config, "config_operation": operation, "value": value}
        resource = {"resource_type": 2, "resource_name": name, "configs": (change,)}
        assert broker.call(oracle.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": (resource,)}).responses[0].error_code == code


def test_metadata_of_nothing(broker: Broker) -> None:
    def ask(allow: bool, **one: Any) -> int:
        answer = broker.call(oracle.METADATA, 12, {"topics": (one,), "allow_auto_topic_creation": allow})
        return int(answer.topics[0].error_code)

    assert ask(False, name=fresh("nothing")) == UNKNOWN_TOPIC_OR_PARTITION
    assert ask(True, name="not a name") == INVALID_TOPIC
    assert ask(True, name=None, topic_id=uuid.uuid4()) == UNKNOWN_TOPIC_ID


def test_auto_creation_on_metadata(broker: Broker) -> None:
    """Topic creation is on by default, with eight partitions; and only happens if the client allows it."""
    name = fresh("auto")

    def ask(allow: bool) -> Any:
        return broker.call(oracle.METADATA, 12, {"topics": ({"name": name},), "allow_auto_topic_creation": allow}).topics[0]

    assert ask(False).error_code == UNKNOWN_TOPIC_OR_PARTITION
    made = eventually(lambda: ask(True), lambda topic: topic.error_code == NONE)
    assert (made.error_code, len(made.partitions)) == (NONE, 1)
    assert ask(False).topic_id == made.topic_id


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


def test_max_message_bytes_counts_the_whole_batch(broker: Broker) -> None:
    name = create_topic(broker.bootstrap, fresh("exact"), 1, max_message_bytes="1000")
    overhead = len(batch([b"x" * 500])) - 500
    assert broker.produce(name, batch([b"x" * (1000 - overhead)])) == (NONE, 0)
    assert broker.produce(name, batch([b"x" * (1001 - overhead)])) == (MESSAGE_TOO_LARGE, -1)


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


def test_a_replaced_producer_is_fenced(bootstrap: str, topic: str) -> None:
    """Two producers with one transactional id: the first one cannot commit, and its records are not seen."""
    first, second = (Producer({"bootstrap.servers": bootstrap, "transactional.id": f"two-{topic}"}) for _ in range(2))
    first.init_transactions(60)
    first.begin_transaction()
    first.produce(topic, b"zombie", partition=0)
    assert first.flush(60) == 0
    second.init_transactions(60)
    second.begin_transaction()
    second.produce(topic, b"good", partition=0)
    second.commit_transaction(60)
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(60)
    assert raised.value.args[0].fatal()
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest")
    try:
        seen = [next(consumer).value]
        while seen[-1] != b"good":
            seen.append(next(consumer).value)
        assert b"zombie" not in seen
    finally:
        consumer.close()


def test_librdkafka_tells_admin_errors(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def code(new: NewTopic) -> int:
        with pytest.raises(KafkaException) as raised:
            admin.create_topics([new])[new.topic].result(30)
        return int(raised.value.args[0].code())

    assert code(NewTopic(topic, 1, 1)) == TOPIC_EXISTS
    assert code(NewTopic("not a name", 1, 1)) == INVALID_TOPIC
    assert code(NewTopic(fresh("x"), 1, 1, config={"no.such": "1"})) == INVALID_CONFIG
