"""Three whole brokers in one process: each of them answers about the whole cluster.

Compared: each broker's answers over gRPC with the state of all brokers together. A mismatch means that the answer depends on the
broker that the client asks.
"""

from __future__ import annotations

import asyncio

import grpc
import pytest

from headgate.broker.client import Admin, GroupAdmin, TopicPartition
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.server.grpc.errors import LEADER_KEY, REASON_KEY
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, groups_pb2, log_pb2
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.control.world import Broker, World


async def fill(world: World, topic: str, partition: int, count: int) -> None:
    broker = world.lead(topic, partition)
    log = broker.engine.partition(broker.engine.topic(topic), partition)
    broker.engine.append(log, memoryview(bytearray(encode_batch([Record(0, 1, None, b"x")] * count))))
    await broker.engine.durable()


async def create(world: World, topic: str, partitions: int, **config: str) -> None:
    await world.brokers[-1].engine.create_topic(topic, partitions, {key.replace("_", "."): value for key, value in config.items()})
    await until_async(lambda: sum(len(broker.leads().get(topic, ())) for broker in world.brokers) == partitions)


async def test_topics_and_status(world: World) -> None:
    await create(world, "t", 6)
    for partition in range(6):
        await fill(world, "t", partition, partition + 1)
    for broker in world.brokers:
        assert 0 < len(broker.leads()["t"]) < 6, "a new topic is spread"
        async with Admin(broker.address) as admin:
            about = await admin.describe_topic("t")
            assert [(part.log_start, part.high_watermark) for part in about.partitions] == [(0, count) for count in range(1, 7)]
            assert [part.leader for part in about.partitions] == [world.lead("t", number).number for number in range(6)]
            assert all(part.size_bytes > 0 and part.leader_epoch > 0 for part in about.partitions)
            status = await admin.status(rate_window_ms=1)
            assert [one.id for one in status.brokers] == [1, 2, 3]
            assert [one.grpc_port for one in status.brokers] == [one.port for one in world.brokers]
            assert {one.incarnation_id for one in status.brokers} == {one.engine.incarnation_id for one in world.brokers}
            (topic,) = status.topics
            assert (topic.records, topic.partitions, topic.records_in_per_second) == (21, 6, 0)
            ends = await admin.offsets({TopicPartition("t", number): "latest" for number in range(6)})
            assert [found.offset for found in ends.values()] == [1, 2, 3, 4, 5, 6]


async def test_changes_of_a_topics_settings_at_several_brokers_never_lose_one_another(world: World) -> None:
    await create(world, "t", 1)
    await until_async(lambda: all("t" in broker.engine.manifest.topics for broker in world.brokers))
    keys = ("retention.ms", "retention.bytes", "segment.bytes")

    async def alter(broker: Broker, key: str, value: int) -> None:
        async with Admin(broker.address) as admin:
            await admin.alter_topic_config("t", {key: str(value)})

    for value in range(1_000_000, 1_000_005):
        await asyncio.gather(*(alter(broker, key, value) for broker, key in zip(world.brokers, keys, strict=True)))
        assert world.leader.engine.topic("t").config == dict.fromkeys(keys, str(value))


async def test_records_are_deleted_where_they_are_led(world: World) -> None:
    await create(world, "t", 6)
    for partition in range(6):
        await fill(world, "t", partition, 3)
    async with Admin(world.brokers[0].address) as admin:
        assert await admin.delete_records("t", dict.fromkeys(range(6), 2)) == dict.fromkeys(range(6), 2)
    async with Admin(world.brokers[1].address) as admin:
        assert [part.log_start for part in (await admin.describe_topic("t")).partitions] == [2] * 6
        with raises(HeadgateError, Reason.OFFSET_OUT_OF_RANGE):
            await admin.delete_records("t", dict.fromkeys(range(6), 9))


async def test_groups(world: World) -> None:
    await create(world, "t", 6)
    for partition in range(6):
        await fill(world, "t", partition, 5)
    names = [f"group-{number}" for number in range(8)]
    everywhere = {TopicPartition("t", number): 2 for number in range(6)}
    for number, name in enumerate(names):
        async with GroupAdmin(world.brokers[number % 3].address) as admin:
            assert set((await admin.alter_positions(name, everywhere)).values()) == {None}
    for broker in world.brokers:
        async with GroupAdmin(broker.address) as admin:
            listed = await admin.list_groups()
            assert [(row.id, row.positions, row.lag_records) for row in listed] == [(name, 6, 18) for name in names]
            about = await admin.describe_group("group-3")
            assert [(row.offset, row.high_watermark, row.lag_records) for row in about.positions] == [(2, 5, 3)] * 6
            assert about.group.lag_records == 18
            assert await admin.alter_positions("group-0", {TopicPartition("t", 0): 2}) == {TopicPartition("t", 0): 2}
            for reason, offsets in (
                (Reason.OFFSET_OUT_OF_RANGE, {TopicPartition("t", 5): 6}),
                (Reason.UNKNOWN_TOPIC, {TopicPartition("t", 6): 0}),
                (Reason.UNKNOWN_TOPIC, {TopicPartition("none", 0): 0}),
            ):
                with raises(HeadgateError, reason):
                    await admin.alter_positions("group-0", offsets)
    for number, name in enumerate(names):
        async with GroupAdmin(world.brokers[number % 3].address) as admin:
            await admin.delete_group(name)
            with raises(HeadgateError, Reason.GROUP_ID_NOT_FOUND):
                await admin.describe_group(name)
            with raises(HeadgateError, Reason.GROUP_ID_NOT_FOUND):
                await admin.delete_group(name)
    async with GroupAdmin(world.brokers[0].address) as admin:
        assert await admin.list_groups() == []


async def test_who_does_not_lead_says_who_does(world: World) -> None:
    await create(world, "t", 6)
    for broker in world.brokers:
        elsewhere = next(number for number in range(6) if number not in broker.leads()["t"])
        lead = world.lead("t", elsewhere).address
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await broker.call("Log.Fetch", log_pb2.FetchRequest(topic="t", partition=elsewhere))
        metadata = caught.value.trailing_metadata()
        assert metadata is not None
        assert (caught.value.code(), metadata[REASON_KEY], metadata[LEADER_KEY]) == (
            grpc.StatusCode.UNAVAILABLE,
            "not_leader",
            lead,
        )
        query = log_pb2.ListOffsetsRequest.Query(partition=elsewhere, position=log_pb2.Position(latest=True))
        (row,) = (await broker.call("Log.ListOffsets", log_pb2.ListOffsetsRequest(topic="t", queries=[query]))).results
        assert (row.error.reason, row.error.retriable, row.error.leader) == ("not_leader", True, lead)


async def test_a_broker_that_is_asked_by_another_speaks_for_itself(world: World) -> None:
    await create(world, "t", 3)
    for broker in world.brokers:
        mark = {"headgate-forwarded": "1"}
        status = await broker.call("Admin.Status", admin_pb2.StatusRequest(), **mark)
        assert [one.id for one in status.brokers] == [broker.number]
        described = await broker.call("Admin.DescribeTopics", admin_pb2.DescribeTopicsRequest(names=["t"]), **mark)
        known = [part.partition for part in described.topics[0].partitions if part.high_watermark >= 0]
        assert known == broker.leads()["t"]
        assert not described.topics[0].config
        leads_only = admin_pb2.DescribeTopicsRequest(names=["t"], leads_only=True)
        (row,) = (await broker.call("Admin.DescribeTopics", leads_only)).topics
        assert [part.leader for part in row.partitions] == [world.lead("t", number).number for number in range(3)]
        assert row.config


async def test_a_broker_that_does_not_answer_is_shown_and_not_waited_for(world: World) -> None:
    await create(world, "t", 6)
    silent: Broker = world.brokers[2]
    await silent.server.close(0)  # its stream to the leader stays, its port is closed
    status = await world.brokers[0].call("Admin.Status", admin_pb2.StatusRequest())
    assert [(one.id, bool(one.trouble)) for one in status.brokers] == [(1, False), (2, False), (3, True)]
    described = await world.brokers[0].call("Admin.DescribeTopics", admin_pb2.DescribeTopicsRequest(names=["t"]))
    unknown = {part.partition for part in described.topics[0].partitions if part.high_watermark < 0}
    assert unknown == set(silent.leads()["t"])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.brokers[0].call("Groups.ListGroups", groups_pb2.ListGroupsRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "part of a list is no list"
