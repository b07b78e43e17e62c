"""Large buffers that are used again.

Memory that is touched for the first time costs several times as much as a copy into it, so a buffer that is done with is kept for
the next one of its size. Nobody may hold a view of it then: a bytearray that is still exported cannot change its length, which is
how `give_back` finds out, and such a buffer is left to the garbage collector.
"""

from __future__ import annotations

SIZE_STEP_BYTES = 16 << 10
"""Buffers have multiples of this: frames of nearly the same size share them, and a frame of 64 KB wastes a fifth at the most."""


class BufferPool:
    """Free buffers by size.

    Args:
        bytes_max: what may lie here unused.
    """

    def __init__(self, bytes_max: int) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._idle: dict[int, int] = {}
        """By size: the fewest buffers that were free since the last `trim`. No burst needed these."""
        self._bytes_max = bytes_max
        self.free_bytes = 0

    def take(self, size_bytes: int) -> bytearray:
        """A buffer of at least `size_bytes`, with anything in it."""
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
        """Whether a buffer of this size lies here: one whose memory is there already."""
        return bool(self._free.get(-(-size_bytes // SIZE_STEP_BYTES) * SIZE_STEP_BYTES))

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer for later, if nobody looks at it any more and there is room."""
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
        """Let go of the buffers that were free ever since the last call. Returns their bytes."""
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
