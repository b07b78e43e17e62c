"""The Iceberg REST catalog, read-only: config, namespaces, tables (https://iceberg.apache.org/rest-catalog-spec/).

There is one namespace, `headgate`, with one table for each topic that is not the cluster's own. Known deviations: nothing can be
created or changed; listings have one page; metrics that clients report are not accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.broker.cluster.objects import Topic
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.engine.base import keys
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.http.guard import Answer, json

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine

NAMESPACE = "headgate"
ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
]


class Catalog:
    """The answers under ``/iceberg``.

    Args:
        engine: returns this broker's engine; None until it has joined its cluster.
    """

    def __init__(self, engine: Callable[[], Engine | None]) -> None:
        self._find_engine = engine

    async def config(self, request: Request) -> Response:
        return json({"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS})

    async def namespaces(self, request: Request) -> Response:
        return json({"namespaces": [] if request.query_params.get("parent") else [[NAMESPACE]]})

    async def namespace(self, request: Request) -> Response:
        return self._no_namespace(request) or _exists(request) or json({"namespace": [NAMESPACE], "properties": {}})

    async def tables(self, request: Request) -> Response:
        engine = self._find_engine()
        if engine is None:
            return _not_ready()
        names = sorted(name for name in engine.manifest.topics if not is_internal(name))
        found = [{"namespace": [NAMESPACE], "name": name} for name in names]
        return self._no_namespace(request) or json({"identifiers": found})

    async def table(self, request: Request) -> Response:
        engine = self._find_engine()
        if engine is None:
            return _not_ready()
        name = request.path_params["table"]
        topic = engine.manifest.topics.get(name)
        if topic is None or is_internal(name):
            return self._no_namespace(request) or _error(
                404, "NoSuchTableException", f"Table does not exist: {NAMESPACE}.{name[:300]}"
            )
        return self._no_namespace(request) or _exists(request) or await self._load(engine, topic)

    async def _load(self, engine: Engine, topic: Topic) -> Response:
        try:
            loaded = await engine.tables.load(topic)
        except HeadgateError as error:
            return _error(503, "ServiceUnavailableException", error.message)
        file = keys.table_metadata(topic.id, loaded.version).removeprefix(keys.topic_prefix(topic.id))
        return json(
            {
                "metadata-location": f"{loaded.location}{file}",
                "metadata": msgspec.Raw(loaded.data),
                "config": _file_settings(engine.store.url),
            }
        )

    @staticmethod
    def _no_namespace(request: Request) -> Response | None:
        name = request.path_params["namespace"]
        return None if name == NAMESPACE else _error(404, "NoSuchNamespaceException", f"Namespace does not exist: {name[:300]}")


def catalog_paths(catalog: Catalog) -> list[tuple[str, Answer, str]]:
    """Paths, their answers, and what they are for."""
    base, tables = "/iceberg/v1", "/iceberg/v1/namespaces/{namespace}/tables"
    return [
        (f"{base}/config", catalog.config, "Iceberg REST catalog, read-only: its endpoints"),
        (f"{base}/namespaces", catalog.namespaces, "the only namespace, `headgate`"),
        (f"{base}/namespaces/{{namespace}}", catalog.namespace, "the namespace"),
        (tables, catalog.tables, "the topics, as tables"),
        (f"{tables}/{{table}}", catalog.table, "the newest metadata of a topic's table"),
    ]


def _exists(request: Request) -> Response | None:
    """The answer to HEAD for what exists; None for GET."""
    return Response(status_code=204) if request.method == "HEAD" else None


def _file_settings(store_url: str) -> dict[str, str]:
    """What readers need to find the files of an S3 store. Credentials are the readers' own."""
    if not store_url.startswith("s3://"):
        return {}
    options = dict(parse_qsl(urlsplit(store_url).query))
    found: dict[str, str] = {}
    if "endpoint" in options:
        found |= {"s3.endpoint": options["endpoint"], "s3.path-style-access": "true"}
    if "region" in options:
        found |= {"s3.region": options["region"], "client.region": options["region"]}
    return found


def _not_ready() -> Response:
    return _error(503, "ServiceUnavailableException", "this broker has not joined its cluster yet")


def _error(status: int, kind: str, message: str) -> Response:
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "code": status}}
    return json(body, status)
