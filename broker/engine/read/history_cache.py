"""Decides which row groups stay in memory as batches. No I/O.

A reader takes a row group in several steps. A group that is dropped between two steps is encoded again for the next one. With
many partitions at a time, each reader would drop the group that the next one needs, again and again. So the cache drops groups
in this order: groups that were read to their end, groups to which no reader returned, groups that were made ahead, and last the
groups that readers are reading. A group is made ahead only if there is room for it. If readers take the room before it is
made, it replaces none that they are reading.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable

from headgate.broker.log.batch import parse_header

IN_USE_S = 10.0
"""Seconds after which a reader that has not returned counts as gone, or as busy."""


class EncodedGroup:
    """A row group, or a part of one, as batches, by offset. `bases`: the first offset of each batch. `end`: the offset after the
    last record."""

    __slots__ = ("bases", "batches", "end", "size_bytes", "used_s")

    def __init__(self, batches: list[memoryview], bases: array[int], end: int) -> None:
        self.batches = batches
        self.bases = bases
        self.end = end
        self.size_bytes = sum(len(batch) for batch in batches)
        self.used_s = 0.0
        """Time in seconds of the last request for it."""

    def find(self, offset: int) -> int:
        """The number of the batch that contains an offset."""
        return max(bisect_right(self.bases, offset) - 1, 0)


def group_of(batches: list[memoryview]) -> EncodedGroup:
    """Batches, by offset."""
    bases = array("q", (int.from_bytes(batch[:8], "big") for batch in batches))
    return EncodedGroup(batches, bases, parse_header(batches[-1]).next_offset)


class HistoryCache:
    """Row groups under any keys. `now_s` must come from one clock that never goes back.

    Args:
        bytes_max: bytes of all groups together.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.dropped_in_use = 0
        """Number of row groups that were dropped under reading, or not kept because they are larger than the whole cache."""
        # In each, the first group is the next one to be dropped.
        self._ahead: OrderedDict[Hashable, EncodedGroup] = OrderedDict()
        """No reader has requested these yet."""
        self._read: OrderedDict[Hashable, EncodedGroup] = OrderedDict()
        self._finished: OrderedDict[Hashable, EncodedGroup] = OrderedDict()
        """The last reader has read these to the end."""
        self._finished_bytes = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._read or key in self._ahead or key in self._finished

    def get(self, key: Hashable, now_s: float) -> EncodedGroup | None:
        """The group under a key, for a reader that reads it now."""
        group = self._read.pop(key, None) or self._ahead.pop(key, None)
        if group is None and (group := self._finished.pop(key, None)) is not None:
            self._finished_bytes -= group.size_bytes
        if group is not None:
            group.used_s = now_s
            self._read[key] = group
        return group

    def finish(self, key: Hashable) -> None:
        """A reader has read the group to its end."""
        group = self._read.pop(key, None)
        if group is not None:
            self._finished[key] = group
            self._finished_bytes += group.size_bytes

    def has_room(self, size_bytes: int, now_s: float) -> bool:
        """True if this many bytes can be made ahead."""
        room = self.bytes_max - self.size_bytes + self._finished_bytes
        if self._is_left(now_s):
            room += next(iter(self._read.values())).size_bytes
        return size_bytes <= room

    def put(self, key: Hashable, group: EncodedGroup, now_s: float, *, is_wanted: bool = True) -> None:
        """Keep a row group, and drop others for it. A group larger than the whole cache is not kept.

        Args:
            is_wanted: a reader waits for the group.
        """
        assert key not in self, "it is not kept yet"
        if group.size_bytes > self.bytes_max:
            self.dropped_in_use += 1
            return
        while self.size_bytes + group.size_bytes > self.bytes_max:
            if not (is_wanted or self._finished or self._ahead or self._is_left(now_s)):
                return
            self.size_bytes -= self._drop(now_s).size_bytes
        self._ahead[key] = group
        self.size_bytes += group.size_bytes

    def _drop(self, now_s: float) -> EncodedGroup:
        if self._finished:
            _, group = self._finished.popitem(last=False)
            self._finished_bytes -= group.size_bytes
        elif self._ahead and not self._is_left(now_s):
            _, group = self._ahead.popitem(last=False)
        else:
            self.dropped_in_use += not self._is_left(now_s)
            _, group = self._read.popitem(last=False)
        return group

    def _is_left(self, now_s: float) -> bool:
        """True if there is a row group to which no reader returned."""
        return bool(self._read) and now_s - next(iter(self._read.values())).used_s >= IN_USE_S

    def clear(self) -> None:
        """Drop everything."""
        for rank in (self._ahead, self._read, self._finished):
            rank.clear()
        self.size_bytes = self._finished_bytes = 0
