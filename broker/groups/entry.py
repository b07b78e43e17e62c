"""One group in a shard: its state machine, its positions and its record, and the rows of it that are on their way to the log. No
I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headgate.broker.groups.effects import Row
from headgate.broker.groups.events import State
from headgate.broker.groups.group import Group
from headgate.broker.groups.pending import Pending
from headgate.broker.groups.positions import Positions
from headgate.broker.groups.records import GroupMetadata, OffsetKey, OffsetValue, PendingKey
from headgate.broker.runtime.errors import Reason


@dataclass(frozen=True, slots=True)
class RowsReply:
    """Answer to a Commit or a deletion of positions: `errors` of each row, in order; or one error for all rows."""

    errors: tuple[Reason | None, ...] = ()
    error: Reason | None = None


@dataclass(frozen=True, slots=True)
class DeleteReply:
    error: Reason | None = None


class GroupListing(NamedTuple):
    """A group in a list. `protocol_type` is empty if the group never had a member."""

    group_id: str
    protocol_type: str
    state: State
    members: int


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
    token: object | None = None
    response: RowsReply | DeleteReply | None = None


class Entry:
    """One group: its state machine (made when it is first needed), its positions, and its last record."""

    __slots__ = ("group", "in_flight", "pending", "positions", "record")

    def __init__(self) -> None:
        self.group: Group | None = None
        self.positions = Positions()
        self.pending = Pending()
        """Positions in transactions without an outcome."""
        self.record: GroupRecord | None = None
        """None: the log has no record of the group, or the record was deleted."""
        self.in_flight = 0
        """Number of this group's tickets that have no result yet."""

    @property
    def state(self) -> State:
        return State.EMPTY if self.group is None else self.group.state


def record_of(data: bytes, metadata: GroupMetadata) -> GroupRecord:
    return GroupRecord(data, metadata.protocol_type, metadata.generation, bool(metadata.members), metadata.state_ms)


def failed(response: RowsReply | DeleteReply, reason: Reason) -> RowsReply | DeleteReply:
    """The same answer with an error, because its changes could not be stored."""
    if isinstance(response, DeleteReply):
        return DeleteReply(reason)
    return RowsReply(tuple(error or reason for error in response.errors), None if response.errors else reason)
