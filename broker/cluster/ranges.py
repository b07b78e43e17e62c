"""Ranges of offsets, by partition: ranges that touch are one. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


def one_covers(ranges: Iterable[tuple[int, int]], base_offset: int, end_offset: int) -> bool:
    """True if one of some ranges has all offsets of [base_offset, end_offset)."""
    return any(low <= base_offset and end_offset <= high for low, high in ranges)


class Ranges:
    """Offsets of partitions. The cost of a change does not depend on what else is there, apart from moving an array."""

    def __init__(self) -> None:
        self._bounds: dict[int, list[int]] = {}
        """By partition: first and end offset of each range in turn, so an odd position lies in a range."""

    def add(self, partition: int, first: int, end: int) -> None:
        self._set(partition, first, end, inside=True)

    def remove(self, partition: int, first: int, end: int) -> None:
        self._set(partition, first, end, inside=False)

    def _set(self, partition: int, first: int, end: int, *, inside: bool) -> None:
        bounds = self._bounds.setdefault(partition, [])
        # A range that ends where an added one begins is the same range; the ends of removed ranges stay.
        low, high = bisect_left(bounds, first), bisect_right(bounds, end)
        fresh = [first] if (low % 2 == 0) is inside else []
        if (high % 2 == 0) is inside:
            fresh.append(end)
        bounds[low:high] = fresh
        if not bounds:
            del self._bounds[partition]

    def all(self) -> dict[int, list[list[int]]]:
        """[first, end) of each range by offset, for every partition that has one."""
        return {
            partition: [bounds[at : at + 2] for at in range(0, len(bounds), 2)]
            for partition, bounds in sorted(self._bounds.items())
        }
