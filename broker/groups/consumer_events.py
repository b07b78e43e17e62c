"""The inputs and outputs of a consumer group's state machine (KIP-848): plain data."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headgate.broker.groups.assignors import Partition
from headgate.broker.groups.consumer_member import Holding, Identity
from headgate.broker.runtime.errors import Reason


class ConsumerState(StrEnum):
    """The state of a consumer group. The values are the names in Kafka's tools."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """The limits that all consumer groups share. Durations are ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    members_max: int = 5_000


class KnownTopic(Protocol):
    """A topic, as far as groups need it."""

    @property
    def id(self) -> uuid.UUID: ...

    @property
    def partitions(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Topology:
    """The topics by name, and a number that grows with each change of them, and of permissions."""

    version: int
    topics: Mapping[str, KnownTopic]


@dataclass(frozen=True, slots=True)
class Viewer:
    """A member's client, if it may not see all topics. Viewers with equal keys may see the same ones."""

    key: str
    may_see: Callable[[str], bool] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat. None for a value that has not changed since the last one.

    `owned`: the partitions that the member has. `viewer`: None: the client may see all topics.
    """

    token: object
    member_id: str
    fresh_member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: frozenset[Partition] | None = None
    viewer: Viewer | None = None

    @property
    def is_full(self) -> bool:
        """True if the member repeats all, because it may have missed an answer."""
        return self.rebalance_timeout_ms != -1 and self.owned is not None and (self.topics is not None or self.pattern is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatReply:
    """`assignment`: None: unchanged."""

    error: Reason | None = None
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: frozenset[Partition] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDescription:
    """The content of ConsumerGroupDescribe. `members`: identity, holding, target."""

    state: ConsumerState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[tuple[Identity, Holding, frozenset[Partition]], ...]
