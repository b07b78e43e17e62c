"""Streams to other brokers: raw messages in both directions, and one kind of error for all of grpc's ways to end a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

from headgate.broker.cluster.patience import LONGEST_S, Patience
from headgate.broker.control.wire import error_of
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError

Connect: TypeAlias = Callable[[str], grpc.aio.Channel]
"""From ``host:port`` of another broker to a channel whose first call opens the connection."""
_SETTLED = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
CONNECT_MS = round(LONGEST_S * 1000)
"""Longest time for one attempt of gRPC to connect, in ms: also TCP's and TLS's round trips over a long way."""
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # Pauses between attempts to connect: 0.1 to 1 s. A broker that restarts is back within seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # In spite of its name, this option limits the time of an attempt, not the pause.
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
]


def connect(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel to another broker, with TLS if there are credentials. The first call opens the connection."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


async def connected(channel: grpc.aio.Channel, address: str, patience: Patience, clock: Clock) -> float:
    """Wait until a channel is open, or could not be opened: then its first call raises the reason.

    Returns the seconds that it took. Raises RetryError(TIMED_OUT) after the limit of `patience`, which learns from the result.
    """
    asked_s = clock.monotonic()
    try:
        async with asyncio.timeout(patience.limit_s):
            while (state := channel.get_state(try_to_connect=True)) not in _SETTLED:
                await channel.wait_for_state_change(state)
    except TimeoutError as error:
        patience.ran_out()
        raise RetryError(Reason.TIMED_OUT, f"the other broker is not reached. address=`{address}`") from error
    took_s = clock.monotonic() - asked_s
    if state is grpc.ChannelConnectivity.READY:
        patience.answered(took_s)
    return took_s


class Stream:
    """One bidirectional call. Whenever it ends, its methods raise RetryError, or the error of the other side.

    Args:
        address: of the other side, for messages.
        path: the method's path, from `wire.grpc.methods`.
    """

    def __init__(self, channel: grpc.aio.Channel, path: str, address: str) -> None:
        self._address = address
        self._call: Any = channel.stream_stream(path)()
        self._sending = asyncio.Lock()
        self._given_up = ""

    async def write(self, message: bytes, timeout_s: float | None = None) -> None:
        """Send a message. Returns when the transport took it. The first call waits for the connection, unless `connected` did."""
        async with self._sending:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._call.write(message)
            except TimeoutError as error:
                raise RetryError(Reason.TIMED_OUT, f"the other broker is not reached. address=`{self._address}`") from error
            except asyncio.InvalidStateError as error:
                raise RetryError(Reason.NOT_LEADER, f"the other broker ended the stream. address=`{self._address}`") from error
            except grpc.aio.AioRpcError as error:
                raise error_of(error, self._address) from error

    async def read(self, timeout_s: float | None) -> bytes:
        """The next message."""
        try:
            return await self._read(timeout_s)
        except HeadgateError as error:
            if self._given_up:
                raise RetryError(Reason.TIMED_OUT, f"{self._given_up} address=`{self._address}`") from error
            raise

    async def _read(self, timeout_s: float | None) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                data = await self._call.read()
        except TimeoutError as error:
            raise RetryError(Reason.TIMED_OUT, f"the other broker is silent. address=`{self._address}`") from error
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self._address) from error
        except asyncio.CancelledError as error:
            # grpc raises this also if the stream was cancelled, and not this task. That must not end the control plane without a
            # message.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RetryError(Reason.NOT_LEADER, f"the stream was cancelled. address=`{self._address}`") from error
        if data is grpc.aio.EOF:
            await self._raise_status()
        assert isinstance(data, bytes)
        return data

    async def _raise_status(self) -> None:
        call = self._call
        status = await call.code()
        if status is not grpc.StatusCode.OK:
            raise error_of(
                grpc.aio.AioRpcError(
                    status, await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
                ),
                self._address,
            )
        raise RetryError(Reason.NOT_LEADER, f"the other broker ended the stream. address=`{self._address}`")

    def give_up(self, why: str) -> None:
        """End the stream. `read` raises RetryError(TIMED_OUT) with this text."""
        self._given_up = why
        self._call.cancel()

    def cancel(self) -> None:
        """End the stream."""
        self._call.cancel()
