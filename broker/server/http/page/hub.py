"""Keeps open pages up to date: one loop for all of them, which runs while a page is open.

Once a second it makes the parts of the page anew. Each page then gets the parts that differ from what it has. Nothing is queued:
a page that reads slowly skips what changed in between. The number of pages is bounded, and so is the size of a part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import end_tasks, known
from headgate.broker.server.http.connection import wait_gone

logger = get_logger(__name__)

PAGES_MAX = 32
"""Open pages of one broker. The browsers of further ones try again after `RETRY_MS`."""
TICK_S = 1.0
TICK_PER_LOOK = 4.0
"""Pause between two looks, as a multiple of the last one's duration: pages never take more than a fifth of the broker's time."""
BEAT_S = 5.0
"""Longest silence towards a page: the page shows that it is up to date."""
SLOW_S = 30.0
"""A page that does not read for this long is dropped."""
RETRY_MS = 3000
SECONDS_MAX = 6 * 3600
"""Age at which a page is told to connect again, so that a forgotten proxy does not hold a place for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What one page looks at."""

    search: str = ""
    sort: str = ""
    page: int = 1
    group: str = ""
    group_page: int = 1


Parts = Mapping[str, str]
"""The HTML of each part of the page, by the id of its element."""
MakeParts = Callable[[set[Query]], Awaitable[Mapping[Query, Parts]]]


@dataclass(slots=True, eq=False)
class OpenPage:
    """One page. `has`: the parts that it was given."""

    query: Query
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    parts: Parts = field(default_factory=dict)
    has: dict[str, str] = field(default_factory=dict)

    def news(self) -> list[tuple[str, str]]:
        """The parts that the page lacks. It counts as having them from now on."""
        found = [(name, html) for name, html in self.parts.items() if self.has.get(name) != html]
        self.has.update(found)
        return found


class Hub:
    """The open pages of one broker.

    Args:
        make: makes the parts for some queries.
    """

    def __init__(self, make: MakeParts, now: Callable[[], float]) -> None:
        self.pages: set[OpenPage] = set()
        self.events = 0
        """Parts that were sent, since the start."""
        self._make = make
        self._now = now
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def open(self, query: Query) -> OpenPage:
        """A new page. Raises RetryError(OVERLOADED) if there are too many, RetryError(CLOSED) if the broker ends."""
        if self._is_over:
            raise RetryError(Reason.CLOSED, "this broker ends")
        if len(self.pages) >= PAGES_MAX:
            raise RetryError(Reason.OVERLOADED, f"too many pages are open at this broker. pages=`{len(self.pages)}`")
        page = OpenPage(query)
        self.pages.add(page)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pages")
        return page

    def leave(self, page: OpenPage) -> None:
        """The page is gone."""
        self.pages.discard(page)

    @property
    def is_over(self) -> bool:
        return self._is_over

    async def close(self) -> None:
        """End all streams."""
        self._is_over = True
        for page in self.pages:
            page.changed.set()
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> None:
        try:
            while self.pages and not self._is_over:
                began_s = self._now()
                try:
                    made = await self._make({page.query for page in self.pages})
                except HeadgateError as error:
                    logger.info("page_not_made", error=error.message)
                except Exception as error:  # noqa: BLE001  # an open page must not end the broker
                    known(error, "page")
                else:
                    for page in self.pages:
                        page.parts = made.get(page.query, page.parts)
                        page.changed.set()
                await asyncio.sleep(max(TICK_S, TICK_PER_LOOK * (self._now() - began_s)))
        finally:
            self._task = None


class EventStream(Response):
    """The server-sent events of one page: ``part`` with ``{"id", "html"}``, and ``beat`` after silence."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, query: Query) -> None:
        self._hub = hub
        self._page = hub.open(query)
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(wait_gone(receive), name="page-gone")
        writing = asyncio.create_task(self._write(send), name="page")
        try:
            await asyncio.wait((gone, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.leave(self._page)
            await end_tasks((gone, writing))

    async def _write(self, send: Send) -> None:
        with suppress(TimeoutError):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _send(send, f"retry: {RETRY_MS}\n\n".encode())
            now = asyncio.get_running_loop().time
            until_s = now() + SECONDS_MAX
            sent_s = now()
            while not self._hub.is_over and now() < until_s:
                self._page.changed.clear()
                news = self._page.news()
                for name, html in news:
                    await _send(send, b"event: part\ndata: " + msgspec.json.encode({"id": name, "html": html}) + b"\n\n")
                    self._hub.events += 1
                # A look that changed nothing sends nothing: silence is counted from the last event.
                if not news and now() - sent_s >= BEAT_S:
                    await _send(send, b"event: beat\ndata: .\n\n")
                elif not news:
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(sent_s + BEAT_S):
                            await self._page.changed.wait()
                    continue
                sent_s = now()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, data: bytes) -> None:
    """Raises TimeoutError if the page does not read."""
    async with asyncio.timeout(SLOW_S):
        await send({"type": "http.response.body", "body": data, "more_body": True})
