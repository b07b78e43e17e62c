"""Brokers that are told to end at the same time, as those of ``headgate up`` are.

Runs: two or three brokers; the leader ends after it has committed another broker's seal and before that broker hears of it.
Compared: the end of the other broker, and the state that the next broker finds. A mismatch means that a clean end is reported as
a failure, or leaves work to recover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import SealIncarnation
from headgate.broker.control import participant
from headgate.broker.control.lease_register import LeaseRegister
from headgate.broker.runtime.clock import Clock
from headgate.broker.store.memory import MemoryStore
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_one_cluster import create, fill
from tests.unit.control.world import WAIT_S


@pytest.mark.parametrize("remain", [0, 1], ids=["it then leads itself", "another one leads then"])
async def test_the_leader_goes_before_it_answers(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, remain: int) -> None:
    world = await make_world(2 + remain)
    await create(world, "t", 6)
    for partition in range(6):
        await fill(world, "t", partition, 3)
    first, second, *others = world.brokers
    leader = first.participant.leader
    assert leader is not None
    commit_of, sealed = leader.journal.commit_of, asyncio.Event()

    async def commit_and_keep_silent(incarnation_id: str, edits: Sequence[Edit]) -> int:
        version = await commit_of(incarnation_id, edits)
        if SealIncarnation(second.engine.incarnation_id) in edits:
            sealed.set()
            await asyncio.Event().wait()
        return version

    monkeypatch.setattr(leader.journal, "commit_of", commit_and_keep_silent)
    ending = asyncio.create_task(second.stop())
    await sealed.wait()
    if others:
        # The other broker is already up when the leader gives the lease back.
        await until_async(lambda: len(others[0].engine.brokers()) == 2)
    async with asyncio.timeout(WAIT_S):
        await first.stop()
        await ending
    if others:
        await until_async(lambda: others[0].participant.leader is not None)
        await others[0].stop()
    assert all(incarnation.sealed for incarnation in world.brokers[-1].engine.manifest.incarnations.values())
    _, lease = await LeaseRegister(MemoryStore(world.objects), Clock()).read()
    assert lease is not None
    assert lease.holder == "", "nobody waits for it to run out"
    await first.start()
    assert [log.high_watermark for log in first.engine.all_logs() if log.topic.name == "t"] == [3] * 6


async def test_brokers_that_all_end_wait_for_no_successor(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a machine shuts down. None of them can take over from another one."""
    said: list[str] = []

    def note(event: str, **_: object) -> None:
        said.append(event)

    monkeypatch.setattr(participant, "logger", SimpleNamespace(info=note, warning=note))
    world = await make_world(3)
    await create(world, "t", 6)
    for partition in range(6):
        await fill(world, "t", partition, 3)
    await asyncio.gather(*(broker.stop() for broker in world.brokers))
    assert "drain_timed_out" not in said
    await world.brokers[0].start()
    assert [log.high_watermark for log in world.brokers[0].engine.all_logs() if log.topic.name == "t"] == [3] * 6
