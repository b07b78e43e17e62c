"""``headgate consume``: records as lines."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headgate.broker.cli import output
from headgate.broker.client import Consumer, ConsumerRecord, GateAdmin, GateState, Start, Timestamp, TopicPartition
from headgate.broker.client.admin import Admin
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import parse_duration_ms
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError

POLL_MS = 500
LOOK_S = 2.0
"""Pause between two checks for added partitions."""


@dataclass(frozen=True, slots=True)
class Back:
    """A position this many records before the end of each partition, or at its start if it has fewer."""

    records: int


def parse_start(*, from_beginning: bool, offset: int | None, timestamp: str | None) -> Start | Back:
    """The position to start at. Raises InvalidError if more than one is given, or if a time cannot be read."""
    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        raise InvalidError(Reason.INVALID_REQUEST, "give only one of --from-beginning, --offset and --timestamp")
    if offset is not None:
        return offset if offset >= 0 else Back(-offset)
    if timestamp is not None:
        return Timestamp(parse_time_ms(timestamp, Clock().now_ms()))
    return "earliest" if from_beginning else "latest"


def parse_time_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of ``1700000000000``, ``2026-11-21T10:00:00`` (UTC by default), ``15m`` (ago)."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    # A bare number was no time, so it is no duration either: here a duration needs its unit.
    ago_ms = parse_duration_ms(text) if text[-1:].isalpha() else None
    if ago_ms is not None:
        return max(now_ms - ago_ms, 0)
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"not a time, expected ms since 1970, 2026-11-21T10:00:00 (UTC), or 15m, 2h, 7d ago. value=`{text}`",
        ) from error


class Printer:
    """Writes records to stdout. For a terminal, control characters are escaped; for any other output, bytes are written
    unchanged."""

    def __init__(self, as_json: bool, key_separator: bytes | None) -> None:
        self._as_json = as_json
        self._separator = key_separator
        self._terminal = sys.stdout.isatty()

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """Print some records, and flush them to the reader now. Raises BrokenPipeError if the reader has gone."""
        line = self._json if self._as_json else self._plain
        sys.stdout.buffer.write(b"".join(line(record) for record in records))
        sys.stdout.buffer.flush()

    def _plain(self, record: ConsumerRecord) -> bytes:
        value = self._shown(record.value)
        if self._separator is None:
            return value + b"\n"
        return self._shown(record.key) + self._separator + value + b"\n"

    def _shown(self, data: bytes | None) -> bytes:
        if data is None:
            return b"null"
        if not self._terminal:
            return data
        return output.escaped(data.decode(errors="backslashreplace"), keep="\t").encode()

    def _json(self, record: ConsumerRecord) -> bytes:
        row: dict[str, object] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
        }
        _put(row, "key", record.key)
        _put(row, "value", record.value)
        if record.headers:
            headers: list[dict[str, object]] = []
            for name, value in record.headers:
                headers.append({})
                _put(headers[-1], "name", name.encode("utf-8", "surrogateescape"))
                _put(headers[-1], "value", value)
            row["headers"] = headers
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _put(row: dict[str, object], name: str, data: bytes | None) -> None:
    """Text for bytes that are text, and ``<name>_base64`` for others."""
    try:
        row[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        row[f"{name}_base64"] = base64.b64encode(data or b"").decode()


async def consume_records(
    cluster: str,
    topic: str,
    partitions: Sequence[int] | None,
    start: Start | Back,
    count: int | None,
    exit_at_end: bool,
    printer: Printer,
) -> None:
    """Print records from `start` on: for ever, or `count` of them, or up to the current end."""
    async with Consumer(cluster, on_outage=partial(output.tell_outage, "consume")) as consumer:
        places, ends = await _places(cluster, topic, partitions, start)
        if exit_at_end:
            places = {at: place for at, place in places.items() if place != "latest"}
            if not places:
                return
        await consumer.assign(places)
        left = count
        told = False
        loop = asyncio.get_running_loop()
        look_s = loop.time() + LOOK_S
        open_ends = {at: ends[at] for at in places}
        while left is None or left > 0:
            if exit_at_end:
                open_ends = {at: end for at, end in open_ends.items() if consumer.position(at) < end}
                if not open_ends:
                    return
            records = await consumer.poll(timeout_ms=POLL_MS)
            if exit_at_end:
                records = [record for record in records if record.offset < ends[TopicPartition(topic, record.partition)]]
            if left is not None:
                records = records[:left]
                left -= len(records)
            if records:
                printer.write(records)
            elif not told:
                behind = {at.partition: consumer.position(at) for at in places if consumer.position(at) < ends[at]}
                gate = await _gate_in_the_way(cluster, topic, behind) if behind else None
                if gate is not None:
                    output.fail(f"waiting at gate {gate}, which is open, until it is filled or released", "consume")
                    told = True
            if partitions is None and not exit_at_end and loop.time() > look_s:
                await _read_added(consumer, topic)
                look_s = loop.time() + LOOK_S


async def _read_added(consumer: Consumer, topic: str) -> None:
    """Also read partitions that were added to the topic, from their beginning."""
    try:
        numbers = await consumer.partitions(topic)
    except RetryError:
        return  # try again at the next check
    reads: dict[TopicPartition, Start] = {at: consumer.position(at) for at in consumer.assignment()}
    added: dict[TopicPartition, Start] = {TopicPartition(topic, number): "earliest" for number in numbers}
    if len(added) > len(reads):
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


async def _places(
    cluster: str, topic: str, partitions: Sequence[int] | None, start: Start | Back
) -> tuple[dict[TopicPartition, Start], dict[TopicPartition, int]]:
    """The start position and the current end, by partition."""
    async with Admin(cluster) as admin:
        description = await admin.describe_topic(topic)
    known = {part.number: part for part in description.partitions}
    for number in partitions or ():
        if number not in known:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"topic has no such partition. topic=`{topic}` partition=`{number}` partitions=`{len(known)}`",
            )
    places: dict[TopicPartition, Start] = {}
    ends: dict[TopicPartition, int] = {}
    for number in sorted(set(partitions or known)):
        part = known[number]
        at = TopicPartition(topic, number)
        ends[at] = part.high_watermark
        places[at] = max(part.log_start, part.high_watermark - start.records) if isinstance(start, Back) else start
    return places, ends
