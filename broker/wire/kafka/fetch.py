"""Fetch, versions 4-17, by hand: the hot path's encoding. A request is read in portions, and answered in the same portions.

Every reader raises DecodeError, struct.error, IndexError or UnicodeDecodeError for bytes that are not a request.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from headgate.broker.log.batch import Buffer
from headgate.broker.wire.kafka.hot import (
    TOPIC_IDS,
    Node,
    check_elements,
    lead_tags,
    node_tags,
    read_topic_key,
    write_array_head,
    write_topic_key,
)
from headgate.broker.wire.kafka.primitives import (
    ARRAY_ELEMENTS_MAX,
    STEP_ELEMENTS,
    DecodeError,
    read_compact_string,
    read_string,
    read_uvarint,
    skip_tags,
    write_uvarint,
)

VERSION_MIN = 4
VERSION_MAX = 17
FLEXIBLE = 12
HINTS = 16
"""First version whose response names another lead, with its address (KIP-951). Versions 12 to 15 have room for its id alone, and
Kafka leaves that empty: kafka-python 3.0 believes it, and never again asks a lead that it does not know yet."""
FETCH_SESSION_ID_NOT_FOUND = 70
NO_LEADER_EPOCH = -1
NO_REPLICA = -1
RACKS = 11
"""First version with the client's rack, and with a preferred replica in its response."""
READ_COMMITTED = 1

_I32 = struct.Struct(">i").unpack_from
_LIMITS = struct.Struct(">iiib").unpack_from
_SESSION = struct.Struct(">ii").unpack_from
_P4 = struct.Struct(">iqi")
_P5 = struct.Struct(">iqqi")
_P9 = struct.Struct(">iiqqi")
_P12 = struct.Struct(">iiqiqi")
_ROW_4 = struct.Struct(">ihqqi")
_ROW_5 = struct.Struct(">ihqqqi")
_ROW_11 = struct.Struct(">ihqqqii")
_ROW_12 = struct.Struct(">ihqqqBi")
_ROW_HEAD = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq").pack
_HEAD = struct.Struct(">ii").pack_into
_SIZE = struct.Struct(">i").pack

Log = TypeVar("Log")
Logs: TypeAlias = list[Log | None]
"""The caller's own objects for the partitions of a topic; None for a partition that is not here."""


class Wanted(Generic[Log]):
    """One partition of a request, and its result.

    `exists` is None if the client may not know. `high_watermark`, `stable_end` and `log_start` are -1 if they are not known.
    `aborted` has (producer id, first offset) of the aborted transactions with records in the answer, by their first offset; only
    readers of committed records get it. `lead` is
    (broker id, leader epoch) of the current lead, for an error that a response explains with it. `preferred` is the broker that has
    the records for this client (KIP-392).
    """

    __slots__ = (
        "aborted",
        "bytes",
        "code",
        "epoch",
        "exists",
        "high_watermark",
        "lead",
        "log",
        "log_start",
        "max_bytes",
        "number",
        "offset",
        "preferred",
        "slices",
        "stable_end",
    )

    def __init__(self, log: Log | None, exists: bool | None, number: int, epoch: int, offset: int, max_bytes: int) -> None:
        self.log = log
        self.exists = exists
        self.number = number
        self.epoch = epoch
        self.offset = offset
        self.max_bytes = max_bytes
        self.slices: list[memoryview] = []
        self.bytes = 0
        self.code = 0
        self.preferred = NO_REPLICA
        self.high_watermark = self.stable_end = self.log_start = -1
        self.aborted: Sequence[tuple[int, int]] = ()
        self.lead: tuple[int, int] | None = None


Part: TypeAlias = tuple[bytes, bool, int, list[Wanted[Log]], bool]
"""Some partitions of one topic of a request: (name or id of the topic as in the request, whether it is the first part of the topic,
number of partitions in all parts of the topic, partitions, whether it is the last part)."""
Portion: TypeAlias = list[Part[Log]]
"""Consecutive parts of a request with about STEP_ELEMENTS topics and partitions. One step reads, collects and answers one
portion. A small request has one portion."""


class FetchRequest(Generic[Log]):
    """A request as it was read. Times in ms, sizes in bytes. `topics` is the number of topics."""

    __slots__ = ("committed", "error", "max_bytes", "max_wait_ms", "min_bytes", "portions", "rack", "topics", "unproven", "version")

    def __init__(self, version: int, max_wait_ms: int, min_bytes: int, max_bytes: int) -> None:
        self.version = version
        self.committed = False
        """Isolation level read_committed: only records of committed transactions, and those outside of transactions."""
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.portions: list[Portion[Log]] = []
        self.rack = ""
        """Location of the client; known once the last portion was read."""
        self.topics = 0
        self.error = 0
        self.unproven = False
        """Another broker may lead the partitions by now: the answer has records, but reports no end of a partition
        (engine/base/proof.py)."""


def parse(
    frame: memoryview, position: int, version: int, logs: Mapping[str, Logs[Log]], logs_by_id: Mapping[uuid.UUID, Logs[Log]]
) -> tuple[FetchRequest[Log], Iterator[Portion[Log]]]:
    """Read the head of a request. The caller then reads the portions into the request.

    Args:
        logs, logs_by_id: the caller's objects for partitions, by the topic's name and by its id.
    """
    if version < 15:
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS(frame, position)
    position += 13
    request: FetchRequest[Log] = FetchRequest(version, max_wait_ms, min_bytes, max_bytes)
    request.committed = isolation == READ_COMMITTED
    if version >= 7:
        session_id, session_epoch = _SESSION(frame, position)
        position += 8
        if session_id != 0 and session_epoch > 0:
            request.error = FETCH_SESSION_ID_NOT_FOUND
            return request, iter(([],))
    request.topics, position = _count(frame, position, version >= FLEXIBLE)
    return request, _portions(frame, position, request, logs, logs_by_id)


def _portions(
    frame: memoryview,
    position: int,
    request: FetchRequest[Log],
    logs: Mapping[str, Logs[Log]],
    logs_by_id: Mapping[uuid.UUID, Logs[Log]],
) -> Iterator[Portion[Log]]:
    """The topics of a request, as at least one portion. The last one is read together with the client's rack."""
    version, topics = request.version, request.topics
    flexible = version >= FLEXIBLE
    layout = _P12 if version >= 12 else _P9 if version >= 9 else _P5 if version >= 5 else _P4
    portion: Portion[Log] = []
    elements, due = topics, STEP_ELEMENTS
    check_elements("Fetch", elements)
    read = 0
    for _ in range(topics):
        key, position = read_topic_key(frame, position, version, flexible)
        here = logs_by_id.get(uuid.UUID(bytes=key)) if version >= TOPIC_IDS else logs.get(key.decode())
        count, position = _count(frame, position, flexible)
        elements += count
        check_elements("Fetch", elements)
        left, is_first = count, True
        while True:
            wanted: list[Wanted[Log]] = []
            for _ in range(left if left < STEP_ELEMENTS else STEP_ELEMENTS):
                fields = layout.unpack_from(frame, position)
                position += layout.size
                number = fields[0]
                epoch = fields[1] if version >= 9 else NO_LEADER_EPOCH
                offset = fields[2] if version >= 9 else fields[1]
                exists = here is not None and 0 <= number < len(here)
                log = here[number] if here is not None and exists else None
                wanted.append(Wanted(log, exists, number, epoch, offset, max(fields[-1], 0)))
                if flexible:
                    position = skip_tags(frame, position)
            left -= len(wanted)
            portion.append((key, is_first, count, wanted, left == 0))
            read += 1 + len(wanted)
            if left == 0:
                break
            yield portion
            portion, is_first, due = [], False, read + STEP_ELEMENTS
        if flexible:
            position = skip_tags(frame, position)
        if read >= due:
            yield portion
            portion, due = [], read + STEP_ELEMENTS
    if version >= RACKS:
        request.rack = _read_rack(frame, position, flexible)
    yield portion


def _read_rack(frame: memoryview, position: int, flexible: bool) -> str:
    """The client's rack, behind the topics that a session forgets. Without sessions no client forgets topics; one that does has no
    rack here."""
    forgotten, position = _count(frame, position, flexible)
    if forgotten:
        return ""
    return (read_compact_string if flexible else read_string)(frame, position)[0]


def _count(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of an array; a null array has length 0."""
    if flexible:
        count, position = read_uvarint(frame, position)
        count -= 1
    else:
        (count,) = _I32(frame, position)
        position += 4
    if count > ARRAY_ELEMENTS_MAX:
        raise DecodeError(f"array has too many elements. api=`Fetch` count=`{count}` max=`{ARRAY_ELEMENTS_MAX}`")
    return max(count, 0), position


class Response:
    """A response in the making, with its length prefix: buffers that are written one after another. Records are not copied."""

    __slots__ = ("_correlation_id", "_first", "_head", "_out", "_size", "_version")

    def __init__(self, version: int, error: int, topics: int, correlation_id: int) -> None:
        self._version = version
        self._correlation_id = correlation_id
        self._out: list[Buffer] = []
        # Length, correlation id, [tagged fields of the header,] throttle time
        head = self._head = self._first = bytearray(13 if version >= FLEXIBLE else 12)
        if version >= 7:
            head += error.to_bytes(2, "big") + b"\0\0\0\0"
        write_array_head(head, topics, version >= FLEXIBLE)
        self._size = -4

    def add(self, portion: Portion[Log]) -> None:
        """Add the rows of the next portion."""
        version, out, head, size = self._version, self._out, self._head, self._size
        flexible = version >= FLEXIBLE
        for key, is_first, count, partitions, is_last in portion:
            if is_first:
                write_topic_key(head, key, version, flexible)
                write_array_head(head, count, flexible)
            for wanted in partitions:
                end, stable, start = wanted.high_watermark, wanted.stable_end, wanted.log_start
                if wanted.aborted:
                    _write_aborted(head, version, wanted)
                elif flexible:
                    head += _ROW_12.pack(wanted.number, wanted.code, end, stable, start, 1, wanted.preferred)
                elif version >= 11:
                    head += _ROW_11.pack(wanted.number, wanted.code, end, stable, start, 0, wanted.preferred)
                elif version >= 5:
                    head += _ROW_5.pack(wanted.number, wanted.code, end, stable, start, 0)
                else:
                    head += _ROW_4.pack(wanted.number, wanted.code, end, stable, 0)
                if flexible:
                    write_uvarint(head, wanted.bytes + 1)
                else:
                    head += _SIZE(wanted.bytes)
                if wanted.bytes:
                    out.append(head)
                    out += wanted.slices
                    size += len(head) + wanted.bytes
                    head = bytearray()
                if flexible:
                    head += b"\0" if wanted.lead is None else lead_tags(1, wanted.lead)
            if flexible and is_last:
                head += b"\0"
        self._head, self._size = head, size

    def end(self, nodes: Collection[Node] = ()) -> list[Buffer]:
        """The whole response. `nodes` are the brokers that it names as leads; versions below HINTS drop them."""
        if self._version >= FLEXIBLE:
            self._head += node_tags(nodes) if nodes and self._version >= HINTS else b"\0"
        self._out.append(self._head)
        _HEAD(self._first, 0, self._size + len(self._head), self._correlation_id)
        return self._out


def _write_aborted(head: bytearray, version: int, wanted: Wanted[Log]) -> None:
    """The row of a partition with aborted transactions, up to its records."""
    head += _ROW_HEAD.pack(wanted.number, wanted.code, wanted.high_watermark, wanted.stable_end)
    if version >= 5:
        head += wanted.log_start.to_bytes(8, "big", signed=True)
    flexible = version >= FLEXIBLE
    write_array_head(head, len(wanted.aborted), flexible)
    for producer_id, first_offset in wanted.aborted:
        head += _ABORTED(producer_id, first_offset)
        if flexible:
            head.append(0)
    if version >= 11:
        head += b"\xff\xff\xff\xff"  # no preferred replica


def empty(version: int, correlation_id: int) -> list[Buffer]:
    """A response without topics, for a client that must wait first (KIP-219)."""
    return Response(version, 0, 0, correlation_id).end()


def throttled(response: list[Buffer], version: int, throttle_ms: int) -> None:
    """Set the throttle time of a response."""
    first = response[0]
    assert isinstance(first, bytearray), "a response begins with its head"
    at = 9 if version >= FLEXIBLE else 8
    first[at : at + 4] = throttle_ms.to_bytes(4, "big")
