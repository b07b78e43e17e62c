"""RecordBatch v2: the 61-byte header. The records behind it are not read here.

Layout: https://kafka.apache.org/documentation/#recordbatch. The CRC-32C covers everything from `attributes` on, so the broker
can stamp `base_offset` and `partition_leader_epoch` in place without touching it::

    0  base_offset              int64     re-stamped
    8  batch_length             int32     bytes after this field
    12 partition_leader_epoch   int32     re-stamped
    16 magic                    int8      2
    17 crc                      uint32    CRC-32C of [21, end)
    21 attributes               int16     bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
    23 last_offset_delta        int32
    27 base_timestamp           int64     ms
    35 max_timestamp            int64     ms
    43 producer_id              int64
    51 producer_epoch           int16
    53 base_sequence            int32
    57 record_count             int32
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from headgate.broker.log.crc import crc32c
from headgate.broker.runtime.errors import InvalidError, Reason

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES = 61
LENGTH_OVERHEAD_BYTES = 12
"""Bytes that `batch_length` does not count: the base offset and `batch_length` itself."""
CRC_START = 21

CODEC_MASK = 0x07
CODEC_MAX = 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

RESERVED = ~(CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
"""Bits that a producer may not set: 6 is set by Kafka's log cleaner (delete horizon), the others have no meaning yet."""

RECORD_BYTES_MIN = (7.0, 7 / 1032, 7 / 22, 7 / 255, 7 / (1 << 15))
"""Smallest number of bytes of a record within a batch, by codec. The smallest record has seven: length, attributes, two deltas,
null key, null value, no headers. One compressed byte stands for at most 1032 bytes with gzip, 22 with snappy, 255 with lz4, 32 KiB
with zstd."""
RECORDS_MAX = (256 << 20) // 7
"""Records of one batch. More take over 256 MiB uncompressed, which readers refuse (`compression.DECOMPRESSED_BYTES_MAX`)."""

NO_PRODUCER_ID = -1
_END_MARKER = bytes.fromhex("20 00 00 00 08 00000001 0c 000000000000 00")
"""A record: length 16, no attributes, deltas 0; key (version 0, commit), value (version 0, coordinator epoch 0); no headers."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
unpack_header = _HEADER.unpack_from
pack_header = _HEADER.pack_into
"""(buffer, position, *fields): write a header's fields, in the order of `BatchHeader`."""
stamp = struct.Struct(">qii").pack_into
"""``stamp(buffer, position, base_offset, batch_length, leader_epoch)``: write the fields that the broker assigns to a batch, in
place. The CRC does not cover them. (The length lies between the two and does not change.)"""
_PREFIX = struct.Struct(">qi").unpack_from
_CRC = struct.Struct(">I").pack_into
_ATTRIBUTES = struct.Struct(">h").pack_into
_MAX_TIMESTAMP = struct.Struct(">q").pack_into


class BatchHeader(NamedTuple):
    """The header's fields, in the order of the bytes. Times are ms since the epoch."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked. Raises InvalidError if fewer than 61 bytes are left."""
    if len(buffer) - position < HEADER_BYTES:
        raise _corrupt("is cut off in its header", len(buffer) - position)
    return BatchHeader._make(unpack_header(buffer, position))


def parse(buffer: memoryview, position: int, available: int) -> tuple[int, ...]:
    """The header's fields, unchecked, in the order of `BatchHeader`; a plain tuple, because this is the hot path.

    Args:
        available: bytes from `position` on.

    Raises:
        InvalidError: there is no whole header.
    """
    if available < HEADER_BYTES:
        if available == 0:
            raise InvalidError(Reason.INVALID_RECORD, "a partition's records must be one record batch. bytes=`0`")
        if available >= 17 and buffer[position + 16] < 2:
            raise _old_format(buffer[position + 16])
        raise _corrupt("is cut off in its header", available)
    header: tuple[int, ...] = unpack_header(buffer, position)
    return header


def check(header: tuple[int, ...], buffer: memoryview, position: int, available: int, size_bytes_max: int) -> None:
    """Check one batch from a client, as Kafka's LogValidator does, without looking at its records (`log/check.py` does that).

    `WritePath.append_parsed` first tests in one condition whether everything is usual, and calls this function only if not.

    Args:
        header: the result of `parse`.
        buffer: bytes with the batch at `position`, and nothing else in the `available` bytes from there on.
        size_bytes_max: the topic's `max.message.bytes`.

    Raises:
        InvalidError: with the Reason that names the fault.
    """
    size = header[1] + LENGTH_OVERHEAD_BYTES
    if header[3] != 2:
        if 0 <= header[3] < 2:
            raise _old_format(header[3])
        raise _corrupt("has an unknown magic", header[3])
    if size < HEADER_BYTES or size > available:
        raise _corrupt("states a length that does not fit", header[1])
    if size > size_bytes_max:
        raise InvalidError(
            Reason.MESSAGE_TOO_LARGE,
            f"record batch is larger than max.message.bytes. size=`{size}` max=`{size_bytes_max}`",
        )
    if crc32c(buffer[position + CRC_START : position + size]) != header[4]:
        raise _corrupt("does not match its CRC-32C", header[4])
    attributes = header[5]
    if attributes:
        if attributes & CODEC_MASK > CODEC_MAX:
            raise InvalidError(
                Reason.UNSUPPORTED_COMPRESSION, f"record batch has an unknown codec. codec=`{attributes & CODEC_MASK}`"
            )
        if attributes & LOG_APPEND_TIME:
            raise InvalidError(Reason.INVALID_TIMESTAMP, "the timestamp type LogAppendTime is set by brokers only")
        if attributes & CONTROL:
            raise InvalidError(Reason.INVALID_RECORD, "control batches are written by brokers only")
        if attributes & TRANSACTIONAL and header[9] < 0:
            raise InvalidError(Reason.INVALID_RECORD, "a batch in a transaction has no producer id")
        if attributes & RESERVED:
            raise InvalidError(Reason.INVALID_RECORD, f"record batch has reserved attributes. attributes=`{attributes:#x}`")
    if header[12] <= 0 or header[6] != header[12] - 1:
        raise InvalidError(
            Reason.INVALID_RECORD,
            f"record count and last offset delta disagree. count=`{header[12]}` last_offset_delta=`{header[6]}`",
        )
    if header[12] > RECORDS_MAX or header[12] * RECORD_BYTES_MIN[attributes & CODEC_MASK] > size - HEADER_BYTES:
        raise InvalidError(
            Reason.INVALID_RECORD,
            f"record batch is too small for its record count. count=`{header[12]}` size=`{size}`",
        )
    if header[9] >= 0 and (header[10] < 0 or header[11] < 0):
        raise InvalidError(
            Reason.INVALID_RECORD,
            f"producer id without epoch or sequence. producer_id=`{header[9]}` epoch=`{header[10]}` sequence=`{header[11]}`",
        )
    if size != available:
        raise InvalidError(
            Reason.INVALID_RECORD, f"exactly one record batch may be sent for a partition. extra_bytes=`{available - size}`"
        )


def stamp_append_time(buffer: bytearray | memoryview, position: int, size_bytes: int, timestamp_ms: int) -> None:
    """Make a batch LogAppendTime (KIP-32): its one timestamp is `timestamp_ms`. The CRC covers it and is computed again."""
    attributes = (buffer[position + 21] << 8) | buffer[position + 22]
    _ATTRIBUTES(buffer, position + 21, attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP(buffer, position + 35, timestamp_ms)
    _CRC(buffer, position + 17, crc32c(memoryview(buffer)[position + CRC_START : position + size_bytes]))


def stamp_crc(batch: bytearray | memoryview) -> None:
    """Write the CRC of one whole batch whose other bytes are final."""
    _CRC(batch, 17, crc32c(memoryview(batch)[CRC_START:]))


def marker_batch(offset: int, leader_epoch: int) -> memoryview:
    """A batch that takes this offset and delivers no record: a consumer continues behind it.

    It is a control batch with one end marker (KIP-98, a commit), without a producer and so without a transaction. Kafka's log
    cleaner leaves batches without any record. librdkafka and the Java client accept those, but kafkajs never gets past one, and
    sarama passes it one offset at a time.
    """
    batch = memoryview(bytearray(HEADER_BYTES) + _END_MARKER)
    pack_header(
        batch, 0,
        offset, len(batch) - LENGTH_OVERHEAD_BYTES, leader_epoch, 2, 0, CONTROL, 0, -1, -1, NO_PRODUCER_ID, -1, -1, 1,
    )  # fmt: skip
    stamp_crc(batch)
    return batch


def split(buffer: memoryview) -> list[memoryview]:
    """The batches that lie back to back in `buffer`. Raises InvalidError if the last one does not end at the buffer's end."""
    batches = []
    position, end = 0, len(buffer)
    while position < end:
        if end - position < HEADER_BYTES:
            raise _corrupt("is cut off in its header", end - position)
        size = _PREFIX(buffer, position)[1] + LENGTH_OVERHEAD_BYTES
        if size < HEADER_BYTES or size > end - position:
            raise _corrupt("states a length that does not fit", size)
        batches.append(buffer[position : position + size])
        position += size
    return batches


def crc_matches(buffer: Buffer) -> bool:
    """Whether the CRC of one whole batch is right."""
    view = memoryview(buffer)
    return bool(crc32c(view[CRC_START:]) == unpack_header(view, 0)[4])


def _corrupt(what: str, value: int) -> InvalidError:
    return InvalidError(Reason.CORRUPT_MESSAGE, f"record batch {what}. value=`{value}`")


def _old_format(magic: int) -> InvalidError:
    return InvalidError(
        Reason.UNSUPPORTED_MESSAGE_FORMAT,
        f"message format v{magic} is not served: send RecordBatch v2 (Kafka 0.11 and later). magic=`{magic}`",
    )
