"""What every answer of the HTTP port has in common: the check of the request's host, headers, and the form of errors.

A page on the web cannot read answers from another origin, unless its own name resolves to this broker (DNS rebinding). Then the
request's Host is that name. So pages with the cluster's data are only served under names that are certainly this broker's.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.addresses import plain
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

if TYPE_CHECKING:
    from headgate.broker.server.access.security import Security

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
LOG_IN = "log in with a user and a password, a token or a client certificate"
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


def guarded(answer: Answer, hosts: KnownHosts | None, security: Security | None = None) -> Answer:
    """An endpoint with the common headers and errors.

    Args:
        hosts: serve only requests under a known name.
        security: serve only clients that may describe the cluster.
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
                if security is not None:
                    await admit(security, request)
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


async def admit(security: Security, request: Request) -> None:
    """Let a client in by its certificate or its Authorization header. Raises InvalidError: NOT_AUTHENTICATED, NOT_AUTHORIZED."""
    host = plain(request.client.host) if request.client is not None else ""
    certificate, header = getattr(request.state, "certificate", None), request.headers.get("authorization")
    try:
        if header is not None:
            identity = await security.by_header(header, host, "http")
        elif certificate is not None:
            identity = security.by_certificate(certificate, host)
        else:
            identity = security.without_proof(host)
    except InvalidError as error:
        security.refused(request.url.path[:200], "http", host, error.message)
        raise InvalidError(error.reason, LOG_IN if header is None and certificate is None else "authentication failed") from error
    rights = security.rights(identity)
    if rights is None or rights.on_cluster(Operation.DESCRIBE):
        return
    if header is None and certificate is None:
        raise InvalidError(Reason.NOT_AUTHENTICATED, LOG_IN)
    security.refused(request.url.path[:200], "http", host, "no permission to describe the cluster", identity.principal)
    raise InvalidError(Reason.NOT_AUTHORIZED, "no permission. operation=`describe` resource=`cluster`")


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
