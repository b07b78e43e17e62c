"""Who is at the page, and whether a form comes from the page itself.

A person is known by a session (the login form), a certificate, or an Authorization header. Where the cluster asks for no login,
only a browser on the broker's own machine may read messages and act: its address and the name in its address bar are loopback.
What the person may do then is judged call by call, by the registry of all calls (`grpc/inner.py`).

A form is accepted with the page's token, and from this origin. Other websites can make a browser send a form; they cannot read the
token. The name in the address bar must be one of this broker's (`guard.KnownHosts`): otherwise a website could point its own name
to this broker, and its pages would be of this origin (DNS rebinding).
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from headgate.broker.cluster.acl import ANONYMOUS, Operation
from headgate.broker.runtime.addresses import plain
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.access.rights import Identity
from headgate.broker.server.grpc.open_calls import Client
from headgate.broker.server.http.guard import LOG_IN, read_body, without_port
from headgate.broker.server.http.hands.sessions import SESSION_S, Session, Sessions

if TYPE_CHECKING:
    from headgate.broker.server.access.security import Security

FORM_BYTES_MAX = 64 << 10
"""Largest form: a topic with all its settings takes some KiB."""
FIELDS_MAX = 200
FORM_TYPE = "application/x-www-form-urlencoded"
NOT_HERE = (
    "this cluster asks for no login, so messages are shown and changes are made only in a browser on the broker's own machine, "
    "under http://127.0.0.1:PORT. Elsewhere: set up users (kafka_protocol=sasl_ssl, authorization=acl), or use the command line"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A person at the page. `csrf`: the token of its forms. `has_session`: there is something to log out from."""

    client: Client
    csrf: str
    has_session: bool = False

    @property
    def name(self) -> str:
        """The user's name; empty without a login."""
        identity = self.client.identity
        return "" if identity is None or identity.principal == ANONYMOUS else identity.principal.partition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """The person, for the bar on top of a page."""

    name: str = ""
    has_session: bool = False
    may_log_in: bool = False
    csrf: str = ""


class Entrance:
    """Lets people in.

    Args:
        security: None: every client may do everything.
        sessions: of this broker.
        port: of this HTTP port. Browsers send the cookies of one host to all its ports, so the port is part of the cookie's name.
        is_tls: cookies are sent over TLS alone.
    """

    def __init__(self, settings: Settings, security: Security | None, sessions: Sessions, port: int, *, is_tls: bool) -> None:
        self.is_on, self.schema_registry = settings.http_actions, settings.schema_registry
        self.security, self.sessions = security, sessions
        self._is_tls = is_tls
        self.cookie = f"__Host-headgate-{port}" if is_tls else f"headgate-{port}"

    # -- who it is

    async def admit(self, request: Request) -> None:
        """Let in whoever may describe the cluster. Raises InvalidError: NOT_AUTHENTICATED, NOT_AUTHORIZED."""
        security = self.security
        if security is None:
            return
        identity, _ = await self._identify(security, request)
        rights = security.rights(identity)
        if rights is None or rights.on_cluster(Operation.DESCRIBE):
            return
        if identity.principal == ANONYMOUS:
            raise InvalidError(Reason.NOT_AUTHENTICATED, LOG_IN)
        what, host = request.url.path[:200], host_of(request)
        security.refused(what, "http", host, "no permission to describe the cluster", identity.principal)
        raise InvalidError(Reason.NOT_AUTHORIZED, "no permission. operation=`describe` resource=`cluster`")

    async def visitor(self, request: Request) -> Visitor:
        """The person who wants to use the page's hands. Raises InvalidError: NOT_AUTHENTICATED, NOT_AUTHORIZED."""
        if not self.is_on:
            raise InvalidError(
                Reason.NOT_AUTHORIZED, "the broker is set to show no messages and to change nothing here: http_actions"
            )
        host, security = host_of(request), self.security
        if security is None:
            if not is_local(request):
                raise InvalidError(Reason.NOT_AUTHORIZED, NOT_HERE)
            return Visitor(client=Client(host=host, door="http"), csrf=self.sessions.csrf_of(ANONYMOUS))
        identity, session = await self._identify(security, request)
        if identity.principal == ANONYMOUS and not is_local(request):
            raise InvalidError(Reason.NOT_AUTHENTICATED, LOG_IN)
        client = Client(host=host, identity=identity, rights=security.rights(identity), door="http")
        csrf = self.sessions.csrf_of(identity.principal) if session is None else session.csrf
        return Visitor(client=client, csrf=csrf, has_session=session is not None)

    async def who(self, request: Request) -> Who:
        """The person at a page that shows no messages: there it may be anybody who was let in."""
        try:
            visitor = await self.visitor(request)
        except HeadgateError:
            return Who(may_log_in=self.is_on and self.security is not None)
        return self.known(visitor)

    def known(self, visitor: Visitor) -> Who:
        return Who(
            name=visitor.name,
            has_session=visitor.has_session,
            may_log_in=not visitor.name and self.security is not None,
            csrf=visitor.csrf,
        )

    async def _identify(self, security: Security, request: Request) -> tuple[Identity, Session | None]:
        host = host_of(request)
        certificate, header = getattr(request.state, "certificate", None), request.headers.get("authorization")
        session = None if header is not None else self._session(security, request)
        try:
            if header is not None:
                identity = await security.by_header(header, host, "http")
            elif session is not None:
                identity = replace(session.identity, host=host)
            elif certificate is not None:
                identity = security.by_certificate(certificate, host)
            else:
                identity = security.without_proof(host)
        except InvalidError as error:
            security.refused(request.url.path[:200], "http", host, error.message)
            raise InvalidError(
                error.reason, LOG_IN if header is None and certificate is None else "authentication failed"
            ) from error
        return identity, session

    def _session(self, security: Security, request: Request) -> Session | None:
        token = request.cookies.get(self.cookie, "")
        session = self.sessions.find(token)
        if session is not None and session.proof != _proof(security, session.identity):
            self.sessions.close(token)  # the user was deleted, or has another password
            return None
        return session

    # -- logins

    async def log_in(self, request: Request, user: str, password: str) -> str:
        """Judge a name and a password. Returns the cookie of the new session.

        Raises InvalidError(NOT_AUTHENTICATED), RetryError.
        """
        security, host = self.security, host_of(request)
        if security is None or not self.is_on:
            raise InvalidError(Reason.INVALID_REQUEST, "there is no login at this page")
        header = "Basic " + base64.b64encode(f"{user}:{password}".encode("utf-8", "replace")).decode()
        try:
            identity = await security.by_header(header, host, "http")
        except InvalidError as error:
            security.refused("login", "http", host, error.message)
            raise InvalidError(Reason.NOT_AUTHENTICATED, "the name or the password is wrong") from error
        self.sessions.close(request.cookies.get(self.cookie, ""))
        return self.sessions.open(identity, _proof(security, identity))

    def give(self, response: Response, cookie: str) -> None:
        response.set_cookie(
            self.cookie, cookie, max_age=int(SESSION_S), path="/", httponly=True, samesite="strict", secure=self._is_tls
        )

    def log_out(self, request: Request, response: Response) -> None:
        self.sessions.close(request.cookies.get(self.cookie, ""))
        response.delete_cookie(self.cookie, path="/", httponly=True, samesite="strict", secure=self._is_tls)

    # -- where a request comes from

    async def form(self, request: Request, visitor: Visitor | None) -> dict[str, str]:
        """The fields of a form of this page; of repeated ones the last. `visitor`: None: the form of a login, which has no token.
        Raises InvalidError, RetryError."""
        check_origin(request, is_tls=self._is_tls)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
            raise InvalidError(Reason.INVALID_REQUEST, f"the request is not a form. expected=`{FORM_TYPE}`")
        try:
            text = (await read_body(request, FORM_BYTES_MAX)).decode("ascii")
            fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
        except ValueError as error:
            raise InvalidError(Reason.INVALID_REQUEST, "the form cannot be read") from error
        if visitor is not None and not hmac.compare_digest(fields.pop("csrf", "").encode(), visitor.csrf.encode()):
            raise InvalidError(Reason.NOT_AUTHORIZED, "the form is not from this page, or from before a login: load the page again")
        return fields


def check_origin(request: Request, *, is_tls: bool) -> None:
    """Raise InvalidError(NOT_AUTHORIZED) unless a page of this origin sent the request. Every browser says where a form is from."""
    origin, site = urlsplit(request.headers.get("origin", "")), request.headers.get("sec-fetch-site", "same-origin")
    same = origin.netloc != "" and origin.netloc.casefold() == request.headers.get("host", "").casefold()
    if not same or site != "same-origin" or (is_tls and origin.scheme != "https"):
        text = "the form is from another website, or a proxy does not pass on the name in the address bar (Host)"
        raise InvalidError(Reason.NOT_AUTHORIZED, text)


def is_asked_here(request: Request) -> bool:
    """Whether a page of this broker, or the person in the address bar, asks: not a link or an image of another website."""
    return request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def is_local(request: Request) -> bool:
    """Whether the browser runs on this machine, and is not a proxy that serves others under another name."""
    name = without_port(request.headers.get("host", "")).casefold().rstrip(".")
    return _is_loopback(host_of(request)) and (name == "localhost" or name.endswith(".localhost") or _is_loopback(name))


def host_of(request: Request) -> str:
    return plain(request.client.host) if request.client is not None else ""


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _proof(security: Security, identity: Identity) -> object:
    """What a user's password is judged by; None: the user does not exist."""
    access = security.access()
    user = None if access is None else access.users.get(identity.principal.partition(":")[2])
    return None if user is None else (user.verifiers, user.created_ms)


def local_path(text: str) -> str:
    """A path of this page, such as the one to return to after a login; ``/`` for any other address."""
    return text if text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() else "/"
