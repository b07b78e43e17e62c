"""The cluster as JSON, read-only: what the page shows, for programs. The types are in `view/model.py`."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.server.http.guard import json
from headgate.broker.server.http.page.pages import query_of
from headgate.broker.server.view.cluster_view import Views


class Api:
    """The answers under ``/api``.

    Args:
        views: returns what there is to see; None until the broker has joined its cluster.
    """

    def __init__(self, views: Callable[[], Views | None]) -> None:
        self._find_views = views

    def _views(self) -> Views:
        views = self._find_views()
        if views is None:
            raise RetryError(Reason.NOT_READY, "this broker has not joined its cluster yet")
        return views

    async def cluster(self, request: Request) -> Response:
        return json(await self._views().cluster())

    async def topics(self, request: Request) -> Response:
        query = query_of(request)
        return json(await self._views().topics(query.search, query.sort, query.page))

    async def topic(self, request: Request) -> Response:
        name = request.path_params["name"]
        topic, partitions = await self._views().topic(name)
        return json({"topic": topic, "partitions": partitions, "groups": await self._views().readers(name)})

    async def gate(self, request: Request) -> Response:
        return json(self._views().gate(request.path_params["name"], request.path_params["id"]))

    async def groups(self, request: Request) -> Response:
        query = query_of(request)
        return json(await self._views().groups(query.search, query.page))

    async def floods(self, request: Request) -> Response:
        cluster = await self._views().cluster()
        return json({"floods": cluster.floods, "gates": cluster.gates})

    async def flood(self, request: Request) -> Response:
        flood_id = request.path_params["id"]
        cluster = await self._views().cluster()
        floods = [flood for flood in cluster.floods if flood.id == flood_id]
        gates = [gate for gate in cluster.gates if gate.id == flood_id]
        if not floods and not gates:
            raise InvalidError(Reason.NOT_FOUND, f"no flood or gate of this id is remembered here. flood=`{flood_id[:100]}`")
        return json({"floods": floods, "gates": gates})

    async def decisions(self, request: Request) -> Response:
        return json({"decisions": (await self._views().cluster()).decisions})
