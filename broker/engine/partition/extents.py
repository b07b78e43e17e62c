"""The extents that the manifest lists for one partition: of chunks, and of Parquet files."""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk, Extent


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRef:
    """A sealed chunk, shared by its extents."""

    incarnation_id: str
    chunk: Chunk

    @property
    def appended_ms(self) -> int:
        return self.chunk.appended_ms


@dataclass(frozen=True, slots=True, eq=False)
class FileRef:
    """A gate's files, shared by its extents, or a folded file: then `gate_id` is empty. `appended_ms`: the wall-clock time in ms of
    the commit that filled the gate, or of the newest append of a record in the folded file."""

    gate_id: str
    appended_ms: int


AnyExtent: TypeAlias = Extent | ParquetExtent
AnyRef: TypeAlias = ChunkRef | FileRef


class SealedExtents:
    """The extents that the manifest lists for one partition, by offset: of chunks (`ChunkRef`) and of Parquet files (`FileRef`).

    There may be gaps between them, but they never overlap. `changes` counts the changes.
    """

    __slots__ = ("_bases", "_rows", "changes", "extents", "refs")

    def __init__(self) -> None:
        self._bases = array("q")
        self.extents: list[AnyExtent] = []
        self.refs: list[AnyRef] = []
        self.changes = 0
        self._rows = 0

    def __len__(self) -> int:
        return len(self.extents)

    def add(self, extent: AnyExtent, ref: AnyRef) -> None:
        self.add_run([extent], ref)

    def add_run(self, extents: Sequence[AnyExtent], ref: AnyRef) -> None:
        """Add extents, by offset. No existing extent lies between them."""
        if not extents:
            return
        at = bisect_left(self._bases, extents[0].base_offset)
        assert at == 0 or self.extents[at - 1].end_offset <= extents[0].base_offset, "extents overlap"
        assert at == len(self.extents) or extents[-1].end_offset <= self._bases[at], "extents overlap"
        self.changes += 1
        self._bases[at:at] = array("q", [extent.base_offset for extent in extents])
        self.extents[at:at] = extents
        self.refs[at:at] = [ref] * len(extents)
        self._rows += _rows_of(extents)

    def find(self, offset: int) -> int:
        """The row of the first extent that ends after `offset`; len(self) if all end before."""
        row = max(bisect_right(self._bases, offset) - 1, 0)
        while row < len(self.extents) and self.extents[row].end_offset <= offset:
            row += 1
        return row

    def records(self, log_start: int) -> int:
        """The number of records from `log_start` on. The first extent may begin below it."""
        below = min(max(log_start - self.extents[0].base_offset, 0), self.extents[0].rows) if self.extents else 0
        return self._rows - below

    def in_file(self, row: int) -> tuple[ParquetExtent, ParquetExtent | None] | None:
        """The extent of a row and the following one, or None for the latter if that is not in a Parquet file. None: the row itself
        is not."""
        extent = self.extents[row]
        if not isinstance(extent, ParquetExtent):
            return None
        following = self.extents[row + 1] if row + 1 < len(self.extents) else None
        return extent, following if isinstance(following, ParquetExtent) else None

    def replace(self, base_offset: int, end_offset: int, extents: Sequence[AnyExtent], refs: Sequence[AnyRef]) -> int:
        """Replace the extents in [base_offset, end_offset) by others, by offset, that have all their records. Returns the number of
        bytes by which these are larger."""
        first = bisect_left(self._bases, base_offset)
        end = bisect_left(self._bases, end_offset)
        if first == end:
            return 0
        assert self.extents[end - 1].end_offset <= end_offset, "extents are folded whole"
        self.changes += 1
        replaced = sum(old.data_bytes for old in self.extents[first:end])
        self._rows += _rows_of(extents) - _rows_of(self.extents[first:end])
        self._bases[first:end] = array("q", [extent.base_offset for extent in extents])
        self.extents[first:end] = extents
        self.refs[first:end] = refs
        return sum(extent.data_bytes for extent in extents) - replaced

    def drop_below(self, offset: int) -> int:
        """Forget extents that end at or below `offset`. Returns the bytes of batches in them."""
        rows = 0
        freed = 0
        while rows < len(self.extents) and self.extents[rows].end_offset <= offset:
            freed += self.extents[rows].data_bytes
            rows += 1
        self.changes += 1
        self._rows -= _rows_of(self.extents[:rows])
        del self._bases[:rows]
        del self.extents[:rows]
        del self.refs[:rows]
        return freed

    def drop_within(self, base_offset: int, end_offset: int) -> int:
        """Forget extents of chunks, and folded files, that lie completely in [base_offset, end_offset). Returns their bytes."""
        first = bisect_left(self._bases, base_offset)
        end = first
        while end < len(self.extents) and self.extents[end].end_offset <= end_offset and is_live(self.extents[end]):
            end += 1
        freed = sum(extent.data_bytes for extent in self.extents[first:end])
        self.changes += 1
        self._rows -= _rows_of(self.extents[first:end])
        del self._bases[first:end], self.extents[first:end], self.refs[first:end]
        return freed

    def clear(self) -> int:
        """Forget all extents. Returns the bytes of batches in them."""
        freed = sum(extent.data_bytes for extent in self.extents)
        self.changes += 1
        self._rows = 0
        del self._bases[:], self.extents[:], self.refs[:]
        return freed


def _rows_of(extents: Iterable[AnyExtent]) -> int:
    return sum(extent.rows for extent in extents)


def is_live(extent: AnyExtent) -> bool:
    """True if the records came from producers, not with a gate."""
    return isinstance(extent, Extent) or (extent.folded and not extent.history)


def find_extents(
    manifest: Manifest, wanted: Iterable[tuple[uuid.UUID, int]]
) -> dict[tuple[uuid.UUID, int], list[tuple[AnyExtent, AnyRef]]]:
    """The extents that the manifest lists for some partitions, by offset."""
    found: dict[tuple[uuid.UUID, int], list[tuple[AnyExtent, AnyRef]]] = {key: [] for key in wanted}
    if not found:
        return found
    for topic_id in {topic_id for topic_id, _ in found}:
        for gate in manifest.gates.of(topic_id).values():
            file_ref = FileRef(gate.id, gate.filled_ms)
            for file in gate.extents:
                rows = found.get((topic_id, file.partition))
                if rows is not None:
                    rows.append((file, file_ref))
    for topic_id, number in found:
        found[topic_id, number] += [(file, FileRef("", file.appended_ms)) for file in manifest.files.of(topic_id, number)]
    for incarnation_id, chunks in manifest.chunks.items():
        for chunk in chunks.values():
            ref: ChunkRef | None = None
            for extent in chunk.extents:
                rows = found.get((extent.topic_id, extent.partition))
                if rows is not None:
                    ref = ref or ChunkRef(incarnation_id, chunk)
                    rows.append((extent, ref))
    for (topic_id, number), rows in found.items():
        if topic_id in manifest.readable.cuts:
            rows[:] = [row for row in rows if manifest.readable.has(topic_id, number, row[0].base_offset, row[0].end_offset)]
        rows.sort(key=_base_offset)
    return found


def _base_offset(row: tuple[AnyExtent, AnyRef]) -> int:
    return row[0].base_offset
