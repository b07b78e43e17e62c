"""What a shard of groups holds: the latest value of each key of its partition, and the rows that are on their way to it."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.broker.coordination.effects import Append, Budget, Now, Row
from headgate.broker.coordination.timers import Timers
from headgate.broker.groups.entry import DeleteReply, Entry, GroupListing, RowsReply, Ticket, record_of
from headgate.broker.groups.events import GroupConfig, State
from headgate.broker.groups.group import Group
from headgate.broker.groups.pending import Producers
from headgate.broker.groups.records import (
    OffsetKey,
    OffsetValue,
    PendingKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    decode_pending_value,
    encode_group_key,
    encode_offset_key,
    encode_offset_value,
    encode_pending_key,
    encode_pending_value,
)


class Holdings:
    """The groups of one partition of `__consumer_offsets`, with their tickets: what the log says, and questions about it."""

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

    # -- for readers

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """True if a transaction without an outcome has a position for a partition."""
        entry = self._entries.get(group_id)
        return entry is not None and entry.pending.has(topic, partition)

    def position(self, group_id: str, topic: str, partition: int) -> OffsetValue | None:
        """A committed position, in any state of the group."""
        entry = self._entries.get(group_id)
        return None if entry is None else entry.positions.get(topic, partition)

    def positions(self, group_id: str) -> list[tuple[str, int, OffsetValue]]:
        """Every committed position of a group: topic, partition, value."""
        entry = self._entries.get(group_id)
        return [] if entry is None else list(entry.positions.items())

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

    # -- the log as it is, and as a new one

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

    def _in_flight(self, group_id: str, entry: Entry) -> dict[OffsetKey, OffsetValue | None]:
        """The positions of a group that are on their way to the log."""
        tickets = self._tickets.values() if entry.in_flight else ()
        return {key: value for ticket in tickets if ticket.group_id == group_id for key, value in ticket.positions}

    def _keys(self, group_id: str, entry: Entry) -> list[OffsetKey]:
        """The keys of a group's positions, including those on their way to the log."""
        keys = dict.fromkeys(entry.positions.keys(group_id))
        if entry.in_flight:
            for ticket in self._tickets.values():
                if ticket.group_id == group_id:
                    keys.update((key, None) for key, value in ticket.positions if value is not None)
        return list(keys)

    # -- rows on their way

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

    def _entry(self, group_id: str) -> Entry:
        entry = self._entries.get(group_id)
        if entry is None:
            entry = self._entries[group_id] = Entry()
            self.budget.ids += 1
        return entry

    def _make(self, group_id: str, entry: Entry, now: Now) -> Group:
        if entry.record is None:
            return Group(group_id, self.config)
        return Group.load(group_id, self.config, decode_group_value(entry.record.data), now.timer_ms)
