"""The HTTP port's pages: one table of all paths, and who may see them.

`probe`   for load balancers and orchestrators: says nothing about the cluster's content, and is open to everyone.
`scrape`  for Prometheus, which may reach the broker under any name. With authorization: for clients that may describe the cluster,
          or for everyone with `http_metrics_open`.
`open`    the form to log in, and what it looks like: for everyone, under a name of this broker (`guard.py`).
`read`    the cluster's content, for people and programs: only under a name of this broker. With authorization: for clients that may
          describe the cluster.
`hands`   messages, and what a person changes: only under a name of this broker, for a person who is known (`hands/entrance.py`).
          Each call that is made for this person asks for its rights.

All paths but the two of POST are read-only. A path that is not in the table does not exist.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.metrics import Metrics
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.http.api import Api
from headgate.broker.server.http.guard import Answer, KnownHosts, guarded
from headgate.broker.server.http.hands.entrance import Entrance
from headgate.broker.server.http.hands.hands import Hands
from headgate.broker.server.http.hands.reading import Pace
from headgate.broker.server.http.hands.room import Room
from headgate.broker.server.http.hands.sessions import Sessions
from headgate.broker.server.http.iceberg import Catalog, catalog_paths
from headgate.broker.server.http.page.pages import Pages
from headgate.broker.server.http.server import HttpServer
from headgate.broker.server.view.cluster_view import Views
from headgate.broker.server.view.shared import Shared

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.server.access.security import Security
    from headgate.broker.server.grpc.inner import InnerCalls
    from headgate.broker.server.net.tls import Certificates

PAUSE_PER_SCRAPE = 4.0
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Door:
    """One path: its access, its answer, and what it is for."""

    path: str
    access: Literal["probe", "scrape", "open", "read", "hands"]
    answer: Answer
    purpose: str
    method: Literal["GET", "POST"] = "GET"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBackend:
    """What stands behind the HTTP port.

    `hosts`: returns the host names of the cluster's brokers. `not_ready`: returns the reason why the broker does not serve at the
    moment, or None. `line`: one line about the broker. `views`: returns what there is to see; None until the broker has joined
    its cluster. `engine`: returns its engine, or None until then. `inner`: returns its calls in a person's name, likewise.
    """

    settings: Settings
    metrics: Metrics
    turns: Turns
    hosts: Callable[[], Iterable[str]]
    not_ready: Callable[[], str | None]
    line: Callable[[], str]
    views: Callable[[], Views | None]
    engine: Callable[[], Engine | None] = lambda: None
    inner: Callable[[], InnerCalls | None] = lambda: None


def doors(backend: HttpBackend, pages: Pages) -> list[Door]:
    """All paths of the HTTP port."""
    api = Api(backend.views)
    hands = Hands(Room(entrance=pages.entrance, inner=backend.inner, render=pages.render), Pace(backend.turns.now))

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(request: Request) -> Response:
        reason = backend.not_ready()
        return PlainTextResponse("ready\n") if reason is None else PlainTextResponse(f"not ready: {reason}\n", 503)

    async def scrape() -> bytes:
        await backend.metrics.prepare()
        return await backend.turns.begin().run(backend.metrics.render_steps())

    # Scrapers that come at once share one text, and it is made for at most a fifth of the time.
    scraped = Shared(scrape, backend.turns.now, 0.0, PAUSE_PER_SCRAPE)

    async def metrics_text(request: Request) -> Response:
        return Response(await scraped.get(), media_type=METRICS_CONTENT_TYPE)

    return [
        Door("/", "read", pages.front, "the page"),
        Door("/topics/{name}", "read", pages.topic, "the page of one topic: its segments and partitions"),
        Door("/floods/{id}", "read", pages.flood, "stable address of a flood; leads to its place on the page, `/#flood-ID`"),
        *_hands_doors(hands),
        Door("/static/{name}", "open", pages.static, "the page's styles and script"),
        Door("/api/cluster", "read", api.cluster, "brokers, floods, gates, capacity over time, and decisions as JSON"),
        Door("/api/topics", "read", api.topics, "topics with segments and rates; `search`, `sort` (name, busiest), `page`"),
        Door("/api/topics/{name}", "read", api.topic, "one topic with its partitions and offsets"),
        Door(
            "/api/topics/{name}/gates/{id}",
            "read",
            api.gate,
            "one gate with its state (open, filled, released); 404 before it opens",
        ),
        Door("/api/groups", "read", api.groups, "consumer groups, the greatest lag first; `search`, `page`"),
        Door("/api/floods", "read", api.floods, "floods with their progress, and gates with their windows"),
        Door("/api/floods/{id}", "read", api.flood, "one flood and its gate"),
        Door("/api/decisions", "read", api.decisions, "what the leader did and why, the newest first"),
        Door("/api/events", "read", pages.events, "server-sent events: the parts of the page that changed, as HTML"),
        *(Door(path, "read", answer, purpose) for path, answer, purpose in catalog_paths(Catalog(backend.engine))),
        Door("/healthz", "probe", healthz, "200 while the process runs its event loop"),
        Door("/readyz", "probe", readyz, "200 when clients are served and their records become durable; else 503 and the reason"),
        Door("/metrics", "scrape", metrics_text, "the metrics, for Prometheus"),
    ]


def _hands_doors(hands: Hands) -> list[Door]:
    return [
        Door("/topics/{name}/messages", "hands", hands.messages.messages, "messages of a topic, by place, time, key or text; live"),
        Door("/topics/{name}/messages.jsonl", "hands", hands.messages.download, "the same as lines of JSON, up to 100,000"),
        Door(
            "/topics/{name}/settings",
            "hands",
            hands.topics.settings,
            "settings of a topic with their meanings; what can be changed",
        ),
        Door("/new-topic", "hands", hands.topics.new, "the form of a new topic"),
        Door("/group", "hands", hands.groups.group, "a consumer group, `id`: members, positions, lag; previews of new positions"),
        Door("/gate", "hands", hands.capacity.gate, "a gate, `topic` and `id`: its windows; to release it"),
        Door("/reservations", "hands", hands.capacity.reservations, "reservations of brokers; to open one and to give it back"),
        Door("/broker", "hands", hands.capacity.broker, "a broker, `id`: its segments; to drain it"),
        Door("/access", "hands", hands.access.access, "users and rules, `search` or `user`; to create, change and delete them"),
        Door("/acts/{act}", "hands", hands.act, "the forms of these pages", "POST"),
        Door("/login", "open", hands.login, "the form to log in"),
        Door("/login", "open", hands.log_in, "its answer: a session", "POST"),
    ]


def make_pages(backend: HttpBackend, security: Security | None = None, *, port: int = 0, is_tls: bool = False) -> Pages:
    """The pages, and the entrance to them.

    Args:
        security: None: every client may do everything.
        port: this port.
    """
    entrance = Entrance(backend.settings, security, Sessions(backend.turns.now), port, is_tls=is_tls)
    return Pages(backend.views, backend.turns, backend.line, entrance)


def create_app(backend: HttpBackend, pages: Pages) -> Starlette:
    """The application."""
    settings, entrance = backend.settings, pages.entrance
    room = Room(entrance=entrance, inner=backend.inner, render=pages.render)
    hosts = KnownHosts(settings.http_allowed_hosts, (settings.host, settings.advertised_host), backend.hosts)
    asking = ("read",) if settings.http_metrics_open else ("read", "scrape")
    named = ("open", "read", "hands")
    routes = [
        Route(
            door.path,
            guarded(
                door.answer,
                hosts if door.access in named else None,
                entrance.admit if door.access in asking else None,
                room.show_error if door.access in named else None,
            ),
            methods=[door.method],
        )
        for door in doors(backend, pages)
    ]
    return Starlette(routes=routes)


class HttpPort:
    """The HTTP port: its pages on a listening socket. `start`, then `close`."""

    def __init__(
        self,
        backend: HttpBackend,
        listening: socket.socket,
        certificates: Certificates | None = None,
        security: Security | None = None,
    ) -> None:
        port, is_tls = listening.getsockname()[1], certificates is not None
        self.pages = make_pages(backend, security, port=port, is_tls=is_tls)
        sessions = self.pages.entrance.sessions
        app, context = create_app(backend, self.pages), self._context(backend.settings, certificates)
        self._server = HttpServer(app, listening, context, *(() if security is None else (security.failures.failed,)))
        hub = self.pages.hub
        backend.metrics.gauge("headgate_http_open_pages", "pages of this broker that are open in browsers", lambda: len(hub.pages))
        backend.metrics.gauge("headgate_http_sessions", "people who are logged in to this broker's page", lambda: len(sessions))
        backend.metrics.counter("headgate_http_sent_parts", "changed parts that were sent to open pages", lambda: hub.events)

    @staticmethod
    def _context(settings: Settings, certificates: Certificates | None) -> Callable[[], ssl.SSLContext] | None:
        if certificates is None:
            return None
        # Browsers and probes have no certificate: a required one is asked for, and `access` decides.
        client_auth = "none" if settings.tls_client_auth == "none" else "requested"
        return lambda: certificates.context(client_auth)

    def start(self) -> None:
        """Start to serve."""
        self._server.start()

    async def close(self) -> None:
        """End the streams of open pages, stop listening, and close."""
        await self.pages.close()
        await self._server.close()
