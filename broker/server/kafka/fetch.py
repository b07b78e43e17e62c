"""Fetch: collects the records of a request. The encoding is in `wire/kafka/fetch.py`. Records are sent as slices of the buffers or
files that hold them.

Deviations: fetch sessions (KIP-227) are refused, in the same way as by a Kafka broker without room for them: the session id in
the response is 0, so that clients send full requests. Replicas do not fetch through this API. There is no diverging epoch (records
that a consumer has read are never truncated). A preferred replica is a lane (`cluster/lanes.py`). A lane does not compare leader
epochs: the records of its files are the same under every lead. For what it cannot serve it names the
lead as the preferred replica: after an error some clients would stay, or begin anew (`broker/server/README.md`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias

from headgate.broker.cluster import lanes
from headgate.broker.engine.read import view
from headgate.broker.engine.read.committed import aborted_in, stable
from headgate.broker.engine.read.live_first import WAIT_S_MAX
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
from headgate.broker.server.redirect import lane_for
from headgate.broker.wire.kafka import fetch as wire
from headgate.broker.wire.kafka.fetch import HINTS, NO_LEADER_EPOCH, Response
from headgate.broker.wire.kafka.hot import TOPIC_IDS, Node
from headgate.broker.wire.kafka.primitives import STEP_ELEMENTS

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog
    from headgate.broker.engine.read.lane import LaneLogs
    from headgate.broker.engine.read.view import Reach
    from headgate.broker.runtime.turns import Turn
    from headgate.broker.server.access.rights import Rights

    FetchRequest: TypeAlias = wire.FetchRequest[PartitionLog]
    Portion: TypeAlias = wire.Portion[PartitionLog]
    Wanted: TypeAlias = wire.Wanted[PartitionLog]
    Cold: TypeAlias = tuple[Wanted, Reach | None]
    """A partition with records that are only in the store, and their place if that is a file."""

OFFSET_OUT_OF_RANGE = 1
FENCED_LEADER_EPOCH = 74
READS_MAX = 16
"""Partitions of one request that are read from the store at the same time."""
HINTED = frozenset((NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH))
"""Errors for which the response names the lead."""


def parse(engine: Engine, frame: memoryview, position: int, version: int) -> tuple[FetchRequest, Iterator[Portion]]:
    """Read the head of a request. The caller then reads the portions into the request. Both raise the errors of the encoding."""
    return wire.parse(frame, position, version, engine.fetched.logs, engine.fetched.by_id)


def collect(
    engine: Engine, request: FetchRequest, portion: Portion, total: int, max_bytes: int, reader: int
) -> tuple[int, bool, list[Cold]]:
    """Collect the records of one portion that are in memory.

    Args:
        total: bytes found in the portions before.
        reader: the connection, for windows that wait for their history (engine/partition/windows.py).
        max_bytes: bound for all records together; the first partition with records gives at least one batch (KIP-74).

    Returns:
        (bytes found so far, whether a partition has an error, partitions with records that are only in the store).
    """
    failed = False
    cold: list[Cold] = []
    if engine.lane is not None:
        return total, *_collect_at_lane(engine, engine.lane, request, portion)
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
                cold.append((wanted, None))  # the log ends below this offset, or continues at another broker: the store knows
                continue
            if offset < log.log_start:
                wanted.code = OFFSET_OUT_OF_RANGE
                failed = True
                continue
            room = min(wanted.max_bytes, max_bytes - total)
            if room <= 0 and total > 0:
                continue
            slices, reached = view.see(log, offset, room, reader, committed=request.committed)
            if slices is None:
                cold.append((wanted, reached if reached[2] is not None else None))
                continue
            if slices:
                size = sum([len(part) for part in slices])
                if total > 0 and size > room:
                    continue
                wanted.slices = slices
                wanted.bytes = size
                total += size
                begin, end, _ = reached
                if end == log.high_watermark and (begin >= end or log.tail.reaches(begin, end, size)):
                    log.readers.at_end(reader, begin, engine.clock.monotonic())
    return total, failed, cold


def _collect_at_lane(engine: Engine, lane: LaneLogs, request: FetchRequest, portion: Portion) -> tuple[bool, list[Cold]]:
    """(whether a partition has an error or goes to its lead, partitions with records in files), on a lane, which has no others."""
    failed = False
    cold: list[Cold] = []
    for wanted in wanted_of(portion):
        log = wanted.log
        wanted.code, wanted.slices, wanted.bytes = 0, [], 0
        place = None if log is None or log.closed is not None else lane.place(log, wanted.offset)
        if place is not None:
            cold.append((wanted, place))
            continue
        failed = True
        if log is None or log.closed is not None:
            wanted.code = _gone(wanted, request.version)
            continue
        _to_lead(engine, wanted)
    return failed, cold


def _to_lead(engine: Engine, wanted: Wanted) -> None:
    """Send a reader back from a lane to the partition's lead."""
    log = wanted.log
    lead = None if log is None else engine.lead(log.topic.id, log.number)
    if lead is None:
        wanted.code = NOT_LEADER_OR_FOLLOWER
    else:
        wanted.preferred = lead[0].broker_id


def send_away(engine: Engine, request: FetchRequest, cold: list[Cold], guide: lanes.Guide) -> list[Cold]:
    """Send readers of history to a lane. Returns the partitions whose records this broker reads.

    Args:
        guide: of the connection: which of its readers go now.
    """
    if request.version < wire.RACKS:
        return cold
    left: list[Cold] = []
    for wanted, reached in cold:
        log = wanted.log
        assert log is not None
        lane = lane_for(engine, log, reached, request.rack)
        # (Not by its log, which is another one after a split, a merge or a move.)
        if lane is None or not guide.may_send((log.topic.id, log.number), wanted.offset, engine.clock.monotonic()):
            left.append((wanted, reached))
            continue
        wanted.preferred = lane.broker_id
        engine.sent_to_lanes += 1
    return left


async def collect_cold(
    engine: Engine, turn: Turn, cold: list[Cold], total: int, max_bytes: int, reader: int, committed: bool
) -> tuple[int, bool]:
    """Read from the store the records that are no longer in memory. Returns (bytes found in all, whether a partition has an
    error)."""
    failed = False
    at = 0
    while at < len(cold):
        await turn.pause()
        group = _together(cold, at, max_bytes - total, at_once=total == 0)
        if not group:
            break
        at += len(group)
        if engine.lane is None and group[0][2] is not None:
            if total and not engine.live_first.is_open:
                break  # what is found already waits for no history
            answers = [await _read_history(engine, *group[0], reader)]
        else:
            reads = [_read_cold(engine, wanted, room, reader, reached) for wanted, room, reached in group]
            answers = await asyncio.gather(*reads) if len(reads) > 1 else [await reads[0]]
        for (wanted, _, reached), answer in zip(group, answers, strict=True):
            if isinstance(answer, HeadgateError):
                failed = True
                if engine.lane is not None:
                    _to_lead(engine, wanted)  # the lead may reach the store, or else tells the error
                else:
                    wanted.code = _code(answer)
                continue
            if committed and wanted.log is not None:
                answer = stable(wanted.log, answer)
            size = sum([len(part) for part in answer])
            if answer and (total == 0 or size <= min(wanted.max_bytes, max_bytes - total)):
                wanted.slices = answer
                wanted.bytes = size
                total += size
                if reached is not None:
                    engine.history_out_bytes += size
    return total, failed


def _together(cold: list[Cold], at: int, room: int, *, at_once: bool) -> list[tuple[Wanted, int, Reach | None]]:
    """The next partitions to read at the same time, the bytes that each may have, and the place in a file.

    Batches of several partitions lie side by side in a chunk, and the store reads them together. Rows of a file are encoded, one
    partition after the other.

    Args:
        at_once: the first partition is read even without room.
    """
    group: list[tuple[Wanted, int, Reach | None]] = []
    for wanted, reached in islice(cold, at, at + READS_MAX):
        share = min(wanted.max_bytes, room)
        if share <= 0 and (group or not at_once):
            break
        if reached is not None and group:
            break
        group.append((wanted, share, reached))
        room -= share
        if reached is not None:
            break
    return group


async def _read_history(
    engine: Engine, wanted: Wanted, room: int, reached: Reach | None, reader: int
) -> list[memoryview] | HeadgateError:
    """Read from a file at a lead, when live records leave room for it."""
    async with engine.live_first.turn(room, WAIT_S_MAX, reader) as share:
        answer = await _read_cold(engine, wanted, share, reader, reached) if share else []
        if not isinstance(answer, HeadgateError):
            engine.live_first.served(sum(map(len, answer)))
        return answer


async def _read_cold(
    engine: Engine, wanted: Wanted, room: int, reader: int, reached: Reach | None
) -> list[memoryview] | HeadgateError:
    assert wanted.log is not None
    try:
        return await engine.read(wanted.log, wanted.offset, room, reader, reached)
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
    return any(
        wanted.bytes and wanted.log is not None and wanted.offset < wanted.log.windows.end_of_all for wanted in wanted_of(portion)
    )


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
            if wanted.preferred != wire.NO_REPLICA and version < wire.RACKS:
                wanted.code = NOT_LEADER_OR_FOLLOWER  # this client asked a lane without having been sent there
            if log is not None and not wanted.code:
                if wanted.bytes:
                    log.traffic.fetched(wanted.bytes)
                    if request.committed:
                        wanted.aborted = aborted_in(log, wanted.offset, wanted.slices)
                elif wanted.preferred == wire.NO_REPLICA and (unproven or log.refusal is not None):
                    # The next lead may have acked more already; this broker learns of it later.
                    wanted.code = NOT_LEADER_OR_FOLLOWER
            if log is not None and engine.lane is not None and not wanted.code:
                wanted.high_watermark, wanted.stable_end = engine.lane.shown_ends(log)
                wanted.log_start = log.log_start
            elif log is not None and wanted.code in (0, OFFSET_OUT_OF_RANGE):
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
                log.waiters.add(self, at_window=view.is_waiting(log, wanted.offset, reader))
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
            log.waiters.remove(self)
