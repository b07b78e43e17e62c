"""A leader that hears nobody any more.

Compared: who leads, and whose incarnation is still open. A mismatch means that a leader which is cut off fences brokers that are
well, or that a silent broker is never replaced.
"""

from __future__ import annotations

from tests.unit.control.world import World, until

LONG_S = 10.0


def incarnations(world: World) -> set[str]:
    return {one.id for one in world.brokers[0].engine.manifest.incarnations.values() if not one.sealed}


async def test_who_hears_nobody_lets_another_lead(world: World) -> None:
    before, leader = incarnations(world), world.leader
    term = leader.cluster.leader
    assert term is not None and len(term.sessions) == 2
    for session in term.sessions.values():
        session.seen_s -= LONG_S
    await until(lambda: leader.cluster.leader is not term)
    await until(lambda: any(broker.cluster.leader is not None for broker in world.brokers))
    assert world.leader is not leader
    await until(lambda: leader.cluster.membership is not None)
    assert incarnations(world) == before and not any(broker.failures for broker in world.brokers)


async def test_who_hears_some_replaces_the_others(world: World) -> None:
    leader = world.leader
    term = leader.cluster.leader
    assert term is not None
    silent = next(iter(term.sessions.values()))
    silent.seen_s -= LONG_S
    await until(lambda: silent.incarnation.id not in incarnations(world))
    assert leader.cluster.leader is term
    await until(lambda: any(broker.failures for broker in world.brokers))
    for broker in world.brokers:
        if broker.failures:
            assert broker.engine.incarnation_id == silent.incarnation.id
            await broker.crash()
