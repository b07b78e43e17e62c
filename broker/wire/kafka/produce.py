"""Produce, versions 3-13 (KIP-98 on), by hand: the hot path's encoding. Versions 0-2 are advertised, as Kafka does, and refused.

A request is read piece by piece: `read_head`, then for each topic `read_topic`, then for each partition `read_records`. Records
are slices of the request. A refused partition stays an object, `Refused`, until `encode` writes the response once.

Every reader raises DecodeError, struct.error, IndexError or UnicodeDecodeError for bytes that are not a request.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from headgate.broker.runtime.steps import Steps
from headgate.broker.wire.kafka.hot import (
    Node,
    check_elements,
    lead_tags,
    node_tags,
    read_topic_key,
    write_array_head,
    write_topic_key,
)
from headgate.broker.wire.kafka.primitives import DecodeError, read_uvarint, skip_tags, write_uvarint

API_KEY = 0
VERSION_MIN = 3
VERSION_MAX = 13
FLEXIBLE = 9
ADDS = 12
"""First version whose batches add their partition to the transaction (KIP-890)."""
ABORTABLE = 11
"""First version whose clients know TRANSACTION_ABORTABLE."""
HINTS = 10
"""First version with the lead in its response."""

STEP_ELEMENTS = 100
"""Topics and partitions of a request that are appended in one step; with one append each a step takes about two milliseconds."""
STEP_ROWS_MAX = 250
"""A request with more topics and partitions is appended in steps, in a task of its own. Requests of real producers have fewer."""
REFUSED_MAX = 1_000
"""Most topics, or partitions, of a request before VERSION_MIN that the broker answers, in one turn of the loop. Above it the
connection ends, and the client understands that as well."""

ACKS_VALID = (-1, 0, 1)
MESSAGE_BYTES_MAX = 1024
MESSAGES_MAX = 3
"""Wrong records of a batch that have a message of their own in the answer; Kafka's text for the whole batch shows as many."""
NO_OFFSET = -1
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43

_I16 = struct.Struct(">h").unpack_from
_I32 = struct.Struct(">i").unpack_from
_ACKS_TIMEOUT = struct.Struct(">hi").unpack_from
_HEAD = struct.Struct(">ii").pack
_VERSIONS = struct.Struct(">hh").pack
_HEAD_OF_RECORDS = struct.Struct(">ii").unpack_from
_ROW_0 = struct.Struct(">ihq").pack
_ROW_3 = struct.Struct(">ihqq").pack
_ROW_5 = struct.Struct(">ihqqq").pack

Log = TypeVar("Log")


@dataclass(slots=True)
class Refused:
    """A partition whose batch was not appended. `lead` is (broker id, leader epoch) of the broker that leads it now, if another one
    does. `records` are the numbers of the wrong records in the batch, if they were found."""

    number: int
    code: int
    log_start: int = NO_OFFSET
    message: str | None = None
    records: tuple[int, ...] = ()
    lead: tuple[int, int] | None = None


Topic: TypeAlias = tuple[bytes, list[bytes | Refused]]
"""A topic of a response: (name or id as in the request, rows of its partitions)."""


# -- reading


def read_head(frame: memoryview, position: int, version: int) -> tuple[int, int, int]:
    """(acks, number of topics, position of the first)."""
    # transactional id: null or a string; `read_transactional_id` reads it
    if version >= FLEXIBLE:
        size, position = read_uvarint(frame, position)
        position += max(size - 1, 0)
        acks, _ = _ACKS_TIMEOUT(frame, position)
        topics, position = read_uvarint(frame, position + 6)
        topics -= 1
    else:
        (size,) = _I16(frame, position)
        position += 2 + max(size, 0)
        acks, _ = _ACKS_TIMEOUT(frame, position)
        (topics,) = _I32(frame, position + 6)
        position += 10
    check_elements("Produce", topics)
    return acks, topics, position


def read_transactional_id(frame: memoryview, position: int, version: int) -> str | None:
    """The transactional id of a request; None without one. `position`: behind the request header."""
    if version >= FLEXIBLE:
        size, position = read_uvarint(frame, position)
        size -= 1
    else:
        (size,) = _I16(frame, position)
        position += 2
    return None if size < 0 else str(frame[position : position + size], "utf-8")


def read_topic(frame: memoryview, position: int, version: int) -> tuple[bytes, int, int]:
    """(name or id of a topic, number of partitions, position of the first)."""
    flexible = version >= FLEXIBLE
    key, position = read_topic_key(frame, position, version, flexible)
    if flexible:
        partitions, position = read_uvarint(frame, position)
        return key, partitions - 1, position
    (partitions,) = _I32(frame, position)
    return key, partitions, position + 4


def read_records(frame: memoryview, position: int, flexible: bool) -> tuple[int, int, int]:
    """(number of a partition, first position of its records, end of them). The caller skips the tagged fields behind them."""
    (number,) = _I32(frame, position)
    if flexible:
        size, position = read_uvarint(frame, position + 4)
        size -= 1
    else:
        (size,) = _I32(frame, position + 4)
        position += 8
    end = position + size
    if size < 0 or end > len(frame):
        raise DecodeError("records are cut off")
    return number, position, end


def is_large(frame: memoryview, position: int, version: int) -> bool:
    """Whether a request has so many topics and partitions that it is appended in steps."""
    flexible = version >= FLEXIBLE
    _, topics, position = read_head(frame, position, version)
    rows = topics
    for _ in range(topics):
        _, partitions, position = read_topic(frame, position, version)
        rows += partitions
        if rows <= 2:
            return False
        if rows > STEP_ROWS_MAX:
            return True
        for _ in range(partitions):
            position = read_records(frame, position, flexible)[2]
            if flexible:
                position = skip_tags(frame, position)
        if flexible:
            position = skip_tags(frame, position)
    return False


class Shape(Generic[Log]):
    """The part that a client's produce requests to one partition have in common: the bytes between correlation id and records.

    A client that writes to one partition sends the same bytes again and again, so the broker compares them instead of
    parsing them: `unpack` splits a request up to its batch in one call.

    Args:
        log: the caller's own object for the partition.
        topic: the topic's name or id, as in the request.
        key: the bytes between the correlation id and the length of the records.
        length_bytes: size of the records' length field; in flexible versions it depends on the length.
    """

    __slots__ = (
        "_pack",
        "_prefix",
        "_size",
        "_suffix",
        "acks",
        "batch_at",
        "key",
        "last",
        "last_bytes",
        "log",
        "number",
        "producer_id",
        "topic",
        "unpack",
        "version",
        "versions",
    )

    def __init__(self, log: Log, version: int, topic: bytes, number: int, key: bytes, acks: int, length_bytes: int) -> None:
        head = struct.Struct(f">4si{len(key) + length_bytes}s")
        self.log = log
        self.topic = topic
        self.number = number
        self.version = version
        self.versions = _VERSIONS(API_KEY, version)
        """API key and version, as encoded in a request."""
        self.key = key
        self.acks = acks
        self.producer_id: int | None = None
        """The only producer id that batches may have without being judged anew; None: any."""
        self.last = b""
        self.last_bytes = -1
        """The bytes of the last request up to its batch, and the length of its records."""
        self.unpack = head.unpack_from
        self.batch_at = head.size
        """Position of the batch in a request."""
        prefix, suffix = self._prefix, self._suffix = _constant_parts(version, topic, number)
        row = "hqqq" if version >= 5 else "hqq"
        answer = struct.Struct(f">ii{len(prefix)}s{row}{len(suffix)}s")
        self._pack = answer.pack
        self._size = answer.size - 4
        """Of the answer, without its length prefix."""

    def records_bytes(self, part: bytes) -> int:
        """Length of the records of a request that has these bytes up to its batch and differs from `last`; -1 if the request has
        another shape."""
        key, length = part[: len(self.key)], part[len(self.key) :]
        if key != self.key:
            return -1
        if self.version < FLEXIBLE:
            value = int.from_bytes(length, "big", signed=True)
        else:
            if length[-1] >= 0x80 or any(byte < 0x80 for byte in length[:-1]):
                return -1
            value = read_uvarint(length, 0)[0] - 1
        self.last, self.last_bytes = part, value
        return value

    def respond(self, correlation_id: int, appended: tuple[int, int, int]) -> bytes:
        """The answer, with its length prefix, to a request after its batch was appended: (base offset, append time, log start)."""
        base_offset, timestamp_ms, log_start = appended
        if self.version >= 5:
            return self._pack(self._size, correlation_id, self._prefix, 0, base_offset, timestamp_ms, log_start, self._suffix)
        return self._pack(self._size, correlation_id, self._prefix, 0, base_offset, timestamp_ms, self._suffix)


def _constant_parts(version: int, topic: bytes, number: int) -> tuple[bytes, bytes]:
    """The bytes before and behind the error code and offsets in the response to a request for one partition."""
    flexible = version >= FLEXIBLE
    tags = b"\0" if flexible else b""
    prefix = bytearray(tags)
    write_array_head(prefix, 1, flexible)
    write_topic_key(prefix, topic, version, flexible)
    write_array_head(prefix, 1, flexible)
    prefix += number.to_bytes(4, "big")
    return bytes(prefix), _row_end(version) + tags + b"\0\0\0\0" + tags


# -- writing


def appended_row(version: int, number: int, appended: tuple[int, int, int]) -> bytes:
    """The row of a partition after its batch was appended: (base offset, append time, log start)."""
    base_offset, timestamp_ms, log_start = appended
    if version >= 5:
        return _ROW_5(number, 0, base_offset, timestamp_ms, log_start) + _row_end(version)
    return _ROW_3(number, 0, base_offset, timestamp_ms)


def _row_end(version: int) -> bytes:
    """The end of a row without an error: no record_errors, no error_message, no tagged fields."""
    return b"\x01\0\0" if version >= FLEXIBLE else b"\0\0\0\0\xff\xff" if version == 8 else b""


def _write_refused(out: bytearray, version: int, row: Refused) -> None:
    """A row with record_errors (KIP-467), error_message and tagged fields. The first wrong records have the message too; for the
    others, clients take that of the row."""
    if version < 5:
        out += _ROW_3(row.number, row.code, NO_OFFSET, -1)
        return
    out += _ROW_5(row.number, row.code, NO_OFFSET, -1, row.log_start)
    if version < 8:
        return
    flexible = version >= FLEXIBLE
    text = None if row.message is None else row.message.encode()[:MESSAGE_BYTES_MAX]
    write_array_head(out, len(row.records), flexible)
    for place, record in enumerate(row.records):
        out += record.to_bytes(4, "big")
        _write_text(out, text if place < MESSAGES_MAX else None, flexible)
        if flexible:
            out.append(0)
    _write_text(out, text, flexible)
    if flexible:
        out += b"\0" if row.lead is None or version < HINTS else lead_tags(0, row.lead)


def _write_text(out: bytearray, text: bytes | None, flexible: bool) -> None:
    if text is None:
        out += b"\0" if flexible else b"\xff\xff"
        return
    if flexible:
        write_uvarint(out, len(text) + 1)
    else:
        out += len(text).to_bytes(2, "big")
    out += text


def encode(version: int, correlation_id: int, topics: list[Topic], nodes: Collection[Node] = ()) -> Steps[bytes]:
    """The response with its length prefix. `nodes` are the brokers that lead refused partitions; versions below HINTS drop them."""
    flexible = version >= FLEXIBLE
    out = bytearray(9 if flexible else 8)
    write_array_head(out, len(topics), flexible)
    written, due = 0, STEP_ELEMENTS
    for key, rows in topics:
        write_topic_key(out, key, version, flexible)
        write_array_head(out, len(rows), flexible)
        written += 1
        if written >= due:
            yield STEP_ELEMENTS
            due = written + STEP_ELEMENTS
        for row in rows:
            if type(row) is bytes:
                out += row
            else:
                assert isinstance(row, Refused)
                _write_refused(out, version, row)
            written += 1
            if written >= due:
                yield STEP_ELEMENTS
                due = written + STEP_ELEMENTS
        if flexible:
            out.append(0)
    out += b"\0\0\0\0"  # throttle time
    if flexible:
        out += node_tags(nodes) if nodes and version >= HINTS else b"\0"
    out[:8] = _HEAD(len(out) - 4, correlation_id)
    return bytes(out)


def refuse_version(frame: memoryview, position: int, version: int, correlation_id: int) -> bytes:
    """The answer to versions 0-2, which carry message sets: the same error for every partition."""
    position += 6  # acks, timeout
    (topics,) = _I32(frame, position)
    position += 4
    _check_refused(topics)
    out = bytearray(8) + max(topics, 0).to_bytes(4, "big")
    rows_count = 0
    for _ in range(topics):
        key, position = read_topic_key(frame, position, version, False)
        (partitions,) = _I32(frame, position)
        position += 4
        rows_count += max(partitions, 0)
        _check_refused(rows_count)
        write_topic_key(out, key, version, False)
        write_array_head(out, max(partitions, 0), False)
        for _ in range(partitions):
            number, size = _HEAD_OF_RECORDS(frame, position)
            position += 8 + size
            if size < 0 or position > len(frame):
                raise DecodeError("records are cut off")
            out += _ROW_0(number, UNSUPPORTED_FOR_MESSAGE_FORMAT, NO_OFFSET)
            if version >= 2:
                out += b"\xff" * 8
    if version >= 1:
        out += b"\0\0\0\0"
    out[:8] = _HEAD(len(out) - 4, correlation_id)
    return bytes(out)


def _check_refused(count: int) -> None:
    if count > REFUSED_MAX:
        raise DecodeError(f"request of an old version has too many elements. api=`Produce` elements=`{count}` max=`{REFUSED_MAX}`")


def throttled(response: bytes, version: int, throttle_ms: int) -> bytes:
    """The response with a throttle time. One that names leads behind it, which is a rare refusal, stays as it is: the client is
    muted all the same."""
    end = 5 if version >= FLEXIBLE else 4
    if any(response[-end:]):
        return response
    return response[:-end] + throttle_ms.to_bytes(4, "big") + response[len(response) - end + 4 :]
