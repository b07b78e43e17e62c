"""``headgate consume``: records as lines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.options import DEFAULT_CLUSTER, INT64_MAX, Cluster, TopicNames, separator_bytes
from headgate.broker.cli.record_format import Printer
from headgate.broker.client import Consumer, ConsumerRecord, GateAdmin, GateState, Start, Timestamp, TopicPartition
from headgate.broker.client.admin import Admin
from headgate.broker.client.group_admin import GroupAdmin
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.setting_kinds import parse_time_ms

if TYPE_CHECKING:
    from headgate.broker.schemas.decoder import Decoder

POLL_MS = 500
LOOK_S = 2.0
"""Pause between two checks for added partitions, and between two commits of a group's positions."""

app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class Back:
    """A position this many records before the end of each partition, or at its start if it has fewer."""

    records: int


def parse_start(*, from_beginning: bool, offset: str | None, timestamp: str | None) -> tuple[Start | Back, int | None]:
    """The position to start at, and the offset to end before. Raises InvalidError for more than one start, or a wrong one."""
    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        raise InvalidError(Reason.INVALID_REQUEST, "give only one of --from-beginning, --offset and --timestamp")
    if offset is not None:
        return parse_offset(offset)
    if timestamp is not None:
        return Timestamp(parse_time_ms(timestamp, Clock().now_ms())), None
    return "earliest" if from_beginning else "latest", None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What to read, and when to end.

    `partitions`: None for all. `until`: the offset before which each partition ends. `count`: number of records. `group`: the
    group whose positions are the start and are moved, or None.
    """

    topics: Sequence[str]
    partitions: Sequence[int] | None = None
    start: Start | Back = "latest"
    until: int | None = None
    count: int | None = None
    exit_at_end: bool = False
    group: str | None = None


def parse_offset(text: str) -> tuple[Start | Back, int | None]:
    """(start, end) of ``5``, ``-5``, ``5:10``, ``:10``, ``5:``, ``beginning``, ``end``. Raises InvalidError."""
    if text in _PLACES:
        return _PLACES[text], None
    first, colon, last = text.partition(":")
    start: Start | Back = "earliest"
    try:
        if first or not colon:
            number = int(first)
            start = number if number >= 0 else Back(-number)
        end = int(last) if last else None
        if end is not None and (end < 0 or (isinstance(start, int) and end < start)):
            raise ValueError
    except ValueError:
        expected = "N, -N (before the end), FROM:TO, beginning or end"
        raise InvalidError(
            Reason.INVALID_REQUEST, f"option has a wrong value, expected {expected}. option=`--offset` value=`{text}`"
        ) from None
    return start, end


EARLIEST: Start = "earliest"
LATEST: Start = "latest"
_PLACES: Mapping[str, Start] = {"beginning": EARLIEST, "earliest": EARLIEST, "end": LATEST, "latest": LATEST}


@command(app, "consume")
def consume(
    topics: TopicNames,
    cluster: Cluster = DEFAULT_CLUSTER,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", "-b", help="Start at the first record.")] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset", "-o", metavar="OFFSET", help="N: start there. -N: N records before the end. FROM:TO: end before TO."
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", "-t", metavar="WHEN", help="Start at ms since 1970, ISO 8601 (UTC), or 15m, 2h, 7d ago."),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    count: Annotated[int | None, typer.Option("--max", "-n", min=1, metavar="N", help="End after this many records.")] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", "-e", help="End at the current end of each partition.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="Print KEY<TEXT>VALUE; \\t is a tab.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", help="Continue at this group's positions, and move them. It has no members."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="Such as '%t %p %o %T %k %v %h\\n': topic, partition, offset, time in ms, key, value, headers; %K %S: sizes.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per record, with time and headers.")] = False,
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", help="A schema registry: keys and values in its frame are printed as JSON."),
    ] = None,
) -> Coroutine[Any, Any, None]:
    """Print records as they arrive, until Ctrl-C. Starts at the end by default."""
    if (pattern is not None) + json + (key_separator is not None) > 1:
        raise InvalidError(Reason.INVALID_REQUEST, "give only one of --format, --json and --key-separator")
    start, until = parse_start(from_beginning=from_beginning, offset=offset, timestamp=timestamp)
    printer = Printer(json, separator_bytes(key_separator), pattern, None if registry is None else _decoder(registry))
    reading = Reading(
        topics=list(dict.fromkeys(topics)), partitions=partition or None, start=start, until=until, count=count,
        exit_at_end=exit_at_end, group=group,
    )  # fmt: skip
    return _consume_records(cluster, reading, printer)


def _decoder(registry: str) -> Decoder:
    from headgate.broker.schemas.decoder import Decoder  # slow to import, and few read framed records

    return Decoder.of(registry)


async def _consume_records(cluster: str, reading: Reading, printer: Printer) -> None:
    """Print records: for ever, or until the end that `reading` states."""
    async with Consumer(cluster, on_outage=partial(output.tell_outage, "consume")) as consumer:
        places, ends = await _places(cluster, reading)
        positions = Positions(cluster, reading.group)
        places |= await positions.stored(places)
        stops = _stops(reading, places, ends)
        if stops is not None:
            places = {at: place for at, place in places.items() if at in stops}
            if not places:
                return
        await consumer.assign(places)
        try:
            await _Loop(cluster, reading, consumer, printer, positions, places, ends, stops).run()
        finally:
            await positions.store()


def _stops(
    reading: Reading, places: Mapping[TopicPartition, Start], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int] | None:
    """The offset before which each partition ends; None to read for ever. Without a partition that begins at its end."""
    if not reading.exit_at_end:
        return None if reading.until is None else dict.fromkeys(places, reading.until)
    until = INT64_MAX if reading.until is None else reading.until
    return {at: min(ends[at], until) for at, place in places.items() if place != "latest"}


class Positions:
    """The committed positions of the group that reads, if there is one. The group must have no members meanwhile."""

    def __init__(self, cluster: str, group: str | None) -> None:
        self._cluster, self._group = cluster, group
        self._printed: dict[TopicPartition, int] = {}
        self._store_s = 0.0

    async def stored(self, places: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """The group's positions in these partitions. Raises InvalidError if the group has members."""
        if self._group is None:
            return {}
        async with GroupAdmin(self._cluster) as admin:
            try:
                await admin.alter_positions(self._group, {})
                found = (await admin.describe_group(self._group)).positions
            except InvalidError as error:
                if error.reason is not Reason.GROUP_ID_NOT_FOUND:
                    raise
                return {}
        known = {TopicPartition(row.topic, row.partition): row.offset for row in found}
        return {at: offset for at in places if (offset := known.get(at)) is not None}

    async def printed(self, records: Sequence[ConsumerRecord], now_s: float) -> None:
        """Note printed records, and store the positions behind them now and then."""
        if self._group is not None:
            self._printed.update((TopicPartition(record.topic, record.partition), record.offset + 1) for record in records)
            if now_s >= self._store_s:
                self._store_s = now_s + LOOK_S
                await self.store()

    async def store(self) -> None:
        if self._group is not None and self._printed:
            printed, self._printed = self._printed, {}
            async with GroupAdmin(self._cluster) as admin:
                await admin.alter_positions(self._group, printed)


@dataclass(slots=True)
class _Loop:
    """Reads until the end. `stops`: see `_stops`."""

    cluster: str
    reading: Reading
    consumer: Consumer
    printer: Printer
    positions: Positions
    places: Mapping[TopicPartition, Start]
    ends: Mapping[TopicPartition, int]
    stops: dict[TopicPartition, int] | None
    told: bool = False

    async def run(self) -> None:
        loop, left, stops = asyncio.get_running_loop(), self.reading.count, self.stops
        look_s = loop.time() + LOOK_S
        running = stops
        while left is None or left > 0:
            if running is not None:
                running = {at: end for at, end in running.items() if self.consumer.position(at) < end}
                if not running:
                    return
            records = await self.consumer.poll(timeout_ms=POLL_MS)
            if stops is not None:
                records = [record for record in records if record.offset < stops[TopicPartition(record.topic, record.partition)]]
            if left is not None:
                records = records[:left]
                left -= len(records)
            if records:
                self.printer.write(records)
                await self.positions.printed(records, loop.time())
            elif not self.told:
                await self._tell_gate()
            if self.reading.partitions is None and stops is None and loop.time() > look_s:
                for topic in self.reading.topics:
                    await _read_added(self.consumer, topic)
                look_s = loop.time() + LOOK_S

    async def _tell_gate(self) -> None:
        for topic in self.reading.topics:
            positions = {at: self.consumer.position(at) for at in self.places if at.topic == topic}
            behind = {at.partition: offset for at, offset in positions.items() if offset < self.ends[at]}
            gate = await _gate_in_the_way(self.cluster, topic, behind) if behind else None
            if gate is not None:
                output.fail(f"waiting at gate {gate}, which is open, until it is filled or released", "consume")
                self.told = True
                return


async def _read_added(consumer: Consumer, topic: str) -> None:
    """Also read partitions that were added to a topic, from their beginning."""
    try:
        numbers = await consumer.partitions(topic)
    except RetryError:
        return  # try again at the next check
    reads: dict[TopicPartition, Start] = {at: consumer.position(at) for at in consumer.assignment()}
    added: dict[TopicPartition, Start] = {TopicPartition(topic, number): "earliest" for number in numbers}
    if added.keys() - reads.keys():
        await consumer.assign({**added, **reads})


async def _gate_in_the_way(cluster: str, topic: str, positions: Mapping[int, int]) -> str | None:
    """The id of an open gate that one of the positions (by partition) is waiting at."""
    async with GateAdmin(cluster, timeout_ms=POLL_MS) as admin:
        try:
            gates = await admin.list(topic)
        except HeadgateError:
            return None  # unknown: a lasting fault ends the reading itself, and a passing one is waited for
    for gate in gates:
        for window in gate.windows:
            if gate.state is GateState.OPEN and window.base_offset <= positions.get(window.partition, -1) < window.end_offset:
                return gate.id
    return None


async def _places(cluster: str, reading: Reading) -> tuple[dict[TopicPartition, Start], dict[TopicPartition, int]]:
    """The start position and the current end, by partition."""
    firsts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    start = reading.start
    async with Admin(cluster) as admin:
        for topic in reading.topics:
            known = {part.number: part for part in (await admin.describe_topic(topic)).partitions}
            for number in reading.partitions or ():
                if number not in known:
                    raise InvalidError(
                        Reason.INVALID_REQUEST,
                        f"topic has no such partition. topic=`{topic}` partition=`{number}` partitions=`{len(known)}`",
                    )
            for number in sorted(set(reading.partitions or known)):
                at = TopicPartition(topic, number)
                firsts[at], ends[at] = known[number].log_start, known[number].high_watermark
        unknown = [at for at, end in ends.items() if end < 0]
        if unknown and (reading.exit_at_end or isinstance(start, Back)):
            # Their leads do not answer at the moment. Both kinds of reading need the ends, so they wait for the next leads.
            for offsets, place in ((firsts, EARLIEST), (ends, LATEST)):
                offsets.update((at, told.offset) for at, told in (await admin.offsets(dict.fromkeys(unknown, place))).items())
    if isinstance(start, Back):
        return {at: max(firsts[at], end - start.records) for at, end in ends.items()}, ends
    return dict.fromkeys(ends, start), ends
