"""aiokafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.compat.matrix.programs.steps import BOOTSTRAP, CODECS, PATIENCE_S, PREFIX, RECORDS, report, same, step

SERVERS = {"bootstrap_servers": BOOTSTRAP}


async def with_admin(act: Callable[[AIOKafkaAdminClient], Awaitable[None]]) -> None:
    client = AIOKafkaAdminClient(**SERVERS)
    await client.start()
    try:
        await act(client)
    finally:
        await client.close()


async def create(name: str, partitions: int) -> str:
    topic = f"{PREFIX}-{name}"

    async def act(client: AIOKafkaAdminClient) -> None:
        await client.create_topics([NewTopic(topic, partitions, 1)])

    await with_admin(act)
    return topic


async def read(topic: str, count: int, **config: Any) -> list[bytes]:
    consumer = AIOKafkaConsumer(**SERVERS, auto_offset_reset="earliest", enable_auto_commit=False, **config)
    await consumer.start()
    consumer.assign([TopicPartition(topic, 0)])
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            for rows in (await consumer.getmany(timeout_ms=500)).values():
                found += [one.value for one in rows]
    await consumer.stop()
    return found


async def records() -> None:
    topic = await create("records", 1)
    wanted = []
    for codec in CODECS:
        values = [f"{codec} {number}".encode() for number in range(RECORDS)]
        producer = AIOKafkaProducer(**SERVERS, compression_type=None if codec == "none" else codec, enable_idempotence=True)
        await producer.start()
        for value in values:
            await producer.send_and_wait(topic, value)
        await producer.stop()
        wanted += values
    same(await read(topic, len(wanted)), wanted)


async def group() -> None:
    topic = await create("group", 4)
    producer = AIOKafkaProducer(**SERVERS)
    await producer.start()
    for partition in range(4):
        for number in range(RECORDS):
            await producer.send(topic, b"%d" % number, partition=partition)
    await producer.stop()
    config = {**SERVERS, "group_id": f"{PREFIX}-group", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    members = [AIOKafkaConsumer(topic, **config) for _ in range(2)]
    await asyncio.gather(*(one.start() for one in members))
    found: set[tuple[int, int]] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 4 * RECORDS or any(len(one.assignment()) != 2 for one in members):
        if time.monotonic() > deadline:
            raise TimeoutError("two members share four partitions")
        for one in members:
            for rows in (await one.getmany(timeout_ms=200)).values():
                found.update((row.partition, row.offset) for row in rows)
    for one in members:
        await one.commit()
        await one.stop()
    checker = AIOKafkaConsumer(**config)
    await checker.start()
    same([await checker.committed(TopicPartition(topic, number)) for number in range(4)], [RECORDS] * 4)
    await checker.stop()


async def transactions() -> None:
    topic = await create("transactions", 1)
    producer = AIOKafkaProducer(**SERVERS, transactional_id=f"{PREFIX}-id")
    await producer.start()
    for number, commit in enumerate((True, False, True)):
        await producer.begin_transaction()
        for one in range(RECORDS):
            await producer.send_and_wait(topic, b"%d %d" % (number, one))
        if commit:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
    await producer.stop()
    wanted = [b"%d %d" % (number, one) for number in (0, 2) for one in range(RECORDS)]
    same(await read(topic, len(wanted), isolation_level="read_committed"), wanted)


async def admin() -> None:
    topic = await create("admin", 1)

    async def act(client: AIOKafkaAdminClient) -> None:
        await client.create_partitions({topic: NewPartitions(3)})
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "60000"})])
        if "60000" not in str(await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])):
            raise AssertionError("the setting is not shown")
        await client.delete_topics([topic])

    await with_admin(act)


for name, act in (("records", records), ("group", group), ("transactions", transactions), ("admin", admin)):
    step(name, lambda act=act: asyncio.run(act()))
report("group848", "-")
