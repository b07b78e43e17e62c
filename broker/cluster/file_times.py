"""The times of files: a reader of a span of time passes most files without a look at each. No I/O.

A list of files, by partition and offset, is cut into blocks of `BLOCK_FILES` by position. The times of a block are found when a
reader first comes to it, and kept until the list changes there or before.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from headgate.broker.cluster.gates import OFFSET_MAX, Gate, ParquetExtent

BLOCK_FILES = 128
"""Files of a block. With 100,000 files a reader looks at some 800 blocks, and at the files of the few that it wants."""
ALL_MS = -OFFSET_MAX, OFFSET_MAX
"""The span of a reader of all times."""


class Passed(NamedTuple):
    """Neighbouring files, of one partition, without a wanted time: their first offset, and their offsets [base, end), joined.
    `folded`: they are folded files."""

    base_offset: int
    ranges: tuple[tuple[int, int], ...]
    folded: bool


Passing: TypeAlias = Iterator[ParquetExtent | Passed]
"""Files of a partition, by offset: each that may have a record of a wanted time, and in between the others."""


class FileTimes:
    """The times of one list of files. Whoever changes the list says so."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, int, Passed]] = {}
        """(first time, last time, files) by number of the block. A block may have files of two partitions; then nobody uses it."""

    def changed(self, position: int = 0) -> None:
        """The list has changed, at this position or behind it."""
        # A new dict: readers that began before may go on with their old list and its blocks.
        self._blocks = {at: block for at, block in self._blocks.items() if at < position // BLOCK_FILES}

    def passing(self, files: Sequence[ParquetExtent], first: int, stop: int, low_ms: int, high_ms: int) -> Passing:
        """Pass the files at positions [first, stop), all of one partition, for a reader of times from `low_ms` to `high_ms`.
        The list may change meanwhile: the files are those of the moment of the call."""
        if (low_ms, high_ms) == ALL_MS:
            return iter(files[first:stop])
        return _passing(files[first:stop], first, self._blocks, low_ms, high_ms)


class GateTimes:
    """The times of the files of gates: only of gates that a reader came to."""

    def __init__(self) -> None:
        self._known: dict[uuid.UUID, dict[str, FileTimes]] = {}

    def changed(self, topic_id: uuid.UUID) -> None:
        """The files of a topic's gates have changed, or their ids."""
        self._known.pop(topic_id, None)

    def passing(self, gate: Gate, partition: int, base_offset: int, end_offset: int, low_ms: int, high_ms: int) -> Passing:
        """Pass a gate's own files with an offset in [base_offset, end_offset) of a partition (`FileTimes.passing`)."""
        files = gate.extents
        start = bisect_left(files, partition, key=lambda file: file.partition)
        stop = bisect_right(files, partition, lo=start, key=lambda file: file.partition)
        times = self._known.setdefault(gate.topic_id, {}).setdefault(gate.id, FileTimes())
        return times.passing(files, *positions(files, base_offset, end_offset, start, stop), low_ms, high_ms)


def positions(
    files: Sequence[ParquetExtent], base_offset: int, end_offset: int, first: int = 0, stop: int | None = None
) -> tuple[int, int]:
    """Where the files with an offset in [base_offset, end_offset) begin and end, among those at positions [first, stop), all of one
    partition."""
    begin = bisect_right(files, base_offset, lo=first, hi=stop, key=lambda file: file.end_offset)
    return begin, bisect_left(files, end_offset, lo=begin, hi=stop, key=lambda file: file.base_offset)


def _passing(
    files: Sequence[ParquetExtent], first: int, blocks: dict[int, tuple[int, int, Passed]], low_ms: int, high_ms: int
) -> Passing:
    at, count = 0, len(files)
    while at < count:
        number, inside = divmod(first + at, BLOCK_FILES)
        some = files[at : at + BLOCK_FILES - inside]
        at += len(some)
        if len(some) == BLOCK_FILES:
            block = blocks.get(number)
            if block is None:
                low, high = min(file.timestamp_min_ms for file in some), max(file.timestamp_max_ms for file in some)
                block = blocks[number] = low, high, _passed(some)
            if block[1] < low_ms or high_ms < block[0]:
                yield block[2]
                continue
        start = 0
        for stop, file in enumerate(some):
            if low_ms <= file.timestamp_max_ms and file.timestamp_min_ms <= high_ms:
                if start < stop:
                    yield _passed(some[start:stop])
                yield file
                start = stop + 1
        if start < len(some):
            yield _passed(some[start:])


def _passed(files: Sequence[ParquetExtent]) -> Passed:
    ranges: list[tuple[int, int]] = []
    base = end = files[0].base_offset
    for file in files:
        if file.base_offset != end:
            ranges.append((base, end))
            base = file.base_offset
        end = file.end_offset
    ranges.append((base, end))
    return Passed(files[0].base_offset, tuple(ranges), files[0].folded)
