"""Kafka Streams with `exactly_once_v2`: a count by key, while its process and the broker are killed.

Runs: a real broker; Streams 4.1 in a process of its own, with a state store that it restores from its changelog topic. Compared:
the committed counts of each key, which must be 1, 2, 3 ... without a gap or a repetition. A mismatch means that a record counted
twice, or not at all.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import maven
from tests.support.waiting import until

KAFKA_VERSION = "4.1.0"
COUNTER = Path(__file__).parents[1] / "support" / "streams_java" / "Counter.java"
PARTITIONS, KEYS = 2, 5
ROUNDS, RECORDS = 3, 200
STOP_S = 60.0


class Streams:
    """The process with the Streams application."""

    def __init__(self, bootstrap: str, home: Path) -> None:
        artifacts = (f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}", "org.slf4j:slf4j-nop:1.7.36")
        jars = maven.jars(f"kafka-streams-{KAFKA_VERSION}", artifacts)
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*")
        self._command = ["java", *options, str(COUNTER), bootstrap, "source", "target", str(home / "state")]
        self._home = home
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._home / "streams.log").open("ab") as log:
            return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill it; the next run has no state of its own."""
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self._home / "state", ignore_errors=True)
        self.process = self._start()

    def stop(self) -> None:
        self.process.communicate(timeout=STOP_S)


def committed(bootstrap: str) -> dict[str, list[int]]:
    """The committed counts of each key, in order."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition("target", number, 0) for number in range(PARTITIONS)])
    found: dict[str, list[int]] = defaultdict(list)
    ends: set[int] = set()
    try:
        while len(ends) < PARTITIONS:
            message = consumer.poll(10)
            if message is None:
                break
            if message.error() is not None:
                ends.add(int(message.partition() or 0))
                continue
            key, value = message.key(), message.value()
            assert isinstance(key, bytes) and isinstance(value, bytes)
            found[key.decode()].append(int.from_bytes(value, "big"))
    finally:
        consumer.close()
    return found


@pytest.mark.slow
@pytest.mark.kafka_server
@pytest.mark.timeout(600)
def test_a_count_is_exact(make_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = make_broker()
    broker.start()
    for topic in ("source", "target"):
        create_topic(broker.bootstrap, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0})
    streams = Streams(broker.bootstrap, tmp_path)
    sent: dict[str, int] = defaultdict(int)

    def write() -> None:
        for number in range(RECORDS):
            key = f"k{number % KEYS}"
            sent[key] += 1
            producer.produce("source", b"x", key=key)
        assert producer.flush(120) == 0

    def counted() -> int:
        return sum(len(counts) for counts in committed(broker.bootstrap).values())

    try:
        for number in range(ROUNDS):
            before = sum(sent.values())
            write()
            until(lambda before=before: counted() > before, lambda: f"Streams go on: {counted()}")
            if number % 2:
                streams.kill()
            else:
                broker.kill()
                broker.start()
            write()
        until(lambda: counted() >= sum(sent.values()), lambda: f"all is counted: {counted()} of {sum(sent.values())}")
    finally:
        streams.stop()
    assert committed(broker.bootstrap) == {key: list(range(1, count + 1)) for key, count in sent.items()}
