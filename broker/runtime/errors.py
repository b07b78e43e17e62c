"""The errors of the whole product, divided by the caller's next action.

`Reason` names the fault; the class names the action. Each protocol maps the reasons in one table: `server/kafka/errors.py` to
Kafka's error codes, `server/grpc/errors.py` to gRPC statuses. Messages are lowercase with values last: ``offset is out of range.
topic=`a` partition=`3` offset=`17` ``.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The fault, as one word that logs, metrics and the protocols' tables share."""

    # The request is wrong.
    INVALID_REQUEST = "invalid_request"
    INVALID_TOPIC = "invalid_topic"
    UNKNOWN_TOPIC = "unknown_topic"
    UNKNOWN_TOPIC_ID = "unknown_topic_id"
    TOPIC_EXISTS = "topic_exists"
    INVALID_PARTITIONS = "invalid_partitions"
    INVALID_REPLICATION_FACTOR = "invalid_replication_factor"
    INVALID_REPLICA_ASSIGNMENT = "invalid_replica_assignment"
    INVALID_CONFIG = "invalid_config"
    CHANGED_MEANWHILE = "changed_meanwhile"
    OFFSET_OUT_OF_RANGE = "offset_out_of_range"
    INVALID_TIMESTAMP = "invalid_timestamp"
    INVALID_RECORD = "invalid_record"
    CORRUPT_MESSAGE = "corrupt_message"
    MESSAGE_TOO_LARGE = "message_too_large"
    UNSUPPORTED_MESSAGE_FORMAT = "unsupported_message_format"
    UNSUPPORTED_COMPRESSION = "unsupported_compression"
    INVALID_ACKS = "invalid_acks"
    OUT_OF_ORDER_SEQUENCE = "out_of_order_sequence"
    DUPLICATE_SEQUENCE = "duplicate_sequence"
    INVALID_PRODUCER_EPOCH = "invalid_producer_epoch"
    UNKNOWN_PRODUCER_ID = "unknown_producer_id"
    INVALID_GROUP_ID = "invalid_group_id"
    INVALID_SESSION_TIMEOUT = "invalid_session_timeout"
    INCONSISTENT_GROUP_PROTOCOL = "inconsistent_group_protocol"
    GROUP_MAX_SIZE_REACHED = "group_max_size_reached"
    GROUP_ID_NOT_FOUND = "group_id_not_found"
    NON_EMPTY_GROUP = "non_empty_group"
    GROUP_SUBSCRIBED_TO_TOPIC = "group_subscribed_to_topic"
    OFFSET_METADATA_TOO_LARGE = "offset_metadata_too_large"
    UNKNOWN_GATE = "unknown_gate"
    GATE_CONFLICT = "gate_conflict"
    INVALID_REFERENCE = "invalid_reference"
    UNSUPPORTED = "unsupported"
    POLICY_VIOLATION = "policy_violation"
    INVALID_PRODUCER_ID_MAPPING = "invalid_producer_id_mapping"
    PRODUCER_FENCED = "producer_fenced"
    INVALID_TRANSACTION_STATE = "invalid_transaction_state"
    INVALID_TRANSACTION_TIMEOUT = "invalid_transaction_timeout"
    TRANSACTIONAL_ID_NOT_FOUND = "transactional_id_not_found"
    TRANSACTION_ABORTABLE = "transaction_abortable"
    NOT_AUTHENTICATED = "not_authenticated"
    NOT_AUTHORIZED = "not_authorized"
    UNKNOWN_USER = "unknown_user"
    USER_EXISTS = "user_exists"
    UNSUPPORTED_ASSIGNOR = "unsupported_assignor"
    INVALID_REGULAR_EXPRESSION = "invalid_regular_expression"
    # Try again, at this broker or another one.
    CONCURRENT_TRANSACTIONS = "concurrent_transactions"
    TRANSACTION_UNVERIFIED = "transaction_unverified"
    UNSTABLE_OFFSET_COMMIT = "unstable_offset_commit"
    NOT_LEADER = "not_leader"
    FENCED_LEADER_EPOCH = "fenced_leader_epoch"
    UNKNOWN_LEADER_EPOCH = "unknown_leader_epoch"
    STORE_UNAVAILABLE = "store_unavailable"
    TIMED_OUT = "timed_out"
    OVERLOADED = "overloaded"
    NOT_READY = "not_ready"
    COORDINATOR_LOADING = "coordinator_loading"
    COORDINATOR_NOT_AVAILABLE = "coordinator_not_available"
    NOT_COORDINATOR = "not_coordinator"
    MEMBER_ID_REQUIRED = "member_id_required"
    UNKNOWN_MEMBER_ID = "unknown_member_id"
    ILLEGAL_GENERATION = "illegal_generation"
    REBALANCE_IN_PROGRESS = "rebalance_in_progress"
    FENCED_MEMBER_EPOCH = "fenced_member_epoch"
    STALE_MEMBER_EPOCH = "stale_member_epoch"
    UNRELEASED_INSTANCE_ID = "unreleased_instance_id"
    # Another incarnation took over, or the object is closed.
    FENCED = "fenced"
    FENCED_INSTANCE_ID = "fenced_instance_id"
    CLOSED = "closed"
    # The store's own answers.
    NOT_FOUND = "not_found"
    STORE_MISCONFIGURED = "store_misconfigured"
    STORE_MISSING = "store_missing"
    STORE_FULL = "store_full"
    CORRUPT_STORE = "corrupt_store"
    INTERNAL = "internal"
    OUT_OF_MEMORY = "out_of_memory"


class HeadgateError(Exception):
    """Base of every error that Headgate raises on purpose.

    Args:
        reason: the fault.
        message: one lowercase sentence for the person that caused it, values last.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class InvalidError(HeadgateError):
    """The request is wrong, and a retry fails again: change it."""


def in_words(error: Exception) -> str:
    """What went wrong, for a message: the system's words, without the number that Python puts in front of them."""
    return str(getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


class RetryError(HeadgateError):
    """The request is right, but cannot be served here at the moment: try again after a pause, or at another broker."""


class FencedError(HeadgateError):
    """Another incarnation took over. This one may never ack again: stop."""


class ClosedError(HeadgateError):
    """The object has been closed by its owner."""


class CorruptError(HeadgateError):
    """Stored bytes differ from the written ones: stop, and report the place."""


class FatalError(HeadgateError):
    """The process cannot do its work (no such bucket, another cluster's store, no permission): exit with the message."""
