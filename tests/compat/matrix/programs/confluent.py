"""librdkafka, through confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from tests.compat.matrix.programs.steps import BOOTSTRAP, CODECS, PATIENCE_S, PREFIX, RECORDS, report, same, step, until

QUIET = {"bootstrap.servers": BOOTSTRAP, "log_level": 0}


def create(name: str, partitions: int) -> str:
    topic = f"{PREFIX}-{name}"
    client = AdminClient(QUIET)
    client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)
    return topic


def write(producer: Any, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)
    same(producer.flush(PATIENCE_S), 0)


def read(topic: str, count: int, **config: Any) -> list[bytes]:
    consumer = Consumer({**QUIET, "group.id": f"{PREFIX}-reader", "enable.auto.commit": False, **config})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def enough() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) >= count

    until(enough, f"{count} records of {topic}")
    consumer.close()
    return found


def records() -> None:
    topic = create("records", 1)
    wanted = []
    for codec in CODECS:
        values = [f"{codec} {number}".encode() for number in range(RECORDS)]
        write(Producer({**QUIET, "compression.type": codec, "enable.idempotence": True}), topic, values)
        wanted += values
    same(read(topic, len(wanted)), wanted)


def group(protocol: str) -> None:
    topic = create(f"group-{protocol}", 4)
    for partition in range(4):
        write(Producer(QUIET), topic, [b"%d" % number for number in range(RECORDS)], partition)
    config = {**QUIET, "group.id": f"{PREFIX}-{protocol}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    if protocol != "classic":
        config["group.protocol"] = protocol
    members = [Consumer(config) for _ in range(2)]
    for one in members:
        one.subscribe([topic])
    found: set[tuple[int, int]] = set()

    def both_read() -> bool:
        for one in members:
            message = one.poll(0.2)
            if message is not None and message.error() is None:
                found.add((message.partition(), message.offset()))
        return len(found) == 4 * RECORDS and all(len(one.assignment()) == 2 for one in members)

    until(both_read, "two members share four partitions")
    for one in members:
        one.commit(asynchronous=False)
        one.close()
    checker = Consumer(config)
    committed = checker.committed([TopicPartition(topic, number) for number in range(4)], PATIENCE_S)
    checker.close()
    same(sorted(one.offset for one in committed), [RECORDS] * 4)


def transactions() -> None:
    topic = create("transactions", 1)
    producer = Producer({**QUIET, "transactional.id": f"{PREFIX}-id"})
    producer.init_transactions(PATIENCE_S)
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        write(producer, topic, [b"%d %d" % (number, one) for one in range(RECORDS)])
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    wanted = [b"%d %d" % (number, one) for number in (0, 2) for one in range(RECORDS)]
    same(read(topic, len(wanted), **{"isolation.level": "read_committed"}), wanted)


def admin() -> None:
    client = AdminClient(QUIET)
    topic = create("admin", 1)
    client.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    until(lambda: len(client.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 3, "three partitions")
    resource = ConfigResource("topic", topic, set_config={"retention.ms": "60000"})
    client.alter_configs([resource])[resource].result(PATIENCE_S)
    described = client.describe_configs([ConfigResource("topic", topic)])
    same(next(iter(described.values())).result(PATIENCE_S)["retention.ms"].value, "60000")
    client.delete_topics([topic])[topic].result(PATIENCE_S)


step("records", records)
step("group", lambda: group("classic"))
if confluent_kafka.libversion()[1] >= 0x020A0000:
    step("group848", lambda: group("consumer"))
else:
    report("group848", "-")
step("transactions", transactions)
step("admin", admin)
