"""Fetch, versions 4-17, by hand: the hot path. Records go out as the slices of memory or store that they stand in.

Deviations: fetch sessions (KIP-227) are refused, as a broker without room for them does: the session id in the response is 0, so
that clients send full requests. There are no transactions yet: `read_committed` sees what `read_uncommitted` sees. Replicas do not
fetch through this API. No preferred replica, no diverging epoch (records that a consumer has read are never truncated).
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from typing import TYPE_CHECKING

from broker.log.batch import Buffer
from broker.runtime.errors import HeadgateError, Reason, RetryError
from broker.server.kafka.produce import Malformed, encode_unsigned_varint, read_name, skip_tags, unsigned_varint

if TYPE_CHECKING:
    from broker.engine.engine import Engine
    from broker.engine.partition import PartitionLog

VERSION_MIN = 4
VERSION_MAX = 17
FLEXIBLE = 12
TOPIC_IDS = 13
HINTS = 12
"""First version that says who leads (hints.py)."""

NOT_LEADER_OR_FOLLOWER = 6
FENCED_LEADER_EPOCH = 74
HINTED = frozenset((NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH))
"""Errors beside which it is said who leads."""
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
    """One partition of a request, and what came of it."""

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


class FetchRequest:
    """A request as it was read. Times in ms, sizes in bytes."""

    __slots__ = ("error", "max_bytes", "max_wait_ms", "min_bytes", "topics", "version")

    def __init__(self, version: int, max_wait_ms: int, min_bytes: int, max_bytes: int) -> None:
        self.version = version
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.topics: list[tuple[bytes, list[Wanted]]] = []
        self.error = 0

    def wanted(self) -> list[Wanted]:
        return [wanted for _, partitions in self.topics for wanted in partitions]


def parse(engine: Engine, frame: memoryview, position: int, version: int) -> FetchRequest:
    """Read a request. Raises Malformed, struct.error, IndexError, UnicodeDecodeError where it is not one."""
    flexible = version >= FLEXIBLE
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
            return request
    layout = _P12 if version >= 12 else _P9 if version >= 9 else _P5 if version >= 5 else _P4
    topics, position = _count(frame, position, flexible)
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
        partitions, position = _count(frame, position, flexible)
        wanted: list[Wanted] = []
        for _ in range(partitions):
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
        if flexible:
            position = skip_tags(frame, position)
        request.topics.append((name, wanted))
    return request


def _count(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, position = unsigned_varint(frame, position)
        return count - 1, position
    (count,) = _I32(frame, position)
    return count, position + 4


def collect(engine: Engine, request: FetchRequest, max_bytes: int, reader: int) -> tuple[int, bool, list[Wanted]]:
    """Take what memory has.

    Args:
        reader: the connection, for windows in which history is to come (engine/windows.py).
        max_bytes: of all records together; the first partition with records gives at least one batch (KIP-74).

    Returns:
        (bytes found, whether a partition has an error, partitions whose records are in the store only).
    """
    total = 0
    failed = False
    cold: list[Wanted] = []
    for _, partitions in request.topics:
        for wanted in partitions:
            log = wanted.log
            if log is None or log.closed is not None:
                wanted.code = _gone(wanted, request.version)
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
                cold.append(wanted)  # the log ends below, or it goes on at another broker: the store knows
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


async def collect_cold(engine: Engine, cold: list[Wanted], total: int, max_bytes: int, reader: int) -> tuple[int, bool]:
    """Read from the store what memory no longer has. Returns (bytes found in all, whether a partition has an error)."""
    failed = False
    for wanted in cold:
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


def ends_early(request: FetchRequest, cold: list[Wanted]) -> bool:
    """Whether there may be more behind what was found: a read from the store ends with a file, each read before a window.

    Then nobody waits for `min_bytes`: the rest is there, and the next request asks for it.
    """
    return bool(cold) or any(
        wanted.bytes and wanted.log is not None and wanted.offset < wanted.log.windows_end
        for _, partitions in request.topics
        for wanted in partitions
    )


def note_waiting(request: FetchRequest, reader: int, now_s: float) -> None:
    """The reader waits: remember where it has come to the end."""
    for _, partitions in request.topics:
        for wanted in partitions:
            log = wanted.log
            if log is not None and wanted.offset == log.high_watermark:
                log.readers.at_end(reader, wanted.offset, now_s)


def _gone(wanted: Wanted, version: int) -> int:
    """Why there is nothing to read here: another broker leads the partition, or there is none."""
    log = wanted.log
    if wanted.exists and (log is None or (log.closed is not None and log.closed.reason is Reason.NOT_LEADER)):
        return NOT_LEADER_OR_FOLLOWER
    return 100 if version >= TOPIC_IDS else 3


def _epoch_error(asked: int, current: int) -> HeadgateError:
    if asked < current:
        return RetryError(Reason.FENCED_LEADER_EPOCH, f"leader epoch is old. epoch=`{asked}` current=`{current}`")
    return RetryError(Reason.UNKNOWN_LEADER_EPOCH, f"leader epoch is not known here. epoch=`{asked}` current=`{current}`")


def _code(error: HeadgateError) -> int:
    from broker.server.kafka.errors import error_code

    return error_code(error)


def respond(request: FetchRequest, correlation_id: int) -> list[Buffer]:
    """The response, with its length prefix, as buffers to be written one after another. Records are not copied."""
    version = request.version
    flexible = version >= FLEXIBLE
    out: list[Buffer] = []
    # Length, correlation id, [tagged fields of the header,] throttle time
    head = first = bytearray(13 if flexible else 12)
    if version >= 7:
        head += request.error.to_bytes(2, "big") + b"\0\0\0\0"
    head += encode_unsigned_varint(len(request.topics) + 1) if flexible else len(request.topics).to_bytes(4, "big")
    size = -4
    for name, partitions in request.topics:
        if version >= TOPIC_IDS:
            head += name
        elif flexible:
            head += encode_unsigned_varint(len(name) + 1) + name
        else:
            head += len(name).to_bytes(2, "big") + name
        head += encode_unsigned_varint(len(partitions) + 1) if flexible else len(partitions).to_bytes(4, "big")
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
        if flexible:
            head += b"\0"
    if flexible:
        head += b"\0"
    out.append(head)
    _HEAD(first, 0, size + len(head), correlation_id)
    return out


class Poll:
    """Waits until some partition of a request has moved, once: the waiter that partitions call."""

    __slots__ = ("_future", "_logs")

    def __init__(self, request: FetchRequest, reader: int, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[None] = loop.create_future()
        self._logs: list[PartitionLog] = []
        for _, partitions in request.topics:
            for wanted in partitions:
                log = wanted.log
                if log is not None:
                    log.subscribe(self, at_window=wanted.offset < log.windows_end and log.is_waiting(wanted.offset, reader))
                    self._logs.append(log)

    def __call__(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """True where a partition moved, False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._future
        except TimeoutError:
            return False
        finally:
            for log in self._logs:
                log.unsubscribe(self)
        return True
