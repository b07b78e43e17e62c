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

from dataclasses import replace

from headgate.broker.groups.events import (
    NO_MEMBER,
    Effect,
    Event,
    GroupConfig,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    Leaving,
    State,
    Stored,
    Sync,
    SyncReply,
    Tick,
    Unload,
)
from headgate.broker.groups.generations import JOIN_PHASE, NO_ASSIGNMENTS, SYNC_PHASE, Assigned, Generations, Replaced
from headgate.broker.groups.member import Member, Protocols, without_repeats
from headgate.broker.groups.records import GroupMetadata
from headgate.broker.runtime.errors import Reason


class Group(Generations):
    """One group: what events and the time do with it."""

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
            if key == JOIN_PHASE:
                self._join_phase_over()
            elif key == SYNC_PHASE:
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
        error = self.check_member(member_id, instance_id, generation)
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

    # -- join

    def _join(self, event: Join) -> None:
        config = self.config
        new = event.member_id == NO_MEMBER
        if self.state is State.DEAD:
            self._refuse(event, Reason.COORDINATOR_NOT_AVAILABLE)
        elif not config.session_timeout_ms_min <= event.session_timeout_ms <= config.session_timeout_ms_max:
            self._refuse(event, Reason.INVALID_SESSION_TIMEOUT)
        elif not self.has_room(event):
            # A member above a lowered limit leaves now; the others need not wait for it.
            self._reply(event.token, JoinReply(error=Reason.GROUP_MAX_SIZE_REACHED))
            member = self.members.get(event.member_id)
            if member is not None:
                self._remove(member, Reason.GROUP_MAX_SIZE_REACHED)
                self._prepare_or_complete()
            elif self._drop_pending(event.member_id):
                self._complete_if_all_joined()
        elif not self.supports(event):
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
        error = self.check_identity(event.member_id, event.instance_id)
        if error is not None:
            self._refuse(event, error)
            return
        member = self.members[event.member_id]
        same = member.protocols == without_repeats(event.protocols)
        leads = self.roster.leader == member.id
        if self.state is State.COMPLETING and same:
            # The client probably did not receive the answer to its join.
            self._reply(event.token, self.joined(member))
        elif self.state is State.STABLE and same and not leads:
            self._reply(event.token, self.joined(member))
        else:
            # A leader that joins again wants a new assignment, for reasons outside the metadata, such as new partitions.
            self._update(member, event)
            self._prepare_or_complete()

    def _add(self, event: Join, member_id: str) -> None:
        member = _member(event, member_id, without_repeats(event.protocols), is_new=True)
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
        new = _member(event, event.fresh_member_id, old.protocols, assignment=old.assignment)
        self.roster.replace(old, new)
        if old.id in self._unsynced:
            self._unsynced.remove(old.id)
            self._unsynced.add(new.id)
        self._update(new, event)
        self._start_session(new)
        if self.state is State.STABLE:
            if self.roster.elect_protocol() == self.protocol:
                assignments = {member.id: member.assignment for member in self.roster}
                self._persist(assignments, Replaced(new.id, event.can_skip_assignment, leader_before))
            else:
                self._prepare()
        elif self.state is State.COMPLETING:
            # The leader may assign to the old id already.
            self._prepare()
        else:
            self._complete_if_all_joined()

    def _refuse(self, event: Join, reason: Reason) -> None:
        self._reply(event.token, JoinReply(error=reason, member_id=event.member_id))

    # -- sync, heartbeats, and results of the log

    def _sync(self, event: Sync) -> None:
        error = self.check_member(event.member_id, event.instance_id, event.generation)
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
            self._timers.cancel(SYNC_PHASE)
        if self.state is State.STABLE:
            self._start_session(member)
            self._reply(event.token, self.assigned(member))
            return
        self._answer_sync(member, SyncReply(error=Reason.REBALANCE_IN_PROGRESS))
        member.sync_token = event.token
        if member.id == self.roster.leader and not self._assigning:
            given = dict(event.assignments)
            assignments = {member_id: given.get(member_id, b"") for member_id in self.members}
            self._assigning = True
            self._persist(assignments, Assigned(self.generation, assignments))

    def _stored(self, event: Stored) -> None:
        match self._tickets.pop(event.ticket, None):
            case Assigned(generation, assignments):
                # The group may have moved on: its members know, and the stored assignment is obsolete.
                if self.state is State.COMPLETING and generation == self.generation:
                    self._assigning = False
                    if event.error is None:
                        self.state = State.STABLE
                        self._hand_out(assignments, None)
                    else:
                        self._hand_out(NO_ASSIGNMENTS, event.error)
                        self._prepare()
            case Replaced(member_id, can_skip_assignment, leader_before):
                member = self.members.get(member_id)
                if member is None or member.join_token is None or self.state is not State.STABLE:
                    return  # gone, answered, or waiting for the next generation like the others
                self._start_session(member)
                if event.error is not None:
                    # The new id may not survive a crash, so the member does not get it; it will request another one.
                    self._answer_join(member, JoinReply(error=event.error))
                    return
                reply = self.joined(member)
                if can_skip_assignment:
                    reply = replace(reply, skip_assignment=self.roster.leader == member.id)
                else:
                    # A client that cannot be told to skip the assignment must not learn that it leads: it would assign, and no
                    # member would wait for its assignment.
                    reply = replace(reply, leader=leader_before or NO_MEMBER, members=())
                self._answer_join(member, reply)

    def _heartbeat(self, event: Heartbeat) -> Reason | None:
        error = self.check_member(event.member_id, event.instance_id, event.generation)
        if error is not None:
            return error
        self._start_session(self.members[event.member_id])
        return Reason.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else None

    # -- ends

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
            error = self.check_identity(leaving.member_id, leaving.instance_id)
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


def _member(event: Join, member_id: str, protocols: Protocols, *, assignment: bytes = b"", is_new: bool = False) -> Member:
    """A member from its request."""
    return Member(
        member_id,
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        session_timeout_ms=event.session_timeout_ms,
        protocols=protocols,
        assignment=assignment,
        is_new=is_new,
    )
