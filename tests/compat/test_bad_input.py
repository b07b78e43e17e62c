"""Mistakes in transactions and in consumer groups (KIP-848), with librdkafka: Kafka's own error each time, and no hang.

Compared: the error that the client shows, and what readers see afterwards. A mismatch means that a client waits for ever, or
retries what can never work. Epochs that run out and coordinators that die between markers: `unit/transactions/test_shard.py`.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.compat.topics import create_topic, fresh

PATIENCE_S = 60.0
FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")


def producer(bootstrap: str, transactional_id: str, **config: object) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0, **config})
    made.init_transactions(PATIENCE_S)
    return made


def write(one: Producer, topic: str, value: bytes) -> None:
    one.begin_transaction()
    one.produce(topic, value, partition=0)
    one.flush(PATIENCE_S)


def first_committed(bootstrap: str, topic: str) -> bytes | None:
    """The first committed record; waits until there is one."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": fresh("judge"), "isolation.level": "read_committed", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(PATIENCE_S)
        assert message is not None and message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_a_transaction_left_open_is_aborted(bootstrap: str) -> None:
    topic = create_topic(bootstrap, fresh("left"), 1)
    left = producer(bootstrap, fresh("left"), **{"transaction.timeout.ms": 1000})
    write(left, topic, b"never seen")
    other = producer(bootstrap, fresh("other"))
    write(other, topic, b"seen")
    other.commit_transaction(PATIENCE_S)
    assert first_committed(bootstrap, topic) == b"seen"  # which waited until the broker aborted the other one
    with pytest.raises(KafkaException) as refused:
        left.commit_transaction(PATIENCE_S)
    assert refused.value.args[0].name() in FENCED


def test_the_second_of_two_producers_fences_the_first(bootstrap: str) -> None:
    topic, name = create_topic(bootstrap, fresh("two"), 1), fresh("id")
    first = producer(bootstrap, name)
    write(first, topic, b"never seen")
    second = producer(bootstrap, name)
    write(second, topic, b"seen")
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(PATIENCE_S)
    assert refused.value.args[0].fatal()
    assert refused.value.args[0].name() in FENCED
    second.commit_transaction(PATIENCE_S)
    assert first_committed(bootstrap, topic) == b"seen"


def test_a_time_out_beyond_the_brokers_is_refused(bootstrap: str) -> None:
    with pytest.raises(KafkaException) as refused:
        producer(bootstrap, fresh("long"), **{"transaction.timeout.ms": 3_600_000})
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


def first_error(consumer: Consumer) -> str:
    """The first error that a consumer reports. It is fatal: the client does not try again."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            try:
                message = consumer.poll(0.5)
            except KafkaException as error:
                return str(error.args[0].str())
            if message is not None and message.error() is not None:
                return message.error().str()
    finally:
        consumer.close()
    raise AssertionError("the consumer reports no error")


def member(bootstrap: str, **config: object) -> Consumer:
    fixed = {"bootstrap.servers": bootstrap, "group.id": fresh("group"), "group.protocol": "consumer", "log_level": 0}
    return Consumer({**fixed, **config})


def test_a_broken_pattern_is_refused(bootstrap: str) -> None:
    consumer = member(bootstrap)
    consumer.subscribe([r"^(a)\1"])  # the client's own expressions have this, the broker's (RE2) do not
    assert first_error(consumer).endswith(KafkaError(KafkaError.INVALID_REGULAR_EXPRESSION).str())


def test_an_unknown_assignor_is_refused(bootstrap: str) -> None:
    consumer = member(bootstrap, **{"group.remote.assignor": "by-luck"})
    consumer.subscribe([create_topic(bootstrap, fresh("assigned"), 1)])
    assert first_error(consumer).endswith(KafkaError(KafkaError.UNSUPPORTED_ASSIGNOR).str())
