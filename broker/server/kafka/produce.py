"""Produce, versions 3-13 (KIP-98 on), by hand: the hot path. Versions 0-2 are advertised, as Kafka does, and refused.

Deviations: transactions are refused. `timeout_ms` is not used: a batch that waits for the store keeps waiting, and the client's
own time-out decides. acks=1 is as durable as acks=all.

One request gives one response. Its bytes are built at once, because the offsets are known, and kept back until the records are
durable.
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING

from headgate.broker.log.batch import HEADER_BYTES, parse, unpack_header
from headgate.broker.log.check import RecordError, Source
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.steps import Steps, finish
from headgate.broker.wire.kafka.primitives import REQUEST_ELEMENTS_MAX, TAGS_MAX

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition import PartitionLog

VERSION_MIN = 3
VERSION_MAX = 13
FLEXIBLE = 9
TOPIC_IDS = 13
HINTS = 10
"""First version with the lead in its response (hints.py)."""

STEP_ELEMENTS = 100
"""Topics and partitions of a request that are appended in one step; with one append each a step takes about two milliseconds."""
STEP_ROWS_MAX = 250
"""A request with more topics and partitions is appended in steps, in a task of its own. Requests of real producers have fewer."""
REFUSED_MAX = 1_000
"""Most topics, or partitions, of a request before VERSION_MIN that the broker answers, in one turn of the loop. Above it the
connection ends, and the client understands that as well."""

ACKS_VALID = (-1, 0, 1)
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
INVALID_REQUIRED_ACKS = 21
NOT_LEADER_OR_FOLLOWER = 6
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
UNKNOWN_TOPIC_ID = 100

_I16 = struct.Struct(">h").unpack_from
_I32 = struct.Struct(">i").unpack_from
_ACKS_TIMEOUT = struct.Struct(">hi").unpack_from
_HEAD = struct.Struct(">ii").pack
_VERSIONS = struct.Struct(">hh").pack
_HEAD_OF_RECORDS = struct.Struct(">ii").unpack_from
_ROW_0 = struct.Struct(">ihq")
_PARTITION_4 = struct.Struct(">hqq")
_PARTITION_5 = struct.Struct(">hqqq")
_NO_OFFSET = -1


class Malformed(Exception):
    """The frame is not a request of this version: the connection ends."""


def unsigned_varint(buffer: memoryview, position: int) -> tuple[int, int]:
    """(value, next position). Raises IndexError at the end of the buffer, Malformed beyond 5 bytes."""
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise Malformed("varint is longer than 5 bytes")


def skip_tags(buffer: memoryview, position: int) -> int:
    """The position behind a section of tagged fields. Raises IndexError, Malformed."""
    count = buffer[position]
    position += 1
    if count == 0:
        return position
    if count >= 0x80:
        count, position = unsigned_varint(buffer, position - 1)
    if count > TAGS_MAX:
        raise Malformed(f"there are too many tagged fields. fields=`{count}` max=`{TAGS_MAX}`")
    for _ in range(count):
        _, position = unsigned_varint(buffer, position)
        size, position = unsigned_varint(buffer, position)
        position += size
        if position > len(buffer):
            raise Malformed("tagged field is cut off")
    return position


def read_name(buffer: memoryview, position: int, size: int) -> bytes:
    """Take `size` bytes. Raises Malformed if fewer are left, or if `size` is negative."""
    if size < 0 or position + size > len(buffer):
        raise Malformed("string does not fit into its frame")
    return bytes(buffer[position : position + size])


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def encode_unsigned_varint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


NONE_FAILED, SOME_FAILED, ALL_FAILED = 0, 1, 2
"""Which of a request's partitions have an error. After ALL_FAILED nothing was appended and nothing has to become durable."""


class Shape:
    """The part that a client's produce requests to one partition have in common: the bytes between correlation id and records.

    A client that writes to one partition sends the same bytes again and again, so the broker compares them instead of
    parsing them: `unpack` splits a request up to its batch in one call.

    Args:
        length_bytes: size of the records' length field; in flexible versions it depends on the length.
    """

    __slots__ = (
        "acks",
        "engine",
        "head_bytes",
        "key",
        "last",
        "last_bytes",
        "log",
        "pack",
        "prefix",
        "size",
        "suffix",
        "unpack",
        "version",
        "versions",
    )

    def __init__(
        self,
        engine: Engine,
        log: PartitionLog,
        version: int,
        key: bytes,
        acks: int,
        prefix: bytes,
        suffix: bytes,
        length_bytes: int,
    ) -> None:
        head = struct.Struct(f">4si{len(key) + length_bytes}s")
        self.engine = engine
        self.version = version
        self.versions = _VERSIONS(0, version)
        """API key and version, as encoded in a request."""
        self.key = key
        self.acks = acks
        self.log = log
        self.prefix = prefix
        self.suffix = suffix
        self.last = b""
        self.last_bytes = -1
        """The bytes of the last request up to its batch, and the length of its records."""
        self.unpack = head.unpack_from
        self.head_bytes = head.size + HEADER_BYTES
        row = "hqqq" if version >= 5 else "hqq"
        answer = struct.Struct(f">ii{len(prefix)}s{row}{len(suffix)}s")
        self.pack = answer.pack
        self.size = answer.size - 4
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
            value = unsigned_varint(memoryview(length), 0)[0] - 1
        self.last, self.last_bytes = part, value
        return value

    def respond(self, correlation_id: int, appended: tuple[int, int, int]) -> bytes:
        """The answer, with its length prefix, to a request after its batch was appended."""
        base_offset, timestamp_ms, log_start = appended
        if self.version >= 5:
            return self.pack(self.size, correlation_id, self.prefix, 0, base_offset, timestamp_ms, log_start, self.suffix)
        return self.pack(self.size, correlation_id, self.prefix, 0, base_offset, timestamp_ms, self.suffix)


def produce_again(
    shape: Shape, buffer: memoryview, start: int, end: int, now_ms: int, adopt: bytearray | None, source: Source | None
) -> tuple[bytes, int] | None:
    """Append the batch of a request that may have the same shape as an earlier one.

    Args:
        start: position of the request, behind its length prefix.
        end: end of the request.
        adopt, source: same meaning as in `produce`.

    Returns:
        (the response with its length prefix, ALL_FAILED or NONE_FAILED). None if the request has another shape: nothing was done.
    """
    head_bytes = shape.head_bytes
    if end - start < head_bytes:
        return None
    versions, correlation_id, part = shape.unpack(buffer, start)
    if versions != shape.versions or shape.log.closed is not None:
        return None
    size = shape.last_bytes if part == shape.last else shape.records_bytes(part)
    position = start + head_bytes - HEADER_BYTES
    if size < HEADER_BYTES or position + size > end:
        return None
    try:
        header = unpack_header(buffer, position)
        appended = shape.engine.append_parsed(shape.log, header, buffer, position, size, now_ms, adopt, source)
    except HeadgateError as error:
        return _failure(shape, correlation_id, error), ALL_FAILED
    return shape.respond(correlation_id, appended), NONE_FAILED


def produce(
    engine: Engine,
    frame: memoryview,
    key_at: int,
    position: int,
    version: int,
    correlation_id: int,
    now_ms: int,
    source: Source | None,
    adopt: bytearray | None = None,
) -> tuple[int, bytes, int, Shape | None]:
    """Append every batch of a request.

    Args:
        frame: the request without its length prefix. Batches are stamped in place.
        key_at: position behind the correlation id.
        position: position behind the request header.
        now_ms: the wall clock.
        source: the connection if a sample of its batches is due; otherwise None.
        adopt: the buffer of `frame`, if it is from the engine's pool and belongs to this request alone.

    Returns:
        (acks, the response with its length prefix, which partitions failed, the shape of a request for one partition).

    Raises:
        Malformed, struct.error, IndexError, UnicodeDecodeError: not a produce request. Nothing of it was appended, or only a part
        that will not be acknowledged.
    """
    acks, topics, position = _head(frame, position, version)
    if topics == 1:
        name, logs, partitions, rows_at = _topic_head(engine, frame, position, version)
        if partitions == 1:
            # The common request: one partition.
            (number,) = _I32(frame, rows_at)
            records_at = rows_at + 4
            log, refused = _find(logs, number, version, acks)
            if log is not None:
                if version >= FLEXIBLE:
                    size, position = unsigned_varint(frame, records_at)
                    size -= 1
                else:
                    (size,) = _I32(frame, records_at)
                    position = records_at + 4
                if size < 0 or position + size > len(frame):
                    raise Malformed("records are cut off")
                key = bytes(frame[key_at:records_at])
                shape = Shape(engine, log, version, key, acks, *_constant_parts(version, name, number), position - records_at)
                try:
                    header = parse(frame, position, size)
                    appended = engine.append_parsed(log, header, frame, position, size, now_ms, adopt, source)
                except HeadgateError as error:
                    return acks, _failure(shape, correlation_id, error), ALL_FAILED, shape
                return acks, shape.respond(correlation_id, appended), NONE_FAILED, shape
            return acks, _respond(version, correlation_id, [(name, [_error_row(version, number, refused)])]), ALL_FAILED, None
    response, failed = finish(_append_all(engine, frame, position, version, correlation_id, topics, acks, now_ms, source))
    return acks, response, failed, None


def produce_large(
    engine: Engine, frame: memoryview, position: int, version: int, correlation_id: int, now_ms: int, source: Source | None
) -> Steps[tuple[int, bytes, int]]:
    """Append every batch of a large request in steps, without a shape. `frame` must not change meanwhile."""
    acks, topics, position = _head(frame, position, version)
    response, failed = yield from _append_all(engine, frame, position, version, correlation_id, topics, acks, now_ms, source)
    return acks, response, failed


def is_large(frame: memoryview, position: int, version: int) -> bool:
    """Whether a request has so many topics and partitions that it is appended in steps. Raises the errors of `produce`."""
    flexible = version >= FLEXIBLE
    _, topics, position = _head(frame, position, version)
    rows = topics
    for _ in range(topics):
        _, partitions, position = _topic_name(frame, position, version)
        rows += partitions
        if rows <= 2:
            return False
        if rows > STEP_ROWS_MAX:
            return True
        for _ in range(partitions):
            _, position = _row_records(frame, position, flexible)
        if flexible:
            position = skip_tags(frame, position)
    return False


def _head(frame: memoryview, position: int, version: int) -> tuple[int, int, int]:
    """(acks, number of topics, position of the first)."""
    # transactional id: null or a string. A transactional producer never gets this far, because InitProducerId refuses it
    if version >= FLEXIBLE:
        size, position = unsigned_varint(frame, position)
        position += max(size - 1, 0)
        acks, _ = _ACKS_TIMEOUT(frame, position)
        topics, position = unsigned_varint(frame, position + 6)
        topics -= 1
    else:
        (size,) = _I16(frame, position)
        position += 2 + max(size, 0)
        acks, _ = _ACKS_TIMEOUT(frame, position)
        (topics,) = _I32(frame, position + 6)
        position += 10
    _check_count(topics)
    return acks, topics, position


def _topic_name(frame: memoryview, position: int, version: int) -> tuple[bytes, int, int]:
    """(name or id of a topic, number of partitions, position of the first)."""
    if version >= TOPIC_IDS:
        name = bytes(frame[position : position + 16])
        position += 16
        if len(name) != 16:
            raise Malformed("topic id is cut off")
    else:
        if version >= FLEXIBLE:
            size, position = unsigned_varint(frame, position)
            size -= 1
        else:
            (size,) = _I16(frame, position)
            position += 2
        name = read_name(frame, position, size)
        position += size
    if version >= FLEXIBLE:
        partitions, position = unsigned_varint(frame, position)
        return name, partitions - 1, position
    (partitions,) = _I32(frame, position)
    return name, partitions, position + 4


def _topic_head(
    engine: Engine, frame: memoryview, position: int, version: int
) -> tuple[bytes, list[PartitionLog | None] | None, int, int]:
    """(name or id of a topic, its logs, number of partitions, position of the first)."""
    name, partitions, position = _topic_name(frame, position, version)
    logs = engine.logs_by_id.get(uuid.UUID(bytes=name)) if version >= TOPIC_IDS else engine.logs.get(name.decode())
    return name, logs, partitions, position


def _row_records(frame: memoryview, position: int, flexible: bool) -> tuple[tuple[int, memoryview], int]:
    """((number of a partition, its records), position of the next)."""
    (number,) = _I32(frame, position)
    if flexible:
        size, position = unsigned_varint(frame, position + 4)
        size -= 1
    else:
        (size,) = _I32(frame, position + 4)
        position += 8
    end = position + size
    if size < 0 or end > len(frame):
        raise Malformed("records are cut off")
    return (number, frame[position:end]), skip_tags(frame, end) if flexible else end


def _append_all(
    engine: Engine,
    frame: memoryview,
    position: int,
    version: int,
    correlation_id: int,
    topics: int,
    acks: int,
    now_ms: int,
    source: Source | None,
) -> Steps[tuple[bytes, int]]:
    """Append the batches of all topics. Returns (the response with its length prefix, which partitions failed)."""
    flexible = version >= FLEXIBLE
    parts: list[bytes] = []
    failures = rows_count = 0
    elements, due = topics, STEP_ELEMENTS
    for _ in range(topics):
        name, logs, partitions, position = _topic_head(engine, frame, position, version)
        elements += partitions
        _check_count(elements)
        rows: list[bytes] = []
        for _ in range(partitions):
            (number, records), position = _row_records(frame, position, flexible)
            row, bad = _append_row(engine, logs, number, records, version, acks, now_ms, source)
            rows.append(row)
            failures += bad
            if rows_count + len(rows) + len(parts) >= due:
                yield STEP_ELEMENTS
                due += STEP_ELEMENTS
        rows_count += len(rows)
        if flexible:
            position = skip_tags(frame, position)
        parts.append(_topic(version, name, rows))
        if rows_count + len(parts) >= due:
            yield STEP_ELEMENTS
            due += STEP_ELEMENTS
    failed = NONE_FAILED if not failures else ALL_FAILED if failures == rows_count else SOME_FAILED
    return _wrap(version, correlation_id, parts), failed


def _check_count(count: int) -> None:
    if count > REQUEST_ELEMENTS_MAX:
        raise Malformed(f"request has too many elements. api=`Produce` elements=`{count}` max=`{REQUEST_ELEMENTS_MAX}`")


def _append_row(
    engine: Engine,
    logs: list[PartitionLog | None] | None,
    number: int,
    batch: memoryview,
    version: int,
    acks: int,
    now_ms: int,
    source: Source | None,
) -> tuple[bytes, bool]:
    log, refused = _find(logs, number, version, acks)
    if log is None:
        return _error_row(version, number, refused), True
    try:
        done = engine.append(log, batch, now_ms=now_ms, source=source)
    except HeadgateError as error:
        return _judged_row(version, log, error), True
    return _row(version, number, 0, done.base_offset, done.timestamp_ms, done.log_start, None), False


def refuse_version(frame: memoryview, position: int, version: int, correlation_id: int) -> bytes:
    """The answer to versions 0-2, which carry message sets: the same error for every partition. Raises the errors of `produce`."""
    position += 6  # acks, timeout
    (topics,) = _I32(frame, position)
    position += 4
    _check_refused(topics)
    out = bytearray(max(topics, 0).to_bytes(4, "big"))
    rows_count = 0
    for _ in range(topics):
        (size,) = _I16(frame, position)
        name = read_name(frame, position + 2, size)
        position += 2 + size
        (partitions,) = _I32(frame, position)
        position += 4
        rows_count += max(partitions, 0)
        _check_refused(rows_count)
        out += len(name).to_bytes(2, "big") + name + max(partitions, 0).to_bytes(4, "big")
        for _ in range(partitions):
            number, size = _HEAD_OF_RECORDS(frame, position)
            read_name(frame, position + 8, size)
            position += 8 + size
            out += _ROW_0.pack(number, UNSUPPORTED_FOR_MESSAGE_FORMAT, _NO_OFFSET)
            if version >= 2:
                out += b"\xff" * 8
    if version >= 1:
        out += b"\0\0\0\0"
    return _HEAD(len(out) + 4, correlation_id) + out


def _check_refused(count: int) -> None:
    if count > REFUSED_MAX:
        raise Malformed(f"request of an old version has too many elements. api=`Produce` elements=`{count}` max=`{REFUSED_MAX}`")


def _code(error: HeadgateError) -> int:
    from headgate.broker.server.kafka.errors import error_code

    return error_code(error)


def _find(logs: list[PartitionLog | None] | None, number: int, version: int, acks: int) -> tuple[PartitionLog | None, int]:
    """The log of a batch; None and an error code if the batch is refused without being read."""
    if acks not in ACKS_VALID:
        return None, INVALID_REQUIRED_ACKS
    if logs is None or not 0 <= number < len(logs):
        return None, UNKNOWN_TOPIC_ID if version >= TOPIC_IDS else UNKNOWN_TOPIC_OR_PARTITION
    log = logs[number]
    if log is None:
        return None, NOT_LEADER_OR_FOLLOWER
    return (None, INVALID_TOPIC) if log.internal else (log, 0)


def _failure(shape: Shape, correlation_id: int, error: HeadgateError) -> bytes:
    version, log = shape.version, shape.log
    name = log.topic.id.bytes if version >= TOPIC_IDS else log.topic.name.encode()
    return _respond(version, correlation_id, [(name, [_judged_row(version, log, error)])])


def _respond(version: int, correlation_id: int, topics: list[tuple[bytes, list[bytes]]]) -> bytes:
    return _wrap(version, correlation_id, [_topic(version, name, rows) for name, rows in topics])


def _wrap(version: int, correlation_id: int, topics: list[bytes]) -> bytes:
    if version >= FLEXIBLE:
        body = b"\0" + encode_unsigned_varint(len(topics) + 1) + b"".join(topics) + b"\0\0\0\0" + b"\0"
    else:
        body = len(topics).to_bytes(4, "big") + b"".join(topics) + b"\0\0\0\0"
    return _HEAD(len(body) + 4, correlation_id) + body


def _topic(version: int, name: bytes, rows: list[bytes]) -> bytes:
    joined = b"".join(rows)
    if version >= TOPIC_IDS:
        return name + encode_unsigned_varint(len(rows) + 1) + joined + b"\0"
    if version >= FLEXIBLE:
        return encode_unsigned_varint(len(name) + 1) + name + encode_unsigned_varint(len(rows) + 1) + joined + b"\0"
    return len(name).to_bytes(2, "big") + name + len(rows).to_bytes(4, "big") + joined


def _error_row(version: int, number: int, code: int) -> bytes:
    return _row(version, number, code, _NO_OFFSET, -1, _NO_OFFSET, None)


def _judged_row(version: int, log: PartitionLog, error: HeadgateError) -> bytes:
    """The answer for a batch that the log refused. It carries the log's start offset, as in Kafka: without a start offset, a
    Java producer that gets UNKNOWN_PRODUCER_ID resends the same batch for ever, instead of restarting at sequence 0 under its
    next epoch."""
    return _row(version, log.number, _code(error), _NO_OFFSET, -1, log.log_start, error)


def _row(
    version: int, number: int, code: int, base_offset: int, timestamp_ms: int, log_start: int, error: HeadgateError | None
) -> bytes:
    row = number.to_bytes(4, "big", signed=True)
    row += (
        _PARTITION_5.pack(code, base_offset, timestamp_ms, log_start)
        if version >= 5
        else _PARTITION_4.pack(code, base_offset, timestamp_ms)
    )
    return row + _tail_of_row(version, error)


def _tail_of_row(version: int, error: HeadgateError | None) -> bytes:
    """record_errors (KIP-467: the first wrong record, if one was found), error_message, tagged fields."""
    text = None if error is None else error.message.encode()[:1024]
    index = error.index if isinstance(error, RecordError) else None
    if version >= FLEXIBLE:
        record = b"\x01" if index is None else b"\x02" + index.to_bytes(4, "big") + _compact(text) + b"\0"
        return record + _compact(text) + b"\0"
    if version == 8:
        record = b"\0\0\0\0" if index is None else b"\0\0\0\1" + index.to_bytes(4, "big") + _nullable(text)
        return record + _nullable(text)
    return b""


def _compact(text: bytes | None) -> bytes:
    return b"\0" if text is None else encode_unsigned_varint(len(text) + 1) + text


def _nullable(text: bytes | None) -> bytes:
    return b"\xff\xff" if text is None else len(text).to_bytes(2, "big") + text


def _constant_parts(version: int, name: bytes, number: int) -> tuple[bytes, bytes]:
    """The bytes before and behind the error code and offsets in the response to a request for one partition."""
    whole = _respond(version, 0, [(name, [_row(version, number, 0, 0, 0, 0, None)])])[8:]
    variable = _PARTITION_5.size if version >= 5 else _PARTITION_4.size
    suffix = len(_tail_of_row(version, None)) + (1 if version >= FLEXIBLE else 0) + 4 + (1 if version >= FLEXIBLE else 0)
    at = len(whole) - suffix - variable
    return whole[:at], whole[at + variable :]
