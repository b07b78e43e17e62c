"""The messages of a topic: the page of them, and their download."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from itertools import chain
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headgate.broker.log.record_json import json_line
from headgate.broker.log.records import Record
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.server.http.connection import wait_gone
from headgate.broker.server.http.guard import refusal
from headgate.broker.server.http.hands.entrance import is_asked_here
from headgate.broker.server.http.hands.framed import Found, Framed
from headgate.broker.server.http.hands.reading import Messages, Pace, Query, Reader, places_of, places_text
from headgate.broker.server.http.hands.records import Wanted, rows
from headgate.broker.server.http.hands.room import Room, sentence

STARTS = (
    ("newest", "at the newest"),
    ("oldest", "at the oldest"),
    ("offset", "at an offset"),
    ("time", "at a time (UTC)"),
    ("live", "now, live"),
)
TEXT_CHARS_MAX = 1_000
POLL = "headgate-poll"
"""Header of a live view that asks for news: without any it gets no page. The answer's says after how many ms it is to
ask again."""
LINES_MAX = 100_000
"""Messages of one download."""
DOWNLOAD_BYTES_MAX = 256 << 20
DOWNLOAD_S = 120.0
"""Longest time of a download, also for a browser that takes it slowly. `headgate consume` has no such limits."""
LINES_PER_TURN = 100
KEPT_BYTES_MAX = 256 << 10
"""Bytes of the messages of one page whose HTML is kept for other live views."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The fields of the form, as the person wrote them."""

    start: str
    at: str
    partition: str
    key: str
    text: str
    is_next: bool

    @property
    def is_search(self) -> bool:
        return bool(self.key or self.text)

    @property
    def address(self) -> str:
        fields = {"from": self.start, "at": self.at, "partition": self.partition, "key": self.key, "text": self.text}
        return urlencode({name: value for name, value in fields.items() if value})


def asked_of(request: Request) -> Asked:
    values = request.query_params
    start = values.get("from", "newest")
    return Asked(
        start=start if start in dict(STARTS) else "newest",
        at=values.get("at", "").strip()[:40],
        partition=values.get("partition", "").strip()[:7],
        key=values.get("key", "")[:TEXT_CHARS_MAX],
        text=values.get("text", "")[:TEXT_CHARS_MAX],
        is_next="places" in values,
    )


def query_of(topic: str, asked: Asked, places: str) -> Query:
    """Raises InvalidError(INVALID_REQUEST)."""
    partition = asked.partition
    if partition and not (partition.isascii() and partition.isdigit()):
        raise InvalidError(Reason.INVALID_REQUEST, f"not a partition, expected a number. value=`{partition}`")
    if asked.start in ("offset", "time") and not asked.at and not asked.is_next:
        raise InvalidError(Reason.INVALID_REQUEST, f"write the {asked.start} to begin at")
    return Query(
        topic=topic,
        partition=int(partition) if partition else None,
        start=asked.start,
        at=asked.at,
        wanted=Wanted(key=_bytes_of(asked.key), text=_bytes_of(asked.text)),
        places=places_of(places),
    )


def _bytes_of(text: str) -> bytes | None:
    """What a person looks for: text, or ``0x`` and hex. None: anything."""
    if text.startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            pass  # a text that only begins so
    return text.encode("utf-8", "surrogatepass") if text else None


class MessagePages:
    """The answers under ``/topics/NAME/messages``.

    Args:
        pace: of this broker.
    """

    def __init__(self, room: Room, pace: Pace) -> None:
        self._room, self._pace = room, pace
        self._framed = Framed(room.entrance.schema_registry, pace.now_s)
        self._making = asyncio.Lock()
        self._kept: tuple[Found, str] = ([], "")
        """What a live view has shown last, and its HTML."""

    async def messages(self, request: Request) -> Response:
        """One page of messages, in HTML."""
        hand, topic, asked = await self._room.hand(request), request.path_params["name"], asked_of(request)
        page, found, trouble, status = Messages(), "", "", 200
        is_read = is_asked_here(request)
        headers = {POLL: f"{self._pace.live_pause_s() * 1000:.0f}"} if POLL in request.headers else {}
        if is_read:
            try:
                query = query_of(topic, asked, request.query_params.get("places", ""))
                page = await Reader(hand.inner, hand.visitor.client, self._pace).page(query)
                if page.is_quiet and headers:
                    return Response(status_code=204, headers=headers)
                records, unasked = await self._framed.decoded(page.found)
                page.troubles += [unasked] if unasked else []
                found = await self._html(records, is_live=asked.start == "live")
            except HeadgateError as error:
                trouble, status = sentence(error), refusal(error).status_code
        mode = "live" if asked.start == "live" else "search" if asked.is_search else "page"
        response = await self._room.page(
            "messages",
            self._room.entrance.known(hand.visitor),
            status,
            topic=topic,
            asked=asked,
            starts=STARTS,
            address=asked.address,
            page=None if trouble or not is_read else page,
            places=places_text(page.places),
            rows=found,
            mode=mode,
            is_read=is_read,
            trouble=trouble,
        )
        response.headers.update(headers)
        return response

    async def _html(self, found: Found, *, is_live: bool) -> str:
        """Messages as they are shown. Those of a live view are made once for all views that show the same ones."""
        if not is_live:
            # Laying out JSON and hex takes milliseconds.
            return await self._room.render("rows", rows=await asyncio.get_running_loop().run_in_executor(None, rows, found))
        async with self._making:
            if found != self._kept[0]:
                html = await self._html(found, is_live=False)
                if sum(_size_of(record) for _, record in found) > KEPT_BYTES_MAX:
                    return html
                self._kept = found, html
            return self._kept[1]

    async def download(self, request: Request) -> Response:
        """Messages as lines of JSON."""
        hand, topic, asked = await self._room.hand(request), request.path_params["name"], asked_of(request)
        if not is_asked_here(request):
            raise InvalidError(Reason.NOT_AUTHORIZED, "a page of another website asks for the download")
        if asked.start == "live":
            raise InvalidError(Reason.INVALID_REQUEST, "a live view has no end: choose another beginning for the download")
        query, reader = replace(query_of(topic, asked, ""), is_dump=True), Reader(hand.inner, hand.visitor.client, self._pace)
        first = await reader.page(query)  # its errors still have a status
        return _Lines(_lines(reader, self._framed, query, first), f"{topic[:100]}.jsonl")


async def _lines(reader: Reader, framed: Framed, query: Query, page: Messages) -> AsyncIterator[bytes]:
    """All messages from the first page on, within limits. The last line says that there are more."""
    count = size = 0
    said = ""
    while True:
        records, unasked = await framed.decoded(page.found)
        if unasked and unasked != said:
            said = unasked
            yield json_note(unasked)
        for first in range(0, len(records), LINES_PER_TURN):
            part = b"".join(json_line(query.topic, number, record) for number, record in records[first : first + LINES_PER_TURN])
            size += len(part)
            yield part
            await asyncio.sleep(0)
        count += len(page.found)
        for number, low, high, why in page.unread:
            yield json_note(f"partition {number}, offsets {low} to {high - 1} left out: {why}")
        for trouble in page.troubles:
            yield json_note(f"some messages are missing: {trouble}")
        if page.is_end:
            return
        if count >= LINES_MAX or size >= DOWNLOAD_BYTES_MAX:
            yield json_note(f"there are more messages: a download ends after {LINES_MAX:,} or {DOWNLOAD_BYTES_MAX >> 20} MiB")
            return
        query = replace(query, places=page.places)
        page = await reader.page(query)


def json_note(text: str) -> bytes:
    return msgspec.json.encode({"headgate": text}) + b"\n"


class _Lines(Response):
    """A download, within a time."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncIterator[bytes], name: str) -> None:
        safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)
        super().__init__(headers={"content-disposition": f'attachment; filename="{safe}"'})
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(wait_gone(receive), name="download-gone")
        writing = asyncio.create_task(self._write(send), name="download")
        try:
            # A download that is cut off is shown as failed: that is better than a file that looks whole.
            await asyncio.wait((gone, writing), return_when=asyncio.FIRST_COMPLETED, timeout=DOWNLOAD_S)
        finally:
            await end_tasks((gone, writing))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for part in self._lines:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except HeadgateError as error:
            text = f"the download ended early: {error.message}"
            await send({"type": "http.response.body", "body": json_note(text), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _size_of(record: Record) -> int:
    return sum(len(part or b"") for part in (record.key, record.value, *chain.from_iterable(record.headers)))
