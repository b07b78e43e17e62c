"""Folding (`broker/engine/upkeep/chunk_fold.py`): many small chunks become one, and readers notice nothing.

Runs: the choice of neighbours on manifests of any shape; folds under load, after deletes, beside a broker that was replaced, and
with puts that take effect late. Compared: the readable records before and after, and after a restart. A mismatch means that a
fold loses records.
"""

from __future__ import annotations

import asyncio
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.broker.cluster.edits.incarnations import AddChunks, FoldChunks, OpenIncarnation
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk, Incarnation
from headgate.broker.engine.base import keys
from headgate.broker.engine.upkeep.chunk_fold import BYTES_MAX, COUNT_MIN, SPAN_MS_MAX, choose, fold, sparse
from headgate.broker.runtime.errors import RetryError
from headgate.broker.store.wrappers import MeteredStore
from headgate.broker.testing.faults import Fault
from tests.support.examples import examples
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine, machine_on
from tests.unit.engine.world import Incarnation as Broker
from tests.unit.engine.world import Machine, fold_by, read_all, swept
from tests.unit.engine.world import settings as settings_of

FANOUT = 4
ID = uuid.UUID(int=5).hex


machine = machine_on("memory")


@pytest.fixture(autouse=True)
def small_fans(monkeypatch: pytest.MonkeyPatch) -> None:
    fold_by(monkeypatch, FANOUT)


SIZES = st.one_of(
    st.integers(0, 1000), st.integers(0, BYTES_MAX * 2), st.sampled_from([BYTES_MAX // 2, BYTES_MAX // 2 + 1, BYTES_MAX])
)
CHUNKS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, SPAN_MS_MAX)), max_size=40)


@given(CHUNKS)
@settings(deadline=None, max_examples=examples(60))
def test_neighbours_are_chosen_until_nothing_is_left_to_choose(chunks: list[tuple[bool, int, int]]) -> None:
    manifest = Manifest()
    manifest.apply([OpenIncarnation(Incarnation(id=ID, broker_id=1, leader_epoch=0, opened_ms=0))])
    listed = []
    appended_ms = 0
    for number, (kept, size, pause_ms) in enumerate(chunks):
        appended_ms += pause_ms
        if kept:
            listed.append(
                Chunk(number=number, last_number=number, size_bytes=size, appended_ms=appended_ms, index_inline=True, extents=[])
            )
    manifest.apply([AddChunks(incarnation_id=ID, chunks=listed)])
    for _ in range(len(chunks) + 1):
        chosen = choose(manifest, ID)
        if chosen is None:
            break
        incarnation_id, run = chosen
        assert incarnation_id == ID
        numbers = sorted(manifest.chunks[ID])
        first = numbers.index(run[0].number)
        assert [chunk.number for chunk in run] == numbers[first : first + len(run)], "not neighbours"
        assert len({chunk.generation for chunk in run}) == 1
        assert len(run) >= COUNT_MIN or len(run) == FANOUT
        assert sum(chunk.size_bytes for chunk in run) <= BYTES_MAX
        assert run[-1].appended_ms - run[0].appended_ms <= SPAN_MS_MAX
        folded = Chunk(
            number=run[0].number,
            last_number=run[-1].last_number,
            generation=run[0].generation + 1,
            size_bytes=sum(chunk.size_bytes for chunk in run),
            appended_ms=run[-1].appended_ms,
            index_inline=True,
            extents=[],
        )
        manifest.apply([FoldChunks(ID, [chunk.number for chunk in run], folded)])
        manifest.check_invariants()
    assert choose(manifest, ID) is None


async def fill(machine: Machine, broker: Broker, chunks: int, start: int = 0) -> None:
    """Write records to three partitions until at least this many chunks are complete."""
    log = broker.log("t", 0)
    for number in range(start, start + 4 * chunks):
        for partition in range(3):
            await machine.send(
                broker, [b"%d-%d" % (partition, number), bytes(7_000) + b"%d-%d" % (partition, number)], "t", partition
            )
    await until_async(lambda: len(log.open.chunks) <= 1)


def forget_memory(broker: Broker) -> None:
    for log in broker.engine.all_logs():
        log.tail.clear()


@pytest.mark.parametrize("machine", ["memory", "aligned", "put", "local"], indirect=True)
async def test_folded_records_are_the_same_records(machine: Machine) -> None:
    broker = await machine.begin(3)
    await fill(machine, broker, 20)
    sizes = [log.size_bytes for log in broker.engine.all_logs()]
    await swept(broker)
    await until_async(lambda: broker.sweeper.chunks_folded >= 2 * FANOUT)
    assert len(broker.engine.manifest.chunks[broker.engine.incarnation_id]) < 20
    assert [log.size_bytes for log in broker.engine.all_logs()] == sizes
    forget_memory(broker)
    await machine.check(broker, exact=True)
    await fill(machine, broker, 20, start=1000)
    await swept(broker)
    forget_memory(broker)
    await machine.check(broker, exact=True)
    broker = await machine.restart(broker)
    await machine.check(broker, exact=True)
    await swept(broker)
    await machine.check(broker, exact=True)


async def test_what_nobody_can_read_is_left_behind(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_by(monkeypatch, 1000)
    broker = await machine.begin(3)
    await broker.engine.create_topic("gone", 1, {})
    for number in range(20):
        await machine.send(broker, [b"%d" % number, bytes(20_000) + b"%d" % number], "gone")
        await machine.send(broker, [b"%d" % number, bytes(1_000) + b"%d" % number], "t")
    await until_async(lambda: len(broker.log().open.chunks) <= 1)
    del machine.acked["gone", 0]
    await broker.engine.delete_topic(broker.engine.topic("gone"))
    await broker.engine.delete_records(broker.log(), 15)
    fold_by(monkeypatch, FANOUT)
    await swept(broker)
    for chunk in broker.engine.manifest.chunks[broker.engine.incarnation_id].values():
        if chunk.generation:
            assert {extent.topic_id for extent in chunk.extents} == {broker.engine.topic("t").id}
    forget_memory(broker)
    await machine.check(broker, exact=True)
    await machine.crash(broker)
    await machine.check(await machine.start(), exact=True)


@pytest.mark.parametrize("fault", [Fault.LATE, Fault.AMBIGUOUS, Fault.REFUSED])
async def test_a_fold_that_came_late_harms_nobody(machine: Machine, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_by(monkeypatch, 1000)
    first = await machine.begin(3)
    await fill(machine, first, 10)
    fold_by(monkeypatch, FANOUT)
    first.faults.script("put", fault)
    with pytest.raises(RetryError):
        await first.sweeper.fold()
    # The topic's beginning is deleted, so that the next fold writes different bytes.
    await first.engine.delete_records(first.log("t", 0), 6)
    second = await machine.start()
    await swept(second)
    await until_async(lambda: second.sweeper.chunks_folded > 0)
    await first.faults.land()
    await machine.check(second, exact=True)
    await machine.crash(second)
    await machine.check(await machine.start(), exact=True)


async def test_a_reader_that_is_overtaken_by_a_fold_reads_on(machine: Machine) -> None:
    broker = await machine.begin(3)
    await fill(machine, broker, 20)
    forget_memory(broker)
    log = broker.log()
    before = await broker.engine._reader.locate(log, 0)
    assert before is not None
    await swept(broker)
    assert [record.offset for record in await read_all(broker)] == list(range(log.high_watermark))
    await machine.check(broker, exact=True)


@pytest.mark.parametrize(("medium", "reads"), [("put", 1), ("memory", 2)])
async def test_a_chunk_is_read_at_once_however_many_partitions_stand_in_it(
    make_machine: MakeMachine, medium: str, reads: int
) -> None:
    """On S3 the index is part of the chunk; on a directory it is a separate file beside it."""
    machine = make_machine(medium)
    broker = await machine.start(settings_of(wal_chunk_bytes=1 << 20, wal_flush_interval_ms=100))
    await broker.engine.create_topic("t", 50, {})
    await asyncio.gather(*(machine.send(broker, [b"%d" % partition], "t", partition) for partition in range(50)))
    await broker.engine.resign([segment.id for segment in broker.engine.leads.segments()])
    ((number, chunk),) = broker.engine.manifest.chunks[broker.engine.incarnation_id].items()
    assert len(chunk.extents) == 50
    store = MeteredStore(broker.store, machine.clock)
    folded = await fold(store, broker.engine.manifest, broker.engine.incarnation_id, [chunk], "me")
    assert folded.edit.numbers == [number]
    assert store.counts["get_range"].calls + store.counts["get"].calls == reads


async def unfolded(make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, medium: str = "put") -> tuple[Machine, Broker]:
    """A broker with 16 chunks or more, which the next pass folds."""
    fold_by(monkeypatch, 1000)
    machine = make_machine(medium)
    broker = await machine.begin(3)
    await fill(machine, broker, 20)
    await broker.checkpointer.list_all()
    fold_by(monkeypatch, 16)
    assert choose(broker.engine.manifest, broker.engine.incarnation_id) is not None
    return machine, broker


@pytest.mark.parametrize("medium", ["put", "memory"])
async def test_a_fold_waits_for_a_far_store_a_few_times(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, medium: str
) -> None:
    """Its chunks are read side by side, and deleted side by side."""
    machine, broker = await unfolded(make_machine, monkeypatch, medium)
    calls = waits = under_way = 0

    async def far(operation: str) -> None:
        nonlocal calls, waits, under_way
        calls, waits, under_way = calls + 1, waits + (not under_way), under_way + 1
        try:
            await asyncio.sleep(0.01)
            broker.store.check(operation)
        finally:
            under_way -= 1

    with monkeypatch.context() as patched:
        patched.setattr(broker.store, "passed", far)
        await broker.sweeper.fold()
    assert broker.sweeper.chunks_folded >= 16
    assert calls >= 34
    assert waits <= calls / 4
    forget_memory(broker)
    await machine.check(broker, exact=True)


@pytest.mark.parametrize("operation", ["get_range", "put"])
async def test_the_end_of_a_broker_waits_for_no_object_that_a_fold_reads(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Only for the one that the fold is writing, so that no later sweep misses it."""
    machine, broker = await unfolded(make_machine, monkeypatch)
    asked, answers = 0, asyncio.Event()
    passed = broker.store.passed

    async def held(called: str) -> None:
        nonlocal asked
        if called == operation and (called != "put" or not asked):
            asked += 1
            await answers.wait()
        await passed(called)

    monkeypatch.setattr(broker.store, "passed", held)
    broker.sweeper.wake()
    await until_async(lambda: asked > 0)
    ending = asyncio.create_task(broker.engine.close())
    if operation == "put":
        await until_async(lambda: not broker.engine.ready)
        await asyncio.wait((ending,), timeout=0.1)
        assert not ending.done()
        answers.set()
    async with asyncio.timeout(60):
        await ending
    assert asked <= 16, "the reads under way, of chunks and of indexes"
    assert broker.sweeper.chunks_removed == 0, "they are left over"
    manifest = broker.engine.manifest
    assert manifest.incarnations[broker.engine.incarnation_id].sealed
    named = {keys.chunk_object(one, chunk) for one, chunks in manifest.chunks.items() for chunk in chunks.values()}
    stored = {found.key for found in await broker.faults.list("wal/", limit=1000) if keys.made_in(found.key) is not None}
    assert stored == named
    await machine.forget(broker)
    await machine.check(await machine.start(), exact=True)


async def test_a_chunk_that_is_mostly_deleted_is_folded_by_itself(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is kept shares its chunks with one that is deleted: the store keeps little more than what is kept."""
    fold_by(monkeypatch, 1000)
    monkeypatch.setattr("headgate.broker.engine.upkeep.chunk_fold.SPARSE_BYTES_MIN", 1)
    broker = await machine.begin(3)
    await broker.engine.create_topic("short", 1, {})
    for number in range(20):
        await machine.send(broker, [bytes(20_000) + b"%d" % number], "short")
        await machine.send(broker, [b"%d" % number], "t")
    await until_async(lambda: len(broker.log().open.chunks) <= 1)
    chunks = broker.engine.manifest.chunks[broker.engine.incarnation_id]
    before = sum(chunk.size_bytes for chunk in chunks.values())
    short = broker.log("short")
    del machine.acked["short", 0]
    await broker.engine.delete_records(short, short.high_watermark)
    await swept(broker)
    await broker.sweeper.fold()
    assert sum(chunk.size_bytes for chunk in chunks.values()) < before / 4
    assert sparse(broker.engine.manifest, broker.engine.incarnation_id) == [], "what was folded is dense"
    forget_memory(broker)
    await machine.check(broker, exact=True)
    await machine.crash(broker)
    await machine.check(await machine.start(), exact=True)
