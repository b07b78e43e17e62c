"""Large buffers that are used again.

The first use of new memory costs several times as much as a copy into it. The pool therefore keeps a finished buffer for the next
request of its size. No view of such a buffer may exist. `give_back` tests this: Python does not let a bytearray change its length
while a view of it exists. The pool leaves such a buffer to the garbage collector.
"""

from __future__ import annotations

SIZE_STEP_BYTES = 16 << 10
"""Sizes of buffers are multiples of this. Frames of nearly the same size share buffers, and a frame of 64 KB wastes at most a
fifth."""


class BufferPool:
    """Free buffers by size.

    Args:
        bytes_max: largest sum of the free buffers.
    """

    def __init__(self, bytes_max: int) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._idle: dict[int, int] = {}
        """By size: the smallest number of free buffers since the last `trim`. No burst needed these."""
        self._bytes_max = bytes_max
        self.free_bytes = 0

    def take(self, size_bytes: int) -> bytearray:
        """A buffer of at least `size_bytes`. Its content is undefined."""
        size = -(-size_bytes // SIZE_STEP_BYTES) * SIZE_STEP_BYTES
        free = self._free.get(size)
        if free:
            self.free_bytes -= size
            buffer = free.pop()
            if len(free) < self._idle.get(size, 0):
                self._idle[size] = len(free)
            return buffer
        return bytearray(size)

    def has_free(self, size_bytes: int) -> bool:
        """Whether a buffer of this size is free, so that no new memory is needed."""
        return bool(self._free.get(-(-size_bytes // SIZE_STEP_BYTES) * SIZE_STEP_BYTES))

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer for later, if no view of it exists and the pool has room."""
        size = len(buffer)
        if size % SIZE_STEP_BYTES or size == 0 or self.free_bytes + size > self._bytes_max:
            return
        try:
            buffer.append(buffer.pop())
        except BufferError:
            return
        self.free_bytes += size
        self._free.setdefault(size, []).append(buffer)

    def trim(self) -> int:
        """Drop the buffers that were free the whole time since the last call. Returns their bytes."""
        trimmed_bytes = 0
        for size, free in list(self._free.items()):
            idle = self._idle.get(size, 0)
            del free[:idle]
            trimmed_bytes += idle * size
            if free:
                self._idle[size] = len(free)
            else:
                del self._free[size]
                self._idle.pop(size, None)
        self.free_bytes -= trimmed_bytes
        return trimmed_bytes
