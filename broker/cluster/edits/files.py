"""Edits of files: folds of records to files, and the deletion of files. No I/O."""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import msgspec

from headgate.broker.cluster.edits.edit import Edit, live_topic
from headgate.broker.cluster.edits.topics import check_cuts
from headgate.broker.cluster.folded_files import ChunkPart, FilePart
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Extent
from headgate.broker.log.recipe import owner_of
from headgate.broker.runtime.errors import InvalidError, Reason


class FoldToFiles(Edit, frozen=True, tag="fold_to_files"):
    """Records of a partition are in these files from now on, no longer in chunks or other files.

    `replaced`, `merged`: the parts of chunks and the files whose place they take, each by offset. All together have the same
    offsets as `files`, except that `files` may begin behind deleted records. `cuts`: the ranges of offsets in them that readers
    pass, and that the files therefore do not have. Without files, none of the records is left: readers pass the offsets
    (`Readable.cuts`). `at_ms`: the wall-clock time in ms of the edit.

    `kept`: pieces of replaced adopted extents, all of one gate, that stay in it. With the files they have all offsets of `merged`
    but deleted ones.
    """

    topic_id: uuid.UUID
    partition: int
    files: list[ParquetExtent]
    replaced: list[ChunkPart]
    cuts: list[tuple[int, int]] = msgspec.field(default_factory=list)
    merged: list[FilePart] = msgspec.field(default_factory=list)
    at_ms: int = 0
    kept: list[ParquetExtent] = msgspec.field(default_factory=list)

    @property
    def parts(self) -> list[ChunkPart | FilePart]:
        """All that is replaced, by offset; at least one."""
        return sorted([*self.replaced, *self.merged], key=lambda part: part.base_offset)

    @property
    def pieces(self) -> list[ParquetExtent]:
        """What has the records from now on, by offset."""
        return sorted([*self.files, *self.kept], key=lambda file: file.base_offset) if self.kept else self.files

    def check(self, state: Manifest) -> None:
        """Refuse the edit unless every extent that it replaces is as its author saw it, and its files cover exactly those."""
        topic = live_topic(state, self.topic_id)
        where = f"topic=`{topic.name}` partition=`{self.partition}`"
        parts = self.parts
        assert parts, "a fold moves records"
        check_paths(state, self.files)
        first = position = parts[0].base_offset
        for part in parts:
            if part.base_offset != position or not self._is_there(state, part):
                raise InvalidError(
                    Reason.CHANGED_MEANWHILE, f"records are in other objects by now. {where} base=`{part.base_offset}`"
                )
            position = part.end_offset
        self._check_files(state, first, position)
        cuts = state.readable.cuts_of(self.topic_id, self.partition)
        if not self.files:
            check_cuts(topic, self.partition, cuts)
        if [(low, high) for low, high in cuts if low < position and high > first] != self.cuts:
            raise InvalidError(Reason.CHANGED_MEANWHILE, f"an operator skipped records meanwhile. {where}")

    def _check_files(self, state: Manifest, first: int, end: int) -> None:
        if self.kept:
            gates, paths = {part.gate_id for part in self.merged}, {part.path for part in self.merged}
            assert self.files and len(gates) == 1 and "" not in gates, "a piece stays in its gate"
            assert all(file.adopted and file.path in paths for file in self.kept), "a piece is of what is replaced"
        covered = first
        for piece in self.pieces:
            assert piece.partition == self.partition and covered <= piece.base_offset, "files follow each other"
            assert piece.folded or piece in self.kept
            gap = covered < piece.base_offset
            assert not gap or not state.readable.has(self.topic_id, self.partition, covered, piece.base_offset), (
                "the rest is deleted"
            )
            covered = piece.end_offset
        assert covered == end or not self.files, "files have the offsets of what they replace"

    def _is_there(self, state: Manifest, part: ChunkPart | FilePart) -> bool:
        """True if an extent is where the author of the edit saw it."""
        if isinstance(part, FilePart):
            gate = state.gates.of(self.topic_id).get(part.gate_id)
            found: Iterable[Extent | ParquetExtent] = [
                file for file in (() if gate is None else gate.extents) if file.path == part.path
            ]
            if not part.gate_id:
                other = state.files.find(self.topic_id, self.partition, part.path, part.base_offset)
                found = [] if other is None else [other]
        else:
            chunk = state.chunks.get(part.incarnation_id, {}).get(part.number)
            found = [extent for extent in (() if chunk is None else chunk.extents) if extent.topic_id == self.topic_id]
        return any(
            (extent.partition, extent.base_offset, extent.end_offset) == (self.partition, part.base_offset, part.end_offset)
            for extent in found
        )

    def touches(self) -> frozenset[object]:
        return frozenset(
            {
                (self.topic_id, self.partition),
                *(file.path for file in self.files),
                *(file.path for file in self.merged),
                *(file.incarnation_id for file in self.replaced),
            }
        )

    def apply(self, state: Manifest) -> None:
        topic_id, partition, parts = self.topic_id, self.partition, self.parts
        if topic_id not in state.topics_by_id:
            return
        self._drop_replaced(state)
        state.files.remove(topic_id, partition, self.merged)
        for gate_id in {part.gate_id for part in self.merged if part.gate_id}:
            gate = state.gates.of(topic_id).get(gate_id)
            if gate is not None:
                state.gates.change(topic_id, gate_id, extents=self._left(gate.extents))
        state.superseded.update((part.path, self.at_ms) for part in self.merged)
        if self.files:
            state.files.add(topic_id, partition, self.files)
        else:
            state.readable.cut(topic_id, partition, parts[0].base_offset, parts[-1].end_offset)

    def _left(self, extents: list[ParquetExtent]) -> list[ParquetExtent]:
        """The extents of a gate, by partition and offset, without those that are replaced, and with the pieces that stay."""
        first = bisect_left(extents, self.partition, key=lambda extent: extent.partition)
        stop = bisect_right(extents, self.partition, lo=first, key=lambda extent: extent.partition)
        gone = {(part.path, part.base_offset) for part in self.merged}
        mine = [extent for extent in extents[first:stop] if (extent.path, extent.base_offset) not in gone]
        return [*extents[:first], *sorted([*mine, *self.kept], key=lambda file: file.base_offset), *extents[stop:]]

    def _drop_replaced(self, state: Manifest) -> None:
        """Remove the replaced extents from their chunks."""
        bases: dict[tuple[str, int], set[int]] = {}
        for part in self.replaced:
            bases.setdefault((part.incarnation_id, part.number), set()).add(part.base_offset)
        for (incarnation_id, number), gone in bases.items():
            chunk = state.chunks.get(incarnation_id, {}).get(number)
            if chunk is not None:
                kept = [
                    extent
                    for extent in chunk.extents
                    if extent.topic_id != self.topic_id or extent.partition != self.partition or extent.base_offset not in gone
                ]
                state.chunks[incarnation_id][number] = msgspec.structs.replace(chunk, extents=kept)


class NoteCompacted(Edit, frozen=True, tag="note_compacted"):
    """A pass of compaction is done. `marks`: of the partition, all of them (`engine/upkeep/compaction.py`)."""

    topic_id: uuid.UUID
    partition: int
    marks: list[tuple[int, int]]

    def apply(self, state: Manifest) -> None:
        if self.topic_id in state.topics_by_id:
            state.compacted.setdefault(self.topic_id, {})[self.partition] = self.marks


class CondemnFiles(Edit, frozen=True, tag="condemn_files"):
    """Nothing names these objects, and nothing may from now on: they are about to be deleted."""

    paths: list[str]

    def check(self, state: Manifest) -> None:
        condemned = {*self.paths, *map(owner_of, self.paths)}
        for gate in state.gates.all():
            if any(extent.path in condemned for extent in gate.extents):
                raise InvalidError(Reason.GATE_CONFLICT, f"a file is in use. gate=`{gate.id}`")
        for _, file in state.files.all():
            if file.path in condemned:
                raise InvalidError(Reason.GATE_CONFLICT, f"a file is in use. path=`{file.path}`")

    def apply(self, state: Manifest) -> None:
        state.condemned.update(dict.fromkeys(self.paths))


class ForgetFiles(Edit, frozen=True, tag="forget_files"):
    """Condemned objects were deleted."""

    paths: list[str]

    def apply(self, state: Manifest) -> None:
        for path in self.paths:
            state.condemned.pop(path, None)
            state.superseded.pop(path, None)


def check_paths(state: Manifest, extents: Iterable[ParquetExtent]) -> None:
    """Raise InvalidError(INVALID_REFERENCE) if one of these files is being deleted."""
    condemned = {*state.condemned, *map(owner_of, state.condemned)}
    for extent in extents:
        if extent.path in condemned:
            raise InvalidError(
                Reason.INVALID_REFERENCE,
                f"the file was unused for too long and is being deleted. path=`{extent.path}`",
            )
