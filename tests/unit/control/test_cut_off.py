"""A leader that hears no broker any more.

Compared: the leader, and the open incarnations. A mismatch means that a leader which is cut off fences healthy brokers, or that
a silent broker is never replaced.
"""

from __future__ import annotations

from typing import Any

from headgate.broker.cluster.term_brokers import Member
from headgate.broker.control.leader import Leader
from headgate.broker.control.sessions import Session
from headgate.broker.runtime.errors import FencedError
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.world import Broker, World

VERY_LONG_S = 100.0


class Troubled(Member):
    """A member that has long been unable to reach the store, whatever it reports."""

    @property  # type: ignore[override]  # the report must not change it
    def trouble_since_s(self) -> float | None:
        return -1000.0

    @trouble_since_s.setter
    def trouble_since_s(self, since_s: float | None) -> None: ...


def silence(term: Leader, *sessions: Session, seconds: float = VERY_LONG_S) -> None:
    """Make these members silent for `seconds` already, and ignore their reports from now on."""
    silent = {session.incarnation.id for session in sessions}
    heard, promise = term.term.detector.heard, term.term.detector.promise
    for incarnation_id in silent:
        term.term.detector.silent_since(incarnation_id, seconds, term.clock.monotonic())
        term.term.detector._peer(incarnation_id).promised_s = 0.0  # its promise is old, too

    def deaf(incarnation_id: str, now_s: float, **report: Any) -> None:
        if incarnation_id not in silent:
            heard(incarnation_id, now_s, **report)

    def curt(incarnation_id: str, now_s: float) -> float:
        return 0.0 if incarnation_id in silent else promise(incarnation_id, now_s)

    term.term.detector.heard = deaf  # type: ignore[method-assign]
    term.term.detector.promise = curt  # type: ignore[method-assign]


async def hears_nobody(term: Leader) -> None:
    """As soon as the leader has two members, make both silent."""
    await until_async(lambda: len(term.sessions.by_id) == 2)
    silence(term, *term.sessions.by_id.values())


def incarnations(world: World) -> set[str]:
    return {one.id for one in world.brokers[0].engine.manifest.incarnations.values() if not one.sealed}


async def follows(broker: Broker) -> None:
    await until_async(lambda: broker.participant.membership is not None)


async def test_who_hears_nobody_lets_another_lead(world: World) -> None:
    before, leader = incarnations(world), world.leader
    term = leader.term
    await hears_nobody(term)
    await until_async(lambda: leader.participant.leader is not term)
    await until_async(lambda: any(broker.participant.leader is not None for broker in world.brokers))
    assert world.leader is not leader
    await follows(leader)
    assert incarnations(world) == before and not any(broker.failures for broker in world.brokers)


async def test_who_let_others_lead_may_do_so_again(world: World) -> None:
    before = incarnations(world)
    for _ in range(4):  # of three brokers, one leads twice
        leader = world.leader
        term = leader.term
        await hears_nobody(term)
        await follows(leader)
    assert incarnations(world) == before and not any(broker.failures for broker in world.brokers)


async def fails_alone(world: World, incarnation_id: str) -> None:
    """One broker notices that it was replaced, and no other fails."""
    await until_async(lambda: any(broker.failures for broker in world.brokers))
    (failed,) = (broker for broker in world.brokers if broker.failures)
    assert failed.engine.incarnation_id == incarnation_id
    await failed.crash()


async def test_who_hears_some_replaces_the_others(world: World) -> None:
    leader = world.leader
    term = leader.term
    silent = next(iter(term.sessions.by_id.values()))
    silence(term, silent)
    await until_async(lambda: silent.incarnation.id not in incarnations(world))
    assert leader.participant.leader is term
    await fails_alone(world, silent.incarnation.id)


async def test_who_alone_cannot_store_is_replaced(world: World) -> None:
    leader = world.leader
    term = leader.term
    term.term.store_well_since_s -= VERY_LONG_S
    cut, other = term.term.members.values()
    cut.trouble, cut.__class__ = "the store does not answer", Troubled
    term.term.detector._peer(
        cut.incarnation.id
    ).promised_s = 0.0  # from now on it gets no promise, and the current one would end soon
    await until_async(lambda: cut.incarnation.id not in incarnations(world))
    assert other.incarnation.id in incarnations(world) and leader.participant.leader is term
    await fails_alone(world, cut.incarnation.id)


async def test_nobody_is_replaced_because_the_store_was_away(world: World) -> None:
    """The leader reaches the store again a moment before the other brokers do."""
    term = world.leader.term
    term.term.store_well_since_s = float("inf")
    await term.lease.write()
    now_s = term.clock.monotonic()
    for member in term.term.members.values():
        # Set in this moment: the members' own reports of the meantime say that they are well.
        member.trouble, member.trouble_since_s = "the store does not answer", now_s - VERY_LONG_S
    assert not any(term.term.is_cut_from_store(member, now_s) for member in term.term.members.values())
    assert all(term.term.is_cut_from_store(member, now_s + VERY_LONG_S) for member in term.term.members.values())


async def test_two_machines_with_the_same_settings_are_told_what_is_wrong(make_world: MakeWorld) -> None:
    """The address of both is 127.0.0.1, so each takes the other for a process that ran here before and has ended."""
    world = await make_world(1, cluster_lease_ttl_ms=1_000)
    first = world.brokers[0]
    twin = Broker(world.objects, first.number, {})
    twin.port = first.port  # the port that its machine uses; the broker really listens elsewhere
    world.brokers.append(twin)
    await twin.start()
    await until_async(lambda: first.failures)
    assert isinstance(first.failures[0], FencedError)
    assert "another process runs as this broker" in first.failures[0].message
    assert "--broker-id" in first.failures[0].message
