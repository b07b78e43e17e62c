"""Recovery of a lost broker's WAL tail: the chunks that the manifest does not list yet.

A tail is bounded: by design only a few chunks are unlisted (`engine/write/checkpoint.py`). The recovery reads these chunks whole,
because it must check their batches anyway. From them it gets the index rows, and the producer state since the last checkpoint.
The recovery fences the old incarnation first. From then on the incarnation cannot ack, so its WAL cannot grow.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import AddChunks, SealIncarnation
from headgate.broker.cluster.edits.segments import SealSegment
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk, Extent, Incarnation
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.engine.base import keys
from headgate.broker.engine.partition.producers import Producers, encode_producers, load_producers
from headgate.broker.engine.write.checkpoint import UPKEEP_TOGETHER
from headgate.broker.engine.write.replicas import Copy
from headgate.broker.log.batch import CONTROL, TRANSACTIONAL, unpack_header
from headgate.broker.log.chunk import (
    CHUNK_HEADER_BYTES,
    FLAG_SYNCED,
    GROUP_HEADER_BYTES,
    STREAM_KEY_BYTES,
    ChunkScan,
    Frame,
    chunk_header,
    group_header,
    parse_stream_key,
    stream_key,
)
from headgate.broker.log.index import BatchIndex
from headgate.broker.log.producers import ProducerState
from headgate.broker.log.transactions import is_commit
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import in_parallel, looked_at
from headgate.broker.store.interface import ObjectInfo, Store

logger = get_logger("recovery")

FENCE_OBJECT = b"HGfence1"
LIST_PAGE = 1000
BEGINNING_BYTES = 64 << 10
"""Bytes at the beginning of a chunk file that the recovery checks. If all of them are zero, the chunk was never written. More
than the header alone: a disk may lose the header's block like any other."""
READ_AHEAD_CHUNKS = 8
"""Chunks that are read from a bucket at the same time. A bucket has many small chunks, and each request takes tens of
milliseconds."""


@dataclass(slots=True)
class Recovered:
    """The result of a recovery: edits to commit, and figures for the operator."""

    edits: list[Edit] = field(default_factory=list)
    records: int = 0
    damage: list[str] = field(default_factory=list)
    unreadable: dict[str, CorruptError] = field(default_factory=dict)
    """Incarnations without edits, because the store lost some of their acked records; by id, with the error."""

    def whole(self) -> Recovered:
        """This result, if it has no unreadable incarnation. Raises CorruptError."""
        for error in self.unreadable.values():
            raise error
        return self


async def recover(
    store: Store,
    manifest: Manifest,
    incarnations: Iterable[Incarnation],
    made_by: str,
    copies_of: Callable[[Incarnation], Awaitable[list[Copy]]] | None = None,
) -> Recovered:
    """Fence the incarnations that are not sealed, and find the records that they wrote.

    Args:
        made_by: `keys.maker` of the broker that recovers.
        copies_of: takes the copies of an incarnation's records from its follower, and ends that following; None: there are no
            followers.

    Returns:
        Edits that list the incarnations' chunks, and seal their segments and the incarnations. Unreadable incarnations have no
        edits. The store refers to the new objects only once the edits are committed. So a recovery that dies half-way is
        repeated from the start.
    """
    recovered = Recovered()
    for incarnation in incarnations:
        copies = [] if copies_of is None else await copies_of(incarnation)
        try:
            await _recover_incarnation(store, manifest, incarnation, made_by, copies, recovered)
        except CorruptError as error:
            recovered.unreadable[incarnation.id] = error
    return recovered


async def _recover_incarnation(
    store: Store, manifest: Manifest, incarnation: Incarnation, made_by: str, copies: list[Copy], recovered: Recovered
) -> None:
    await store.put_if_absent(keys.fence(incarnation.id), FENCE_OBJECT)
    segments = [segment for segment in manifest.segments.open.values() if segment.incarnation_id == incarnation.id]
    checkpoints = {origin: None for segment in segments for origin in segment.origins}
    if incarnation.id in manifest.producers_keys:
        checkpoints[manifest.producers_keys[incarnation.id]] = None
    damaged: dict[str, CorruptError] = {}
    producers = await load_producers(store, checkpoints, damaged)
    own = manifest.producers_keys.get(incarnation.id, "")
    if own in damaged:
        raise damaged[own]
    reader = _FileReader(store, incarnation.id) if store.appender is not None else _ObjectReader(store, incarnation.id)
    chunks: list[Chunk] = []
    try:
        number = await _recover_chunks(store, incarnation, made_by, reader, producers, chunks, recovered)
    finally:
        reader.close()
    missing = _missing(segments, _ends(manifest, segments, [*manifest.chunks[incarnation.id].values(), *chunks]), copies)
    if missing:
        chunks.append(await _recover_copies(store, incarnation, number, made_by, missing, producers, recovered))
    edits: list[Edit] = [AddChunks(incarnation_id=incarnation.id, chunks=chunks)]
    if segments:
        key = keys.segment_producers(incarnation.id, f"last-{made_by}")
        streams = {stream_key(segment.topic_id.bytes, number) for segment in segments for number in segment.partitions}
        states = {stream: (offset, state.encode(offset)) for stream, (offset, state) in producers.items() if stream in streams}
        await store.put(key, encode_producers(states))
        ends = _ends(manifest, segments, [*manifest.chunks[incarnation.id].values(), *chunks])
        for segment in segments:
            segment_ends = _segment_ends(manifest, segment, ends)
            error = next((damaged[origin] for origin in segment.origins if origin in damaged), None)
            if error is None:
                edits.append(SealSegment(segment.id, segment_ends, key))
            elif segment_ends == segment.base_offsets and len(segment.origins) == 1:
                # It has no record of its own, so its next lead waits for the same object (`Leads.damaged`).
                edits.append(SealSegment(segment.id, segment_ends, segment.origins[0]))
            else:
                raise error
    # Add all edits of an incarnation, or none.
    recovered.edits += [*edits, SealIncarnation(incarnation_id=incarnation.id)]


class _FileReader:
    """Reads chunks that are files. A writer fills a file with zeros before it writes to it."""

    def __init__(self, store: Store, incarnation_id: str) -> None:
        self._store, self._incarnation_id = store, incarnation_id

    async def read(self, number: int) -> bytes | None:
        """A chunk; None if no data was written to it yet. Raises InvalidError(NOT_FOUND)."""
        key = keys.chunk(self._incarnation_id, number)
        return await self._store.get(key) if any(await self._store.get_range(key, 0, BEGINNING_BYTES)) else None

    def close(self) -> None:
        """Nothing to do: no read is pending."""


class _ObjectReader:
    """Reads chunks that are whole objects. Reads some chunks ahead of the requested one."""

    def __init__(self, store: Store, incarnation_id: str) -> None:
        self._store, self._incarnation_id = store, incarnation_id
        self._ahead: dict[int, asyncio.Task[bytes]] = {}
        self._asked = -1

    async def read(self, number: int) -> bytes | None:
        """A chunk. Raises InvalidError(NOT_FOUND). A second call for the same chunk drops all chunks read ahead, since they may
        be outdated."""
        if number == self._asked:
            self.close()
            return await self._store.get(keys.chunk(self._incarnation_id, number))
        self._asked = number
        for ahead in range(number, number + READ_AHEAD_CHUNKS):
            if ahead not in self._ahead:
                task = asyncio.create_task(self._store.get(keys.chunk(self._incarnation_id, ahead)), name="read-ahead")
                task.add_done_callback(looked_at)  # most of these reads find no chunk, and nothing awaits them
                self._ahead[ahead] = task
        return await self._ahead.pop(number)

    def close(self) -> None:
        """Cancel all pending reads."""
        for task in self._ahead.values():
            task.cancel()
        self._ahead.clear()


async def _recover_chunks(
    store: Store,
    incarnation: Incarnation,
    made_by: str,
    reader: _FileReader | _ObjectReader,
    producers: Producers,
    chunks: list[Chunk],
    recovered: Recovered,
) -> int:
    """Find all chunks that are not listed. From then on the writer cannot add another one. Returns the number after the last
    one."""
    number = incarnation.next_chunk
    sequence: int | None = None
    while True:
        key = keys.chunk(incarnation.id, number)
        try:
            data = await reader.read(number)
            if data is None:
                await _check_is_last(store, incarnation, key)
                break
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            if store.appender is not None:
                await _check_is_last(store, incarnation, key)
            elif not await store.put_if_absent(key, FENCE_OBJECT):
                continue  # the writer put this chunk first, and may have acked it
            break  # in a store of whole objects, the fence now takes this number: the writer's own put of it must fail
        if data.startswith(FENCE_OBJECT):
            break
        if sequence is None:
            sequence = ChunkScan.first_sequence(data)
        scan = ChunkScan(data, uuid.UUID(hex=incarnation.id).bytes, number, sequence)
        try:
            frames = list(scan)
        except CorruptError as error:
            raise CorruptError(error.reason, f"{error.message} key=`{key}`") from error
        if scan.damage is not None:
            recovered.damage.append(f"chunk={key} {scan.damage}")
            logger.warning("wal_tail_cut", incarnation=incarnation.id, chunk=number, damage=scan.damage)
        sequence = scan.sequence_next
        if frames:
            chunks.append(await _list_chunk(store, incarnation, number, made_by, data, scan.end, frames))
            _replay_producers(memoryview(data), frames, producers)
            recovered.records += sum(frame.header[12] for frame in frames)
        number += 1
    return number


async def _check_is_last(store: Store, incarnation: Incarnation, key: str) -> None:
    """Raise CorruptError if a chunk is missing or empty, but its incarnation made a later one.

    An incarnation makes the file of a chunk only after it acked a group in the chunk before. An object of another broker proves
    nothing, because a recovery that dies leaves its objects here.
    """
    last = key
    while objects := await store.list(keys.wal_prefix(incarnation.id), last, LIST_PAGE):
        for found in objects:
            if keys.made_in(found.key) == keys.MADE_BY_OWNER:
                raise CorruptError(
                    Reason.CORRUPT_STORE, f"the WAL lacks a chunk: the medium lost acked data. key=`{key}` next=`{found.key}`"
                )
        last = objects[-1].key


def _missing(segments: Iterable[SegmentInfo], ends: Mapping[tuple[uuid.UUID, int], int], copies: Iterable[Copy]) -> list[Copy]:
    """The copies that continue the WAL's records of the open segments."""
    open_streams: dict[bytes, tuple[int, int]] = {}
    for segment in segments:
        for partition, base_offset in zip(segment.partitions, segment.base_offsets, strict=True):
            end = max(base_offset, ends.get((segment.topic_id, partition), 0))
            open_streams[stream_key(segment.topic_id.bytes, partition)] = end, segment.leader_epoch
    missing: list[Copy] = []
    for copy in copies:
        base_offset, _, epoch, _, _, _, last_delta, *_ = unpack_header(copy.batch, 0)
        end, leader_epoch = open_streams.get(copy.stream, (0, -1))
        # A copy of an older epoch is not needed: its segment was sealed, so all its records are durable.
        if epoch == leader_epoch and base_offset >= end:
            missing.append(copy)
            open_streams[copy.stream] = base_offset + last_delta + 1, leader_epoch
    return missing


async def _recover_copies(
    store: Store,
    incarnation: Incarnation,
    number: int,
    made_by: str,
    copies: list[Copy],
    producers: Producers,
    recovered: Recovered,
) -> Chunk:
    """Store records that two brokers held in memory and the WAL lacks, as the WAL's last chunk. Its name is of the kind that
    other brokers use (`Chunk.generation`), because a fence may have its plain name. Raises CorruptError if a copy differs from
    the sent batch."""
    owner = uuid.UUID(hex=incarnation.id).bytes
    appended_ms = copies[-1].appended_ms
    size = GROUP_HEADER_BYTES + sum(STREAM_KEY_BYTES + len(copy.batch) for copy in copies)
    data = b"".join(
        (
            chunk_header(owner, number, appended_ms, FLAG_SYNCED),
            group_header(owner, 0, appended_ms, size, [copy.stream for copy in copies]),
            *(copy.batch for copy in copies),
        )
    )
    scan = ChunkScan(data, owner, number, 0)
    frames = list(scan)
    if scan.damage is not None:
        raise CorruptError(Reason.CORRUPT_STORE, f"copies are not what was sent. incarnation=`{incarnation.id}` {scan.damage}")
    chunk = replace(await _list_chunk(store, incarnation, number, made_by, data, scan.end, frames), generation=1)
    await store.put(keys.chunk_object(incarnation.id, chunk), data)
    _replay_producers(memoryview(data), frames, producers)
    recovered.records += sum(frame.header[12] for frame in frames)
    logger.info("copies_recovered", incarnation=incarnation.id, batches=len(copies), bytes=len(data))
    return chunk


def _ends(manifest: Manifest, segments: Iterable[SegmentInfo], chunks: Iterable[Chunk]) -> dict[tuple[uuid.UUID, int], int]:
    """The end offset of the records of each partition of some segments: in chunks, in folded files, or skipped since."""
    ends: dict[tuple[uuid.UUID, int], int] = {}
    for segment in segments:
        for partition in segment.partitions:
            files = manifest.files.of(segment.topic_id, partition)
            cuts = manifest.readable.cuts_of(segment.topic_id, partition)
            ends[segment.topic_id, partition] = max([0, *(file.end_offset for file in files[-1:]), *(high for _, high in cuts)])
    for chunk in chunks:
        for extent in chunk.extents:
            key = (extent.topic_id, extent.partition)
            ends[key] = max(ends.get(key, 0), extent.end_offset)
    return ends


def _segment_ends(manifest: Manifest, segment: SegmentInfo, ends: Mapping[tuple[uuid.UUID, int], int]) -> list[int]:
    return [
        max(base_offset, ends.get((segment.topic_id, partition), 0), manifest.readable.log_start(segment.topic_id, partition))
        for partition, base_offset in zip(segment.partitions, segment.base_offsets, strict=True)
    ]


def is_fence(found: ObjectInfo) -> bool:
    """True if an object is a fence: the marker, or an object with a chunk's name and the size of a fence. Every chunk is larger."""
    name = found.key.rsplit("/", 1)[1]
    return name == "fence" or (name.isdigit() and found.size_bytes == len(FENCE_OBJECT))


async def sweep_leftovers(store: Store, manifest: Manifest, incarnation_id: str) -> None:
    """Delete all objects of a sealed incarnation's WAL that the manifest does not name. Fences stay.

    These are prepared chunks, chunks that were put but never acked, and failed attempts at folds and indexes. The calling broker
    may have been replaced without knowing it. So it keeps objects of a later leader epoch, because a newer manifest may name
    them. Objects of earlier epochs can never be named any more, nor can objects of attempts that lost the race for this epoch.

    Does nothing if the incarnation is not sealed in this manifest: the edit that seals it lists its last chunks. A broker may hold
    a manifest from before the edit that sealed it, if the answer to that edit was lost.
    """
    incarnation = manifest.incarnations.get(incarnation_id)
    if incarnation is not None and not incarnation.sealed:
        return
    chunks = manifest.chunks.get(incarnation_id, {}).values()
    listed = {keys.chunk_object(incarnation_id, chunk) for chunk in chunks}
    listed |= {keys.index_object(incarnation_id, chunk) for chunk in chunks}
    last = ""
    while objects := await store.list(keys.wal_prefix(incarnation_id), last, LIST_PAGE):
        unneeded = []
        for found in objects:
            made_in = keys.made_in(found.key)
            if made_in is not None and made_in <= manifest.leader_epoch and found.key not in listed and not is_fence(found):
                unneeded.append(found.key)
        await in_parallel(store.delete, unneeded, UPKEEP_TOGETHER)
        last = objects[-1].key


async def _list_chunk(
    store: Store, incarnation: Incarnation, number: int, made_by: str, data: bytes, end: int, frames: list[Frame]
) -> Chunk:
    rows: dict[bytes, BatchIndex] = {}
    for frame in frames:
        rows.setdefault(frame.stream, BatchIndex()).add(frame.header[0], frame.header[8], frame.position, frame.size_bytes)
    sections = [index.encode() for index in rows.values()]
    inline = data[end:] == b"".join(sections)
    if not inline:
        await store.put(keys.chunk_index(incarnation.id, number, made_by), sections)
    position = end if inline else 0
    runs: dict[bytes, list[list[Frame]]] = {}
    for frame in frames:
        # A gap in the offsets was reserved for a gate. An extent has no gaps.
        pieces = runs.setdefault(frame.stream, [])
        if not pieces or _end_offset(pieces[-1][-1]) != frame.header[0]:
            pieces.append([])
        pieces[-1].append(frame)
    extents = []
    for stream, section in zip(rows, sections, strict=True):
        topic_id, partition = parse_stream_key(stream)
        for run in runs[stream]:
            extents.append(
                Extent(
                    topic_id=uuid.UUID(bytes=topic_id),
                    partition=partition,
                    base_offset=run[0].header[0],
                    end_offset=_end_offset(run[-1]),
                    leader_epoch=run[0].header[2],
                    timestamp_max_ms=max(frame.header[8] for frame in run),
                    data_bytes=sum(frame.size_bytes for frame in run),
                    position=position,
                    length_bytes=len(section),
                )
            )
        position += len(section)
    return Chunk(
        number=number,
        last_number=number,
        made_by="" if inline else made_by,
        size_bytes=max(end, CHUNK_HEADER_BYTES),
        appended_ms=frames[-1].appended_ms,
        index_inline=inline,
        extents=extents,
    )


def _end_offset(frame: Frame) -> int:
    return frame.header[0] + frame.header[6] + 1


def _replay_producers(data: memoryview, frames: list[Frame], producers: Producers) -> None:
    """Bring the states of producers up to the batches of a chunk. `data`: the chunk."""
    for frame in frames:
        header = frame.header
        producer_id, epoch, base_offset = header[9], header[10], header[0]
        if producer_id < 0:
            continue
        known, state = producers.get(frame.stream) or (0, ProducerState())
        if base_offset < known:
            continue
        end_offset = base_offset + header[6] + 1
        if header[5] & CONTROL:
            commit = is_commit(data[frame.position : frame.position + frame.size_bytes])
            state.fence(producer_id, epoch, base_offset, frame.appended_ms)
            state.transactions.end(producer_id, base_offset, commit=commit, end_offset=end_offset)
        else:
            state.record(producer_id, epoch, header[11], header[12], base_offset, frame.appended_ms)
            if header[5] & TRANSACTIONAL:
                state.transactions.begin(producer_id, epoch, base_offset)
        producers[frame.stream] = (end_offset, state)
