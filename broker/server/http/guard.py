"""What every answer of the HTTP port has in common: the check of the request's host, headers, and the form of errors.

A page on the web cannot read answers from another origin, unless its own name resolves to this broker (DNS rebinding). Then the
request's Host is that name. So pages with the cluster's data are only served under names that are certainly this broker's.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger(__name__)

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
Answer = Callable[[Request], Awaitable[Response]]

_NOT_FOUND = frozenset((Reason.UNKNOWN_TOPIC, Reason.UNKNOWN_GATE, Reason.NOT_FOUND, Reason.GROUP_ID_NOT_FOUND))


class KnownHosts:
    """The names under which this broker serves pages.

    Args:
        configured: the setting `http_allowed_hosts`.
        own: names of this broker.
        others: returns the names of the other brokers, which may be names of the same load balancer.
    """

    def __init__(self, configured: str, own: Iterable[str], others: Callable[[], Iterable[str]]) -> None:
        listed = {one.strip().casefold().rstrip(".") for one in configured.split(",") if one.strip()}
        self._any = "*" in listed
        self._known = listed | {one.casefold() for one in own} | {"localhost", socket.gethostname().casefold()}
        self._others = others

    def knows(self, host: str) -> bool:
        """Whether a Host header names this broker. An IP address does: no name was resolved for it. "" comes from no browser."""
        name = _without_port(host).casefold().rstrip(".")
        if self._any or not name or name in self._known or name.endswith(".localhost") or _is_address(name):
            return True
        return any(name == one.casefold() for one in self._others())


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def guarded(answer: Answer, hosts: KnownHosts | None) -> Answer:
    """An endpoint with the common headers and errors. `hosts`: serve only requests under a known name."""

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
                response = await answer(request)
            except HeadgateError as error:
                response = refusal(error)
            except Exception as error:  # every error becomes a status
                logger.exception("http_request_failed", error, path=request.url.path[:200])
                response = PlainTextResponse("unexpected error, see the broker's log\n", 500)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return endpoint


def refusal(error: HeadgateError) -> Response:
    """An error as JSON: ``{"error": {"reason": "...", "message": "..."}}``."""
    if error.reason in _NOT_FOUND:
        status = 404
    elif isinstance(error, InvalidError):
        status = 400
    else:
        status = 503 if isinstance(error, RetryError) else 500
    return json({"error": {"reason": error.reason.value, "message": error.message}}, status)


def json(value: object, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
