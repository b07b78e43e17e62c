"""Chunks: the WAL's objects, as bytes.

::

    chunk    = chunk header, groups back to back, [index]
    group    = group header, one 20-byte stream key per batch, the batches back to back
    stream   = topic id (16 bytes), partition (uint32)
    index    = for each stream its `BatchIndex` section

A *group* is the output of one commit: the batches that waited at that moment. On a store with append a chunk grows group by
group, and its index goes to an object of its own when the chunk is sealed. Where objects are written whole, a chunk has one
group and carries its index behind it.

All numbers here are little-endian, except in the batches, which are Kafka's. The group header has a CRC over itself and the
stream keys; every batch has Kafka's own. A group counts only if it is whole: no client received an ack for any other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.broker.log.batch import CRC_START, HEADER_BYTES, LENGTH_OVERHEAD_BYTES, unpack_header
from headgate.broker.log.crc import crc32c
from headgate.broker.runtime.errors import CorruptError, Reason

FORMAT_VERSION = 1

_CHUNK = struct.Struct("<4sHH16sQQQ")
_CHUNK_MAGIC = b"HGck"
CHUNK_HEADER_BYTES = _CHUNK.size

_GROUP = struct.Struct("<4sI16sQQQI4x")
_GROUP_MAGIC = b"HGgr"
GROUP_HEADER_BYTES = _GROUP.size
_GROUP_INCARNATION_AT = 8

_STREAM = struct.Struct("<16sI")
STREAM_KEY_BYTES = _STREAM.size

FLAG_SYNCED = 1
"""In the chunk header: every group was durable before the next one was begun (`wal.fsync=always`, or whole objects)."""


def stream_key(topic_id: bytes, partition: int) -> bytes:
    """The name of a partition in a chunk, 20 bytes. `topic_id`: the UUID's 16 bytes."""
    return _STREAM.pack(topic_id, partition)


def parse_stream_key(key: bytes) -> tuple[bytes, int]:
    topic_id, partition = _STREAM.unpack(key)
    return topic_id, partition


def chunk_header(incarnation: bytes, number: int, created_ms: int, flags: int, room_bytes: int = 0) -> bytes:
    """The first bytes of a chunk.

    Args:
        incarnation: 16 bytes.
        room_bytes: durable length of its file before this write. Until the chunk is complete and cut behind its last group, the
            file is not shorter. 0: unknown.
    """
    return _CHUNK.pack(_CHUNK_MAGIC, FORMAT_VERSION, flags, incarnation, number, created_ms, room_bytes)


def group_header(incarnation: bytes, sequence: int, appended_ms: int, size_bytes: int, keys: Sequence[bytes]) -> bytes:
    """Header and stream keys of a group.

    Args:
        sequence: number of the group in the incarnation, from 0.
        size_bytes: of the whole group, header and keys included.
        keys: the stream key of each batch, in order.
    """
    joined = b"".join(keys)
    header = _GROUP.pack(_GROUP_MAGIC, 0, incarnation, sequence, appended_ms, size_bytes, len(keys))
    crc = crc32c(joined, crc32c(header))
    return _GROUP.pack(_GROUP_MAGIC, crc, incarnation, sequence, appended_ms, size_bytes, len(keys)) + joined


@dataclass(frozen=True, slots=True)
class Frame:
    """One batch in a chunk. `header`: the batch's fields in the order of `log.batch.BatchHeader`."""

    stream: bytes
    position: int
    size_bytes: int
    header: tuple[int, ...]
    appended_ms: int


class ChunkScan:
    """Reads the groups of an unsealed chunk from bytes, up to the last whole one.

    Attributes after the iteration:
        end: position behind the last whole group.
        sequence_next: sequence of the next group.
        damage: None, or the description of a group behind `end` that was begun and is not whole.

    Raises:
        CorruptError: during the iteration: the chunk belongs to another incarnation; or it is damaged and whole groups follow,
            though every group was durable before the next one was begun; or its file ends within a group, and was longer. The
            medium then lost acked data, which must not pass for a torn end.
    """

    def __init__(self, data: bytes | memoryview, incarnation: bytes, number: int, sequence: int) -> None:
        self._bytes = data if isinstance(data, bytes) else bytes(data)
        self._data = memoryview(self._bytes)
        self._incarnation = incarnation
        self._number = number
        self.end = 0
        self.sequence_next = sequence
        self.damage: str | None = None
        self.synced = True

    @staticmethod
    def first_sequence(data: bytes | memoryview) -> int:
        """The sequence in the first group of a chunk, or 0 without a group: a scan may begin in the middle of a WAL."""
        if len(data) < CHUNK_HEADER_BYTES + GROUP_HEADER_BYTES:
            return 0
        sequence: int = _GROUP.unpack_from(data, CHUNK_HEADER_BYTES)[3]
        return sequence

    def __iter__(self) -> Iterator[Frame]:
        data = self._data
        if len(data) < CHUNK_HEADER_BYTES:
            return
        if not any(data[:CHUNK_HEADER_BYTES]):
            # Without the header it is unknown whether groups were durable: without syncs, a machine that dies leaves such a file.
            if (later := self._find_group(0, 0)) is not None:
                self.damage = f"chunk header is missing, and a group follows. next=`{later}`"
            return
        magic, version, flags, incarnation, number, _, room_bytes = _CHUNK.unpack_from(data, 0)
        if magic != _CHUNK_MAGIC or incarnation != self._incarnation or number != self._number:
            if self._is_torn(version, flags) and self._find_group(0, 0) is None:
                self.damage = "chunk header is not whole"
                return
            raise CorruptError(Reason.CORRUPT_STORE, f"chunk header is not what was written. number=`{self._number}`")
        if version > FORMAT_VERSION:
            raise CorruptError(Reason.CORRUPT_STORE, f"chunk was written by a newer version. format=`{version}`")
        self.synced = bool(flags & FLAG_SYNCED)
        self.end = CHUNK_HEADER_BYTES
        while True:
            frames = self._group(self.end)
            if frames is None:
                break
            yield from frames
        if self.synced and self.end < len(data) < room_bytes:
            raise CorruptError(
                Reason.CORRUPT_STORE,
                "the WAL ends within a group, and its file was longer: the file was cut, or the medium lost acked data. "
                f"chunk=`{self._number}` position=`{self.end}` bytes=`{len(data)}` room=`{room_bytes}`",
            )

    def _group(self, position: int) -> list[Frame] | None:
        data = self._data
        found = self._group_header(position, self.sequence_next)
        if found is None:
            if data[position : position + len(_GROUP_MAGIC)] == _GROUP_MAGIC:
                self.damage = f"header of group {self.sequence_next} is not whole. position=`{position}`"
            self._check_rest(position, position)
            return None
        appended_ms, size_bytes, count = found
        end = position + size_bytes
        frames: list[Frame] = []
        keys_at = position + GROUP_HEADER_BYTES
        at = keys_at + count * STREAM_KEY_BYTES
        whole = end <= len(data)
        for row in range(count):
            if not whole or end - at < HEADER_BYTES:
                whole = False
                break
            header: tuple[int, ...] = unpack_header(data, at)
            size = header[1] + LENGTH_OVERHEAD_BYTES
            if header[3] != 2 or size < HEADER_BYTES or size > end - at or crc32c(data[at + CRC_START : at + size]) != header[4]:
                whole = False
                break
            key_at = keys_at + row * STREAM_KEY_BYTES
            frames.append(Frame(bytes(data[key_at : key_at + STREAM_KEY_BYTES]), at, size, header, appended_ms))
            at += size
        if not whole or at != end:
            self.damage = f"group {self.sequence_next} is not whole. position=`{position}`"
            self._check_rest(position, end)
            return None
        self.end = end
        self.sequence_next += 1
        return frames

    def _check_rest(self, position: int, start: int) -> None:
        """There is no whole group at `position`: True if there may be one from `start` on."""
        later = self._find_group(start, self.sequence_next + 1)
        if later is None:
            return
        self.damage = f"group {self.sequence_next} is missing, and another one follows. position=`{position}` next=`{later}`"
        if self.synced:
            raise CorruptError(
                Reason.CORRUPT_STORE,
                f"the WAL is damaged, and whole groups follow: the medium lost acked data. "
                f"chunk=`{self._number}` position=`{position}` next=`{later}`",
            )

    def _find_group(self, start: int, sequence_min: int) -> int | None:
        """The position of a group header of this incarnation, from `start` on."""
        data = self._bytes
        at = data.find(self._incarnation, start + _GROUP_INCARNATION_AT)
        while at >= 0:
            position = at - _GROUP_INCARNATION_AT
            if len(data) - position >= GROUP_HEADER_BYTES:
                sequence: int = _GROUP.unpack_from(data, position)[3]
                if sequence >= sequence_min and self._group_header(position, sequence) is not None:
                    return position
            at = data.find(self._incarnation, at + 1)
        return None

    def _is_torn(self, version: int, flags: int) -> bool:
        """True if the chunk's header is the beginning of the right one, followed by zeros."""
        right = _CHUNK.pack(_CHUNK_MAGIC, version, flags, self._incarnation, self._number, 0, 0)
        return right.startswith(bytes(self._data[:CHUNK_HEADER_BYTES]).rstrip(b"\0"))

    def _group_header(self, position: int, sequence: int) -> tuple[int, int, int] | None:
        data = self._data
        if len(data) - position < GROUP_HEADER_BYTES:
            return None
        magic, crc, incarnation, found, appended_ms, size_bytes, count = _GROUP.unpack_from(data, position)
        if magic != _GROUP_MAGIC or incarnation != self._incarnation or found != sequence:
            return None
        keys_end = position + GROUP_HEADER_BYTES + count * STREAM_KEY_BYTES
        if keys_end > len(data) or position + size_bytes < keys_end:
            return None
        zeroed = _GROUP.pack(magic, 0, incarnation, found, appended_ms, size_bytes, count)
        if crc32c(data[position + GROUP_HEADER_BYTES : keys_end], crc32c(zeroed)) != crc:
            return None
        return appended_ms, size_bytes, count
