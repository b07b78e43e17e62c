"""Record batches for raw Produce requests, built by kafka-python, and ways to corrupt them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kafka.record.default_records import DefaultRecordBatchBuilder

HEADER_BYTES = 61
_CRC_AT, _CRC_FROM = 17, 21


def batch(
    values: Sequence[bytes | None],
    *,
    key: bytes | None = None,
    timestamp_ms: int = 1_000_000_000_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """One uncompressed RecordBatch v2 with a right CRC."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=1 << 30,
    )
    for offset, value in enumerate(values):
        builder.append(offset, timestamp_ms + offset, key, value, [])
    return bytes(builder.build())


def patched(data: bytes, at: int, new: bytes, *, fix_crc: bool = True) -> bytes:
    """`data` with bytes overwritten at `at`; its CRC is recomputed unless told otherwise."""
    spoiled = bytearray(data)
    spoiled[at : at + len(new)] = new
    if fix_crc:
        from crc32c import crc32c

        struct.pack_into(">I", spoiled, _CRC_AT, crc32c(bytes(spoiled[_CRC_FROM:])))
    return bytes(spoiled)
