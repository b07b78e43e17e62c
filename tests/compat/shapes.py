"""The records that every producer writes and every consumer must show unchanged.

Three partitions: 0 keys, values and timestamps; 1 headers; 2 sizes. Each partition's records fit one batch below Kafka's default
`max.message.bytes`, so that a codec compresses records of different shapes together.
"""

from __future__ import annotations

import random

from tests.support.clients.interface import Client
from tests.support.records import Headers, Record

PARTITIONS = 3

_YEAR_2001_MS = 1_000_000_000_000
_ALL_BYTES = bytes(range(256))


def _noise(seed: int, count: int) -> bytes:
    return random.Random(seed).randbytes(count)


_KEYS_AND_VALUES: tuple[tuple[bytes | None, bytes | None], ...] = (
    (None, b"null key"),
    (b"", b"empty key"),
    (_ALL_BYTES, b"binary key"),
    ("clé-ключ-鍵".encode(), "valeur-значение-値".encode()),
    (b"\xff\xfe not utf-8", b"\xff\xfe not utf-8"),
    (b"tombstone", None),
    (None, None),
    (b"empty value", b""),
    (b"", b""),
    (b"binary value", _ALL_BYTES),
    (b"repeated key", b"1"),
    (b"repeated key", b"2"),
    (b"long key" * 1000, b"x"),
)

_HEADERS: tuple[Headers, ...] = (
    (),
    (("one", b"1"),),
    (("twice", b"first"), ("twice", b"second"), ("twice", b"first")),
    (("a", b"1"), ("b", b"2"), ("a", b"3")),
    (("empty", b""),),
    (("binary", _ALL_BYTES),),
    (("", b"empty name"),),
    (("en-tête-заголовок-標頭", b"unicode name"),),
    tuple((f"h{number}", str(number).encode()) for number in range(100)),
    (("large", b"x" * 20_000),),
)

_NULL_HEADERS: tuple[Headers, ...] = (
    (("null", None),),
    (("null", None), ("null", b""), ("null", None)),
)

_VALUE_SIZES = (1, 2, 63, 64, 127, 128, 1_000, 16_384, 900_000)
_TIMESTAMPS_MS = (1, _YEAR_2001_MS, _YEAR_2001_MS + 1, 1_700_000_000_000, _YEAR_2001_MS - 1, 86_400_000)


def shapes(writer: Client) -> list[Record]:
    """The records, in the order to write, without those that the writer's library refuses to write."""
    records = [
        Record(partition=0, key=key, value=value, timestamp_ms=_TIMESTAMPS_MS[index % len(_TIMESTAMPS_MS)])
        for index, (key, value) in enumerate(_KEYS_AND_VALUES)
        if writer.empty_records or (key, value) != (None, None)
    ]
    records += [
        Record(partition=1, key=b"k", value=b"v", headers=headers, timestamp_ms=_YEAR_2001_MS + index)
        for index, headers in enumerate(_HEADERS + (_NULL_HEADERS if writer.null_header_values else ()))
    ]
    records += [Record(partition=2, key=None, value=_noise(size, size), timestamp_ms=_YEAR_2001_MS + size) for size in _VALUE_SIZES]
    return records
