"""The calls in progress of one server: how many each client may have, how long each may take, and what ends one from outside.

A call goes through::

    asking -> known -> (streams: open | others: reading -> working -> answering) -> ended

`asking`: it is not known yet who calls. `reading`: the request arrives, in time. A stream must not rest for long unless it is in
use, and its client must take messages in time. `sweep`, which runs once in a while, ends the calls that do not, and those whose
client's proof, or right, is gone. gRPC's server cannot reset a call: a client that takes neither answer nor status keeps the call,
and the bytes that gRPC holds for it. So both count for that client, and for nobody else, until it takes them or its connection
ends.

Brokers' calls are counted apart: clients cannot take their places, nor brokers those of clients. Strangers are clients that did
not prove who they are, at a broker that asks for proofs. They share few places, and rest for a short time only.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from headgate.broker.cluster.acl import ANONYMOUS
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason, RetryError

if TYPE_CHECKING:
    from headgate.broker.server.access.grpc_rules import MethodRule
    from headgate.broker.server.access.rights import Identity, Rights
    from headgate.broker.wire.grpc.methods import Method

Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]

CLIENTS_MAX = 10_000
"""Most calls and streams of all clients; further ones are answered RESOURCE_EXHAUSTED."""
CLIENT_MAX = 5_000
"""Most of them of one client: a user, or without logins an address."""
ASKING_MAX = 2_000
"""Most calls whose password or token is being judged. A wrong password keeps one for 100 ms. A broker's proof, and the lack of any,
are judged at once: such calls need no place here."""
BROKERS_MAX = 20_000
"""Most calls and streams of all other brokers: a faulty broker must not use up the memory."""
STRANGERS_MAX = 500
"""Most of all strangers."""
READING_MAX = 8
"""Requests of one client that arrive at the same time, each up to `frame_bytes_max`; further ones wait in the sender, unread."""
ANSWER_BYTES_PER_S_MIN = 256 << 10
"""A client that takes a message of a stream more slowly than this, and `frame_timeout_ms`, loses the stream."""
SWEEP_S_MAX = 1.0
"""Longest pause between two sweeps: the time for which a revoked right may still serve an open stream."""


class StalledError(RetryError):
    """The client does not take its messages. Even the status waits until it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who makes a call.

    `identity`: None at a broker that does not ask who its clients are. `rights`: None: it may do everything. `certificate`: the one
    that it showed; empty: none. `door`: the port through which it came, for the audit log.
    """

    host: str
    identity: Identity | None = None
    rights: Rights | None = None
    certificate: bytes = b""
    door: str = "grpc"

    @property
    def is_broker(self) -> bool:
        return self.identity is not None and self.identity.is_broker

    @property
    def is_stranger(self) -> bool:
        return self.identity is not None and self.identity.principal == ANONYMOUS

    @property
    def key(self) -> str | None:
        """Whose budgets the call uses; None: a broker's, which has none."""
        if self.is_broker:
            return None
        return self.host if self.identity is None or self.is_stranger else self.identity.principal


class OpenCall:
    """One call. It is what a stream's implementation reads from and writes to."""

    __slots__ = (
        "_calls", "_deadline_s", "_error", "_task",
        "active_s", "client", "context", "is_done", "is_in_use", "method", "rule",
    )  # fmt: skip

    def __init__(self, calls: OpenCalls, method: Method, rule: MethodRule, context: Context) -> None:
        self._calls = calls
        self.method, self.rule, self.context = method, rule, context
        self.client: Client | None = None
        """None while it is not known."""
        self.active_s = calls.now_s()
        """When the last message was read or written."""
        self.is_in_use = not method.client_streaming
        """The client waits for something: a subscription, an ack. Otherwise the stream rests."""
        self._deadline_s = math.inf
        self._task = asyncio.current_task()
        self._error: HeadgateError | None = None
        self.is_done = False
        """It has its answer or its error, which cannot be replaced any more."""

    async def read(self) -> Any:
        """The next message, or `grpc.aio.EOF`. Raises InvalidError for one that is too large."""
        data: Any = await self.context.read()
        self.active_s = self._calls.now_s()
        limit = self.rule.bytes_max
        if limit is not None and data is not grpc.aio.EOF and len(data) > limit:
            raise InvalidError(Reason.INVALID_REQUEST, f"message is too large. bytes=`{len(data)}` max=`{limit}`")
        return data

    async def write(self, message: bytes) -> None:
        """Send a message. Returns when the transport has accepted it. Raises StalledError if the client takes no messages."""
        timeout_s = self._calls.answer_s(len(message))
        try:
            async with asyncio.timeout(timeout_s):
                await self.context.write(message)
        except TimeoutError as error:
            raise StalledError(Reason.TIMED_OUT, f"client does not read its messages. timeout_s=`{timeout_s:g}`") from error
        self.active_s = self._calls.now_s()

    async def request(self) -> bytes:
        """The one request of the call. Raises InvalidError."""
        assert self.client is not None
        async with self._calls.reading(self.client.key):
            self._deadline_s = self._calls.now_s() + self._calls.timeout_s
            data: Any = await self.read()
            self._deadline_s = math.inf
        if data is grpc.aio.EOF:
            raise InvalidError(Reason.INVALID_REQUEST, "the call has no request")
        found: bytes = data
        return found

    def at_end(self, act: Callable[[], None]) -> None:
        """Act once gRPC holds nothing of the call any more."""
        self.context.add_done_callback(lambda _: act())  # type: ignore[arg-type]  # the stub asks for a class

    # -- the end from outside

    def judge(self, now_s: float, recheck: Callable[[OpenCall], None] | None) -> None:
        """Cut the call if it takes too long, or if `recheck` raises."""
        client = self.client
        if self.is_done or self._error is not None or client is None:
            return
        try:
            if now_s >= self._deadline_s:
                raise RetryError(Reason.TIMED_OUT, "the request did not arrive in time")
            if client.identity is not None and now_s >= client.identity.expires_s:
                raise InvalidError(Reason.NOT_AUTHENTICATED, "the login has expired")
            if not self.is_in_use and not client.is_broker and now_s - self.active_s >= self._calls.rest_s(client):
                raise ClosedError(Reason.CLOSED, "the stream was idle for too long")
            if recheck is not None:
                recheck(self)
        except HeadgateError as error:
            self._error = error
            assert self._task is not None
            self._task.cancel()

    def error_of(self, error: BaseException) -> BaseException:
        """What ended the call: the reason for which it was cut, or the error itself."""
        if isinstance(error, asyncio.CancelledError) and self._error is not None:
            assert self._task is not None
            self._task.uncancel()
            return self._error
        return error


class OpenCalls:
    """All calls of one server.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, settings: Settings, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.timeout_s = settings.frame_timeout_ms / 1000
        self._idle_s = settings.connection_idle_ms / 1000
        self.sweep_s = min(SWEEP_S_MAX, self.timeout_s / 4, self._idle_s / 4)
        self.calls: dict[OpenCall, None] = {}
        self._asking = self._clients = self._strangers = self._brokers = 0
        self._of: Counter[str] = Counter()
        self._reading: dict[str, tuple[asyncio.Semaphore, int]] = {}
        """By client: its places, and the calls that have or want one."""

    def answer_s(self, size_bytes: int) -> float:
        """Longest time for a message that a client takes."""
        return self.timeout_s + size_bytes / ANSWER_BYTES_PER_S_MIN

    def rest_s(self, client: Client) -> float:
        """Longest time for which a stream may rest."""
        return min(self.timeout_s, self._idle_s) if client.is_stranger else self._idle_s

    def begin(self, call: OpenCall) -> None:
        """A call has begun. Its client is not known."""
        self.calls[call] = None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """A place for a call whose password or token is judged. Raises RetryError(OVERLOADED)."""
        if self._asking >= ASKING_MAX:
            raise _too_many("calls whose client has not logged in yet", ASKING_MAX)
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def know(self, call: OpenCall, client: Client) -> None:
        """The client of a call is known. Raises RetryError(OVERLOADED) if it has too many calls."""
        key = client.key
        if key is not None:
            if self._clients >= CLIENTS_MAX:
                raise _too_many("calls of all clients", CLIENTS_MAX)
            if self._of[key] >= CLIENT_MAX:
                raise _too_many("calls of this client", CLIENT_MAX)
            if client.is_stranger and self._strangers >= STRANGERS_MAX:
                raise _too_many("calls of clients that did not log in", STRANGERS_MAX)
            self._clients += 1
            self._of[key] += 1
            self._strangers += client.is_stranger
        else:
            if self._brokers >= BROKERS_MAX:
                raise _too_many("calls of other brokers", BROKERS_MAX)
            self._brokers += 1
        call.client = client

    def end(self, call: OpenCall) -> None:
        """Forget a call."""
        del self.calls[call]
        client = call.client
        if client is None:
            return
        if (key := client.key) is None:
            self._brokers -= 1
        else:
            self._clients -= 1
            self._strangers -= client.is_stranger
            self._of[key] -= 1
            if not self._of[key]:
                del self._of[key]

    @asynccontextmanager
    async def reading(self, key: str | None) -> AsyncIterator[None]:
        """A place for a request of a client that arrives. Brokers need none."""
        if key is None:
            yield
            return
        places, users = self._reading.get(key) or (asyncio.Semaphore(READING_MAX), 0)
        self._reading[key] = places, users + 1
        try:
            async with places:
                yield
        finally:
            users = self._reading[key][1] - 1
            if users:
                self._reading[key] = places, users
            else:
                del self._reading[key]

    def sweep(self, recheck: Callable[[OpenCall], None] | None) -> None:
        """End the calls that take too long. `recheck`: raises for a call whose proof or right is gone; None: none can be."""
        now_s = self.now_s()
        for call in list(self.calls):
            call.judge(now_s, recheck)


def _too_many(what: str, most: int) -> RetryError:
    return RetryError(Reason.OVERLOADED, f"too many {what}: try again. max=`{most}`")
