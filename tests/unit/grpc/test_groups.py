"""The Groups service, over real gRPC: groups, members, positions and lag, and every wrong request with its status."""

from __future__ import annotations

import grpc
import pytest
import pytest_asyncio

from headgate.broker.client import GroupAdmin, TopicPartition
from headgate.broker.client.group_admin import DESCRIBED_MAX
from headgate.broker.groups.consumer_events import ConsumerHeartbeat
from headgate.broker.groups.events import Join, Leave, Leaving, Sync
from headgate.broker.groups.positions import Position
from headgate.broker.groups.shard import Commit
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.metrics import Metrics
from headgate.broker.wire.grpc.headgate.v1 import groups_pb2 as pb
from headgate.broker.wire.kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from headgate.broker.wire.kafka.messages.consumer_protocol_assignment import TopicPartition as Assigned
from tests.support.errors import raises
from tests.unit.grpc.conftest import Served, Start, batch, status_of

LAG = "headgate_group_lag_records"


async def commit(served: Served, group: str, *rows: tuple[str, int, int]) -> None:
    positions = tuple(
        Position(topic=topic, partition=partition, offset=offset, metadata="note", topic_id=served.engine.topic(topic).id)
        for topic, partition, offset in rows
    )
    event = Commit(token=served.groups.token(), positions=positions)
    assert (await served.groups.commit(group, event)).errors == (None,) * len(rows)


async def member(served: Served, group: str, *assigned: Assigned, raw: bytes | None = None, instance: str | None = None) -> str:
    """A group with one member that owns these partitions. Returns its id."""
    join = Join(
        token=served.groups.token(),
        instance_id=instance,
        fresh_member_id=served.groups.fresh_member_id("client"),
        protocol_type="consumer",
        protocols=(("range", b""),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        client_id="client",
        client_host="/192.0.2.1",
        require_member_id=False,
    )
    reply = await served.groups.join(group, join)
    assignment = b"\x00\x01" + ConsumerProtocolAssignment(assigned_partitions=list(assigned)).encode(0) if raw is None else raw
    event = Sync(
        token=served.groups.token(),
        member_id=reply.member_id,
        instance_id=instance,
        generation=reply.generation,
        assignments=((reply.member_id, assignment),),
    )
    assert (await served.groups.sync(group, event)).error is None
    return reply.member_id


@pytest_asyncio.fixture(loop_scope="session")
async def broker(start: Start) -> Served:
    """Topic `t` with 3 records in partition 0 and none in partition 1."""
    served: Served = await start(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=3)
    await served.create("t")
    await served.fill("t", 0, batch(b"a", b"b", b"c"))
    return served


async def describe(served: Served, *ids: str) -> list[pb.GroupDescription]:
    return list((await served.call("Groups.DescribeGroups", pb.DescribeGroupsRequest(ids=ids))).groups)


async def test_a_group_of_kip_848_is_described_as_a_classic_one_is(broker: Served) -> None:
    await commit(broker, "new", ("t", 0, 1))
    heartbeat = ConsumerHeartbeat(
        token=broker.groups.token(),
        member_id="",
        fresh_member_id="m",
        client_id="client",
        client_host="/192.0.2.1",
        epoch=0,
        rebalance_timeout_ms=10_000,
        topics=frozenset({"t"}),
        owned=frozenset(),
    )
    assert (await broker.groups.consumer_heartbeat("new", heartbeat)).error is None
    (found,) = await describe(broker, "new")
    assert not found.HasField("error")
    assert (found.group.state, found.group.protocol_type, found.group.members) == ("Stable", "consumer", 1)
    assert (found.protocol, found.generation) == ("uniform", 1)
    assert [(one.client_id, one.client_host, one.partitions) for one in found.members] == [("client", "192.0.2.1", 2)]
    assert [(row.topic, row.partition, row.lag_records, row.member_id) for row in found.positions] == [
        ("t", 0, 2, found.members[0].id),
        ("t", 1, 0, found.members[0].id),
    ]
    async with GroupAdmin(broker.address) as admin:
        with pytest.raises(InvalidError, match="has members"):
            await admin.alter_positions("new", {TopicPartition("t", 0): 0}, validate_only=True)


async def test_groups_are_listed_with_their_lag(broker: Served) -> None:
    assert list((await broker.call("Groups.ListGroups", pb.ListGroupsRequest())).groups) == []
    await commit(broker, "simple", ("t", 0, 1), ("t", 1, 0))
    await member(broker, "full", Assigned(topic="t", partitions=[0]))
    listed = (await broker.call("Groups.ListGroups", pb.ListGroupsRequest())).groups
    assert [(row.id, row.state, row.protocol_type, row.members, row.positions, row.lag_records) for row in listed] == [
        ("full", "Stable", "consumer", 1, 0, 0),
        ("simple", "Empty", "", 0, 2, 2),
    ]


async def test_lag_is_a_metric(broker: Served) -> None:
    metrics = Metrics()
    broker.server.register(metrics)
    await commit(broker, "g", ("t", 0, 1), ("t", 1, 0))
    await commit(broker, "ahead", ("t", 0, 9))

    async def shown() -> dict[str, float]:
        await metrics.prepare()
        lines = [line.rsplit(" ", 1) for line in metrics.render().decode().splitlines()]
        return {name.removeprefix(LAG): float(value) for name, value in lines if name.startswith(LAG)}

    first, second = (f'{{group="g",partition="{number}",topic="t"}}' for number in range(2))
    ahead = '{group="ahead",partition="0",topic="t"}'
    assert await shown() == {first: 2, second: 0, ahead: 0}
    await broker.fill("t", 1, batch(b"d"))
    await broker.engine.delete_records(broker.engine.partition(broker.engine.topic("t"), 0), 2)
    assert await shown() == {first: 1, second: 1, ahead: 0}
    await broker.engine.delete_topic(broker.engine.topic("t"))
    assert await shown() == {}


async def test_a_group_is_described(broker: Served) -> None:
    owner = await member(broker, "g", Assigned(topic="t", partitions=[0, 1]), Assigned(topic="gone", partitions=[0]), instance="i")
    event = Commit(
        token=broker.groups.token(),
        member_id=owner,
        instance_id="i",
        generation=1,
        positions=(
            Position(topic="t", partition=0, offset=2, leader_epoch=0, metadata="note", topic_id=broker.engine.topic("t").id),
        ),
    )
    assert (await broker.groups.commit("g", event)).errors == (None,)
    (one,) = await describe(broker, "g")
    assert (one.protocol, one.generation, one.group.lag_records) == ("range", 1, 1)
    (shown,) = one.members
    assert (shown.id, shown.instance_id, shown.client_id, shown.client_host, shown.partitions) == (
        owner,
        "i",
        "client",
        "192.0.2.1",
        3,
    )
    first, second = one.positions
    assert (first.topic, first.partition, first.offset, first.leader_epoch, first.metadata) == ("t", 0, 2, 0, "note")
    assert (first.log_start, first.high_watermark, first.lag_records, first.member_id) == (0, 3, 1, owner)
    assert first.committed_ms > 0
    assert second.partition == 1 and not second.HasField("offset") and not second.HasField("lag_records")
    assert second.member_id == owner


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x00\x01\x7f\xff\xff\xff", b"\x00\x01\x00\x00\x00\x01\x00\x05xx"])
async def test_a_garbled_assignment_owns_nothing(broker: Served, raw: bytes) -> None:
    await member(broker, "g", raw=raw)
    (one,) = await describe(broker, "g")
    assert one.members[0].partitions == 0 and not one.positions


async def test_positions_are_altered(broker: Served) -> None:
    await commit(broker, "g", ("t", 0, 1))
    rows = {TopicPartition("t", 0): 3, TopicPartition("t", 1): 0}
    async with GroupAdmin(broker.address) as admin:
        for topic, partition, offset, reason in (
            ("t", 0, 4, Reason.OFFSET_OUT_OF_RANGE),
            ("t", 0, -1, Reason.OFFSET_OUT_OF_RANGE),
            ("t", 9, 0, Reason.UNKNOWN_TOPIC),
            ("none", 0, 0, Reason.UNKNOWN_TOPIC),
        ):
            with raises(InvalidError, reason):
                await admin.alter_positions("g", {**rows, TopicPartition(topic, partition): offset})
        for validate_only in (True, False):
            assert {partition: value.offset for _, partition, value in broker.groups.positions("g")} == {0: 1}
            before = await admin.alter_positions("g", rows, validate_only=validate_only)
            assert list(before.values()) == [1, None]
        assert {partition: value.offset for _, partition, value in broker.groups.positions("g")} == {0: 3, 1: 0}
        await admin.alter_positions("new", rows)
    assert len(broker.groups.positions("new")) == 2


async def test_more_positions_are_altered_than_one_request_holds(broker: Served) -> None:
    await broker.create("wide", 6000)
    await broker.create("wider", 6000)
    places = {TopicPartition(topic, number): 0 for topic in ("wide", "wider") for number in range(6000)}
    async with GroupAdmin(broker.address) as admin:
        assert await admin.alter_positions("g", places) == dict.fromkeys(places)
        assert await admin.alter_positions("g", places, validate_only=True) == places
        assert await admin.alter_positions("g", {}) == {}
    assert len(broker.groups.positions("g")) == len(places)


async def test_only_groups_without_members_are_changed(broker: Served) -> None:
    owner = await member(broker, "g")
    async with GroupAdmin(broker.address) as admin:
        for ask in (
            admin.alter_positions("g", {TopicPartition("t", 0): 1}),
            admin.alter_positions("g", {TopicPartition("t", 0): 1}, validate_only=True),
            admin.delete_group("g"),
        ):
            with raises(InvalidError, Reason.NON_EMPTY_GROUP, r"stop them first\. group=`g`"):
                await ask
        await broker.groups.leave("g", Leave(token=broker.groups.token(), members=(Leaving(member_id=owner),)))
        await admin.delete_group("g")
    assert not list(broker.groups.list_groups())


async def test_wrong_requests(broker: Served) -> None:
    for name, request, code, reason in (
        ("Groups.DescribeGroups", pb.DescribeGroupsRequest(ids=["g"] * 1001), grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        ("Groups.DescribeGroups", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await broker.call(name, request)
        assert status_of(caught.value)[:2] == (code, reason)
    known, unknown = await describe(broker, "g", "h")
    assert known.error.reason == unknown.error.reason == "group_id_not_found" and unknown.group.id == "h"


async def test_the_client_shows_the_same(broker: Served) -> None:
    owner = await member(broker, "g", Assigned(topic="t", partitions=[0]))
    async with GroupAdmin(broker.address) as admin:
        await commit(broker, "other", ("t", 0, 1))
        assert [(row.id, row.state, row.lag_records) for row in await admin.list_groups()] == [
            ("g", "Stable", 0),
            ("other", "Empty", 2),
        ]
        one = await admin.describe_group("g")
        assert [row.id for row in one.members] == [owner] and one.protocol == "range"
        assert [(row.offset, row.lag_records, row.member_id) for row in one.positions] == [(None, None, owner)]
        many = [*[f"none-{number}" for number in range(DESCRIBED_MAX)], "other", "g"]
        assert [described.group.id for described in await admin.describe_groups(many)] == ["other", "g"]
        assert (await admin.describe_groups(["g", "none"]))[0] == one and await admin.describe_groups([]) == []
        place = TopicPartition("t", 0)
        assert await admin.partitions("t") == [place, TopicPartition("t", 1)]
        assert await admin.alter_positions("other", {place: 3}, validate_only=True) == {place: 1}
        assert await admin.alter_positions("other", {place: 3}) == {place: 1}
        assert (await admin.describe_group("other")).positions[0].offset == 3
        for ask, reason in (
            (admin.alter_positions("other", {place: 9}), Reason.OFFSET_OUT_OF_RANGE),
            (admin.alter_positions("g", {place: 1}), Reason.NON_EMPTY_GROUP),
            (admin.describe_group("none"), Reason.GROUP_ID_NOT_FOUND),
            (admin.delete_group("g"), Reason.NON_EMPTY_GROUP),
            (admin.delete_group("none"), Reason.GROUP_ID_NOT_FOUND),
            (admin.alter_positions("", {place: 1}), Reason.INVALID_GROUP_ID),
        ):
            with raises(InvalidError, reason):
                await ask
        await admin.delete_group("other")
        assert [row.id for row in await admin.list_groups()] == ["g"]
