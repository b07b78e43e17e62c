"""Errors in the form in which Kafka clients get them: a code, and a message. The table is `wire/kafka/errors.py`."""

from __future__ import annotations

from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.wire.kafka.errors import CODES, ErrorCode

__all__ = ["ErrorCode", "error_code", "error_message", "reason_code"]


def error_code(error: HeadgateError) -> ErrorCode:
    """The code for a Kafka client."""
    return CODES[error.reason]


def reason_code(reason: Reason | None) -> ErrorCode:
    """The code for a reason alone; None is no error."""
    return ErrorCode.NONE if reason is None else CODES[reason]


MESSAGE_LENGTH_MAX = 500
"""Longest message, in characters. Messages repeat text of the client, and a string in a response has at most 32767 bytes."""


def error_message(error: HeadgateError) -> str:
    """The message for the user of a Kafka client."""
    return error.message[:MESSAGE_LENGTH_MAX]
