"""One request to an ASGI application, without a server."""

from __future__ import annotations

import json
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
    app: ASGIApp, path: str, *, host: str = "127.0.0.1", method: str = "GET", query: str = "", authorization: str = ""
) -> Answer:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", host.encode())] + ([(b"authorization", authorization.encode())] if authorization else [])
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "root_path": "",
        "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "headers": headers,
        "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2),
    }  # fmt: skip
    await app(scope, receive, send)
    head = sent[0]
    text = b"".join(one.get("body", b"") for one in sent[1:]).decode()
    return Answer(head["status"], {name.decode(): value.decode() for name, value in head["headers"]}, text)
