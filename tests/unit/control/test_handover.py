"""The answers to a Kafka producer while its partitions change their leader.

Runs: two brokers, and a Kafka port on the leading one, which stops in the middle of handing a segment over until the test lets
it continue. Compared: the answers to requests that come meanwhile. A mismatch means that a client must retry without need, does
not learn the new leader, or that a record overtakes an older one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from headgate.broker.testing.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headgate.broker.testing.messages.request_header import RequestHeader

from headgate.broker.client.control import Control, Segment
from headgate.broker.runtime import turns
from headgate.broker.runtime.clock import Clock
from headgate.broker.server.kafka import pending_requests
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.listener import KafkaServer
from headgate.broker.server.kafka.transport import Connection
from headgate.broker.server.net.ports import address, listen
from tests.support.batches import batch
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_one_cluster import create
from tests.unit.control.world import HOST, WAIT_S, Broker, World

VERSION = 12
PARTITIONS = 4


class Client:
    """A connection to a broker's Kafka port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: Connection) -> None:
        self.door = door
        self._reader = reader
        self._writer = writer
        self._sent = 0

    def send(self, partition: int) -> None:
        data = PartitionProduceData(index=partition, records=batch([b"x"], timestamp_ms=Clock().now_ms()))
        body = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])
        head = RequestHeader(request_api_key=0, request_api_version=VERSION, correlation_id=self._sent)
        frame = head.encode(2) + body.encode(VERSION)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)
        self._sent += 1

    async def answer(self) -> tuple[int, PartitionProduceResponse]:
        """(the request's number, the answer for its partition)."""
        async with asyncio.timeout(WAIT_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            frame = await self._reader.readexactly(size)
        message, _ = ProduceResponse.decode(frame, 5, VERSION)
        return int.from_bytes(frame[:4], "big"), message.responses[0].partition_responses[0]

    @property
    def parked(self) -> int:
        return len(self.door.session.parked)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_requests, "PARK_S", WAIT_S)


@asynccontextmanager
async def kafka_door(broker: Broker) -> AsyncIterator[Client]:
    server = KafkaServer(broker.settings, Clock(), (HOST, 1))
    listener = listen(HOST, 0, "kafka_port")
    await server.start(listener)
    server.serve(broker.engine, broker.groups, broker.node.transaction_calls)
    reader, writer = await asyncio.open_connection(*address(listener))
    await until_async(lambda: server.connections)
    try:
        yield Client(reader, writer, next(iter(server.connections)))
    finally:
        writer.close()
        await server.close()


@asynccontextmanager
async def handing_over(broker: Broker, change: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """Begin to move a segment that the broker leads. The move stops in the phase that refuses records, until the event is
    set."""
    go_on, refuses, seal = asyncio.Event(), asyncio.Event(), broker.engine.running.handover._seal

    async def wait_and_seal(*arguments: Any) -> None:
        refuses.set()
        await go_on.wait()
        await seal(*arguments)

    monkeypatch.setattr(broker.engine.running.handover, "_seal", wait_and_seal)
    changing = asyncio.create_task(change)
    try:
        await refuses.wait()
        yield go_on
    finally:
        go_on.set()
        await changing


async def one_segment(make_world: MakeWorld) -> tuple[World, Broker, Segment]:
    """Two brokers, and the leader of the first segment of the topic `t`, which covers the topic."""
    world = await make_world(2)
    await create(world, "t", PARTITIONS)
    async with Control(world.bootstrap) as control:
        segments = [one for one in (await control.describe()).segments if one.topic == "t"]
        while len(segments) > 1:
            first, second = sorted(segments, key=lambda one: one.first_partition)[:2]
            await control.merge(first.id, second.id)
            segments = [one for one in (await control.describe()).segments if one.topic == "t"]
    broker = world.lead("t", 0)
    await until_async(lambda: broker.leads().get("t") == list(range(PARTITIONS)))
    return world, broker, segments[0]


@pytest.mark.parametrize("slice_s", [turns.SLICE_S, -1.0], ids=["as-usual", "a-pause-after-each-step"])
async def test_who_stays_is_answered_when_it_is_done_and_who_goes_is_told_where(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, slice_s: float
) -> None:
    """The lead may change between an attempt to append and the wait for a change, because an attempt may pause."""
    monkeypatch.setattr(turns, "SLICE_S", slice_s)
    world, broker, segment = await one_segment(make_world)
    other = next(one for one in world.brokers if one is not broker)
    async with kafka_door(broker) as client, Control(world.bootstrap) as control:
        client.send(0)
        number, first = await client.answer()
        assert (number, first.error_code, first.base_offset) == (0, 0, 0)
        change = control.split(segment.id, 2, other.number)
        async with handing_over(broker, change, monkeypatch) as go_on:
            for partition in (0, 3, 0):
                client.send(partition)
            await until_async(lambda: client.parked == 3)
            go_on.set()
            answers = [await client.answer() for _ in range(3)]
        assert [number for number, _ in answers] == [1, 2, 3]
        stays, goes, stays_too = (one for _, one in answers)
        assert [(one.error_code, one.base_offset) for one in (stays, stays_too)] == [(0, 1), (0, 2)]
        assert (goes.error_code, goes.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, other.number)
        client.send(1)
        assert (await client.answer())[1].error_code == 0, "afterwards all is as before"
        assert client.parked == 0


async def test_a_change_that_takes_too_long_is_not_waited_for(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_requests, "PARK_S", 0.01)
    world, broker, segment = await one_segment(make_world)
    async with kafka_door(broker) as client, Control(world.bootstrap) as control:
        async with handing_over(broker, control.split(segment.id, 2, broker.number), monkeypatch):
            client.send(0)
            client.send(1)
            for number in range(2):
                assert (await client.answer())[1].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, number
        await until_async(lambda: broker.leads().get("t") == list(range(PARTITIONS)))
        client.send(0)
        assert (await client.answer())[1].error_code == 0


async def test_a_client_that_goes_takes_what_is_parked_along(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world, broker, segment = await one_segment(make_world)
    async with Control(world.bootstrap) as control:
        async with handing_over(broker, control.split(segment.id, 2, broker.number), monkeypatch):
            async with kafka_door(broker) as client:
                client.send(0)
                await until_async(lambda: client.parked)
            assert client.parked == 0
        await until_async(lambda: broker.leads().get("t") == list(range(PARTITIONS)))
        assert [log.next_offset for log in broker.engine.all_logs() if log.topic.name == "t"] == [0] * PARTITIONS
