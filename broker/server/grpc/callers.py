"""The gate of the gRPC port: every call passes it, before its request is read and after.

The order is that of the registry (`../access/grpc_rules.py`): who calls; whether this client may do such a thing at all; only then
the request is read, within the method's bounds, and judged. Open calls are judged again when users, rules or revocations change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from google.protobuf.message import Message

from headgate.broker.cluster.acl import ANONYMOUS, CLUSTER_NAME, Operation, Resource
from headgate.broker.cluster.quotas import user_of
from headgate.broker.control.broker_proof import BROKER_KEY, ChallengeError
from headgate.broker.log.claims import Claim, ProducerClaims
from headgate.broker.runtime.addresses import plain
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.access.grpc_rules import METHODS
from headgate.broker.server.access.rights import Identity, refusal
from headgate.broker.server.audit import grpc_acts
from headgate.broker.server.audit.audit import Audit, Caller
from headgate.broker.server.grpc.open_calls import Client, Context, OpenCall, OpenCalls
from headgate.broker.wire.grpc.bounded import decoding
from headgate.broker.wire.grpc.methods import Method

if TYPE_CHECKING:
    from headgate.broker.server.access.grpc_rules import MethodRule
    from headgate.broker.server.access.rights import Rights
    from headgate.broker.server.access.security import Security
    from headgate.broker.server.net.tls import Certificates

FORWARDED_KEY = "headgate-forwarded"
"""Metadata of a call that a broker has passed on to the leader."""
_CLIENT: ContextVar[Client | None] = ContextVar("client", default=None)
"""Who makes the current call; None: it does not come through the port."""
_GATE: ContextVar[Callers | None] = ContextVar("gate", default=None)
"""The gate that the current call came through."""


class Judged(Protocol):
    """A call as far as the gate judges and notes it: one of the port, or one of this process (`inner.py`)."""

    @property
    def method(self) -> Method: ...
    @property
    def rule(self) -> MethodRule: ...
    @property
    def client(self) -> Client | None: ...
    @property
    def context(self) -> Context: ...


class Callers:
    """Lets calls in.

    Args:
        security: None: every client may do everything.
        audit: notes administrative acts; None: nothing is noted.
        certificates: know which clients' certificates are revoked; None: without TLS.
        settings: the limits of calls.
        turns: shares the event loop among requests that are decoded.
    """

    def __init__(
        self,
        security: Security | None = None,
        audit: Audit | None = None,
        certificates: Certificates | None = None,
        settings: Settings | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.security, self.audit, self._certificates = security, audit, certificates
        self._turns = turns or Turns(time.monotonic)
        self.calls = OpenCalls(settings or Settings(), self._turns.now)
        self._seen: object = None
        """What decides about rights and proofs, at the last sweep."""

    # -- before the request

    def begin(self, method: Method, context: Context) -> OpenCall:
        """A call has begun."""
        call = OpenCall(self.calls, method, METHODS[method.short], context)
        self.calls.begin(call)
        context.add_done_callback(lambda _: self.calls.end(call))  # type: ignore[arg-type]  # the stub asks for a class
        return call

    async def admit(self, call: OpenCall) -> None:
        """Find out who makes a call, and whether it may make such a call at all. Raises InvalidError, RetryError."""
        # Only a password or a token takes time to judge.
        with self.calls.asking() if _has_login(call.context) else nullcontext():
            client = await self._client(call)
        self.calls.know(call, client)
        _CLIENT.set(client)
        _GATE.set(self)
        self.check_first(call)

    async def _client(self, call: OpenCall) -> Client:
        context, security = call.context, self.security
        host = host_of(context.peer())
        shown = context.auth_context().get("x509_pem_cert")
        certificate = next(iter(shown)) if shown else b""
        try:
            if security is None:
                if certificate and self._certificates is not None:
                    self._certificates.check_client(certificate)
                return Client(host=host, certificate=certificate)
            identity = await self._identify(security, call, certificate, host)
        except ChallengeError:
            raise  # the broker has not tried yet
        except HeadgateError as error:
            self._refused(call.method.short, Client(host=host), error.message)
            raise type(error)(error.reason, refusal(error)) from error
        return Client(host=host, identity=identity, rights=security.rights(identity), certificate=certificate)

    async def _identify(self, security: Security, call: OpenCall, certificate: bytes, host: str) -> Identity:
        if certificate:
            return security.by_certificate(certificate, host)
        for key, value in call.context.invocation_metadata() or ():
            if key == "authorization":
                return await security.by_header(str(value), host)
            if key == BROKER_KEY and self._certificates is None:
                return security.by_proof(str(value), call.method.path, host)
        return security.without_proof(host)

    # -- the request

    async def request(self, call: OpenCall) -> Any:
        """The request of a call that has one, within its bounds, and judged. Raises InvalidError."""
        data = await call.request()
        request: Any = await self._turns.begin().run(decoding(call.method.request, data, call.rule.elements_max))
        self.check(call, request)
        return request

    @contextmanager
    def acting(self, client: Client) -> Iterator[None]:
        """Make calls of this process in the name of a client, which has been let in by another port."""
        before, gate = _CLIENT.set(client), _GATE.set(self)
        try:
            yield
        finally:
            _CLIENT.reset(before)
            _GATE.reset(gate)

    def check_first(self, call: Judged) -> None:
        """Raise InvalidError(NOT_AUTHORIZED) unless the caller may make such a call at all."""
        assert call.client is not None
        self._ask(call, call.client, lambda rights: call.rule.ask_first(rights))

    def check(self, call: Judged, request: Any) -> None:
        """Raise InvalidError(NOT_AUTHORIZED) unless the caller may make this call. `request`: None for a stream of requests."""
        assert call.client is not None
        self._ask(call, call.client, lambda rights: call.rule.ask(request, rights))

    def _ask(self, call: Judged, client: Client, ask: Callable[[Rights], None]) -> None:
        if client.rights is not None:
            try:
                ask(client.rights)
            except InvalidError as error:
                self._refused(call.method.short, client, error.message, client.rights.identity.principal)
                raise

    def _refused(self, what: str, client: Client, reason: str, principal: str = "") -> None:
        if self.security is not None:
            self.security.refused(what, client.door, client.host, reason, principal)

    # -- the answer

    def note(self, call: Judged, request: Any, result: Any) -> None:
        """Note an administrative act in the audit log: its answer, or the error that it ended with. Of a call that was passed on,
        the broker that the client called has the line."""
        names, client, context = call.rule.act, call.client, call.context
        assert client is not None
        if self.audit is None or names is None or (client.is_broker and _is_passed_on(context)):
            return
        error = ""
        details: dict[str, object] = {}
        traits = grpc_acts.traits(request)
        if isinstance(result, Exception):
            error = result.message if isinstance(result, HeadgateError) else context.details() or type(result).__name__
        else:
            details = grpc_acts.details(call.method.response.FromString(result) if isinstance(result, bytes) else result)
            if details:
                details |= grpc_acts.sources(request)
        caller = Caller(who=principal_of(client), host=client.host, door=client.door)
        self.audit.did(call.method.short, caller, names(request), error=error, details=traits | details)

    @staticmethod
    def trim(call: Judged, response: Message | bytes) -> Message | bytes:
        """Take out of an answer what the caller may not see."""
        assert call.client is not None
        rights, trimming = call.client.rights, call.rule.trim
        if rights is None or trimming is None:
            return response
        answer = call.method.response.FromString(response) if isinstance(response, bytes) else response
        trimming(answer, rights)
        return answer

    # -- open calls

    async def watch(self) -> None:
        """End calls that take too long, and those whose client's proof or right is gone, until cancelled."""
        while True:
            await asyncio.sleep(self.calls.sweep_s)
            self.sweep()

    def sweep(self) -> None:
        """One look at all open calls."""
        access = None if self.security is None else self.security.access()
        bundle = None if self._certificates is None else self._certificates.current
        seen = (access, 0 if access is None else access.version, bundle)
        changed, self._seen = seen != self._seen, seen
        self.calls.sweep(self._recheck if changed else None)

    def _recheck(self, call: OpenCall) -> None:
        client, security = call.client, self.security
        assert client is not None
        try:
            if client.certificate and self._certificates is not None:
                self._certificates.check_client(client.certificate)
            if security is not None and client.identity is not None:
                security.still_holds(client.identity)
        except InvalidError as error:
            self._refused(call.method.short, client, error.message)
            raise InvalidError(error.reason, refusal(error)) from error
        self._ask(call, client, lambda rights: call.rule.ask_first(rights))


def check_topic(operation: Operation, topic: str, what: str) -> None:
    """Raise InvalidError(NOT_AUTHORIZED), and note it, unless the caller of the current call may do an operation on a topic.

    Args:
        what: the method, for the audit log.
    """
    client, gate = _CLIENT.get(), _GATE.get()
    if client is None or client.rights is None or client.rights.on_topic(operation, topic):
        return
    text = f"no permission. operation=`{operation.name.lower()}` topic=`{topic[:250]}`"
    if gate is not None:
        gate._refused(what, client, text, client.rights.identity.principal)
    raise InvalidError(Reason.NOT_AUTHORIZED, text)


def may_topic(operation: Operation, topic: str) -> bool:
    """Whether the caller of the current call may do an operation on a topic."""
    client = _CLIENT.get()
    return client is None or client.rights is None or client.rights.on_topic(operation, topic)


def claim_of_call(claims: ProducerClaims) -> Claim | None:
    """The claims to producer ids of the current call's caller; None: it may use every id."""
    client = _CLIENT.get()
    return None if client is None or client.rights is None else Claim(claims, client.rights.identity.principal)


def is_forwarded(context: Context) -> bool:
    """Whether the call comes from another broker. Any client can say so: where clients have rights, only one that may act as a
    broker is believed."""
    if not _is_passed_on(context):
        return False
    client = _CLIENT.get()
    return (
        client is None
        or client.rights is None
        or client.is_broker
        or client.rights.may(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
    )


def _has_login(context: Context) -> bool:
    return any(key == "authorization" for key, _ in context.invocation_metadata() or ())


def _is_passed_on(context: Context) -> bool:
    return any(key == FORWARDED_KEY for key, _ in context.invocation_metadata() or ())


def host_of(peer: str) -> str:
    """The address in gRPC's name of a peer: ``ipv4:127.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0]
    return plain(unquote(host).strip("[]")) if kind in ("ipv4", "ipv6") else ""


def client_of_call(context: Context, principal: str = "", host: str = "", door: str = "") -> Client:
    """Who makes the current call.

    Args:
        principal, host, door: of the client for whom another broker has passed the call on; believed if a broker calls.
    """
    client, gate = _CLIENT.get() or Client(host=""), _GATE.get()
    if not principal or gate is None or gate.security is None or client.identity is None or not is_forwarded(context):
        return client
    if client.rights is None and not client.is_broker:
        return client  # every client may say that it passes calls on
    identity = Identity(principal=principal, host=host)
    return Client(host=host, identity=identity, rights=gate.security.rights(identity), door=door or "grpc")


def audit_of_call() -> Audit | None:
    """What notes the current call."""
    gate = _GATE.get()
    return None if gate is None else gate.audit


def principal_of(client: Client) -> str:
    """The name of a client."""
    return ANONYMOUS if client.identity is None else client.identity.principal


def user_of_call() -> str | None:
    """The name under which the caller of the current call has quotas; None: a broker, which has none."""
    return quota_user(_CLIENT.get() or Client(host=""))


def quota_user(client: Client) -> str | None:
    """The name under which a client has quotas; None: a broker, which has none."""
    return None if client.is_broker else user_of(principal_of(client))


def budget_of_call() -> str | None:
    """Whose share of the bytes in flight the current call uses; None: a broker's."""
    client = _CLIENT.get()
    return "" if client is None else client.key
