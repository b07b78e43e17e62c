"""Keys and values of the written records: each names its producer, and every byte of it can be checked."""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

_HEAD = struct.Struct(">8sQIIqI")
"""Marker, run, producer, place, sequence, CRC-32 of the filler and of the other fields."""
_MARKER = b"hgverify"
HEAD_BYTES = _HEAD.size
PRODUCERS_MAX = 1 << 20
SEQUENCES_MAX = 1 << 40
"""Bounds that let the judge put a producer and a sequence into one 64-bit number."""
KEYS = 64
"""Number of different keys of one place. A key belongs to one place, as with a partitioner."""


class Unread(IntEnum):
    """Replaces a producer's number if a value could not be read as a record of this run."""

    CHANGED = -1
    FOREIGN = -2


class Stamp(NamedTuple):
    """The producer of a record. `producer` may be one of `Unread`; `sequence` is then -1."""

    producer: int
    sequence: int


def key_of(place: int, sequence: int) -> bytes:
    return b"%d-%d" % (place, sequence % KEYS)


def value_of(run: int, producer: int, place: int, sequence: int, size: int) -> bytes:
    """The value of one record: `size` bytes, at least HEAD_BYTES. The filler differs from record to record."""
    word = struct.pack(">IIq", producer, place, sequence)
    filler = (word * ((size - HEAD_BYTES) // len(word) + 1))[: max(size - HEAD_BYTES, 0)]
    return _HEAD.pack(_MARKER, run, producer, place, sequence, _crc(run, word, filler)) + filler


def read_stamp(run: int, place: int, key: bytes | None, value: bytes | None) -> Stamp:
    """Producer and sequence of a record that was read from `place`. Any changed byte, key or place gives CHANGED."""
    if value is None or len(value) < HEAD_BYTES or not value.startswith(_MARKER):
        return Stamp(Unread.FOREIGN, -1)
    _, written_run, producer, written_place, sequence, crc = _HEAD.unpack_from(value)
    if written_run != run:
        return Stamp(Unread.FOREIGN, -1)
    word = struct.pack(">IIq", producer, written_place, sequence)
    if written_place != place or crc != _crc(run, word, value[HEAD_BYTES:]) or key != key_of(place, sequence):
        return Stamp(Unread.CHANGED, -1)
    return Stamp(producer, sequence)


def _crc(run: int, word: bytes, filler: bytes) -> int:
    return zlib.crc32(filler, zlib.crc32(word + struct.pack(">Q", run)))
