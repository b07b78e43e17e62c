"""Fetch, versions 4-17, by hand: the hot path. Records are sent as slices of the buffers or files that hold them.

Deviations: fetch sessions (KIP-227) are refused, in the same way as by a Kafka broker without room for them: the session id in
the response is 0, so that clients send full requests. There are no transactions yet: `read_committed` reads the same records as
`read_uncommitted`. Replicas do not fetch through this API. There is no preferred replica and no diverging epoch (records that a
consumer has read are never truncated).
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from headgate.broker.log.batch import Buffer
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.server.kafka.produce import Malformed, encode_unsigned_varint, read_name, skip_tags, unsigned_varint
from headgate.broker.wire.kafka.primitives import ARRAY_ELEMENTS_MAX, REQUEST_ELEMENTS_MAX, STEP_ELEMENTS

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition import PartitionLog
    from headgate.broker.runtime.turns import Turn

VERSION_MIN = 4
VERSION_MAX = 17
FLEXIBLE = 12
TOPIC_IDS = 13
HINTS = 12
"""First version with the lead in its response (hints.py)."""

NOT_LEADER_OR_FOLLOWER = 6
FENCED_LEADER_EPOCH = 74
HINTED = frozenset((NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH))
"""Errors for which the response names the lead."""
FETCH_SESSION_ID_NOT_FOUND = 70

_I16 = struct.Struct(">h").unpack_from
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
_HEAD = struct.Struct(">ii").pack_into
_SIZE = struct.Struct(">i").pack

NO_LEADER_EPOCH = -1


class Wanted:
    """One partition of a request, and its result."""

    __slots__ = ("bytes", "code", "epoch", "exists", "log", "max_bytes", "number", "offset", "slices")

    def __init__(self, log: PartitionLog | None, exists: bool, number: int, epoch: int, offset: int, max_bytes: int) -> None:
        self.log = log
        self.exists = exists
        self.number = number
        self.epoch = epoch
        self.offset = offset
        self.max_bytes = max_bytes
        self.slices: list[memoryview] = []
        self.bytes = 0
        self.code = 0


Part: TypeAlias = tuple[bytes | None, int, list[Wanted], bool]
"""Some partitions of one topic of a request: (name, number of partitions in all parts of the topic, partitions, last part).

The name is the topic's name or id as written in the request. It is None if the portion before has the beginning of the topic.
"""
Portion: TypeAlias = list[Part]
"""Consecutive parts of a request with about STEP_ELEMENTS topics and partitions. One step reads, collects and answers one
portion. A small request has one portion."""


class FetchRequest:
    """A request as it was read. Times in ms, sizes in bytes. `topics` is the number of topics."""

    __slots__ = ("error", "max_bytes", "max_wait_ms", "min_bytes", "portions", "topics", "unproven", "version")

    def __init__(self, version: int, max_wait_ms: int, min_bytes: int, max_bytes: int) -> None:
        self.version = version
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.portions: list[Portion] = []
        self.topics = 0
        self.error = 0
        self.unproven = False
        """Another broker may lead the partitions by now: the answer has records, but reports no end of a partition
        (engine/proof.py)."""


def parse(engine: Engine, frame: memoryview, position: int, version: int) -> tuple[FetchRequest, Iterator[Portion]]:
    """Read the head of a request. The caller then reads the portions into the request.

    Reading the head or a portion raises Malformed, struct.error, IndexError or UnicodeDecodeError if the frame is not a
    request.
    """
    if version < 15:
        position += 4
    max_wait_ms, min_bytes, max_bytes, _ = _LIMITS(frame, position)
    position += 13
    request = FetchRequest(version, max_wait_ms, min_bytes, max_bytes)
    if version >= 7:
        session_id, session_epoch = _SESSION(frame, position)
        position += 8
        if session_id != 0 and session_epoch > 0:
            request.error = FETCH_SESSION_ID_NOT_FOUND
            return request, iter(([],))
    request.topics, position = _count(frame, position, version >= FLEXIBLE)
    return request, _portions(engine, frame, position, version, request.topics)


def _portions(engine: Engine, frame: memoryview, position: int, version: int, topics: int) -> Iterator[Portion]:
    """The topics of a request, as at least one portion."""
    flexible = version >= FLEXIBLE
    layout = _P12 if version >= 12 else _P9 if version >= 9 else _P5 if version >= 5 else _P4
    portion: Portion = []
    elements, due = topics, STEP_ELEMENTS
    _check_elements(elements)
    read = 0
    for _ in range(topics):
        logs: list[PartitionLog | None] | None
        if version >= TOPIC_IDS:
            name = bytes(frame[position : position + 16])
            position += 16
            if len(name) != 16:
                raise Malformed("topic id is cut off")
            logs = engine.logs_by_id.get(uuid.UUID(bytes=name))
        else:
            if flexible:
                size, position = unsigned_varint(frame, position)
                size -= 1
            else:
                (size,) = _I16(frame, position)
                position += 2
            name = read_name(frame, position, size)
            position += size
            logs = engine.logs.get(name.decode())
        count, position = _count(frame, position, flexible)
        elements += count
        _check_elements(elements)
        left = count
        part_name: bytes | None = name
        while True:
            wanted: list[Wanted] = []
            for _ in range(left if left < STEP_ELEMENTS else STEP_ELEMENTS):
                fields = layout.unpack_from(frame, position)
                position += layout.size
                number = fields[0]
                epoch = fields[1] if version >= 9 else NO_LEADER_EPOCH
                offset = fields[2] if version >= 9 else fields[1]
                exists = logs is not None and 0 <= number < len(logs)
                log = logs[number] if logs is not None and exists else None
                wanted.append(Wanted(log, exists, number, epoch, offset, max(fields[-1], 0)))
                if flexible:
                    position = skip_tags(frame, position)
            left -= len(wanted)
            portion.append((part_name, count, wanted, left == 0))
            read += 1 + len(wanted)
            if left == 0:
                break
            yield portion
            portion, part_name, due = [], None, read + STEP_ELEMENTS
        if flexible:
            position = skip_tags(frame, position)
        if read >= due:
            yield portion
            portion, due = [], read + STEP_ELEMENTS
    yield portion


def _count(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of an array; a null array has length 0."""
    if flexible:
        count, position = unsigned_varint(frame, position)
        count -= 1
    else:
        (count,) = _I32(frame, position)
        position += 4
    if count > ARRAY_ELEMENTS_MAX:
        raise Malformed(f"array has too many elements. api=`Fetch` count=`{count}` max=`{ARRAY_ELEMENTS_MAX}`")
    return max(count, 0), position


def _check_elements(elements: int) -> None:
    if elements > REQUEST_ELEMENTS_MAX:
        raise Malformed(f"request has too many elements. api=`Fetch` elements=`{elements}` max=`{REQUEST_ELEMENTS_MAX}`")


def collect(
    engine: Engine, version: int, portion: Portion, total: int, max_bytes: int, reader: int
) -> tuple[int, bool, list[Wanted]]:
    """Collect the records of one portion that are in memory.

    Args:
        total: bytes found in the portions before.
        reader: the connection, for windows that wait for their history (engine/windows.py).
        max_bytes: bound for all records together; the first partition with records gives at least one batch (KIP-74).

    Returns:
        (bytes found so far, whether a partition has an error, partitions with records that are in the store only).
    """
    failed = False
    cold: list[Wanted] = []
    for _, _, partitions, _ in portion:
        for wanted in partitions:
            log = wanted.log
            if log is None or log.closed is not None:
                wanted.code = _gone(wanted, version)
                failed = True
                continue
            wanted.code = 0
            wanted.slices = []
            wanted.bytes = 0
            if wanted.epoch != NO_LEADER_EPOCH and wanted.epoch != log.leader_epoch:
                wanted.code = _code(_epoch_error(wanted.epoch, log.leader_epoch))
                failed = True
                continue
            offset = wanted.offset
            if offset > log.high_watermark:
                cold.append(wanted)  # the log ends below this offset, or continues at another broker: the store knows
                continue
            if offset < log.log_start:
                wanted.code = 1
                failed = True
                continue
            room = min(wanted.max_bytes, max_bytes - total)
            if room <= 0 and total > 0:
                continue
            end = log.high_watermark
            if offset < log.windows_end:
                offset, end, in_files = log.reach(offset, reader)
                if in_files:
                    cold.append(wanted)
                    continue
            slices = log.tail.read(offset, end, room)
            if slices is None:
                cold.append(wanted)
                continue
            if not slices and wanted.offset < log.windows_end:
                slices = log.over(wanted.offset)
            if slices:
                size = sum([len(part) for part in slices])
                if total > 0 and size > room:
                    continue
                wanted.slices = slices
                wanted.bytes = size
                total += size
                if size < room and end == log.high_watermark:
                    log.readers.at_end(reader, offset, engine.clock.monotonic())
    return total, failed, cold


async def collect_cold(engine: Engine, turn: Turn, cold: list[Wanted], total: int, max_bytes: int, reader: int) -> tuple[int, bool]:
    """Read from the store the records that are no longer in memory. Returns (bytes found in all, whether a partition has an
    error)."""
    failed = False
    async for wanted in turn.each(cold):
        room = min(wanted.max_bytes, max_bytes - total)
        if total > 0 and room <= 0:
            break
        assert wanted.log is not None
        try:
            slices = await engine.read(wanted.log, wanted.offset, room, reader)
        except HeadgateError as error:
            wanted.code = _code(error)
            failed = True
            continue
        size = sum([len(part) for part in slices])
        if slices and (total == 0 or size <= room):
            wanted.slices = slices
            wanted.bytes = size
            total += size
    return total, failed


def wanted_of(portion: Portion) -> Iterator[Wanted]:
    return (wanted for _, _, partitions, _ in portion for wanted in partitions)


def ends_early(portion: Portion) -> bool:
    """Whether there may be more records behind those found in memory: each memory read before a window ends with the window.

    The answer then does not wait for `min_bytes`: the rest exists, and the next request asks for it. The same holds behind a
    read from the store, which ends with a file.
    """
    return any(wanted.bytes and wanted.log is not None and wanted.offset < wanted.log.windows_end for wanted in wanted_of(portion))


def note_waiting(portion: Portion, reader: int, now_s: float) -> None:
    """Note for each partition that the reader waits at its end."""
    for wanted in wanted_of(portion):
        log = wanted.log
        if log is not None and wanted.offset == log.high_watermark:
            log.readers.at_end(reader, wanted.offset, now_s)


def wants_hint(portion: Portion) -> bool:
    """Whether the portion has an error for which the response names the lead."""
    return any(wanted.code in HINTED for wanted in wanted_of(portion))


def _gone(wanted: Wanted, version: int) -> int:
    """The error of a partition that cannot be read here: another broker leads it, or it does not exist."""
    log = wanted.log
    if wanted.exists and (log is None or (log.closed is not None and log.closed.reason is Reason.NOT_LEADER)):
        return NOT_LEADER_OR_FOLLOWER
    return 100 if version >= TOPIC_IDS else 3


def _epoch_error(asked: int, current: int) -> HeadgateError:
    if asked < current:
        return RetryError(Reason.FENCED_LEADER_EPOCH, f"leader epoch is old. epoch=`{asked}` current=`{current}`")
    return RetryError(Reason.UNKNOWN_LEADER_EPOCH, f"leader epoch is not known here. epoch=`{asked}` current=`{current}`")


def _code(error: HeadgateError) -> int:
    from headgate.broker.server.kafka.errors import error_code

    return error_code(error)


class Response:
    """A response in the making, with its length prefix: buffers that are written one after another. Records are not copied."""

    __slots__ = ("_correlation_id", "_first", "_head", "_out", "_size", "_unproven", "_version")

    def __init__(self, request: FetchRequest, correlation_id: int) -> None:
        version = self._version = request.version
        self._unproven = request.unproven
        flexible = version >= FLEXIBLE
        self._correlation_id = correlation_id
        self._out: list[Buffer] = []
        # Length, correlation id, [tagged fields of the header,] throttle time
        head = self._head = self._first = bytearray(13 if flexible else 12)
        if version >= 7:
            head += request.error.to_bytes(2, "big") + b"\0\0\0\0"
        head += encode_unsigned_varint(request.topics + 1) if flexible else request.topics.to_bytes(4, "big")
        self._size = -4

    def add(self, portion: Portion) -> None:
        """Add the rows of the next portion."""
        version, out, head, size = self._version, self._out, self._head, self._size
        flexible = version >= FLEXIBLE
        for name, count, partitions, ends in portion:
            if name is not None:
                if version >= TOPIC_IDS:
                    head += name
                elif flexible:
                    head += encode_unsigned_varint(len(name) + 1) + name
                else:
                    head += len(name).to_bytes(2, "big") + name
                head += encode_unsigned_varint(count + 1) if flexible else count.to_bytes(4, "big")
            for wanted in partitions:
                log = wanted.log
                if log is None or wanted.code:
                    end = start = -1
                    if log is not None and wanted.code == 1:
                        end, start = log.high_watermark, log.log_start
                else:
                    end, start = log.high_watermark, log.log_start
                    if wanted.bytes:
                        log.bytes_out += wanted.bytes
                        log.requests += 1
                    elif self._unproven or log.refusal is not None:
                        # The next lead may have acked more already; this broker learns of it later.
                        wanted.code, end, start = NOT_LEADER_OR_FOLLOWER, -1, -1
                if flexible:
                    head += _ROW_12.pack(wanted.number, wanted.code, end, end, start, 1, -1)
                    head += encode_unsigned_varint(wanted.bytes + 1)
                else:
                    if version >= 11:
                        head += _ROW_11.pack(wanted.number, wanted.code, end, end, start, 0, -1)
                    elif version >= 5:
                        head += _ROW_5.pack(wanted.number, wanted.code, end, end, start, 0)
                    else:
                        head += _ROW_4.pack(wanted.number, wanted.code, end, end, 0)
                    head += _SIZE(wanted.bytes)
                if wanted.bytes:
                    out.append(head)
                    out += wanted.slices
                    size += len(head) + wanted.bytes
                    head = bytearray()
                if flexible:
                    head += b"\0"
            if flexible and ends:
                head += b"\0"
        self._head, self._size = head, size

    def end(self) -> list[Buffer]:
        """The whole response."""
        if self._version >= FLEXIBLE:
            self._head += b"\0"
        self._out.append(self._head)
        _HEAD(self._first, 0, self._size + len(self._head), self._correlation_id)
        return self._out


class Poll:
    """Waits, once, until one partition of a request has moved. Partitions call it as their waiter."""

    __slots__ = ("_future", "_logs", "_reader")

    def __init__(self, reader: int, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[None] = loop.create_future()
        self._logs: dict[PartitionLog, None] = {}
        self._reader = reader

    def subscribe(self, portion: Portion) -> None:
        """Wait for the partitions of a portion, too."""
        reader = self._reader
        for wanted in wanted_of(portion):
            log = wanted.log
            if log is not None:
                log.subscribe(self, at_window=wanted.offset < log.windows_end and log.is_waiting(wanted.offset, reader))
                self._logs[log] = None

    def __call__(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Wait until a partition has moved, or until `timeout_s` has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._future

    def end(self) -> None:
        """Stop waiting for all partitions."""
        for log in self._logs:
            log.unsubscribe(self)
