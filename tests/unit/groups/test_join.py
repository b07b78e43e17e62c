"""Joins of dynamic members against one group's state machine: admission, the end of the join phase, and the choice of the
leader.

Each scenario is one rule of Kafka's classic protocol (GroupMetadataManager of Kafka 4). A mismatch means that a client written
for Kafka would see another error or another membership.
"""

from __future__ import annotations

import pytest

from headgate.broker.groups.events import State
from headgate.broker.runtime.errors import Reason
from tests.unit.groups.world import RANGE, REBALANCE_MS, SESSION_MS, World


def test_handshake_gives_an_id_first_and_lets_its_owner_in() -> None:
    world = World()
    first = world.joined(world.join(handshake=True))
    assert (first.error, first.member_id, first.generation) == (Reason.MEMBER_ID_REQUIRED, "m1", -1)
    assert world.group.state is State.EMPTY
    token = world.join(first.member_id, handshake=True)
    assert world.waits(token) and world.group.state is State.PREPARING
    world.advance(500)
    reply = world.joined(token)
    assert (reply.error, reply.member_id, reply.leader, reply.generation) == (None, "m1", "m1", 1)
    assert (reply.protocol_type, reply.protocol_name, reply.skip_assignment) == ("consumer", "range", False)
    assert [(m.member_id, m.instance_id, m.metadata) for m in reply.members] == [("m1", None, b"topics")]


def test_only_the_leader_is_told_the_members() -> None:
    world = World()
    tokens = [world.join() for _ in range(3)]
    world.advance(1_000)
    replies = [world.joined(token) for token in tokens]
    assert {reply.generation for reply in replies} == {1} and {reply.leader for reply in replies} == {"m1"}
    assert [len(reply.members) for reply in replies] == [3, 0, 0]


def test_initial_delay_grows_while_members_come_but_not_beyond_the_rebalance_timeout() -> None:
    world = World(initial_rebalance_delay_ms=1_000)
    tokens = [world.join(rebalance_ms=3_500)]
    for _ in range(20):
        world.advance(400)
        if not world.waits(tokens[0]):
            break
        tokens.append(world.join(rebalance_ms=3_500))
    assert 3_500 <= world.now_ms <= 4_000
    assert all(world.joined(token).generation == 1 for token in tokens)


def test_initial_delay_is_not_extended_without_new_members() -> None:
    world = World(initial_rebalance_delay_ms=1_000)
    token = world.join()
    world.advance(999)
    assert world.waits(token)
    world.advance(1)
    assert not world.waits(token)


def test_fifty_members_settle_within_two_delays_after_the_last_join() -> None:
    world = World()
    tokens = []
    for _ in range(50):
        tokens.append(world.join())
        world.advance(50)
    world.advance(1_000)
    assert {world.joined(token).generation for token in tokens} == {1}


@pytest.mark.parametrize(
    ("session_ms", "error"),
    [
        (-1, Reason.INVALID_SESSION_TIMEOUT),
        (5_999, Reason.INVALID_SESSION_TIMEOUT),
        (6_000, None),
        (1_800_000, None),
        (1_800_001, Reason.INVALID_SESSION_TIMEOUT),
    ],
)
def test_session_timeout_must_be_within_the_limits(session_ms: int, error: Reason | None) -> None:
    world = World(initial_rebalance_delay_ms=0)
    assert world.joined(world.join(session_ms=session_ms)).error == error


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", RANGE), ("consumer", ())])
def test_an_empty_group_wants_a_type_and_a_protocol(protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> None:
    world = World()
    token = world.join(protocol_type=protocol_type, protocols=protocols)
    assert world.joined(token).error is Reason.INCONSISTENT_GROUP_PROTOCOL
    assert world.group.state is State.EMPTY


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", RANGE), ("consumer", (("sticky", b""),)), ("consumer", ()), ("", RANGE)],
)
def test_a_member_must_speak_what_all_others_speak(protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> None:
    world = World()
    world.stable(1)
    assert world.joined(world.join(protocol_type=protocol_type, protocols=protocols)).error is Reason.INCONSISTENT_GROUP_PROTOCOL
    assert world.group.state is State.STABLE


def test_any_protocol_type_may_group() -> None:
    world = World(initial_rebalance_delay_ms=0)
    reply = world.joined(world.join(protocol_type="connect", protocols=(("sessioned", b"url"),)))
    assert (reply.protocol_type, reply.protocol_name) == ("connect", "sessioned")


def test_the_protocol_most_members_prefer_wins_among_those_that_all_support() -> None:
    world = World()
    a, b, c = (b"", b"", b"")
    tokens = [
        world.join(protocols=(("x", a), ("range", b"1"), ("sticky", b"2"))),
        world.join(protocols=(("sticky", b), ("range", b"3"))),
        world.join(protocols=(("sticky", c), ("y", b""), ("range", b"4"))),
    ]
    world.advance(1_000)
    reply = world.joined(tokens[0])
    assert reply.protocol_name == "sticky"
    assert [member.metadata for member in reply.members] == [b"2", b"", b""]


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    world = World()
    world.join(protocols=(("range", b"1"), ("range", b"2"), ("sticky", b"")))
    token = world.join(protocols=(("sticky", b""),))
    world.advance(1_000)
    assert world.joined(token).protocol_name == "sticky"


def test_unknown_member_ids_are_refused_in_every_state() -> None:
    world = World()
    assert world.joined(world.join("ghost")).error is Reason.UNKNOWN_MEMBER_ID
    world.join()
    assert world.joined(world.join("ghost")).error is Reason.UNKNOWN_MEMBER_ID
    world.advance(500)
    assert world.joined(world.join("ghost")).error is Reason.UNKNOWN_MEMBER_ID
    world.sync_all(["m1"])
    assert world.joined(world.join("ghost")).error is Reason.UNKNOWN_MEMBER_ID


def test_an_id_that_was_handed_out_is_good_for_a_session_timeout() -> None:
    world = World()
    member_id = world.joined(world.join(handshake=True)).member_id
    world.advance(SESSION_MS)
    assert world.joined(world.join(member_id)).error is Reason.UNKNOWN_MEMBER_ID


def test_a_pending_id_cannot_be_used_by_a_static_member() -> None:
    world = World()
    member_id = world.joined(world.join(handshake=True)).member_id
    assert world.joined(world.join(member_id, instance_id="i")).error is Reason.UNKNOWN_MEMBER_ID


def test_the_join_phase_waits_for_ids_that_were_handed_out() -> None:
    world = World()
    (leader,) = world.stable(1)
    pending = world.joined(world.join(handshake=True)).member_id
    token = world.join(leader)
    assert world.waits(token), "the phase would end without the member that was just promised a place"
    late = world.join(pending, handshake=True)
    assert (world.joined(token).generation, world.joined(late).generation) == (2, 2)


def test_the_join_phase_goes_on_when_a_pending_id_expires_or_leaves() -> None:
    for ends in ("expires", "leaves"):
        world = World()
        (leader,) = world.stable(1)
        pending = world.joined(world.join(handshake=True)).member_id
        token = world.join(leader)
        if ends == "expires":
            world.advance(SESSION_MS)
        else:
            assert world.leave(pending) == [None]
        assert world.joined(token).generation == 2


def test_members_that_do_not_rejoin_in_time_are_dropped_and_another_leads() -> None:
    world = World()
    leader, follower, silent = world.stable(3, rebalance_ms=5_000)
    newcomer = world.join(rebalance_ms=5_000)
    token = world.join(follower, rebalance_ms=5_000)
    for _ in range(5):
        world.advance(900)
        world.heartbeat(leader)
        world.heartbeat(silent)
    assert world.waits(token)
    world.advance(500)
    reply = world.joined(token)
    assert (reply.leader, reply.generation) == (follower, 2)
    assert [member.member_id for member in reply.members] == [follower, world.joined(newcomer).member_id]
    assert world.heartbeat(leader) is Reason.UNKNOWN_MEMBER_ID


def test_nobody_rejoins_and_the_group_is_empty() -> None:
    world = World()
    leader, _ = world.stable(2)
    assert world.leave(leader) == [None]
    world.advance(SESSION_MS)
    assert (world.group.state, world.group.generation) == (State.EMPTY, 2)
    assert (world.persisted[-1].generation, world.persisted[-1].members) == (2, ())


def test_a_waiting_member_is_not_silent() -> None:
    world = World()
    leader, follower = world.stable(2, rebalance_ms=120_000)
    token = world.join(leader, rebalance_ms=120_000)
    for _ in range(100):
        world.advance(1_000)
        assert world.heartbeat(follower) is Reason.REBALANCE_IN_PROGRESS
    assert world.waits(token) and leader in world.group.members


def test_a_new_member_waits_five_minutes_at_most() -> None:
    world = World()
    (leader,) = world.stable(1, rebalance_ms=3_600_000)
    token = world.join()
    for _ in range(299):
        world.advance(1_000)
        world.heartbeat(leader)
    assert world.waits(token)
    world.advance(1_000)
    assert (world.joined(token).error, world.joined(token).member_id) == (Reason.UNKNOWN_MEMBER_ID, "")


def test_a_second_join_takes_the_place_of_the_first() -> None:
    world = World()
    leader, _ = world.stable(2)
    first = world.join(leader)
    second = world.join(leader)
    assert world.joined(first).error is Reason.REBALANCE_IN_PROGRESS
    assert world.waits(second)
    world.advance(REBALANCE_MS)
    assert world.joined(second).generation == 2


def test_join_again_in_completing_with_the_same_metadata_repeats_the_answer() -> None:
    world = World()
    leader, follower = world.completing(2)
    again, other = world.joined(world.join(leader)), world.joined(world.join(follower))
    assert (again.generation, len(again.members)) == (1, 2)
    assert (other.generation, other.leader, other.members) == (1, leader, ())
    assert world.group.state is State.COMPLETING


def test_join_again_in_completing_with_other_metadata_rebalances() -> None:
    world = World()
    _, follower = world.completing(2)
    token = world.join(follower, protocols=(("range", b"other"),))
    assert world.waits(token) and world.group.state is State.PREPARING


def test_a_follower_that_joins_again_unchanged_does_not_disturb_a_stable_group() -> None:
    world = World()
    leader, follower = world.stable(2)
    reply = world.joined(world.join(follower))
    assert (reply.generation, reply.leader, reply.members, reply.protocol_name) == (1, leader, (), "range")
    assert world.group.state is State.STABLE


@pytest.mark.parametrize("who", [0, 1])
def test_a_leader_or_changed_metadata_rebalances_a_stable_group(who: int) -> None:
    world = World()
    members = world.stable(2)
    token = world.join(members[who], protocols=RANGE if who == 0 else (("range", b"other"),))
    assert world.waits(token) and world.group.state is State.PREPARING
    other = world.join(members[1 - who])
    assert world.joined(token).generation == world.joined(other).generation == 2
    assert world.joined(token).leader == members[0]


def test_a_member_cannot_change_to_what_the_others_do_not_speak() -> None:
    world = World()
    _, follower = world.stable(2)
    token = world.join(follower, protocols=(("sticky", b""),))
    assert world.joined(token).error is Reason.INCONSISTENT_GROUP_PROTOCOL
    assert world.heartbeat(follower) is None


def test_a_full_group_refuses_newcomers_and_keeps_its_members() -> None:
    world = World(members_max=2)
    leader, follower = world.stable(2)
    refused = world.joined(world.join())
    assert (refused.error, refused.member_id) == (Reason.GROUP_MAX_SIZE_REACHED, "")
    assert world.joined(world.join(handshake=True)).error is Reason.GROUP_MAX_SIZE_REACHED
    tokens = [world.join(leader), world.join(follower)]
    assert [world.joined(token).error for token in tokens] == [None, None]


def test_who_comes_last_into_a_full_join_phase_is_refused() -> None:
    world = World(members_max=2)
    world.stable(2)
    world.join("m1")
    third = world.join()
    assert world.waits(third), "a place is free as long as m2 has not come back"
    assert world.joined(world.join("m2")).error is Reason.GROUP_MAX_SIZE_REACHED
    assert world.joined(third).generation == 2 and set(world.group.members) == {"m1", "m3"}


def test_ids_that_are_handed_out_are_limited_too() -> None:
    world = World(members_max=3)
    replies = [world.joined(world.join(handshake=True)).error for _ in range(5)]
    assert replies == [Reason.MEMBER_ID_REQUIRED] * 3 + [Reason.GROUP_MAX_SIZE_REACHED] * 2
    world.advance(SESSION_MS)
    assert world.joined(world.join(handshake=True)).error is Reason.MEMBER_ID_REQUIRED


def test_members_metadata_is_limited_together() -> None:
    world = World(metadata_bytes_max=1_000)
    big = (("range", b"x" * 600),)
    token = world.join(protocols=big)
    assert world.joined(world.join(protocols=big)).error is Reason.GROUP_MAX_SIZE_REACHED
    world.advance(1_000)
    world.sync_all([world.joined(token).member_id])
    assert world.waits(world.join(protocols=(("range", b"x" * 300),)))
    grown = world.join(world.joined(token).member_id, protocols=(("range", b"x" * 900),))
    assert world.joined(grown).error is Reason.GROUP_MAX_SIZE_REACHED
    assert set(world.group.members) == {"m3"}


def test_a_group_that_is_loaded_too_large_sheds_those_who_come_last() -> None:
    world = World()
    members = world.stable(3)
    small = World(members_max=2)
    small.persisted = world.persisted
    small.reload()
    assert small.group.state is State.PREPARING
    tokens = [small.join(member) for member in members]
    assert small.joined(tokens[2]).error is Reason.GROUP_MAX_SIZE_REACHED
    assert [small.joined(token).generation for token in tokens[:2]] == [2, 2]


def test_timeouts_of_zero_and_below_do_not_hang_the_machine() -> None:
    for rebalance_ms in (0, -1, -(2**31)):
        world = World()
        leader, _ = _rushed(world, rebalance_ms)
        world.join(leader, rebalance_ms=rebalance_ms)
        world.advance(10)
        assert world.group.state in (State.COMPLETING, State.EMPTY)


def _rushed(world: World, rebalance_ms: int) -> tuple[str, str]:
    """A stable group of two members with a timeout of 0 ms left: they sync in the same millisecond in which their joins are
    answered."""
    tokens = [world.join(rebalance_ms=rebalance_ms) for _ in range(2)]
    world.now_ms += 500
    world.advance(0)
    members = [world.joined(token).member_id for token in tokens]
    world.sync_all(members)
    return members[0], members[1]
