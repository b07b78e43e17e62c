"""What a broker that is lost leaves behind: the tail of its WAL, which the manifest does not list yet.

A tail is bounded: the chunks that the manifest does not list yet, a few by design (`engine/checkpoint.py`). They are read whole,
because their batches have to be judged anyway, and give both the index rows and the producer state of what came after the last
checkpoint. Fencing comes first: from then on the old incarnation cannot ack, and what is found is all there will ever be.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from headgate.broker.cluster.manifest import AddChunks, Chunk, Edit, Extent, Incarnation, Manifest, SealIncarnation, SealSegment
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.engine import keys
from headgate.broker.engine.partition import PartitionLog
from headgate.broker.engine.replicas import Copy
from headgate.broker.log.batch import unpack_header
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
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import looked_at
from headgate.broker.store.interface import ObjectInfo, Store

log = get_logger("recovery")

FENCE_OBJECT = b"HGfence1"
LIST_PAGE = 1000
BEGINNING_BYTES = 64 << 10
"""Of a chunk that is a file: where all of it is zero nothing was written. More than its header, which is in a block that a disk may
lose like any other."""
READ_AHEAD_CHUNKS = 8
"""Chunks of a bucket that are read at once: there are many small ones, and each answer takes its time."""


Producers: TypeAlias = dict[bytes, tuple[int, ProducerState]]
"""By stream key: the offset up to which the state is known, and the state."""


@dataclass(slots=True)
class Recovered:
    """Edits to commit, and what people want to know."""

    edits: list[Edit] = field(default_factory=list)
    records: int = 0
    damage: list[str] = field(default_factory=list)
    unreadable: dict[str, CorruptError] = field(default_factory=dict)
    """Incarnations for which there are no edits, because the store lost what they acked, and why."""

    def whole(self) -> Recovered:
        """This, if nothing is left out. Raises CorruptError."""
        for error in self.unreadable.values():
            raise error
        return self


def encode_producers(states: Mapping[bytes, tuple[int, bytes]]) -> bytes:
    """A checkpoint of producer state: by stream key, (offset up to which it is known, `ProducerState.encode`)."""
    parts = [b"HGpr", len(states).to_bytes(4, "little")]
    for stream, (offset, state) in states.items():
        parts += [stream, offset.to_bytes(8, "little"), len(state).to_bytes(4, "little"), state]
    return b"".join(parts)


async def encode_states(logs: Iterable[PartitionLog]) -> bytes:
    """A checkpoint of what is durable in some partitions. The loop gets a turn after each: one takes up to 10 ms."""
    states: dict[bytes, tuple[int, bytes]] = {}
    for partition in list(logs):
        if not partition.producers_state.is_empty:
            durable = partition.high_watermark
            states[partition.stream] = durable, partition.producers_state.encode(durable)
            await asyncio.sleep(0)
    return encode_producers(states)


def decode_producers(data: bytes) -> Producers:
    """The inverse of `encode_producers`. Raises CorruptError."""
    view = memoryview(data)
    states: Producers = {}
    position = 8
    if bytes(view[:4]) != b"HGpr":
        raise CorruptError(Reason.CORRUPT_STORE, "producer checkpoint is not what was written")
    for _ in range(int.from_bytes(view[4:8], "little")):
        stream = bytes(view[position : position + 20])
        offset = int.from_bytes(view[position + 20 : position + 28], "little")
        size = int.from_bytes(view[position + 28 : position + 32], "little")
        position += 32 + size
        states[stream] = offset, ProducerState.decode(view[position - size : position])
    if position != len(data):
        raise CorruptError(Reason.CORRUPT_STORE, f"producer checkpoint is cut off. bytes=`{len(data)}`")
    return states


async def recover(
    store: Store,
    manifest: Manifest,
    incarnations: Iterable[Incarnation],
    made_by: str,
    copies_of: Callable[[Incarnation], Awaitable[list[Copy]]] | None = None,
) -> Recovered:
    """Fence incarnations that are not sealed, and find what they wrote.

    Args:
        made_by: `keys.maker` of who recovers.
        copies_of: takes from an incarnation's follower what it holds, so that it can hold no more; None: nobody follows anybody.

    Returns:
        Edits that list their chunks, and seal their segments and them; not of those that cannot be read. Nothing else in the store
        depends on them until they are committed, so a recovery that dies half-way is simply done again.
    """
    recovered = Recovered()
    for incarnation in incarnations:
        copies = [] if copies_of is None else await copies_of(incarnation)
        try:
            await _recover_incarnation(store, manifest, incarnation, made_by, copies, recovered)
        except CorruptError as error:
            recovered.unreadable[incarnation.id] = error
    return recovered


async def load_producers(store: Store, objects: Iterable[str]) -> Producers:
    """The newest state of every stream in some checkpoints. Raises CorruptError, RetryError."""
    newest: Producers = {}
    for key in objects:
        try:
            states = decode_producers(await store.get(key))
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            raise CorruptError(Reason.CORRUPT_STORE, f"a checkpoint of producers is missing. key=`{key}`") from error
        except CorruptError as error:
            raise CorruptError(error.reason, f"{error.message} key=`{key}`") from error
        for stream, (offset, state) in states.items():
            if stream not in newest or newest[stream][0] <= offset:
                newest[stream] = offset, state
    return newest


async def _recover_incarnation(
    store: Store, manifest: Manifest, incarnation: Incarnation, made_by: str, copies: list[Copy], recovered: Recovered
) -> None:
    await store.put_if_absent(keys.fence(incarnation.id), FENCE_OBJECT)
    segments = [segment for segment in manifest.segments.values() if segment.incarnation_id == incarnation.id]
    checkpoints = {origin: None for segment in segments for origin in segment.origins}
    if incarnation.id in manifest.producers_keys:
        checkpoints[manifest.producers_keys[incarnation.id]] = None
    producers = await load_producers(store, checkpoints)
    reader = _FileReader(store, incarnation.id) if store.appender is not None else _ObjectReader(store, incarnation.id)
    chunks: list[Chunk] = []
    try:
        number = await _recover_chunks(store, incarnation, made_by, reader, producers, chunks, recovered)
    finally:
        reader.close()
    missing = _missing(segments, _ends([*manifest.chunks[incarnation.id].values(), *chunks]), copies)
    if missing:
        chunks.append(await _recover_copies(store, incarnation, number, made_by, missing, producers, recovered))
    edits: list[Edit] = [AddChunks(incarnation_id=incarnation.id, chunks=chunks)]
    if segments:
        key = keys.segment_producers(incarnation.id, f"last-{made_by}")
        streams = {stream_key(segment.topic_id.bytes, number) for segment in segments for number in segment.partitions}
        states = {stream: (offset, state.encode(offset)) for stream, (offset, state) in producers.items() if stream in streams}
        await store.put(key, encode_producers(states))
        ends = _ends([*manifest.chunks[incarnation.id].values(), *chunks])
        for segment in segments:
            edits.append(SealSegment(segment.id, _segment_ends(manifest, segment, ends), key))
    # All of an incarnation's, or none.
    recovered.edits += [*edits, SealIncarnation(incarnation_id=incarnation.id)]


class _FileReader:
    """Reads chunks that are files, prepared with zeros before they are written to."""

    def __init__(self, store: Store, incarnation_id: str) -> None:
        self._store, self._incarnation_id = store, incarnation_id

    async def read(self, number: int) -> bytes | None:
        """A chunk; None where nothing was written to it yet. Raises InvalidError(NOT_FOUND)."""
        key = keys.chunk(self._incarnation_id, number)
        return await self._store.get(key) if any(await self._store.get_range(key, 0, BEGINNING_BYTES)) else None

    def close(self) -> None:
        """Nothing is under way."""


class _ObjectReader:
    """Reads chunks that are whole objects, some ahead of the one that is asked for."""

    def __init__(self, store: Store, incarnation_id: str) -> None:
        self._store, self._incarnation_id = store, incarnation_id
        self._ahead: dict[int, asyncio.Task[bytes]] = {}
        self._asked = -1

    async def read(self, number: int) -> bytes | None:
        """A chunk. Raises InvalidError(NOT_FOUND): then nothing is read ahead any more, for it may come yet."""
        if number == self._asked:
            self.close()
            return await self._store.get(keys.chunk(self._incarnation_id, number))
        self._asked = number
        for one in range(number, number + READ_AHEAD_CHUNKS):
            if one not in self._ahead:
                self._ahead[one] = asyncio.create_task(self._store.get(keys.chunk(self._incarnation_id, one)), name="read-ahead")
        return await self._ahead.pop(number)

    def close(self) -> None:
        """What is under way is not wanted any more."""
        for task in self._ahead.values():
            task.cancel()
            task.add_done_callback(looked_at)
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
    """Find the chunks that are not listed, to the last one. From then on there is no other. Returns the number behind it."""
    number = incarnation.next_chunk
    sequence: int | None = None
    while True:
        key = keys.chunk(incarnation.id, number)
        try:
            data = await reader.read(number)
            if data is None:
                break
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            if store.appender is not None:
                await _check_is_last(store, incarnation, key)
            elif not await store.put_if_absent(key, FENCE_OBJECT):
                continue  # its writer was faster, and may have acked it
            break  # where objects are put whole, the fence stands here now: the writer's own put of this number can only lose
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
            log.warning("wal_tail_cut", incarnation=incarnation.id, chunk=number, damage=scan.damage)
        sequence = scan.sequence_next
        if frames:
            chunks.append(await _list_chunk(store, incarnation, number, made_by, data, scan.end, frames))
            _replay_producers(frames, producers)
            recovered.records += sum(frame.header[12] for frame in frames)
        number += 1
    return number


async def _check_is_last(store: Store, incarnation: Incarnation, key: str) -> None:
    """Raise CorruptError where a chunk is not there, though a later one is: files are made in the order of their numbers."""
    behind = await store.list(keys.wal_prefix(incarnation.id), key, 1)
    if behind and keys.made_in(behind[0].key) is not None:
        raise CorruptError(
            Reason.CORRUPT_STORE, f"the WAL lacks a chunk: the medium lost acked data. key=`{key}` next=`{behind[0].key}`"
        )


def _missing(segments: Iterable[SegmentInfo], ends: Mapping[tuple[uuid.UUID, int], int], copies: Iterable[Copy]) -> list[Copy]:
    """The copies that continue what the WAL has of its open segments."""
    open_streams: dict[bytes, tuple[int, int]] = {}
    for segment in segments:
        for partition, base_offset in zip(segment.partitions, segment.base_offsets, strict=True):
            end = max(base_offset, ends.get((segment.topic_id, partition), 0))
            open_streams[stream_key(segment.topic_id.bytes, partition)] = end, segment.leader_epoch
    missing: list[Copy] = []
    for copy in copies:
        base_offset, _, epoch, _, _, _, last_delta, *_ = unpack_header(copy.batch, 0)
        end, leader_epoch = open_streams.get(copy.stream, (0, -1))
        # Of an older epoch: the segment was sealed, so all of it is durable.
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
    """Store what two brokers held and the WAL lacks, as its last chunk: named as what others make (`Chunk.generation`), because a
    fence may stand in its place. Raises CorruptError where a copy is not what was sent."""
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
    _replay_producers(frames, producers)
    recovered.records += sum(frame.header[12] for frame in frames)
    log.info("copies_recovered", incarnation=incarnation.id, batches=len(copies), bytes=len(data))
    return chunk


def _ends(chunks: Iterable[Chunk]) -> dict[tuple[uuid.UUID, int], int]:
    """Behind the last record of every partition in some chunks."""
    ends: dict[tuple[uuid.UUID, int], int] = {}
    for chunk in chunks:
        for extent in chunk.extents:
            key = (extent.topic_id, extent.partition)
            ends[key] = max(ends.get(key, 0), extent.end_offset)
    return ends


def _segment_ends(manifest: Manifest, segment: SegmentInfo, ends: Mapping[tuple[uuid.UUID, int], int]) -> list[int]:
    return [
        max(base_offset, ends.get((segment.topic_id, partition), 0), manifest.log_start(segment.topic_id, partition))
        for partition, base_offset in zip(segment.partitions, segment.base_offsets, strict=True)
    ]


def is_fence(found: ObjectInfo) -> bool:
    """Whether an object is a fence: the marker, or one in the place of a chunk, which no chunk is as short as."""
    name = found.key.rsplit("/", 1)[1]
    return name == "fence" or (name.isdigit() and found.size_bytes == len(FENCE_OBJECT))


async def sweep_leftovers(store: Store, manifest: Manifest, incarnation_id: str) -> None:
    """Delete what stands in a sealed incarnation's WAL and is not in the manifest. Fences stay.

    These are chunks that were prepared, or put but never acked, and attempts at folds and indexes. Whoever calls this may have been
    replaced without knowing it, so what was made in a later leader epoch is left alone: a newer manifest may name it. What older
    brokers made, or those that lost the race for this epoch, can never be named any more.
    """
    chunks = manifest.chunks.get(incarnation_id, {}).values()
    listed = {keys.chunk_object(incarnation_id, chunk) for chunk in chunks}
    listed |= {keys.index_object(incarnation_id, chunk) for chunk in chunks}
    last = ""
    while objects := await store.list(keys.wal_prefix(incarnation_id), last, LIST_PAGE):
        for found in objects:
            made_in = keys.made_in(found.key)
            if made_in is not None and made_in <= manifest.leader_epoch and found.key not in listed and not is_fence(found):
                await store.delete(found.key)
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
        # A gap was kept free for a gate: an extent has none.
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


def _replay_producers(frames: list[Frame], producers: Producers) -> None:
    for frame in frames:
        header = frame.header
        if header[9] < 0:
            continue
        known, state = producers.get(frame.stream) or (0, ProducerState())
        if header[0] >= known:
            state.record(header[9], header[10], header[11], header[12], header[0], frame.appended_ms)
            producers[frame.stream] = (header[0] + header[6] + 1, state)
