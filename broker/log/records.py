"""The records inside a RecordBatch v2: build a batch, read its records. No I/O.

The broker never needs this to move data. Clients do, and so does the offsets topic, whose records the broker writes. Layout:
https://kafka.apache.org/documentation/#record. All numbers are zigzag varints except `attributes` (one unused byte)::

    length, attributes, timestamp delta, offset delta, key length (-1 null), key, value length (-1 null), value,
    header count, then per header: key length, key (UTF-8), value length (-1 null), value
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from headgate.broker.log.batch import (
    CODEC_MASK,
    CODEC_MAX,
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    Buffer,
    parse_header,
)
from headgate.broker.log.compression import DECOMPRESSED_BYTES_MAX, Codec, compress, decompress
from headgate.broker.log.crc import crc32c
from headgate.broker.runtime.errors import InvalidError, Reason

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

RECORD_OVERHEAD_BYTES_MAX = 36
"""A record's bytes besides its key, value and headers: attributes, five varints of at most 5 bytes, the timestamp's of 10."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_CRC_POSITION = 17


class Record(NamedTuple):
    """One record. `offset` is absolute when read and ignored when written; `timestamp_ms` is ms since the epoch (-1: none)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_batch(
    records: Iterable[Record],
    *,
    compression: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """One batch of at least one record, as a producer sends it: base offset 0, offsets counted up from it, CreateTime."""
    body = bytearray()
    base_timestamp = max_timestamp = -1
    count = 0
    for _, timestamp_ms, key, value, headers in records:
        if count == 0:
            base_timestamp = timestamp_ms
        if timestamp_ms > max_timestamp:
            max_timestamp = timestamp_ms
        record = bytearray(1)
        record += _varint(timestamp_ms - base_timestamp)
        record += _varint(count)
        if key is None:
            record += _NULL
        else:
            record += _varint(len(key))
            record += key
        if value is None:
            record += _NULL
        else:
            record += _varint(len(value))
            record += value
        record += _varint(len(headers))
        for name, content in headers:
            encoded = name.encode("utf-8", "surrogateescape")
            record += _varint(len(encoded))
            record += encoded
            if content is None:
                record += _NULL
            else:
                record += _varint(len(content))
                record += content
        body += _varint(len(record))
        body += record
        count += 1
    assert count > 0, "a batch has at least one record"
    payload: Buffer = body if compression is Codec.NONE else compress(compression, body)
    length = HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(payload)
    attributes = compression | TRANSACTIONAL if transactional else int(compression)
    batch = bytearray(HEADER_BYTES)
    _HEADER.pack_into(
        batch, 0,
        0, length, -1, 2, 0, attributes, count - 1, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    batch += payload
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def is_header_name(name: str) -> bool:
    """True if the name can be written: UTF-8, or the form in which other bytes are read."""
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def encoded_bytes_max(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Upper bound of a record's bytes in an uncompressed batch."""
    size = RECORD_OVERHEAD_BYTES_MAX + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += 10 + 4 * len(name) + len(content or b"")
    return size


def iter_records(batch: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of one whole batch, lowest offset first; of a control batch none. The CRC is not looked at (`batch.crc_matches`).

    Raises:
        InvalidError: CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION, for any bytes whatever; some records may have been given by then.
    """
    view = memoryview(batch)
    header = parse_header(view)
    attributes = header.attributes
    if header.magic != 2:
        raise _corrupt("has an unknown magic", header.magic)
    if header.size_bytes != len(view):
        raise _corrupt("states a length that does not fit", header.size_bytes)
    if attributes & CODEC_MASK > CODEC_MAX:
        raise InvalidError(Reason.UNSUPPORTED_COMPRESSION, f"record batch has an unknown codec. codec=`{attributes & CODEC_MASK}`")
    if attributes & CONTROL:
        return
    # `bytes`: its slices are the keys and values themselves, and indexing it is cheaper than indexing a view.
    data = bytes(decompress(Codec(attributes & CODEC_MASK), view[HEADER_BYTES:], decompressed_bytes_max))
    base_offset, base_timestamp, last_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
    append_time = header.max_timestamp if attributes & LOG_APPEND_TIME else None
    if header.record_count < 0:
        raise _corrupt("states a negative record count", header.record_count)
    position, end = 0, len(data)
    previous_delta = -1
    try:
        for _ in range(header.record_count):
            length, position = _read_varint(data, position)
            record_end = position + length
            if length < 0 or record_end > end:
                raise _corrupt("has a record that does not fit", length)
            position += 1
            timestamp_delta, position = _read_varint(data, position)
            offset_delta, position = _read_varint(data, position)
            if not previous_delta < offset_delta <= last_delta:
                raise _corrupt("has offsets that do not grow within it", offset_delta)
            previous_delta = offset_delta
            key, position = _read_bytes(data, position, record_end)
            value, position = _read_bytes(data, position, record_end)
            header_count, position = _read_varint(data, position)
            headers: Headers = ()
            if header_count:
                headers, position = _read_headers(data, position, record_end, header_count)
            if position != record_end:
                raise _corrupt("has a record whose length is not that of its fields", length)
            yield Record(
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if append_time is None else append_time,
                key,
                value,
                headers,
            )
    except IndexError as error:
        raise _corrupt("has a record that is cut off", position) from error
    if position != end:
        raise _corrupt("has bytes after its last record", end - position)


def _read_headers(data: bytes, position: int, end: int, count: int) -> tuple[Headers, int]:
    # Each header takes two bytes or more: a hostile count is refused before any allocation.
    if not 0 <= count <= (end - position) // 2:
        raise _corrupt("has a header count that does not fit", count)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise _corrupt("has a header without a key", count)
        content, position = _read_bytes(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    return tuple(headers), position


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(data, position)
    if length < 0:
        if length != -1:
            raise _corrupt("has a negative length", length)
        return None, position
    stop = position + length
    if stop > end:
        raise _corrupt("has a field that does not fit", length)
    return data[position:stop], stop


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint and the position after it. Raises IndexError at the end of `data`."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise _corrupt("has a varint of more than 10 bytes", shift)


def _varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (~value << 1) | 1
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
_NULL = _varint(-1)


def _corrupt(what: str, value: int) -> InvalidError:
    return InvalidError(Reason.CORRUPT_MESSAGE, f"record batch {what}. value=`{value}`")
