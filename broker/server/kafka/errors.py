"""Kafka's error codes, and the one table from what went wrong in Headgate to the code that a Kafka client understands.

A code is also an instruction: clients retry some, refresh their metadata on others, and give up on the rest. Where Kafka has no
code for a reason, the table picks the one whose reaction is right.
"""

from __future__ import annotations

from enum import IntEnum

from broker.runtime.errors import HeadgateError, Reason


class ErrorCode(IntEnum):
    """The codes that Headgate sends (org.apache.kafka.common.protocol.Errors)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TRANSACTION_TIMEOUT = 50
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


_CODES = {
    Reason.INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
    Reason.INVALID_TOPIC: ErrorCode.INVALID_TOPIC_EXCEPTION,
    Reason.UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Reason.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_ID,
    Reason.TOPIC_EXISTS: ErrorCode.TOPIC_ALREADY_EXISTS,
    Reason.INVALID_PARTITIONS: ErrorCode.INVALID_PARTITIONS,
    Reason.INVALID_REPLICATION_FACTOR: ErrorCode.INVALID_REPLICATION_FACTOR,
    Reason.INVALID_REPLICA_ASSIGNMENT: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    Reason.INVALID_CONFIG: ErrorCode.INVALID_CONFIG,
    Reason.OFFSET_OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
    Reason.INVALID_TIMESTAMP: ErrorCode.INVALID_TIMESTAMP,
    Reason.INVALID_RECORD: ErrorCode.INVALID_RECORD,
    Reason.CORRUPT_MESSAGE: ErrorCode.CORRUPT_MESSAGE,
    Reason.MESSAGE_TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    Reason.UNSUPPORTED_MESSAGE_FORMAT: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    Reason.UNSUPPORTED_COMPRESSION: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    Reason.INVALID_ACKS: ErrorCode.INVALID_REQUIRED_ACKS,
    Reason.OUT_OF_ORDER_SEQUENCE: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Reason.DUPLICATE_SEQUENCE: ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    Reason.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    Reason.UNKNOWN_PRODUCER_ID: ErrorCode.UNKNOWN_PRODUCER_ID,
    Reason.UNSUPPORTED: ErrorCode.UNSUPPORTED_VERSION,
    Reason.POLICY_VIOLATION: ErrorCode.POLICY_VIOLATION,
    Reason.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Reason.FENCED_LEADER_EPOCH: ErrorCode.FENCED_LEADER_EPOCH,
    Reason.UNKNOWN_LEADER_EPOCH: ErrorCode.UNKNOWN_LEADER_EPOCH,
    # Retriable in every client, with a refresh of its metadata: the store may be well again, or another broker may reach it.
    Reason.STORE_UNAVAILABLE: ErrorCode.KAFKA_STORAGE_ERROR,
    Reason.STORE_FULL: ErrorCode.KAFKA_STORAGE_ERROR,
    Reason.STORE_MISCONFIGURED: ErrorCode.KAFKA_STORAGE_ERROR,
    Reason.NOT_FOUND: ErrorCode.KAFKA_STORAGE_ERROR,
    Reason.CORRUPT_STORE: ErrorCode.KAFKA_STORAGE_ERROR,
    Reason.TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    Reason.OVERLOADED: ErrorCode.REQUEST_TIMED_OUT,
    Reason.NOT_READY: ErrorCode.LEADER_NOT_AVAILABLE,
    # This broker is over; the client must look for another lead.
    Reason.FENCED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Reason.CLOSED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Reason.INTERNAL: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def error_code(error: HeadgateError) -> ErrorCode:
    """The code that a Kafka client is told."""
    return _CODES[error.reason]


MESSAGE_LENGTH_MAX = 500
"""Characters. Messages repeat what the client sent, and a response's string has at most 32767 bytes."""


def error_message(error: HeadgateError) -> str:
    """What the person behind a Kafka client is told."""
    return error.message[:MESSAGE_LENGTH_MAX]
