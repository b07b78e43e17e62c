"""From the methods of a .proto service to handlers that a gRPC server runs: decoding, errors, encoding.

A service is an object with one coroutine per rpc, named in snake_case:

- unary: ``async def fetch(request, context) -> Message | bytes``; bytes are an encoded message.
- bidirectional: ``async def publish(call: Call) -> None``, which reads and writes raw messages until it returns.

Bytes that are no message of the declared type give INVALID_ARGUMENT. A HeadgateError gives its status. Any other error is logged
and gives INTERNAL, without internal details.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from headgate.broker import __version__
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.metrics import Labels
from headgate.broker.runtime.out_of_memory import left_half_done
from headgate.broker.runtime.steps import finish
from headgate.broker.server.grpc.callers import Callers
from headgate.broker.server.grpc.errors import REASON_KEY, STATUS, metadata_of, shown
from headgate.broker.server.grpc.open_calls import Context, OpenCall
from headgate.broker.wire.grpc.bounded import decoding
from headgate.broker.wire.grpc.methods import Method, methods

logger = get_logger(__name__)

T = TypeVar("T")


MESSAGE_ELEMENTS_MAX = 100_000
"""Most elements of one message of a stream between brokers."""
PATH_CHARS_MAX = 100
"""Characters of an unknown method's name in the answer."""


class Call(Protocol):
    """A bidirectional stream of raw messages: the used part of `OpenCall`."""

    is_in_use: bool
    """The client waits for something. A stream that is not in use for long is ended."""

    async def read(self) -> Any:
        """The next message, or `grpc.aio.EOF` after the client's last one."""
        ...

    async def write(self, message: bytes) -> None:
        """Send a message; returns when the transport has accepted it, so a slow reader slows the sender down."""
        ...

    def at_end(self, act: Callable[[], None]) -> None:
        """Act once gRPC holds nothing of the call any more."""
        ...


class CallCounts:
    """Counts the calls of one server by their outcome."""

    def __init__(self) -> None:
        self.open = 0
        """Calls and streams in progress."""
        self.ended: dict[Labels, float] = {}
        """Ended calls by method and status, such as (`Log/Fetch`, `ok`). The status is `cancelled` if the client went away."""

    @contextmanager
    def call(self, method: Method) -> Iterator[None]:
        """Counts one call: a context manager around it."""
        status = "cancelled"
        self.open += 1
        try:
            yield
            status = "ok"
        except HeadgateError as error:
            status = STATUS[error.reason].name.lower()
            raise
        except Exception:
            status = "internal"
            raise
        finally:
            self.open -= 1
            key = (method.short, status)
            self.ended[key] = self.ended.get(key, 0) + 1


def service_handler(
    service: ServiceDescriptor, implementation: object, counts: CallCounts, callers: Callers | None = None
) -> grpc.GenericRpcHandler:
    """The handlers of a whole service. Raises AttributeError if `implementation` lacks one.

    For gRPC every method takes a stream: so the server reads no request before the gate has asked who calls. The bytes on the
    wire are the same.

    Args:
        callers: the gate; None: one that lets every client do everything.
    """
    gate = callers or Callers()
    table: dict[str, Any] = {}
    for method in methods(service).values():
        act = getattr(implementation, snake(method.name))
        if method.client_streaming:
            table[method.name] = grpc.stream_stream_rpc_method_handler(_Handler(method, act, counts, gate).stream)
        else:
            table[method.name] = grpc.stream_unary_rpc_method_handler(_Handler(method, act, counts, gate).unary)
    return grpc.method_handlers_generic_handler(service.full_name, table)


def decode(kind: type[Message], data: bytes, elements_max: int = MESSAGE_ELEMENTS_MAX) -> Any:
    """A small message of that type, at once. Raises InvalidError(INVALID_REQUEST)."""
    return finish(decoding(kind, data, elements_max))


class _Handler:
    """One method: what gRPC calls for it."""

    def __init__(self, method: Method, act: Callable[..., Any], counts: CallCounts, gate: Callers) -> None:
        self._method, self._act, self._counts, self._gate = method, act, counts, gate

    async def unary(self, _requests: object, context: Context) -> bytes:
        return await self._guarded(context, self._answer)

    async def stream(self, _requests: object, context: Context) -> None:
        await self._guarded(context, self._stream)

    async def _guarded(self, context: Context, work: Callable[[OpenCall], Awaitable[T]]) -> T:
        call: OpenCall | None = None
        try:
            with self._counts.call(self._method):
                call = self._gate.begin(self._method, context)
                try:
                    await self._gate.admit(call)
                    return await work(call)
                except asyncio.CancelledError as error:
                    why = call.error_of(error)
                    if why is error:
                        raise
                    raise why from error
        except Exception as error:  # every error becomes a status
            if call is not None:
                call.is_done = True
            await _abort(self._method, context, error)
            raise

    async def _answer(self, call: OpenCall) -> bytes:
        request = await self._gate.request(call)
        try:
            response = await self._act(request, call.context)
        except Exception as error:
            self._gate.note(call, request, error)
            raise
        self._gate.note(call, request, response)
        response = self._gate.trim(call, response)
        call.is_done = True
        return response if isinstance(response, bytes) else response.SerializeToString()

    async def _stream(self, call: OpenCall) -> None:
        self._gate.check(call, None)
        await self._act(call)


class Unknown(grpc.GenericRpcHandler):
    """Tells callers of a method that this broker does not have what to do: brokers of other versions may have it."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path: str = handler_call_details.method
        if not path.startswith("/headgate.v1."):
            return None

        async def refuse(_requests: object, context: Context) -> None:
            what = path.rpartition(".")[2][:PATH_CHARS_MAX]
            text = f"brokers of version {__version__} do not have this call: use the client of that version. call=`{what}`"
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text, ((REASON_KEY, Reason.UNSUPPORTED.value),))

        return grpc.stream_stream_rpc_method_handler(refuse)


async def _abort(method: Method, context: Context, error: Exception) -> None:
    if isinstance(error, MemoryError):
        left_half_done(asyncio.get_running_loop(), error)
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if context.cancelled() or (isinstance(error, grpc.aio.BaseError) and not isinstance(error, grpc.aio.UsageError)):
        # The client is gone, or this server has stopped. Most likely the failure comes from reading the client's messages or
        # answering them.
        raise asyncio.CancelledError from error
    if not isinstance(error, HeadgateError):
        logger.exception("grpc_call_failed", error, method=method.path)
        error = HeadgateError(Reason.INTERNAL, "unexpected error, see the broker's log")
    try:
        # For a stream with a client that does not read, this returns only when the client reads or is gone. Nothing is held for it
        # by now.
        await context.abort(STATUS[error.reason], shown(error), metadata_of(error))
    except grpc.aio.InternalError as failure:
        raise asyncio.CancelledError from failure


def snake(name: str) -> str:
    """``ListOffsets`` as a coroutine is named: ``list_offsets``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
