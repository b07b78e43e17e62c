"""The Python client on three whole brokers in one process: dead or hanging addresses, leads that move, answers that are lost.

Compared: the client's answers with the cluster's records and topics. A mismatch means an error that retries should have hidden,
a change made twice, or records lost, repeated or out of order.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from headgate.broker.cli import orders
from headgate.broker.cli.commands.consume import consume
from headgate.broker.client import Admin, Consumer, GroupAdmin, Producer, TopicPartition, prefetcher
from headgate.broker.client import cluster as cluster_module
from headgate.broker.client import control as control_module
from headgate.broker.client import sender as sender_module
from headgate.broker.client.cluster import Link, TopicView, newer
from headgate.broker.client.control import Control, Decision
from headgate.broker.control.drain import drain_broker
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.server.grpc.publish import Publisher
from headgate.broker.server.grpc.subscribe import Subscriber
from headgate.broker.server.kafka.api_names import API_NAMES
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from headgate.broker.wire.grpc.methods import Method
from tests.support.ports import free_port
from tests.support.waiting import until_async
from tests.unit.control.test_one_cluster import create
from tests.unit.control.world import World

HOST = "127.0.0.1"


def view(*leads: tuple[int, int], topic_id: int = 1) -> TopicView:
    return TopicView(
        id=uuid.UUID(int=topic_id),
        name="t",
        leaders=tuple(leader for leader, _ in leads),
        epochs=tuple(epoch for _, epoch in leads),
        batch_bytes_max=1,
        seen_at_s=0.0,
    )


@pytest.mark.parametrize(
    ("known", "told", "expected"),
    [
        (None, view((1, 4)), view((1, 4))),
        (view((1, 4), (2, 5)), view((1, 4), (3, 6)), view((1, 4), (3, 6))),
        (view((1, 7), (2, 5)), view((2, 4), (3, 6)), view((1, 7), (3, 6))),
        (view((1, 4)), view((-1, -1)), view((-1, -1))),
        (view((1, 4)), view((1, 4), (2, 5)), view((1, 4), (2, 5))),
        (view((1, 9)), view((2, 5), topic_id=2), view((2, 5), topic_id=2)),
    ],
    ids=["first", "newer", "partly older", "nobody leads", "more partitions", "made again"],
)
def test_a_lead_that_was_replaced_stays_replaced(known: TopicView | None, told: TopicView, expected: TopicView) -> None:
    assert newer(known, told) == expected


@pytest.fixture
def hung() -> Iterator[str]:
    """An address at which the system accepts connections and no process ever answers."""
    with socket.create_server((HOST, free_port()), backlog=100) as server:
        yield f"{HOST}:{server.getsockname()[1]}"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the client's timeouts for brokers that hang."""
    monkeypatch.setattr(cluster_module, "ATTEMPT_S", 0.3)
    monkeypatch.setattr(cluster_module, "CHANGE_ATTEMPT_S", 5.0)
    monkeypatch.setattr(sender_module, "SILENCE_S", 0.5)
    monkeypatch.setattr(prefetcher, "SILENCE_S", 0.5)
    monkeypatch.setattr(prefetcher, "WATCH_S", 0.1)


@pytest.mark.usefixtures("quick")
async def test_addresses_that_do_not_answer(world: World, hung: str) -> None:
    dead = f"{HOST}:{free_port()}"
    for name, first, second in (("t", dead, hung), ("u", hung, dead)):
        given = f"{first},{second},{world.brokers[1].address}"
        async with Admin(given) as admin, GroupAdmin(given) as groups:
            await admin.create_topic(name, 3)
            assert [part.number for part in (await admin.describe_topic(name)).partitions] == [0, 1, 2]
            await groups.alter_positions("g", {TopicPartition(name, 0): 0})
        async with Producer(given) as producer:
            for number in range(6):
                await producer.send_and_wait(name, b"x", partition=number % 3)
        async with Consumer(given) as consumer:
            await consumer.assign_topic(name)
            assert len([await anext(consumer) for _ in range(6)]) == 6
    async with Admin(dead, timeout_ms=300) as admin:
        with pytest.raises(RetryError):
            await admin.list_topics()


async def produce_all_the_time(producer: Producer, topic: str, partitions: int, stop: asyncio.Event) -> int:
    """Write numbered values, in turn. Returns their number."""
    number = 0
    while not stop.is_set():
        for _ in range(8):
            await producer.send(topic, b"%d" % number, partition=number % partitions)
            number += 1
        await asyncio.sleep(0.005)
    await producer.flush()
    return number


async def read_all(consumer: Consumer, count: int) -> list[Any]:
    """Read this many records, and check that no more come."""
    found: list[Any] = []
    async with asyncio.timeout(90):
        while len(found) < count:
            found += await consumer.poll(timeout_ms=1000)
    return found + await consumer.poll(timeout_ms=50)


@pytest.mark.usefixtures("quick")
async def test_records_through_every_change_of_lead(world: World) -> None:
    """The client has one address only. A drain, a crash of that very broker, its return, and a split: each record once, in
    order."""
    await create(world, "t", 6)
    given = world.brokers[1].address
    stop = asyncio.Event()
    async with Producer(given, linger_ms=1) as producer, Consumer(given) as consumer:
        await consumer.assign_topic("t")
        writing = asyncio.create_task(produce_all_the_time(producer, "t", 6, stop))
        end = dict.fromkeys(range(6), 0)

        async def flows() -> None:
            """Wait until every partition grows at its current leader."""
            before = dict(end)

            def grown() -> bool:
                assert not writing.done(), writing.result()
                for broker in world.brokers:
                    for log in broker.engine.logs.get("t", ()) if broker.running else ():
                        if log is not None:
                            end[log.number] = max(end[log.number], log.high_watermark)
                return all(end[number] > before[number] for number in end)

            await until_async(grown)

        await flows()
        await drain_broker(world.leader.participant.leader, 3)  # type: ignore[arg-type]
        await flows()
        await world.brokers[1].crash()
        await flows()
        await world.brokers[1].start()
        await world.brokers[0].stop()
        await flows()
        await world.brokers[0].start()
        await flows()
        stop.set()
        count = await writing
        found = await read_all(consumer, count)
    assert len(found) == count
    by_partition: dict[int, list[int]] = {}
    for record in found:
        by_partition.setdefault(record.partition, []).append(int(record.value))
    for number, values in by_partition.items():
        assert values == list(range(number, count, 6))


@pytest.mark.usefixtures("quick")
async def test_a_lead_that_hangs_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's streams stay open and silent: the client learns from other brokers that the leads moved, and goes there."""
    await create(world, "t", 3)
    victim = world.lead("t", 0)
    others = [broker for broker in world.brokers if broker is not victim]
    async with Producer(",".join(one.address for one in others)) as producer, Consumer(others[0].address) as consumer:
        await consumer.assign({TopicPartition("t", 0): "earliest"})
        await producer.send_and_wait("t", b"1", partition=0)
        assert (await anext(consumer)).value == b"1"
        # The broker's port accepts and answers nothing any more; its segment moves, as that of a stopped broker would.
        stuck = asyncio.Event()
        receive, turn = Publisher._receive, Subscriber._turn

        def received(self: Publisher, data: bytes) -> None:
            if self._engine is not victim.engine:
                receive(self, data)

        async def turned(self: Subscriber, subscription: Any) -> None:
            if self._engine is victim.engine:
                await stuck.wait()
            await turn(self, subscription)

        monkeypatch.setattr(Publisher, "_receive", received)
        monkeypatch.setattr(Subscriber, "_turn", turned)
        waiting = await producer.send("t", b"2", partition=0)
        (segment,) = [one for one in victim.engine.leads.segments() if 0 in one.partitions]
        async with Control(world.bootstrap) as control:
            await control.move(segment.id, others[0].number)
        async with asyncio.timeout(15):
            assert (await waiting).offset == 1
            assert (await anext(consumer)).value == b"2"
        stuck.set()


async def test_changes_whose_answers_are_lost_are_made_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker executed the request and died before it answered."""
    lost: list[str] = []
    call = Link.call

    async def lossy(self: Link, method: Method, request: Any, timeout_s: float) -> Any:
        answer = await call(self, method, request, timeout_s)
        name = API_NAMES[int.from_bytes(request.request[:2], "big")] if method.name == "Ask" else method.name
        if name in lost:
            lost.remove(name)
            raise RetryError(Reason.CLOSED, "the connection broke")
        return answer

    monkeypatch.setattr(Link, "call", lossy)
    async with Admin(world.bootstrap) as admin, GroupAdmin(world.bootstrap) as groups:
        lost += ["CreateTopics", "CreatePartitions", "DeleteTopics", "DeleteRecords", "IncrementalAlterConfigs"]
        lost += ["OffsetCommit", "DeleteGroups", "FindCoordinator"]
        made = await admin.create_topic("t", 2)
        assert (made.name, made.partitions) == ("t", 2)
        await admin.create_partitions("t", 4)
        assert (await admin.describe_topic("t")).topic == dataclasses.replace(made, partitions=4)
        assert await admin.delete_records("t", {0: None}) == {0: 0}
        await admin.alter_topic_config("t", {"retention.ms": "5"})
        await groups.alter_positions("g", {TopicPartition("t", 0): 0})
        await groups.delete_group("g")
        await admin.delete_topic("t")
        assert await admin.list_topics() == [one for one in await admin.list_topics() if one.name.startswith("__")]
        assert not lost
        # Without a lost answer, an existing topic is an error.
        await admin.create_topic("t", 2)
        for work, reason in [
            (admin.create_topic("t", 2), Reason.TOPIC_EXISTS),
            (admin.create_partitions("t", 2), Reason.INVALID_PARTITIONS),
            (admin.delete_topic("none"), Reason.UNKNOWN_TOPIC),
            (groups.delete_group("none"), Reason.GROUP_ID_NOT_FOUND),
        ]:
            with pytest.raises(HeadgateError) as caught:
                await work
            assert isinstance(caught.value, InvalidError) and caught.value.reason is reason


async def test_a_broker_that_hangs_does_not_hide_the_leader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.broker.client.cluster.ATTEMPT_S", 0.5)
    hanging = grpc.aio.server()
    never = asyncio.Event()

    async def hang(request: bytes, context: object) -> bytes:
        await never.wait()
        return b""

    handlers = {"Describe": grpc.unary_unary_rpc_method_handler(hang)}
    hanging.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("headgate.v1.Control", handlers),))
    port = hanging.add_insecure_port("127.0.0.1:0")
    await hanging.start()
    try:
        async with Control(f"127.0.0.1:{port},{world.bootstrap}") as control:
            assert (await control.describe()).leader_broker_id == world.leader.number
            with pytest.raises(InvalidError, match="the client belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, control.describe())
    finally:
        never.set()
        await hanging.stop(None)


async def test_the_leader_is_found_through_a_broker_that_is_not(world: World) -> None:
    """Also for an order, which is sent only once; beside an address where no broker listens."""
    await create(world, "t", 2)
    follower, dead = next(broker for broker in world.brokers if broker is not world.leader), f"{HOST}:{free_port()}"
    for given in (follower.address, f"{follower.address},{dead}", f"{dead},{follower.address}"):
        async with Control(given) as control:
            assert (await control.describe()).leader_broker_id == world.leader.number
        async with Control(given) as control:
            (segment, *_) = [found for found in (await control.describe()).segments if found.topic == "t"]
        async with Control(given) as control:
            (moved,) = await control.move(segment.id)
            assert moved.broker_id != segment.broker_id


async def test_an_order_is_waited_for_as_long_as_it_is_under_way(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store of the lead does not answer, so its segment is not handed over."""
    monkeypatch.setattr(control_module, "ORDER_LOOK_S", 0.05)
    for number in range(6):
        await create(world, f"t{number}", 1)
    member = next(one for one in world.brokers if one is not world.leader and len(one.engine.leads.segments()) >= 2)
    segment, other = member.engine.leads.segments()[:2]
    topic = member.engine.manifest.topics_by_id[segment.topic_id].name
    waits_s: list[float] = []

    def tell(waited_s: float, order: Decision) -> None:
        waits_s.append(waited_s)
        orders.tell("segment move", waited_s, order)

    timeout_ms = 300
    async with Control(world.bootstrap, timeout_ms=timeout_ms, on_wait=tell) as control:
        answers = member.store.held["put"] = threading.Event()
        moving = asyncio.create_task(control.move(segment.id, world.leader.number))
        await until_async(lambda: moving.done() or max(waits_s, default=0) > 2 * timeout_ms / 1000)
        said = capsys.readouterr().err.splitlines()[-1]
        assert re.fullmatch(rf"segment move: under way for \d+ s: move of {topic}, .* of the store .* up to \d+ s more", said)
        answers.set()
        (moved,) = await moving
        assert moved.broker_id == world.leader.number
        # No order is waited for without an end.
        monkeypatch.setattr(control_module, "ORDER_S", 0.5)
        answers = member.store.held["put"] = threading.Event()
        with pytest.raises(RetryError, match=r"still under way, and goes on.* order=`move` waited_s=`\d`"):
            await control.move(other.id, world.leader.number)
        answers.set()
        await until_async(lambda: other.id not in member.engine.manifest.segments.open)


async def test_an_order_of_which_the_leader_knows_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker takes the order and hangs, or another one leads meanwhile."""
    monkeypatch.setattr(control_module, "ORDER_LOOK_S", 0.05)

    async def hang(request: bytes, context: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def describe(request: bytes, context: object) -> bytes:
        other = control_pb2.Decision(kind="move", under_way=True, age_ms=3_600_000)
        return control_pb2.DescribeResponse(decisions=[other]).SerializeToString()

    handlers = {"Reshard": grpc.unary_unary_rpc_method_handler(hang), "Describe": grpc.unary_unary_rpc_method_handler(describe)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("headgate.v1.Control", handlers),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    try:
        async with Control(f"{HOST}:{port}") as control:
            with pytest.raises(RetryError, match=r"does not know of the order any more: .*order=`move`"):
                await control.move(1)
    finally:
        await server.stop(None)


@pytest.mark.parametrize("start", [{"from_beginning": True}, {"offset": "-1"}])
async def test_consume_to_the_end_waits_for_a_lead_that_does_not_answer(
    world: World, start: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of its partitions is not known before another broker leads them."""
    await create(world, "t", 6)
    async with Producer(world.bootstrap) as producer:
        for number in range(6):
            await producer.send_and_wait("t", b"%d" % number, partition=number)
    victim = world.lead("t", 0)
    other = next(broker for broker in world.brokers if broker is not victim)
    await victim.crash()
    await consume(["t"], other.address, exit_at_end=True, **start)
    assert sorted(capsys.readouterr().out.split()) == ["0", "1", "2", "3", "4", "5"]
