"""The tail of one partition in memory: contiguous runs of batches, ready to be sent as they are.

A segment is one buffer whose batches follow each other without a gap, so that a fetch is one slice of it. Small batches are copied
behind each other; a large one that was received into a buffer of its own becomes a segment without a copy. Large buffers come from
a pool and go back to it, unless a slow connection still sends slices of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from broker.log.buffers import BufferPool

SEGMENT_BYTES_MIN = 16 << 10
"""First segment of a partition: a quiet partition costs little."""
SEGMENT_BYTES_MAX = 4 << 20
"""Largest segment: a fetch of some MB is one or two slices."""


POOLED_BYTES_MIN = 64 << 10
"""Smaller buffers are left to the allocator."""


class Segment:
    """One buffer of contiguous batches. `offsets[i]` is the base offset of the batch at `positions[i]`."""

    __slots__ = ("buffer", "end", "next_offset", "offsets", "positions", "view")

    def __init__(self, buffer: bytearray, start: int, base_offset: int) -> None:
        self.buffer = buffer
        self.view = memoryview(buffer)
        self.end = start
        self.next_offset = base_offset
        self.offsets = array("q")
        self.positions = array("I")

    def release(self, pool: BufferPool) -> None:
        """Nobody will look this segment up again."""
        self.view.release()
        pool.give_back(self.buffer)


class Tail:
    """The segments of one partition, oldest first; contiguous offsets from `start_offset` on."""

    __slots__ = ("_pool", "_room", "_starts", "segments")

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self.segments: list[Segment] = []
        self._starts: list[int] = []
        """The first offset of each segment."""
        self._room = SEGMENT_BYTES_MIN

    @property
    def start_offset(self) -> int | None:
        """The first offset in memory, or None where there is none."""
        return self.segments[0].offsets[0] if self.segments else None

    def append_copy(self, batch: memoryview, size: int, base_offset: int, next_offset: int) -> memoryview | None:
        """Copy a batch behind the last one.

        Returns:
            The batch where it is kept; None where the last segment has no room: `open_segment` first.
        """
        if not self.segments:
            return None
        segment = self.segments[-1]
        position = segment.end
        end = position + size
        if end > len(segment.buffer):
            return None
        kept = segment.view[position:end]
        kept[:] = batch
        segment.end = end
        segment.next_offset = next_offset
        segment.offsets.append(base_offset)
        segment.positions.append(position)
        return kept

    def open_segment(self, size: int, base_offset: int) -> Segment:
        """Begin a segment with room for `size` bytes at least. The owner counts its memory."""
        if self.segments:
            self._room = min(self._room * 2, SEGMENT_BYTES_MAX)
        room = max(self._room, size)
        segment = Segment(self._pool.take(room) if room >= POOLED_BYTES_MIN else bytearray(room), 0, base_offset)
        self.segments.append(segment)
        self._starts.append(base_offset)
        return segment

    def adopt(self, buffer: bytearray, position: int, size: int, base_offset: int, next_offset: int) -> Segment:
        """Make a batch that stands in a buffer of its own a segment, without copying it. The buffer is the tail's from now on."""
        self._room = SEGMENT_BYTES_MIN  # what is copied next may stay alone between two that are not: it gets no room to grow
        segment = Segment(buffer, position, base_offset)
        segment.offsets.append(base_offset)
        segment.positions.append(position)
        segment.end = position + size
        segment.next_offset = next_offset
        self.segments.append(segment)
        self._starts.append(base_offset)
        return segment

    def evict(self, segment: Segment) -> bool:
        """Forget the oldest segment, if that is `segment`; False where it was gone already."""
        if self.segments and self.segments[0] is segment:
            del self.segments[0], self._starts[0]
            if not self.segments:
                self._room = SEGMENT_BYTES_MIN
            return True
        return False

    def clear(self) -> None:
        self.segments.clear()
        self._starts.clear()

    def read(self, offset: int, end_offset: int, max_bytes: int) -> list[memoryview] | None:
        """Whole batches from the one that contains `offset` up to `end_offset` (exclusive, a batch boundary).

        Args:
            max_bytes: stop before this many bytes; one batch is always given, whatever its size.

        Returns:
            Slices of the buffers; [] where offset >= end_offset; None where `offset` is older than what is in memory.
        """
        segments = self.segments
        if offset >= end_offset:
            return []
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        slices: list[memoryview] = []
        room = max_bytes
        while index < len(segments):
            segment = segments[index]
            offsets = segment.offsets
            if slices:
                first = 0
                if offsets[0] >= end_offset:
                    break
            else:
                first = bisect_right(offsets, offset) - 1
            start = segment.positions[first]
            end = segment.end
            if segment.next_offset > end_offset:
                end = segment.positions[bisect_left(offsets, end_offset)]
            if end - start > room:
                last = bisect_right(segment.positions, start + room) - 1
                if last > first:
                    slices.append(segment.view[start : segment.positions[last]])
                elif not slices:
                    last = first + 1
                    slices.append(segment.view[start : segment.positions[last] if last < len(offsets) else segment.end])
                break
            slices.append(segment.view[start:end])
            room -= end - start
            if room <= 0:
                break
            index += 1
        return slices
