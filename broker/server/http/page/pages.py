"""The answers of the page: HTML and server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from headgate.broker.runtime.tasks import load
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.http.page.hub import EventStream, Hub, Parts, Query
from headgate.broker.server.view.cluster_view import Views

if TYPE_CHECKING:
    from headgate.broker.server.http.hands.entrance import Entrance
    from headgate.broker.server.http.page.render import Renderer

TEXT_CHARS_MAX = 249
PAGE_MAX = 1_000_000
SENTENCES = {"topic": "The topic and its messages are deleted.", "group": "The group and its positions are deleted."}
"""What a person did before coming here."""


def query_of(request: Request) -> Query:
    """What a page looks at, from its address. Values that make no sense count as missing."""
    values = request.query_params
    return Query(
        search=values.get("search", "")[:TEXT_CHARS_MAX],
        sort=values.get("sort", "")[:20],
        page=_number(values.get("page")),
        group=values.get("group", "")[:TEXT_CHARS_MAX],
        group_page=_number(values.get("group_page")),
    )


def _number(text: str | None) -> int:
    return min(int(text), PAGE_MAX) if text is not None and text.isascii() and text.isdigit() and len(text) < 8 else 1


class Pages:
    """The page of one broker.

    Args:
        views: returns what there is to see; None until the broker has joined its cluster.
        turns: gives the page's work its turns on the loop.
        line: one line about this broker, for the time before it has joined.
        entrance: knows who looks at a page.
    """

    def __init__(self, views: Callable[[], Views | None], turns: Turns, line: Callable[[], str], entrance: Entrance) -> None:
        self.entrance = entrance
        self._views = views
        self._turns = turns
        self._line = line
        self._renderer: Renderer | None = None
        self._making = asyncio.Lock()
        self.hub = Hub(self._make, turns.now)

    async def close(self) -> None:
        await self.hub.close()

    # -- answers

    async def front(self, request: Request) -> Response:
        """The page."""
        renderer, views = await self._ready(), self._views()
        if views is None:
            return HTMLResponse(renderer.part("starting", line=self._line()), 503, headers={"refresh": "2"})
        query = query_of(request)
        parts = (await self._make({query}))[query]
        cluster = await views.cluster()
        name = cluster.cluster_name or cluster.cluster_id
        return HTMLResponse(
            renderer.part(
                "page",
                parts=parts,
                query=query,
                title=f"Headgate broker {cluster.broker_id}",
                cluster_name=name,
                who=await self.entrance.who(request),
                done=SENTENCES.get(request.query_params.get("done", ""), ""),
            )
        )

    async def topic(self, request: Request) -> Response:
        """One topic with its segments and partitions."""
        renderer, views = await self._ready(), self._views()
        if views is None:
            return RedirectResponse("/", 303)
        name = request.path_params["name"]
        views.expect_reads(name)
        topic, partitions = await views.topic(name)
        readers, who = await views.readers(name), await self.entrance.who(request)
        return HTMLResponse(renderer.part("topic", topic=topic, partitions=partitions, readers=readers, who=who))

    async def flood(self, request: Request) -> Response:
        """A stable address of a flood: its place on the page."""
        return RedirectResponse(f"/#flood-{quote(request.path_params['id'], safe='')}", 303)

    async def events(self, request: Request) -> Response:
        """The server-sent events of one page."""
        return EventStream(self.hub, query_of(request))

    async def static(self, request: Request) -> Response:
        """A file of the page. Its address has the digest of its content, so browsers may keep it."""
        found = (await self._ready()).static.get(request.path_params["name"])
        if found is None:
            return Response("no such file\n", 404, media_type="text/plain")
        data, kind = found
        return Response(data, media_type=kind, headers={"cache-control": "max-age=31536000, immutable"})

    # -- parts

    async def render(self, template: str, **values: object) -> str:
        """The HTML of a page. It is made in turns: fifty messages take milliseconds, which acks would wait for."""
        steps = (await self._ready()).steps(template, **values)
        return "".join([step async for step in self._turns.begin().each(steps)])

    async def _ready(self) -> Renderer:
        async with self._making:  # many may open their page at once
            if self._renderer is None:
                self._renderer = await load(partial(_renderer, self.entrance.is_on))
        return self._renderer

    async def _make(self, queries: set[Query]) -> Mapping[Query, Parts]:
        """The parts of the page for some queries. Each part is made in one turn of the loop."""
        renderer, views = await self._ready(), self._views()
        if views is None:
            return {}
        cluster = await views.cluster()
        turn = self._turns.begin()
        shared = {name: renderer.shared(name, cluster) async for name in turn.each(renderer.shared_parts)}
        made: dict[Query, Parts] = {}
        for query in queries:
            topics = await views.topics(query.search, query.sort, query.page)
            groups = await views.groups(query.group, query.group_page)
            await turn.pause()
            parts = {**shared, "topics": renderer.part("topics", topics=topics, query=query)}
            await turn.pause()
            parts["groups"] = renderer.part("groups", groups=groups, query=query)
            made[query] = parts
        return made


def _renderer(has_hands: bool) -> Renderer:
    """Imports the template engine and reads the page's files."""
    from headgate.broker.server.http.page.render import Renderer

    return Renderer(has_hands)
