"""Reads messages for a person: newest first, or from a place on; with a filter; and from the next place on, page by page.

One page has `ROWS` messages, from all partitions by time; each partition keeps its order. A page costs a bounded number of bytes
and a bounded time, and says how far it came: the next request goes on from there. So a search of ten million messages is many small
reads, which end when the page is closed or hidden.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.log.records import Record
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.setting_kinds import parse_time_ms
from headgate.broker.runtime.tasks import end_tasks, measured
from headgate.broker.server.grpc.inner import InnerCalls
from headgate.broker.server.grpc.open_calls import Client
from headgate.broker.server.http.hands.records import Look, Wanted, look_at
from headgate.broker.wire.grpc.headgate.v1 import gates_pb2, log_pb2
from headgate.broker.wire.grpc.methods import methods

LIST_GATES = methods(gates_pb2.DESCRIPTOR.services_by_name["Gates"])["ListGates"]

ROWS = 50
"""Messages of one page."""
PARTITIONS_MAX = 128
"""Partitions of one page: its address names a place in each of them."""
FETCH_BYTES = 1 << 20
"""Bytes of one read; a larger batch is read whole."""
PAGE_BYTES = 8 << 20
"""Bytes read for one page without a filter."""
SEARCH_BYTES = 64 << 20
"""Bytes read for one page with a filter: a third of a second on a quiet machine."""
PAGE_S = 1.0
"""Time after which a page is given as far as it is."""
READERS_MAX = 4
"""Pages that are read at a time, at one broker."""
WAITING_MAX = 40
"""Pages that wait for their turn; further ones are refused."""
LIVE_S, LIVE_GAP_S, LIVE_S_MAX = 1.0, 0.2, 10.0
"""Seconds after which a live view asks again. If more than five views are open, they ask in turns, LIVE_GAP_S apart, so what they
cost does not grow with their number; each asks after LIVE_S_MAX at the latest."""
BEAT_S = 1.0
"""Live views of a busy topic that ask within this time get the same messages."""
PAUSE_PER_WORK = 2.0
"""Pause between two reads, as a multiple of the event loop's time for the last one: all pages take a third of the loop at most."""
WALKS_MAX = 8
"""Partitions that one page reads at a time: a unit of adopted files is decoded once for all that wait for it."""
MERGE_BYTES = 256 << 10
"""Bytes of one read for a page without a filter: it shows few of many messages."""
DUMP_ROWS = 5_000
"""Messages of one page of a download."""
ANY = 1 << 62
STEPS_MAX = 2_000
"""Reads for one page: bounds the way over gaps."""

AsyncWalk = Awaitable[tuple[list[Record], int]]
Found = list[tuple[int, Record]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a person asks for. `start`: newest, oldest, offset, time or live. `at`: the offset or the time. `places`: where the page
    before ended, by partition; None: this is the first page. `is_dump`: for a download, which needs no order among partitions."""

    topic: str
    partition: int | None = None
    start: str = "newest"
    at: str = ""
    wanted: Wanted
    places: Mapping[int, int] | None = None
    is_dump: bool = False

    @property
    def is_back(self) -> bool:
        return self.start == "newest"

    @property
    def is_deep(self) -> bool:
        """It reads many records for few, or for a file."""
        return self.is_dump or not self.wanted.is_all


@dataclass(frozen=True, slots=True)
class Window:
    """A part of an open gate that was stepped over."""

    gate: str
    partition: int
    base_offset: int
    end_offset: int


@dataclass(slots=True)
class Messages:
    """One page. `places`: where the next one begins. `is_end`: there is nothing further now. `left`: offsets that were not looked
    at yet. `unread`: (partition, first offset, one more than the last, why)."""

    found: Found = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    is_end: bool = True
    left: int = 0
    total: int = 0
    unread: list[tuple[int, int, int, str]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    partitions_total: int = 0

    @property
    def is_quiet(self) -> bool:
        """There is nothing to tell."""
        return not (self.found or self.unread or self.windows or self.troubles) and self.is_end


class Pace:
    """Lets few pages be read at a time, and each in turns with pauses. One for each broker."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self._places = asyncio.Semaphore(READERS_MAX)
        self._decoding = asyncio.Semaphore(1)
        self._waiting = 0
        self._live_s = 0.0
        """The time at which the last live view that asked is to ask again."""
        self._beats: dict[str, tuple[float, Mapping[int, int]]] = {}
        """By topic: when a live view asked for its ends, and these ends by partition."""

    def live_pause_s(self) -> float:
        """Seconds after which the live view that has asked now is to ask again."""
        now_s = self.now_s()
        self._live_s = min(max(self._live_s + LIVE_GAP_S, now_s + LIVE_S), now_s + LIVE_S_MAX)
        return self._live_s - now_s

    def beat(self, topic: str, ends: Mapping[int, int]) -> Mapping[int, int]:
        """Ends of a topic's partitions that are at most `BEAT_S` old: these ones, or those that another live view has found."""
        now_s = self.now_s()
        self._beats = {name: beat for name, beat in self._beats.items() if now_s - beat[0] < BEAT_S}
        return self._beats.setdefault(topic, (now_s, ends))[1]

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A place to read in. Raises RetryError(OVERLOADED)."""
        if self._waiting >= WAITING_MAX:
            raise RetryError(Reason.OVERLOADED, f"too many people look at messages: try again in a moment. waiting=`{WAITING_MAX}`")
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()

    async def look(self, batches: memoryview, low: int, high: int, most: int, wanted: Wanted) -> Look:
        async with self._decoding:  # one thread: the interpreter has one lock
            return await asyncio.get_running_loop().run_in_executor(None, look_at, batches, low, high, most, wanted, self.now_s)


class Reader:
    """Reads the pages of one person."""

    def __init__(self, inner: InnerCalls, client: Client, pace: Pace) -> None:
        self._inner, self._client, self._pace = inner, client, pace

    async def page(self, query: Query) -> Messages:
        """One page. Raises InvalidError: UNKNOWN_TOPIC, NOT_AUTHORIZED, INVALID_REQUEST; RetryError."""
        async with self._pace.turn():
            return await _Page(self._inner, self._client, self._pace, query).make()


class _Page:
    def __init__(self, inner: InnerCalls, client: Client, pace: Pace, query: Query) -> None:
        self._inner, self._client, self._pace, self._query = inner, client, pace, query
        self._until_s = pace.now_s() + PAGE_S
        self._bytes_left = SEARCH_BYTES if query.is_deep else PAGE_BYTES
        self._steps_left = STEPS_MAX
        self._follows_lanes = query.is_deep
        self._lanes: dict[int, Incarnation] = {}
        """Where history is read, by partition."""
        self._low: dict[int, int] = {}
        self._high: dict[int, int] = {}
        self._windows: list[Window] = []
        self._stuck: set[int] = set()
        """Partitions that give nothing more for this page."""
        self._page = Messages()
        self._walks = 0
        """Partitions that are read at this moment."""

    @property
    def _is_over(self) -> bool:
        return self._bytes_left <= 0 or self._steps_left <= 0 or self._pace.now_s() >= self._until_s

    async def make(self) -> Messages:
        query, page = self._query, self._page
        if query.start == "live" and query.places is not None:
            # Asked once a second by each open view, mostly in vain: one question to each lead.
            self._high = await self._offsets(list(query.places), log_pb2.Position(latest=True))
            if any(high - query.places[number] > ROWS for number, high in self._high.items()):
                # Which of so many messages a view shows is all the same: all views show the same ones, whose HTML is made once.
                shown = self._pace.beat(query.topic, self._high)
                self._high = {
                    number: max(min(shown.get(number, high), high), min(query.places[number], high))
                    for number, high in self._high.items()
                }
            self._low = {number: min(max(query.places[number], high - ROWS), high) for number, high in self._high.items()}
            if left_out := sum(max(low - query.places[number], 0) for number, low in self._low.items()):
                self._trouble(f"{left_out:,} messages are left out: they come faster than a live view shows them")
            page.partitions_total = self._inner.engine.topic(query.topic).partitions
        else:
            numbers = await self._partitions()
            self._low = await self._offsets(numbers, log_pb2.Position(earliest=True))
            self._high = await self._offsets(numbers, log_pb2.Position(latest=True))
        page.places = await self._begin(list(self._high))
        if query.start != "live":
            await self._find_windows()
        walk = self._back if query.is_back else self._on
        if query.is_deep:
            await self._search(walk, DUMP_ROWS if query.is_dump else ROWS)
        else:
            await self._merge(walk)
        open_places = [number for number in page.places if self._ahead(number)]
        page.is_end = all(number in self._stuck for number in open_places)
        page.left = sum(self._ahead(number) for number in open_places)
        page.total = sum(max(self._high[number] - self._low[number], 0) for number in page.places)
        return page

    def _ahead(self, number: int) -> int:
        place = self._page.places[number]
        return max(place - self._low[number] if self._query.is_back else self._high[number] - place, 0)

    # -- where it begins

    async def _partitions(self) -> list[int]:
        """The partitions to read. The rule is asked before it is told whether the topic exists."""
        query = self._query
        first = query.partition or 0
        await self._inner.offsets(query.topic, {first: log_pb2.Position(earliest=True)}, self._client)
        total = self._inner.engine.topic(query.topic).partitions
        self._page.partitions_total = total
        if query.partition is None:
            return list(range(min(total, PARTITIONS_MAX)))
        if query.partition >= total:
            raise InvalidError(
                Reason.UNKNOWN_TOPIC, f"partition does not exist. partition=`{query.partition}` partitions=`{total}`"
            )
        return [query.partition]

    async def _offsets(self, numbers: list[int], position: log_pb2.Position) -> dict[int, int]:
        rows = await self._inner.offsets(self._query.topic, dict.fromkeys(numbers, position), self._client)
        for number, row in rows.items():
            if row.HasField("error"):
                self._trouble(f"partition {number}: {row.error.message}")
        return {number: row.offset for number, row in rows.items() if row.offset >= 0}

    async def _begin(self, numbers: list[int]) -> dict[int, int]:
        query, numbers = self._query, [number for number in numbers if number in self._low]
        if query.places is not None:
            low, high = self._low, self._high
            return {
                number: min(max(query.places[number], low[number]), high[number]) for number in numbers if number in query.places
            }
        match query.start:
            case "newest" | "live":
                return {number: self._high[number] for number in numbers}
            case "oldest":
                return {number: self._low[number] for number in numbers}
            case "offset":
                if not (query.at.isascii() and query.at.isdigit() and len(query.at) <= 18):
                    raise InvalidError(Reason.INVALID_REQUEST, f"not an offset, expected a number. value=`{query.at[:50]}`")
                return {number: min(max(int(query.at), self._low[number]), self._high[number]) for number in numbers}
            case "time":
                at_ms = parse_time_ms(query.at.strip(), self._inner.engine.clock.now_ms())
                found: dict[int, int] = {}

                async def look_up(number: int) -> None:
                    found.update(await self._offsets([number], log_pb2.Position(timestamp_ms=at_ms)))

                await self._each(numbers, look_up)
                return {number: found[number] for number in numbers if number in found}
        raise InvalidError(Reason.INVALID_REQUEST, "no such place to begin")

    async def _find_windows(self) -> None:
        """The windows of open gates, as far as the person may see gates."""
        try:
            answer: gates_pb2.ListGatesResponse = await self._inner.call(
                LIST_GATES, gates_pb2.ListGatesRequest(topic=self._query.topic), self._client
            )
        except HeadgateError:
            return  # a window without a name is told by the broker's empty answer
        self._windows = [
            Window(gate.id, window.partition, window.base_offset, window.end_offset)
            for gate in answer.gates
            if gate.state == gates_pb2.GATE_STATE_OPEN
            for window in gate.windows
            if window.end_offset > window.base_offset
        ]

    # -- the ways through all partitions

    async def _each(self, numbers: list[int], work: Callable[[int], Awaitable[None]]) -> None:
        """Work on some partitions, `WALKS_MAX` at a time."""
        places = asyncio.Semaphore(WALKS_MAX)

        async def in_place(number: int) -> None:
            async with places:
                self._walks += 1
                try:
                    await work(number)
                finally:
                    self._walks -= 1

        tasks = [asyncio.create_task(in_place(number), name="page") for number in numbers]
        try:
            await asyncio.gather(*tasks)
        finally:
            await end_tasks(tasks)

    async def _merge(self, walk: Callable[[int, int, int], AsyncWalk]) -> None:
        """Fill the page from all partitions by time. What does not fit is read again for the next page."""
        page, back = self._page, self._query.is_back
        found: dict[int, tuple[list[Record], int]] = {}
        parts: dict[int, list[Record]] = {}
        ends: dict[int, int] = {}
        wanted = [number for number in page.places if self._ahead(number)]
        share = max(PAGE_BYTES // max(len(wanted), 1), FETCH_BYTES // 4)

        async def one_walk(number: int) -> None:
            if not self._is_over:
                found[number] = await walk(number, ROWS, share)

        await self._each(wanted, one_walk)
        for number in wanted:
            if number in found:
                records, ends[number] = found[number]
                parts[number] = records[::-1] if back else records
        merged = heapq.merge(
            *([(number, record) for record in records] for number, records in parts.items()),
            key=lambda item: -item[1].timestamp_ms if back else item[1].timestamp_ms,
        )
        taken = dict.fromkeys(parts, 0)
        for number, record in merged:
            if len(page.found) == ROWS:
                break
            page.found.append((number, record))
            taken[number] += 1
        for number, records in parts.items():
            if taken[number] == len(records):
                page.places[number] = ends[number]
            else:
                first = records[taken[number]].offset
                page.places[number] = first + 1 if back else first

    async def _search(self, walk: Callable[[int, int, int], AsyncWalk], most: int) -> None:
        """Look through the partitions in turn until the page is full. All that is found is shown."""
        page = self._page
        for number in cycle(list(page.places)):
            going_on = [place for place in page.places if place not in self._stuck and self._ahead(place)]
            if not going_on or self._is_over or len(page.found) >= most:
                break
            if number in going_on:
                records, page.places[number] = await walk(number, 0, FETCH_BYTES)
                page.found += [(number, record) for record in records]
        if not self._query.is_dump:
            page.found.sort(key=lambda item: item[1].timestamp_ms, reverse=self._query.is_back)

    # -- one partition

    async def _on(self, number: int, most: int, share: int) -> tuple[list[Record], int]:
        """The next records, and where the page after them begins. `most`: 0: any number, of one read."""
        return await self._read(number, self._page.places[number], self._page.places[number], self._high[number], most, share)

    async def _read(
        self, number: int, at: int, low: int, high: int, most: int, share: int, reads: list[tuple[int, int]] | None = None
    ) -> tuple[list[Record], int]:
        """Records in [low, high), read from `at` on. Returns them, and the offset behind what was read.

        Args:
            reads: gets the first offset and the bytes of each read's batches.
        """
        records: list[Record] = []
        while at < high and share > 0 and not self._is_over and number not in self._stuck:
            window = next(
                (window for window in self._windows if window.partition == number and window.base_offset <= at < window.end_offset),
                None,
            )
            if window is not None:
                self._show(window)
                at = window.end_offset
                continue
            batches = await self._fetch(number, at, min(MERGE_BYTES if most and most != ANY else FETCH_BYTES, share))
            if not batches:
                break
            share -= len(batches)
            look = await self._pace.look(batches, low, high, most - len(records) if most else ANY, self._query.wanted)
            if reads is not None:
                reads.append((look.first_offset, len(batches)))
            records += look.records
            self._page.unread += [(number, *span) for span in look.unread]
            at = max(min(look.next_offset, high), at) if look.next_offset > at else high
            if most and len(records) >= most:
                return records[:most], records[most - 1].offset + 1
            if not most:
                break
        return records, at

    async def _back(self, number: int, most: int, share: int) -> tuple[list[Record], int]:
        """The last records before the place, in the order of their offsets, and where the page before them ends."""
        place, floor = self._page.places[number], self._low[number]
        records: list[Record] = []
        span, used = 1, 0
        while place > floor and used < share and not self._is_over and number not in self._stuck:
            window = next(
                (
                    window
                    for window in self._windows
                    if window.partition == number and window.base_offset < place <= window.end_offset
                ),
                None,
            )
            if window is not None:
                self._show(window)
                place = max(window.base_offset, floor)
                continue
            low = max(
                place - span,
                floor,
                *(window.end_offset for window in self._windows if window.partition == number and window.end_offset < place),
            )
            reads = list[tuple[int, int]]()
            found, reached = await self._read(number, low, floor, place, ANY, 4 * FETCH_BYTES, reads)
            size = sum(size for _, size in reads)
            if reached < place and number not in self._stuck:
                if span == 1 or self._is_over:
                    return records, place
                span = max(span // 8, 1)
                continue
            used += size
            records = found + records
            first = min([low, *(offset for offset, _ in reads)])
            covered, place = place - first, max(first, floor)
            if most and len(records) >= most:
                records = records[-most:]
                return records, records[0].offset
            # The next read is as long as the bytes of this one allow, and eight times as long over a gap.
            fits = max(FETCH_BYTES * covered // size, 1) if size else span * 8
            span = min(fits, span * 64, most - len(records)) if most and size else min(fits, span * 64)
        return records, place

    async def _fetch(self, number: int, offset: int, size: int) -> memoryview:
        """Whole batches; none if there is nothing more to read now. The loop rests after it."""
        self._steps_left -= 1
        spent: list[float] = []
        try:
            head, batches = await measured(self._answer(number, offset, size), self._pace.now_s, spent.append)
        except RetryError as error:
            return self._give_up(number, error)
        except InvalidError as error:
            if error.reason is not Reason.OFFSET_OUT_OF_RANGE:
                raise
            return self._give_up(number, error)
        await asyncio.sleep(PAUSE_PER_WORK * sum(spent) * max(self._walks, 1))
        self._bytes_left -= len(batches)
        if not batches:
            self._stuck.add(number)
            if offset < head.high_watermark:
                self._show(Window("", number, offset, offset))
        return batches

    async def _answer(self, number: int, offset: int, size: int) -> tuple[log_pb2.FetchResponse, memoryview]:
        """An answer of the partition's lead, or of the lane that it names. After a lane has failed, leads answer for this page."""
        request = log_pb2.FetchRequest(topic=self._query.topic, partition=number, offset=offset, max_bytes=size)
        while True:
            lane = self._lanes.get(number)
            request.follows_lanes = self._follows_lanes and lane is None
            try:
                head, batches = await self._inner.fetch(request, self._client, lane)
            except HeadgateError:
                if lane is None:
                    raise
                self._follows_lanes = False
                self._lanes.clear()
                continue
            if not head.HasField("lane"):
                return head, batches
            named = self._inner.lane_of(head.lane)
            if named is None:
                self._follows_lanes = False
            else:
                self._lanes[number] = named

    def _give_up(self, number: int, error: HeadgateError) -> memoryview:
        self._stuck.add(number)
        self._trouble(f"partition {number}: {error.message}")
        return memoryview(b"")

    def _show(self, window: Window) -> None:
        if window not in self._page.windows:
            self._page.windows.append(window)

    def _trouble(self, text: str) -> None:
        if text not in self._page.troubles:
            self._page.troubles.append(text)


def places_text(places: Mapping[int, int]) -> str:
    """Places as they stand in an address: ``0-1500.1-1498``."""
    return ".".join(f"{number}-{offset}" for number, offset in places.items())


def places_of(text: str) -> dict[int, int] | None:
    """The places in an address; None without any, or for other text."""
    found: dict[int, int] = {}
    for one in text.split(".")[:PARTITIONS_MAX] if text else ():
        number, _, offset = one.partition("-")
        if not (
            number.isascii() and number.isdigit() and offset.isascii() and offset.isdigit() and len(number) < 8 and len(offset) < 19
        ):
            return None
        found[int(number)] = int(offset)
    return found or None
