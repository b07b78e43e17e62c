"""Large buffers (`broker/log/buffers.py`): reused, but never while a view of one exists.

A mismatch means that a slow consumer gets the bytes of another request.
"""

from __future__ import annotations

import pytest

from headgate.broker.log.buffers import SIZE_STEP_BYTES, BufferPool

STEP = SIZE_STEP_BYTES


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool(8 * STEP)


def test_sizes_are_rounded_up(pool: BufferPool) -> None:
    for wanted, got in ((1, STEP), (STEP, STEP), (STEP + 1, 2 * STEP), (5 * STEP - 1, 5 * STEP)):
        assert len(pool.take(wanted)) == got


def test_a_buffer_is_used_again_for_its_size(pool: BufferPool) -> None:
    buffer = pool.take(STEP)
    pool.give_back(buffer)
    assert pool.free_bytes == STEP
    assert pool.take(2 * STEP) is not buffer
    assert pool.take(1) is buffer
    assert pool.free_bytes == 0
    assert pool.take(1) is not buffer


def test_the_content_and_the_length_are_left_alone(pool: BufferPool) -> None:
    buffer = pool.take(STEP)
    buffer[-1] = 7
    pool.give_back(buffer)
    assert len(buffer) == STEP
    assert buffer[-1] == 7


def test_nobody_gets_a_buffer_that_somebody_looks_at(pool: BufferPool) -> None:
    buffer = pool.take(STEP)
    view = memoryview(buffer)
    piece = view[10:20]
    pool.give_back(buffer)
    assert pool.free_bytes == 0
    view.release()
    pool.give_back(buffer)
    assert pool.free_bytes == 0
    assert pool.take(STEP) is not buffer
    del piece
    pool.give_back(buffer)
    assert pool.take(STEP) is buffer


def test_what_lies_unused_is_bounded(pool: BufferPool) -> None:
    buffers = [pool.take(3 * STEP) for _ in range(4)]
    for buffer in buffers:
        pool.give_back(buffer)
    assert pool.free_bytes == 6 * STEP
    pool.give_back(pool.take(2 * STEP))
    assert pool.free_bytes == 8 * STEP
    pool.give_back(bytearray(STEP))
    assert pool.free_bytes == 8 * STEP


@pytest.mark.parametrize("size", [0, 1, STEP - 1, STEP + 1])
def test_buffers_of_other_sizes_are_left_to_the_allocator(pool: BufferPool, size: int) -> None:
    pool.give_back(bytearray(size))
    assert pool.free_bytes == 0


def test_buffers_that_were_not_needed_are_let_go(pool: BufferPool) -> None:
    """Buffers that a burst needs stay; buffers that lay free between two calls are dropped."""
    burst = [pool.take(STEP) for _ in range(5)] + [pool.take(2 * STEP)]
    for buffer in burst:
        pool.give_back(buffer)
    assert pool.trim() == 0, "they were in use since the last call"
    used = [pool.take(STEP) for _ in range(3)]
    for buffer in used:
        pool.give_back(buffer)
    assert pool.trim() == 2 * STEP + 2 * STEP
    assert pool.free_bytes == 3 * STEP
    assert [pool.take(STEP) for _ in range(3)] == used[::-1]
    assert pool.free_bytes == 0
    assert pool.trim() == 0
    pool.give_back(used[0])
    assert pool.trim() == 0
    assert pool.trim() == STEP
    assert pool.free_bytes == 0
