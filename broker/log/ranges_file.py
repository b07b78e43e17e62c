"""A file of which only some ranges of bytes are in memory, as Arrow reads it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class RangesFile:
    """Parts of a file. Positions are those of the whole file.

    Args:
        parts: (position, bytes) of each, ascending.
    """

    closed = False

    def __init__(self, parts: Sequence[tuple[int, memoryview]]) -> None:
        self._parts = parts
        self._position = 0

    def read(self, size: int = -1) -> memoryview:
        number = bisect_right(self._parts, self._position, key=lambda part: part[0]) - 1
        start, data = self._parts[max(number, 0)]
        at = self._position - start
        if at < 0 or size < 0 or at + size > len(data):
            raise OSError(f"bytes outside the row group. position={self._position} size={size}")
        self._position += size
        return data[at : at + size]

    def seek(self, position: int, whence: int = 0) -> int:
        start, data = self._parts[-1]
        self._position = position + (0, self._position, start + len(data))[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
