"""All groups of one partition of `__consumer_offsets`, classic ones and consumer groups (KIP-848).

`shard.py` has classic groups and positions. Here are the consumer groups beside them. A group is of one kind at a time, and keeps
its positions when it changes. Without members, the first one that joins decides. With members, a classic group becomes a consumer
group with the first member of the new protocol, and classic again when the last one has left (`consumer_classic.py`).

A consumer group changes in memory first. Its answers wait until all rows up to theirs are durable, so nothing is shown that a
failure of this broker could undo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.broker.coordination.effects import Answer, Budget, Effect, Now, Row
from headgate.broker.groups import consumer_classic
from headgate.broker.groups.consumer_classic import ClassicReply, downgraded, upgraded
from headgate.broker.groups.consumer_events import ConsumerConfig, ConsumerHeartbeat, ConsumerHeartbeatReply, Topology
from headgate.broker.groups.consumer_group import ConsumerGroup
from headgate.broker.groups.consumer_records import Kind, decode_consumer_key
from headgate.broker.groups.consumer_topics import Resolve
from headgate.broker.groups.entry import CONSUMER, DeleteReply, Entry, GroupListing, RowsReply, Ticket, failed, record_of
from headgate.broker.groups.events import Event, GroupConfig, Heartbeat, Join, Leave, Reply, State, Sync, Tick, Unload
from headgate.broker.groups.group import Group
from headgate.broker.groups.records import encode_group_key, encode_group_value
from headgate.broker.groups.shard import Commit, Shard
from headgate.broker.runtime.errors import Reason


class ConsumerShard(Shard):
    """All groups of one partition, of both kinds."""

    def __init__(
        self,
        config: GroupConfig,
        consumer_config: ConsumerConfig,
        budget: Budget,
        resolve: Resolve,
        topics: Callable[[], Topology],
    ) -> None:
        super().__init__(config, budget)
        self._topics = topics
        self._consumer_config = consumer_config
        self._resolve = resolve
        self._waiting: dict[int, list[tuple[object, ConsumerHeartbeatReply | ClassicReply]]] = {}
        """By ticket: more answers that wait for it."""

    # -- start and end

    def replay(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = decode_consumer_key(key_bytes)
        if key is None:
            super().replay(key_bytes, value_bytes)
            return
        entry = self._entries.get(key.group)
        if value_bytes is not None or (entry is not None and entry.consumer is not None):
            entry = self._entry(key.group)
            entry.consumer = entry.consumer or self._make_consumer(key.group)
            entry.consumer.roster.replay(key, value_bytes)
            if key.kind is Kind.GROUP and value_bytes is None:
                entry.consumer = None
        self.rows_appended += 1

    def loaded(self, now: Now) -> list[Effect]:
        effects = super().loaded(now)
        for group_id, entry in self._entries.items():
            if entry.consumer is not None:
                entry.consumer.loaded(now.timer_ms)
                self._schedule(group_id, entry.consumer)
        return effects

    def unload(self, reason: Reason) -> list[Effect]:
        waiting, self._waiting = self._waiting, {}
        effects: list[Effect] = [Answer(token, failed(reply, reason)) for answers in waiting.values() for token, reply in answers]
        return effects + super().unload(reason)

    # -- members

    def consumer_heartbeat(self, group_id: str, event: ConsumerHeartbeat, now: Now) -> list[Effect]:
        """Handle ConsumerGroupHeartbeat. Answers with a ConsumerHeartbeatReply."""
        entry = self._entries.get(group_id)
        refused = self._refuse(group_id, event, entry)
        if refused is not None:
            return [Answer(event.token, ConsumerHeartbeatReply(error=refused[0], message=refused[1]))]
        entry = self._entry(group_id)
        effects: list[Effect] = []
        if entry.consumer is not None:
            group = entry.consumer
        elif entry.has_members:
            upgraded = self._upgrade(group_id, entry, now, effects)
            if upgraded is None:
                message = f"the group's members are no consumers. group=`{group_id}`"
                return [Answer(event.token, ConsumerHeartbeatReply(error=Reason.INCONSISTENT_GROUP_PROTOCOL, message=message))]
            group = upgraded
        else:
            group = self._make_consumer(group_id)
        reply = group.heartbeat(event, self._topics(), now.timer_ms)
        if not group.roster.epoch:
            self._settle(group_id)  # the first heartbeat of a new group was refused
            return [Answer(event.token, reply)]
        if entry.consumer is None:
            if entry.record is not None:
                effects.append(self._append(Ticket(group_id=group_id, rows=[(encode_group_key(group_id), None)])))
            entry.group, entry.record, entry.consumer = None, None, group
        return effects + self._store(group_id, entry, group, now, event.token, reply)

    def _refuse(self, group_id: str, event: ConsumerHeartbeat, entry: Entry | None) -> tuple[Reason, str] | None:
        if not group_id:
            return Reason.INVALID_GROUP_ID, "the group has no id"
        if entry is not None and entry.consumer is not None:
            return None
        if event.epoch != 0:
            return Reason.GROUP_ID_NOT_FOUND, f"there is no such consumer group. group=`{group_id}`"
        if entry is None:
            full = self.budget.ids >= self.budget.ids_max
            return (Reason.GROUP_MAX_SIZE_REACHED, "this broker has too many groups") if full else None
        if entry.state is State.DEAD:
            return Reason.COORDINATOR_NOT_AVAILABLE, f"the group is being deleted. group=`{group_id}`"
        return None

    def _upgrade(self, group_id: str, entry: Entry, now: Now, effects: list[Effect]) -> ConsumerGroup | None:
        """The consumer group that a classic one becomes, whose waiting members are told to join again."""
        classic = self._group(group_id, entry, now)
        made = upgraded(group_id, classic, self._consumer_config, self._resolve, self._topics(), now.timer_ms)
        if made is not None:
            for effect in classic.handle(Unload(reason=Reason.REBALANCE_IN_PROGRESS), now.timer_ms):
                assert isinstance(effect, Reply)
                effects.append(Answer(effect.token, effect.response))
        return made

    def handle(self, group_id: str, event: Join | Sync | Heartbeat | Leave, now: Now) -> list[Effect]:
        entry = self._entries.get(group_id)
        if entry is None or entry.consumer is None:
            return super().handle(group_id, event, now)
        group = entry.consumer
        if isinstance(event, Join) and not group.members:
            entry.consumer = None
            effects: list[Effect] = [self._append(Ticket(group_id=group_id, rows=_tombstones_of(group)))]
            return effects + super().handle(group_id, event, now)
        reply = consumer_classic.handle(group, self.config, event, self._topics(), now.timer_ms)
        return self._store(group_id, entry, group, now, event.token, reply)

    def _store(
        self,
        group_id: str,
        entry: Entry,
        group: ConsumerGroup,
        now: Now,
        token: object = None,
        reply: ConsumerHeartbeatReply | ClassicReply | None = None,
    ) -> list[Effect]:
        """Append the group's rows, and answer once all rows up to them are durable."""
        effects: list[Effect] = []
        rows = group.roster.take_rows()
        if rows:
            append = self._append(Ticket(group_id=group_id, rows=rows, of_consumer=True, token=token, response=reply))
            entry.consumer_ticket = append.ticket
            effects.append(append)
        elif reply is not None and entry.consumer_ticket in self._tickets:
            self._waiting.setdefault(entry.consumer_ticket, []).append((token, reply))
        elif reply is not None:
            effects.append(Answer(token, reply))
        if group.is_classic:
            self._downgrade(group_id, entry, group, now, effects)
        else:
            self._schedule(group_id, group)
        return effects

    def _downgrade(self, group_id: str, entry: Entry, group: ConsumerGroup, now: Now, effects: list[Effect]) -> None:
        """Only members of the classic protocol are left: the group is classic again, and rebalances."""
        names = {topic.id: name for name, topic in self._topics().topics.items()}
        classic = downgraded(group_id, group, self.config, names, now.timer_ms)
        metadata = classic.to_metadata(now.wall_ms)
        entry.consumer, entry.group = None, classic
        entry.record = record_of(encode_group_value(metadata), metadata)
        rows = [*_tombstones_of(group), (encode_group_key(group_id), entry.record.data)]
        effects.append(self._append(Ticket(group_id=group_id, rows=rows)))
        for effect in classic.rebalance(now.timer_ms):
            assert isinstance(effect, Reply)
            effects.append(Answer(effect.token, effect.response))
        self._schedule(group_id, classic)

    def _run(self, group_id: str, entry: Entry, event: Event, now: Now, effects: list[Effect]) -> None:
        if entry.consumer is None:
            super()._run(group_id, entry, event, now, effects)
        elif isinstance(event, Tick):
            entry.consumer.tick(now.timer_ms)
            effects += self._store(group_id, entry, entry.consumer, now)

    def stored(self, number: int, error: Reason | None, now: Now) -> list[Effect]:
        ticket = self._tickets.get(number)
        if ticket is not None and ticket.of_consumer and error is not None:
            consumer = self._entries[ticket.group_id].consumer
            if consumer is not None:
                consumer.roster.lost_rows = True
        effects = super().stored(number, error, now)
        for token, reply in self._waiting.pop(number, ()):
            effects.append(Answer(token, reply if error is None else failed(reply, error)))
        return effects

    # -- positions and whole groups

    def _check_commit(self, group_id: str, event: Commit, now: Now) -> Reason | None:
        entry = self._entries.get(group_id)
        if entry is None or entry.consumer is None:
            return super()._check_commit(group_id, event, now)
        if event.any_member and event.generation < 0 and not event.member_id:
            return None
        return entry.consumer.check_commit(event.member_id, event.generation)

    def check_member(self, group_id: str, member_id: str, epoch: int) -> Reason | None:
        """The reason why a member that asks for positions is refused, or None."""
        entry = self._entries.get(group_id)
        if entry is None or entry.consumer is None:
            return Reason.UNKNOWN_MEMBER_ID if epoch >= 0 and (entry is None or not entry.has_members) else None
        return entry.consumer.check_commit(member_id, epoch)

    def delete_positions(self, group_id: str, rows: list[tuple[str, int]], token: object, now: Now) -> list[Effect]:
        entry = self._entries.get(group_id)
        if entry is None or entry.consumer is None:
            return super().delete_positions(group_id, rows, token, now)
        subscribed = {topic for topic, _ in rows if entry.consumer.is_subscribed(topic)}
        wanted = {row for row in rows if row[0] not in subscribed}
        keys = [key for key in self._keys(group_id, entry) if (key.topic, key.partition) in wanted]
        reply = RowsReply(tuple(Reason.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else None for topic, _ in rows))
        if not keys:
            return [Answer(token, reply)]
        return [self._append(self._forget(group_id, keys, token, reply))]

    def delete_group(self, group_id: str, token: object, now: Now) -> list[Effect]:
        entry = self._entries.get(group_id)
        if entry is not None and entry.consumer is not None and entry.consumer.members:
            return [Answer(token, DeleteReply(Reason.NON_EMPTY_GROUP))]
        return super().delete_group(group_id, token, now)

    def list_groups(self) -> Iterator[GroupListing]:
        for listing in super().list_groups():
            entry = self._entries.get(listing.group_id)
            consumer = None if entry is None else entry.consumer
            if consumer is None:
                yield listing
            else:
                yield GroupListing(listing.group_id, "consumer", consumer.state, len(consumer.members), CONSUMER)

    def find(self, group_id: str, now: Now) -> Group | None:
        entry = self._entries.get(group_id)
        return None if entry is not None and entry.consumer is not None else super().find(group_id, now)

    def find_consumer(self, group_id: str) -> ConsumerGroup | None:
        """A consumer group, for reading only; None if there is none with this id."""
        entry = self._entries.get(group_id)
        return None if entry is None else entry.consumer

    # -- the log

    def live_count(self) -> int:
        groups = (entry.consumer for entry in self._entries.values())
        return super().live_count() + sum(2 + 3 * len(group.members) for group in groups if group is not None)

    def _live_rows(self, group_id: str) -> list[Row]:
        entry = self._entries.get(group_id)
        consumer = None if entry is None else entry.consumer
        # All rows that are on their way are older than what the machine holds, or the same.
        latest = dict(super()._live_rows(group_id))
        if consumer is not None:
            latest = {key: value for key, value in latest.items() if decode_consumer_key(key) is None} | dict(
                consumer.roster.rows()
            )
        return list(latest.items())

    def _tombstones(self, group_id: str, entry: Entry, token: object, reply: DeleteReply | None) -> Ticket:
        ticket = super()._tombstones(group_id, entry, token, reply)
        if entry.consumer is not None:
            ticket.rows.extend(_tombstones_of(entry.consumer))
        return ticket

    def _make_consumer(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, self._consumer_config, self._resolve)


def _tombstones_of(group: ConsumerGroup) -> list[Row]:
    return [(key, None) for key, _ in group.roster.rows()]
