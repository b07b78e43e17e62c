"""How the generations of a group come and go: the join phase, the sync phase, and the members that both drop.

`Group` hands over here after an event; nothing in this module knows what the event was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.broker.coordination.timers import Timers
from headgate.broker.groups.events import NO_MEMBER, Effect, GroupConfig, GroupReply, JoinReply, Persist, Reply, State, SyncReply
from headgate.broker.groups.member import Member
from headgate.broker.groups.standing import Standing
from headgate.broker.runtime.errors import Reason

# Keys of the two timers that are not a member's; a member's is its id.
JOIN_PHASE = 0
SYNC_PHASE = 1

_ABSENT_MS = 1_000
"""Shortest pause between two checks for an absent static member, in ms: a time-out of 0 must not cause a busy loop."""

NO_ASSIGNMENTS: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True)
class Assigned:
    """The subject of a ticket: the leader's assignment of this generation."""

    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The subject of a ticket: a static member's new id."""

    member_id: str
    can_skip_assignment: bool
    leader_before: str | None


class Generations(Standing):
    """A group with its timers, its records on the way to the log, and the effects of the event that it handles now."""

    def __init__(self, group_id: str, config: GroupConfig) -> None:
        super().__init__(group_id, config)
        self._unsynced: set[str] = set()
        """Members that know this generation and have not synced yet."""
        self._initial = False
        """True while the current join phase is the first since the group was empty."""
        self._initial_left_ms = 0
        self._initial_delay_ms = 0
        self._came_lately = False
        """True if a member joined since the last check of the initial join phase."""
        self._timers: Timers[int | str] = Timers()
        self._tickets: dict[int, Assigned | Replaced] = {}
        self._ticket = 0
        self._assigning = False
        """True while the assignment of this generation is being written to the log."""
        self._effects: list[Effect] = []
        self._now_ms = 0

    @property
    def next_deadline_ms(self) -> int | None:
        """Time of the group's next Tick, or None."""
        return self._timers.next_deadline_ms

    # -- the join phase

    def _prepare_or_complete(self) -> None:
        if self.state is State.PREPARING:
            self._complete_if_all_joined()
        elif self.state is not State.DEAD:
            self._prepare()

    def _prepare(self) -> None:
        """Begin a join phase: members that wait in a sync are told to join again."""
        if self.state is State.COMPLETING:
            self._hand_out(NO_ASSIGNMENTS, Reason.REBALANCE_IN_PROGRESS)
        self._unsynced.clear()
        self._timers.cancel(SYNC_PHASE)
        self._assigning = False
        self._initial = self.state is State.EMPTY
        self.state = State.PREPARING
        if self._initial:
            self._came_lately = False
            self._initial_delay_ms = self.config.initial_rebalance_delay_ms
            self._initial_left_ms = max(self.roster.rebalance_timeout_ms - self._initial_delay_ms, 0)
            self._timers.set(JOIN_PHASE, self._now_ms + self._initial_delay_ms)
        elif self.all_joined():
            self._complete()
        else:
            self._timers.set(JOIN_PHASE, self._now_ms + self.roster.rebalance_timeout_ms)

    def _join_phase_over(self) -> None:
        if self._initial and self._came_lately and self._initial_left_ms:
            self._came_lately = False
            delay = min(self.config.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms = max(self._initial_left_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay
            self._timers.set(JOIN_PHASE, self._now_ms + max(delay, 1))
        else:
            self._complete()

    def _complete_if_all_joined(self) -> None:
        """End the join phase if no member is missing; only its timer ends the initial one."""
        if self.state is State.PREPARING and not self._initial and self.all_joined():
            self._complete()

    def _complete(self) -> None:
        """End the join phase: the next generation begins."""
        for member in [m for m in self.roster if m.join_token is None and m.instance_id is None]:
            self._remove(member, Reason.UNKNOWN_MEMBER_ID)
        if self.roster and not self.roster.waiting_joins:
            # Only static members are left, and none has rejoined: wait until one does, or their sessions end.
            self._timers.set(JOIN_PHASE, self._now_ms + max(self.roster.rebalance_timeout_ms, _ABSENT_MS))
            return
        self._timers.cancel(JOIN_PHASE)
        self._initial = False
        self.generation += 1
        if not self.roster:
            self.state = State.EMPTY
            self.protocol = None
            self._persist(NO_ASSIGNMENTS, None)
            return
        self.roster.elect_joined_leader()
        self.protocol = self.roster.elect_protocol()
        assert self.protocol is not None
        self.state = State.COMPLETING
        for member in self.roster:
            self._answer_join(member, self.joined(member))
            self._start_session(member)
            member.is_new = False
            self._unsynced.add(member.id)
        self._timers.set(SYNC_PHASE, self._now_ms + self.roster.rebalance_timeout_ms)

    # -- the sync phase

    def _sync_phase_over(self) -> None:
        for member_id in self._unsynced.copy():
            self._remove(self.members[member_id], Reason.UNKNOWN_MEMBER_ID)
        self._prepare()

    def _hand_out(self, assignments: Mapping[str, bytes], error: Reason | None) -> None:
        """Give every member its assignment, and answer the waiting ones."""
        for member in self.roster:
            member.assignment = assignments.get(member.id, b"")
            if member.sync_token is not None:
                self._answer_sync(member, self.assigned(member) if error is None else SyncReply(error=error))
                # Its session did not run while it waited.
                self._start_session(member)

    def _persist(self, assignments: Mapping[str, bytes], meaning: Assigned | Replaced | None) -> None:
        self._ticket += 1
        if meaning is not None:
            self._tickets[self._ticket] = meaning
        self._effects.append(Persist(self._ticket, self._metadata(assignments, -1)))

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
                assert JOIN_PHASE in self._timers and not self._unsynced
                assert self._initial or not (members and self.all_joined())
            case State.COMPLETING | State.STABLE:
                assert members and self._unsynced <= set(members)
                assert (SYNC_PHASE in self._timers) == bool(self._unsynced)
                assert all(m.join_token is None or self._tickets for m in self.roster)
            case State.DEAD:
                assert not list(self.waiting_tokens()) and not self._timers
