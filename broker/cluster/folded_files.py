"""Folded files: the Parquet files that hold live records of a partition instead of chunks. No I/O.

A fold moves the records of whole, neighbouring extents from chunks to files, in one edit (`FoldToFiles`). The edit names each part
of a chunk that it replaces, exactly as its author saw it. If a chunk was folded, removed or moved to a file meanwhile, the edit is
refused, and its files are left over. So an offset is in one place at every moment.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import msgspec

from headgate.broker.cluster.gates import ParquetExtent

Files = dict[uuid.UUID, dict[int, list[ParquetExtent]]]
"""Files by topic and partition, each partition's by offset."""


class ChunkPart(msgspec.Struct, frozen=True, array_like=True):
    """An extent [base_offset, end_offset) of a chunk: of the partition that the edit is about."""

    incarnation_id: str
    number: int
    base_offset: int
    end_offset: int


class FoldToFiles(msgspec.Struct, frozen=True, tag="fold_to_files"):
    """Records of a partition are in files from now on, no longer in chunks.

    `replaced`: by offset, and together the same offsets as `files`. `cuts`: the ranges of offsets in them that readers pass, and
    that the files therefore do not have.
    """

    topic_id: uuid.UUID
    partition: int
    files: list[ParquetExtent]
    replaced: list[ChunkPart]
    cuts: list[tuple[int, int]] = []


class FoldedFiles:
    """All folded files of live topics. They never overlap, neither one another nor an extent of a chunk."""

    def __init__(self, files: Files | None = None) -> None:
        self.by_topic: Files = {} if files is None else files

    def of(self, topic_id: uuid.UUID, partition: int) -> list[ParquetExtent]:
        """The files of a partition, by offset."""
        return self.by_topic.get(topic_id, _NONE).get(partition, [])

    def all(self) -> Iterator[tuple[uuid.UUID, ParquetExtent]]:
        """Every file, with its topic."""
        for topic_id, partitions in self.by_topic.items():
            for files in partitions.values():
                for one in files:
                    yield topic_id, one

    def add(self, topic_id: uuid.UUID, partition: int, files: Iterable[ParquetExtent]) -> None:
        found = self.by_topic.setdefault(topic_id, {}).setdefault(partition, [])
        for one in files:
            found.insert(bisect_right(found, one.base_offset, key=_base_offset), one)

    def overlap(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> bool:
        """True if a file has an offset in [base_offset, end_offset)."""
        found = self.of(topic_id, partition)
        at = bisect_right(found, base_offset, key=_base_offset)
        return (at > 0 and found[at - 1].end_offset > base_offset) or (at < len(found) and found[at].base_offset < end_offset)

    def drop_topic(self, topic_id: uuid.UUID) -> None:
        self.by_topic.pop(topic_id, None)

    def trim(self, topic_id: uuid.UUID, gone: Iterable[ParquetExtent]) -> None:
        """Forget files."""
        partitions = self.by_topic.get(topic_id, {})
        paths = {one.path for one in gone}
        for partition, files in list(partitions.items()):
            partitions[partition] = [one for one in files if one.path not in paths]
            if not partitions[partition]:
                del partitions[partition]
        if not partitions:
            self.by_topic.pop(topic_id, None)

    def check_invariants(self) -> None:
        """Raise AssertionError if files overlap or are not in order."""
        for partitions in self.by_topic.values():
            assert partitions
            for number, files in partitions.items():
                assert files
                assert all(one.partition == number and one.base_offset < one.end_offset for one in files)
                assert all(one.end_offset <= other.base_offset for one, other in pairwise(files))


_NONE: Mapping[int, list[ParquetExtent]] = {}


def _base_offset(one: ParquetExtent) -> int:
    return one.base_offset
