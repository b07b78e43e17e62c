"""What all answers of the page's hands have: who asks, the calls in this person's name, and pages that tell of errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.server.grpc.inner import InnerCalls
from headgate.broker.server.http.guard import refusal
from headgate.broker.server.http.hands.entrance import Entrance, Visitor, Who
from headgate.broker.wire.kafka.message import Message

_A = TypeVar("_A", bound=Message)
_T = TypeVar("_T")

HEADINGS = {401: "Log in first", 403: "Not allowed", 404: "Not found", 503: "Not now"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """One person's calls."""

    visitor: Visitor
    inner: InnerCalls

    async def ask(self, request: Message, kind: type[_A], read: Callable[[_A], _T], broker_id: int | None = None) -> _T:
        """See `InnerCalls.ask`."""
        return await self.inner.ask(request, kind, read, self.visitor.client, broker_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The surroundings of the page's answers.

    `inner`: returns the calls of this broker; None until it has joined its cluster. `render`: makes the HTML of a template.
    """

    entrance: Entrance
    inner: Callable[[], InnerCalls | None]
    render: Callable[..., Awaitable[str]]

    async def hand(self, request: Request) -> Hand:
        """The hand of the person who asks. Raises InvalidError: NOT_AUTHENTICATED, NOT_AUTHORIZED; RetryError(NOT_READY)."""
        visitor, inner = await self.entrance.visitor(request), self.inner()
        if inner is None:
            raise RetryError(Reason.NOT_READY, "this broker has not joined its cluster yet")
        return Hand(visitor=visitor, inner=inner)

    async def page(self, template: str, who: Who, status: int = 200, **values: object) -> Response:
        return HTMLResponse(await self.render(template, who=who, **values), status)

    async def show_error(self, request: Request, error: HeadgateError, status: int) -> Response:
        """The page that tells a person of an error: of a missing login, the form to log in."""
        entrance = self.entrance
        if status == 401 and not entrance.is_on:
            return refusal(error)  # the browser itself asks for a password
        if status == 401 and entrance.security is not None:
            if request.method != "GET":
                return RedirectResponse("/login", 303)
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"/login?next={quote(request.url.path + query, safe='')}", 303)
        return await self.page(
            "error", await entrance.who(request), status, heading=HEADINGS.get(status, "It did not work"), message=sentence(error)
        )


def sentence(error: HeadgateError) -> str:
    """An error's text as a sentence. Values stand behind it, as in the broker's log."""
    text = error.message
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "`")) else ".")
