"""Arguments and results of the client: plain values, independent of gRPC."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from headgate.broker.cluster.gates import OPEN_GATES_MAX as OPEN_GATES_MAX
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.log.records import Headers

DEFAULT_CLUSTER = "127.0.0.1:9095"
"""gRPC address of a local cluster's first broker."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class Timestamp(NamedTuple):
    """A position in a partition: the first record with this timestamp or a later one (ms since the epoch), in offset order."""

    ms: int


Start: TypeAlias = int | Timestamp | Literal["earliest", "latest"]
"""A position in a partition: an offset, a time, the first record, or the end behind the last one."""


class ConsumerRecord(NamedTuple):
    """A record as it was read. `timestamp_ms`: set by the producer, or by the broker for a topic with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Delivery(NamedTuple):
    """Position of a written record. `timestamp_ms`: the producer's time, or the broker's time for a topic with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OffsetAndTimestamp(NamedTuple):
    """`timestamp_ms`: time of the record at `offset`, if the request asked for a time and such a record exists; otherwise None."""

    offset: int
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic in a list."""

    name: str
    id: uuid.UUID
    partitions: int
    created_ms: int

    @property
    def is_internal(self) -> bool:
        """Whether the topic belongs to the brokers, such as `__consumer_offsets`."""
        return is_internal(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition and its offsets: records in [log_start, high_watermark) can be read. `leader` is a broker's id.

    A value is -1 if it is unknown: no broker leads the partition at the moment, or its lead does not answer.
    """

    number: int
    leader: int
    leader_epoch: int
    log_start: int
    high_watermark: int
    size_bytes: int
    records: int = -1
    """Readable records: fewer than offsets where gates were not filled."""
    skipped: tuple[tuple[int, int], ...] = ()
    """Offsets that readers skip, as ranges [first, end), by offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableBatch:
    """A batch that consumers cannot read: its offsets [base_offset, end_offset), and the reason."""

    base_offset: int
    end_offset: int
    size_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRecords:
    """Result of checking a part of a partition.

    `base_offset`: the first offset of the first batch, -1 without a batch; `next_offset`: all offsets below it were checked;
    `end_offset`: end of the requested range.
    """

    unreadable: tuple[UnreadableBatch, ...]
    base_offset: int
    next_offset: int
    end_offset: int
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting of a topic. `is_default`: the topic has no value of its own."""

    name: str
    value: str
    is_default: bool
    documentation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """The whole description of one topic: partitions by number, every setting by name."""

    topic: Topic
    partitions: tuple[Partition, ...]
    config: tuple[ConfigEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A live broker.

    `trouble` gives the reason why the broker cannot store records at the moment; empty: it can. `clock_doubt` gives the reason
    why its clock may be wrong, so that it deletes nothing by age; empty: its clock agrees with all others. `history_limit` tells
    how far it limits history for the sake of live records at the moment; empty: it does not.
    """

    id: int
    host: str
    kafka_port: int
    grpc_port: int
    http_port: int
    version: str
    incarnation_id: str
    uptime_ms: int
    memory_bytes: int
    trouble: str
    clock_doubt: str = ""
    history_limit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """Size and traffic of a topic. `records` is an upper bound of the readable records. Rates are None unless the request asked
    for them."""

    name: str
    id: uuid.UUID
    partitions: int
    size_bytes: int
    records: int
    records_in_per_second: float | None
    bytes_in_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """The cluster: brokers by id, topics by name. `broker_id` is the broker that answered."""

    cluster_id: str
    broker_id: int
    brokers: tuple[Broker, ...]
    topics: tuple[TopicStatus, ...]
