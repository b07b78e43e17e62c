"""From the methods of a .proto service to handlers that a gRPC server runs: decoding, errors, encoding.

A service is an object with one coroutine per rpc, named in snake_case:

- unary: ``async def fetch(request, context) -> Message | bytes``; bytes are an encoded message.
- server-streaming: ``async def watch(request, context) -> AsyncIterator[Message | bytes]``, a generator.
- bidirectional: ``async def publish(call: Call) -> None``, which reads and writes raw messages until it returns.

Bytes that are no message of the declared type give INVALID_ARGUMENT. A HeadgateError gives its status. Any other error is logged
and gives INTERNAL, without internal details.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Protocol, TypeAlias

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.metrics import Labels
from headgate.broker.runtime.out_of_memory import left_half_done
from headgate.broker.server.grpc.callers import EVERYONE, Callers, until_expiry
from headgate.broker.server.grpc.errors import LEADER_KEY, REASON_KEY, STATUS, leader_of, shown
from headgate.broker.wire.grpc.methods import Method, methods

logger = get_logger(__name__)


class StalledError(RetryError):
    """The client does not read its messages. The stream cannot continue, and even its status waits until the client reads."""


Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]


class Call(Protocol):
    """A bidirectional stream of raw messages: the used part of `ServicerContext`."""

    async def read(self) -> Any:
        """The next message, or `grpc.aio.EOF` after the client's last one."""
        ...

    async def write(self, message: bytes) -> None:
        """Send a message; returns when the transport has accepted it, so a slow reader slows the sender down."""
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
    service: ServiceDescriptor, implementation: object, counts: CallCounts, callers: Callers = EVERYONE
) -> grpc.GenericRpcHandler:
    """The handlers of a whole service. Raises AttributeError if `implementation` lacks one."""
    table: dict[str, Any] = {}
    for method in methods(service).values():
        call = getattr(implementation, _snake(method.name))
        if method.client_streaming:
            table[method.name] = grpc.stream_stream_rpc_method_handler(_stream(method, call, counts, callers))
        elif method.server_streaming:
            table[method.name] = grpc.unary_stream_rpc_method_handler(_answers(method, call, counts, callers))
        else:
            table[method.name] = grpc.unary_unary_rpc_method_handler(_unary(method, call, counts, callers))
    return grpc.method_handlers_generic_handler(service.full_name, table)


def decode(kind: type[Message], data: bytes) -> Any:
    """A message of that type. Raises InvalidError(INVALID_REQUEST)."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidError(
            Reason.INVALID_REQUEST, f"bytes are not a message of this type. type=`{kind.DESCRIPTOR.full_name}` bytes=`{len(data)}`"
        ) from error


def _unary(
    method: Method, call: Callable[[Any, Context], Awaitable[Message | bytes]], counts: CallCounts, callers: Callers = EVERYONE
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def handle(data: bytes, context: Context) -> bytes:
        try:
            with counts.call(method):
                await callers.admit(method.short, context)
                request = decode(method.request, data)
                callers.check(method.short, request)
                try:
                    response = await call(request, context)
                except Exception as error:
                    callers.note(method, context, request, error)
                    raise
                callers.note(method, context, request, response)
                response = callers.trim(method, response)
        except Exception as error:  # every error becomes a status
            await _abort(method, context, error)
            raise
        return response if isinstance(response, bytes) else response.SerializeToString()

    return handle


def _answers(
    method: Method,
    call: Callable[[Any, Context], AsyncGenerator[Message | bytes, None]],
    counts: CallCounts,
    callers: Callers = EVERYONE,
) -> Callable[[bytes, Context], Awaitable[None]]:
    async def handle(data: bytes, context: Context) -> None:
        try:
            with counts.call(method):
                left_s = await callers.admit(method.short, context)
                request = decode(method.request, data)
                callers.check(method.short, request)
                async with until_expiry(left_s), aclosing(call(request, context)) as answers:
                    async for answer in answers:
                        await context.write(answer if isinstance(answer, bytes) else answer.SerializeToString())
        except Exception as error:  # noqa: BLE001  # every error becomes a status
            await _abort(method, context, error)

    return handle


def _stream(
    method: Method, call: Callable[[Call], Awaitable[None]], counts: CallCounts, callers: Callers = EVERYONE
) -> Callable[[object, Context], Awaitable[None]]:
    async def handle(_requests: object, context: Context) -> None:
        try:
            with counts.call(method):
                left_s = await callers.admit(method.short, context)
                callers.check(method.short, None)
                async with until_expiry(left_s):
                    await call(context)
        except Exception as error:  # noqa: BLE001  # every error becomes a status
            await _abort(method, context, error)

    return handle


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
        leader = leader_of(error)
        metadata = ((REASON_KEY, error.reason.value), *(((LEADER_KEY, leader),) if leader else ()))
        await context.abort(STATUS[error.reason], shown(error), metadata)
    except grpc.aio.InternalError as failure:
        raise asyncio.CancelledError from failure


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
