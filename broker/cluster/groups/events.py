"""What goes into a group's state machine and what comes out of it: plain data.

A *token* is whatever the driver needs to answer a request; the machine keeps it and hands it back in exactly one `Reply`. A
*ticket* names one `Persist`; the driver hands it back in one `Stored` once the record is durable, or never can be.
Times are ms of the driver's own monotonic clock, ids are Kafka's strings, and "" is a member without an id yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from broker.log.group_records import GroupMetadata, MemberMetadata
from broker.runtime.errors import Reason

NO_MEMBER = ""
NO_GENERATION = -1


class State(StrEnum):
    """Of a group. The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The limits that all groups share. Durations are ms."""

    initial_rebalance_delay_ms: int = 500
    """The first rebalance of an empty group waits this long for more members, and again as long as new ones come."""
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    new_member_join_timeout_ms: int = 300_000
    """A new member whose join is not answered after this long is dropped; if it is still there it asks again."""
    members_max: int = 5_000
    """Members of one group; and as many ids that were handed out and not used yet."""
    metadata_bytes_max: int = 16 << 20
    """What all members of one group together may send as protocol metadata: the leader is sent a copy of it."""


# -- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup. `protocols` are (name, metadata) in the member's order of preference."""

    token: object
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    fresh_member_id: str
    """The id that the group gives to the member if it has none: unique for ever."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str = ""
    client_host: str = ""
    require_member_id: bool = True
    """From JoinGroup v4 on a dynamic member is given its id first and joins with it (KIP-394)."""
    can_skip_assignment: bool = True
    """From JoinGroup v9 on a leader can be told to leave the assignment as it is (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """SyncGroup. Only the leader's `assignments` count. Protocol type and name are None before v5."""

    token: object
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    token: object
    member_id: str
    instance_id: str | None = None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """One member of a Leave. An administrator may name a static member by its instance alone."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    token: object
    members: tuple[Leaving, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What became of a `Persist`: None, it is durable; or the reason why the group must take it as lost."""

    ticket: int
    error: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time went by, and nothing else happened. Every event runs the timers that are due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """This broker is no longer the group's coordinator: whoever waits is told `reason`, and the group is dead here."""

    reason: Reason = Reason.NOT_COORDINATOR


Event: TypeAlias = Join | Sync | Heartbeat | Leave | Stored | Tick | Unload


# -- replies


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """What the leader is told of a member, to assign from."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    error: Reason | None = None
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    error: Reason | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    error: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveReply:
    """`members`: each of the request with its own error, in order."""

    error: Reason | None = None
    members: tuple[tuple[Leaving, Reason | None], ...] = ()


GroupReply: TypeAlias = JoinReply | SyncReply | HeartbeatReply | LeaveReply


# -- effects


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request of this token. Each token is answered once and never again."""

    token: object
    response: GroupReply


@dataclass(frozen=True, slots=True)
class Persist:
    """Append the group's record, then report `Stored(ticket)`. `state_ms` is for the driver to fill in: the machine has no date."""

    ticket: int
    metadata: GroupMetadata


Effect: TypeAlias = Reply | Persist


# -- what is shown of a group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """As DescribeGroups shows it: protocol, subscriptions and assignments only while the group is stable."""

    state: State
    protocol_type: str
    protocol: str
    members: tuple[MemberMetadata, ...]
