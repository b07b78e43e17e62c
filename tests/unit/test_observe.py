"""Counters of topics on /metrics while partitions come and go: they never fall, because Prometheus takes a fall for a restart.

Runs: one engine in memory; its segments are handed over, and its topic is deleted and created again. Compared: the counters
with the written records. A mismatch means rates that are wrong after every move.
"""

from __future__ import annotations

from headgate.broker.server.topic_series import TopicCounts
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from tests.unit.engine.world import Machine


async def test_counters_of_topics_never_fall() -> None:
    objects = MemoryObjects()
    machine = Machine(lambda: MemoryStore(objects), inline=True)
    broker = await machine.start()
    engine = broker.engine
    try:
        await engine.create_topic("t", 2, {})
        await machine.send(broker, [b"a", b"b"])
        counts = TopicCounts(engine)
        assert counts.read(2) == {("t",): 0}, "what was there before is not counted"
        await machine.send(broker, [b"c"], partition=1)
        in_bytes = counts.read(0)["t",]
        assert in_bytes > 0 and counts.read(2) == {("t",): 1}
        for number in range(3):
            await engine.resign([segment.id for segment in engine.leads.segments()])
            await engine.leads.openings.settled()
            assert counts.read(0)["t",] > 0 and counts.read(2) == {("t",): 1 + number}
            await machine.send(broker, [b"%d" % number])
        assert counts.read(0)["t",] > in_bytes and counts.read(2) == {("t",): 4}
        await engine.delete_topic(engine.topic("t"))
        assert counts.read(0) == {}
        await engine.create_topic("t", 1, {})
        assert counts.read(0) == {("t",): 0}
    finally:
        await machine.close()


async def test_topics_that_are_gone_are_forgotten_wherever_they_were_led_last() -> None:
    objects = MemoryObjects()
    machine = Machine(lambda: MemoryStore(objects), inline=True)
    broker = await machine.start()
    engine = broker.engine
    try:
        await engine.create_topic("t", 1, {})
        counts = TopicCounts(engine)
        for number in range(20):
            topic = await engine.create_topic(f"u{number}", 1, {})
            await engine.resign([segment.id for segment in engine.leads.segments() if segment.topic_id == topic.id])
            await engine.leads.openings.settled()
            engine.leads._watchers.clear()  # as if another broker led it now
            await engine.delete_topic(topic)
            engine.leads.watch(counts._watch)
        assert len(counts._before) <= 2
    finally:
        await machine.close()
