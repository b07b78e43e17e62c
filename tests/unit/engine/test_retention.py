"""Removal: retention by time and size, deleted records and topics, chunks, incarnations, silent producers.

Runs: engines with a clock that the test moves; the sweeper runs when the test calls it. Compared: the readable records and the
objects in the store, and both again after a restart. A mismatch means that records are removed too early, never, or come back.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.broker.cluster.admission import check
from headgate.broker.cluster.edits.incarnations import (
    AddChunks,
    CloseIncarnation,
    FoldChunks,
    OpenIncarnation,
    RemoveChunks,
    SealIncarnation,
)
from headgate.broker.cluster.edits.topics import CreateTopic, SetLogStart
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk, Extent, Incarnation, Topic
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.upkeep.retention import Cutoff, expired_offset, sweep_edits
from headgate.broker.runtime.clock import Clock, ManualClock
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import Incarnation as Broker
from tests.unit.engine.world import Machine, read_all, settings, swept

MEDIA = ["memory", "aligned", "put", "local"]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SMALL = settings(wal_chunk_bytes=16_384)


async def fill(machine: Machine, broker: Broker, count: int, tag: bytes, *, size: int = 3_000, timestamp_ms: int = 0) -> None:
    for number in range(count):
        await machine.send(broker, [bytes(size) + tag + b"-%d" % number], timestamp_ms=timestamp_ms or broker.engine.clock.now_ms())


async def listed(broker: Broker) -> None:
    """Wait until every complete chunk is in the manifest."""
    await until_async(lambda: not broker.checkpointer._rolled)


async def wal_bytes(broker: Broker) -> int:
    return sum(info.size_bytes for info in await broker.faults.list("wal/", limit=1000))


@pytest.mark.parametrize("machine", MEDIA, indirect=True)
async def test_old_records_go_with_their_chunks(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {"retention.ms": str(DAY_MS)}, settings=SMALL)
    log = broker.log()
    await fill(machine, broker, 20, b"old")
    clock.advance(20 * HOUR_MS)
    await fill(machine, broker, 20, b"young")
    await listed(broker)
    await swept(broker)
    assert log.log_start == 0, "nothing is a day old yet"
    clock.advance(5 * HOUR_MS)
    full = await wal_bytes(broker)
    await swept(broker)
    await until_async(lambda: broker.sweeper.chunks_removed > 0)
    # The chunk with the last of the old records may contain young ones too.
    assert 15 <= log.log_start <= 20
    records = await read_all(broker)
    assert [record.offset for record in records] == list(range(log.log_start, 40))
    await machine.check(broker)
    with raises(InvalidError, Reason.OFFSET_OUT_OF_RANGE):
        await broker.engine.read(log, 0, 100)
    await broker.engine.close()
    await machine.forget(broker)
    assert await wal_bytes(broker) < full
    broker = await machine.start(SMALL)
    assert broker.log().log_start == records[0].offset
    await machine.check(broker)
    clock.advance(2 * DAY_MS)
    await swept(broker)
    assert await read_all(broker) == []
    assert broker.log().next_offset == 40
    await machine.send(broker, [b"new"])
    assert [record.offset for record in await read_all(broker)] == [40]
    broker = await machine.restart(broker, SMALL)
    assert [record.offset for record in await read_all(broker)] == [40]
    assert broker.log().next_offset == 41


async def test_age_is_counted_from_the_append(make_machine: MakeMachine, clock: ManualClock) -> None:
    machine = make_machine("put")
    broker = await machine.begin(1, {"retention.ms": str(DAY_MS)})
    await fill(machine, broker, 3, b"history", timestamp_ms=1)
    await listed(broker)
    await swept(broker)
    assert len(await read_all(broker)) == 3
    clock.advance(DAY_MS + 1)
    await swept(broker)
    assert await read_all(broker) == []


@pytest.mark.parametrize("machine", MEDIA, indirect=True)
async def test_the_oldest_go_beyond_a_size(machine: Machine) -> None:
    broker = await machine.begin(1, {"retention.bytes": "40000"}, settings=SMALL)
    log = broker.log()
    for round_ in range(4):
        await fill(machine, broker, 15, b"round-%d" % round_)
        await listed(broker)
        await swept(broker)
        # As in Kafka, a removal that would leave less than the limit does not happen; records in the open chunk stay too.
        assert 40_000 <= log.size_bytes <= 40_000 + 2 * 20_000 or round_ == 0
        records = await read_all(broker)
        assert log.size_bytes >= sum(len(record.value or b"") for record in records)
        await machine.check(broker)
    before = log.size_bytes
    broker = await machine.restart(broker, SMALL)
    assert broker.log().size_bytes == before
    await machine.check(broker)


def deleted_bytes(path: str) -> int:
    """Size of deleted files below a directory that this process still has open."""
    size = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            link = f"/proc/self/fd/{name}"
            if os.readlink(link).startswith(path) and os.stat(link).st_nlink == 0:
                size += os.stat(link).st_blocks * 512
    return size


async def wal_chunks(broker: Broker) -> set[str]:
    return {info.key for info in await broker.faults.list("wal/", limit=1000) if info.key.rpartition("/")[2].isdigit()}


@pytest.mark.parametrize("medium", ["inline", *MEDIA])
async def test_old_records_go_where_nothing_more_is_written(
    make_machine: MakeMachine, clock: ManualClock, tmp_path: Path, medium: str
) -> None:
    machine = make_machine(medium)
    broker = await machine.begin(1, {"retention.ms": str(DAY_MS)})
    await broker.engine.create_topic("silent", 1, {"retention.ms": "1"})
    await fill(machine, broker, 3, b"old", timestamp_ms=1)
    await listed(broker)
    before = await wal_chunks(broker)
    async with asyncio.timeout(30):
        while medium == "local" and len(before) < 2:
            # A thread prepares the next file beside the open one.
            await asyncio.sleep(0.001)
            before = await wal_chunks(broker)
    clock.advance(DAY_MS)
    for _ in range(3):
        await broker.sweeper.run_once()
    assert await wal_chunks(broker) == before, "nothing is due, nothing is written"
    assert len(await read_all(broker)) == 3
    clock.advance(1)
    await broker.sweeper.run_once()
    assert await read_all(broker) == []
    left = await wal_chunks(broker)
    assert len(left) <= 2, "an empty chunk, and the file that was made ready for it"
    assert min(before) not in left
    assert deleted_bytes(str(tmp_path)) == 0, "the disk has it back"
    clock.advance(100 * DAY_MS)
    await broker.sweeper.run_once()
    assert await wal_chunks(broker) == left, "an empty chunk stays"
    assert await machine.send(broker, [b"new"]) == 3
    broker = await machine.restart(broker)
    await machine.check(broker, exact=True)
    assert broker.log().log_start == 3


@pytest.mark.parametrize("machine", MEDIA, indirect=True)
async def test_a_size_counts_where_chunks_are_large(machine: Machine) -> None:
    broker = await machine.begin(1, {"retention.bytes": "40000"}, settings=settings(wal_chunk_bytes=1 << 30))
    log = broker.log()
    for round_ in range(8):
        await fill(machine, broker, 10, b"round-%d" % round_)
        await broker.sweeper.run_once()
        assert 40_000 <= log.size_bytes <= 40_000 + 2 * 31_000 + 40_000 or round_ == 0
    assert log.log_start > 0
    broker = await machine.restart(broker)
    assert broker.log().size_bytes >= 40_000
    await machine.check(broker)


async def test_a_chunk_is_not_completed_where_history_is_to_come_first(make_machine: MakeMachine, clock: ManualClock) -> None:
    machine = make_machine("memory")
    broker = await machine.start()
    topic = await broker.engine.create_topic("t", 1, {"retention.ms": "1"})
    broker.engine.hold(topic.id, "gate", {0: 5}, 0)
    await fill(machine, broker, 3, b"live")
    clock.advance(HOUR_MS)
    before = await wal_chunks(broker)
    await broker.sweeper.run_once()
    assert await wal_chunks(broker) == before
    broker.engine.drop_holds(topic.id, "gate")
    await broker.sweeper.run_once()
    assert broker.log().log_start == 8


async def test_records_go_by_their_own_age_beside_a_busy_topic(make_machine: MakeMachine, clock: ManualClock) -> None:
    """The chunk has young records too, so the old ones are removed somewhat later; but the chunk does not stay open until then."""
    machine = make_machine("memory")
    broker = await machine.begin(1, {"retention.ms": "60000"}, settings=settings(wal_chunk_bytes=1 << 30))
    await broker.engine.create_topic("busy", 1, {})
    await machine.send(broker, [b"old"])
    for number in range(14):
        await machine.send(broker, [b"%d" % number], "busy")
        clock.advance(10_000)
        await broker.sweeper.run_once()
    assert await read_all(broker) == []
    assert len(await wal_chunks(broker)) <= 3
    await machine.check(broker)


async def test_an_old_chunk_is_as_old_as_its_last_group(make_machine: MakeMachine, clock: ManualClock) -> None:
    """This also holds if only the next group completes the chunk."""
    machine = make_machine("memory")
    broker = await machine.begin(1, {"retention.ms": str(DAY_MS)})
    await machine.send(broker, [b"old"])
    clock.advance(DAY_MS - HOUR_MS)
    await machine.send(broker, [b"young"])
    await listed(broker)
    clock.advance(2 * HOUR_MS)
    await swept(broker)
    assert [record.value for record in await read_all(broker)] == [b"young"]


@pytest.mark.parametrize("machine", ["memory", "local"], indirect=True)
async def test_a_broker_ends_while_retention_waits_for_a_store_that_does_not_answer(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {"retention.ms": "1"})
    await machine.send(broker, [b"old"])
    clock.advance(HOUR_MS)
    broker.store.refused["appender.exists"] = RetryError(Reason.STORE_UNAVAILABLE, "no answer")
    broker.sweeper.wake()
    await until_async(lambda: broker.engine.stalled is not None)
    async with asyncio.timeout(10):
        await broker.engine.close()
    await machine.forget(broker)
    broker = await machine.start()
    await machine.check(broker)


async def test_a_topic_that_is_kept_is_kept(make_machine: MakeMachine, clock: ManualClock) -> None:
    machine = make_machine("put")
    broker = await machine.begin(1, {"retention.ms": "-1"})
    await broker.engine.create_topic("compacted", 1, {"retention.ms": "1", "cleanup.policy": "compact"})
    await fill(machine, broker, 3, b"kept")
    await machine.send(broker, [b"kept"], "compacted")
    await listed(broker)
    clock.advance(1000 * DAY_MS)
    await swept(broker)
    await machine.check(broker, exact=True)


async def test_a_changed_setting_counts_at_once(make_machine: MakeMachine, clock: ManualClock) -> None:
    machine = make_machine("put")
    broker = await machine.start()
    topic = await broker.engine.create_topic("t", 1, {"retention.ms": "-1"})
    await fill(machine, broker, 3, b"x")
    await listed(broker)
    clock.advance(DAY_MS)
    await swept(broker)
    assert len(await read_all(broker)) == 3
    await broker.engine.alter_topic_config(topic, {"retention.ms": "1000"})
    await swept(broker)
    assert await read_all(broker) == []


@pytest.mark.parametrize("machine", MEDIA, indirect=True)
async def test_a_chunk_stays_while_one_record_in_it_may_be_read(machine: Machine) -> None:
    broker = await machine.start(SMALL)
    short = await broker.engine.create_topic("short", 1, {})
    await broker.engine.create_topic("t", 1, {})
    for number in range(20):
        await machine.send(broker, [b"%d" % number + bytes(2_000)], "short")
        await machine.send(broker, [b"%d" % number + bytes(2_000)], "t")
    await listed(broker)
    await broker.engine.delete_records(broker.log("t"), 7)
    await broker.engine.delete_topic(short)
    del machine.acked["short", 0]
    await swept(broker)
    for log in broker.engine.all_logs():
        log.tail.clear()
    await machine.check(broker)
    assert [record.offset for record in await read_all(broker)] == list(range(7, 20))
    await machine.crash(broker)
    await machine.check(await machine.start())


@pytest.mark.parametrize("machine", MEDIA, indirect=True)
async def test_deleting_records(machine: Machine) -> None:
    broker = await machine.begin(2, settings=SMALL)
    for _ in range(5):
        await machine.send(broker, [b"%d" % _, b"x%d" % _, b"y%d" % _ + bytes(6_000)])
        await machine.send(broker, [b"other %d" % _], partition=1)
    log = broker.log()
    assert await broker.engine.delete_records(log, 0) == 0
    assert await broker.engine.delete_records(log, 4) == 4
    assert await broker.engine.delete_records(log, 2) == 4, "a log's start never goes back"
    assert [record.offset for record in await read_all(broker)] == list(range(4, 15))
    broker = await machine.restart(broker, SMALL)
    assert [record.offset for record in await read_all(broker)] == list(range(4, 15))
    assert await broker.engine.delete_records(broker.log(), -1) == 15
    assert await broker.engine.delete_records(broker.log(), -1) == 15
    await swept(broker)
    broker = await machine.restart(broker, SMALL)
    assert await read_all(broker) == []
    assert (broker.log().log_start, broker.log().next_offset) == (15, 15)
    assert await machine.send(broker, [b"next"]) == 15
    assert len(await read_all(broker, "t", 1)) == 5
    await machine.check(broker)


async def test_incarnations_that_nobody_needs_are_closed(machine: Machine) -> None:
    for round_ in range(4):
        broker = await machine.start(SMALL)
        if round_ == 0:
            await broker.engine.create_topic("t", 1, {})
        await fill(machine, broker, 3, b"round %d" % round_)
        await (machine.crash if round_ % 2 else machine.stop)(broker)
    broker = await machine.start(SMALL)
    assert len(broker.engine.manifest.incarnations) == 5
    await broker.engine.delete_records(broker.log(), 4)
    await swept(broker)
    assert len(broker.engine.manifest.incarnations) == 4
    await machine.check(broker)
    await broker.engine.delete_records(broker.log(), -1)
    await swept(broker)
    assert list(broker.engine.manifest.incarnations) == [broker.engine.incarnation_id]
    await machine.stop(broker)
    broker = await machine.start(SMALL)
    assert await machine.send(broker, [b"next"]) == 12
    await machine.check(broker)


async def test_silent_producers_are_forgotten(make_machine: MakeMachine, clock: ManualClock) -> None:
    machine = make_machine("put")
    limits = settings(producer_id_expiration_ms=HOUR_MS)
    broker = await machine.begin(settings=limits)
    await machine.send(broker, [b"one"], producer=(1, 0, 0))
    clock.advance(HOUR_MS // 2)
    await machine.send(broker, [b"two"], producer=(2, 0, 0))
    clock.advance(HOUR_MS // 2 + 1)
    broker.sweeper.wake()
    await until_async(lambda: [info.producer_id for info in broker.log().producers_state.infos()] == [2])
    broker = await machine.restart(broker, limits)
    broker.sweeper.wake()
    await until_async(lambda: [info.producer_id for info in broker.log().producers_state.infos()] == [2])
    assert next(iter(broker.log().producers_state.infos())).last_sequence == 0


async def test_records_of_a_deleted_topic_do_not_come_back(machine: Machine) -> None:
    broker = await machine.start(SMALL)
    topic = await broker.engine.create_topic("t", 1, {})
    await fill(machine, broker, 10, b"first life")
    woken: list[bool] = []
    broker.log().waiters.add(lambda: woken.append(True))
    late = machine.send(broker, [b"under way"])
    await broker.engine.delete_topic(topic)
    assert woken
    await late
    assert broker.engine.tail_memory.held_bytes == 0
    machine.acked.clear()
    machine.sent.clear()
    await broker.engine.create_topic("t", 1, {})
    assert await read_all(broker) == []
    assert await machine.send(broker, [b"second life"]) == 0
    await swept(broker)
    broker = await machine.restart(broker, SMALL)
    await machine.check(broker, exact=True)


async def test_memory_is_bounded_whoever_writes(make_machine: MakeMachine) -> None:
    machine = make_machine("memory")
    broker = await machine.begin(10, settings=settings(tail_bytes=200_000))
    for number in range(400):
        await machine.send(broker, [bytes(number * 37 % 5_000) + b"%d" % number], partition=number % 10)
        # One slab may be larger than the limit; nothing else exceeds it.
        assert broker.engine.tail_memory.held_bytes <= 200_000
    assert broker.engine.tail_memory.held_bytes == sum(
        len(slab.buffer) for log in broker.engine.all_logs() for slab in log.tail.slabs
    )
    await machine.check(broker, exact=True)


# -- the decisions alone

TOPIC = Topic(id=uuid.UUID(int=1), name="t", partitions=2)


def extent(partition: int, base_offset: int, end_offset: int) -> Extent:
    return Extent(TOPIC.id, partition, base_offset, end_offset, 0, 0, 100, 0, 24)


def manifest_with(chunks: list[Chunk], sealed: bool) -> Manifest:
    manifest = Manifest()
    manifest.apply(
        [
            CreateTopic(TOPIC),
            OpenIncarnation(Incarnation(id="a", broker_id=1, leader_epoch=0, opened_ms=0)),
            AddChunks(incarnation_id="a", chunks=chunks),
            *([SealIncarnation("a")] if sealed else []),
            OpenIncarnation(Incarnation(id="b", broker_id=1, leader_epoch=1, opened_ms=0)),
        ]
    )
    return manifest


def chunk(number: int, *extents: Extent) -> Chunk:
    return Chunk(number=number, last_number=number, size_bytes=1000, appended_ms=number, index_inline=True, extents=list(extents))


def test_a_chunk_is_needed_for_any_extent_above_its_log_start() -> None:
    one = chunk(0, extent(0, 0, 10), extent(1, 0, 5))
    manifest = manifest_with([one], sealed=True)
    assert manifest.needs(one)
    manifest.apply([SetLogStart(TOPIC.id, {0: 10})])
    assert manifest.needs(one)
    manifest.apply([SetLogStart(TOPIC.id, {1: 4})])
    assert manifest.needs(one)
    manifest.apply([SetLogStart(TOPIC.id, {1: 5})])
    assert not manifest.needs(one)
    assert not manifest.needs(chunk(1))


@pytest.mark.parametrize("sealed", [True, False])
def test_an_incarnation_is_closed_when_it_is_sealed_and_empty(sealed: bool) -> None:
    manifest = manifest_with([chunk(0, extent(0, 0, 10)), chunk(1, extent(0, 10, 20))], sealed)
    assert sweep_edits(manifest, "b") == []
    manifest.apply([SetLogStart(TOPIC.id, {0: 10})])
    edits = sweep_edits(manifest, "b")
    assert edits == [RemoveChunks("a", [0])]
    manifest.apply(edits)
    manifest.check_invariants()
    manifest.apply([SetLogStart(TOPIC.id, {0: 20})])
    edits = sweep_edits(manifest, "b")
    assert edits == [RemoveChunks("a", [1]), *([CloseIncarnation("a")] if sealed else [])]
    manifest.apply(edits)
    manifest.check_invariants()
    assert sweep_edits(manifest, "b") == []
    assert ("a" in manifest.incarnations) is not sealed


def test_a_chunk_that_was_folded_meanwhile_is_not_removed() -> None:
    """The leader sweeps a broker's chunks while that broker folds them: the chunk number stays, but it names another chunk."""
    manifest = manifest_with([chunk(0, extent(0, 0, 10)), chunk(1, extent(0, 10, 20))], sealed=False)
    manifest.apply([SetLogStart(TOPIC.id, {0: 10})])
    (removal,) = sweep_edits(manifest, "b")
    check(manifest, removal, "b")
    folded = Chunk(
        number=0, last_number=1, generation=1, size_bytes=1000, appended_ms=1, index_inline=True, extents=[extent(0, 10, 20)]
    )
    manifest.apply([FoldChunks(incarnation_id="a", numbers=[0, 1], chunk=folded)])
    with pytest.raises(InvalidError, match="a chunk is needed"):
        check(manifest, removal, "b")


async def test_topics_that_are_deleted_one_after_another_are_looked_after_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan visits all partitions: one scan for each of thousands of deleted topics would delay all other work."""
    looks: list[PartitionLog] = []

    def counted(partition: PartitionLog, cutoff: Cutoff) -> int:
        looks.append(partition)
        return expired_offset(partition, cutoff)

    monkeypatch.setattr("headgate.broker.engine.upkeep.retention.expired_offset", counted)
    monkeypatch.setattr("headgate.broker.engine.upkeep.retention.REST", 1e12)
    objects = MemoryObjects()
    machine = Machine(lambda: MemoryStore(objects), Clock())
    broker = await machine.start()
    topics = [await broker.engine.create_topic(f"t{number}", 1, {}) for number in range(10)]
    await until_async(lambda: broker.sweeper._rest_s > 0)
    looks.clear()
    for topic in topics:
        await broker.engine.delete_topic(topic)
    assert looks == []
    await machine.stop(broker)  # the stop does not wait for the end of the pause
