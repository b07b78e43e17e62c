"""Folding: many small chunks become one larger one, sorted by partition, so that there are never many.

On S3 a busy broker puts a few chunks a second; without folding the manifest, memory and the number of objects would grow with time
instead of with what is kept. Chunks are folded as a log-structured merge tree compacts its runs: `FANOUT` neighbours of one
generation become one of the next, so a byte is rewritten a few times in its life. Batches are moved as they are. What nobody can
read any more (below a log start, or of a deleted topic) is left behind.

A fold is one edit of the manifest. A reader that was about to read a chunk that is gone looks up its offset again.

The first fold of a chunk checks every batch in it (`log/check.py`). A batch that consumers cannot read was acked, so it is moved
like all others, and reported: an operator skips it.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Set
from typing import NamedTuple

from headgate.broker.cluster.manifest import Chunk, Extent, FoldChunks, Manifest
from headgate.broker.engine import keys
from headgate.broker.engine.mend import rebuild_index
from headgate.broker.engine.reader import parse_index
from headgate.broker.engine.skip import why_unreadable
from headgate.broker.log.batch import parse_header
from headgate.broker.log.check import SAMPLE_RECORDS
from headgate.broker.log.chunk import CHUNK_HEADER_BYTES, FLAG_SYNCED, chunk_header
from headgate.broker.log.index import BatchIndex
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.store.interface import Store

FANOUT = 32
BYTES_MAX = 32 << 20
"""What one fold reads and holds in memory; chunks of more than half of it are left as they are."""
COUNT_MIN = 4
"""Fewer are folded only together with what comes."""
YIELD_WORK = 1000
"""Batches moved and records checked before the loop gets a turn: about a millisecond."""
WORK_BYTES = 8 << 10
"""Bytes of a batch, whose checksum and compression are checked, that count as much as a record."""
SPAN_MS_MAX = 3600 * 1000
"""Chunks that were written further apart stay apart, so that retention by time can free the older one."""


def choose(manifest: Manifest, by: str, left: Set[tuple[str, int]] = frozenset()) -> tuple[str, list[Chunk]] | None:
    """The next neighbours to fold, as (incarnation id, chunks), or None: `FANOUT` of them, or fewer that are large together.

    Args:
        by: an incarnation folds its own chunks; the leader, or a broker that is alone, also those of sealed incarnations.
        left: chunks that cannot be folded, by incarnation and number.
    """
    leads = manifest.leader in ("", by)
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


class Found(NamedTuple):
    """A batch that consumers cannot read, and why."""

    topic_id: uuid.UUID
    partition: int
    base_offset: int
    end_offset: int
    why: str


async def fold(
    store: Store, manifest: Manifest, incarnation_id: str, chunks: list[Chunk], made_by: str
) -> tuple[FoldChunks, list[Found]]:
    """Write the chunk that replaces `chunks`.

    Args:
        made_by: `keys.maker` of this attempt, which no other has: a broker that was replaced while it wrote, or a put that comes
            late, must not replace an object that the manifest names.

    Returns:
        The edit that puts it in their place, which until it is committed means nothing; and the batches in it that consumers cannot
        read, of chunks that were not folded before.
    """
    created_ms = chunks[-1].appended_ms
    header = chunk_header(uuid.UUID(hex=incarnation_id).bytes, chunks[0].number, created_ms, FLAG_SYNCED)
    streams: dict[tuple[uuid.UUID, int, int], list[tuple[Extent, BatchIndex, memoryview, bool]]] = {}
    for chunk in chunks:
        live = _live(chunk.extents, manifest)
        if not live:
            continue
        data, sections = await _read(store, incarnation_id, chunk, max(extent.position + extent.length_bytes for extent in live))
        for extent in live:
            section = sections[extent.position : extent.position + extent.length_bytes]
            index = parse_index(section, incarnation_id, chunk, extent)
            # Of one leader epoch: between two of them other incarnations may have written.
            stream = (extent.topic_id, extent.partition, extent.leader_epoch)
            streams.setdefault(stream, []).append((extent, index, data, chunk.generation == 0))
    parts: list[bytes | memoryview] = [header]
    indexes: list[tuple[list[Extent], BatchIndex]] = []
    position = CHUNK_HEADER_BYTES
    work = 0
    found: list[Found] = []
    for pieces in streams.values():
        merged = BatchIndex()
        for extent, index, data, is_new in pieces:
            # An index section may belong to two extents, on both sides of a window.
            for row in range(bisect_left(index.offsets, extent.base_offset), bisect_left(index.offsets, extent.end_offset)):
                if work >= YIELD_WORK:
                    work = 0
                    await asyncio.sleep(0)
                at, size = index.positions[row], index.sizes[row]
                batch = data[at : at + size]
                work += 1
                if is_new:
                    bad, records = _judge(manifest, extent, batch)
                    work += min(records, SAMPLE_RECORDS) + size // WORK_BYTES
                    if bad is not None:
                        found.append(bad)
                parts.append(batch)
                merged.add(index.offsets[row], index.timestamps[row], position, size)
                position += size
        indexes.append(([piece[0] for piece in pieces], merged))
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
    await store.put(keys.chunk_object(incarnation_id, folded), parts)
    return FoldChunks(incarnation_id=incarnation_id, numbers=[chunk.number for chunk in chunks], chunk=folded), found


def _judge(manifest: Manifest, extent: Extent, batch: memoryview) -> tuple[Found | None, int]:
    """What is wrong with a batch that readers do not step over, and how many records it states."""
    header = parse_header(batch)
    why = why_unreadable(header, batch)
    if why is None or not manifest.is_readable(extent.topic_id, extent.partition, header.base_offset, header.next_offset):
        return None, header.record_count
    return Found(extent.topic_id, extent.partition, header.base_offset, header.next_offset, why), header.record_count


async def _read(store: Store, incarnation_id: str, chunk: Chunk, index_end: int) -> tuple[memoryview, memoryview]:
    """A chunk, and what its extents' positions count from; one or two requests, however many partitions stand in it.

    Args:
        index_end: where the last wanted section of its index ends.
    """
    # Not the whole object: one that was recovered may have room behind its groups that was never used.
    size = max(chunk.size_bytes, index_end) if chunk.index_inline else chunk.size_bytes
    data = memoryview(await store.get_range(keys.chunk_object(incarnation_id, chunk), 0, size))
    if chunk.index_inline:
        return data, data
    key = keys.index_object(incarnation_id, chunk)
    try:
        return data, memoryview(await store.get_range(key, 0, index_end))
    except InvalidError:
        await rebuild_index(store, incarnation_id, chunk)
        return data, memoryview(await store.get_range(key, 0, index_end))


def _live(extents: Iterable[Extent], manifest: Manifest) -> list[Extent]:
    return [
        extent
        for extent in extents
        if manifest.is_readable(extent.topic_id, extent.partition, extent.base_offset, extent.end_offset)
    ]


def _runs(extents: list[Extent]) -> list[list[Extent]]:
    """Extents in order, cut where there is a gap: history may come to stand in it."""
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
