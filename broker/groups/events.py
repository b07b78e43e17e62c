"""The inputs and outputs of a group's state machine: plain data.

A *token* lets the driver answer a request; the machine keeps it and returns it in exactly one `Reply`. A *ticket* names one
`Persist`; the driver returns it in one `Stored` once the record is durable, or can never be. Times are ms of the driver's
monotonic clock, ids are Kafka's strings, and "" is a member without an id yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from headgate.broker.groups.records import GroupMetadata, MemberMetadata
from headgate.broker.runtime.errors import Reason

NO_MEMBER = ""
NO_GENERATION = -1


class State(StrEnum):
    """The state of a group. The values are the names in Kafka's tools."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The limits that all groups share. Durations are ms."""

    initial_rebalance_delay_ms: int = 500
    """The first rebalance of an empty group waits this long for more members, and again as long as new ones arrive."""
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    new_member_join_timeout_ms: int = 300_000
    """A new member whose join is unanswered after this time is dropped; a living client asks again."""
    members_max: int = 5_000
    """Bound of a group's members, and of its ids that were handed out and are unused."""
    metadata_bytes_max: int = 16 << 20
    """Bound of the protocol metadata of all members of one group, in bytes: the leader receives a copy."""


# -- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup. `protocols` are (name, metadata) in the member's order of preference."""

    token: object
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    fresh_member_id: str
    """The id for a member without one, unique for ever."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str = ""
    client_host: str = ""
    require_member_id: bool = True
    """From JoinGroup v4 on, a dynamic member first receives its id and joins with it (KIP-394)."""
    can_skip_assignment: bool = True
    """From JoinGroup v9 on, a leader can be told to keep the assignment (KIP-814)."""


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
    """The result of a `Persist`: None, it is durable; or the reason why the group must consider it lost."""

    ticket: int
    error: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed without another event. Every event runs the timers that are due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """This broker is no longer the group's coordinator: waiting requests are answered with `reason`, and the group is dead here."""

    reason: Reason = Reason.NOT_COORDINATOR


Event: TypeAlias = Join | Sync | Heartbeat | Leave | Stored | Tick | Unload


# -- replies


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """The facts about a member that the leader needs for its assignment."""

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
    """`members`: the members of the request with their errors, in order."""

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
    """Append the group's record, then report `Stored(ticket)`. The driver fills in `state_ms`, because the machine has no date."""

    ticket: int
    metadata: GroupMetadata


Effect: TypeAlias = Reply | Persist


# -- descriptions of a group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """The content of DescribeGroups: protocol, subscriptions and assignments only while the group is stable."""

    state: State
    protocol_type: str
    protocol: str
    members: tuple[MemberMetadata, ...]


def refusal(event: Join | Sync | Heartbeat | Leave, reason: Reason) -> object:
    """The answer to a request about a group that does not exist, or that has no valid id."""
    match event:
        case Join():
            return JoinReply(error=reason, member_id=event.member_id)
        case Sync():
            return SyncReply(error=reason)
        case Heartbeat():
            return HeartbeatReply(error=reason)
        case Leave():
            if reason is Reason.UNKNOWN_MEMBER_ID:
                return LeaveReply(members=tuple((leaving, reason) for leaving in event.members))
            return LeaveReply(error=reason)
