"""Requests of Kafka's protocol that Headgate itself makes: over gRPC (`Kafka/Ask`), or inside a broker for a person at its page.
No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.wire.kafka.errors import CODES, ErrorCode
from headgate.broker.wire.kafka.header import request_header, response_header
from headgate.broker.wire.kafka.message import Message

TIMEOUT_MS = 30_000
"""Time that a broker may take for a change; clients stop waiting earlier."""

REASONS: dict[int, Reason] = {
    **{int(code): reason for reason, code in reversed(CODES.items())},
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Reason.NOT_AUTHORIZED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Reason.NOT_AUTHORIZED,
}
"""By code; of several reasons the first one in the table of codes."""
RETRIABLE = frozenset(
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
    error: type[HeadgateError] = RetryError if reason in RETRIABLE else InvalidError
    raise error(reason, message)


def first(field: str, where: str) -> Callable[[Any], Any]:
    """Reads the first row of a list in an answer, or raises its error. `where`: see `check`."""

    def read(answer: Any) -> Any:
        row = getattr(answer, field)[0]
        check(row.error_code, getattr(row, "error_message", None), where)
        return row

    return read


def frame(request: Message) -> bytes:
    """A request with its header."""
    assert request.CARRIED is not None
    return request_header(request.API_KEY, request.CARRIED, _is_flexible(request)) + request.encode_carried()


def answer_of(kind: type[_A], data: bytes) -> _A:
    """The answer in a frame, of that class. Raises DecodeError."""
    return kind.decode_carried(data, len(response_header(kind.API_KEY, 0, _is_flexible(kind))))


def _is_flexible(message: Message | type[Message]) -> bool:
    return message.FLEXIBLE_FROM is not None and message.CARRIED is not None and message.CARRIED >= message.FLEXIBLE_FROM
