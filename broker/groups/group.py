"""The rules of one group: Kafka's classic group protocol as a pure state machine.

`Group.handle(event, now_ms)` returns what is to be done; it knows no sockets, clocks, random ids or disks. Theory of operation::

                     Join (first member)                   all members joined, or join time-out
        EMPTY ─────────────────────────────▶ PREPARING ─────────────────────────────▶ COMPLETING
          ▲ ▲                                ▲  │    ▲                                  │   │
          │ └── nobody joined or all left ───│──┘    │ join, leave, expiry, sync time-out   │
          │                                  │       └──────────────────────────────────┘   │
          │                                  │ leader rejoins, metadata changes,            │ the leader's assignment
          │                                  │ join, leave, expiry, sync time-out           │ is durable
          │                                  └─────────────────────────── STABLE ◀──────────┘
          └─ Load of a group without members                                ▲
                                      Load of a group with members ─────────┘      any ── delete, Unload ──▶ DEAD

    ============ =================== ======================= ======================== =======================
    state        Join (known member) Sync                    Heartbeat                Commit
    ============ =================== ======================= ======================== =======================
    EMPTY        UNKNOWN_MEMBER_ID   UNKNOWN_MEMBER_ID       UNKNOWN_MEMBER_ID        only without a member
    PREPARING    waits               REBALANCE_IN_PROGRESS   REBALANCE_IN_PROGRESS ¹  accepted ¹
    COMPLETING   same: answered      waits for the leader's  ok ¹                     REBALANCE_IN_PROGRESS
                 changed: PREPARING
    STABLE       follower, same:     the assignment ¹        ok ¹                     accepted ¹
                 answered; leader or
                 changed: PREPARING
    DEAD         COORDINATOR_NOT_AVAILABLE for everything
    ============ =================== ======================= ======================== =======================

    ¹ starts the member's session anew. Checked before, in this order: FENCED_INSTANCE_ID, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION.

- **Generations** count completed join phases; they only grow. The member that leads is told all members' metadata and assigns.
- **Sessions.** A member is dropped when its session timer fires, unless it waits in a join or a sync: a member that
  waits for the coordinator is not silent. The exception is a member that never got an answer, because its client may be long gone.
  It has `new_member_join_timeout_ms`. An answer to a waiting member starts its session anew.
- **Join phase.** It ends when every member has rejoined and no id that was handed out is unused, at the latest after the largest
  rebalance time-out of the members. Dynamic members that did not rejoin are dropped; static ones stay until their session ends. The
  first rebalance of an empty group always waits `initial_rebalance_delay_ms`, and longer while members keep coming.
- **Sync phase.** Members that do not sync within that same time-out are dropped.
- **Static members** (KIP-345) are known by their instance id. One that comes back without its member id gets a new one, and the
  old id is fenced. In a stable group with an unchanged protocol, this does not rebalance.
- **Durability.** The assignment is persisted before any member sees it, and an empty group when it becomes empty. Everything else
  that a crash takes away makes members join again.

Where Kafka leaves a request without an answer (a second join or sync of a member that already waits, a sync of a member that
leaves), this machine answers: every token gets exactly one reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headgate.broker.coordination.timers import Timers
from headgate.broker.groups.events import (
    NO_MEMBER,
    Effect,
    Event,
    GroupConfig,
    GroupDescription,
    GroupReply,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinedMember,
    JoinReply,
    Leave,
    LeaveReply,
    Leaving,
    Persist,
    Reply,
    State,
    Stored,
    Sync,
    SyncReply,
    Tick,
    Unload,
)
from headgate.broker.groups.member import CONSUMER_PROTOCOL, Member, without_repeats
from headgate.broker.groups.records import GroupMetadata
from headgate.broker.groups.roster import Roster
from headgate.broker.runtime.errors import Reason

# Keys of the two timers that are not a member's; a member's is its id.
_JOIN_PHASE = 0
_SYNC_PHASE = 1

_ABSENT_MS = 1_000
"""Shortest pause between two checks for an absent static member, in ms: a time-out of 0 must not cause a busy loop."""

_NO_ASSIGNMENTS: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True)
class _Assigned:
    """The subject of a ticket: the leader's assignment of this generation."""

    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class _Replaced:
    """The subject of a ticket: a static member's new id."""

    member_id: str
    can_skip_assignment: bool
    leader_before: str | None


class Group:
    """One group. Attributes without an underscore are for reading."""

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
        self._unsynced: set[str] = set()
        """Members that know this generation and have not synced yet."""
        self._initial = False
        """True while the current join phase is the first since the group was empty."""
        self._initial_left_ms = 0
        self._initial_delay_ms = 0
        self._came_lately = False
        """True if a member joined since the last check of the initial join phase."""
        self._timers: Timers[int | str] = Timers()
        self._tickets: dict[int, _Assigned | _Replaced] = {}
        self._ticket = 0
        self._assigning = False
        """True while the assignment of this generation is being written to the log."""
        self._effects: list[Effect] = []
        self._now_ms = 0

    @classmethod
    def load(cls, group_id: str, config: GroupConfig, metadata: GroupMetadata, now_ms: int) -> Group:
        """A group from its last record: stable with the stored assignment, or empty. Every session starts anew."""
        group = cls(group_id, config)
        group._now_ms = now_ms
        group.generation = metadata.generation
        group.protocol_type = metadata.protocol_type
        group.protocol = metadata.protocol
        for row in metadata.members:
            member = Member.from_metadata(row, metadata.protocol)
            group.roster.insert(member)
            group._start_session(member)
        if group.roster:
            group.state = State.STABLE
            if metadata.leader in group.members:
                group.roster.leader = metadata.leader
            if len(group.roster) > config.members_max:
                group._prepare()
        return group

    # -- the driver's interface

    @property
    def members(self) -> dict[str, Member]:
        """All members by id, in the order in which they joined."""
        return self.roster.by_id

    @property
    def next_deadline_ms(self) -> int | None:
        """Time of the group's next Tick, or None."""
        return self._timers.next_deadline_ms

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle one event, then every timer that is due. In this order, a request that arrives at the moment of its time-out is
        handled first.

        Args:
            now_ms: never less than in the previous call.

        Returns:
            The effects for the driver, in order.
        """
        self._now_ms = now_ms
        effects = self._effects = []
        match event:
            case Heartbeat():
                self._reply(event.token, HeartbeatReply(error=self._heartbeat(event)))
            case Join():
                self._join(event)
            case Sync():
                self._sync(event)
            case Leave():
                self._leave(event)
            case Stored():
                self._stored(event)
            case Unload():
                self._unload(event.reason)
            case Tick():
                pass
        while (key := self._timers.pop_due(now_ms)) is not None:
            if key == _JOIN_PHASE:
                self._join_phase_over()
            elif key == _SYNC_PHASE:
                self._sync_phase_over()
            else:
                self._session_over(str(key))
        return effects

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Reason | None:
        """Why this member may not commit positions now; None if it may. Its session then starts anew.

        Args:
            generation: -1 for a consumer without a group, or an administrator; they may commit while the group is empty.
        """
        if self.state is State.DEAD:
            return Reason.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is State.EMPTY:
            return None
        if generation < 0 and member_id == NO_MEMBER and instance_id is None:
            return Reason.UNKNOWN_MEMBER_ID
        error = self._check_member(member_id, instance_id, generation)
        if error is None and self.state is State.COMPLETING:
            # The member knows this generation, but not its assignment in it: it cannot own the partition.
            error = Reason.REBALANCE_IN_PROGRESS
        if error is None:
            self._now_ms = now_ms
            self._start_session(self.members[member_id])
        return error

    def rebalance(self, now_ms: int) -> list[Effect]:
        """Begin a join phase: a group that was just made of a consumer group has no assignment of its leader yet."""
        self._now_ms = now_ms
        effects = self._effects = []
        self._prepare()
        return effects

    def delete(self) -> Reason | None:
        """Make an empty group dead. Returns the error if it cannot be deleted."""
        if self.state is State.DEAD:
            return Reason.GROUP_ID_NOT_FOUND
        if self.state is not State.EMPTY:
            return Reason.NON_EMPTY_GROUP
        self.state = State.DEAD
        self.pending.clear()
        self._timers.clear()
        return None

    def revive(self) -> None:
        """Undo `delete`: the deletion could not be stored, so it did not happen."""
        self.state = State.EMPTY

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

    # -- join

    def _join(self, event: Join) -> None:
        config = self.config
        new = event.member_id == NO_MEMBER
        if self.state is State.DEAD:
            self._refuse(event, Reason.COORDINATOR_NOT_AVAILABLE)
        elif not config.session_timeout_ms_min <= event.session_timeout_ms <= config.session_timeout_ms_max:
            self._refuse(event, Reason.INVALID_SESSION_TIMEOUT)
        elif not self._has_room(event):
            # A member above a lowered limit leaves now; the others need not wait for it.
            self._reply(event.token, JoinReply(error=Reason.GROUP_MAX_SIZE_REACHED))
            member = self.members.get(event.member_id)
            if member is not None:
                self._remove(member, Reason.GROUP_MAX_SIZE_REACHED)
                self._prepare_or_complete()
            elif self._drop_pending(event.member_id):
                self._complete_if_all_joined()
        elif not self._supports(event):
            self._refuse(event, Reason.INCONSISTENT_GROUP_PROTOCOL)
        elif not new:
            self._join_known(event)
        elif event.instance_id is not None and event.instance_id in self.roster.static:
            self._replace_static(event, self.members[self.roster.static[event.instance_id]])
        elif event.instance_id is None and event.require_member_id:
            self.pending.add(event.fresh_member_id)
            self._timers.set(event.fresh_member_id, self._now_ms + event.session_timeout_ms)
            self._reply(event.token, JoinReply(error=Reason.MEMBER_ID_REQUIRED, member_id=event.fresh_member_id))
        else:
            self._add(event, event.fresh_member_id)

    def _join_known(self, event: Join) -> None:
        if event.member_id in self.pending and event.instance_id is None:
            self._add(event, event.member_id)
            return
        error = self._check_identity(event.member_id, event.instance_id)
        if error is not None:
            self._refuse(event, error)
            return
        member = self.members[event.member_id]
        same = member.protocols == without_repeats(event.protocols)
        leads = self.roster.leader == member.id
        if self.state is State.COMPLETING and same:
            # The client probably did not receive the answer to its join.
            self._reply(event.token, self._joined(member))
        elif self.state is State.STABLE and same and not leads:
            self._reply(event.token, self._joined(member))
        else:
            # A leader that joins again wants a new assignment, for reasons outside the metadata, such as new partitions.
            self._update(member, event)
            self._prepare_or_complete()

    def _has_room(self, event: Join) -> bool:
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

    def _supports(self, event: Join) -> bool:
        """True if every member knows at least one of its protocols."""
        if self.state is State.EMPTY:
            return bool(event.protocol_type and event.protocols)
        return event.protocol_type == self.protocol_type and self.roster.all_know_one_of(event.protocols)

    def _add(self, event: Join, member_id: str) -> None:
        member = Member(
            member_id,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            session_timeout_ms=event.session_timeout_ms,
            protocols=without_repeats(event.protocols),
            is_new=True,
        )
        if not self.roster:
            self.protocol_type = event.protocol_type
        self._came_lately = True
        self.pending.discard(member_id)
        self.roster.insert(member)
        self.roster.wait_join(member, event.token)
        self._timers.set(member_id, self._now_ms + self.config.new_member_join_timeout_ms)
        self._prepare_or_complete()

    def _update(self, member: Member, event: Join) -> None:
        """Update a known member from its join request, and let it wait."""
        self.roster.set_protocols(member, without_repeats(event.protocols))
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.session_timeout_ms = event.session_timeout_ms
        self._answer_join(member, JoinReply(error=Reason.REBALANCE_IN_PROGRESS, member_id=member.id))
        self.roster.wait_join(member, event.token)

    def _replace_static(self, event: Join, old: Member) -> None:
        """A static member came back under its instance id alone: it gets a new member id, and the old id is fenced."""
        leader_before = self.roster.leader
        self._answer_waiting(old, Reason.FENCED_INSTANCE_ID)
        self._timers.cancel(old.id)
        new = Member(
            event.fresh_member_id,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            session_timeout_ms=event.session_timeout_ms,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.roster.replace(old, new)
        if old.id in self._unsynced:
            self._unsynced.remove(old.id)
            self._unsynced.add(new.id)
        self._update(new, event)
        self._start_session(new)
        if self.state is State.STABLE:
            if self.roster.elect_protocol() == self.protocol:
                assignments = {member.id: member.assignment for member in self.roster}
                self._persist(assignments, _Replaced(new.id, event.can_skip_assignment, leader_before))
            else:
                self._prepare()
        elif self.state is State.COMPLETING:
            # The leader may assign to the old id already.
            self._prepare()
        else:
            self._complete_if_all_joined()

    def _refuse(self, event: Join, reason: Reason) -> None:
        self._reply(event.token, JoinReply(error=reason, member_id=event.member_id))

    def _joined(self, member: Member) -> JoinReply:
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

    # -- the join phase

    def _prepare_or_complete(self) -> None:
        if self.state is State.PREPARING:
            self._complete_if_all_joined()
        elif self.state is not State.DEAD:
            self._prepare()

    def _prepare(self) -> None:
        """Begin a join phase: members that wait in a sync are told to join again."""
        if self.state is State.COMPLETING:
            self._hand_out(_NO_ASSIGNMENTS, Reason.REBALANCE_IN_PROGRESS)
        self._unsynced.clear()
        self._timers.cancel(_SYNC_PHASE)
        self._assigning = False
        self._initial = self.state is State.EMPTY
        self.state = State.PREPARING
        if self._initial:
            self._came_lately = False
            self._initial_delay_ms = self.config.initial_rebalance_delay_ms
            self._initial_left_ms = max(self.roster.rebalance_timeout_ms - self._initial_delay_ms, 0)
            self._timers.set(_JOIN_PHASE, self._now_ms + self._initial_delay_ms)
        elif self._all_joined():
            self._complete()
        else:
            self._timers.set(_JOIN_PHASE, self._now_ms + self.roster.rebalance_timeout_ms)

    def _join_phase_over(self) -> None:
        if self._initial and self._came_lately and self._initial_left_ms:
            self._came_lately = False
            delay = min(self.config.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms = max(self._initial_left_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay
            self._timers.set(_JOIN_PHASE, self._now_ms + max(delay, 1))
        else:
            self._complete()

    def _complete_if_all_joined(self) -> None:
        """End the join phase if no member is missing; only its timer ends the initial one."""
        if self.state is State.PREPARING and not self._initial and self._all_joined():
            self._complete()

    def _all_joined(self) -> bool:
        return self.roster.waiting_joins == len(self.roster) and not self.pending

    def _complete(self) -> None:
        """End the join phase: the next generation begins."""
        for member in [m for m in self.roster if m.join_token is None and m.instance_id is None]:
            self._remove(member, Reason.UNKNOWN_MEMBER_ID)
        if self.roster and not self.roster.waiting_joins:
            # Only static members are left, and none has rejoined: wait until one does, or their sessions end.
            self._timers.set(_JOIN_PHASE, self._now_ms + max(self.roster.rebalance_timeout_ms, _ABSENT_MS))
            return
        self._timers.cancel(_JOIN_PHASE)
        self._initial = False
        self.generation += 1
        if not self.roster:
            self.state = State.EMPTY
            self.protocol = None
            self._persist(_NO_ASSIGNMENTS, None)
            return
        self.roster.elect_joined_leader()
        self.protocol = self.roster.elect_protocol()
        assert self.protocol is not None
        self.state = State.COMPLETING
        for member in self.roster:
            self._answer_join(member, self._joined(member))
            self._start_session(member)
            member.is_new = False
            self._unsynced.add(member.id)
        self._timers.set(_SYNC_PHASE, self._now_ms + self.roster.rebalance_timeout_ms)

    # -- the sync phase

    def _sync(self, event: Sync) -> None:
        error = self._check_member(event.member_id, event.instance_id, event.generation)
        if error is None and (
            event.protocol_type not in (None, self.protocol_type) or event.protocol_name not in (None, self.protocol)
        ):
            error = Reason.INCONSISTENT_GROUP_PROTOCOL
        if error is None and self.state is State.PREPARING:
            error = Reason.REBALANCE_IN_PROGRESS
        if error is not None:
            self._reply(event.token, SyncReply(error=error))
            return
        member = self.members[event.member_id]
        self._unsynced.discard(member.id)
        if not self._unsynced:
            self._timers.cancel(_SYNC_PHASE)
        if self.state is State.STABLE:
            self._start_session(member)
            self._reply(event.token, self._assigned(member))
            return
        self._answer_sync(member, SyncReply(error=Reason.REBALANCE_IN_PROGRESS))
        member.sync_token = event.token
        if member.id == self.roster.leader and not self._assigning:
            given = dict(event.assignments)
            assignments = {member_id: given.get(member_id, b"") for member_id in self.members}
            self._assigning = True
            self._persist(assignments, _Assigned(self.generation, assignments))

    def _sync_phase_over(self) -> None:
        for member_id in self._unsynced.copy():
            self._remove(self.members[member_id], Reason.UNKNOWN_MEMBER_ID)
        self._prepare()

    def _hand_out(self, assignments: Mapping[str, bytes], error: Reason | None) -> None:
        """Give every member its assignment, and answer the waiting ones."""
        for member in self.roster:
            member.assignment = assignments.get(member.id, b"")
            if member.sync_token is not None:
                self._answer_sync(member, self._assigned(member) if error is None else SyncReply(error=error))
                # Its session did not run while it waited.
                self._start_session(member)

    def _assigned(self, member: Member) -> SyncReply:
        return SyncReply(protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment)

    # -- the log

    def _persist(self, assignments: Mapping[str, bytes], meaning: _Assigned | _Replaced | None) -> None:
        self._ticket += 1
        if meaning is not None:
            self._tickets[self._ticket] = meaning
        self._effects.append(Persist(self._ticket, self._metadata(assignments, -1)))

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

    def _stored(self, event: Stored) -> None:
        match self._tickets.pop(event.ticket, None):
            case _Assigned(generation, assignments):
                # The group may have moved on: its members know, and the stored assignment is obsolete.
                if self.state is State.COMPLETING and generation == self.generation:
                    self._assigning = False
                    if event.error is None:
                        self.state = State.STABLE
                        self._hand_out(assignments, None)
                    else:
                        self._hand_out(_NO_ASSIGNMENTS, event.error)
                        self._prepare()
            case _Replaced(member_id, can_skip_assignment, leader_before):
                member = self.members.get(member_id)
                if member is None or member.join_token is None or self.state is not State.STABLE:
                    return  # gone, answered, or waiting for the next generation like the others
                self._start_session(member)
                if event.error is not None:
                    # The new id may not survive a crash, so the member does not get it; it will request another one.
                    self._answer_join(member, JoinReply(error=event.error))
                    return
                leads = self.roster.leader == member.id
                reply = JoinReply(
                    member_id=member.id,
                    generation=self.generation,
                    protocol_type=self.protocol_type,
                    protocol_name=self.protocol,
                    # A client that cannot be told to skip the assignment must not learn that it leads: it would assign, and no
                    # member would wait for its assignment.
                    leader=(self.roster.leader if can_skip_assignment else leader_before) or NO_MEMBER,
                    skip_assignment=leads and can_skip_assignment,
                    members=self._members_for_leader() if leads and can_skip_assignment else (),
                )
                self._answer_join(member, reply)

    # -- heartbeats and ends

    def _heartbeat(self, event: Heartbeat) -> Reason | None:
        error = self._check_member(event.member_id, event.instance_id, event.generation)
        if error is not None:
            return error
        self._start_session(self.members[event.member_id])
        return Reason.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else None

    def _leave(self, event: Leave) -> None:
        if self.state is State.DEAD:
            self._reply(event.token, LeaveReply(error=Reason.COORDINATOR_NOT_AVAILABLE))
            return
        members_before = len(self.roster)
        self._reply(event.token, LeaveReply(members=tuple((leaving, self._leave_one(leaving)) for leaving in event.members)))
        if len(self.roster) < members_before:
            self._prepare_or_complete()
        else:
            self._complete_if_all_joined()

    def _leave_one(self, leaving: Leaving) -> Reason | None:
        member_id: str | None = leaving.member_id
        if member_id == NO_MEMBER:
            member_id = None if leaving.instance_id is None else self.roster.static.get(leaving.instance_id)
        elif self._drop_pending(leaving.member_id):
            return None
        else:
            error = self._check_identity(leaving.member_id, leaving.instance_id)
            if error is not None:
                return error
        if member_id is None:
            return Reason.UNKNOWN_MEMBER_ID
        self._remove(self.members[member_id], Reason.UNKNOWN_MEMBER_ID)
        return None

    def _session_over(self, member_id: str) -> None:
        if member_id in self.pending:
            self.pending.remove(member_id)
            self._complete_if_all_joined()
            return
        member = self.members[member_id]
        if not member.is_new and (member.join_token is not None or member.sync_token is not None):
            return
        self._remove(member, Reason.UNKNOWN_MEMBER_ID)
        self._prepare_or_complete()

    def _unload(self, reason: Reason) -> None:
        for member in self.roster:
            self._answer_waiting(member, reason)
        self.state = State.DEAD
        self.pending.clear()
        self._unsynced.clear()
        self._tickets.clear()
        self._timers.clear()

    # -- checks

    def _check_identity(self, member_id: str, instance_id: str | None) -> Reason | None:
        if instance_id is not None:
            known = self.roster.static.get(instance_id)
            if known is None:
                return Reason.UNKNOWN_MEMBER_ID
            if known != member_id:
                return Reason.FENCED_INSTANCE_ID
        return None if member_id in self.members else Reason.UNKNOWN_MEMBER_ID

    def _check_member(self, member_id: str, instance_id: str | None, generation: int) -> Reason | None:
        if self.state is State.DEAD:
            return Reason.COORDINATOR_NOT_AVAILABLE
        error = self._check_identity(member_id, instance_id)
        if error is None and generation != self.generation:
            error = Reason.ILLEGAL_GENERATION
        return error

    # -- small steps that keep the attributes' promises

    def _remove(self, member: Member, reason: Reason) -> None:
        """Remove a member; its waiting request is answered with `reason`."""
        self._answer_waiting(member, reason)
        self.roster.remove(member)
        self._unsynced.discard(member.id)
        self._timers.cancel(member.id)

    def _drop_pending(self, member_id: str) -> bool:
        if member_id not in self.pending:
            return False
        self.pending.remove(member_id)
        self._timers.cancel(member_id)
        return True

    def _start_session(self, member: Member) -> None:
        self._timers.set(member.id, self._now_ms + member.session_timeout_ms)

    def _answer_join(self, member: Member, reply: JoinReply) -> None:
        token = self.roster.take_join_token(member)
        if token is not None:
            self._reply(token, reply)

    def _answer_sync(self, member: Member, reply: SyncReply) -> None:
        if member.sync_token is not None:
            token, member.sync_token = member.sync_token, None
            self._reply(token, reply)

    def _answer_waiting(self, member: Member, reason: Reason) -> None:
        # A fenced instance must learn that it is meant; any other member must drop an id that is gone.
        member_id = member.id if reason is Reason.FENCED_INSTANCE_ID else NO_MEMBER
        self._answer_join(member, JoinReply(error=reason, member_id=member_id))
        self._answer_sync(member, SyncReply(error=reason))

    def _reply(self, token: object, response: GroupReply) -> None:
        self._effects.append(Reply(token, response))

    # -- for tests

    def waiting_tokens(self) -> Iterable[object]:
        """The unanswered tokens."""
        for member in self.roster:
            for token in (member.join_token, member.sync_token):
                if token is not None:
                    yield token

    def check_invariants(self) -> None:
        """Raise AssertionError when the state contradicts the attributes' docs."""
        self.roster.check_invariants()
        members = self.members
        assert not self.pending & set(members)
        for member in self.roster:
            waits = member.join_token is not None or member.sync_token is not None
            assert self.state is State.DEAD or member.id in self._timers or (waits and not member.is_new), member.id
            assert member.sync_token is None or self.state is State.COMPLETING
            assert not member.is_new or self.state in (State.PREPARING, State.DEAD)
        assert self.state is State.DEAD or all(member_id in self._timers for member_id in self.pending)
        match self.state:
            case State.EMPTY:
                assert not members and self.protocol is None
            case State.PREPARING:
                assert _JOIN_PHASE in self._timers and not self._unsynced
                assert self._initial or not (members and self._all_joined())
            case State.COMPLETING | State.STABLE:
                assert members and self._unsynced <= set(members)
                assert (_SYNC_PHASE in self._timers) == bool(self._unsynced)
                assert all(m.join_token is None or self._tickets for m in self.roster)
            case State.DEAD:
                assert not list(self.waiting_tokens()) and not self._timers
