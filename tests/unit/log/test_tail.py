"""The tail in memory (`broker/log/tail.py`): the batches of a fetch, and the release of memory.

A mismatch means that a consumer skips records, reads records that are not durable, or gets the bytes of another batch.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.log.buffers import SIZE_STEP_BYTES, BufferPool
from headgate.broker.log.tail import POOLED_BYTES_MIN, SLAB_BYTES_MAX, SLAB_BYTES_MIN, Slab, Tail, TailMemory

MANY = 1 << 30


class Log:
    """A tail, and the appended batches. Their bytes identify them."""

    def __init__(self) -> None:
        self.pool = BufferPool(64 << 20)
        self.memory = TailMemory(self.pool, MANY)
        self.tail = Tail(self.memory)
        self.batches: list[tuple[int, bytes]] = []
        self.end = 100

    def _make(self, size: int, count: int) -> tuple[bytes, int]:
        base, self.end = self.end, self.end + count
        data = (b"%010d" % base * (size // 10 + 1))[:size]
        self.batches.append((base, data))
        return data, base

    def copy(self, size: int = 100, count: int = 1) -> None:
        data, base = self._make(size, count)
        kept = self.tail.append_copy(memoryview(data), size, base, self.end)
        if kept is None:
            self.tail.open_slab(size, base)
            kept = self.tail.append_copy(memoryview(data), size, base, self.end)
        assert kept == data

    def adopt(self, size: int, count: int = 1, at: int = 50) -> Slab:
        data, base = self._make(size, count)
        buffer = self.pool.take(at + size)
        buffer[at : at + size] = data
        return self.tail.adopt(buffer, at, size, base, self.end)

    def read(self, offset: int, end_offset: int | None = None, max_bytes: int = MANY) -> list[int] | None:
        """The base offsets of the batches of a read. Every byte is checked."""
        slices = self.tail.read(offset, self.end if end_offset is None else end_offset, max_bytes)
        if slices is None:
            return None
        data = b"".join(slices)
        first = int(data[:10]) if data else 0
        found = [base for base, _ in self.batches if base >= first] if data else []
        while found and b"".join(batch for base, batch in self.batches if base in found) != data:
            found.pop()
        assert bool(data) == bool(found), "bytes that are not whole batches"
        return found


@pytest.fixture
def log() -> Log:
    return Log()


def test_an_empty_tail_has_nothing_to_say(log: Log) -> None:
    assert log.tail.start_offset is None
    assert log.read(100) == []
    assert log.read(99) is None


def test_batches_are_read_from_the_one_that_has_the_offset(log: Log) -> None:
    for count in (1, 5, 1):
        log.copy(count=count)
    assert log.tail.start_offset == 100
    assert log.read(100) == [100, 101, 106]
    assert log.read(101) == log.read(103) == log.read(105) == [101, 106]
    assert log.read(106) == [106]
    assert log.read(107) == log.read(1000) == []
    assert log.read(99) is None


def test_a_read_across_slabs_gives_a_slice_of_each(log: Log) -> None:
    log.copy(SLAB_BYTES_MIN)
    log.copy(10)
    log.adopt(300_000)
    log.copy(SIZE_STEP_BYTES * 2)
    assert len(log.tail.slabs) == 4
    assert log.read(100) == [100, 101, 102, 103]
    assert log.read(102) == [102, 103]
    assert len(log.tail.read(100, log.end, MANY) or []) == 4


def test_the_high_watermark_cuts(log: Log) -> None:
    for size in (100, 100, SLAB_BYTES_MIN, 100, 100):
        log.copy(size)
    assert len(log.tail.slabs) == 2
    for end in range(100, 106):
        assert log.read(100, end) == list(range(100, end))
        assert log.read(102, end) == list(range(102, end))


@pytest.mark.parametrize(
    ("max_bytes", "found"),
    [
        (-5, 1),
        (0, 1),
        (1, 1),
        (99, 1),
        (100, 1),
        (199, 1),
        (200, 2),
        (299, 2),
        (300, 3),
        (399, 3),
        (400, 3),
        (599, 3),
        (600, 4),
        (700, 5),
    ],
)
def test_a_read_stops_before_its_limit_but_gives_one_batch(log: Log, max_bytes: int, found: int) -> None:
    for _ in range(3):
        log.copy(100)
    log.tail.open_slab(SLAB_BYTES_MIN, log.end)
    log.copy(300)
    log.copy(100)
    assert log.read(100, max_bytes=max_bytes) == [100, 101, 102, 103, 104][:found]


def test_the_first_batch_is_given_whatever_its_size_wherever_it_stands(log: Log) -> None:
    log.copy(10)
    log.copy(5_000)
    log.copy(10)
    log.adopt(300_000)
    assert log.read(101, max_bytes=100) == [101]
    assert log.read(103, max_bytes=100) == [103]
    assert log.read(102, max_bytes=100) == [102]


def test_the_limit_and_the_high_watermark_together(log: Log) -> None:
    for _ in range(5):
        log.copy(100)
    assert log.read(100, 103, 250) == [100, 101]
    assert log.read(100, 103, 350) == [100, 101, 102]
    assert log.read(102, 103, 10) == [102]


def test_small_batches_go_behind_an_adopted_one(log: Log) -> None:
    slab = log.adopt(1_000, at=70)
    room = len(slab.buffer) - slab.end
    log.copy(room)
    assert len(log.tail.slabs) == 1
    log.copy(1)
    assert len(log.tail.slabs) == 2
    assert log.read(100) == [100, 101, 102]


def test_slabs_grow_to_a_limit_and_begin_small_again(log: Log) -> None:
    sizes: list[int] = []
    for _ in range(12):
        log.copy(SLAB_BYTES_MIN)
        while log.tail.slabs[-1].end + SLAB_BYTES_MIN <= len(log.tail.slabs[-1].buffer):
            log.copy(SLAB_BYTES_MIN)
    sizes = [len(slab.buffer) for slab in log.tail.slabs]
    assert sizes[0] == SLAB_BYTES_MIN
    assert sizes == sorted(sizes)
    assert max(sizes) == SLAB_BYTES_MAX
    log.tail.clear()
    log.copy()
    assert len(log.tail.slabs[0].buffer) == SLAB_BYTES_MIN


def test_the_oldest_slab_is_dropped_and_no_other(log: Log) -> None:
    log.copy(SLAB_BYTES_MIN)
    log.copy(SLAB_BYTES_MIN)
    log.tail.drop(1)
    assert log.tail.start_offset == 101
    assert log.read(100) is None
    assert log.read(101) == [101]
    log.tail.drop(1)
    assert log.read(101) is None
    assert log.read(102) == []
    log.copy()
    assert log.read(102) == [102]


def test_a_slab_that_a_slow_reader_looks_at_keeps_its_bytes(log: Log) -> None:
    slab = log.adopt(300_000)
    slices = log.tail.read(100, log.end, MANY)
    assert slices
    before = bytes(slices[0])
    log.tail.drop(1)
    assert log.pool.free_bytes == 0
    for _ in range(5):
        taken = log.pool.take(300_000)
        assert taken is not slab.buffer
        taken[:] = bytes(len(taken))
    assert bytes(slices[0]) == before


def test_a_slab_that_nobody_looks_at_goes_back_to_the_pool(log: Log) -> None:
    slab = log.adopt(300_000)
    log.read(100)
    log.tail.drop(1)
    assert log.pool.free_bytes == len(slab.buffer)
    assert log.pool.take(300_000) is slab.buffer
    while len(log.tail.slabs) == 0 or len(log.tail.slabs[-1].buffer) <= POOLED_BYTES_MIN:
        log.copy(POOLED_BYTES_MIN // 3)
    large = log.tail.slabs[-1]
    log.tail.clear()
    assert log.memory.held_bytes == 0
    assert log.pool.take(len(large.buffer)) is large.buffer


def test_a_cleared_tail_is_empty(log: Log) -> None:
    log.copy()
    log.tail.clear()
    assert log.tail.start_offset is None
    assert log.read(100) is None


def test_slabs_whose_records_are_deleted_leave(log: Log) -> None:
    """A slab stays while one of its records is needed; no read touches one that was released."""
    for _ in range(5):
        log.copy(SLAB_BYTES_MIN // 2, count=2)
        log.adopt(100_000, count=3)
    held = log.memory.held_bytes
    assert held == sum(len(slab.buffer) for slab in log.tail.slabs)
    for offset in range(100, log.end + 1):
        log.tail.drop_below(offset)
        left = log.tail.slabs
        assert all(slab.next_offset > offset for slab in left)
        assert log.memory.held_bytes == sum(len(slab.buffer) for slab in left)
        first = max((base for base, _ in log.batches if base <= offset), default=offset)
        assert log.read(offset) == ([base for base, _ in log.batches if base >= first] if offset < log.end else [])
    assert log.memory.held_bytes == 0
    assert log.pool.free_bytes > 0
    log.copy()
    assert log.read(log.end - 1) == [log.end - 1]


def test_the_oldest_slabs_of_all_tails_leave_first() -> None:
    pool = BufferPool(0)
    memory = TailMemory(pool, 3 * SLAB_BYTES_MIN)
    tails = [Tail(memory) for _ in range(3)]
    for number in range(7):
        tails[number % 3].open_slab(SLAB_BYTES_MIN, number).next_offset = number + 1
        tails[number % 3]._room = SLAB_BYTES_MIN // 2
    assert [[slab.next_offset - 1 for slab in tail.slabs] for tail in tails] == [[6], [4], [5]]
    assert memory.held_bytes == 3 * SLAB_BYTES_MIN


@given(
    sizes=st.lists(
        st.tuples(st.sampled_from(["copy", "adopt"]), st.integers(60, 70_000), st.integers(1, 4)), min_size=1, max_size=30
    ),
    data=st.data(),
)
def test_a_read_that_has_all_batches_is_known(sizes: list[tuple[str, int, int]], data: st.DataObject) -> None:
    log = Log()
    for kind, size, count in sizes:
        (log.copy if kind == "copy" else log.adopt)(size, count)
    bases = [base for base, _ in log.batches]
    end_offset = data.draw(st.sampled_from([*bases[1:], log.end]))
    offset = data.draw(st.integers(bases[0], end_offset - 1))
    max_bytes = data.draw(st.integers(1, 200_000))
    slices = log.tail.read(offset, end_offset, max_bytes)
    assert slices
    size = sum(map(len, slices))
    everything = log.tail.read(offset, end_offset, MANY)
    assert everything
    assert log.tail.reaches(offset, end_offset, size) == (size == sum(map(len, everything)))
