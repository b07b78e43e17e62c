"""One request to an ASGI application, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


async def get(
    app: ASGIApp,
    path: str,
    *,
    host: str = "127.0.0.1",
    method: str = "GET",
    query: str = "",
    authorization: str = "",
    headers: Mapping[str, str] | None = None,
    body: Iterable[bytes] = (),
    client: str = "127.0.0.1",
) -> Answer:
    """`body`: the parts in which it arrives. `client`: the address of the browser."""
    parts = iter(body)
    sent: list[Any] = []

    over = False

    async def receive() -> Any:
        nonlocal over
        if over:
            await asyncio.Event().wait()  # the browser stays
        part = next(parts, None)
        over = part is None
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    async def send(message: Any) -> None:
        sent.append(message)

    sent_headers = {"host": host, **({"authorization": authorization} if authorization else {}), **(headers or {})}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "root_path": "",
        "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent_headers.items()],
        "server": ("127.0.0.1", 1), "client": (client, 2),
    }  # fmt: skip
    await app(scope, receive, send)
    head = sent[0]
    text = b"".join(one.get("body", b"") for one in sent[1:]).decode()
    return Answer(head["status"], {name.decode(): value.decode() for name, value in head["headers"]}, text)
