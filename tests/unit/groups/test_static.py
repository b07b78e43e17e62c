"""Static members (KIP-345, KIP-814) against one group's state machine: replacement without a rebalance, and fencing.

A mismatch means that a rolling restart of consumers with `group.instance.id` rebalances, or that two processes with one instance id
both believe that they own a partition.
"""

from __future__ import annotations

from headgate.broker.groups.events import Leaving, State
from headgate.broker.runtime.errors import Reason
from tests.unit.groups.world import World


def _stable(world: World, size: int = 2) -> list[str]:
    """A stable group of static members i0, i1...; the first leads."""
    tokens = [world.join(instance_id=f"i{index}") for index in range(size)]
    world.advance(1_000)
    members = [world.joined(token).member_id for token in tokens]
    world.sync_all(members)
    return members


def test_static_members_join_without_the_handshake() -> None:
    world = World()
    token = world.join(instance_id="i0", handshake=True)
    assert world.waits(token)
    world.advance(500)
    assert [(m.member_id, m.instance_id) for m in world.joined(token).members] == [("m1", "i0")]


def test_a_follower_returns_without_a_rebalance_and_keeps_its_assignment() -> None:
    world = World()
    leader, old = _stable(world)
    reply = world.joined(world.join(instance_id="i1"))
    assert reply.error is None and reply.member_id not in (old, "") and reply.generation == 1
    assert (reply.leader, reply.skip_assignment, reply.members) == (leader, False, ())
    assert world.group.state is State.STABLE
    assert world.synced(world.sync(reply.member_id, instance_id="i1")).assignment == old.encode()
    assert [m.member_id for m in world.persisted[-1].members] == [leader, reply.member_id]
    assert [m.assignment for m in world.persisted[-1].members] == [leader.encode(), old.encode()]


def test_the_leader_returns_without_a_rebalance_and_need_not_assign() -> None:
    world = World()
    old, follower = _stable(world)
    reply = world.joined(world.join(instance_id="i0"))
    assert (reply.leader, reply.skip_assignment) == (reply.member_id, True)
    assert {m.member_id for m in reply.members} == {reply.member_id, follower}
    assert world.synced(world.sync(reply.member_id, instance_id="i0")).assignment == old.encode()


def test_a_leader_of_an_old_version_is_not_told_that_it_leads() -> None:
    world = World()
    old, _ = _stable(world)
    reply = world.joined(world.join(instance_id="i0", skip=False))
    assert (reply.leader, reply.skip_assignment, reply.members) == (old, False, ())
    assert world.group.roster.leader == reply.member_id


def test_the_new_id_is_durable_before_it_is_told() -> None:
    world = World()
    _stable(world)
    world.stores = False
    token = world.join(instance_id="i1")
    assert world.waits(token)
    world.store()
    assert world.joined(token).error is None


def test_a_new_id_that_cannot_be_stored_is_not_told() -> None:
    world = World()
    _stable(world)
    world.stores = False
    token = world.join(instance_id="i1")
    world.store(Reason.COORDINATOR_NOT_AVAILABLE)
    assert (world.joined(token).error, world.joined(token).member_id) == (Reason.COORDINATOR_NOT_AVAILABLE, "")
    world.stores = True
    assert world.joined(world.join(instance_id="i1")).error is None


def test_a_rebalance_that_begins_meanwhile_takes_the_returning_member_along() -> None:
    world = World()
    leader, _ = _stable(world)
    world.stores = False
    token = world.join(instance_id="i1")
    rejoin = world.join(leader, instance_id="i0")
    assert world.joined(token).generation == world.joined(rejoin).generation == 2
    world.store()
    assert world.group.state is State.COMPLETING


def test_the_old_id_is_fenced_everywhere() -> None:
    world = World()
    _, old = _stable(world)
    new = world.joined(world.join(instance_id="i1")).member_id
    assert world.heartbeat(old, instance_id="i1") is Reason.FENCED_INSTANCE_ID
    assert world.synced(world.sync(old, instance_id="i1")).error is Reason.FENCED_INSTANCE_ID
    assert world.joined(world.join(old, instance_id="i1")).error is Reason.FENCED_INSTANCE_ID
    assert world.group.check_commit(old, "i1", 1, world.now_ms) is Reason.FENCED_INSTANCE_ID
    assert world.leave(Leaving(member_id=old, instance_id="i1")) == [Reason.FENCED_INSTANCE_ID]
    assert world.heartbeat(old) is Reason.UNKNOWN_MEMBER_ID, "it did not say who it is"
    assert world.heartbeat(new, instance_id="i1") is None


def test_a_waiting_old_self_is_fenced_at_once() -> None:
    world = World()
    first = world.join(instance_id="i0")
    second = world.join(instance_id="i0")
    assert (world.joined(first).error, world.joined(first).member_id) == (Reason.FENCED_INSTANCE_ID, "m1")
    world.advance(1_000)
    assert (world.joined(second).error, world.joined(second).member_id, world.joined(second).leader) == (None, "m2", "m2")


def test_a_waiting_sync_of_the_old_self_is_fenced_and_the_group_rebalances() -> None:
    world = World()
    tokens = [world.join(instance_id="i0"), world.join(instance_id="i1")]
    world.advance(1_000)
    follower = world.joined(tokens[1]).member_id
    waiting = world.sync(follower, instance_id="i1")
    token = world.join(instance_id="i1")
    assert world.synced(waiting).error is Reason.FENCED_INSTANCE_ID
    assert world.waits(token) and world.group.state is State.PREPARING


def test_a_returning_member_that_changes_the_vote_rebalances() -> None:
    world = World()
    both = (("range", b""), ("sticky", b""))
    tokens = [world.join(instance_id="i0", protocols=both), world.join(instance_id="i1", protocols=both)]
    world.advance(1_000)
    world.sync_all([world.joined(token).member_id for token in tokens])
    assert world.group.protocol == "range"
    token = world.join(instance_id="i1", protocols=(("sticky", b""),))
    assert world.waits(token) and world.group.state is State.PREPARING


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    world = World()
    tokens = [world.join(instance_id=f"i{index}", session_ms=60_000, rebalance_ms=5_000) for index in range(2)]
    world.advance(1_000)
    leader, away = [world.joined(token).member_id for token in tokens]
    world.sync_all([leader, away])
    newcomer = world.join(session_ms=60_000, rebalance_ms=5_000)
    rejoin = world.join(leader, instance_id="i0", session_ms=60_000, rebalance_ms=5_000)
    world.advance(4_999)
    assert world.waits(newcomer)
    world.advance(1)
    assert world.joined(newcomer).generation == 2
    assert [m.member_id for m in world.joined(rejoin).members] == [leader, away, world.joined(newcomer).member_id]


def test_static_members_alone_wait_for_one_of_them() -> None:
    world = World()
    leader, follower = _stable(world)
    world.group.members[leader].session_timeout_ms = world.group.members[follower].session_timeout_ms = 1_000_000
    world.heartbeat(leader, instance_id="i0")
    world.heartbeat(follower, instance_id="i1")
    token = world.join(leader, instance_id="i0")
    assert world.leave(Leaving(member_id=leader, instance_id="i0")) == [None]
    assert world.joined(token).error is Reason.UNKNOWN_MEMBER_ID
    world.advance(300_000)
    assert (world.group.state, list(world.group.members)) == (State.PREPARING, [follower])
    assert world.joined(world.join(follower, instance_id="i1")).generation == 2


def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    world = World()
    leader, _ = _stable(world)
    assert world.leave(Leaving(member_id="", instance_id="i1"), Leaving(member_id="", instance_id="i1")) == [
        None,
        Reason.UNKNOWN_MEMBER_ID,
    ]
    assert list(world.group.members) == [leader] and world.group.state is State.PREPARING


def test_an_instance_that_is_gone_is_unknown() -> None:
    world = World()
    leader, _ = _stable(world)
    world.leave(Leaving(member_id="", instance_id="i1"))
    assert world.joined(world.join("m2", instance_id="i1")).error is Reason.UNKNOWN_MEMBER_ID
    assert world.joined(world.join(leader, instance_id="i1")).error is Reason.UNKNOWN_MEMBER_ID


def test_a_full_group_still_lets_a_static_member_return() -> None:
    world = World(members_max=2)
    _stable(world)
    assert world.joined(world.join(instance_id="i1")).error is None


def test_static_members_survive_a_crash() -> None:
    world = World()
    members = _stable(world)
    world.reload()
    assert world.group.roster.static == {"i0": members[0], "i1": members[1]}
    assert world.joined(world.join(instance_id="i1")).generation == 1
    assert world.heartbeat(members[1], instance_id="i1") is Reason.FENCED_INSTANCE_ID
