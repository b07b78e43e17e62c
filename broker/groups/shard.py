"""All groups of one partition of `__consumer_offsets`: a pure state machine that is the fold of that partition's records.

The driver (`groups/driver.py`) replays the partition into it. Then it passes requests and the time to it, appends the rows
that the shard returns, and reports the result. The shard shows a position, and answers a commit, only once it is durable.

Theory of operation::

    replay(key, value)...  →  loaded()  →  handle | commit | delete_* | tick | clean  →  unload
                                              │  effects: Reply(token, response), Append(ticket, rows)
                                              └◀ stored(ticket, error)

The log of a partition is the truth. The shard holds the latest value of each key in it. `snapshot` returns these values as rows,
updated by the rows that are on their way to the log. Then all rows before them may be cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from headgate.broker.coordination.effects import ROWS_PER_APPEND_MAX, Answer, Append, Budget, Effect, Now, Row
from headgate.broker.coordination.timers import Timers
from headgate.broker.groups.consumer_group import ConsumerGroup
from headgate.broker.groups.entry import DeleteReply, Entry, GroupListing, RowsReply, Ticket, failed, record_of
from headgate.broker.groups.events import (
    NO_MEMBER,
    Event,
    GroupConfig,
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
from headgate.broker.groups.pending import PENDING_MAX, Producers, offset_key
from headgate.broker.groups.positions import NEVER, Position, Positions
from headgate.broker.groups.records import (
    GroupMetadata,
    OffsetKey,
    OffsetValue,
    PendingKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    decode_pending_value,
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


class Shard:
    """All groups of one partition. Methods that return effects never raise for the contents of a request."""

    def __init__(self, config: GroupConfig, budget: Budget) -> None:
        self.config = config
        self.budget = budget
        self._entries: dict[str, Entry] = {}
        self._timers: Timers[str] = Timers()
        self._tickets: dict[int, Ticket] = {}
        """Tickets without a result, in the order of the log."""
        self._ticket = 0
        self.producers = Producers()
        """The producers of `Entry.pending`."""
        self.rows_appended = 0
        """Rows that were replayed, or appended since the last `snapshot`. A new snapshot would replace them."""

    # -- start and end

    def replay(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        """Take one record of the log. Raises CorruptError, with nothing changed, if no coordinator wrote the record."""
        key = decode_key(key_bytes)
        self.rows_appended += 1
        if isinstance(key, str):
            record = None if value_bytes is None else record_of(value_bytes, decode_group_value(value_bytes))
            if record is not None or key in self._entries:
                self._entry(key).record = record
        elif isinstance(key, OffsetKey):
            value = None if value_bytes is None else decode_offset_value(value_bytes)
            if value is not None or key.group in self._entries:
                self._entry(key.group).positions.set(key.topic, key.partition, value)
        elif isinstance(key, PendingKey):
            epoch, value = (0, None) if value_bytes is None else decode_pending_value(value_bytes)
            if value is not None or key.group in self._entries:
                self._set_pending(self._entry(key.group), key, epoch, value)

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

    def _in_flight(self, group_id: str, entry: Entry) -> dict[OffsetKey, OffsetValue | None]:
        """The positions of a group that are on their way to the log."""
        tickets = self._tickets.values() if entry.in_flight else ()
        return {key: value for ticket in tickets if ticket.group_id == group_id for key, value in ticket.positions}

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
                PendingKey(group_id, one.topic, one.partition, producer_id),
                epoch,
                one.value(now.wall_ms, NEVER, known.get(one.topic, one.partition)),
            )
            for one, wrong in zip(event.positions, errors, strict=True)
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

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """True if a transaction without an outcome has a position for a partition."""
        entry = self._entries.get(group_id)
        return entry is not None and entry.pending.has(topic, partition)

    def _all_pending(self, group_id: str) -> Iterator[tuple[PendingKey, int, OffsetValue]]:
        """The pending positions of a group, with those on their way to the log."""
        entry = self._entries.get(group_id)
        if entry is None:
            return
        found = {key: (epoch, value) for key, epoch, value in entry.pending.items(group_id)}
        for ticket in self._tickets.values() if entry.in_flight else ():
            for key, epoch, value in ticket.pending:
                if key.group != group_id:
                    continue
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = epoch, value
        for key, (epoch, value) in found.items():
            yield key, epoch, value

    # -- committed positions

    def position(self, group_id: str, topic: str, partition: int) -> OffsetValue | None:
        """A committed position, in any state of the group."""
        entry = self._entries.get(group_id)
        return None if entry is None else entry.positions.get(topic, partition)

    def positions(self, group_id: str) -> list[tuple[str, int, OffsetValue]]:
        """Every committed position of a group: topic, partition, value."""
        entry = self._entries.get(group_id)
        return [] if entry is None else list(entry.positions.items())

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

    def list_groups(self) -> Iterator[GroupListing]:
        """The groups at the beginning of the iteration. Groups may come and go meanwhile."""
        for group_id, entry in list(self._entries.items()):
            group = entry.group
            if group is not None:
                yield GroupListing(group_id, group.protocol_type or "", group.state, len(group.members))
            else:
                protocol_type = None if entry.record is None else entry.record.protocol_type
                yield GroupListing(group_id, protocol_type or "", State.EMPTY, 0)

    def find(self, group_id: str, now: Now) -> Group | None:
        """The group, for reading only; None if it does not exist."""
        entry = self._entries.get(group_id)
        if entry is None or entry.group is not None:
            return None if entry is None else entry.group
        return self._make(group_id, entry, now)

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

    def live_count(self) -> int:
        """Number of keys with a value."""
        return sum(len(entry.positions) + len(entry.pending) + (entry.record is not None) for entry in self._entries.values())

    def snapshot(self) -> Iterator[list[Row]]:
        """The latest value of every key, group by group. Once all of it is in the log, the rows before its first row are not
        needed any more.

        The rows of a group are made on demand, and include the group's rows that are on their way to the log. The caller must
        append them before it calls the shard again. Between two groups it may call the shard.
        """
        self.rows_appended = 0
        for group_id in list(self._entries):
            rows = self._live_rows(group_id)
            if rows:
                yield rows

    def _live_rows(self, group_id: str) -> list[Row]:
        entry = self._entries.get(group_id)
        if entry is None:
            return []
        latest: dict[bytes, bytes | None] = {}
        if entry.record is not None:
            latest[encode_group_key(group_id)] = entry.record.data
        for topic, partition, value in entry.positions.items():
            latest[encode_offset_key(OffsetKey(group_id, topic, partition))] = encode_offset_value(value)
        for key, epoch, value in entry.pending.items(group_id):
            latest[encode_pending_key(key)] = encode_pending_value(epoch, value)
        if entry.in_flight:
            for ticket in self._tickets.values():
                if ticket.group_id == group_id:
                    latest.update(ticket.rows)
        return [row for row in latest.items() if row[1] is not None]

    # -- the log

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

    def _append(self, ticket: Ticket) -> Append:
        self._ticket += 1
        self._tickets[self._ticket] = ticket
        self._entries[ticket.group_id].in_flight += 1
        self.rows_appended += len(ticket.rows)
        return Append(self._ticket, ticket.rows)

    def _set_pending(self, entry: Entry, key: PendingKey, epoch: int, value: OffsetValue | None) -> None:
        entry.pending.set(key, epoch, value)
        if entry.pending.count(key.producer_id):
            self.producers.note(key.producer_id, key.group)
        elif not any(key.producer_id == other.producer_id for other, _, _ in self._all_pending(key.group)):
            self.producers.forget(key.producer_id, key.group)

    def _forget(self, group_id: str, keys: list[OffsetKey], token: object, reply: RowsReply | None) -> Ticket:
        return Ticket(
            group_id=group_id,
            rows=[(encode_offset_key(key), None) for key in keys],
            positions=tuple((key, None) for key in keys),
            token=token,
            response=reply,
        )

    def _tombstones(self, group_id: str, entry: Entry, token: object, reply: DeleteReply | None) -> Ticket:
        """The rows that end a group: they delete every position that the log contains, and the group itself."""
        keys = self._keys(group_id, entry)
        pending = tuple((key, epoch, None) for key, epoch, _ in self._all_pending(group_id))
        rows: list[Row] = [(encode_offset_key(key), None) for key in keys]
        rows += [(encode_pending_key(key), None) for key, _, _ in pending]
        rows.append((encode_group_key(group_id), None))
        return Ticket(
            group_id=group_id,
            rows=rows,
            positions=tuple((key, None) for key in keys),
            pending=pending,
            deletes_group=True,
            token=token,
            response=reply,
        )

    def _keys(self, group_id: str, entry: Entry) -> list[OffsetKey]:
        """The keys of a group's positions, including those on their way to the log."""
        keys = dict.fromkeys(entry.positions.keys(group_id))
        if entry.in_flight:
            for ticket in self._tickets.values():
                if ticket.group_id == group_id:
                    keys.update((key, None) for key, value in ticket.positions if value is not None)
        return list(keys)

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

    def _entry(self, group_id: str) -> Entry:
        entry = self._entries.get(group_id)
        if entry is None:
            entry = self._entries[group_id] = Entry()
            self.budget.ids += 1
        return entry

    def _group(self, group_id: str, entry: Entry, now: Now) -> Group:
        """The state machine of an entry. If it is missing, it is made from the entry's record."""
        if entry.group is None:
            entry.group = self._make(group_id, entry, now)
            self._schedule(group_id, entry.group)
        return entry.group

    def _make(self, group_id: str, entry: Entry, now: Now) -> Group:
        if entry.record is None:
            return Group(group_id, self.config)
        return Group.load(group_id, self.config, decode_group_value(entry.record.data), now.timer_ms)

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
