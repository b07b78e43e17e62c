"""Buffers of reads: memory is used again only after its last view is gone, and what is kept is bounded.

Compared: the content of a view after further reads, and the memory behind two views. A mismatch means that a consumer receives
bytes of another read.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from headgate.broker.store.local_files import LocalFiles
from headgate.broker.store.read_buffers import BUFFER_BYTES, BUFFERS_MAX, READ_BYTES_MIN, ReadBuffers


def test_a_buffer_is_used_again_once_no_view_is_left() -> None:
    buffers = ReadBuffers()
    first = buffers.take(READ_BYTES_MIN)
    memory = first.obj
    part = first[5:9]
    del first
    second = buffers.take(BUFFER_BYTES)
    assert second.obj is not memory, "a part is still in use"
    assert len(second) == BUFFER_BYTES
    del part
    assert buffers.take(READ_BYTES_MIN + 1).obj is memory


def test_what_is_kept_is_bounded() -> None:
    buffers = ReadBuffers()
    many = [buffers.take(BUFFER_BYTES) for _ in range(BUFFERS_MAX + 3)]
    memories = {id(view.obj): None for view in many}
    assert len(memories) == len(many)
    del many
    again = [buffers.take(BUFFER_BYTES) for _ in range(BUFFERS_MAX + 3)]
    assert sum(id(view.obj) in memories for view in again[:BUFFERS_MAX]) == BUFFERS_MAX


def test_small_and_large_reads_take_no_buffer() -> None:
    buffers = ReadBuffers()
    for size, kind in ((0, bytearray), (READ_BYTES_MIN - 1, bytearray), (BUFFER_BYTES + 1, mmap.mmap)):
        view = buffers.take(size)
        assert isinstance(view.obj, kind)
        assert len(view) == len(view.obj) == size


def test_a_kept_answer_outlasts_further_reads(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path / "store"))
    sizes = (READ_BYTES_MIN, BUFFER_BYTES, 100)
    for number, size in enumerate(sizes):
        files.put(f"a/{number}", [memoryview(bytes([number + 1]) * size)])
    kept = files.get_ranges("a/0", [[(0, READ_BYTES_MIN)]])[0][10:20]
    for _ in range(2 * BUFFERS_MAX):
        for number, size in enumerate(sizes):
            # The file ends before the second range.
            assert files.get_ranges(f"a/{number}", [[(0, size), (size, 50)]]) == [bytes([number + 1]) * size]
    assert kept == bytes([1]) * 10
    files.close()
