"""All groups of one partition of `__consumer_offsets`: a pure state machine that is the fold of that partition's records.

The driver (`coordination/driver.py`) replays the partition into it. Then it passes requests and the time to it, appends the rows
that the shard returns, and reports the result. The shard shows a position, and answers a commit, only once it is durable.

Theory of operation::

    replay(key, value)...  →  loaded()  →  handle | commit | delete_* | tick | clean  →  unload
                                              │  effects: Reply(token, response), Append(ticket, rows)
                                              └◀ stored(ticket, error)

The log of a partition is the truth. The shard holds the latest value of each key in it. `snapshot` returns these values as rows,
updated by the rows that are on their way to the log. Then all rows before them may be cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headgate.broker.coordination.effects import ROWS_PER_APPEND_MAX, Answer, Append, Effect, Now, Row
from headgate.broker.groups.consumer_group import ConsumerGroup
from headgate.broker.groups.entry import DeleteReply, Entry, RowsReply, Ticket, failed, record_of
from headgate.broker.groups.events import (
    NO_MEMBER,
    Event,
    Heartbeat,
    Join,
    Leave,
    Persist,
    Reply,
    State,
    Stored,
    Sync,
    Tick,
    Unload,
    refusal,
)
from headgate.broker.groups.group import Group
from headgate.broker.groups.holdings import Holdings
from headgate.broker.groups.pending import PENDING_MAX, offset_key
from headgate.broker.groups.positions import NEVER, Position, Positions
from headgate.broker.groups.records import (
    GroupMetadata,
    OffsetKey,
    OffsetValue,
    PendingKey,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    encode_partition,
    encode_pending_key,
    encode_pending_value,
    offset_key_prefix,
)
from headgate.broker.runtime.errors import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """OffsetCommit. `unknown_group`: the error for a member of a group that does not exist; it depends on the request's version."""

    token: object
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    generation: int = -1
    positions: tuple[Position, ...]
    retention_ms: int = NEVER
    any_member: bool = False
    """A commit without a member is taken, also while the group has members: old transactional clients send no member."""
    unknown_group: Reason = Reason.ILLEGAL_GENERATION


class Shard(Holdings):
    """All groups of one partition. Methods that return effects never raise for the contents of a request."""

    # -- start and end

    def loaded(self, now: Now) -> list[Effect]:
        """Called when the whole log was replayed. Groups with members get their state machines, and the members' sessions start."""
        for group_id, entry in list(self._entries.items()):
            if entry.record is not None and entry.record.has_members:
                self._group(group_id, entry, now)
            self._settle(group_id)
        return []

    def unload(self, reason: Reason) -> list[Effect]:
        """Called when the partition goes to another broker, or this broker stops. Answers every waiting request, and empties the
        shard."""
        effects: list[Effect] = []
        for entry in self._entries.values():
            if entry.group is not None:
                for effect in entry.group.handle(Unload(reason=reason), 0):
                    assert isinstance(effect, Reply)
                    effects.append(Answer(effect.token, effect.response))
        for ticket in self._tickets.values():
            if ticket.response is not None:
                effects.append(Answer(ticket.token, failed(ticket.response, reason)))
        self.budget.ids -= len(self._entries)
        self._entries.clear()
        self.producers.clear()
        self._tickets.clear()
        self._timers.clear()
        return effects

    # -- membership

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` must be called, in ms of the timers' clock; None without timers."""
        return self._timers.next_deadline_ms

    def tick(self, now: Now) -> list[Effect]:
        """Run the timers that are due."""
        effects: list[Effect] = []
        while (group_id := self._timers.pop_due(now.timer_ms)) is not None:
            self._run(group_id, self._entries[group_id], Tick(), now, effects)
        return effects

    def handle(self, group_id: str, event: Join | Sync | Heartbeat | Leave, now: Now) -> list[Effect]:
        """Handle a request of a member."""
        if not group_id:
            return [Answer(event.token, refusal(event, Reason.INVALID_GROUP_ID))]
        entry = self._entries.get(group_id)
        if entry is None:
            if not (isinstance(event, Join) and event.member_id == NO_MEMBER):
                return [Answer(event.token, refusal(event, Reason.UNKNOWN_MEMBER_ID))]
            if self.budget.ids >= self.budget.ids_max:
                return [Answer(event.token, refusal(event, Reason.GROUP_MAX_SIZE_REACHED))]
            entry = self._entry(group_id)
        effects: list[Effect] = []
        self._run(group_id, entry, event, now, effects)
        return effects

    # -- positions

    def commit(self, group_id: str, event: Commit, now: Now) -> list[Effect]:
        """Store positions. Answers with a RowsReply."""
        error = self._check_commit(group_id, event, now)
        if error is not None:
            return [Answer(event.token, RowsReply(error=error))]
        entry = self._entries.get(group_id)
        errors: list[Reason | None] = []
        positions: list[tuple[OffsetKey, OffsetValue | None]] = []
        rows: list[Row] = []
        prefixes: dict[str, bytes] = {}
        in_flight: dict[OffsetKey, OffsetValue | None] | None = None
        for position in event.positions:
            row_error = position.check()
            errors.append(row_error)
            if row_error is None:
                topic, partition = position.topic, position.partition
                prefix = prefixes.get(topic)
                if prefix is None:
                    prefix = prefixes[topic] = offset_key_prefix(group_id, topic)
                key = OffsetKey(group_id, topic, partition)
                before = None
                if entry is not None and position.window_end > position.offset:
                    in_flight = self._in_flight(group_id, entry) if in_flight is None else in_flight
                    before = in_flight[key] if key in in_flight else entry.positions.get(topic, partition)
                value = position.value(now.wall_ms, event.retention_ms, before)
                positions.append((key, value))
                rows.append((prefix + encode_partition(partition), encode_offset_value(value)))
        reply = RowsReply(tuple(errors))
        if not rows:
            return [Answer(event.token, reply)]
        self._entry(group_id)
        ticket = Ticket(group_id=group_id, rows=rows, positions=tuple(positions), token=event.token, response=reply)
        return [self._append(ticket)]

    def _check_commit(self, group_id: str, event: Commit, now: Now) -> Reason | None:
        """The reason why the sender of a commit is refused, or None."""
        entry = self._entries.get(group_id)
        if entry is None:
            if event.generation >= 0:
                return event.unknown_group
            return Reason.GROUP_MAX_SIZE_REACHED if self.budget.ids >= self.budget.ids_max else None
        if event.any_member and event.generation < 0 and event.member_id == NO_MEMBER:
            return None
        if entry.group is None:
            return None if event.generation < 0 else Reason.UNKNOWN_MEMBER_ID
        return entry.group.check_commit(event.member_id, event.instance_id, event.generation, now.timer_ms)

    def delete_positions(self, group_id: str, rows: list[tuple[str, int]], token: object, now: Now) -> list[Effect]:
        """Delete positions by (topic, partition), for OffsetDelete. Answers with a RowsReply. A missing position counts as
        deleted. A group without positions stays an empty group until it expires or is deleted."""
        entry = self._entries.get(group_id)
        if entry is None:
            return [Answer(token, RowsReply(error=Reason.GROUP_ID_NOT_FOUND))]
        group = self._group(group_id, entry, now)
        error = group.check_delete_offsets()
        if error is not None:
            return [Answer(token, RowsReply(error=error))]
        subscribed = {topic for topic, _ in rows if group.is_subscribed(topic)} if group.members else set()
        known = set(self._keys(group_id, entry))
        keys = [OffsetKey(group_id, topic, partition) for topic, partition in rows if topic not in subscribed]
        keys = [key for key in dict.fromkeys(keys) if key in known]
        reply = RowsReply(tuple(Reason.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else None for topic, _ in rows))
        if not keys:
            self._settle(group_id)
            return [Answer(token, reply)]
        ticket = self._forget(group_id, keys, token, reply)
        if entry.record is None and len(keys) == len(known):
            metadata = GroupMetadata(protocol_type=None, generation=0, protocol=None, leader=None, state_ms=now.wall_ms)
            record = record_of(encode_group_value(metadata), metadata)
            ticket = replace(ticket, rows=[*ticket.rows, (encode_group_key(group_id), record.data)], empties_group=record)
        return [self._append(ticket)]

    # -- positions in transactions

    def commit_pending(self, group_id: str, event: Commit, producer_id: int, epoch: int, token: int, now: Now) -> list[Effect]:
        """Store positions that count once their transaction is committed. Answers with a RowsReply.

        Args:
            token: of `producers.ask`, from before the coordinator agreed.
        """
        if not group_id:
            return [Answer(event.token, RowsReply(error=Reason.INVALID_GROUP_ID))]
        error = self._check_commit(group_id, event, now)
        entry = self._entries.get(group_id)
        if error is None and entry is not None:
            if entry.pending.epoch(producer_id) > epoch:
                error = Reason.INVALID_PRODUCER_EPOCH
            elif entry.pending.count(producer_id) + len(event.positions) > PENDING_MAX:
                error = Reason.POLICY_VIOLATION
        if error is None and not self.producers.is_valid(producer_id, token):
            error = Reason.CONCURRENT_TRANSACTIONS
        if error is not None:
            return [Answer(event.token, RowsReply(error=error))]
        errors = tuple(position.check() for position in event.positions)
        known = Positions() if entry is None else entry.positions
        pending = tuple(
            (
                PendingKey(group_id, position.topic, position.partition, producer_id),
                epoch,
                position.value(now.wall_ms, NEVER, known.get(position.topic, position.partition)),
            )
            for position, wrong in zip(event.positions, errors, strict=True)
            if wrong is None
        )
        if not pending:
            return [Answer(event.token, RowsReply(errors))]
        rows: list[Row] = [(encode_pending_key(key), encode_pending_value(epoch, value)) for key, epoch, value in pending]
        self._entry(group_id)
        self.producers.note(producer_id, group_id)
        return [self._append(Ticket(group_id=group_id, rows=rows, pending=pending, token=event.token, response=RowsReply(errors)))]

    def end_transaction(self, producer_id: int, epoch: int, token: object, *, commit: bool) -> list[Effect]:
        """Give the pending positions of a producer their outcome, for all groups. Answers with a RowsReply once all are durable.

        Args:
            epoch: of the marker: positions of newer epochs stay.
        """
        tickets: list[Ticket] = []
        for group_id in self.producers.end(producer_id):
            values = {
                key: (known_epoch, value)
                for key, known_epoch, value in self._all_pending(group_id)
                if key.producer_id == producer_id and known_epoch <= epoch
            }
            if not values:
                continue
            positions = tuple((offset_key(key), value) for key, (_, value) in values.items()) if commit else ()
            rows: list[Row] = [(encode_offset_key(key), encode_offset_value(value)) for key, value in positions]
            rows += [(encode_pending_key(key), None) for key in values]
            pending = tuple((key, known_epoch, None) for key, (known_epoch, _) in values.items())
            tickets.append(Ticket(group_id=group_id, rows=rows, positions=positions, pending=pending))
        if not tickets:
            return [Answer(token, RowsReply())]
        # All become durable in order, so the last one answers.
        tickets[-1] = replace(tickets[-1], token=token, response=RowsReply())
        return [self._append(ticket) for ticket in tickets]

    # -- groups as a whole

    def delete_group(self, group_id: str, token: object, now: Now) -> list[Effect]:
        """Delete an empty group and its positions, for DeleteGroups. Answers with a DeleteReply."""
        entry = self._entries.get(group_id)
        if entry is None:
            return [Answer(token, DeleteReply(Reason.GROUP_ID_NOT_FOUND))]
        group = self._group(group_id, entry, now)
        error = group.delete()
        if error is not None:
            return [Answer(token, DeleteReply(error))]
        self._timers.cancel(group_id)
        return [self._append(self._tombstones(group_id, entry, token, DeleteReply()))]

    def clean(
        self, now: Now, *, retention_ms: int, empty_group_ms: int, topic_exists: Callable[[str, OffsetValue], bool]
    ) -> list[Effect]:
        """Forget expired positions, positions of deleted topics, and groups without any state.

        Args:
            retention_ms: of positions, or NEVER.
            empty_group_ms: a group without positions is forgotten after it has been empty for this long.
            topic_exists: returns True if a position's topic exists and is the same one as at the commit.
        """
        effects: list[Effect] = []
        for group_id, entry in list(self._entries.items()):
            if entry.in_flight:
                continue
            gone = [
                OffsetKey(group_id, topic, partition)
                for topic, partition, value in entry.positions.items()
                if not topic_exists(topic, value) or entry.is_expired(topic, value, retention_ms, now.wall_ms)
            ]
            for start in range(0, len(gone), ROWS_PER_APPEND_MAX):
                effects.append(self._append(self._forget(group_id, gone[start : start + ROWS_PER_APPEND_MAX], None, None)))
            idle = not entry.has_members and not (entry.group is not None and entry.group.pending)
            state_ms = 0 if entry.record is None else entry.record.state_ms
            if idle and not (entry.positions or entry.pending) and now.wall_ms - state_ms >= empty_group_ms:
                self._group(group_id, entry, now).delete()
                self._timers.cancel(group_id)
                effects.append(self._append(self._tombstones(group_id, entry, None, None)))
        return effects

    # -- results of the log

    def stored(self, number: int, error: Reason | None, now: Now) -> list[Effect]:
        """Take the result of an Append, in the order of the tickets. None: the rows are durable. Else the reason why they count
        as lost."""
        ticket = self._tickets.pop(number, None)
        if ticket is None:
            return []  # from before `unload`
        effects: list[Effect] = []
        entry = self._entries[ticket.group_id]
        entry.in_flight -= 1
        if error is None:
            for key, value in ticket.positions:
                entry.positions.set(key.topic, key.partition, value)
            entry.record = ticket.empties_group or entry.record
            for pending_key, epoch, value in ticket.pending:
                self._set_pending(entry, pending_key, epoch, value)
        if ticket.response is not None:
            effects.append(Answer(ticket.token, ticket.response if error is None else failed(ticket.response, error)))
        if ticket.deletes_group:
            assert entry.group is not None
            if error is None:
                entry.group = entry.record = entry.consumer = None  # the group has no state left, and `_settle` forgets it
            else:
                entry.group.revive()
        elif ticket.group_ticket is not None and entry.group is not None:
            if error is not None and entry.record is not None and entry.record.data is ticket.rows[0][1]:
                entry.record = ticket.before
            self._run(ticket.group_id, entry, Stored(ticket=ticket.group_ticket, error=error), now, effects)
        self._settle(ticket.group_id)
        return effects

    # -- internal steps

    def _run(self, group_id: str, entry: Entry, event: Event, now: Now, effects: list[Effect]) -> None:
        group = self._group(group_id, entry, now)
        for effect in group.handle(event, now.timer_ms):
            if isinstance(effect, Reply):
                effects.append(Answer(effect.token, effect.response))
            else:
                effects.append(self._persist(group_id, entry, effect, now))
        self._schedule(group_id, group)
        self._settle(group_id)

    def _persist(self, group_id: str, entry: Entry, effect: Persist, now: Now) -> Append:
        metadata = replace(effect.metadata, state_ms=now.wall_ms)
        before, entry.record = entry.record, record_of(encode_group_value(metadata), metadata)
        rows: list[Row] = [(encode_group_key(group_id), entry.record.data)]
        return self._append(Ticket(group_id=group_id, rows=rows, group_ticket=effect.ticket, before=before))

    def _group(self, group_id: str, entry: Entry, now: Now) -> Group:
        """The state machine of an entry. If it is missing, it is made from the entry's record."""
        if entry.group is None:
            entry.group = self._make(group_id, entry, now)
            self._schedule(group_id, entry.group)
        return entry.group

    def _schedule(self, group_id: str, group: Group | ConsumerGroup) -> None:
        deadline = group.next_deadline_ms
        if deadline is None:
            self._timers.cancel(group_id)
        else:
            self._timers.set(group_id, deadline)

    def _settle(self, group_id: str) -> None:
        """Drop unneeded state: the state machine of an empty group, and a group without any state."""
        entry = self._entries.get(group_id)
        if entry is None or entry.in_flight:
            return
        group = entry.group
        if group is not None and group.state is State.EMPTY and not group.pending:
            # Keep the state machine if the log's record is older than it: the record would bring back members or an old generation.
            record = entry.record
            told = group.generation == 0 if record is None else (group.generation, False) == (record.generation, record.has_members)
            if told:
                entry.group = None
                self._timers.cancel(group_id)
        if not (entry.group or entry.record or entry.consumer or entry.positions or entry.pending):
            del self._entries[group_id]
            self.budget.ids -= 1
