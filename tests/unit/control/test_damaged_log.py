"""A broker is lost together with records that it acked: the medium damaged its log.

Runs: three brokers over one medium, of which one dies; a byte of its log is changed. Compared: the behaviour of the other two,
before and after the file is restored. A mismatch means that one damaged file ends a whole cluster, that acked records are
skipped, or that the operator does not learn which file it is.
"""

from __future__ import annotations

import pytest

from headgate.broker.cluster import term as module
from headgate.broker.engine.base import keys
from headgate.broker.store.memory import MemoryStore
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_one_cluster import create, fill


async def test_the_others_go_on_without_it(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DAMAGED_RETRY_S", 0.05)
    world = await make_world(3)
    await create(world, "t", 6)
    lost = world.brokers[2]
    numbers = lost.leads()["t"]
    for _ in range(3):
        await fill(world, "t", numbers[0], 2)
    key = keys.chunk(lost.engine.incarnation_id, 0)
    store = MemoryStore(world.objects)
    data = await store.get(key)
    await store.put(key, b"?" + data[1:])
    await lost.crash()

    def decisions() -> list[str]:
        term = world.leader.term
        return [one.order.why for one in term.term.orders.decisions if "damaged" in one.order.why]

    await until_async(decisions)
    assert key in decisions()[0] and "broker 3 was lost" in decisions()[0]
    others = world.brokers[:2]
    for broker in others:
        await fill(world, "t", broker.leads()["t"][0], 1)
    await others[1].engine.create_topic("u", 2, {})
    assert not any(set(broker.leads()["t"]) & set(numbers) for broker in others), "acked records are not passed over"
    assert len(decisions()) == 1, "it is said once, however often it is tried"
    await store.put(key, data)
    await until_async(lambda: sum(len(broker.leads()["t"]) for broker in others) == 6)
    first = world.lead("t", numbers[0]).engine
    assert first.partition(first.topic("t"), numbers[0]).high_watermark == 6
    assert not any(broker.failures for broker in others)
