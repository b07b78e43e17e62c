"""The tail of one partition in memory: contiguous runs of batches, ready to be sent as they are.

A slab is one buffer whose batches follow each other without a gap, so that a fetch is one slice of it. Small batches are copied
behind each other; a large one that was received into a buffer of its own becomes a slab without a copy. Large buffers come from
a pool and go back to it, unless a slow connection still sends slices of them.

`TailMemory` counts the slabs of all tails of a broker. A slab leaves memory when the tails hold too much, when all of its
records are deleted, or when its partition is closed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict

from headgate.broker.log.buffers import BufferPool

SLAB_BYTES_MIN = 16 << 10
"""First slab of a partition: a quiet partition costs little."""
SLAB_BYTES_MAX = 4 << 20
"""Largest slab: a fetch of some MB is one or two slices."""


POOLED_BYTES_MIN = 64 << 10
"""Smaller buffers are left to the allocator."""


class Slab:
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
        """Give the buffer back. No read finds this slab any more."""
        self.view.release()
        pool.give_back(self.buffer)


class TailMemory:
    """The slabs of all tails, oldest first.

    Args:
        pool: lends large buffers.
        bytes_max: memory in slabs. Beyond it, the oldest slabs of all partitions leave. The newest one always stays.
    """

    __slots__ = ("_bytes_max", "_slabs", "held_bytes", "pool")

    def __init__(self, pool: BufferPool, bytes_max: int) -> None:
        self.pool = pool
        self.held_bytes = 0
        """Memory in the slabs of all tails."""
        self._bytes_max = bytes_max
        self._slabs: OrderedDict[Slab, Tail] = OrderedDict()

    def add(self, slab: Slab, tail: Tail) -> None:
        """Count a new slab, and drop the oldest ones beyond the limit. The WAL or the store still has their batches."""
        self._slabs[slab] = tail
        self.held_bytes += len(slab.buffer)
        while self.held_bytes > self._bytes_max and len(self._slabs) > 1:
            oldest = next(iter(self._slabs.values()))
            oldest.drop(1)

    def remove(self, slab: Slab) -> None:
        """Stop counting a slab, and give its buffer back."""
        del self._slabs[slab]
        self.held_bytes -= len(slab.buffer)
        slab.release(self.pool)


class Tail:
    """The slabs of one partition, oldest first. Their offsets are contiguous from `start_offset` on."""

    __slots__ = ("_memory", "_room", "_starts", "slabs")

    def __init__(self, memory: TailMemory) -> None:
        self._memory = memory
        self.slabs: list[Slab] = []
        self._starts: list[int] = []
        """The first offset of each slab."""
        self._room = SLAB_BYTES_MIN

    @property
    def start_offset(self) -> int | None:
        """The first offset in memory; None if the tail is empty."""
        return self.slabs[0].offsets[0] if self.slabs else None

    def append_copy(self, batch: memoryview, size: int, base_offset: int, next_offset: int) -> memoryview | None:
        """Copy a batch behind the last one.

        Returns:
            The batch in its new place. None if the last slab has no room: call `open_slab` first.
        """
        if not self.slabs:
            return None
        slab = self.slabs[-1]
        position = slab.end
        end = position + size
        if end > len(slab.buffer):
            return None
        kept = slab.view[position:end]
        kept[:] = batch
        slab.end = end
        slab.next_offset = next_offset
        slab.offsets.append(base_offset)
        slab.positions.append(position)
        return kept

    def open_slab(self, size: int, base_offset: int) -> Slab:
        """Begin a slab with room for at least `size` bytes."""
        if self.slabs:
            self._room = min(self._room * 2, SLAB_BYTES_MAX)
        room = max(self._room, size)
        slab = Slab(self._memory.pool.take(room) if room >= POOLED_BYTES_MIN else bytearray(room), 0, base_offset)
        self.slabs.append(slab)
        self._starts.append(base_offset)
        self._memory.add(slab, self)
        return slab

    def adopt(self, buffer: bytearray, position: int, size: int, base_offset: int, next_offset: int) -> Slab:
        """Make a slab of a batch that has a buffer of its own, without copying it. The tail owns the buffer from now on."""
        # The next copied batch may stay alone between two adopted ones: its slab gets no room to grow.
        self._room = SLAB_BYTES_MIN
        slab = Slab(buffer, position, base_offset)
        slab.offsets.append(base_offset)
        slab.positions.append(position)
        slab.end = position + size
        slab.next_offset = next_offset
        self.slabs.append(slab)
        self._starts.append(base_offset)
        self._memory.add(slab, self)
        return slab

    def drop_below(self, offset: int) -> None:
        """Forget the slabs that have only records below `offset`."""
        count = 0
        while count < len(self.slabs) and self.slabs[count].next_offset <= offset:
            count += 1
        if count:
            self.drop(count)

    def clear(self) -> None:
        """Forget every slab."""
        self.drop(len(self.slabs))

    def drop(self, count: int) -> None:
        """Forget the oldest `count` slabs."""
        dropped = self.slabs[:count]
        del self.slabs[:count], self._starts[:count]
        if not self.slabs:
            self._room = SLAB_BYTES_MIN
        for slab in dropped:
            self._memory.remove(slab)

    def read(self, offset: int, end_offset: int, max_bytes: int) -> list[memoryview] | None:
        """Whole batches from the one that contains `offset` up to `end_offset` (exclusive, a batch boundary).

        Args:
            max_bytes: stop before this many bytes. The first batch is always returned, also if it is larger.

        Returns:
            Slices of the buffers. [] if offset >= end_offset. None if `offset` is older than the batches in memory.
        """
        slabs = self.slabs
        if offset >= end_offset:
            return []
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        slices: list[memoryview] = []
        room = max_bytes
        while index < len(slabs):
            slab = slabs[index]
            offsets = slab.offsets
            if slices:
                first = 0
                if offsets[0] >= end_offset:
                    break
            else:
                first = bisect_right(offsets, offset) - 1
            start = slab.positions[first]
            end = slab.end
            if slab.next_offset > end_offset:
                end = slab.positions[bisect_left(offsets, end_offset)]
            if end - start > room:
                last = bisect_right(slab.positions, start + room) - 1
                if last > first:
                    slices.append(slab.view[start : slab.positions[last]])
                elif not slices:
                    last = first + 1
                    slices.append(slab.view[start : slab.positions[last] if last < len(offsets) else slab.end])
                break
            slices.append(slab.view[start:end])
            room -= end - start
            if room <= 0:
                break
            index += 1
        return slices

    def reaches(self, offset: int, end_offset: int, size: int) -> bool:
        """Whether a `read` from `offset` that returned `size` bytes has returned all batches below `end_offset`.

        `offset` must be in memory. `size` alone does not show it: a read stops before the first batch without room.
        """
        slabs = self.slabs
        index = bisect_right(self._starts, offset) - 1
        slab = slabs[index]
        end = slab.positions[bisect_right(slab.offsets, offset) - 1] + size
        while slab.next_offset < end_offset and index + 1 < len(slabs):
            if end <= slab.end:
                return False
            index += 1
            end += slabs[index].positions[0] - slab.end
            slab = slabs[index]
        last = slab.end if slab.next_offset <= end_offset else slab.positions[bisect_left(slab.offsets, end_offset)]
        return end >= last
