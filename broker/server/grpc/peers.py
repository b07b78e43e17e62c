"""The other brokers, as a broker asks them for what only they know: their own part of an answer that is about the whole cluster.

Such a call carries `FORWARDED_KEY`: whoever gets it answers for itself alone, and asks nobody.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from headgate.broker.cluster.manifest import Incarnation
from headgate.broker.control.wire import error_of
from headgate.broker.engine.engine import Engine
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.server.grpc.errors import REASON_KEY
from headgate.broker.server.grpc.forward import FORWARDED_KEY, OPTIONS
from headgate.broker.server.grpc.handlers import Context
from headgate.broker.wire.grpc.methods import Method

TIMEOUT_S = 2.0
"""How long a broker may take to say what it knows already. One that is silent for so long is being replaced."""
CHANGE_TIMEOUT_S = 15.0
"""How long a broker may take for what must become durable."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one broker said: `response`, or why there is none."""

    broker: Incarnation
    response: Any
    error: HeadgateError | None


def is_forwarded(context: Context) -> bool:
    """Whether another broker asks."""
    return any(key == FORWARDED_KEY for key, _ in context.invocation_metadata() or ())


def address_of(broker: Incarnation) -> str:
    """``host:port`` of a broker's gRPC door; empty where it is not known."""
    if not broker.grpc_port:
        return ""
    return f"[{broker.host}]:{broker.grpc_port}" if ":" in broker.host else f"{broker.host}:{broker.grpc_port}"


class Peers:
    """Channels to the other brokers, made when they are needed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._calls: Counter[str] = Counter()
        """Under way, by address."""

    def others(self) -> list[Incarnation]:
        """The other live brokers, by id."""
        return [broker for broker in self._engine.brokers() if broker.id != self._engine.incarnation_id and broker.grpc_port]

    async def call(self, broker: Incarnation, method: Method, request: Message, timeout_s: float = TIMEOUT_S) -> Any:
        """One broker's answer. Raises HeadgateError; RetryError(TIMED_OUT, CLOSED) where it may have seen the request or not."""
        address = address_of(broker)
        self._calls[address] += 1
        try:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = (await self._channel(address)).unary_unary(method.path)
            data = await call(request.SerializeToString(), timeout=timeout_s, metadata=((FORWARDED_KEY, "1"),))
        except grpc.aio.AioRpcError as error:
            if any(key == REASON_KEY for key, _ in error.trailing_metadata() or ()):
                raise error_of(error, address) from error
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise RetryError(
                Reason.TIMED_OUT if late else Reason.CLOSED,
                f"a broker does not answer another. broker=`{broker.broker_id}` address=`{address}`",
            ) from error
        finally:
            self._calls[address] -= 1
            if not self._calls[address]:
                del self._calls[address]
        return method.response.FromString(data)

    async def ask(
        self, brokers: Sequence[tuple[Incarnation, Message]], method: Method, timeout_s: float = TIMEOUT_S
    ) -> list[Answer]:
        """The answers of some brokers, each to a request of its own, all asked at once."""
        return await asyncio.gather(*(self._answer(broker, method, request, timeout_s) for broker, request in brokers))

    async def _answer(self, broker: Incarnation, method: Method, request: Message, timeout_s: float) -> Answer:
        try:
            return Answer(broker, await self.call(broker, method, request, timeout_s), None)
        except HeadgateError as error:
            return Answer(broker, None, error)

    async def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(address, options=OPTIONS)
            known = {address_of(broker) for broker in self.others()}
            # Closing one cancels who waits for an answer, and a broker that was just lost may have been asked before.
            over = [self._channels.pop(gone) for gone in self._channels.keys() - known if not self._calls[gone]]
            for one in over:
                await one.close()
        return channel

    async def close(self) -> None:
        """Give back the connections."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
