"""Conversions between messages of the Control service and the control plane's types."""

from __future__ import annotations

import grpc

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.wire.grpc.headgate.v1 import control_pb2

REASON_KEY = "headgate-reason"
"""Trailing metadata with the `Reason` of a failed call."""

_GOOD_STATUS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)
"""Statuses of errors that a repeated call would get again."""


def error_of(error: grpc.aio.AioRpcError, address: str) -> HeadgateError:
    """The error for a failed call to another broker."""
    text = error.details() or error.code().name.lower()
    for key, value in error.trailing_metadata() or ():
        if key == REASON_KEY:
            reason = Reason(str(value))
            if reason is Reason.FENCED:
                return FencedError(reason, text)
            if error.code() in _GOOD_STATUS:
                return InvalidError(reason, text)
            return RetryError(reason, text)
    return RetryError(Reason.NOT_LEADER, f"the leader is not reached: {text.lower()}. address=`{address}`")


def member_message(incarnation: Incarnation) -> control_pb2.BrokerMember:
    return control_pb2.BrokerMember(
        broker_id=incarnation.broker_id,
        host=incarnation.host,
        kafka_port=incarnation.kafka_port,
        grpc_port=incarnation.grpc_port,
        http_port=incarnation.http_port,
        rack=incarnation.rack,
        grpc_mtls_port=incarnation.grpc_mtls_port,
        listeners=dict(incarnation.listeners),
        role=incarnation.role,
    )


def incarnation_of(hello: control_pb2.Hello, opened_ms: int) -> Incarnation:
    """The incarnation to open for a broker. The commit assigns its epoch."""
    member = hello.member
    return Incarnation(
        id=hello.incarnation_id,
        broker_id=member.broker_id,
        leader_epoch=-1,
        opened_ms=opened_ms,
        host=member.host,
        kafka_port=member.kafka_port,
        grpc_port=member.grpc_port,
        http_port=member.http_port,
        rack=member.rack,
        grpc_mtls_port=member.grpc_mtls_port,
        listeners=tuple(sorted(member.listeners.items())),
        role=member.role,
    )
