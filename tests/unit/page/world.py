"""A broker in memory behind the pages of its HTTP port, without ports: requests go to the application itself."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import User
from headgate.broker.cluster.acl import Acl, Operation, Pattern, Permission, Resource
from headgate.broker.cluster.edits.access import AddAcls, PutUser
from headgate.broker.node import Node
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import ADMIN_PASSWORD, Settings, Value
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.listeners import knows_clients
from headgate.broker.runtime.metrics import Metrics
from headgate.broker.server.access.security import Security
from headgate.broker.server.audit.audit import Audit
from headgate.broker.server.grpc.server import GrpcServer
from headgate.broker.server.http.app import HttpBackend, create_app, make_pages
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from tests.support import nodes
from tests.unit.page.asgi import Answer, get

HOST = "127.0.0.1:9090"
LOGINS = {"kafka_protocol": "sasl_plaintext", "authorization": "acl"}
"""Settings of a cluster whose users log in."""


class World(nodes.Offline):
    """One broker. `lines`: of its audit log."""

    def __init__(self, **values: Value) -> None:
        self.settings = Settings.from_values({"wal_flush_interval_ms": 1, "num_partitions": 1, **values})
        self.failures: list[HeadgateError] = []
        self.lines: list[dict[str, Any]] = []
        self.now_s = 0.0
        """Of sessions."""

    async def start(self) -> None:
        self.node = nodes.make(self.settings, MemoryStore(MemoryObjects()), Clock(), self.failures.append, self)
        self.engine = self.node.engine
        await self.node.start()
        await self.node.groups.loaded()

    async def open(self, node: Node) -> None:
        clock = node.engine.clock
        audit, security = Audit(1, clock.now_ms, lambda row, _: self.lines.append(row)), None
        if knows_clients(self.settings):
            security = Security(self.settings, clock.monotonic, clock.now_ms, None, audit)
            await security.use(node.engine, {ADMIN_PASSWORD: "right"})
        self.server = GrpcServer(node, self.settings, security=security, audit=audit)
        backend = HttpBackend(
            settings=self.settings, metrics=Metrics(), turns=node.engine.turns, hosts=tuple, not_ready=lambda: None, line=str,
            views=lambda: self.server.views, engine=lambda: node.engine, inner=lambda: self.server.inner,
        )  # fmt: skip
        self.pages = make_pages(backend, security, port=9090)
        self.sessions = self.pages.entrance.sessions
        self.app = create_app(backend, self.pages)

    async def close(self) -> None:
        await self.pages.close()
        await self.server.views.close()
        await nodes.end(self.node)
        assert self.failures == []

    async def add_user(self, name: str, *rules: tuple[Resource, str, Operation]) -> None:
        """A user with the password `right`."""
        verifiers = scram.verifiers("right", bytes)
        await self.engine.change_access(PutUser(User(name=name, verifiers=verifiers, created_ms=1), new=True))
        acls = tuple(
            Acl(
                resource=resource, name=of, pattern=Pattern.LITERAL, principal=f"User:{name}", host="*", operation=operation,
                permission=Permission.ALLOW,
            )
            for resource, of, operation in rules
        )  # fmt: skip
        if acls:
            await self.engine.change_access(AddAcls(list(acls)))

    async def fill(self, topic: str, partition: int, *batches: bytes) -> None:
        log = self.engine.partition(self.engine.topic(topic), partition)
        for batch in batches:
            self.engine.append(log, memoryview(bytearray(batch)))
        await self.engine.durable()

    def browser(self) -> Browser:
        return Browser(self)


class Browser:
    """What a browser keeps and sends: cookies, where a form is from, the token of the page that it shows."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cookies: dict[str, str] = {}
        self.csrf = ""
        self.extra: dict[str, str] = {}
        """Further headers, or others instead of a browser's own."""
        self.address = "127.0.0.1"
        self.host = HOST

    async def get(self, path: str, **query: object) -> Answer:
        return await self._send(path, "GET", urlencode(query), ())

    async def post(self, path: str, **fields: object) -> Answer:
        """Send a form, with the token of the last page."""
        body = urlencode({"csrf": self.csrf, **fields}).encode()
        return await self._send(path, "POST", "", (body[:7], body[7:]))

    async def log_in(self, user: str, password: str = "right") -> Answer:
        return await self.post("/login", user=user, password=password, next="/")

    async def _send(self, path: str, method: str, query: str, body: tuple[bytes, ...]) -> Answer:
        headers = {"accept": "text/html", "sec-fetch-site": "same-origin"}
        if self.cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method == "POST":
            headers |= {"origin": f"http://{self.host}", "content-type": "application/x-www-form-urlencoded"}
        answer = await get(
            self._world.app, path, method=method, query=query, body=body, client=self.address, host=self.host,
            headers={name: value for name, value in {**headers, **self.extra}.items() if value},
        )  # fmt: skip
        if found := re.search(r'name="csrf" value="([^"]+)"', answer.text):
            self.csrf = found[1]
        if given := answer.headers.get("set-cookie"):
            name, _, value = given.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "Max-Age=0" in given:
                del self.cookies[name]
        return answer
