"""The store damages or loses the state of a segment's producers while brokers serve.

Runs: three brokers over one medium, where a segment moves and the new lead finds the object damaged or lost. Compared: the
behaviour of that partition and of all others, until the object is restored. A mismatch means that one damaged object ends every
broker that is given the segment, or that the retry of an acked batch is appended once more.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headgate.broker.engine.partition import openings
from headgate.broker.engine.partition.producers import Producers, load_producers
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.store.interface import Store
from headgate.broker.store.memory import MemoryStore
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_one_cluster import create, fill


async def damage(store: Store, key: str, how: str) -> None:
    data = await store.get(key)
    if how == "lost":
        await store.delete(key)
    else:
        await store.put(key, data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("how", ["flipped", "lost"])
async def test_a_damaged_checkpoint_stops_its_partition_only(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(openings, "DAMAGED_RETRY_S", 0.05)
    world = await make_world(3)
    await create(world, "t", 6)
    await fill(world, "t", 0, 2)
    store = MemoryStore(world.objects)
    kept: dict[str, bytes] = {}

    async def load_damaged(of: Store, origins: Iterable[str]) -> Producers:
        """The first look at each object finds it damaged."""
        origins = list(origins)
        for key in origins:
            if key not in kept:
                kept[key] = await store.get(key)
                await damage(store, key, how)
        return await load_producers(of, origins)

    monkeypatch.setattr(openings, "load_producers", load_damaged)
    lead = world.lead("t", 0)
    segment = next(one for one in lead.engine.leads.segments() if 0 in one.partitions)
    target, third = (broker for broker in world.brokers if broker is not lead)

    def move(to: int) -> None:
        term = world.leader.term
        ids = [one.id for one in term.manifest.segments.open.values() if one.topic_id == segment.topic_id and 0 in one.partitions]
        term.orders.begin(term.term.planner.order_move(term.manifest.segments.open, term.term.loads(), ids[0], to))

    move(target.number)
    await until_async(lambda: target.engine.leads.openings.damaged)
    for broker in world.brokers:
        for number in broker.leads().get("t", ()):
            await fill(world, "t", number, 1)
    with raises(HeadgateError, Reason.NOT_LEADER):
        target.engine.partition(target.engine.topic("t"), 0)
    told = [record for record in caplog.records if record.message == "partitions_damaged"]
    assert len(told) == 1, "it is said once, however often it is tried"
    # It may move on, and waits there, too.
    move(third.number)
    await until_async(lambda: third.engine.leads.openings.damaged)
    assert not target.engine.leads.openings.damaged and not any(broker.failures for broker in world.brokers)
    for key, data in kept.items():
        await store.put(key, data)
    await until_async(lambda: 0 in third.leads().get("t", ()))
    assert not third.engine.leads.openings.damaged
    await fill(world, "t", 0, 1)
