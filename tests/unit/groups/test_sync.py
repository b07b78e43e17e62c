"""Syncs, heartbeats, leaves and commits against one group's state machine, and its state after a crash of the broker.

Each scenario is one rule of Kafka's classic protocol (GroupMetadataManager of Kafka 4). A mismatch means that a client written
for Kafka would see another error, wait for ever, or own a partition that another member owns.
"""

from __future__ import annotations

import pytest

from headgate.broker.groups.events import Leave, LeaveReply, Leaving, State, Unload
from headgate.broker.runtime.errors import Reason
from tests.unit.groups.world import SESSION_MS, World


def test_everybody_gets_what_the_leader_assigned() -> None:
    world = World()
    leader, a, b = world.completing(3)
    waiting = world.sync(a)
    assert world.waits(waiting)
    token = world.sync(leader, {leader: b"L", a: b"A", "ghost": b"?"})
    assert [world.synced(t).assignment for t in (token, waiting, world.sync(b))] == [b"L", b"A", b""]
    assert world.synced(token).protocol_type == "consumer" and world.synced(token).protocol_name == "range"
    assert world.group.state is State.STABLE


def test_an_assignment_is_shown_only_once_it_is_durable() -> None:
    world = World(stores=False)
    leader, follower = world.completing(2)
    tokens = [world.sync(follower), world.sync(leader, {leader: b"L", follower: b"F"})]
    assert all(map(world.waits, tokens)) and world.group.state is State.COMPLETING
    stored = world.persisted[-1]
    assert (stored.generation, stored.leader, stored.protocol_type, stored.protocol) == (1, leader, "consumer", "range")
    assert [(m.member_id, m.assignment, m.subscription) for m in stored.members] == [
        (leader, b"L", b"topics"),
        (follower, b"F", b"topics"),
    ]
    world.store()
    assert [world.synced(token).assignment for token in tokens] == [b"F", b"L"]


def test_an_assignment_that_cannot_be_stored_is_nobodys() -> None:
    world = World(stores=False)
    leader, follower = world.completing(2)
    tokens = [world.sync(follower), world.sync(leader, {leader: b"L", follower: b"F"})]
    world.store(Reason.COORDINATOR_NOT_AVAILABLE)
    assert [world.synced(token).error for token in tokens] == [Reason.COORDINATOR_NOT_AVAILABLE] * 2
    assert world.group.state is State.PREPARING


def test_a_rebalance_overtakes_an_assignment_that_is_being_stored() -> None:
    world = World(stores=False)
    leader, follower = world.completing(2)
    tokens = [world.sync(follower), world.sync(leader, {leader: b"L"})]
    newcomer = world.join()
    assert [world.synced(token).error for token in tokens] == [Reason.REBALANCE_IN_PROGRESS] * 2
    world.store()
    assert world.group.state is State.PREPARING, "the late answer of the log is of the past"
    world.join(leader), world.join(follower)
    assert world.joined(newcomer).generation == 2
    assert world.group.state is State.COMPLETING


def test_a_follower_cannot_assign() -> None:
    world = World()
    leader, follower = world.completing(2)
    token = world.sync(follower, {leader: b"mine", follower: b"mine"})
    assert world.waits(token) and not world.persisted
    world.sync(leader, {follower: b"F"})
    assert world.synced(token).assignment == b"F"


def test_a_second_sync_takes_the_place_of_the_first() -> None:
    world = World(stores=False)
    leader, follower = world.completing(2)
    first, second = world.sync(follower), world.sync(follower)
    assert world.synced(first).error is Reason.REBALANCE_IN_PROGRESS and world.waits(second)
    first_try, second_try = world.sync(leader, {follower: b"1"}), world.sync(leader, {follower: b"2"})
    assert world.synced(first_try).error is Reason.REBALANCE_IN_PROGRESS
    assert len(world.persisted) == 1, "the log and the members must have the same assignment"
    world.store()
    assert world.synced(second).assignment == b"1" and world.synced(second_try).error is None


def test_a_sync_in_a_stable_group_repeats_the_assignment() -> None:
    world = World()
    _, follower = world.stable(2)
    assert world.synced(world.sync(follower)).assignment == follower.encode()


def test_syncs_are_checked() -> None:
    world = World()
    leader, follower = world.completing(2)
    assert world.synced(world.sync("ghost")).error is Reason.UNKNOWN_MEMBER_ID
    assert world.synced(world.sync(leader, instance_id="i")).error is Reason.UNKNOWN_MEMBER_ID
    assert world.synced(world.sync(leader, generation=0)).error is Reason.ILLEGAL_GENERATION
    assert world.synced(world.sync(leader, generation=2)).error is Reason.ILLEGAL_GENERATION
    assert world.synced(world.sync(leader, protocol_type="connect")).error is Reason.INCONSISTENT_GROUP_PROTOCOL
    assert world.synced(world.sync(leader, protocol_name="sticky")).error is Reason.INCONSISTENT_GROUP_PROTOCOL
    assert world.waits(world.sync(follower, protocol_type="consumer", protocol_name="range"))
    world.join()
    assert world.synced(world.sync(leader)).error is Reason.REBALANCE_IN_PROGRESS


def test_who_does_not_sync_is_dropped_after_the_rebalance_timeout() -> None:
    world = World()
    leader, follower = world.completing(2, rebalance_ms=5_000)
    token = world.sync(follower)
    world.advance(4_999)
    assert world.waits(token)
    world.advance(1)
    assert world.synced(token).error is Reason.REBALANCE_IN_PROGRESS
    assert set(world.group.members) == {follower}
    assert world.heartbeat(leader) is Reason.UNKNOWN_MEMBER_ID


def test_who_does_not_sync_in_a_stable_group_is_dropped_too() -> None:
    world = World()
    leader, follower = world.completing(2, rebalance_ms=5_000)
    world.sync(leader)
    for _ in range(10):
        world.advance(500)
        world.heartbeat(leader)
        world.heartbeat(follower)
    assert world.group.state is State.PREPARING and set(world.group.members) == {leader}


def test_a_leader_that_dies_before_it_assigns_is_replaced() -> None:
    world = World()
    leader, follower = world.completing(2)
    token = world.sync(follower)
    world.advance(SESSION_MS)
    assert world.synced(token).error is Reason.REBALANCE_IN_PROGRESS
    reply = world.joined(world.join(follower))
    assert (reply.leader, reply.generation, len(reply.members)) == (follower, 2, 1)
    assert world.heartbeat(leader) is Reason.UNKNOWN_MEMBER_ID


# -- heartbeats


def test_heartbeats_keep_a_member_and_silence_drops_it() -> None:
    world = World()
    leader, follower = world.stable(2)
    for _ in range(20):
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(leader) is None and world.heartbeat(follower) is None
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(leader) is None
    world.advance(1)
    assert world.heartbeat(follower) is Reason.UNKNOWN_MEMBER_ID
    assert world.heartbeat(leader) is Reason.REBALANCE_IN_PROGRESS


def test_a_heartbeat_that_comes_before_its_tick_is_in_time() -> None:
    world = World()
    leader, follower = world.stable(2)
    world.now_ms += SESSION_MS
    assert world.heartbeat(leader) is None
    assert set(world.group.members) == {leader}, "the other one is over"
    assert world.heartbeat(follower) is Reason.UNKNOWN_MEMBER_ID


def test_heartbeats_are_checked() -> None:
    world = World()
    assert world.heartbeat("ghost") is Reason.UNKNOWN_MEMBER_ID
    leader, follower = world.completing(2)
    assert world.heartbeat(leader) is None, "members may beat as soon as their join is answered"
    assert world.heartbeat(leader, generation=0) is Reason.ILLEGAL_GENERATION
    world.sync_all([leader, follower])
    assert world.heartbeat(leader) is None
    assert world.heartbeat(leader, instance_id="i") is Reason.UNKNOWN_MEMBER_ID
    world.join()
    assert world.heartbeat(leader) is Reason.REBALANCE_IN_PROGRESS


# -- leaves


def test_a_follower_leaves_and_the_rest_rebalances() -> None:
    world = World()
    leader, follower = world.stable(2)
    assert world.leave(follower) == [None]
    assert world.heartbeat(leader) is Reason.REBALANCE_IN_PROGRESS
    assert world.joined(world.join(leader)).generation == 2


def test_the_leader_leaves_and_the_oldest_member_leads() -> None:
    world = World()
    leader, a, b = world.stable(3)
    world.leave(leader)
    token = world.join(b)
    assert world.joined(world.join(a)).leader == a and world.joined(token).members == ()


def test_all_leave_at_once_and_the_group_is_empty() -> None:
    world = World()
    members = world.stable(3)
    assert world.leave(*members, "ghost", members[0]) == [None] * 3 + [Reason.UNKNOWN_MEMBER_ID] * 2
    assert (world.group.state, world.group.generation) == (State.EMPTY, 2)
    assert world.group.next_deadline_ms is None


def test_who_leaves_while_it_waits_is_answered() -> None:
    world = World()
    leader, follower = world.completing(2)
    token = world.sync(follower)
    world.leave(follower)
    assert world.synced(token).error is Reason.UNKNOWN_MEMBER_ID
    join = world.join(leader)
    newcomer = world.join()
    assert world.joined(join).generation == 2
    token = newcomer if world.waits(newcomer) else world.join(leader)
    world.leave(leader, *[m for m in world.group.members if m != leader])
    assert not world.waits(token)


def test_a_pending_id_leaves_without_a_rebalance() -> None:
    world = World()
    world.stable(1)
    pending = world.joined(world.join(handshake=True)).member_id
    assert world.leave(pending) == [None] and world.group.state is State.STABLE


def test_an_empty_leave_changes_nothing() -> None:
    world = World()
    world.stable(1)
    assert world.leave() == [] and world.leave(Leaving(member_id="")) == [Reason.UNKNOWN_MEMBER_ID]
    assert world.group.state is State.STABLE


# -- commits


def test_who_may_commit() -> None:
    world = World()

    def commit(member_id: str = "", generation: int = -1, instance_id: str | None = None) -> Reason | None:
        return world.group.check_commit(member_id, instance_id, generation, world.now_ms)

    assert commit() is None, "nobody is in the group: a simple consumer, or an administrator"
    assert commit("ghost", 0) is Reason.UNKNOWN_MEMBER_ID
    leader, follower = world.completing(2)
    assert commit(leader, 1) is Reason.REBALANCE_IN_PROGRESS
    assert commit() is Reason.UNKNOWN_MEMBER_ID
    world.sync_all([leader, follower])
    assert commit(leader, 1) is None
    assert commit(leader, 0) is Reason.ILLEGAL_GENERATION
    assert commit(leader, -1) is Reason.ILLEGAL_GENERATION
    assert commit("ghost", 1) is Reason.UNKNOWN_MEMBER_ID
    assert commit(leader, 1, "i") is Reason.UNKNOWN_MEMBER_ID
    world.join()
    assert commit(leader, 1) is None, "it may commit what it must give up"
    world.leave(*world.group.members)
    assert commit(leader, 1) is Reason.UNKNOWN_MEMBER_ID
    assert commit() is None
    assert world.group.delete() is None
    assert commit() is Reason.COORDINATOR_NOT_AVAILABLE


def test_a_commit_is_a_sign_of_life() -> None:
    world = World()
    leader, follower = world.stable(2)
    world.advance(SESSION_MS - 1)
    assert world.group.check_commit(follower, None, 1, world.now_ms) is None
    world.advance(1)
    assert set(world.group.members) == {follower} and leader not in world.group.members


# -- the end of a group, and its life after a crash


def test_only_an_empty_group_can_be_deleted() -> None:
    world = World()
    leader, follower = world.completing(2)
    assert world.group.delete() is Reason.NON_EMPTY_GROUP
    world.sync_all([leader, follower])
    assert world.group.delete() is Reason.NON_EMPTY_GROUP
    world.leave(leader)
    assert world.group.delete() is Reason.NON_EMPTY_GROUP
    world.leave(follower)
    assert world.group.delete() is None
    assert world.group.delete() is Reason.GROUP_ID_NOT_FOUND


def test_a_dead_group_answers_everything() -> None:
    world = World()
    assert world.group.delete() is None
    assert world.joined(world.join()).error is Reason.COORDINATOR_NOT_AVAILABLE
    assert world.synced(world.sync("m", generation=1)).error is Reason.COORDINATOR_NOT_AVAILABLE
    assert world.heartbeat("m") is Reason.COORDINATOR_NOT_AVAILABLE
    world.send(Leave(token=99, members=(Leaving(member_id="m"),)))
    assert world.answers[99] == LeaveReply(error=Reason.COORDINATOR_NOT_AVAILABLE)
    assert world.group.check_delete_offsets() is Reason.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("phase", ["join", "sync"])
def test_whoever_waits_is_told_when_the_coordinator_moves(phase: str) -> None:
    world = World(stores=False)
    members = world.completing(2)
    token = world.sync(members[1]) if phase == "sync" else world.join(members[0], protocols=(("range", b"x"),))
    assert world.waits(token)
    world.send(Unload())
    assert getattr(world.answers[token], "error", None) is Reason.NOT_COORDINATOR
    assert world.group.next_deadline_ms is None


def test_a_stable_group_lives_on_after_a_crash() -> None:
    world = World()
    members = world.stable(3)
    before = world.group.describe()
    world.now_ms = 5
    world.reload()
    assert world.group.describe() == before
    assert (world.group.generation, world.group.roster.leader) == (1, members[0])
    world.advance(SESSION_MS - 1)
    assert [world.heartbeat(member) for member in members] == [None] * 3
    world.advance(1)
    assert world.synced(world.sync(members[1])).assignment == members[1].encode()
    assert world.joined(world.join(members[1], protocols=(("range", b"topics"),))).generation == 1


def test_members_that_died_with_the_broker_are_dropped_after_a_session() -> None:
    world = World()
    world.stable(3)
    world.reload()
    world.advance(SESSION_MS)
    assert (world.group.state, world.group.generation) == (State.EMPTY, 2)


def test_an_empty_group_keeps_counting_after_a_crash() -> None:
    world = World()
    world.leave(*world.stable(2))
    world.reload()
    assert (world.group.state, world.group.generation, world.group.protocol_type) == (State.EMPTY, 2, "consumer")
    token = world.join()
    world.advance(500)
    assert world.joined(token).generation == 3


def test_a_leader_that_is_not_a_member_does_not_lead() -> None:
    world = World()
    members = world.stable(2)
    world.persisted[-1] = world.persisted[-1].__class__(
        protocol_type="consumer", generation=4, protocol="range", leader="ghost", state_ms=-1, members=world.persisted[-1].members
    )
    world.reload()
    assert world.group.roster.leader == members[0]


def test_descriptions_show_details_only_of_a_stable_group() -> None:
    world = World()
    assert (world.group.describe().state, world.group.describe().protocol_type) == (State.EMPTY, "")
    members = world.completing(2)
    shown = world.group.describe()
    assert (shown.state, shown.protocol_type, shown.protocol) == (State.COMPLETING, "consumer", "")
    assert {(m.subscription, m.assignment) for m in shown.members} == {(b"", b"")}
    world.sync_all(members)
    shown = world.group.describe()
    assert (shown.state, shown.protocol) == (State.STABLE, "range")
    assert [(m.member_id, m.client_id, m.client_host, m.subscription, m.assignment) for m in shown.members] == [
        (member, "client", "/127.0.0.1", b"topics", member.encode()) for member in members
    ]
