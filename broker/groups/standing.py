"""What a group is at one moment, and the questions about it. Answers change nothing, so any reader may ask them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.broker.groups.events import (
    NO_MEMBER,
    GroupConfig,
    GroupDescription,
    Join,
    JoinedMember,
    JoinReply,
    State,
    SyncReply,
)
from headgate.broker.groups.member import CONSUMER_PROTOCOL, Member
from headgate.broker.groups.records import GroupMetadata
from headgate.broker.groups.roster import Roster
from headgate.broker.runtime.errors import Reason


class Standing:
    """The state of one group, for reading. Only `Group` changes it."""

    def __init__(self, group_id: str, config: GroupConfig) -> None:
        self.id = group_id
        self.config = config
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        """None until a member has joined: a group that only stores positions."""
        self.protocol: str | None = None
        """The protocol of this generation."""
        self.roster = Roster()
        self.pending: set[str] = set()
        """Ids that were handed out and whose members have not joined yet. None of them is a member."""

    @property
    def members(self) -> dict[str, Member]:
        """All members by id, in the order in which they joined."""
        return self.roster.by_id

    def describe(self) -> GroupDescription:
        stable = self.state is State.STABLE
        return GroupDescription(
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol=(self.protocol or "") if stable else "",
            members=tuple(
                member.to_metadata(self.protocol, member.assignment) if stable else member.to_metadata(None, b"")
                for member in self.roster
            ),
        )

    def _metadata(self, assignments: Mapping[str, bytes], state_ms: int) -> GroupMetadata:
        return GroupMetadata(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.roster.leader,
            state_ms=state_ms,
            members=tuple(member.to_metadata(self.protocol, assignments[member.id]) for member in self.roster),
        )

    def to_metadata(self, state_ms: int) -> GroupMetadata:
        """The stored form, with the members' present assignment."""
        return self._metadata({member.id: member.assignment for member in self.roster}, state_ms)

    # -- who may do what

    def check_identity(self, member_id: str, instance_id: str | None) -> Reason | None:
        if instance_id is not None:
            known = self.roster.static.get(instance_id)
            if known is None:
                return Reason.UNKNOWN_MEMBER_ID
            if known != member_id:
                return Reason.FENCED_INSTANCE_ID
        return None if member_id in self.members else Reason.UNKNOWN_MEMBER_ID

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> Reason | None:
        if self.state is State.DEAD:
            return Reason.COORDINATOR_NOT_AVAILABLE
        error = self.check_identity(member_id, instance_id)
        if error is None and generation != self.generation:
            error = Reason.ILLEGAL_GENERATION
        return error

    def has_room(self, event: Join) -> bool:
        """True if the group's size allows the member to join (KIP-389)."""
        limit = self.config.members_max
        new = event.member_id == NO_MEMBER
        returns = new and event.instance_id in self.roster.static
        member = self.members.get(self.roster.static[str(event.instance_id)] if returns else event.member_id)
        grows = sum(len(name) + len(metadata) for name, metadata in event.protocols) - (member.metadata_bytes if member else 0)
        if self.roster.metadata_bytes + grows > self.config.metadata_bytes_max:
            return False
        if returns:
            return True  # it replaces its former self
        if new and len(self.pending) >= limit:
            return False
        if self.state is State.PREPARING:
            # The first to join stay: a group that was loaded above the limit drops the latest members.
            return (member is not None and member.join_token is not None) or self.roster.waiting_joins < limit
        return member is not None or len(self.roster) < limit

    def supports(self, event: Join) -> bool:
        """True if every member knows at least one of its protocols."""
        if self.state is State.EMPTY:
            return bool(event.protocol_type and event.protocols)
        return event.protocol_type == self.protocol_type and self.roster.all_know_one_of(event.protocols)

    def check_delete_offsets(self) -> Reason | None:
        """Why no positions may be deleted at all; None if they may: `is_subscribed` then decides for each topic."""
        if self.state is State.DEAD:
            return Reason.GROUP_ID_NOT_FOUND
        if self.roster and self.protocol_type != CONSUMER_PROTOCOL:
            return Reason.NON_EMPTY_GROUP
        return None

    def is_subscribed(self, topic: str) -> bool:
        """True if members read this topic according to their metadata; unreadable metadata also give True, the safe answer."""
        topics = self.subscribed_topics()
        return self.protocol_type == CONSUMER_PROTOCOL if topics is None else topic in topics

    def subscribed_topics(self) -> set[str] | None:
        """The topics that the members of this generation subscribe to; None if unknown."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        return self.roster.subscribed_topics(self.protocol)

    # -- what members are told

    def joined(self, member: Member) -> JoinReply:
        """The response to a join in this generation."""
        return JoinReply(
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.roster.leader or NO_MEMBER,
            members=self._members_for_leader() if member.id == self.roster.leader else (),
        )

    def _members_for_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member_id=member.id, instance_id=member.instance_id, metadata=member.metadata(self.protocol))
            for member in self.roster
        )

    def assigned(self, member: Member) -> SyncReply:
        return SyncReply(protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment)

    def all_joined(self) -> bool:
        return self.roster.waiting_joins == len(self.roster) and not self.pending

    def waiting_tokens(self) -> Iterable[object]:
        """The unanswered tokens."""
        for member in self.roster:
            for token in (member.join_token, member.sync_token):
                if token is not None:
                    yield token
