"""Who makes a gRPC call, and what the call needs: the one place that every call passes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message

from headgate.broker.cluster.acl import ANONYMOUS, Operation
from headgate.broker.cluster.quotas import user_of
from headgate.broker.runtime.addresses import plain
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.access import grpc_rules
from headgate.broker.server.access.rights import refusal
from headgate.broker.server.audit import grpc_acts
from headgate.broker.server.audit.audit import Audit, Caller
from headgate.broker.wire.grpc.methods import Method

if TYPE_CHECKING:
    from headgate.broker.server.access.rights import Identity, Rights
    from headgate.broker.server.access.security import Security

FORWARDED_KEY = "headgate-forwarded"
"""Metadata of a call that a broker has passed on to the leader."""
_RIGHTS: ContextVar[Rights | None] = ContextVar("rights", default=None)
"""What the caller of the current call may do; None: everything."""


@dataclass(frozen=True, slots=True)
class Callers:
    """Lets calls in.

    Args:
        security: None: every client may do everything.
        audit: notes administrative acts; None: nothing is noted.
    """

    security: Security | None = None
    audit: Audit | None = None

    async def admit(self, path: str, context: grpc.aio.ServicerContext[bytes, bytes]) -> float | None:
        """Find out who makes a call. Returns the seconds until the proof ends; None: never. Raises InvalidError, RetryError."""
        security = self.security
        if security is None or not security.authority.is_on:
            return None
        try:
            identity = await self._identify(security, context)
        except HeadgateError as error:
            security.refused(path, "grpc", host_of(context.peer()), error.message)
            raise type(error)(error.reason, refusal(error)) from error
        _RIGHTS.set(security.rights(identity))
        return None if identity.expires_s == math.inf else max(identity.expires_s - security.now_s(), 0.0)

    async def _identify(self, security: Security, context: grpc.aio.ServicerContext[bytes, bytes]) -> Identity:
        host = host_of(context.peer())
        certificate = context.auth_context().get("x509_pem_cert")
        if certificate:
            return security.by_certificate(next(iter(certificate)), host)
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                return await security.by_header(str(value), host)
        return security.anonymous(host)

    def check(self, path: str, request: Any) -> None:
        """Raise InvalidError(NOT_AUTHORIZED) unless the caller may make this call. `request`: None for a stream of requests."""
        rights = _RIGHTS.get()
        if rights is not None:
            try:
                grpc_rules.RULES[path](request, rights)
            except InvalidError as error:
                assert self.security is not None
                self.security.refused(path, "grpc", rights.identity.host, error.message, rights.identity.principal)
                raise

    def note(self, method: Method, context: grpc.aio.ServicerContext[bytes, bytes], request: Any, result: Any) -> None:
        """Note an administrative act in the audit log: its answer, or the error that it ended with. Of a call that was passed on,
        the broker that the client called has the line."""
        names = grpc_acts.ACTS.get(method.short)
        rights = _RIGHTS.get()
        if self.audit is None or names is None:
            return
        # A client could claim that its call was passed on, so only a proven broker is believed.
        is_passed_on = any(key == FORWARDED_KEY for key, _ in context.invocation_metadata() or ())
        if is_passed_on and rights is not None and rights.identity.is_broker:
            return
        who, host = (ANONYMOUS, host_of(context.peer())) if rights is None else (rights.identity.principal, rights.identity.host)
        error = ""
        details: dict[str, object] = {}
        traits = grpc_acts.traits(request)
        if isinstance(result, Exception):
            error = result.message if isinstance(result, HeadgateError) else context.details() or type(result).__name__
        else:
            details = grpc_acts.details(method.response.FromString(result) if isinstance(result, bytes) else result)
            if details:
                details |= grpc_acts.sources(request)
        self.audit.did(method.short, Caller(who=who, host=host, door="grpc"), names(request), error=error, details=traits | details)

    def trim(self, method: Method, response: Message | bytes) -> Message | bytes:
        """Take out of an answer what the caller may not see."""
        rights = _RIGHTS.get()
        trimming = grpc_rules.TRIMMED.get(method.short)
        if rights is None or trimming is None:
            return response
        answer = method.response.FromString(response) if isinstance(response, bytes) else response
        trimming(answer, rights)
        return answer


EVERYONE = Callers()
"""Lets every client do everything."""


@asynccontextmanager
async def until_expiry(left_s: float | None) -> AsyncIterator[None]:
    """Bound a stream by its caller's proof. Raises InvalidError(NOT_AUTHENTICATED) when that ends."""
    try:
        async with asyncio.timeout(left_s) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise InvalidError(Reason.NOT_AUTHENTICATED, "the login has expired") from error


def check_topic(operation: Operation, topic: str) -> None:
    """Raise InvalidError(NOT_AUTHORIZED) unless the caller of the current call may do an operation on a topic."""
    rights = _RIGHTS.get()
    if rights is not None and not rights.on_topic(operation, topic):
        raise InvalidError(Reason.NOT_AUTHORIZED, f"no permission. operation=`{operation.name.lower()}` topic=`{topic[:250]}`")


def host_of(peer: str) -> str:
    """The address in gRPC's name of a peer: ``ipv4:127.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0]
    return plain(unquote(host).strip("[]")) if kind in ("ipv4", "ipv6") else ""


def user_of_call() -> str | None:
    """The name under which the caller of the current call has quotas; None: a broker, which has none."""
    rights = _RIGHTS.get()
    if rights is None:
        return user_of(ANONYMOUS)
    return None if rights.identity.is_broker else user_of(rights.identity.principal)
