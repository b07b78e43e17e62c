"""kafka-python, 2 and 3."""

from __future__ import annotations

import threading
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

from tests.compat.matrix.programs.steps import BOOTSTRAP, CODECS, PREFIX, RECORDS, report, same, step, until

MAJOR = int(kafka.__version__.partition(".")[0])
SERVERS = {"bootstrap_servers": BOOTSTRAP}


def create(name: str, partitions: int) -> str:
    topic = f"{PREFIX}-{name}"
    client = KafkaAdminClient(**SERVERS)
    client.create_topics([NewTopic(topic, partitions, 1)])
    client.close()
    return topic


def read(topic: str, count: int, **config: Any) -> list[bytes]:
    consumer = KafkaConsumer(**SERVERS, auto_offset_reset="earliest", enable_auto_commit=False, group_id=None, **config)
    consumer.assign([TopicPartition(topic, 0)])
    found: list[bytes] = []

    def enough() -> bool:
        for rows in consumer.poll(500).values():
            found.extend(one.value for one in rows)
        return len(found) >= count

    until(enough, f"{count} records of {topic}")
    consumer.close()
    return found


def records() -> None:
    topic = create("records", 1)
    wanted = []
    for codec in CODECS:
        values = [f"{codec} {number}".encode() for number in range(RECORDS)]
        producer = KafkaProducer(**SERVERS, compression_type=None if codec == "none" else codec, acks="all")
        for value in values:
            producer.send(topic, value)
        producer.flush(60)
        producer.close()
        wanted += values
    same(read(topic, len(wanted)), wanted)


def group() -> None:
    topic = create("group", 4)
    producer = KafkaProducer(**SERVERS)
    for partition in range(4):
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, partition=partition)
    producer.close()
    config = {**SERVERS, "group_id": f"{PREFIX}-group", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    found: set[tuple[int, int]] = set()
    shares = [0, 0]
    done = threading.Event()

    def live(number: int) -> None:
        """A member in a thread of its own: a poll blocks while the group rebalances, and needs the other member."""
        one = KafkaConsumer(topic, **config)
        while not done.is_set():
            for rows in one.poll(200).values():
                found.update((row.partition, row.offset) for row in rows)
            shares[number] = len(one.assignment())
        one.commit()
        one.close(autocommit=False)

    threads = [threading.Thread(target=live, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: (len(found) == 4 * RECORDS and shares == [2, 2]) or done.wait(0.1), "two members share four partitions")
    done.set()
    for thread in threads:
        thread.join(60)
    checker = KafkaConsumer(**config)
    same([checker.committed(TopicPartition(topic, number)) for number in range(4)], [RECORDS] * 4)
    checker.close()


def transactions() -> None:
    topic = create("transactions", 1)
    producer = KafkaProducer(**SERVERS, transactional_id=f"{PREFIX}-id")
    producer.init_transactions()
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for one in range(RECORDS):
            producer.send(topic, b"%d %d" % (number, one))
        producer.flush(60)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    wanted = [b"%d %d" % (number, one) for number in (0, 2) for one in range(RECORDS)]
    same(read(topic, len(wanted), isolation_level="read_committed"), wanted)


def admin() -> None:
    topic = create("admin", 1)
    client = KafkaAdminClient(**SERVERS)
    client.create_partitions({topic: NewPartitions(3)})
    consumer = KafkaConsumer(**SERVERS)
    until(lambda: len(consumer.partitions_for_topic(topic) or ()) == 3, "three partitions")
    consumer.close()
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "60000"})])
    if "60000" not in str(client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])):
        raise AssertionError("the setting is not shown")
    client.delete_topics([topic])
    client.close()


step("records", records)
step("group", group)
report("group848", "-")
if MAJOR >= 3:
    step("transactions", transactions)
else:
    report("transactions", "-")
step("admin", admin)
