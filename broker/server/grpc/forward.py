"""Calls that only the leader can answer, at a broker that is not the leader: passed on unchanged, once.

A call that was passed on carries `FORWARDED_KEY`, and is not passed on again: during a change of the leader, each of two brokers
may take the other for the leader.
"""

from __future__ import annotations

import grpc
from google.protobuf.message import Message

from headgate.broker.control.stream import Connect, connect
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.broker.server.grpc.callers import FORWARDED_KEY, is_forwarded
from headgate.broker.server.grpc.errors import REASON_KEY
from headgate.broker.server.grpc.open_calls import Context
from headgate.broker.wire.grpc.methods import Method

TIMEOUT_S = 30.0
"""Deadline of a call if its client set none."""


class Forwarder:
    """One channel, to the current leader.

    Args:
        connect: makes a channel to another broker.
    """

    def __init__(self, connect: Connect = connect) -> None:
        self._connect = connect
        self._address = ""
        self._channel: grpc.aio.Channel | None = None

    async def unary(self, address: str, method: Method, request: Message, context: Context) -> bytes:
        """The leader's answer, encoded. The leader's error becomes this call's error. Raises RetryError(NOT_LEADER) for a call
        that was passed on already."""
        channel = await self._to(address, context)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method.path)
        try:
            return await call(request.SerializeToString(), timeout=_left_s(context) or TIMEOUT_S, metadata=((FORWARDED_KEY, "1"),))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and reason_of(error) is None:
                # The next call opens a channel of its own: the certificates may have changed.
                self._address = ""
            await _pass_on(error, context)
            raise

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def _to(self, address: str, context: Context) -> grpc.aio.Channel:
        if is_forwarded(context):
            raise RetryError(Reason.NOT_LEADER, f"this broker does not lead the cluster. leader=`{address}`")
        if self._channel is None or address != self._address:
            await self.close()
            self._address, self._channel = address, self._connect(address)
        return self._channel


def reason_of(error: grpc.aio.AioRpcError) -> str | None:
    """The reason that another broker gave, or None: the error is gRPC's own."""
    metadata = error.trailing_metadata()
    named = None if metadata is None else metadata.get(REASON_KEY)
    return None if named is None else str(named)


def _left_s(context: Context) -> float | None:
    left_s = context.time_remaining()
    return None if left_s is None or left_s > 1e9 else max(left_s, 0.001)


async def _pass_on(error: grpc.aio.AioRpcError, context: Context) -> None:
    named = reason_of(error)
    # gRPC's own errors carry no reason: the leader could not be reached, and may be gone.
    reason = Reason.NOT_LEADER.value if named is None else named
    code = grpc.StatusCode.UNAVAILABLE if named is None else error.code()
    details = (error.details() or "") if named is not None else "the cluster's leader cannot be reached: try again"
    await context.abort(code, details, ((REASON_KEY, reason),))
