"""Record batches with a right header, a right CRC and wrong records, as a faulty producer may send them."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping

import cramjam

from tests.support.batches import HEADER_BYTES, batch, patched

ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT, COUNT_AT = 21, 23, 57
GOOD = batch([b"one", b"two", b"three"], key=b"key")
NOISE = bytes((index * 37 + 11) % 256 for index in range(400))


def with_count(data: bytes, count: int) -> bytes:
    """The batch with another record count: sets both fields of the header that state it."""
    return patched(patched(data, LAST_OFFSET_DELTA_AT, struct.pack(">i", count - 1)), COUNT_AT, struct.pack(">i", count))


def with_records(payload: bytes, count: int, codec: int = 0) -> bytes:
    """A batch with these bytes as its records."""
    data = GOOD[:HEADER_BYTES] + payload
    data = patched(data, 8, struct.pack(">i", len(data) - 12))
    return with_count(patched(data, ATTRIBUTES_AT, struct.pack(">h", codec)), count)


def with_codec(codec: int) -> bytes:
    """Uncompressed records in a batch that names a codec in its header."""
    return patched(GOOD, ATTRIBUTES_AT, struct.pack(">h", codec))


RECORDS = GOOD[HEADER_BYTES:]
POISON: Mapping[str, bytes] = {
    "noise": with_records(NOISE, 3),
    "zeros": with_records(bytes(300), 3),
    "two-as-one": with_count(batch([b"one", b"two"]), 1),
    "two-as-three": with_count(batch([b"one", b"a value with room for seven bytes"]), 3),
    "huge-count": with_count(GOOD, 2**31 - 1),
    "bytes-behind": with_records(RECORDS + b"\0", 3),
    "cut-off": with_records(RECORDS[:-4], 3),
    "repeated-offset": with_records(batch([b"one"])[HEADER_BYTES:] * 2, 2),
    "value-too-long": with_records(b"\x10\x00\x00\x00\x01\x7e\x61\x00\x00", 1),
    "negative-value": with_records(b"\x0e\x00\x00\x00\x01\x05\x61\x00", 1),
    "header-without-name": with_records(b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1),
    "header-not-utf8": with_records(b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01", 1),
    "long-varint": with_records(b"\x8c\x80\x80\x80\x80\x80\x00\x00\x00\x00\x01\x01\x00", 1),
    **{f"not-{name}": with_codec(codec) for codec, name in ((1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd"))},
    "gzip-noise": with_records(gzip.compress(NOISE), 3, 1),
    "zstd-two-as-one": with_records(bytes(cramjam.zstd.compress(RECORDS)), 1, 4),
    "gzip-bomb": with_records(gzip.compress(bytes(64 << 20)), 3, 1),
}
"""Poison batches by name. A sample finds all but `gzip-bomb`; only a check of all records finds that one."""


def zstd_bomb(mebibytes: int, *, stated: bool) -> bytes:
    """A batch whose records are zeros after decompression: 32 bytes for each MiB. `stated`: its zstd frame tells the size, as the
    frames of some clients do."""
    blocks = mebibytes * 8
    head = b"\x28\xb5\x2f\xfd" + (b"\xc0\x38" + struct.pack("<Q", mebibytes << 20) if stated else b"\x00\x38")
    block = [((128 << 10) << 3 | 1 << 1 | last).to_bytes(3, "little") + b"\0" for last in (0, 1)]
    return with_records(head + block[0] * (blocks - 1) + block[1], 3, 4)
