"""Fold to files: records that are old or many enough leave their chunks for Parquet files, one partition at a time. The choice.

A fold takes whole neighbouring extents of one partition and one leader epoch, and writes their records to files in the layout of
`log/folded_file.py`. One edit (`FoldToFiles`) then puts the files in the place of the extents. The lead of a partition does this
for the partition: the leader of the cluster has assigned it, and no other broker has to be asked. Files are folded in the same way:
those that filled gates, small ones, and those with deleted records (`merging.py`).

A fold that dies before its edit leaves files that nothing names; the sweep of files deletes them. A fold that comes too late,
because the extents were folded, moved or deleted meanwhile, is refused by the edit's own check.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import takewhile
from typing import TypeAlias

import msgspec

from headgate.broker.cluster.edits.files import FoldToFiles
from headgate.broker.cluster.folded_files import ChunkPart, FilePart
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.objects import Chunk, Extent
from headgate.broker.cluster.readable import first_readable
from headgate.broker.engine.partition.extents import AnyExtent, AnyRef, ChunkRef
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.upkeep.chunk_fold import SPAN_MS_MAX

RUN_BYTES_MAX = 256 << 20
"""Bytes of batches that one fold takes: the work that is lost when its process dies. A single larger extent is taken whole."""
RUN_EXTENTS_MAX = 1000
"""Extents that one fold takes. Its edit names each of them."""
RUN_OFFSETS_MAX = 1 << 30
"""Offsets that one fold takes. A batch can span twice as many."""

Part: TypeAlias = tuple[AnyExtent, AnyRef]


class ChunkSource(msgspec.Struct, frozen=True, tag="chunk"):
    """An extent and its chunk, of which only the place in the store counts."""

    incarnation_id: str
    chunk: Chunk
    extent: Extent


class FileSource(msgspec.Struct, frozen=True, tag="file"):
    """A file in the store: a folded one, or one that filled a gate. `appended_ms`: see `FileRef`."""

    extent: ParquetExtent
    gate_id: str
    appended_ms: int


Source: TypeAlias = ChunkSource | FileSource


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What a job of a compaction knows of its pass (`compaction.py`).

    `number`: tells the pass from other ones of this broker. `dirty`: the sources with the dirty records, all below `end_offset`.
    `aborted`: the aborted transactions among them, as `Job.aborted`. `markers_end`: markers of deleted keys below it leave.
    """

    number: int
    dirty: list[Source]
    end_offset: int
    aborted: list[tuple[int, int, int]]
    markers_end: int


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="records"):
    """What a fold reads, by offset, and how it names its files.

    `base_offset`: the first offset of its files; those of `parts` below it are deleted. `history`: the records came with gates.
    `oldest_ms`: the wall-clock time in ms at which the oldest record was appended.
    `log_start`, `cuts`: records below it and in these ranges are deleted, so they are left out. `aborted`: (producer id, first
    offset, offset of the marker) of the aborted transactions with records in the extents. `maker`: see `keys.maker`.
    """

    topic_id: uuid.UUID
    partition: int
    base_offset: int
    history: bool
    oldest_ms: int
    log_start: int
    cuts: list[tuple[int, int]]
    aborted: list[tuple[int, int, int]]
    maker: str
    parts: list[Source]
    compaction: Compaction | None = None

    def edit(self, files: list[ParquetExtent], at_ms: int) -> FoldToFiles:
        """The edit that puts the files in the place of the extents. Without files, no record is left. `at_ms`: the wall clock."""
        replaced = [
            ChunkPart(part.incarnation_id, part.chunk.number, part.extent.base_offset, part.extent.end_offset)
            for part in self.parts
            if isinstance(part, ChunkSource)
        ]
        merged = [
            FilePart(part.extent.path, part.extent.base_offset, part.extent.end_offset, part.gate_id)
            for part in self.parts
            if isinstance(part, FileSource)
        ]
        return FoldToFiles(self.topic_id, self.partition, files, replaced, self.cuts, merged, at_ms)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job: its files, by offset and without a gap between them.

    `unchanged`: nothing is to be done. `keys_end`: a compaction knows the keys of the dirty records below it.

    Or `refused`: the reason why the records of the extent at `refused_base` stay in chunks; `missing` if their chunk is not there.
    Or `retry`: the store's error.
    """

    files: list[ParquetExtent] = []
    unchanged: bool = False
    keys_end: int = -1
    refused: str = ""
    refused_base: int = -1
    missing: bool = False
    retry: str = ""


def make_job(log: PartitionLog, parts: Sequence[Part], maker: str, compaction: Compaction | None = None) -> Job:
    """The job for neighbouring extents of a partition, at least one."""
    first, last = parts[0][0], parts[-1][0]
    return Job(
        topic_id=log.topic.id,
        partition=log.number,
        base_offset=first_readable(first.base_offset, log.log_start, log.windows.cuts),
        history=isinstance(first, ParquetExtent) and (first.history or not first.folded),
        oldest_ms=min(oldest_ms(part) for part in parts),
        log_start=log.log_start,
        cuts=[(low, high) for low, high in log.windows.cuts if low < last.end_offset and high > first.base_offset],
        aborted=list(log.producers_state.transactions.aborted(first.base_offset, last.end_offset)),
        maker=maker,
        parts=sources(parts),
        compaction=compaction,
    )


def oldest_ms(part: Part) -> int:
    """The wall-clock time in ms at which the oldest record of an extent was appended. Chunks and files of gates know one time
    only."""
    extent, ref = part
    return extent.oldest_ms if isinstance(extent, ParquetExtent) and extent.folded else ref.appended_ms


def sources(parts: Iterable[Part]) -> list[Source]:
    """The places of extents, for another process."""
    return [_source(extent, ref) for extent, ref in parts]


def _source(extent: AnyExtent, ref: AnyRef) -> Source:
    if isinstance(ref, ChunkRef):
        assert isinstance(extent, Extent)
        return ChunkSource(ref.incarnation_id, msgspec.structs.replace(ref.chunk, extents=[extent]), extent)
    assert isinstance(extent, ParquetExtent)
    return FileSource(extent, ref.gate_id, ref.appended_ms)


def choose(
    extents: Sequence[AnyExtent],
    refs: Sequence[AnyRef],
    stay: Set[int],
    *,
    stable_end: int,
    after_bytes: int,
    old_ms: int | None,
    young_ms: int | None,
) -> list[Part]:
    """The oldest extents of a partition that are due, as one job; [] if none is.

    A run of extents is due if its first one is old, or if all chunks of the partition together are large. Of a run that is due by
    its age, the extents that are not young are taken too: otherwise each extent would become a file of its own, at the moment when
    it is old.

    Args:
        extents, refs: of the partition, by offset, as `SealedExtents` has them.
        stay: base offsets of the extents that cannot be folded.
        stable_end: the last stable offset. Behind it, nobody knows yet which records are aborted.
        after_bytes: size from which chunks are large; -1: never.
        old_ms: append time in ms before which an extent is old; None: none is. young_ms: the time from which it is young.
    """
    is_large = after_bytes >= 0 and _chunk_bytes(extents, stay) > after_bytes
    for run in _runs(extents, refs, stay, stable_end):
        if is_large:
            return run
        if old_ms is not None and young_ms is not None and run[0][1].appended_ms < old_ms:
            return [part for part in run if part[1].appended_ms < young_ms]
    return []


def _chunk_bytes(extents: Iterable[AnyExtent], stay: Set[int]) -> int:
    return sum(extent.data_bytes for extent in extents if isinstance(extent, Extent) and extent.base_offset not in stay)


def _runs(extents: Sequence[AnyExtent], refs: Sequence[AnyRef], stay: Set[int], stable_end: int) -> Iterator[list[Part]]:
    """Neighbouring extents of chunks that one fold can take, by offset."""
    parts = takewhile(lambda part: part[0].end_offset <= stable_end, zip(extents, refs, strict=True))
    # Retention by time can free the older records early.
    return neighbours(
        (part if isinstance(part[1], ChunkRef) and part[0].base_offset not in stay else None for part in parts),
        lambda first, part: abs(part[1].appended_ms - first[1].appended_ms) <= SPAN_MS_MAX,
    )


def neighbours(parts: Iterable[Part | None], fits: Callable[[Part, Part], bool]) -> Iterator[list[Part]]:
    """Runs of neighbouring extents that one fold can take, by offset.

    Args:
        parts: of one partition, by offset. None: an extent that cannot be folded.
        fits: whether a run with this first extent may also have this one: of its kind, and not too far from it in age.
    """
    run: list[Part] = []
    size = 0
    for part in parts:
        if run and (part is None or not (_adjoins(run, part, size) and fits(run[0], part))):
            yield run
            run, size = [], 0
        if part is not None:
            run.append(part)
            size += part[0].data_bytes
    if run:
        yield run


def _adjoins(run: Sequence[Part], part: Part, size_bytes: int) -> bool:
    """True if an extent follows a run of this size without a gap, and one fold can take both."""
    first, extent = run[0][0], part[0]
    return (
        extent.base_offset == run[-1][0].end_offset
        and extent.leader_epoch == first.leader_epoch
        and size_bytes + extent.data_bytes <= RUN_BYTES_MAX
        and len(run) < RUN_EXTENTS_MAX
        and extent.end_offset - first.base_offset <= RUN_OFFSETS_MAX
    )
