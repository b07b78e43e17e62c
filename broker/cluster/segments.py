"""Segments, the loads that are measured on them, and plans: the types that leader, planner and status share. No I/O.

A segment is a contiguous range of a topic's partitions for a span of time, led by one broker incarnation. Split, merge, move,
drain and failover are one operation: seal segments, open their successors. An `Order` names the segments and the brokers. The
leader carries it out (`control/`), whether a `Planner` (reshard.py, placement.py) or an operator made it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from headgate.broker.runtime.steps import Steps


class SegmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An open segment: partitions [first_partition, end_partition) of a topic, led by one incarnation.

    `base_offsets`: its first offset, per partition in order; these are the ends of its predecessors. `origins`: objects with the
    state of the producers at these offsets.
    """

    id: int
    topic_id: uuid.UUID
    first_partition: int
    end_partition: int
    incarnation_id: str
    leader_epoch: int
    base_offsets: list[int] = []
    origins: list[str] = []

    @property
    def partitions(self) -> range:
        return range(self.first_partition, self.end_partition)


class SealedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that has ended. `ends`: the offset after its last record, per partition in order."""

    id: int
    topic_id: uuid.UUID
    first_partition: int
    end_partition: int
    incarnation_id: str
    leader_epoch: int
    base_offsets: list[int]
    ends: list[int]
    producers_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """Traffic of one partition, smoothed by the leader."""

    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    requests_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLoad:
    """Traffic of one open segment. `partitions` has only those with traffic, by number."""

    segment_id: int
    partitions: Mapping[int, PartitionLoad]

    @property
    def bytes_in_per_s(self) -> float:
        return sum(load.bytes_in_per_s for load in self.partitions.values())

    @property
    def bytes_out_per_s(self) -> float:
        return sum(load.bytes_out_per_s for load in self.partitions.values())

    @property
    def requests_per_s(self) -> float:
        return sum(load.requests_per_s for load in self.partitions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """One live member. `cpu_share`: of one core, 0-1. `draining`: it must lose its segments, and gets no new ones."""

    incarnation_id: str
    broker_id: int
    draining: bool = False
    cpu_share: float = 0.0
    memory_bytes: int = 0
    connections: int = 0
    segments: tuple[SegmentLoad, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A segment to open."""

    topic_id: uuid.UUID
    first_partition: int
    end_partition: int
    incarnation_id: str


class OrderKind(StrEnum):
    SPLIT = "split"
    MERGE = "merge"
    MOVE = "move"
    DRAIN = "drain"
    FAILOVER = "failover"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Seal these segments, then open these. The successors cover exactly the partitions of the sealed segments.

    `why`: one lowercase sentence with the numbers that decided it, for `headgate status` and the log.
    """

    kind: OrderKind
    seal: tuple[int, ...]
    open: tuple[Successor, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Orders that may be executed at once, in any order: no segment is in two of them."""

    orders: tuple[Order, ...] = ()


class Planner(Protocol):
    """The leader's interface to a planner. One object lives as long as one leader leads. `now_ms` is monotonic, with any origin.

    The leader calls `observe` once a second with the rates of the last second (the planner smooths them), then `plan`. While an
    order is carried out, its segments are left out of `segments`.
    """

    def observe(self, brokers: Sequence[BrokerLoad], now_ms: int) -> None: ...

    def plan(self, segments: Mapping[int, SegmentInfo], brokers: Sequence[BrokerLoad], now_ms: int) -> Steps[Plan]:
        """The splits, merges and moves that are useful now, and drains. `segments` must not change between two steps; the other
        methods may be called then, but for another plan."""
        ...

    def place(
        self,
        ranges: Sequence[tuple[uuid.UUID, int, int]],
        segments: Mapping[int, SegmentInfo],
        brokers: Sequence[BrokerLoad],
        *,
        divide: bool = False,
    ) -> list[Successor]:
        """Choose leads for partitions without one. They go to brokers that are not draining; if all are draining, to these.

        Args:
            ranges: (topic id, first partition, end partition) without a lead.
            segments: all open segments.
            divide: a range may become several successors, because a new topic is spread over the brokers. False: it stays one.

        Returns:
            Successors that cover exactly `ranges`; [] if there is no broker.
        """
        ...
