"""A broker that is far from the leader, or from the store: every byte takes a while on its way.

Compared: the members, the brokers that the leader replaced, and the versions of the journal that moves of segments need. A
mismatch means that a far broker never joins, and that the others carry its load, or that it is replaced again and again; or that
writers wait for the hand-overs of other segments.
"""

from __future__ import annotations

import threading

import grpc
import pytest

from headgate.broker.cluster.edits.segments import OpenSegment, SealSegment
from headgate.broker.cluster.manifest_format import decode_edits
from headgate.broker.cluster.order_book import Decision
from headgate.broker.control.stream import connect
from tests.support.network import Doors
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_one_cluster import create
from tests.unit.control.world import HOST, Broker

DELAY_S = 1.2
"""Of each way. A new connection takes two round trips: longer than a second, in which gRPC gave up before."""


async def test_a_broker_joins_a_leader_that_is_far_away(make_world: MakeWorld) -> None:
    values = {"cluster_member_timeout_ms": 2000}
    world = await make_world(1, **values)
    leader, doors = world.brokers[0], Doors()
    doors.delays_s["leader"] = DELAY_S
    door = await doors.door("leader", leader.port, "far")

    def far(address: str) -> grpc.aio.Channel:
        return connect(f"{HOST}:{door}" if address == leader.address else address)

    broker = Broker(world.objects, 2, values)
    broker.connect = far  # type: ignore[method-assign]
    world.brokers.append(broker)
    try:
        await broker.start()
        term = leader.term
        await until_async(lambda: term.term.detector.round_trip_s(broker.engine.incarnation_id) >= 2 * DELAY_S)
        # The first report took a round trip, which is longer than the time-out for silence.
        await until_async(
            lambda: broker.participant.membership is not None and broker.participant.membership.round_trip_s >= 2 * DELAY_S
        )
        assert not sum(leader.participant.replaced.values())
        assert not broker.failures
    finally:
        await broker.close()
        doors.close()


async def test_segments_that_move_at_a_time_wait_for_two_commits(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store does not answer the first hand-over. All segments that are to move meanwhile take records until it has answered,
    and then go together."""
    world = await make_world(2)
    leader, member = world.brokers
    for number in range(24):
        await create(world, f"t{number}", 1)
    term = leader.term
    moving = [one for one in term.journal.manifest.segments.open.values() if one.incarnation_id == member.engine.incarnation_id]
    assert len(moving) >= 8
    resign, asked = member.engine.resign, 0

    async def counted(segment_ids: list[int]) -> None:
        nonlocal asked
        asked += 1
        await resign(segment_ids)

    monkeypatch.setattr(member.engine, "resign", counted)
    answers = member.store.held["put"] = threading.Event()
    before = term.journal.version
    opened, loads = term.journal.manifest.segments.open, term.term.loads()
    logs = [log for log in member.engine.all_logs() if log.segment_id in {one.id for one in moving}]
    assert len(logs) == len(moving)
    decisions: list[Decision] = []
    for one in moving:
        order = term.term.planner.order_move(opened, loads, one.id, leader.number)
        decisions.append(term.orders.begin(order))
        await until_async(lambda: asked == len(decisions) and any(log.refusal for log in logs))
    assert sum(log.refusal is not None for log in logs) == 1, "only the writers of the first segment wait"
    answers.set()
    for decision in decisions:
        await term.orders.wait(decision)
    commits = term.journal.since(before)
    assert commits is not None
    edits = [decode_edits(data) for _, data in commits]
    seals = [sum(isinstance(edit, SealSegment) for edit in one) for one in edits]
    assert [count for count in seals if count] == [1, len(moving) - 1]
    assert all(sum(isinstance(edit, OpenSegment) for edit in one) == count for one, count in zip(edits, seals, strict=True))
