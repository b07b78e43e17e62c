"""The tail of one partition in memory: contiguous runs of batches, ready to be sent as they are.

A segment is one buffer whose batches follow each other without a gap, so that a fetch is one slice of it. Small batches are copied
behind each other; a large one that was received into a buffer of its own becomes a segment without a copy. Large buffers come from
a pool and go back to it, unless a slow connection still sends slices of them.

`TailMemory` counts the segments of all tails of a broker. A segment leaves memory when the tails hold too much, when all of its
records are deleted, or when its partition is closed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict

from headgate.broker.log.buffers import BufferPool

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
        """Give the buffer back. No read finds this segment any more."""
        self.view.release()
        pool.give_back(self.buffer)


class TailMemory:
    """The segments of all tails, oldest first.

    Args:
        pool: lends large buffers.
        bytes_max: memory in segments; beyond it the oldest ones leave, of whatever partition. The newest one always stays.
    """

    __slots__ = ("_bytes_max", "_segments", "held_bytes", "pool")

    def __init__(self, pool: BufferPool, bytes_max: int) -> None:
        self.pool = pool
        self.held_bytes = 0
        """Memory in the segments of all tails."""
        self._bytes_max = bytes_max
        self._segments: OrderedDict[Segment, Tail] = OrderedDict()

    def add(self, segment: Segment, tail: Tail) -> None:
        """Count a new segment, and let go of the oldest ones. Their batches are in the WAL's hands or in the store."""
        self._segments[segment] = tail
        self.held_bytes += len(segment.buffer)
        while self.held_bytes > self._bytes_max and len(self._segments) > 1:
            oldest = next(iter(self._segments.values()))
            oldest.drop(1)

    def remove(self, segment: Segment) -> None:
        """Stop counting a segment, and give its buffer back."""
        del self._segments[segment]
        self.held_bytes -= len(segment.buffer)
        segment.release(self.pool)


class Tail:
    """The segments of one partition, oldest first; contiguous offsets from `start_offset` on."""

    __slots__ = ("_memory", "_room", "_starts", "segments")

    def __init__(self, memory: TailMemory) -> None:
        self._memory = memory
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
        """Begin a segment with room for `size` bytes at least."""
        if self.segments:
            self._room = min(self._room * 2, SEGMENT_BYTES_MAX)
        room = max(self._room, size)
        segment = Segment(self._memory.pool.take(room) if room >= POOLED_BYTES_MIN else bytearray(room), 0, base_offset)
        self.segments.append(segment)
        self._starts.append(base_offset)
        self._memory.add(segment, self)
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
        self._memory.add(segment, self)
        return segment

    def drop_below(self, offset: int) -> None:
        """Forget the segments whose records all lie below `offset`."""
        count = 0
        while count < len(self.segments) and self.segments[count].next_offset <= offset:
            count += 1
        if count:
            self.drop(count)

    def clear(self) -> None:
        """Forget every segment."""
        self.drop(len(self.segments))

    def drop(self, count: int) -> None:
        """Forget the oldest `count` segments."""
        dropped = self.segments[:count]
        del self.segments[:count], self._starts[:count]
        if not self.segments:
            self._room = SEGMENT_BYTES_MIN
        for segment in dropped:
            self._memory.remove(segment)

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
