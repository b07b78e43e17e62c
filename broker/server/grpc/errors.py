"""The one table from Headgate's reasons to gRPC statuses.

A status is coarse. The reason itself is sent beside it, in the trailing metadata of a failed call or in an `Error` message. The
class of the error decides whether the client retries, not the status: UNAVAILABLE may always be retried, RESOURCE_EXHAUSTED
after a pause.
"""

from __future__ import annotations

from grpc import StatusCode

from headgate.broker.control.broker_proof import CHALLENGE_KEY, ChallengeError
from headgate.broker.runtime.errors import ClosedError, FencedError, HeadgateError, Reason, RetryError
from headgate.broker.wire.grpc.headgate.v1 import common_pb2

REASON_KEY = "headgate-reason"
"""Trailing metadata with the `Reason` of a failed call."""
LEADER_KEY = "headgate-leader"
"""Trailing metadata with the address of the right broker."""

MESSAGE_CHARS_MAX = 1000
"""A longer message is cut: HTTP/2 headers are small, and a client must not choose their size."""

STATUS: dict[Reason, StatusCode] = {
    Reason.INVALID_REQUEST: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_TOPIC: StatusCode.INVALID_ARGUMENT,
    Reason.UNKNOWN_TOPIC: StatusCode.NOT_FOUND,
    Reason.UNKNOWN_TOPIC_ID: StatusCode.NOT_FOUND,
    Reason.TOPIC_EXISTS: StatusCode.ALREADY_EXISTS,
    Reason.INVALID_PARTITIONS: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_REPLICATION_FACTOR: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_REPLICA_ASSIGNMENT: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_CONFIG: StatusCode.INVALID_ARGUMENT,
    Reason.CHANGED_MEANWHILE: StatusCode.FAILED_PRECONDITION,
    Reason.OFFSET_OUT_OF_RANGE: StatusCode.OUT_OF_RANGE,
    Reason.INVALID_TIMESTAMP: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_RECORD: StatusCode.INVALID_ARGUMENT,
    Reason.CORRUPT_MESSAGE: StatusCode.INVALID_ARGUMENT,
    Reason.MESSAGE_TOO_LARGE: StatusCode.INVALID_ARGUMENT,
    Reason.UNSUPPORTED_MESSAGE_FORMAT: StatusCode.INVALID_ARGUMENT,
    Reason.UNSUPPORTED_COMPRESSION: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_ACKS: StatusCode.INVALID_ARGUMENT,
    Reason.OUT_OF_ORDER_SEQUENCE: StatusCode.FAILED_PRECONDITION,
    Reason.DUPLICATE_SEQUENCE: StatusCode.ALREADY_EXISTS,
    Reason.INVALID_PRODUCER_EPOCH: StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_PRODUCER_ID: StatusCode.FAILED_PRECONDITION,
    Reason.INVALID_PRODUCER_ID_MAPPING: StatusCode.FAILED_PRECONDITION,
    Reason.PRODUCER_FENCED: StatusCode.FAILED_PRECONDITION,
    Reason.INVALID_TRANSACTION_STATE: StatusCode.FAILED_PRECONDITION,
    Reason.INVALID_TRANSACTION_TIMEOUT: StatusCode.INVALID_ARGUMENT,
    Reason.TRANSACTIONAL_ID_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.TRANSACTION_ABORTABLE: StatusCode.FAILED_PRECONDITION,
    Reason.CONCURRENT_TRANSACTIONS: StatusCode.ABORTED,
    Reason.TRANSACTION_UNVERIFIED: StatusCode.UNAVAILABLE,
    Reason.UNSTABLE_OFFSET_COMMIT: StatusCode.ABORTED,
    Reason.INVALID_GROUP_ID: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_SESSION_TIMEOUT: StatusCode.INVALID_ARGUMENT,
    Reason.INCONSISTENT_GROUP_PROTOCOL: StatusCode.FAILED_PRECONDITION,
    Reason.GROUP_MAX_SIZE_REACHED: StatusCode.RESOURCE_EXHAUSTED,
    Reason.GROUP_ID_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.NON_EMPTY_GROUP: StatusCode.FAILED_PRECONDITION,
    Reason.GROUP_SUBSCRIBED_TO_TOPIC: StatusCode.FAILED_PRECONDITION,
    Reason.OFFSET_METADATA_TOO_LARGE: StatusCode.INVALID_ARGUMENT,
    Reason.UNKNOWN_GATE: StatusCode.NOT_FOUND,
    Reason.GATE_CONFLICT: StatusCode.FAILED_PRECONDITION,
    Reason.INVALID_REFERENCE: StatusCode.INVALID_ARGUMENT,
    Reason.UNSUPPORTED: StatusCode.UNIMPLEMENTED,
    Reason.POLICY_VIOLATION: StatusCode.PERMISSION_DENIED,
    Reason.NOT_AUTHENTICATED: StatusCode.UNAUTHENTICATED,
    Reason.NOT_AUTHORIZED: StatusCode.PERMISSION_DENIED,
    Reason.UNKNOWN_USER: StatusCode.NOT_FOUND,
    Reason.USER_EXISTS: StatusCode.ALREADY_EXISTS,
    Reason.NOT_LEADER: StatusCode.UNAVAILABLE,
    Reason.FENCED_LEADER_EPOCH: StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_LEADER_EPOCH: StatusCode.UNAVAILABLE,
    Reason.STORE_UNAVAILABLE: StatusCode.UNAVAILABLE,
    Reason.TIMED_OUT: StatusCode.DEADLINE_EXCEEDED,
    Reason.OVERLOADED: StatusCode.RESOURCE_EXHAUSTED,
    Reason.OUT_OF_MEMORY: StatusCode.RESOURCE_EXHAUSTED,
    Reason.NOT_READY: StatusCode.UNAVAILABLE,
    Reason.COORDINATOR_LOADING: StatusCode.UNAVAILABLE,
    Reason.COORDINATOR_NOT_AVAILABLE: StatusCode.UNAVAILABLE,
    Reason.NOT_COORDINATOR: StatusCode.UNAVAILABLE,
    Reason.MEMBER_ID_REQUIRED: StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_MEMBER_ID: StatusCode.NOT_FOUND,
    Reason.ILLEGAL_GENERATION: StatusCode.FAILED_PRECONDITION,
    Reason.REBALANCE_IN_PROGRESS: StatusCode.ABORTED,
    Reason.FENCED_MEMBER_EPOCH: StatusCode.FAILED_PRECONDITION,
    Reason.STALE_MEMBER_EPOCH: StatusCode.FAILED_PRECONDITION,
    Reason.UNRELEASED_INSTANCE_ID: StatusCode.FAILED_PRECONDITION,
    Reason.UNSUPPORTED_ASSIGNOR: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_REGULAR_EXPRESSION: StatusCode.INVALID_ARGUMENT,
    Reason.FENCED: StatusCode.UNAVAILABLE,
    Reason.FENCED_INSTANCE_ID: StatusCode.FAILED_PRECONDITION,
    Reason.CLOSED: StatusCode.UNAVAILABLE,
    Reason.NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.STORE_MISCONFIGURED: StatusCode.INTERNAL,
    Reason.STORE_MISSING: StatusCode.INTERNAL,
    Reason.STORE_FULL: StatusCode.RESOURCE_EXHAUSTED,
    Reason.CORRUPT_STORE: StatusCode.DATA_LOSS,
    Reason.INTERNAL: StatusCode.INTERNAL,
}
"""Has all reasons; a test proves it."""


class MovedError(RetryError):
    """This broker does not lead the partition. `leader` is the lead's address: ``host:port`` of its gRPC port, empty if no lead
    is known."""

    def __init__(self, message: str, leader: str) -> None:
        super().__init__(Reason.NOT_LEADER, message)
        self.leader = leader


def leader_of(error: HeadgateError) -> str:
    """The address in an error."""
    return error.leader if isinstance(error, MovedError) else ""


def metadata_of(error: HeadgateError) -> tuple[tuple[str, str], ...]:
    """The trailing metadata of a call that ends with an error."""
    leader = leader_of(error)
    challenge = error.challenge if isinstance(error, ChallengeError) else ""
    return (
        (REASON_KEY, error.reason.value),
        *(((LEADER_KEY, leader),) if leader else ()),
        *(((CHALLENGE_KEY, challenge),) if challenge else ()),
    )


def retriable(error: HeadgateError) -> bool:
    """Whether the same request may succeed later, or at the broker that took over."""
    return isinstance(error, RetryError | FencedError | ClosedError)


def error_message(error: HeadgateError) -> common_pb2.Error:
    """The error for one part of a request."""
    return common_pb2.Error(reason=error.reason.value, message=shown(error), retriable=retriable(error), leader=leader_of(error))


def shown(error: HeadgateError) -> str:
    """The error's text in the form that is sent: bounded, and valid UTF-8."""
    text = error.message[:MESSAGE_CHARS_MAX]
    return text.encode("utf-8", "replace").decode()
