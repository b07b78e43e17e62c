"""Topics for compatibility tests, made through librdkafka's admin client."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

Answer = TypeVar("Answer")


def eventually(question: Callable[[], Answer], wanted: Callable[[Answer], bool]) -> Answer:
    """Poll until the answer is as wanted and return it; after a minute return the last answer, for the caller's assertion to
    show.

    Headgate needs one request. Apache Kafka acknowledges changes a moment before its brokers show them.
    """
    deadline = time.monotonic() + 60
    while not wanted(answer := question()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


def fresh(label: str) -> str:
    """A topic name that no other test uses."""
    return f"{label}-{uuid.uuid4().hex[:12]}"


def create_topic(bootstrap: str, name: str, partitions: int, **config: str) -> str:
    """Create a topic, wait until every partition has a leader that answers, and return its name. `a_b=` sets the config `a.b`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    future = admin.create_topics(
        [NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})]
    )
    future[name].result(60)
    # Apache Kafka answers CreateTopics before the partitions serve; clients then write a whole request twice.
    deadline = time.monotonic() + 60
    wanted = {TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}
    while True:
        try:
            for answer in admin.list_offsets(wanted, request_timeout=30).values():
                answer.result(60)
        except KafkaException:
            assert time.monotonic() < deadline, f"a new topic does not serve. topic=`{name}`"
            time.sleep(0.02)
        else:
            return name


def topic_id(bootstrap: str, name: str) -> bytes:
    """The 16 bytes of a topic's id."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_topics(TopicCollection([name]), request_timeout=30)[name].result(30).topic_id
    return struct.pack(">qq", found.get_most_significant_bits(), found.get_least_significant_bits())
