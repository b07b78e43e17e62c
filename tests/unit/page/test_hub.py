"""Open pages: who gets what, and what bounds them.

Runs: the hub with a maker of parts that the test controls. A mismatch means that pages cost without limit, get parts twice, or
keep a broker from ending.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.broker.runtime.errors import RetryError
from headgate.broker.server.http.page import hub as hubs
from headgate.broker.server.http.page.hub import EventStream, Hub, Query


class Maker:
    """Makes what the test says."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {"head": "1"}
        self.asked: list[set[Query]] = []
        self.error: Exception | None = None

    async def __call__(self, queries: set[Query]) -> dict[Query, dict[str, str]]:
        self.asked.append(queries)
        if self.error is not None:
            raise self.error
        return {query: {**self.parts, "topics": query.search} for query in queries}


class Browser:
    """The other end of one stream."""

    def __init__(self, hub: Hub, query: Query) -> None:
        self.sent: list[bytes] = []
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self._stream = EventStream(hub, query)
        self.task = asyncio.create_task(self._stream({"type": "http"}, self._receive, self._send))

    async def _receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        self.sent.append(message.get("body", b""))
        self.arrived.set()

    async def until(self, text: str) -> None:
        async with asyncio.timeout(30):
            while text not in b"".join(self.sent).decode():
                self.arrived.clear()
                await self.arrived.wait()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "TICK_S", 0.01)
    monkeypatch.setattr(hubs, "BEAT_S", 0.02)


async def test_a_page_gets_what_changed_and_nobody_costs_nothing() -> None:
    maker = Maker()
    hub = Hub(maker, asyncio.get_running_loop().time)
    await asyncio.sleep(0.05)
    assert maker.asked == []
    browser = Browser(hub, Query(search="a"))
    await browser.until('"html":"a"')
    maker.parts["head"] = "2"
    await browser.until('{"id":"head","html":"2"}')
    await browser.until("event: beat")
    text = b"".join(browser.sent).decode()
    assert text.count('"id":"topics"') == 1, "a part that did not change is sent once"
    browser.gone.set()
    await browser.task
    assert not hub.pages
    await asyncio.sleep(0.05)
    looked = len(maker.asked)
    await asyncio.sleep(0.05)
    assert len(maker.asked) == looked, "without a page nothing is made"
    await hub.close()


async def test_pages_with_one_query_are_made_once() -> None:
    maker = Maker()
    hub = Hub(maker, asyncio.get_running_loop().time)
    browsers = [Browser(hub, Query(search=name)) for name in ("a", "b", "a")]
    for browser in browsers:
        await browser.until('"id":"topics"')
    assert {len(asked) for asked in maker.asked} <= {1, 2} and len(maker.asked[-1]) == 2
    await hub.close()
    await asyncio.gather(*(browser.task for browser in browsers))


async def test_pages_are_bounded_and_the_place_of_one_that_left_is_free() -> None:
    hub = Hub(Maker(), asyncio.get_running_loop().time)
    pages = [hub.open(Query()) for _ in range(hubs.PAGES_MAX)]
    with pytest.raises(RetryError, match="too many pages"):
        hub.open(Query())
    hub.leave(pages[0])
    hub.open(Query())
    await hub.close()
    with pytest.raises(RetryError, match="ends"):
        hub.open(Query())


async def test_a_page_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "SLOW_S", 0.05)
    maker = Maker()
    hub = Hub(maker, asyncio.get_running_loop().time)
    browser = Browser(hub, Query())
    await browser.until('"id":"head"')
    browser.reads.clear()
    maker.parts["head"] = "x" * 1000
    async with asyncio.timeout(30):
        await browser.task
    assert not hub.pages
    await hub.close()


async def test_a_failure_is_survived() -> None:
    maker = Maker()
    maker.error = RuntimeError("a mistake")
    hub = Hub(maker, asyncio.get_running_loop().time)
    browser = Browser(hub, Query())
    await browser.until("event: beat")
    maker.error = None
    await browser.until('"id":"head"')
    await hub.close()
    await browser.task
