"""The tables between Headgate's errors and gRPC's statuses, both ways: they are total, and retryable errors map to retryable
statuses."""

from __future__ import annotations

import grpc
import pytest

from headgate.broker.client.errors import REASON_KEY as CLIENT_REASON_KEY
from headgate.broker.client.errors import from_call, from_message
from headgate.broker.runtime.errors import (
    ClosedError,
    CorruptError,
    FatalError,
    FencedError,
    HeadgateError,
    InvalidError,
    Reason,
    RetryError,
)
from headgate.broker.server.grpc.errors import MESSAGE_CHARS_MAX, REASON_KEY, STATUS, error_message, shown
from headgate.broker.wire.grpc.headgate.v1 import common_pb2

RETRIED = {
    Reason.NOT_LEADER, Reason.UNKNOWN_LEADER_EPOCH, Reason.STORE_UNAVAILABLE, Reason.STORE_FULL, Reason.TIMED_OUT,
    Reason.OVERLOADED, Reason.NOT_READY, Reason.FENCED, Reason.CLOSED, Reason.COORDINATOR_LOADING, Reason.COORDINATOR_NOT_AVAILABLE,
    Reason.NOT_COORDINATOR, Reason.REBALANCE_IN_PROGRESS, Reason.GROUP_MAX_SIZE_REACHED, Reason.OUT_OF_MEMORY,
    Reason.CONCURRENT_TRANSACTIONS, Reason.TRANSACTION_UNVERIFIED, Reason.UNSTABLE_OFFSET_COMMIT,
}  # fmt: skip


def rpc_error(code: grpc.StatusCode, details: str = "", reason: Reason | str | None = None) -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata() if reason is None else grpc.aio.Metadata((REASON_KEY, str(reason)))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details)


def test_every_reason_has_a_status() -> None:
    assert set(STATUS) == set(Reason)
    assert grpc.StatusCode.OK not in STATUS.values()
    assert REASON_KEY == CLIENT_REASON_KEY


@pytest.mark.parametrize("reason", list(Reason))
def test_a_client_gets_the_reason_back(reason: Reason) -> None:
    error = from_call(rpc_error(STATUS[reason], "it is so", reason), "host:1")
    assert (error.reason, error.message) == (reason, "it is so")
    assert isinstance(error, RetryError) == (reason in RETRIED)


@pytest.mark.parametrize(
    ("kind", "retriable"),
    [
        (InvalidError, False),
        (RetryError, True),
        (FencedError, True),
        (ClosedError, True),
        (CorruptError, False),
        (FatalError, False),
        (HeadgateError, False),
    ],
)
def test_errors_within_a_response(kind: type[HeadgateError], retriable: bool) -> None:
    message = error_message(kind(Reason.NOT_LEADER, "elsewhere"))
    assert (message.reason, message.message, message.retriable) == ("not_leader", "elsewhere", retriable)
    back = from_message(message)
    assert isinstance(back, RetryError if retriable else InvalidError)
    assert back.reason is Reason.NOT_LEADER


def test_a_reason_that_this_client_does_not_know() -> None:
    assert from_message(common_pb2.Error(reason="too_many_moons", message="m", retriable=True)).reason is Reason.INTERNAL
    assert from_call(rpc_error(grpc.StatusCode.UNAVAILABLE, "m", "too_many_moons"), "host:1").reason is Reason.INTERNAL


@pytest.mark.parametrize(
    ("code", "details", "kind", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect", RetryError, Reason.NOT_READY),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", RetryError, Reason.TIMED_OUT),
        (grpc.StatusCode.UNIMPLEMENTED, "", InvalidError, Reason.UNSUPPORTED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (5 vs. 4)", InvalidError, Reason.MESSAGE_TOO_LARGE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!", RetryError, Reason.OVERLOADED),
        (grpc.StatusCode.INTERNAL, "rst_stream", RetryError, Reason.INTERNAL),
    ],
)
def test_what_grpc_says_by_itself(code: grpc.StatusCode, details: str, kind: type[HeadgateError], reason: Reason) -> None:
    error = from_call(rpc_error(code, details), "host:1")
    assert type(error) is kind
    assert error.reason is reason
    assert "host:1" in error.message


def test_texts_are_bounded_and_valid() -> None:
    assert len(shown(InvalidError(Reason.INVALID_TOPIC, "x" * 100_000))) == MESSAGE_CHARS_MAX
    assert shown(InvalidError(Reason.INVALID_TOPIC, "\ud800")) == "?"
