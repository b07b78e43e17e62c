"""Folded files: the Parquet files that hold records of a partition instead of chunks, or of smaller files. No I/O.

A fold moves the records of whole, neighbouring extents to files, in one edit (`edits/files.py`): of chunks, of files that filled
gates, or of smaller folded files. The edit names each part of a chunk and each file that it replaces, exactly as its author saw it.
If one was folded, removed or moved to a file meanwhile, the edit is refused, and its files are left over. So an offset is in one
place at every moment.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import msgspec

from headgate.broker.cluster.file_times import FileTimes, Passing, positions
from headgate.broker.cluster.gates import ParquetExtent

Files = dict[uuid.UUID, dict[int, list[ParquetExtent]]]
"""Files by topic and partition, each partition's by offset."""


class ChunkPart(msgspec.Struct, frozen=True, array_like=True):
    """An extent [base_offset, end_offset) of a chunk: of the partition that the edit is about."""

    incarnation_id: str
    number: int
    base_offset: int
    end_offset: int


class FilePart(msgspec.Struct, frozen=True, array_like=True):
    """A file with the offsets [base_offset, end_offset) of the partition that the edit is about. `gate_id`: the gate that it
    filled; empty for a folded file."""

    path: str
    base_offset: int
    end_offset: int
    gate_id: str = ""


class FoldedFiles:
    """All folded files of live topics. They never overlap, neither one another nor an extent of a chunk."""

    def __init__(self, files: Files | None = None) -> None:
        self.by_topic: Files = {} if files is None else files
        self._times: dict[uuid.UUID, dict[int, FileTimes]] = {}

    def of(self, topic_id: uuid.UUID, partition: int) -> list[ParquetExtent]:
        """The files of a partition, by offset."""
        return self.by_topic.get(topic_id, _NONE).get(partition, [])

    def all(self) -> Iterator[tuple[uuid.UUID, ParquetExtent]]:
        """Every file, with its topic."""
        for topic_id, partitions in self.by_topic.items():
            for files in partitions.values():
                for file in files:
                    yield topic_id, file

    def add(self, topic_id: uuid.UUID, partition: int, files: Iterable[ParquetExtent]) -> None:
        found = self.by_topic.setdefault(topic_id, {}).setdefault(partition, [])
        for file in files:
            position = bisect_right(found, file.base_offset, key=_base_offset)
            found.insert(position, file)
            self._changed(topic_id, partition, position)

    def overlap(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> bool:
        """True if a file has an offset in [base_offset, end_offset)."""
        return bool(self.within(topic_id, partition, base_offset, end_offset))

    def find(self, topic_id: uuid.UUID, partition: int, path: str, base_offset: int) -> ParquetExtent | None:
        """The file with this path, if it begins at this offset."""
        found = self.of(topic_id, partition)
        at = bisect_left(found, base_offset, key=_base_offset)
        return found[at] if at < len(found) and found[at].base_offset == base_offset and found[at].path == path else None

    def within(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> list[ParquetExtent]:
        """The files that have an offset in [base_offset, end_offset)."""
        found = self.of(topic_id, partition)
        return found[slice(*positions(found, base_offset, end_offset))]

    def passing(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int, low_ms: int, high_ms: int) -> Passing:
        """Pass these files (`FileTimes.passing`)."""
        found = self.of(topic_id, partition)
        times = self._times.setdefault(topic_id, {}).setdefault(partition, FileTimes()) if found else FileTimes()
        return times.passing(found, *positions(found, base_offset, end_offset), low_ms, high_ms)

    def _changed(self, topic_id: uuid.UUID, partition: int, position: int) -> None:
        times = self._times.get(topic_id, {}).get(partition)
        if times is not None:
            times.changed(position)

    def remove(self, topic_id: uuid.UUID, partition: int, parts: Iterable[FilePart]) -> None:
        """Forget folded files that others replace."""
        found = self.of(topic_id, partition)
        for part in parts:
            if self.find(topic_id, partition, part.path, part.base_offset) is not None:
                position = bisect_left(found, part.base_offset, key=_base_offset)
                del found[position]
                self._changed(topic_id, partition, position)
        if not found and topic_id in self.by_topic:
            self._drop_empty(topic_id)

    def _drop_empty(self, topic_id: uuid.UUID) -> None:
        partitions = self.by_topic[topic_id]
        for number in [number for number, files in partitions.items() if not files]:
            del partitions[number]
        if not partitions:
            self.drop_topic(topic_id)

    def drop_topic(self, topic_id: uuid.UUID) -> None:
        self.by_topic.pop(topic_id, None)
        self._times.pop(topic_id, None)

    def trim(self, topic_id: uuid.UUID, gone: Iterable[ParquetExtent]) -> None:
        """Forget files."""
        by_partition: dict[int, set[str]] = {}
        for file in gone:
            by_partition.setdefault(file.partition, set()).add(file.path)
        partitions = self.by_topic.get(topic_id, {})
        for number, paths in by_partition.items():
            partitions[number] = [file for file in partitions[number] if file.path not in paths]
            self._changed(topic_id, number, 0)
        if by_partition:
            self._drop_empty(topic_id)

    def check_invariants(self) -> None:
        """Raise AssertionError if files overlap or are not in order."""
        for partitions in self.by_topic.values():
            assert partitions
            for number, files in partitions.items():
                assert files
                assert all(file.partition == number and file.base_offset < file.end_offset for file in files)
                assert all(earlier.end_offset <= other.base_offset for earlier, other in pairwise(files))


_NONE: Mapping[int, list[ParquetExtent]] = {}


def _base_offset(extent: ParquetExtent) -> int:
    return extent.base_offset
