"""What every answer of the HTTP port has in common: the check of the request's host, headers, and the form of errors.

A page on the web cannot read answers from another origin, unless its own name resolves to this broker (DNS rebinding). Then the
request's Host is that name. So pages with the cluster's data are only served under names that are certainly this broker's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger(__name__)

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
BODY_S = 10.0
"""Longest time in which the body of a request arrives."""
LOG_IN = "log in with a user and a password, a token or a client certificate"
Answer = Callable[[Request], Awaitable[Response]]

_NOT_FOUND = frozenset(
    (Reason.UNKNOWN_TOPIC, Reason.UNKNOWN_GATE, Reason.UNKNOWN_USER, Reason.NOT_FOUND, Reason.GROUP_ID_NOT_FOUND)
)


class KnownHosts:
    """The names under which this broker serves pages.

    Args:
        configured: the setting `http_allowed_hosts`.
        own: names of this broker.
        others: returns the names of the other brokers, which may be names of the same load balancer.
    """

    def __init__(self, configured: str, own: Iterable[str], others: Callable[[], Iterable[str]]) -> None:
        listed = {host.strip().casefold().rstrip(".") for host in configured.split(",") if host.strip()}
        self._any = "*" in listed
        self._known = listed | {host.casefold() for host in own} | {"localhost", socket.gethostname().casefold()}
        self._others = others

    def knows(self, host: str) -> bool:
        """Whether a Host header names this broker. An IP address does: no name was resolved for it. "" comes from no browser."""
        name = without_port(host).casefold().rstrip(".")
        if self._any or not name or name in self._known or name.endswith(".localhost") or _is_address(name):
            return True
        return any(name == host.casefold() for host in self._others())


def without_port(host: str) -> str:
    """The name, or the address, in a Host header."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


Admit = Callable[[Request], Awaitable[None]]
Show = Callable[[Request, HeadgateError, int], Awaitable[Response]]


def guarded(answer: Answer, hosts: KnownHosts | None, admit: Admit | None = None, show: Show | None = None) -> Answer:
    """An endpoint with the common headers and errors.

    Args:
        hosts: serve only requests under a known name.
        admit: raises HeadgateError for a client that may not come in.
        show: makes the page that tells a person of an error.
    """

    async def endpoint(request: Request) -> Response:
        host = request.headers.get("host", "")
        if hosts is not None and not hosts.knows(host):
            response: Response = PlainTextResponse(
                f"this broker does not serve pages under the name {host[:100]!a}: use its IP address, or add the name to the "
                "setting http_allowed_hosts\n",
                421,
            )
        else:
            try:
                if admit is not None:
                    await admit(request)
                response = await answer(request)
            except HeadgateError as error:
                response = refusal(error)
                if show is not None and "text/html" in request.headers.get("accept", ""):
                    response = await show(request, error, response.status_code)
            except Exception as error:  # every error becomes a status
                logger.exception("http_request_failed", error, path=request.url.path[:200])
                response = PlainTextResponse("unexpected error, see the broker's log\n", 500)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return endpoint


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The body of a request. Raises InvalidError if it is too large, RetryError(TIMED_OUT)."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    raise InvalidError(Reason.INVALID_REQUEST, f"the request is too large. bytes_max=`{bytes_max}`")
    except ClientDisconnect as error:
        raise RetryError(Reason.CLOSED, "the client is gone") from error
    except TimeoutError as error:
        raise RetryError(Reason.TIMED_OUT, "the request did not arrive in time") from error
    return bytes(body)


def refusal(error: HeadgateError) -> Response:
    """An error as JSON: ``{"error": {"reason": "...", "message": "..."}}``."""
    if error.reason is Reason.NOT_AUTHENTICATED:
        response = json({"error": {"reason": error.reason.value, "message": error.message}}, 401)
        response.headers["www-authenticate"] = 'Basic realm="Headgate", charset="UTF-8"'  # browsers then ask for a password
        return response
    if error.reason is Reason.NOT_AUTHORIZED:
        status = 403
    elif error.reason in _NOT_FOUND:
        status = 404
    elif isinstance(error, InvalidError):
        status = 400
    else:
        status = 503 if isinstance(error, RetryError) else 500
    return json({"error": {"reason": error.reason.value, "message": error.message}}, status)


def json(value: object, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
