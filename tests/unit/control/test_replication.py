"""`ack=replicated` on whole brokers in one process, over a medium that takes whole objects only, as S3 does.

Puts of one broker are held back, so that its acked records are in the memory of two brokers and nowhere else. Then that broker
dies, or is replaced while it lives, or its follower dies. Compared: the acked records with those of the next leader. A mismatch
means that a record was lost that two brokers held, that it came twice, or that a broker acked after others took over from it.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from headgate.broker.cluster.objects import Follower
from headgate.broker.control import replication
from headgate.broker.control.stream import connect
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.write import replicas
from headgate.broker.engine.write.replicas import Copy, Replicas
from headgate.broker.log.batch import split
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.world import Broker, World

EVERYTHING = 1 << 30
PRODUCER = 7


def log_of(broker: Broker) -> PartitionLog:
    return broker.engine.partition(broker.engine.topic("t"), 0)


def send(broker: Broker, number: int) -> asyncio.Future[int]:
    """Append record `number` of one idempotent producer. The future has its offset once it is acked."""
    acked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    data = encode_batch([Record(0, 1, None, b"%d" % number)], producer_id=PRODUCER, producer_epoch=0, base_sequence=number)
    offset = broker.engine.append(log_of(broker), memoryview(bytearray(data))).base_offset

    def done(error: HeadgateError | None) -> None:
        if error is None:
            acked.set_result(offset)
        else:
            acked.set_exception(error)
            acked.exception()

    broker.engine.on_acked(done)
    return acked


async def values(broker: Broker) -> list[bytes]:
    log = log_of(broker)
    found: list[bytes] = []
    offset = log.log_start
    while offset < log.high_watermark:
        for one in await broker.engine.read(log, offset, EVERYTHING):
            for batch in split(one):
                for record in iter_records(batch):
                    found.append(record.value or b"")
                    offset += 1
    return found


def lead_of(world: World) -> Broker:
    return world.lead("t", 0)


async def new_lead(world: World, old: Broker) -> Broker:
    await until_async(
        lambda: any(broker is not old and broker.running and 0 in broker.leads().get("t", ()) for broker in world.brokers)
    )
    return next(broker for broker in world.brokers if broker is not old and broker.running and 0 in broker.leads().get("t", ()))


async def replicating(make_world: MakeWorld, count: int = 3, **settings: Any) -> tuple[World, Broker, Broker]:
    """A world with topic t, its leader (which does not lead the cluster), and that leader's follower. Record 0 is durable."""
    world = await make_world(count, append=False, wal_flush_interval_ms=1, **settings)
    await world.brokers[-1].engine.create_topic("t", 1, {"ack": "replicated"})
    await until_async(lambda: any("t" in broker.leads() for broker in world.brokers))
    lead = lead_of(world)
    if lead is world.leader:
        (segment,) = lead.engine.leads.segments()
        assert lead.participant.leader is not None
        orders, term = lead.participant.leader.orders, lead.participant.leader.term
        order = term.planner.order_move(lead.participant.leader.manifest.segments.open, term.loads(), segment.id, None)
        await orders.wait(orders.begin(order))
        lead = await new_lead(world, lead)
    assert await send(lead, 0) == 0
    await until_async(lambda: lead.engine.replicator.counts)
    follower = lead.engine.manifest.followers[lead.engine.incarnation_id]
    return world, lead, next(one for one in world.brokers if one.engine.incarnation_id == follower.incarnation_id)


def hold_puts(broker: Broker) -> None:
    """From now on none of its puts reaches the store."""
    broker.store.held["put_if_absent"] = threading.Event()


def let_puts_go(broker: Broker) -> None:
    """The held puts continue."""
    broker.store.held.pop("put_if_absent").set()


async def test_what_two_brokers_hold_outlives_one(make_world: MakeWorld) -> None:
    world, lead, follower = await replicating(make_world)
    hold_puts(lead)
    assert [await send(lead, number) for number in range(1, 20)] == list(range(1, 20))
    assert log_of(lead).high_watermark == 1 and await values(lead) == [b"0"], "readers see what is durable"
    assert follower.engine.replicas.bytes > 0
    await lead.crash()
    heir = await new_lead(world, lead)
    assert await values(heir) == [b"%d" % number for number in range(20)]
    again = [await send(heir, number) for number in range(15, 22)]
    assert again == list(range(15, 22)), "retries have their first offset, also of what only the follower had"
    await until_async(lambda: follower.engine.replicas.bytes == 0)


async def test_a_lead_without_its_follower_waits_for_the_store(make_world: MakeWorld) -> None:
    world, lead, follower = await replicating(make_world)
    hold_puts(lead)
    assert await send(lead, 1) == 1
    await follower.crash()
    await until_async(lambda: not lead.engine.replicator.counts)
    waiting = send(lead, 2)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    let_puts_go(lead)
    assert await waiting == 2
    await until_async(lambda: lead.engine.replicator.counts)
    (third,) = [broker for broker in world.brokers if broker.running and broker is not lead]
    assert lead.engine.manifest.followers[lead.engine.incarnation_id].incarnation_id == third.engine.incarnation_id
    hold_puts(lead)
    assert await send(lead, 3) == 3
    await lead.crash()
    assert await values(await new_lead(world, lead)) == [b"0", b"1", b"2", b"3"]


async def test_a_follower_that_the_manifest_could_not_name_is_looked_for_again(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster's leader was away for longer than a commit waits for it: the follower is there, but its copies do not count
    yet."""
    monkeypatch.setattr(replication, "AVOID_S", 0.0)
    monkeypatch.setattr(replication, "LOOK_S", 0.01)
    _, lead, follower = await replicating(make_world)
    name, tries = lead.engine.set_follower, iter((RetryError(Reason.NOT_READY, "no broker leads the cluster"),))

    async def refused_once(one: Follower) -> None:
        for error in tries:
            raise error
        await name(one)

    monkeypatch.setattr(lead.engine, "set_follower", refused_once)
    stream = lead.engine.replicator.stream
    lead.engine.replicator.end()
    await until_async(lambda: lead.engine.replicator.stream > stream + 1)
    await until_async(lambda: lead.engine.replicator.counts)
    hold_puts(lead)
    assert await send(lead, 1) == 1
    assert follower.engine.replicas.bytes > 0


async def test_who_was_replaced_cannot_ack(make_world: MakeWorld) -> None:
    """The leader lives and reaches its follower, but the follower accepts no more copies."""
    _, lead, follower = await replicating(make_world)
    hold_puts(lead)
    assert await send(lead, 1) == 1
    stream = lead.engine.manifest.followers[lead.engine.incarnation_id].stream
    copies = follower.engine.replicas.surrender(lead.engine.incarnation_id, stream)
    assert [next(iter_records(copy.batch)).value for copy in copies] == [b"1"]
    late = send(lead, 2)
    await until_async(lambda: not lead.engine.replicator.counts)
    assert not late.done()
    assert follower.engine.replicas.surrender(lead.engine.incarnation_id, stream) == copies, "who asks again hears the same"


async def test_a_topic_becomes_one_with_copies(make_world: MakeWorld) -> None:
    """Batches on their way to the store when the topic changes have no copy: later batches must not be acked before them."""
    _, lead, _ = await replicating(make_world)
    topic = lead.engine.topic("t")
    await lead.engine.alter_topic_config(topic, {"ack": "durable"})
    hold_puts(lead)
    plain = send(lead, 1)
    await asyncio.sleep(0.05)
    assert not plain.done(), "a follower's word is not enough for it"
    let_puts_go(lead)
    assert await plain == 1
    before = lead.engine.replicator.stream
    await lead.engine.alter_topic_config(topic, {"ack": "replicated"})
    await until_async(lambda: lead.engine.replicator.stream > before and lead.engine.replicator.counts)
    hold_puts(lead)
    assert await send(lead, 2) == 2


async def test_mixed_topics_wait_for_the_store(make_world: MakeWorld) -> None:
    """One callback for batches of two topics: the slower topic decides."""
    world, lead, _ = await replicating(make_world, 2)
    for name in ("plain1", "plain2", "plain3", "plain4"):
        await lead.engine.create_topic(name, 1, {})
    await until_async(lambda: any(name.startswith("plain") for name in lead.leads()))
    name = next(name for name in lead.leads() if name.startswith("plain"))
    hold_puts(lead)
    data = encode_batch([Record(0, 1, None, b"x")])
    lead.engine.append(lead.engine.partition(lead.engine.topic(name), 0), memoryview(bytearray(data)))
    both = send(lead, 1)
    alone = send(lead, 2)
    assert await alone == 2
    assert not both.done()
    await lead.crash()
    assert await values(await new_lead(world, lead)) == [b"0", b"1", b"2"]


async def test_lead_and_follower_are_lost(make_world: MakeWorld) -> None:
    """Two failures at once: durable records are there, and the cluster continues."""
    world, lead, follower = await replicating(make_world, 4)
    hold_puts(lead)
    assert await send(lead, 1) == 1
    await asyncio.gather(lead.crash(), follower.crash())
    heir = await new_lead(world, lead)
    assert (await values(heir))[:1] == [b"0"]
    assert await send(heir, 1) in (1, 2)


async def test_a_follower_that_may_be_alive_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not answer holds the follower's address."""

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while await reader.read(1000):
                pass
        writer.close()

    monkeypatch.setattr(replication, "ASK_S", 0.05)
    monkeypatch.setattr(replication, "PATIENCE_S", 0.3)
    engine = world.brokers[0].engine
    lead = world.brokers[1].engine.manifest.incarnations[world.brokers[1].engine.incarnation_id]
    server = await asyncio.start_server(never, "127.0.0.1", 0)
    follower = Follower(incarnation_id="f" * 32, host="127.0.0.1", grpc_port=server.sockets[0].getsockname()[1], stream=1)
    surrenders = replication.Surrenders(engine, connect)
    waited = 0
    while True:
        try:
            assert await surrenders.ask(lead, follower) == []
            break
        except RetryError as error:
            assert "does not answer" in error.message
            waited += 1
    assert waited > 0
    server.close()
    await server.wait_closed()
    monkeypatch.setattr(replication, "ASK_S", 60.0)  # this one answers as soon as it can
    another = Follower(incarnation_id="e" * 32, host="127.0.0.1", grpc_port=world.brokers[2].port, stream=1)
    assert await surrenders.ask(lead, another) == [], "another run of the process: at once"


# -- the follower's half


def copies(*numbers: int) -> list[Copy]:
    data = encode_batch([Record(0, 1, None, bytes(1000))])
    return [Copy(number, b"p" * 20, data, 0) for number in numbers]


def test_a_follower_forgets_what_is_durable() -> None:
    held = Replicas()
    held.open("a", 1)
    held.take("a", 1, copies(1, 3, 4), 0)
    held.take("a", 1, copies(7), 3)
    assert [copy.number for copy in held.surrender("a", 1)] == [4, 7] and held.bytes == 2 * len(copies(1)[0].batch)
    with pytest.raises(FencedError):
        held.take("a", 1, [], 9)
    with pytest.raises(FencedError):
        held.open("a", 2)
    held.forget("a")
    assert held.bytes == 0 and held.leads == []


def test_a_stream_that_nobody_opened_is_surrendered_all_the_same() -> None:
    held = Replicas()
    assert held.surrender("a", 1) == []
    with pytest.raises(FencedError):
        held.open("a", 1)


def test_only_the_newest_stream_counts() -> None:
    held = Replicas()
    held.open("a", 2)
    held.take("a", 2, copies(1), 0)
    with pytest.raises(FencedError):
        held.open("a", 2)
    held.open("a", 3)
    with pytest.raises(FencedError):
        held.take("a", 2, copies(2), 0)
    held.take("a", 3, copies(5), 0)
    assert held.surrender("a", 2) == [], "all of an older stream is durable"


def test_a_follower_takes_whole_batches_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Replicas()
    held.open("a", 1)
    (good,) = copies(1)
    for bad in (b"", good.batch[:-1], good.batch + b"x", good.batch[:-1] + b"\xff"):
        with pytest.raises(InvalidError):
            held.take("a", 1, [good._replace(batch=bad)], 0)
    monkeypatch.setattr(replicas, "STREAM_BYTES_MAX", 1500)
    held.take("a", 1, copies(1, 2), 0)
    with pytest.raises(RetryError):
        held.take("a", 1, copies(3), 0)
