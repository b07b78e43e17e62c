"""One group in a shard: its state machine, its positions and its record, and the rows of it that are on their way to the log. No
I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from headgate.broker.coordination.effects import Row
from headgate.broker.groups.consumer_events import ConsumerHeartbeatReply, ConsumerState
from headgate.broker.groups.consumer_group import ConsumerGroup
from headgate.broker.groups.events import GroupReply, State
from headgate.broker.groups.group import Group
from headgate.broker.groups.member import CONSUMER_PROTOCOL
from headgate.broker.groups.pending import Pending
from headgate.broker.groups.positions import Positions, is_expired
from headgate.broker.groups.records import GroupMetadata, OffsetKey, OffsetValue, PendingKey
from headgate.broker.runtime.errors import Reason

CLASSIC, CONSUMER = "classic", "consumer"
"""The kinds of groups, with the names of Kafka's tools."""


@dataclass(frozen=True, slots=True)
class RowsReply:
    """Answer to a Commit or a deletion of positions: `errors` of each row, in order; or one error for all rows."""

    errors: tuple[Reason | None, ...] = ()
    error: Reason | None = None


@dataclass(frozen=True, slots=True)
class DeleteReply:
    error: Reason | None = None


class GroupListing(NamedTuple):
    """A group in a list. `protocol_type` is empty if the group never had a member. `kind`: classic or consumer."""

    group_id: str
    protocol_type: str
    state: State | ConsumerState
    members: int
    kind: str = CLASSIC


class GroupRecord(NamedTuple):
    """A group's metadata in the last record that was handed to the log, and values of it that are needed often."""

    data: bytes
    protocol_type: str | None
    generation: int
    has_members: bool
    state_ms: int
    """The time in ms at which the group entered its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Rows on their way to the log, and the actions once they are durable."""

    group_id: str
    rows: list[Row]
    group_ticket: int | None = None
    before: GroupRecord | None = None
    """With `group_ticket`: the log's previous record, in case these rows do not become durable."""
    positions: tuple[tuple[OffsetKey, OffsetValue | None], ...] = ()
    empties_group: GroupRecord | None = None
    """The group's first record, if these rows delete the last position of a group that never had members."""
    pending: tuple[tuple[PendingKey, int, OffsetValue | None], ...] = ()
    """Positions in transactions: key, epoch of the producer, value."""
    deletes_group: bool = False
    of_consumer: bool = False
    """Rows of `Entry.consumer`."""
    token: object | None = None
    response: RowsReply | DeleteReply | ConsumerHeartbeatReply | GroupReply | None = None


class Entry:
    """One group: its state machine (made when it is first needed), its positions, and its last record."""

    __slots__ = ("consumer", "consumer_ticket", "group", "in_flight", "pending", "positions", "record")

    def __init__(self) -> None:
        self.group: Group | None = None
        self.positions = Positions()
        self.pending = Pending()
        """Positions in transactions without an outcome."""
        self.record: GroupRecord | None = None
        """None: the log has no record of the group, or the record was deleted."""
        self.in_flight = 0
        """Number of this group's tickets that have no result yet."""
        self.consumer: ConsumerGroup | None = None
        """The state machine of a consumer group (KIP-848). Then there is no `group` and no `record`."""
        self.consumer_ticket = 0
        """The last ticket of `consumer`."""

    @property
    def state(self) -> State:
        return State.EMPTY if self.group is None else self.group.state

    @property
    def has_members(self) -> bool:
        if self.consumer is not None:
            return bool(self.consumer.members)
        return self.state is not State.EMPTY or (self.group is None and self.record is not None and self.record.has_members)

    def is_expired(self, topic: str, value: OffsetValue, retention_ms: int, wall_ms: int) -> bool:
        """True if a position is older than the retention time. The time begins when the group has no members, or when none of
        them reads the topic."""
        if self.consumer is not None and self.consumer.members:
            return not self.consumer.is_subscribed(topic) and is_expired(value, -1, retention_ms, wall_ms)
        if self.group is None or self.group.state is State.EMPTY:
            since_ms = self.record.state_ms if self.record and self.record.protocol_type else -1
            return is_expired(value, since_ms, retention_ms, wall_ms)
        group = self.group
        if group.state is not State.STABLE or group.protocol_type != CONSUMER_PROTOCOL or group.is_subscribed(topic):
            return False
        return is_expired(value, -1, retention_ms, wall_ms)


def record_of(data: bytes, metadata: GroupMetadata) -> GroupRecord:
    return GroupRecord(data, metadata.protocol_type, metadata.generation, bool(metadata.members), metadata.state_ms)


Response = TypeVar("Response", bound=RowsReply | DeleteReply | ConsumerHeartbeatReply | GroupReply)


def failed(response: Response, reason: Reason) -> Response:
    """The same answer with an error, because its changes could not be stored."""
    if isinstance(response, RowsReply):
        return replace(
            response,
            errors=tuple(error or reason for error in response.errors),
            error=None if response.errors else reason,
        )
    return type(response)(error=reason)
