"""Channels to other brokers whose calls prove that a broker makes them (`broker_proof.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, cast

import grpc

from headgate.broker.control.broker_proof import BROKER_KEY, CHALLENGE_KEY, proof
from headgate.broker.control.stream import connect
from headgate.broker.control.wire import REASON_KEY
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from headgate.broker.wire.grpc.methods import methods

Metadata: TypeAlias = tuple[tuple[str, str], ...]
ASK = methods(control_pb2.DESCRIPTOR.services_by_name["Control"])["View"].path
"""The method whose refusal has the challenge. At a broker that asks for no proof it changes nothing."""


class Prover:
    """One broker's side of its proofs.

    Args:
        key: returns the key that all brokers of the cluster have. Raises RetryError.
    """

    def __init__(self, broker_id: int, key: Callable[[], Awaitable[bytes]]) -> None:
        self._broker_id = broker_id
        self._key = key

    def connect(self, address: str) -> grpc.aio.Channel:
        """A channel to another broker, without TLS. Its first call opens the connection."""
        return cast("grpc.aio.Channel", ProvingChannel(connect(address), self))

    async def metadata(self, challenge: str, path: str) -> Metadata:
        """The metadata that proves one call."""
        return ((BROKER_KEY, proof(await self._key(), self._broker_id, challenge, path)),)


class ProvingChannel:
    """The part of `grpc.aio.Channel` that brokers use."""

    def __init__(self, channel: grpc.aio.Channel, prover: Prover) -> None:
        self._channel, self._prover = channel, prover
        self._challenge = ""
        """The callee's; empty: not known, or the callee asks for no proof."""
        self.get_state, self.wait_for_state_change = channel.get_state, channel.wait_for_state_change
        self.close = channel.close

    def unary_unary(self, path: str) -> Callable[..., Coroutine[Any, Any, bytes]]:
        """As gRPC's. A call with the challenge of the callee's earlier run is refused unread, and is made once more."""
        call: Any = self._channel.unary_unary(path)

        async def proven(request: bytes, *, timeout: float | None = None, metadata: Metadata = ()) -> bytes:  # noqa: ASYNC109  # gRPC's
            left_s = _deadline(timeout)
            if not self._challenge:
                await self._ask(left_s())
            try:
                found: bytes = await call(request, timeout=left_s(), metadata=metadata + await self._proof(path))
            except grpc.aio.AioRpcError as error:
                self._challenge, before = _challenge_of(error), self._challenge
                if not self._challenge or self._challenge == before:
                    raise
                found = await call(request, timeout=left_s(), metadata=metadata + await self._proof(path))
            return found

        return proven

    def stream_stream(self, path: str) -> Callable[[], ProvenStream]:
        """As gRPC's."""

        async def begin() -> Any:
            await self._ask(None)
            return self._channel.stream_stream(path)(metadata=await self._proof(path))

        return lambda: ProvenStream(begin())

    async def _ask(self, timeout_s: float | None) -> None:
        """Ask the callee for its challenge. Raises AioRpcError if it is not reached."""
        call: Any = self._channel.unary_unary(ASK)
        self._challenge = ""
        try:
            await call(b"", timeout=timeout_s, metadata=((BROKER_KEY, ""),))
        except grpc.aio.AioRpcError as error:
            self._challenge = _challenge_of(error)
            if not self._challenge and not any(key == REASON_KEY for key, _ in error.trailing_metadata() or ()):
                raise

    async def _proof(self, path: str) -> Metadata:
        return await self._prover.metadata(self._challenge, path) if self._challenge else ()


class ProvenStream:
    """A call with streams, which begins once the callee has told its challenge."""

    def __init__(self, begin: Coroutine[Any, Any, Any]) -> None:
        self._begun: asyncio.Task[Any] = asyncio.create_task(begin, name="prove")
        # Who uses the stream gets the error; a stream that is given up first is used by nobody.
        self._begun.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _call(self) -> Any:
        return await asyncio.shield(self._begun)

    def cancel(self) -> None:
        """End the call."""
        if not self._begun.cancel() and not self._begun.cancelled() and self._begun.exception() is None:
            self._begun.result().cancel()

    async def write(self, message: bytes) -> None:
        await (await self._call()).write(message)

    async def read(self) -> Any:
        return await (await self._call()).read()

    async def code(self) -> grpc.StatusCode:
        found: grpc.StatusCode = await (await self._call()).code()
        return found

    async def details(self) -> str:
        return str(await (await self._call()).details())

    async def initial_metadata(self) -> Any:
        return await (await self._call()).initial_metadata()

    async def trailing_metadata(self) -> Any:
        return await (await self._call()).trailing_metadata()


def _challenge_of(error: grpc.aio.AioRpcError) -> str:
    return next((str(value) for key, value in error.trailing_metadata() or () if key == CHALLENGE_KEY), "")


def _deadline(timeout_s: float | None) -> Callable[[], float | None]:
    """Returns how much of a time is left."""
    if timeout_s is None:
        return lambda: None
    now_s = asyncio.get_running_loop().time
    at_s = now_s() + timeout_s
    return lambda: max(at_s - now_s(), 0.0)
