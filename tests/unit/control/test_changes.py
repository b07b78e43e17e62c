"""Three whole brokers in one process, while leads change: drained by hand, ended, killed, cut off and back, resharded.

Compared: the leads in each broker's own view; leader epochs and their ends with the written records; the leader's `Describe`. A
mismatch means that a partition has no leader or two, or that clients get wrong answers about the past.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from headgate.broker.client.control import ClusterView, Control
from headgate.broker.cluster import term
from headgate.broker.cluster.edits.topics import CreateTopic, DeleteTopic
from headgate.broker.cluster.manifest_format import encode_edits, encode_snapshot
from headgate.broker.cluster.objects import Topic
from headgate.broker.control import leader
from headgate.broker.control.load import LoadMeter, broker_load
from headgate.broker.control.member import Membership
from headgate.broker.engine.base import keys
from headgate.broker.engine.partition.traffic import Traffic
from headgate.broker.runtime.errors import FencedError, InvalidError, Reason
from headgate.broker.runtime.steps import finish
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.grpc.errors import REASON_KEY
from headgate.broker.server.kafka.context import Context
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from headgate.broker.wire.kafka.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_one_cluster import create, fill
from tests.unit.control.world import METHODS, WAIT_S, Broker, World


async def describe(world: World) -> ClusterView:
    async with Control(world.bootstrap) as control:
        return await control.describe()


def led(world: World, topic: str) -> dict[int, list[int]]:
    return {broker.number: broker.leads().get(topic, []) for broker in world.brokers if broker.running}


def all_led_once(world: World, topic: str, partitions: int) -> bool:
    numbers = sorted(number for part in led(world, topic).values() for number in part)
    return numbers == list(range(partitions))


# -- drain


@pytest.mark.parametrize("victim", [1, 3])
async def test_a_broker_is_drained_by_hand(world: World, victim: int) -> None:
    """Broker 1 leads the cluster, broker 3 does not. The drained broker stays empty under every leader, until it is restarted."""
    await create(world, "t", 6)
    broker = world.brokers[victim - 1]
    had = set(broker.leads()["t"])
    async with Control(world.brokers[1].address) as control:
        opened = await control.drain(victim)
        assert had <= {number for one in opened if one.topic == "t" for number in range(one.first_partition, one.end_partition)}
        assert victim not in {one.broker_id for one in opened}
        await until_async(lambda: not broker.leads() and all_led_once(world, "t", 6))
        view = await control.describe()
        assert [one.broker_id for one in view.members if one.draining] == [victim]
        assert any(one.kind == "drain" and f"broker {victim}" in one.why and not one.error for one in view.decisions)
        assert await control.drain(victim) == (), "once more is no error"
        await create(world, "u", 3)
        assert not broker.leads()
    if world.leader is not broker:
        # The next leader learns of the drain from the broker itself.
        await world.leader.stop()
        leaders = lambda: [one.participant.leader for one in world.brokers[1:] if one.participant.leader is not None]  # noqa: E731
        await until_async(
            lambda: any(sorted(load.draining for load in leader.term.loads()) == [False, True] for leader in leaders())
        )
        await create(world, "v", 3)
        assert not broker.leads()
        assert all_led_once(world, "t", 6)


async def test_brokers_that_go_together_inherit_nothing_from_each_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "DRAIN_TOGETHER_S", 1.0)
    # Only the brokers' own reports make the leader plan.
    monkeypatch.setattr(term, "LEADER_REPORT_S", WAIT_S)
    await create(world, "t", 6)
    await asyncio.gather(world.brokers[1].stop(), world.brokers[2].stop())
    await until_async(lambda: len(world.brokers[0].leads().get("t", ())) == 6)
    drains = [one.why for one in (await describe(world)).decisions if one.kind == "drain"]
    assert drains and all(one.endswith("to broker 1") for one in drains), drains


async def test_who_has_sealed_itself_is_given_nothing(world: World) -> None:
    """A sealed broker may still be connected for a moment, and would take partitions that have no leader then."""
    term = world.leader.term
    incarnations = term.manifest.incarnations
    for one in [load.incarnation_id for load in term.term.loads()]:
        before = incarnations[one]
        incarnations[one] = replace(before, sealed=True)
        assert one not in {load.incarnation_id for load in term.term.loads()}
        incarnations[one] = before
    assert len(term.term.loads()) == len(world.brokers)


async def test_what_cannot_be_drained(make_world: MakeWorld) -> None:
    world = await make_world(1)
    async with Control(world.bootstrap) as control:
        for broker_id in (1, 7):
            with raises(InvalidError, Reason.INVALID_REQUEST):
                await control.drain(broker_id)


async def test_a_topic_is_deleted_while_it_is_handed_over(world: World) -> None:
    """The order's other segments are handed over nevertheless, and no partition keeps refusing writes."""
    await create(world, "t", 6)
    await create(world, "gone", 6)
    victim = world.brokers[2]
    order = asyncio.create_task(victim.engine.resign([one.id for one in victim.engine.leads.segments()]))
    await world.brokers[0].engine.delete_topic(world.brokers[0].engine.topic("gone"))
    await order
    await until_async(lambda: all_led_once(world, "t", 6))
    for number in range(6):
        await fill(world, "t", number, 1)


# -- leaving and coming back


async def test_a_member_that_was_away_gets_what_it_missed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader dies. Each broker that joins the next leader continues from its own copy, and then gets the commits of the
    meantime."""
    snapshots: list[bool] = []
    join = Membership.join

    async def counted(self: Membership) -> None:
        before = self._catalog.manifest
        await join(self)
        snapshots.append(self._catalog.manifest is not before)

    monkeypatch.setattr(Membership, "join", counted)
    await create(world, "t", 3)
    await world.leader.crash()
    first, second = world.brokers[1:]
    await until_async(lambda: {first.participant.role, second.participant.role} == {"leading", "following"})
    await until_async(lambda: all_led_once(world, "t", 3) and len(first.engine.brokers()) == len(second.engine.brokers()) == 2)
    assert snapshots and not any(snapshots)
    # Commits that are under way reach both brokers.
    await until_async(lambda: encode_snapshot(first.engine.manifest) == encode_snapshot(second.engine.manifest))
    # A broker that was never a member gets all of it.
    await world.brokers[0].start()
    assert snapshots[-1]
    await until_async(lambda: encode_snapshot(world.brokers[0].engine.manifest) == encode_snapshot(world.leader.engine.manifest))


async def test_a_failover_is_told(world: World) -> None:
    await create(world, "t", 6)
    victim = world.brokers[2]
    await victim.crash()
    await until_async(lambda: all_led_once(world, "t", 6))
    decision = (await describe(world)).decisions[0]
    assert (decision.kind, decision.error, decision.under_way) == ("failover", "", False)
    evidence = "its stream ended and its address refuses connections"
    assert decision.why.startswith(f"broker 3 was lost: {evidence}; its 1 segment went to broker ")
    await victim.start()
    await until_async(lambda: len(world.leader.engine.brokers()) == 3)


async def test_who_is_refused(world: World) -> None:
    leader = world.leader
    mine = world.brokers[1].engine.incarnation_id
    good = control_pb2.Hello(
        incarnation_id="ab" * 16,
        member=control_pb2.BrokerMember(broker_id=9, host="127.0.0.1", grpc_port=1),
        cluster_id=leader.engine.cluster_id,
    )

    def wrong(**changes: object) -> control_pb2.JoinRequest:
        hello = control_pb2.Hello.FromString(good.SerializeToString())
        for name, value in changes.items():
            if name == "broker_id":
                hello.member.broker_id = value  # type: ignore[assignment]
            else:
                setattr(hello, name, value)
        return control_pb2.JoinRequest(hello=hello)

    channel = grpc.aio.insecure_channel(leader.address)
    refused: list[tuple[Any, grpc.StatusCode, str]] = [
        (b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        (control_pb2.JoinRequest(report=control_pb2.LoadReport()), grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        (wrong(incarnation_id="ab"), grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        (wrong(incarnation_id="z" * 32), grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        (wrong(cluster_id="another"), grpc.StatusCode.INVALID_ARGUMENT, "invalid_config"),
        (wrong(broker_id=2), grpc.StatusCode.INVALID_ARGUMENT, "invalid_config"),
        (wrong(version=3), grpc.StatusCode.UNAVAILABLE, "fenced"),
    ]
    for request, code, reason in refused:
        call: Any = channel.stream_stream(METHODS["Control.Join"].path)()
        await call.write(request if isinstance(request, bytes) else request.SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        metadata = caught.value.trailing_metadata()
        assert metadata is not None
        assert (caught.value.code(), metadata[REASON_KEY]) == (code, reason)
    await channel.close()
    for edits, reason in [
        (b"{}", "invalid_request"),
        (encode_edits([DeleteTopic(Topic(id=uuid.uuid4(), name="x", partitions=1).id)]), "unknown_topic_id"),
    ]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await leader.call("Control.Commit", control_pb2.CommitRequest(incarnation_id=mine, number=1, edits=edits))
        metadata = caught.value.trailing_metadata()
        assert metadata is not None and metadata[REASON_KEY] == reason
    topic = Topic(id=uuid.uuid4(), name="x", partitions=1)
    request = control_pb2.CommitRequest(incarnation_id=mine, number=1, edits=encode_edits([CreateTopic(topic)]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.brokers[1].call("Control.Commit", request)
    metadata = caught.value.trailing_metadata()
    assert metadata is not None and metadata[REASON_KEY] == "not_leader", "only the leader writes"
    assert not leader.failures, "whatever others send, the leader goes on"


# -- loads


async def test_a_new_leader_is_told_rates_and_not_the_past(make_world: MakeWorld) -> None:
    """The bytes that a broker wrote before it joined do not count as traffic at the moment of joining."""
    world = await make_world(1)
    await create(world, "t", 1)
    await fill(world, "t", 0, 1000)
    engine, mine = world.brokers[0].engine, world.brokers[0].participant._mine
    meter = LoadMeter(engine)
    assert finish(broker_load(mine, meter.report(1, 0))).segments == ()
    await fill(world, "t", 0, 10)
    await asyncio.sleep(0.12)
    first = finish(broker_load(mine, meter.report(1, 0)))
    (segment,) = first.segments
    assert 0 < segment.bytes_in_per_s < 100 * 10 / 0.1
    meter.draining = True
    again = finish(broker_load(mine, meter.report(2, 5)))
    assert (again.segments, again.draining, again.connections) == (first.segments, True, 5), "asked at once it tells the same"


async def test_a_report_looks_only_at_partitions_with_traffic(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader reports twice a second, in one turn of its loop, and may lead a hundred thousand partitions."""
    world = await make_world(1)
    await create(world, "t", 40)
    for number in range(0, 40, 2):
        await fill(world, "t", number, 10)
    engine = world.brokers[0].engine
    meter = LoadMeter(engine)
    await fill(world, "t", 7, 10)
    await asyncio.sleep(0.12)
    looked: list[Traffic] = []
    counts = Traffic.counts
    monkeypatch.setattr(Traffic, "counts", lambda one: looked.append(one) or counts(one))
    (segment,) = meter.report(1, 0).segments
    assert list(segment.partitions) == [7] and segment.bytes_in[0] > 0
    assert looked == [engine.partition(engine.topic("t"), 7).traffic]


# -- epochs


class Epochs:
    """Records a partition's history while it is written: the epoch of each offset."""

    def __init__(self, world: World, topic: str) -> None:
        self.world, self.topic = world, topic
        self.written: list[tuple[int, int, int]] = []
        """(epoch, first offset, end)."""

    async def write(self, count: int) -> None:
        broker = self.world.lead(self.topic, 0)
        log = broker.engine.partition(broker.engine.topic(self.topic), 0)
        self.written.append((log.leader_epoch, log.next_offset, log.next_offset + count))
        await fill(self.world, self.topic, 0, count)

    def expected(self, current: int) -> Iterator[tuple[int, int, int]]:
        """(requested epoch, epoch, end offset) as Kafka answers (KIP-101, KIP-279)."""
        end = self.written[-1][2]
        for asked in range(current + 1):
            below = [epoch for epoch, _, _ in self.written if epoch <= asked]
            above = [first for epoch, first, _ in self.written if epoch > asked]
            if asked == current:
                yield asked, current, end
            else:
                # Before the first record no reader can have diverged: the requested epoch ends at the offset where the first one
                # begins.
                yield asked, (below[-1] if below else asked), (above[0] if above else end)

    async def check(self) -> None:
        broker = self.world.lead(self.topic, 0)
        log = broker.engine.partition(broker.engine.topic(self.topic), 0)
        assert log.high_watermark == self.written[-1][2]
        for asked, epoch, end in self.expected(log.leader_epoch):
            answer = await ask_epoch(broker, self.topic, asked, log.leader_epoch)
            assert answer == (0, epoch, end), f"asked=`{asked}` current=`{log.leader_epoch}` written=`{self.written}`"
        assert (await ask_epoch(broker, self.topic, log.leader_epoch + 1, -1))[1:] == (-1, -1), "nobody wrote that yet"
        assert (await ask_epoch(broker, self.topic, 0, log.leader_epoch - 1))[0] == 74, "FENCED_LEADER_EPOCH"
        assert (await ask_epoch(broker, self.topic, 0, log.leader_epoch + 1))[0] == 75, "UNKNOWN_LEADER_EPOCH"
        for other in self.world.brokers:
            if other.running and other is not broker:
                assert (await ask_epoch(other, self.topic, 0, -1))[0] == 6, "NOT_LEADER_OR_FOLLOWER"


async def ask_epoch(broker: Broker, topic: str, epoch: int, current: int) -> tuple[int, int, int]:
    from headgate.broker.server.kafka.api import offset_for_leader_epoch
    from headgate.broker.wire.kafka.messages.offset_for_leader_epoch import OffsetForLeaderPartition, OffsetForLeaderTopic

    request = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic=topic, partitions=[OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)]
            )
        ]
    )
    context = Context(
        engine=broker.engine,
        groups=broker.groups,
        transaction_calls=broker.node.transaction_calls,
        settings=broker.settings,
        client_id=None,
        client_host="127.0.0.1",
        api_version=4,
        turn=Turns(broker.engine.clock.monotonic).begin(),
        host="127.0.0.1",
        port=1,
    )
    (one,) = (await offset_for_leader_epoch.handle(request, context)).topics[0].partitions
    return one.error_code, one.leader_epoch, one.end_offset


async def test_epochs_stay_true_through_every_change(world: World) -> None:
    await create(world, "t", 2)
    epochs = Epochs(world, "t")

    async def settled() -> None:
        await until_async(lambda: all_led_once(world, "t", 2))

    async def segment() -> int:
        return next(one.id for one in (await describe(world)).segments if one.topic == "t" and one.first_partition == 0)

    await epochs.write(3)
    await epochs.check()
    async with Control(world.bootstrap) as control:
        where = world.lead("t", 0).number
        for target in (where % 3 + 1, (where + 1) % 3 + 1):
            await control.move(await segment(), target)
            await settled()
            await epochs.check()  # an epoch without records
            await epochs.write(2)
            await epochs.check()
        await control.move(await segment(), where)  # back to its first place: one broker's chunks have two epochs of this partition
        await settled()
        await epochs.write(1)
        segments = sorted(
            (one for one in (await describe(world)).segments if one.topic == "t"), key=lambda one: one.first_partition
        )
        if len(segments) == 2:
            await control.merge(segments[0].id, segments[1].id)
            await settled()
            await epochs.write(2)
        await control.split(await segment(), 1)
        await settled()
        await epochs.write(2)
        await epochs.check()
    victim = world.lead("t", 0)
    await victim.crash()
    await settled()
    await epochs.check()
    await epochs.write(4)
    await victim.start()
    await until_async(lambda: len(world.leader.engine.brokers()) == 3)
    await epochs.check()
    assert len({epoch for epoch, _, _ in epochs.written}) >= 6


async def test_who_was_replaced_before_it_had_joined_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader admitted the broker, the broker was silent, was fenced and forgotten, and missed all of it. The leader must not
    open its incarnation id again."""
    leader = world.leader
    hello = control_pb2.Hello(
        incarnation_id="ab" * 16,
        member=control_pb2.BrokerMember(broker_id=9, host="127.0.0.1", grpc_port=1),
        cluster_id=leader.engine.cluster_id,
    )
    await leader.store.put(keys.fence(hello.incarnation_id), b"HGfence1")
    channel = grpc.aio.insecure_channel(leader.address)
    call: Any = channel.stream_stream(METHODS["Control.Join"].path)()
    await call.write(control_pb2.JoinRequest(hello=hello).SerializeToString())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    await channel.close()
    metadata = caught.value.trailing_metadata()
    assert metadata is not None and metadata[REASON_KEY] == "fenced"
    assert len(leader.engine.brokers()) == 3
    # The broker does not lead alone either.
    alone = Broker(MemoryObjects(), 1, {})
    monkeypatch.setattr("headgate.broker.node.os.urandom", lambda size: b"\xab" * size)
    await MemoryStore(alone.objects).put(keys.fence("ab" * 16), b"HGfence1")
    with pytest.raises(FencedError):
        await alone.start()
    await alone.participant.close()
