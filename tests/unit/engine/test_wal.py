"""The three WALs alone: every acked batch is in the store, in order, and the acks come in order.

Runs: AppendWal with its thread under a switch interval of a microsecond, which made a prototype ack batches that it never wrote;
InlineWal; PutWal with several puts in flight that end in any order; the group writer with O_DIRECT's alignment, groups of all
sizes, rolls. Compared: at every ack, the bytes in the store with the appended ones. A mismatch means that a crash loses acked
records.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import pytest

from headgate.broker.cluster.objects import Topic
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.engine.base import keys
from headgate.broker.engine.partition.log import PartitionLog, Pending
from headgate.broker.engine.write.wal import AppendWal, InlineWal, Wal
from headgate.broker.engine.write.wal_group import GroupWriter
from headgate.broker.engine.write.wal_put import PutWal
from headgate.broker.log.batch import LENGTH_OVERHEAD_BYTES, stamp
from headgate.broker.log.buffers import BufferPool
from headgate.broker.log.chunk import CHUNK_HEADER_BYTES, ChunkScan, Frame
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.log.tail import TailMemory
from headgate.broker.runtime.clock import Clock, ManualClock
from headgate.broker.runtime.errors import ClosedError, FatalError, FencedError, HeadgateError, Reason, RetryError
from headgate.broker.store.interface import Appender, AppendFile, Buffer
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.testing.faults import Fault, FaultStore
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.world import NOW_MS

INCARNATION = uuid.UUID(int=77).hex


def make_log(number: int = 0) -> PartitionLog:
    topic = Topic(id=uuid.UUID(int=5), name="t", partitions=8)
    return PartitionLog(topic, number, TopicConfig.parse({}), 1, 0, TailMemory(BufferPool(1 << 20), 1 << 20))


LOGS = [make_log(number) for number in range(3)]
_TEMPLATES = {size: encode_batch([Record(0, NOW_MS, None, b"x" * size)]) for size in (0, 50, 900, 4_000, 30_000)}


def batches(count: int, sizes: Sequence[int] = (0, 50, 900), seed: int = 1) -> list[Pending]:
    """Batches of three partitions; the offset in each is its number in the order of the WAL."""
    chance = random.Random(seed)
    made: list[Pending] = []
    for number in range(count):
        data = bytearray(_TEMPLATES[chance.choice(list(sizes))])
        stamp(data, 0, number, len(data) - LENGTH_OVERHEAD_BYTES, 0)
        made.append((LOGS[number % 3], memoryview(data), number, number + 1, NOW_MS))
    return made


def by_stream(offsets: Iterable[tuple[bytes, int]]) -> dict[bytes, list[int]]:
    """The offsets of each partition, in their order."""
    streams: dict[bytes, list[int]] = {}
    for stream, offset in offsets:
        streams.setdefault(stream, []).append(offset)
    return streams


class Judge:
    """The observer of the WAL: compares the batches that the WAL reports as durable with the bytes in the store."""

    def __init__(self, objects: MemoryObjects) -> None:
        self._objects = objects
        self.committed: list[int] = []
        """The offsets that were reported, in order."""
        self.rolled: list[tuple[int, int]] = []
        self.failed: list[HeadgateError] = []

    def wal_committed(self, group: list[Pending], chunk_number: int, position: int) -> None:
        with self._objects.lock:
            data = self._objects.find(keys.chunk(INCARNATION, chunk_number))
            assert data is not None
            for _, batch, base_offset, _, _ in group:
                assert data[position : position + len(batch)] == batch, "acked before it was stored"
                position += len(batch)
                self.committed.append(base_offset)

    def wal_rolled(
        self, number: int, size_bytes: int, appended_ms: int, sections: dict[PartitionLog, tuple[int, int]] | None
    ) -> None:
        with self._objects.lock:
            data = self._objects.find(keys.chunk(INCARNATION, number))
            assert data is not None
            # The WAL cuts the preallocated rest off a moment later.
            assert len(data) >= size_bytes and not any(data[size_bytes:])
        self.rolled.append((number, size_bytes))

    def wal_failed(self, error: HeadgateError) -> None:
        self.failed.append(error)

    def frames(self) -> list[Frame]:
        """The batches that a recovery would find."""
        found: list[Frame] = []
        sequence = number = 0
        while (data := self._objects.find(keys.chunk(INCARNATION, number))) is not None:
            scan = ChunkScan(bytes(data), uuid.UUID(hex=INCARNATION).bytes, number, sequence)
            found += scan
            sequence = scan.sequence_next
            number += 1
        return found

    def check(self, pending: Sequence[Pending]) -> None:
        """Check that all of `pending` was reported once, in order within each partition, and would be recovered."""
        frames = self.frames()
        assert [frame.header[0] for frame in frames] == self.committed
        assert by_stream((frame.stream, frame.header[0]) for frame in frames) == by_stream(
            (one[0].stream, one[2]) for one in pending
        )


class Bench:
    """A WAL over memory, and its checker."""

    def __init__(
        self,
        kind: str,
        *,
        chunk_bytes: int = 1 << 20,
        chunk_ms: int = 10**9,
        clock: Clock | None = None,
        wal: type[AppendWal] = AppendWal,
    ) -> None:
        self.objects = MemoryObjects()
        self.judge = Judge(self.objects)
        clock = clock if clock is not None else ManualClock(NOW_MS)
        memory = MemoryStore(self.objects, append=kind != "put", alignment_bytes=4096 if kind == "aligned" else 1)
        self.store = FaultStore(memory, sleep=asyncio.sleep, random=random.Random(3))
        loop = asyncio.get_running_loop()
        self.wal: Wal
        if kind == "put":
            self.wal = PutWal(
                store=self.store,
                incarnation_id=INCARNATION,
                flush_bytes=5_000,
                flush_interval_ms=1,
                puts_max=4,
                clock=clock,
                loop=loop,
                observer=self.judge,
            )
        else:
            assert self.store.appender is not None
            self.writer = writer(self.store.appender, clock, chunk_bytes=chunk_bytes, chunk_ms=chunk_ms)
            self.wal = (InlineWal if kind == "inline" else wal)(self.writer, loop, self.judge)
        self.wal.start()


def writer(appender: Appender, clock: Clock, *, chunk_bytes: int = 1 << 20, chunk_ms: int = 10**9) -> GroupWriter:
    return GroupWriter(
        appender=appender, incarnation_id=INCARNATION, synced=True, chunk_bytes=chunk_bytes, chunk_ms=chunk_ms, clock=clock
    )


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def hurry(bench: Bench, pending: Sequence[Pending], seed: int) -> None:
    """Append in bursts, as fast as the loop turns, and compare every ack with the stored bytes."""
    chance = random.Random(seed)
    told: list[int] = []
    sent = 0
    while sent < len(pending):
        burst = chance.choice((1, 1, 1, 2, 40))
        for one in pending[sent : sent + burst]:
            bench.wal.append(one)
        sent = min(sent + burst, len(pending))

        def durable(error: HeadgateError | None, sent: int = sent) -> None:
            assert error is None, "never acked"
            assert len(bench.judge.committed) >= sent, "told before it was committed"
            told.append(sent)

        bench.wal.on_durable(durable)
        await asyncio.sleep(0)
    await bench.wal.close()
    assert told == sorted(told)
    assert told[-1] == len(pending)
    assert bench.wal.complete
    bench.judge.check(pending)
    assert not bench.judge.failed


@pytest.mark.parametrize("kind", ["memory", "aligned"])
@pytest.mark.parametrize("seed", range(2))
async def test_the_hand_over_between_loop_and_thread_loses_nothing(kind: str, seed: int, hasty_threads: None) -> None:
    await hurry(Bench(kind, chunk_bytes=200_000), batches(20_000, sizes=(0,), seed=seed), seed)


class _Unlocked(AppendWal):
    """A wrong hand-over: in two steps, with a turn of the other thread between them."""

    def _flush(self) -> None:
        self._flush_scheduled = False
        fresh, self._fresh = self._fresh, []
        queue = self._queue
        time.sleep(0)
        queue.extend(fresh)
        wake, self._sleeping = self._sleeping, False
        if wake:
            self._wake.release()

    def _serve(self) -> bool:
        queue, self._queue = self._queue, []
        if queue:
            self._writer.write(list(queue))
        return bool(queue) or not self._closing


async def test_a_hand_over_in_two_steps_is_found_out(hasty_threads: None) -> None:
    """Proves that the test above can fail."""
    bench = Bench("memory", wal=_Unlocked)
    with pytest.raises(AssertionError):
        await hurry(bench, batches(20_000, sizes=(0,)), 1)


@pytest.mark.parametrize("kind", ["inline", "memory", "aligned", "put"])
async def test_acks_come_in_order_after_what_they_wait_for(kind: str) -> None:
    bench = Bench(kind)
    pending = batches(300)
    chance = random.Random(4)
    told: list[int] = []

    def waiter(number: int, appended: int) -> Callable[[HeadgateError | None], None]:
        def durable(error: HeadgateError | None) -> None:
            assert error is None
            assert len(bench.judge.committed) >= appended
            assert bench.wal.durable_batches >= appended
            told.append(number)

        return durable

    bench.wal.on_durable(waiter(0, 0))
    assert not told, "never within the call"
    count = 1
    for at, one in enumerate(pending, 1):
        bench.wal.append(one)
        for _ in range(chance.choice((0, 0, 1, 2))):
            bench.wal.on_durable(waiter(count, at))
            count += 1
        if chance.random() < 0.2:
            await asyncio.sleep(0.001)
    assert bench.wal.appended_batches == len(pending)
    await until_async(lambda: bench.wal.durable_batches == len(pending))
    bench.wal.on_durable(waiter(count, len(pending)))
    await bench.wal.close()
    await asyncio.sleep(0)
    assert told == list(range(count + 1))
    bench.judge.check(pending)
    after: list[HeadgateError | None] = []
    bench.wal.on_durable(after.append)
    await asyncio.sleep(0)
    assert isinstance(after[0], ClosedError)


@pytest.mark.parametrize("kind", ["memory", "aligned", "put"])
async def test_faults_of_every_kind_are_outlasted_in_order(kind: str) -> None:
    bench = Bench(kind, chunk_bytes=30_000)
    faults = (Fault.REFUSED, Fault.FULL, Fault.AMBIGUOUS, Fault.LATE, Fault.TORN, Fault.DELAYED)
    bench.store._rates = dict.fromkeys(faults, 0.15)
    pending = batches(400)
    for at, one in enumerate(pending):
        bench.wal.append(one)
        if at % 5 == 0:
            await until_async(lambda at=at: bench.wal.durable_batches > at - 5)
    # A close gives up when the store refuses, so the test waits for the last batches first.
    await until_async(lambda: bench.wal.durable_batches == len(pending))
    bench.store._rates = {}
    await bench.wal.close()
    assert not bench.judge.failed
    assert sum(bench.store.injected.values()) > 20
    bench.judge.check(pending)


async def test_puts_that_end_in_any_order_are_acked_in_theirs() -> None:
    bench = Bench("put")
    bench.store._rates = {Fault.DELAYED: 0.7}
    pending = batches(300, sizes=(4_000,))
    for one in pending:
        bench.wal.append(one)
    await bench.wal.close()
    bench.judge.check(pending)
    assert bench.store.injected[Fault.DELAYED] > 50


async def test_a_put_has_what_waits_up_to_its_size() -> None:
    bench = Bench("put")
    for one in batches(50, sizes=(900,)):
        bench.wal.append(one)
    await bench.wal.close()
    sizes = [size for _, size in bench.judge.rolled]
    assert [number for number, _ in bench.judge.rolled] == list(range(len(sizes)))
    # 5000 bytes of batches, the last of which may exceed it; and headers, keys and index.
    assert all(5_000 <= size < 5_000 + 1_000 + 1_000 for size in sizes[:-1])
    assert bench.wal.complete


class _Steps:
    """An appender that waits before every write until the test releases it."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self.alignment_bytes = 1
        self.may_write = threading.Semaphore(0)
        self.writing = threading.Semaphore(0)

    def create(self, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        return _SteppedFile(self, self._appender.create(key, size_bytes, filled=filled))

    def exists(self, key: str) -> bool:
        return self._appender.exists(key)


class _SteppedFile:
    def __init__(self, steps: _Steps, file: AppendFile) -> None:
        self._steps = steps
        self._file = file
        self.alignment_bytes = file.alignment_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        if position:
            self._steps.writing.release()
            self._steps.may_write.acquire()
        self._file.write(position, buffers)

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def close(self) -> None:
        self._file.close()


async def test_what_comes_during_a_write_is_the_next_group() -> None:
    objects = MemoryObjects()
    appender = MemoryStore(objects).appender
    assert appender is not None
    steps = _Steps(appender)
    judge = Judge(objects)
    loop = asyncio.get_running_loop()
    wal = AppendWal(writer(steps, Clock()), loop, judge)
    wal.start()
    pending = batches(10)
    wal.append(pending[0])
    await loop.run_in_executor(None, steps.writing.acquire)
    for one in pending[1:]:
        wal.append(one)
        await asyncio.sleep(0)
    assert judge.committed == []
    steps.may_write.release()
    await until_async(lambda: judge.committed == [0])
    await loop.run_in_executor(None, steps.writing.acquire)
    steps.may_write.release()
    await wal.close()
    judge.check(pending)
    assert len({frame.appended_ms for frame in judge.frames()}) <= 2


@pytest.mark.parametrize("kind", ["memory", "aligned"])
async def test_a_fence_between_write_and_ack(kind: str) -> None:
    bench = Bench(kind)
    pending = batches(20)
    for one in pending[:10]:
        bench.wal.append(one)
    await until_async(lambda: len(bench.judge.committed) == 10)
    await bench.store.put(keys.fence(INCARNATION), b"HGfence1")
    told: list[HeadgateError | None] = []
    for one in pending[10:]:
        bench.wal.append(one)
    bench.wal.on_durable(told.append)
    await until_async(lambda: bool(told))
    assert isinstance(told[0], FencedError)
    assert len(bench.judge.committed) == 10
    assert len(bench.judge.frames()) == 20, "it was written, and is for whoever took over to judge"
    bench.wal.append(pending[0])
    bench.wal.on_durable(told.append)
    await until_async(lambda: len(told) == 2)
    assert isinstance(told[1], FencedError)
    await bench.wal.close()
    assert not bench.wal.complete
    assert [type(error) for error in bench.judge.failed] == [FencedError]


async def test_a_fence_while_a_chunk_is_completed() -> None:
    bench = Bench("memory", chunk_bytes=2_000)
    pending = batches(8, sizes=(900,))
    for one in pending[:2]:
        bench.wal.append(one)
        await until_async(lambda: bench.wal.durable_batches == bench.wal.appended_batches)
    await bench.store.put(keys.fence(INCARNATION), b"HGfence1")
    told: list[HeadgateError | None] = []
    for one in pending[2:]:
        bench.wal.append(one)
    bench.wal.on_durable(told.append)
    await until_async(lambda: bool(told))
    assert isinstance(told[0], FencedError)
    assert bench.judge.committed == [0, 1]
    await bench.wal.close()


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_log_that_is_gone_for_good_ends_the_wal(is_fenced: bool) -> None:
    """A broker was stopped for so long that another one took over, folded its log and deleted it: it was replaced, no more."""
    bench = Bench("memory")
    bench.wal.append(batches(1)[0])
    await until_async(lambda: bench.wal.durable_batches == 1)
    if is_fenced:
        await bench.store.put(keys.fence(INCARNATION), b"HGfence1")

    def gone(operation: str) -> None:
        if operation != "appender.exists":
            raise FatalError(Reason.STORE_MISCONFIGURED, "the write-ahead log was deleted")

    bench.store.next_fault = gone  # type: ignore[method-assign, assignment]
    kind = FencedError if is_fenced else FatalError
    told: list[HeadgateError | None] = []
    bench.wal.append(batches(2)[1])
    bench.wal.on_durable(told.append)
    await until_async(lambda: bool(told))
    assert isinstance(told[0], kind)
    assert [type(error) for error in bench.judge.failed] == [kind]
    await bench.wal.close()


# -- the group writer by itself, without threads or loops


class Chunks:
    """The groups of a group writer, and its reports about them."""

    def __init__(self, alignment_bytes: int, clock: ManualClock, chunk_bytes: int, chunk_ms: int = 10**9) -> None:
        self.objects = MemoryObjects()
        self.store = FaultStore(MemoryStore(self.objects, alignment_bytes=alignment_bytes), sleep=asyncio.sleep)
        assert self.store.appender is not None
        self.judge = Judge(self.objects)
        self.writer = writer(self.store.appender, clock, chunk_bytes=chunk_bytes, chunk_ms=chunk_ms)
        self.writer.on_group = self.judge.wal_committed
        self.writer.on_rolled = lambda number, size, appended_ms: self.judge.wal_rolled(number, size, appended_ms, None)
        self.writer.open()

    def end(self) -> None:
        self.writer.seal()
        self.writer.release()

    def files(self) -> list[int]:
        """The chunks' sizes in the store, in bytes; including chunks without any write yet."""
        with self.objects.lock:
            return [one.size_bytes for one in self.objects.listing(keys.chunk(INCARNATION, 0).rpartition("/")[0], "", 1000)]


@pytest.mark.parametrize("alignment_bytes", [1, 512, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_groups_of_all_sizes_are_packed(
    alignment_bytes: int, seed: int, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Includes batches larger than the staging buffer, and a last block that is rewritten."""
    monkeypatch.setattr("headgate.broker.engine.write.wal_group.GROUP_BYTES_MAX", 20_000)
    chunks = Chunks(alignment_bytes, clock, chunk_bytes=300_000)
    chance = random.Random(seed)
    pending = batches(400, sizes=(0, 50, 900, 4_000, 30_000), seed=seed)
    at = 0
    before: bytes = b""
    while at < len(pending):
        count = chance.choice((1, 1, 2, 10, 50))
        number = chunks.writer._number
        chunks.writer.write(pending[at : at + count])
        at += count
        if chunks.writer._number == number:
            data = bytes(chunks.objects.find(keys.chunk(INCARNATION, number)) or b"")
            assert data.startswith(before), "bytes that were acked have changed"
        end = chunks.writer._position
        before = bytes(chunks.objects.find(keys.chunk(INCARNATION, chunks.writer._number)) or b"")[:end]
    chunks.end()
    chunks.judge.check(pending)
    assert len(chunks.judge.rolled) > 3


def test_no_group_is_larger_than_its_limit_but_for_a_single_batch(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.broker.engine.write.wal_group.GROUP_BYTES_MAX", 10_000)
    chunks = Chunks(1, clock, chunk_bytes=1 << 20)
    groups: list[list[Pending]] = []
    chunks.writer.on_group = lambda group, number, position: groups.append(group)
    pending = batches(100, sizes=(900, 4_000, 30_000))
    chunks.writer.write(pending)
    chunks.end()
    together = [(one[0].stream, one[2]) for group in groups for one in group]
    assert by_stream(together) == by_stream((one[0].stream, one[2]) for one in pending)
    assert all(len(group) == 1 or sum(len(one[1]) for one in group) <= 10_000 for group in groups)
    assert any(len(group) > 3 for group in groups)


@pytest.mark.parametrize("kind", ["memory", "put"])
async def test_the_batches_of_a_partition_stand_together_in_a_group(kind: str) -> None:
    """A reader of one partition then finds one stretch in each group."""
    bench = Bench(kind)
    pending = batches(30, sizes=(50,))
    for one in pending:
        bench.wal.append(one)
    await bench.wal.close()
    bench.judge.check(pending)
    frames = bench.judge.frames()
    assert len({frame.appended_ms for frame in frames}) == 1, "one group"
    assert [stream for stream, _ in groupby(frame.stream for frame in frames)] == [log.stream for log in LOGS]


def test_a_torn_write_is_written_again_at_its_place(clock: ManualClock) -> None:
    for alignment_bytes in (1, 4096):
        chunks = Chunks(alignment_bytes, clock, chunk_bytes=100_000)
        stalls: list[HeadgateError] = []
        resumed: list[bool] = []
        chunks.writer.on_stalled = stalls.append
        chunks.writer.on_resumed = lambda: resumed.append(True)  # noqa: B023, used before the next round
        pending = batches(60, sizes=(50, 4_000))
        for one in pending:
            chunks.store.script("appender.write", Fault.TORN, Fault.FULL, Fault.AMBIGUOUS, None)
            chunks.writer.write([one])
        chunks.store.script("appender.truncate", Fault.REFUSED, Fault.AMBIGUOUS)
        chunks.store._script["appender.write"].clear()
        assert len(stalls) >= 3 * len(pending)
        assert len(resumed) >= len(pending)
        chunks.judge.check(pending)


def test_a_writer_that_gives_up_says_why(clock: ManualClock) -> None:
    chunks = Chunks(1, clock, chunk_bytes=100_000)
    chunks.writer.write(batches(1))
    chunks.store.script("appender.write", Fault.FULL, Fault.FULL)
    chunks.writer.give_up.set()
    with raises(ClosedError, Reason.STORE_FULL):
        chunks.writer.write(batches(2)[1:])
    chunks.writer.release()
    assert chunks.judge.committed == [0]


def test_a_chunk_is_complete_by_size_or_by_age(clock: ManualClock) -> None:
    chunks = Chunks(1, clock, chunk_bytes=5_000, chunk_ms=1_000)
    one = batches(100, sizes=(900,))
    at = 0

    def write(count: int = 1) -> int:
        nonlocal at
        for _ in range(count):
            chunks.writer.write([one[at]])
            at += 1
        return chunks.writer._number

    assert write(5) == 0
    assert write() == 1, "it had grown to its size"
    clock.advance(999)
    assert write() == 1
    clock.advance(1)
    assert write() == 2, "it was begun long ago"
    clock.jump_wall(-5_000)
    assert write() == 2, "the clock went back"
    clock.advance(7_000)
    assert write() == 3
    clock.advance(10_000)
    chunks.end()
    assert [number for number, _ in chunks.judge.rolled] == [0, 1, 2, 3]
    chunks.judge.check(one[:at])


def test_a_chunk_without_groups_is_not_reported(clock: ManualClock) -> None:
    for alignment_bytes in (1, 4096):
        chunks = Chunks(alignment_bytes, clock, chunk_bytes=5_000, chunk_ms=1_000)
        chunks.end()
        assert chunks.judge.rolled == []
        assert chunks.judge.frames() == []


def test_a_chunk_that_could_not_be_prepared_is_made_when_it_is_needed(clock: ManualClock) -> None:
    chunks = Chunks(4096, clock, chunk_bytes=5_000)
    pending = batches(60, sizes=(900,))
    for number, one in enumerate(pending):
        if number % 2:
            chunks.store.script("appender.create", Fault.FULL, Fault.REFUSED, Fault.FULL, None)
        chunks.writer.write([one])
    chunks.store._script["appender.create"].clear()
    chunks.end()
    assert len(chunks.judge.rolled) > 5
    assert chunks.store.injected[Fault.FULL] > 5
    chunks.judge.check(pending)


def test_chunks_grow_with_what_is_written(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer preallocates as much space as a broker seems to need: preallocation costs disk time, and freeing the rest costs
    more."""
    monkeypatch.setattr("headgate.broker.engine.write.wal_group.FIRST_CHUNK_BYTES", 8_192)
    chunks = Chunks(4096, clock, chunk_bytes=65_536)
    assert chunks.files() == [8_192], "nothing is made ready for a broker that nobody writes to"
    pending = batches(300, sizes=(900,))
    for one in pending:
        chunks.writer.write([one])
    chunks.end()
    sizes = [size for _, size in chunks.judge.rolled]
    for size, room in zip(sizes[:-1], (8_192, 8_192, 32_768, 65_536, 65_536), strict=False):
        assert room <= size < room + 2_000
    assert len(sizes) >= 5
    chunks.judge.check(pending)
    assert min(sizes) > CHUNK_HEADER_BYTES


def test_room_is_filled_with_zeros_while_groups_are_small(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = Chunks(4096, clock, chunk_bytes=300_000)
    made: list[bool] = []
    create = chunks.writer._appender.create

    def record(key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        made.append(filled)
        return create(key, size_bytes, filled=filled)

    monkeypatch.setattr(chunks.writer._appender, "create", record)
    small, large = batches(700, sizes=(900,)), batches(24, sizes=(30_000,))
    for one in small:
        chunks.writer.write([one])
    chunks.writer._join()
    assert len(made) == 3 and all(made), "two chunks are full, and the next one is ready"
    for at in range(0, len(large), 4):
        chunks.writer.write(large[at : at + 4])
    chunks.writer._join()
    assert made == [True, True, True, True, False], "the third one has groups of both kinds, the fourth one of the large kind"
    for one in batches(350, sizes=(900,)):
        chunks.writer.write([one])
    chunks.writer._join()
    assert made[-1], "small ones again"
    chunks.end()


def test_chunks_that_are_not_filled_stay_small(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.broker.engine.write.wal_group.FIRST_CHUNK_BYTES", 8_192)
    chunks = Chunks(4096, clock, chunk_bytes=65_536, chunk_ms=1_000)
    pending = batches(12, sizes=(900,))
    for number, one in enumerate(pending):
        if number % 4 == 3:
            clock.advance(1_500)
        chunks.writer.write([one])
    assert max(chunks.files()) == 8_192
    chunks.end()
    assert len(chunks.judge.rolled) == 4
    assert sum(chunks.files()) == sum(size for _, size in chunks.judge.rolled) + 8_192, "what is left of a file is given back"
    chunks.judge.check(pending)


def test_who_asks_for_a_roll_does_not_wait_for_the_disk(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that is completed early frees most of its file. That happens beside the next writes, which continue."""
    monkeypatch.setattr("headgate.broker.engine.write.wal_group.FIRST_CHUNK_BYTES", 8_192)
    chunks = Chunks(4096, clock, chunk_bytes=65_536)
    pending = batches(30, sizes=(900,))
    for number, one in enumerate(pending):
        if number % 3 == 2:
            chunks.store.script("appender.truncate", Fault.REFUSED)
            chunks.writer.roll()
        chunks.writer.write([one])
    chunks.store._script["appender.truncate"].clear()
    chunks.end()
    assert len(chunks.judge.rolled) == 11, "what the disk does with the rest of a file is nobody's concern"
    chunks.judge.check(pending)


async def test_puts_that_succeed_do_not_hide_that_the_next_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each successful put would restart the timeout for a store that stores nothing."""
    monkeypatch.setattr("headgate.broker.engine.write.wal_put.RETRY_MS_MAX", 1)
    bench = Bench("put")
    put, refused = bench.store.put_if_absent, {keys.chunk(INCARNATION, 1)}
    states: list[tuple[HeadgateError | None, float]] = []

    async def put_if_absent(key: str, data: Buffer | Sequence[Buffer]) -> bool:
        if bench.wal.stalled is not None or states:
            states.append((bench.wal.stalled, bench.wal.stalled_since))
        if key in refused:
            raise RetryError(Reason.STORE_UNAVAILABLE, "not this one")
        return await put(key, data)

    monkeypatch.setattr(bench.store, "put_if_absent", put_if_absent)
    pending = batches(60)
    for one in pending:
        bench.wal.append(one)
        await asyncio.sleep(0.001)
    await until_async(lambda: len(states) > 10)
    assert {(stalled is not None, since) for stalled, since in states} == {(True, states[0][1])}
    refused.clear()
    await until_async(lambda: bench.wal.durable_batches == len(pending))
    assert bench.wal.stalled is None
    await bench.wal.close()
    bench.judge.check(pending)
