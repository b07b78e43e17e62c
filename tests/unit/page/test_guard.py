"""Host names under which the page is served, and the form of errors.

Runs: the routes on Starlette's test client, without a broker behind them. A mismatch means that a page on the web can read the
cluster's topics through a name of its own (DNS rebinding), or that a person or a probe with a good name is sent away.
"""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import Access, User
from headgate.broker.cluster.acl import Acl, Operation, Pattern, Permission, Resource
from headgate.broker.engine.engine import Engine
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.metrics import Metrics
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.access.security import Security
from headgate.broker.server.audit.audit import Audit
from headgate.broker.server.http.app import HttpBackend, create_app, doors, make_pages
from headgate.broker.server.http.guard import HEADERS, KnownHosts
from headgate.broker.server.http.page.pages import Pages
from headgate.broker.store.memory import MemoryStore
from tests.unit.page.asgi import get

GOOD = [
    "127.0.0.1:9090", "10.1.2.3", "[::1]:9090", "[fe80::1]", "localhost", "LOCALHOST:9090", "web.localhost:1",
    "broker-1.example:9090", "broker-2.example", "proxy.example", "proxy.example.", "",
]  # fmt: skip
BAD = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9090", "broker-1.example.evil", "1.2.3", "xn--localhost"]


@pytest.mark.parametrize("host", GOOD)
def test_own_names_and_addresses_are_served(host: str) -> None:
    assert hosts().knows(host)


@pytest.mark.parametrize("host", BAD)
def test_other_names_are_not(host: str) -> None:
    assert not hosts().knows(host)


def test_a_proxy_may_check_the_names() -> None:
    assert KnownHosts("*", (), lambda: ()).knows("evil.example")


def hosts() -> KnownHosts:
    return KnownHosts(" proxy.example, other.example", ("broker-1.example", ""), lambda: ["broker-2.example"])


def app(settings: Settings | None = None, security: Security | None = None) -> tuple[Starlette, Pages]:
    backend = HttpBackend(
        settings=settings or Settings(),
        metrics=Metrics(),
        turns=Turns(lambda: 0.0),
        hosts=lambda: (),
        not_ready=lambda: "starting",
        line=lambda: "headgate broker <1>",
        views=lambda: None,
    )
    pages = make_pages(backend, security)
    return create_app(backend, pages), pages


async def test_only_pages_with_the_clusters_content_ask_for_the_name() -> None:
    application, pages = app()
    backend = HttpBackend(
        settings=Settings(),
        metrics=Metrics(),
        turns=Turns(lambda: 0.0),
        hosts=tuple,
        not_ready=lambda: None,
        line=str,
        views=lambda: None,
    )
    for door in doors(backend, pages):
        path = door.path.replace("{name}", "page.css").replace("{id}", "x").replace("{act}", "x")
        answer = await get(application, path, host="evil.example", method=door.method)
        if door.access in ("open", "read", "hands"):
            assert answer.status == 421 and "http_allowed_hosts" in answer.text, path
        else:
            assert answer.status != 421, path
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path


async def test_before_the_broker_has_joined() -> None:
    application, _ = app()
    page = await get(application, "/")
    assert page.status == 503 and "headgate broker &lt;1&gt;" in page.text and page.headers["refresh"] == "2"
    api = await get(application, "/api/cluster")
    assert api.status == 503 and api.json["error"]["reason"] == "not_ready"
    assert (await get(application, "/floods/a%20b")).headers["location"] == "/#flood-a%20b"


async def test_nothing_can_be_changed() -> None:
    application, _ = app()
    assert (await get(application, "/api/cluster", method="POST")).status == 405
    assert (await get(application, "/", method="DELETE")).status == 405
    assert (await get(application, "/static/../app.py")).status == 404
    assert (await get(application, "/static/nosuch")).status == 404


async def test_files_of_the_page_may_be_kept() -> None:
    application, _ = app()
    script = await get(application, "/static/page.js")
    assert script.status == 200 and "immutable" in script.headers["cache-control"]
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize("authorization", ["none", "acl"])
async def test_where_kafka_clients_log_in_http_asks_for_a_login_too(authorization: str) -> None:
    """A stranger is not even `User:ANONYMOUS`: a permission of `User:*` is one of all who have logged in."""
    settings = Settings.from_values({"kafka_protocol": "sasl_plaintext", "authorization": authorization})
    lines: list[dict[str, Any]] = []
    security = Security(settings, lambda: 0.0, lambda: 0, None, Audit(1, lambda: 0, lambda row, _: lines.append(row)))
    everyone = Acl(
        resource=Resource.CLUSTER, name="*", pattern=Pattern.LITERAL, principal="User:*", host="*", operation=Operation.ALL,
        permission=Permission.ALLOW,
    )  # fmt: skip
    access = Access([User(name="alice", verifiers=scram.verifiers("right", bytes))], [everyone])
    await security.use(cast(Engine, SimpleNamespace(manifest=SimpleNamespace(access=access), store=MemoryStore())), {})
    application, _ = app(settings, security)
    right = "Basic " + base64.b64encode(b"alice:right").decode()
    for path in ("/api/cluster", "/metrics", "/"):
        refused = await get(application, path)
        assert refused.status == 401 and "www-authenticate" in refused.headers, path
        assert (await get(application, path, authorization="Basic " + base64.b64encode(b"alice:wrong").decode())).status == 401
        assert (await get(application, path, authorization=right)).status in (200, 503), path
    assert (await get(application, "/healthz")).status == 200
    assert [line["act"] for line in lines[:2]] == ["/api/cluster", "/api/cluster"]
