"""Calls to the other brokers for facts that only they know: their own part of an answer about the whole cluster.

Such a call carries `FORWARDED_KEY`. A broker that receives it answers for itself alone, and calls no other broker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.patience import Patiences
from headgate.broker.control.stream import Connect, connect
from headgate.broker.control.wire import error_of
from headgate.broker.engine.engine import Engine
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.server.grpc.callers import FORWARDED_KEY
from headgate.broker.server.grpc.forward import reason_of
from headgate.broker.server.net.ports import shown
from headgate.broker.wire.grpc.methods import Method

TIMEOUT_S = 2.0
"""Wait for facts that a near broker already knows. A broker that is silent for this long is being replaced, or far away: then the
next wait is longer (`Patience`)."""
CHANGE_TIMEOUT_S = 15.0
"""Wait for a change that must become durable, at a near broker."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one broker: `response`, or the reason for its absence."""

    broker: Incarnation
    response: Any
    error: HeadgateError | None


def address_of(broker: Incarnation) -> str:
    """``host:port`` of a broker's gRPC port for clients; empty if it is unknown."""
    return shown(broker.host, broker.grpc_port) if broker.grpc_port else ""


def peer_address(broker: Incarnation) -> str:
    """``host:port`` of a broker's gRPC port for other brokers."""
    return shown(broker.host, broker.peer_port)


class Peers:
    """Channels to the other brokers, opened on first use."""

    def __init__(self, engine: Engine, connect: Connect = connect) -> None:
        self._engine = engine
        self._connect = connect
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._calls: Counter[str] = Counter()
        """Calls in progress, by address."""
        self._patiences = {limit_s: Patiences(limit_s) for limit_s in (TIMEOUT_S, CHANGE_TIMEOUT_S)}
        """By the limit for a near broker: a fact takes a round trip, a change also the time of its store."""

    def others(self) -> list[Incarnation]:
        """The other live brokers, by id."""
        return [broker for broker in self._engine.brokers() if broker.id != self._engine.incarnation_id and broker.grpc_port]

    async def call(self, broker: Incarnation, method: Method, request: Message, timeout_s: float = TIMEOUT_S) -> Any:
        """One broker's answer. Raises HeadgateError; RetryError(TIMED_OUT, CLOSED) if the broker may or may not have seen the
        request."""
        address = peer_address(broker)
        self._calls[address] += 1
        near_s = CHANGE_TIMEOUT_S if timeout_s == CHANGE_TIMEOUT_S else TIMEOUT_S
        patience = self._patiences[near_s].of(broker.id, (broker.id for broker in self._engine.brokers()))
        asked_s = asyncio.get_running_loop().time()
        timeout_s += patience.limit_s - near_s
        try:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = (await self._channel(address)).unary_unary(method.path)
            data = await call(request.SerializeToString(), timeout=timeout_s, metadata=((FORWARDED_KEY, "1"),))
            patience.answered(asyncio.get_running_loop().time() - asked_s)
        except grpc.aio.AioRpcError as error:
            if reason_of(error) is not None:
                raise error_of(error, address) from error
            if error.code() is grpc.StatusCode.UNAVAILABLE and self._calls[address] == 1:
                await self._forget(address)  # the certificates may have changed
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if late:
                patience.ran_out()
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
        """The answers of some brokers, each to a request of its own; all requests are sent at once."""
        return await asyncio.gather(*(self._answer(broker, method, request, timeout_s) for broker, request in brokers))

    async def _answer(self, broker: Incarnation, method: Method, request: Message, timeout_s: float) -> Answer:
        try:
            return Answer(broker, await self.call(broker, method, request, timeout_s), None)
        except HeadgateError as error:
            return Answer(broker, None, error)

    async def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._connect(address)
            known = {peer_address(broker) for broker in self.others()}
            # Closing a channel cancels its waiting calls, and a call to a broker that was just lost may still be waiting.
            over = [self._channels.pop(gone) for gone in self._channels.keys() - known if not self._calls[gone]]
            for one in over:
                await one.close()
        return channel

    async def _forget(self, address: str) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Close the connections."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
