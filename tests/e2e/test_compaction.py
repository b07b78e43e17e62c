"""Compacted topics of a real broker: consumers see the last value of every key, before, during and after compactions.

Runs: librdkafka writes and deletes few keys again and again, in transactions, while the broker compacts as fast as it can, and the
broker and its folding process are killed. Compared: each key's last value as librdkafka, the Java client and the topic's table find
it with what was acked last. A mismatch means that a compaction loses a value or brings a deleted one back.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from headgate.broker.client import Admin
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import maven
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.mixed_topic import ENV
from tests.support.waiting import until

PARTITIONS = 2
KEYS = 40
ROUNDS = 6
PATIENCE_S = 90.0
KAFKA_VERSION = "4.1.0"
READER = Path(__file__).parents[1] / "support" / "readers_java" / "LastValues.java"


def java_last_values(broker: BrokerProcess, topic: str) -> dict[str, str]:
    artifacts = (f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}", "org.slf4j:slf4j-nop:1.7.36")
    home = maven.jars(f"kafka-clients-{KAFKA_VERSION}", artifacts)
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{home}/*", str(READER), broker.bootstrap, topic]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    return dict(line.split("=", 1) for line in printed.splitlines())


def rdkafka_last_values(broker: BrokerProcess, topic: str) -> dict[str, str]:
    return {key: value for key, (_, value) in read(broker, topic).items() if value is not None}


def read(broker: BrokerProcess, topic: str) -> dict[str, tuple[int, str | None]]:
    """The last record of each key: (number of records of the key, value), as librdkafka finds them."""
    at = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)]
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**settings, "fetch.message.max.bytes": 2000})
    left = {one.partition: consumer.get_watermark_offsets(one, PATIENCE_S)[1] for one in at}
    consumer.assign(at)
    found: dict[str, tuple[int, str | None]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while left:
        assert time.monotonic() < deadline, f"the end of the topic does not come. left=`{left}`"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:  # the end of a partition
            if message.offset() >= left.get(message.partition(), 0):
                left.pop(message.partition(), None)
            continue
        key, value = message.key().decode(), message.value()
        found[key] = found.get(key, (0, None))[0] + 1, None if value is None else value.decode()
    consumer.close()
    return found


async def _drop_markers(broker: BrokerProcess, topic: str) -> None:
    async with Admin(f"{HOST}:{broker.grpc_port}") as admin:
        await admin.alter_topic_config(topic, {"delete.retention.ms": "0"})


@pytest.mark.parametrize(
    "last_values",
    [
        rdkafka_last_values,
        pytest.param(java_last_values, marks=[pytest.mark.slow, pytest.mark.skipif(bool(maven.missing()), reason="no Maven")]),
    ],
)
@pytest.mark.timeout(400)
def test_consumers_see_the_last_value_of_every_key(
    make_broker: BrokerFactory, last_values: Callable[[BrokerProcess, str], dict[str, str]]
) -> None:
    from pyiceberg.catalog import load_catalog

    broker = make_broker(env=ENV)
    broker.start()
    topic = create_topic(
        broker.bootstrap, "state", PARTITIONS, cleanup_policy="compact", offline_after_bytes="0", min_cleanable_dirty_ratio="0",
    )  # fmt: skip
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer", "linger.ms": 0})
    producer.init_transactions()
    expected: dict[str, str] = {}
    for number in range(ROUNDS):
        for commit in (True, False):
            producer.begin_transaction()
            for at in range(KEYS):
                key, value = f"key-{at}", f"{number}-{at}" if (number + at) % 5 else None
                producer.produce(topic, value if commit else "aborted", key, partition=at % PARTITIONS)
                if commit and value is None:
                    expected.pop(key, None)
                elif commit and value is not None:
                    expected[key] = value
            assert producer.flush(PATIENCE_S) == 0
            if commit:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.abort_transaction(PATIENCE_S)
        assert last_values(broker, topic) == expected
        broker.kill_children("file_fold_process")
        if number == ROUNDS // 2:
            broker.kill()
            broker.start()
    # Readers that are slower than this time may miss the marker of a deleted key, so it ends only now.
    asyncio.run(_drop_markers(broker, topic))
    # In the end only the last record of each key is left, and the table has the same.
    table = load_catalog("headgate", type="rest", uri=f"http://{HOST}:{broker.http_port}/iceberg").load_table(("headgate", topic))
    last = sorted((key.encode(), value.encode()) for key, value in expected.items())

    def rows() -> list[tuple[bytes, bytes]]:
        return sorted((row["key"], row["value"] or b"") for row in table.refresh().scan().to_arrow().to_pylist())

    until(lambda: rows() == last, lambda: f"the topic is compacted. rows=`{rows()}`\n{broker.log_tail()}", 2 * PATIENCE_S)
    assert read(broker, topic) == {key: (1, value) for key, value in expected.items()}
    assert last_values(broker, topic) == expected
    answers: list[KafkaError] = []
    keyless = Producer({"bootstrap.servers": broker.bootstrap})
    keyless.produce(topic, b"no key", partition=0, on_delivery=lambda error, _: answers.append(error))
    assert keyless.flush(PATIENCE_S) == 0
    assert [error.code() for error in answers] == [KafkaError.INVALID_RECORD]
