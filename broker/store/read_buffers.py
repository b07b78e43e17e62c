"""Buffers for bytes that are read from files.

The first use of new memory costs more than the copy of a file's bytes into it. So a buffer is used again once no view of it is
left. Python shows this: a bytearray does not change its length while a view of it exists.
"""

from __future__ import annotations

import mmap
import threading

BUFFER_BYTES = 1 << 20
"""Size of a buffer: consumers ask for a megabyte of each partition by default. A longer read gets a mapping of its own, which the
operating system has back as soon as the answer has left: malloc(3) would keep up to 32 MiB of such memory."""
READ_BYTES_MIN = 64 << 10
"""Smallest read, in bytes, that takes a buffer. Smaller ones would hold a whole buffer for a few bytes, and malloc(3) reuses their
memory."""
BUFFERS_MAX = 8
"""Buffers that are kept: 8 MiB. Further reads at the same time get new memory."""


class ReadBuffers:
    """Up to `buffers_max` buffers of `buffer_bytes`. Thread-safe."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES, buffers_max: int = BUFFERS_MAX) -> None:
        self._buffer_bytes = buffer_bytes
        self._buffers_max = buffers_max
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []

    def take(self, size_bytes: int) -> memoryview:
        """`size_bytes` with undefined content, for as long as a view of them exists."""
        if READ_BYTES_MIN <= size_bytes <= self._buffer_bytes:
            with self._lock:
                for buffer in self._buffers:
                    if _is_free(buffer):
                        return memoryview(buffer)[:size_bytes]
                if len(self._buffers) < self._buffers_max:
                    self._buffers.append(bytearray(self._buffer_bytes))
                    return memoryview(self._buffers[-1])[:size_bytes]
        if size_bytes > self._buffer_bytes:
            return memoryview(mmap.mmap(-1, size_bytes))
        return memoryview(bytearray(size_bytes))


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
