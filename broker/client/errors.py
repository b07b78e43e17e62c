"""Brokers' errors and gRPC's own errors as Headgate's errors."""

from __future__ import annotations

import grpc

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.wire.grpc.headgate.v1 import common_pb2

REASON_KEY = "headgate-reason"
"""Trailing metadata with the reason of a failed call."""

_NOT_CONNECTED = (
    "failed to connect",
    "connections to all backends failing",
    "errors resolving",
    "name resolution",
    "dns resolution",
    "refused",
)
"""gRPC's messages for a call that never left; it has no status code for that."""

_RETRIABLE_CODES = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
    )
)


def from_message(error: common_pb2.Error) -> HeadgateError:
    """The error of a part of a request."""
    return (RetryError if error.retriable else InvalidError)(_reason(error.reason), error.message)


def from_call(error: grpc.aio.AioRpcError, address: str) -> HeadgateError:
    """The error of a whole call to the broker at `address`."""
    code, details = error.code(), error.details() or ""
    metadata = error.trailing_metadata()
    named = None if metadata is None else metadata.get(REASON_KEY)
    if named is not None:
        return (RetryError if code in _RETRIABLE_CODES else InvalidError)(_reason(str(named)), details)
    # gRPC's own error: no broker answered.
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RetryError(Reason.TIMED_OUT, f"broker did not answer in time. address=`{address}`")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return InvalidError(Reason.MESSAGE_TOO_LARGE, f"message is too large for gRPC: {details}. address=`{address}`")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return RetryError(Reason.OVERLOADED, f"broker takes no more calls at the moment. address=`{address}`")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return InvalidError(
            Reason.UNSUPPORTED, f"server does not know this call: is it a Headgate broker, of this version? address=`{address}`"
        )
    if code is grpc.StatusCode.UNAVAILABLE and not any(word in details.lower() for word in _NOT_CONNECTED):
        # The connection existed, so the call may have begun.
        return RetryError(Reason.CLOSED, f"the connection broke. address=`{address}` error=`{details}`")
    if code is grpc.StatusCode.UNAVAILABLE:
        return RetryError(Reason.NOT_READY, f"broker cannot be reached. address=`{address}` error=`{details}`")
    return RetryError(Reason.INTERNAL, f"call failed. address=`{address}` code=`{code.name.lower()}` error=`{details}`")


def _reason(word: str) -> Reason:
    """The reason, or INTERNAL for a newer broker's reason that this client does not know."""
    try:
        return Reason(word)
    except ValueError:
        return Reason.INTERNAL


def skip_command(topic: str, partition: int, first: int, last: int) -> str:
    """The command with which an operator lets readers step over some offsets."""
    return f"headgate topic skip {topic} --partition {partition} --offset {first}" + (f" --to {last}" if last > first else "")


def unreadable(error: HeadgateError, topic: str, partition: int, first: int, last: int) -> InvalidError:
    """What a reader raises that cannot read a batch with these offsets: where it stands, and the way past it."""
    return InvalidError(
        error.reason,
        f"{error.message} topic=`{topic}` partition=`{partition}` first=`{first}` last=`{last}`: to let readers step over the "
        f"batch, run `{skip_command(topic, partition, first, last)}`",
    )
