"""The places of one partition's batches in the store: packed arrays, never one object per batch.

`BatchIndex` has one row per batch: 24 bytes, invisible to the garbage collector. It is in memory for open chunks; for sealed
chunks it is read from the chunk's index section on demand, and only the chunk's extent stays in memory.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from operator import lt

from headgate.broker.log.batch import LENGTH_OVERHEAD_BYTES
from headgate.broker.runtime.errors import CorruptError, Reason

ROW_BYTES = 24


class BatchIndex:
    """Rows (base offset, greatest timestamp in ms, position in the chunk, size in bytes) of consecutive batches."""

    __slots__ = ("adders", "offsets", "positions", "sizes", "timestamps")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.timestamps = array("q")
        self.positions = array("I")
        self.sizes = array("I")
        self.adders = (self.offsets.append, self.timestamps.append, self.positions.append, self.sizes.append)
        """The methods that append to each column, in the order of `add`: for callers that add many rows."""

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, base_offset: int, timestamp_max_ms: int, position: int, size_bytes: int) -> None:
        self.offsets.append(base_offset)
        self.timestamps.append(timestamp_max_ms)
        self.positions.append(position)
        self.sizes.append(size_bytes)

    def rows(self, first: int, end: int, bytes_max: int) -> BatchIndex:
        """A copy of the rows from `first` on, below `end`, whose batches have `bytes_max` together; one row at least."""
        size = 0
        for row in range(first, end):
            size += self.sizes[row]
            if size > bytes_max and row > first:
                end = row
                break
        copy = BatchIndex()
        copy.offsets.extend(self.offsets[first:end])
        copy.timestamps.extend(self.timestamps[first:end])
        copy.positions.extend(self.positions[first:end])
        copy.sizes.extend(self.sizes[first:end])
        return copy

    def stretches(self) -> list[tuple[int, int]]:
        """(position, size in bytes) of the parts of the chunk that these batches fill, ascending."""
        found: list[tuple[int, int]] = []
        begin = end = -1
        for position, size in zip(self.positions, self.sizes, strict=True):
            if position != end:
                if end > begin:
                    found.append((begin, end - begin))
                begin = position
            end = position + size
        if end > begin:
            found.append((begin, end - begin))
        return found

    def find(self, offset: int, first: int = 0) -> int:
        """The row of the batch with `offset`: the last one whose base is not greater."""
        return max(bisect_right(self.offsets, offset, first) - 1, first)

    def find_timestamp(self, timestamp_ms: int, first: int = 0) -> int | None:
        """The first row from `first` on with a record at or after `timestamp_ms`, or None."""
        timestamps = self.timestamps
        for row in range(first, len(timestamps)):
            if timestamps[row] >= timestamp_ms:
                return row
        return None

    def encode(self, first: int = 0, end: int | None = None) -> bytes:
        """Rows [first, end) as bytes: the four columns behind each other, little-endian."""
        columns = [column[first:end] for column in (self.offsets, self.timestamps, self.positions, self.sizes)]
        if sys.byteorder == "big":
            for column in columns:
                column.byteswap()
        return b"".join(column.tobytes() for column in columns)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> BatchIndex:
        """Rows from a chunk's index section. Raises CorruptError."""
        view = memoryview(data)
        if len(view) % ROW_BYTES:
            raise CorruptError(Reason.CORRUPT_STORE, f"index section is cut off. bytes=`{len(view)}`")
        rows = len(view) // ROW_BYTES
        index = cls()
        start = 0
        for column in (index.offsets, index.timestamps, index.positions, index.sizes):
            column.frombytes(view[start : start + rows * column.itemsize])
            start += rows * column.itemsize
            if sys.byteorder == "big":
                column.byteswap()
        return index

    def fits(self, size_bytes: int) -> bool:
        """True if these can be rows of a chunk of that size: ascending offsets, batches inside it, one behind the other."""
        if not self.offsets or self.positions[-1] + self.sizes[-1] > size_bytes:
            return False
        return all(map(lt, self.offsets, self.offsets[1:])) and all(map(lt, self.positions, self.positions[1:]))

    def is_row(self, row: int, header: tuple[int, ...]) -> bool:
        """True if this is the header of the batch of a row. `header`: fields in the order of `BatchHeader`."""
        return (
            header[0] == self.offsets[row]
            and header[8] == self.timestamps[row]
            and header[1] + LENGTH_OVERHEAD_BYTES == self.sizes[row]
        )

    def drop(self, rows: int) -> None:
        """Drop the first `rows` rows."""
        for column in (self.offsets, self.timestamps, self.positions, self.sizes):
            del column[:rows]
