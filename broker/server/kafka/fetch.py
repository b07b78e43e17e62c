"""Fetch: collects the records of a request. The encoding is in `wire/kafka/fetch.py`. Records are sent as slices of the buffers or
files that hold them.

Deviations: fetch sessions (KIP-227) are refused, in the same way as by a Kafka broker without room for them: the session id in
the response is 0, so that clients send full requests. Replicas do not fetch through this API. There is no preferred replica and
no diverging epoch (records that a consumer has read are never truncated).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias

from headgate.broker.engine.read.committed import aborted_in, stable
from headgate.broker.log.batch import Buffer
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.steps import Steps
from headgate.broker.server.kafka.produce import (
    NOT_LEADER_OR_FOLLOWER,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    note_lead,
    topic_id,
    topic_name,
)
from headgate.broker.wire.kafka import fetch as wire
from headgate.broker.wire.kafka.fetch import HINTS, NO_LEADER_EPOCH, Response
from headgate.broker.wire.kafka.hot import TOPIC_IDS, Node
from headgate.broker.wire.kafka.primitives import STEP_ELEMENTS

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog
    from headgate.broker.runtime.turns import Turn
    from headgate.broker.server.access.rights import Rights

    FetchRequest: TypeAlias = wire.FetchRequest[PartitionLog]
    Portion: TypeAlias = wire.Portion[PartitionLog]
    Wanted: TypeAlias = wire.Wanted[PartitionLog]

OFFSET_OUT_OF_RANGE = 1
FENCED_LEADER_EPOCH = 74
READS_MAX = 16
"""Partitions of one request that are read from the store at the same time."""
HINTED = frozenset((NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH))
"""Errors for which the response names the lead."""


def parse(engine: Engine, frame: memoryview, position: int, version: int) -> tuple[FetchRequest, Iterator[Portion]]:
    """Read the head of a request. The caller then reads the portions into the request. Both raise the errors of the encoding."""
    return wire.parse(frame, position, version, engine.logs, engine.logs_by_id)


def collect(
    engine: Engine, request: FetchRequest, portion: Portion, total: int, max_bytes: int, reader: int
) -> tuple[int, bool, list[Wanted]]:
    """Collect the records of one portion that are in memory.

    Args:
        total: bytes found in the portions before.
        reader: the connection, for windows that wait for their history (engine/partition/windows.py).
        max_bytes: bound for all records together; the first partition with records gives at least one batch (KIP-74).

    Returns:
        (bytes found so far, whether a partition has an error, partitions with records that are in the store only).
    """
    failed = False
    cold: list[Wanted] = []
    for _, _, _, partitions, _ in portion:
        for wanted in partitions:
            log = wanted.log
            wanted.code = 0
            wanted.slices = []
            wanted.bytes = 0
            if log is None or log.closed is not None:
                wanted.code = _gone(wanted, request.version)
                failed = True
                continue
            if wanted.epoch != NO_LEADER_EPOCH and wanted.epoch != log.leader_epoch:
                wanted.code = _code(_epoch_error(wanted.epoch, log.leader_epoch))
                failed = True
                continue
            offset = wanted.offset
            if offset > log.high_watermark:
                cold.append(wanted)  # the log ends below this offset, or continues at another broker: the store knows
                continue
            if offset < log.log_start:
                wanted.code = OFFSET_OUT_OF_RANGE
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
            if request.committed:
                end = min(end, log.stable_end)
            slices = log.tail.read(offset, end, room)
            if slices is None:
                cold.append(wanted)
                continue
            if not slices and wanted.offset < log.windows_end:
                slices = log.over(wanted.offset, reader)
            if slices:
                size = sum([len(part) for part in slices])
                if total > 0 and size > room:
                    continue
                wanted.slices = slices
                wanted.bytes = size
                total += size
                if end == log.high_watermark and (offset >= end or log.tail.reaches(offset, end, size)):
                    log.readers.at_end(reader, offset, engine.clock.monotonic())
    return total, failed, cold


async def collect_cold(
    engine: Engine, turn: Turn, cold: list[Wanted], total: int, max_bytes: int, reader: int, committed: bool
) -> tuple[int, bool]:
    """Read from the store the records that are no longer in memory. Returns (bytes found in all, whether a partition has an
    error)."""
    failed = False
    at = 0
    while at < len(cold):
        await turn.pause()
        group = _together(cold, at, max_bytes - total, reader, at_once=total == 0)
        if not group:
            break
        at += len(group)
        reads = [_read_cold(engine, wanted, room, reader) for wanted, room in group]
        answers = await asyncio.gather(*reads) if len(reads) > 1 else [await reads[0]]
        for (wanted, _), answer in zip(group, answers, strict=True):
            if isinstance(answer, HeadgateError):
                wanted.code = _code(answer)
                failed = True
                continue
            if committed and wanted.log is not None:
                answer = stable(wanted.log, answer)
            size = sum([len(part) for part in answer])
            if answer and (total == 0 or size <= min(wanted.max_bytes, max_bytes - total)):
                wanted.slices = answer
                wanted.bytes = size
                total += size
    return total, failed


def _together(cold: list[Wanted], at: int, room: int, reader: int, *, at_once: bool) -> list[tuple[Wanted, int]]:
    """The next partitions to read at the same time, and the bytes that each may have.

    Batches of several partitions lie side by side in a chunk, and the store reads them together. Rows of a file are encoded, one
    partition after the other.

    Args:
        at_once: the first partition is read even without room.
    """
    group: list[tuple[Wanted, int]] = []
    for wanted in islice(cold, at, at + READS_MAX):
        share = min(wanted.max_bytes, room)
        if share <= 0 and (group or not at_once):
            break
        log = wanted.log
        assert log is not None
        in_files = wanted.offset < log.windows_end and log.reach(wanted.offset, reader)[2]
        if in_files and group:
            break
        group.append((wanted, share))
        room -= share
        if in_files:
            break
    return group


async def _read_cold(engine: Engine, wanted: Wanted, room: int, reader: int) -> list[memoryview] | HeadgateError:
    assert wanted.log is not None
    try:
        return await engine.read(wanted.log, wanted.offset, room, reader)
    except HeadgateError as error:
        return error


def refuse_hidden(engine: Engine, version: int, portions: list[Portion], rights: Rights) -> None:
    """Take the partitions out of reach that the client may not read."""
    for key, _, _, partitions, _ in chain.from_iterable(portions):
        name = topic_name(engine, key, version)
        if name is not None and not rights.may_read(name):
            for wanted in partitions:
                wanted.log, wanted.exists = None, None


def wanted_of(portion: Portion) -> Iterator[Wanted]:
    return (wanted for _, _, _, partitions, _ in portion for wanted in partitions)


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


def _gone(wanted: Wanted, version: int) -> int:
    """The error of a partition that cannot be read here: the client may not, another broker leads it, or it does not exist."""
    if wanted.exists is None:
        return TOPIC_AUTHORIZATION_FAILED
    log = wanted.log
    if wanted.exists and (log is None or (log.closed is not None and log.closed.reason is Reason.NOT_LEADER)):
        return NOT_LEADER_OR_FOLLOWER
    return UNKNOWN_TOPIC_ID if version >= TOPIC_IDS else UNKNOWN_TOPIC_OR_PARTITION


def _epoch_error(asked: int, current: int) -> HeadgateError:
    if asked < current:
        return RetryError(Reason.FENCED_LEADER_EPOCH, f"leader epoch is old. epoch=`{asked}` current=`{current}`")
    return RetryError(Reason.UNKNOWN_LEADER_EPOCH, f"leader epoch is not known here. epoch=`{asked}` current=`{current}`")


def _code(error: HeadgateError) -> int:
    from headgate.broker.server.kafka.errors import error_code

    return error_code(error)


def respond(engine: Engine, request: FetchRequest, correlation_id: int, listener: str) -> Steps[list[Buffer]]:
    """The response, as buffers that are sent one after another. Takes the portions out of the request. The leads in it have the
    addresses of the client's listener."""
    response = Response(request.version, request.error, request.topics, correlation_id)
    nodes: dict[int, Node] = {}
    portions = request.portions
    for at, portion in enumerate(portions):
        yield STEP_ELEMENTS
        _settle(engine, request, portion, nodes, listener)
        response.add(portion)
        portions[at] = []  # freeing a large request at once would take milliseconds
    return response.end(nodes.values())


def _settle(engine: Engine, request: FetchRequest, portion: Portion, nodes: dict[int, Node], listener: str) -> None:
    """Set the final results of a portion's partitions: errors, ends, and the leads that explain errors."""
    unproven, version = request.unproven, request.version
    for key, _, _, partitions, _ in portion:
        for wanted in partitions:
            log = wanted.log
            if log is not None and not wanted.code:
                if wanted.bytes:
                    log.fetched(wanted.bytes)
                    if request.committed:
                        wanted.aborted = aborted_in(log, wanted.offset, wanted.slices)
                elif unproven or log.refusal is not None:
                    # The next lead may have acked more already; this broker learns of it later.
                    wanted.code = NOT_LEADER_OR_FOLLOWER
            if log is not None and wanted.code in (0, OFFSET_OUT_OF_RANGE):
                wanted.high_watermark, wanted.log_start = log.high_watermark, log.log_start
                wanted.stable_end = log.stable_end
            elif version >= HINTS and wanted.code in HINTED:
                wanted.lead = note_lead(
                    engine,
                    topic_id(engine, key, version),
                    wanted.number,
                    nodes,
                    listener,
                    even_here=wanted.code == FENCED_LEADER_EPOCH,
                )


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
