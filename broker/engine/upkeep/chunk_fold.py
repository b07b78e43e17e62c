"""Fold of chunks: many small chunks become one larger chunk, sorted by partition. It bounds the number of chunks.

On S3 a busy broker puts a few chunks a second. Without folding, the manifest, the memory and the number of objects would grow
with time instead of with the size of the kept records. Chunks are folded as a log-structured merge tree compacts its runs:
`FANOUT` neighbours of one generation become one chunk of the next generation. So a byte is rewritten only a few times in its
life. A fold moves batches unchanged, and drops batches that are no longer readable (below a log start, or of a deleted topic).

A fold is one edit of the manifest. A reader that finds a chunk gone looks up its offset again.

A fold deletes the chunks that it read. So it compares every batch with its row in the index and with its CRC, and every extent with
its size in the manifest. If they differ, it rebuilds the index from the chunk. If that does not help, it refuses to fold.

The first fold of a chunk also checks the records of every batch (`log/check.py`). If consumers cannot read a
batch, the fold still moves it, because it was acked, and reports it. An operator may then skip it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import NamedTuple

from headgate.broker.cluster.edits.incarnations import FoldChunks
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk, Extent
from headgate.broker.engine.base import keys
from headgate.broker.engine.read.mend import rebuild_index
from headgate.broker.engine.read.reader import damage_of, parse_index, rows_of
from headgate.broker.engine.write.checkpoint import UPKEEP_TOGETHER
from headgate.broker.log.batch import BatchHeader, crc_matches, parse_header
from headgate.broker.log.check import SAMPLE_RECORDS, RecordError, check_sample
from headgate.broker.log.chunk import CHUNK_HEADER_BYTES, FLAG_SYNCED, chunk_header
from headgate.broker.log.index import BatchIndex
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason
from headgate.broker.runtime.tasks import in_parallel
from headgate.broker.store.interface import Store

FANOUT = 32
BYTES_MAX = 32 << 20
"""Largest number of bytes that one fold reads and holds in memory. Chunks of more than half of it are not folded."""
COUNT_MIN = 4
"""Fewest chunks that are folded because together they are large. Fewer chunks wait for further ones."""
SPARSE_SHARE = 4
"""A chunk of which less than this part (a fourth) is readable is folded by itself."""
SPARSE_BYTES_MIN = 1 << 20
"""Smallest chunk that is folded by itself. Smaller ones are folded together soon."""
SPARSE_BYTES_MAX = BYTES_MAX + BYTES_MAX // 4
"""Largest chunk that is folded by itself: the result of a full fold, with its index. The fold holds it in memory."""
YIELD_WORK = 1000
"""Batches moved and records checked before the fold yields to the loop: about a millisecond."""
WORK_BYTES = 8 << 10
"""Bytes of a batch that count as much work as one record, for the check of checksum and compression."""
SPAN_MS_MAX = 3600 * 1000
"""Longest time, in ms, between the first and the last chunk of a fold. Retention by time can then free the older chunks early."""


def choose(manifest: Manifest, by: str, left: Set[tuple[str, int]] = frozenset()) -> tuple[str, list[Chunk]] | None:
    """The next neighbours to fold: (incarnation id, chunks), or None. `FANOUT` chunks, or fewer if together they are large.

    Args:
        by: the incarnation that folds. It folds its own chunks; the leader also those of sealed incarnations.
        left: chunks that cannot be folded, by incarnation and number.
    """
    leads = manifest.leader == by
    for incarnation_id, chunks in manifest.chunks.items():
        if incarnation_id != by and not (leads and manifest.incarnations[incarnation_id].sealed):
            continue
        run: list[Chunk] = []
        size = 0
        for number in sorted(chunks):
            chunk = chunks[number]
            if run and size + chunk.size_bytes > BYTES_MAX and len(run) >= COUNT_MIN:
                return incarnation_id, run
            fits = (
                run
                and chunk.generation == run[0].generation
                and size + chunk.size_bytes <= BYTES_MAX
                and chunk.appended_ms - run[0].appended_ms <= SPAN_MS_MAX
            )
            if not fits:
                run, size = [], 0
            if chunk.size_bytes > BYTES_MAX // 2 or (incarnation_id, number) in left:
                run, size = [], 0
                continue
            run.append(chunk)
            size += chunk.size_bytes
            if len(run) == FANOUT:
                return incarnation_id, run
    return None


def sparse(manifest: Manifest, by: str, left: Set[tuple[str, int]] = frozenset()) -> list[tuple[str, Chunk]]:
    """The chunks, with their incarnations' ids, of which so little is readable that each is folded by itself.

    Without this, one record that is kept for long would keep a chunk full of deleted ones. A fold writes at most a
    `SPARSE_SHARE`th of what it frees, so all such folds together write less than a third of the deleted bytes. A chunk without a
    readable record is not among them: retention removes it.

    Args: see `choose`.
    """
    leads = manifest.leader == by
    found: list[tuple[str, Chunk]] = []
    for incarnation_id, chunks in manifest.chunks.items():
        if incarnation_id != by and not (leads and manifest.incarnations[incarnation_id].sealed):
            continue
        for number, chunk in chunks.items():
            if SPARSE_BYTES_MIN <= chunk.size_bytes <= SPARSE_BYTES_MAX and (incarnation_id, number) not in left:
                live_bytes = sum(extent.data_bytes + extent.length_bytes for extent in _live(chunk.extents, manifest))
                if 0 < live_bytes * SPARSE_SHARE <= chunk.size_bytes:
                    found.append((incarnation_id, chunk))
    return found


class Found(NamedTuple):
    """A batch that consumers cannot read, and the reason."""

    topic_id: uuid.UUID
    partition: int
    base_offset: int
    end_offset: int
    why: str


class Folded(NamedTuple):
    """A chunk that is to replace others.

    Attributes:
        edit: replaces them. Before its commit, `parts` must be in the store, under `key`.
        found: the batches that consumers cannot read, of chunks that are folded for the first time.
    """

    edit: FoldChunks
    key: str
    parts: list[bytes | memoryview]
    found: list[Found]


async def fold(store: Store, manifest: Manifest, incarnation_id: str, chunks: list[Chunk], made_by: str) -> Folded:
    """Read `chunks`, and make the chunk that replaces them. Writes nothing but indexes that it makes again.

    Args:
        made_by: `keys.maker` of this attempt; no other attempt has it. So neither a broker that was replaced during the write
            nor a delayed put can replace an object that the manifest names.

    Raises: see `check_chunk`.
    """
    created_ms = chunks[-1].appended_ms
    header = chunk_header(uuid.UUID(hex=incarnation_id).bytes, chunks[0].number, created_ms, FLAG_SYNCED)
    streams: dict[tuple[uuid.UUID, int, int], list[_Piece]] = {}
    found: list[Found] = []
    # Side by side: a store that is far away answers each read seconds later.
    for pieces, bad in await in_parallel(lambda chunk: _mended(store, manifest, incarnation_id, chunk), chunks, UPKEEP_TOGETHER):
        found += bad
        for piece in pieces:
            # Merge only extents of the same leader epoch: between two epochs, other incarnations may have written.
            stream = (piece.extent.topic_id, piece.extent.partition, piece.extent.leader_epoch)
            streams.setdefault(stream, []).append(piece)
    parts: list[bytes | memoryview] = [header]
    indexes: list[tuple[list[Extent], BatchIndex]] = []
    position = CHUNK_HEADER_BYTES
    work = 0
    for pieces in streams.values():
        merged = BatchIndex()
        for piece in pieces:
            index = piece.index
            for row in piece.rows:
                if work >= YIELD_WORK:
                    work = 0
                    await asyncio.sleep(0)
                at, size = index.positions[row], index.sizes[row]
                work += 1
                parts.append(piece.data[at : at + size])
                merged.add(index.offsets[row], index.timestamps[row], position, size)
                position += size
        indexes.append(([piece.extent for piece in pieces], merged))
    extents: list[Extent] = []
    for olds, merged in indexes:
        encoded = merged.encode()
        parts.append(encoded)
        extents += [_merge(run, position, len(encoded)) for run in _runs(olds)]
        position += len(encoded)
    folded = Chunk(
        number=chunks[0].number,
        last_number=chunks[-1].last_number,
        generation=chunks[0].generation + 1,
        made_by=made_by,
        size_bytes=position,
        appended_ms=created_ms,
        index_inline=True,
        extents=extents,
    )
    edit = FoldChunks(incarnation_id=incarnation_id, numbers=[chunk.number for chunk in chunks], chunk=folded)
    return Folded(edit, keys.chunk_object(incarnation_id, folded), parts, found)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The batches of one extent: rows of an index. Their positions count from the start of `data`."""

    extent: Extent
    index: BatchIndex
    rows: range
    data: memoryview


async def _mended(store: Store, manifest: Manifest, incarnation_id: str, chunk: Chunk) -> tuple[list[_Piece], list[Found]]:
    """As `check_chunk`, but makes an index that is missing or wrong again, if it is an object of its own."""
    try:
        return await check_chunk(store, manifest, incarnation_id, chunk)
    except (InvalidError, CorruptError):
        if chunk.index_inline:
            raise
        await rebuild_index(store, incarnation_id, chunk)
        return await check_chunk(store, manifest, incarnation_id, chunk)


async def check_chunk(store: Store, manifest: Manifest, incarnation_id: str, chunk: Chunk) -> tuple[list[_Piece], list[Found]]:
    """The reachable batches of a chunk, each compared with the index; and those of them that consumers cannot read.

    Raises:
        InvalidError: NOT_FOUND: the chunk is missing, or its index. CorruptError: one of them is damaged. RetryError.
    """
    live = _live(chunk.extents, manifest)
    if not live:
        return [], []
    data, sections = await _read(store, incarnation_id, chunk, max(extent.position + extent.length_bytes for extent in live))
    pieces: list[_Piece] = []
    found: list[Found] = []
    work = 0
    for extent in live:
        section = sections[extent.position : extent.position + extent.length_bytes]
        index = parse_index(section, incarnation_id, chunk, extent)
        rows = rows_of(index, extent)
        for row in rows:
            if work >= YIELD_WORK:
                work = 0
                await asyncio.sleep(0)
            at, size = index.positions[row], index.sizes[row]
            batch = data[at : at + size]
            header = _check_batch(batch, index, row, manifest, incarnation_id, extent)
            work += 1 + size // WORK_BYTES
            if chunk.generation == 0:
                work += min(header.record_count, SAMPLE_RECORDS)
                bad = _judge(manifest, extent, header, batch)
                if bad is not None:
                    found.append(bad)
        pieces.append(_Piece(extent, index, rows, data))
    return pieces, found


def _check_batch(
    batch: memoryview, index: BatchIndex, row: int, manifest: Manifest, incarnation_id: str, extent: Extent
) -> BatchHeader:
    """The header of a batch. Raises CorruptError unless the batch fits its row and its CRC.

    A batch that an operator skipped may differ from its CRC: consumers do not reach it.
    """
    damage = damage_of(batch, index, row)
    if damage is None:
        header = parse_header(batch)
        if crc_matches(batch) or not _is_readable(manifest, extent, header):
            return header
        damage = "a batch is not what was written"
    raise CorruptError(
        Reason.CORRUPT_STORE,
        f"{damage}. incarnation=`{incarnation_id}` topic_id=`{extent.topic_id}` partition=`{extent.partition}` "
        f"offset=`{index.offsets[row]}`",
    )


def _judge(manifest: Manifest, extent: Extent, header: BatchHeader, batch: memoryview) -> Found | None:
    """The error in the records of a batch, unless readers pass the batch; None without an error."""
    try:
        check_sample(header, batch)
    except RecordError as error:
        if _is_readable(manifest, extent, header):
            return Found(extent.topic_id, extent.partition, header.base_offset, header.next_offset, error.message)
    return None


def _is_readable(manifest: Manifest, extent: Extent, header: BatchHeader) -> bool:
    return manifest.readable.has(extent.topic_id, extent.partition, header.base_offset, header.next_offset)


async def _read(store: Store, incarnation_id: str, chunk: Chunk, index_end: int) -> tuple[memoryview, memoryview]:
    """A chunk, and the object to which its extents' positions refer. One or two requests, for any number of partitions.

    Args:
        index_end: end position of the last wanted section of its index.
    """
    # Not the whole object: the file of a recovered chunk may have unused prepared space after its groups.
    size = max(chunk.size_bytes, index_end) if chunk.index_inline else chunk.size_bytes
    wanted = [(keys.chunk_object(incarnation_id, chunk), size)]
    if not chunk.index_inline:
        wanted.append((keys.index_object(incarnation_id, chunk), index_end))
    objects = await in_parallel(lambda item: store.get_range(item[0], 0, item[1]), wanted, len(wanted))
    return memoryview(objects[0]), memoryview(objects[-1])


def _live(extents: Iterable[Extent], manifest: Manifest) -> list[Extent]:
    return [
        extent
        for extent in extents
        if manifest.readable.has(extent.topic_id, extent.partition, extent.base_offset, extent.end_offset)
    ]


def _runs(extents: list[Extent]) -> list[list[Extent]]:
    """Extents in order, split at each gap, because history may later fill the gap."""
    runs: list[list[Extent]] = []
    for extent in extents:
        if not runs or runs[-1][-1].end_offset != extent.base_offset:
            runs.append([])
        runs[-1].append(extent)
    return runs


def _merge(extents: list[Extent], position: int, length: int) -> Extent:
    first, last = extents[0], extents[-1]
    return Extent(
        topic_id=first.topic_id,
        partition=first.partition,
        base_offset=first.base_offset,
        end_offset=last.end_offset,
        leader_epoch=first.leader_epoch,
        timestamp_max_ms=max(extent.timestamp_max_ms for extent in extents),
        data_bytes=sum(extent.data_bytes for extent in extents),
        position=position,
        length_bytes=length,
    )
