"""Kafka's own requests over the address and the login of gRPC: how topics, groups, rules and quotas are administered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from headgate.broker.client.cluster import Cluster
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.wire.grpc.headgate.v1 import kafka_pb2
from headgate.broker.wire.grpc.methods import methods
from headgate.broker.wire.kafka.errors import CODES, ErrorCode
from headgate.broker.wire.kafka.header import request_header, response_header
from headgate.broker.wire.kafka.message import Message

ASK = methods(kafka_pb2.DESCRIPTOR.services_by_name["Kafka"])["Ask"]
TIMEOUT_MS = 30_000
"""Time that a broker may take for a change; clients stop waiting earlier."""

REASONS: dict[int, Reason] = {
    **{int(code): reason for reason, code in reversed(CODES.items())},
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Reason.NOT_AUTHORIZED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Reason.NOT_AUTHORIZED,
}
"""By code; of several reasons the first one in the table of codes."""
AGAIN = frozenset(
    (
        Reason.NOT_READY,
        Reason.NOT_LEADER,
        Reason.TIMED_OUT,
        Reason.COORDINATOR_LOADING,
        Reason.COORDINATOR_NOT_AVAILABLE,
        Reason.NOT_COORDINATOR,
        Reason.STORE_UNAVAILABLE,
    )
)
"""Reasons after which the same request may succeed."""
SENTENCES = {
    Reason.OFFSET_OUT_OF_RANGE: "offset is out of range",
    Reason.UNKNOWN_TOPIC: "topic or partition does not exist",
    Reason.NOT_LEADER: "the partition's lead does not answer",
    Reason.NOT_AUTHORIZED: "no permission",
    Reason.POLICY_VIOLATION: "the settings of the topic do not allow it",
    Reason.NON_EMPTY_GROUP: "group has members: stop them first",
    Reason.GROUP_ID_NOT_FOUND: "group does not exist",
}
"""For answers that have codes alone."""

_A = TypeVar("_A", bound=Message)
_T = TypeVar("_T")


def check(code: int, message: str | None, where: str) -> None:
    """Raise the HeadgateError of an error code.

    Args:
        message: the broker's sentence, if the answer has one.
        where: what the request was about, such as ``topic=`clicks```.
    """
    if not code:
        return
    reason = REASONS.get(code, Reason.INTERNAL)
    if reason is Reason.NOT_AUTHORIZED or not message:
        message = f"{SENTENCES.get(reason, reason.value.replace('_', ' '))}. {where}"
    error: type[HeadgateError] = RetryError if reason in AGAIN else InvalidError
    raise error(reason, message)


def first(field: str, where: str) -> Callable[[Any], Any]:
    """Reads the first row of a list in an answer, or raises its error. `where`: see `check`."""

    def read(answer: Any) -> Any:
        row = getattr(answer, field)[0]
        check(row.error_code, getattr(row, "error_message", None), where)
        return row

    return read


async def ask(cluster: Cluster, request: Message, kind: type[_A], read: Callable[[_A], _T]) -> _T:
    """What the answer to a question says.

    Args:
        kind: the class of the answer.
        read: returns what the answer says, or raises its error (`check`). A RetryError is repeated.
    """
    found: _T = await cluster.call(ASK, _asked(request), retry=True, read=partial(_read, kind, read))
    return found


async def change(
    cluster: Cluster, request: Message, kind: type[_A], read: Callable[[_A], _T], *, already: Reason | None = None
) -> _T | None:
    """`ask` for a change, repeated as `Cluster.change` does it: None when only `already` confirms it."""
    found: _T | None = await cluster.change(ASK, _asked(request), already=already, read=partial(_read, kind, read))
    return found


async def ask_broker(cluster: Cluster, broker_id: int, request: Message, kind: type[_A], read: Callable[[_A], _T]) -> _T:
    """One attempt to ask a certain broker. The broker that answered last passes the request on to it."""
    found: _T = await cluster.once(ASK, _asked(request, broker_id), partial(_read, kind, read))
    return found


def _asked(request: Message, broker_id: int | None = None) -> kafka_pb2.KafkaRequest:
    assert request.CARRIED is not None
    head = request_header(request.API_KEY, request.CARRIED, _is_flexible(request))
    return kafka_pb2.KafkaRequest(request=head + request.encode_carried(), broker_id=broker_id)


def _read(kind: type[_A], read: Callable[[_A], _T], response: kafka_pb2.KafkaAnswer) -> _T:
    return read(kind.decode_carried(response.answer, len(response_header(kind.API_KEY, 0, _is_flexible(kind)))))


def _is_flexible(message: Message | type[Message]) -> bool:
    return message.FLEXIBLE_FROM is not None and message.CARRIED is not None and message.CARRIED >= message.FLEXIBLE_FROM
