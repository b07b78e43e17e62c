"""All transactional ids of one partition of `__transaction_state`: a pure state machine that is the fold of that partition's
records.

The driver (`coordinator.py`) calls it as `groups/shard.py` describes. One effect is new: `Mark` asks for the markers of a prepared
transaction, and `marked` reports the partitions that have theirs. A transaction whose markers are being written when the partition
changes its lead is marked again by the next coordinator: a second marker finds nothing to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from headgate.broker.coordination.effects import Answer, Append, Budget, Now, Row
from headgate.broker.coordination.timers import Timers
from headgate.broker.runtime.errors import Reason
from headgate.broker.transactions import rules
from headgate.broker.transactions.records import (
    NO_TIME,
    Partition,
    State,
    Transaction,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from headgate.broker.transactions.rules import Reply, Step

RETRY_MS = 1_000
"""Pause before a change without a client is tried again after the log refused it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Write the markers of a prepared transaction, then report `marked`."""

    transactional_id: str
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Changed:
    """An id has another durable state: requests that found it busy may try again."""

    transactional_id: str


Effect: TypeAlias = Answer | Append | Mark | Changed
Rule: TypeAlias = Callable[[Transaction | None], Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ticket:
    transactional_id: str
    row: Row
    state: Transaction | None
    """None: the id is forgotten."""
    token: object = None
    reply: Reply | None = None


class _Entry:
    """One transactional id."""

    __slots__ = ("ticket", "transaction", "unmarked")

    def __init__(self, transaction: Transaction | None) -> None:
        self.transaction = transaction
        """The durable state. None: the first one is on its way to the log."""
        self.ticket: _Ticket | None = None
        """The change on its way to the log."""
        self.unmarked: set[Partition] = set()
        """Partitions of a prepared transaction without a marker."""


class Shard:
    """All transactional ids of one partition. Methods that return effects never raise for the contents of a request."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.rows_appended = 0
        self._entries: dict[str, _Entry] = {}
        self._timers: Timers[str] = Timers()
        self._tickets: dict[int, _Ticket] = {}
        self._ticket = 0

    # -- start and end

    def replay(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        """Take one record of the log. Raises CorruptError, with nothing changed, if no coordinator wrote the record."""
        transactional_id = decode_key(key_bytes)
        transaction = None if value_bytes is None else decode_value(value_bytes)
        self.rows_appended += 1
        if transactional_id is None:
            return
        if transaction is None:
            self._drop(transactional_id)
        else:
            self._entry(transactional_id).transaction = transaction

    def loaded(self, now: Now) -> list[Effect]:
        """Called when the whole log was replayed. Prepared transactions are marked again; time-outs of ongoing ones continue."""
        effects: list[Effect] = []
        for transactional_id, entry in self._entries.items():
            self._follow(transactional_id, entry, now, effects)
        return effects

    def unload(self, reason: Reason) -> list[Effect]:
        """Called when the partition goes to another broker, or this broker stops. Answers every waiting request, and empties the
        shard."""
        effects: list[Effect] = [
            Answer(ticket.token, Reply(reason)) for ticket in self._tickets.values() if ticket.token is not None
        ]
        effects += [Changed(transactional_id) for transactional_id in self._entries]
        self.budget.ids -= len(self._entries)
        self._entries.clear()
        self._tickets.clear()
        self._timers.clear()
        return effects

    # -- requests and time

    def handle(self, transactional_id: str, rule: Rule, token: object, *, creates: bool = False) -> list[Effect]:
        """Decide about a request by a rule of `rules.py`. Answers with a Reply.

        Args:
            creates: the request may create the id.
        """
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.ticket is not None:
            return [Answer(token, Reply(Reason.CONCURRENT_TRANSACTIONS))]
        if entry is None and creates and self.budget.ids >= self.budget.ids_max:
            return [Answer(token, Reply(Reason.POLICY_VIOLATION))]
        step = rule(None if entry is None else entry.transaction)
        if step.state is None:
            return [Answer(token, step.reply)]
        return [self._append(transactional_id, step.state, token, step.reply)]

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` must be called, in ms of the timers' clock; None without timers."""
        return self._timers.next_deadline_ms

    def tick(self, now: Now) -> list[Effect]:
        """Abort transactions whose time is over, and repeat changes that the log has refused."""
        effects: list[Effect] = []
        while (transactional_id := self._timers.pop_due(now.timer_ms)) is not None:
            entry = self._entries[transactional_id]
            known = entry.transaction
            if known is None or entry.ticket is not None:
                continue  # `stored` sets the next deadline
            if known.state is State.ONGOING:
                effects.append(self._append(transactional_id, rules.fence(known, now.wall_ms)))
            elif known.state.is_prepared and not entry.unmarked:
                effects.append(self._append(transactional_id, rules.complete(known, now.wall_ms)))
        return effects

    def marked(self, transactional_id: str, transaction: Transaction, partitions: set[Partition], now: Now) -> list[Effect]:
        """Some partitions have their marker. `transaction`: of the `Mark`."""
        entry = self._entries.get(transactional_id)
        if entry is None or entry.transaction is not transaction:
            return []
        before = len(entry.unmarked)
        entry.unmarked -= partitions
        if entry.unmarked or not before:
            return []
        return [self._append(transactional_id, rules.complete(transaction, now.wall_ms))]

    def clean(self, expired_before_ms: int) -> list[Effect]:
        """Forget ids without a transaction that have not changed since `expired_before_ms`."""
        return [
            self._append(transactional_id, None)
            for transactional_id, entry in list(self._entries.items())
            if entry.ticket is None
            and (known := entry.transaction) is not None
            and known.state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
            and known.update_ms < expired_before_ms
        ]

    # -- for reading

    def find(self, transactional_id: str) -> Transaction | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.transaction

    def list_all(self) -> Iterator[tuple[str, Transaction]]:
        """All ids and their durable states, as at the beginning of the iteration."""
        for transactional_id, entry in list(self._entries.items()):
            if entry.transaction is not None:
                yield transactional_id, entry.transaction

    # -- the log

    def live_count(self) -> int:
        return len(self._entries)

    def snapshot(self) -> Iterator[list[Row]]:
        """The latest value of every id, with those on their way to the log. See `groups/shard.py`."""
        self.rows_appended = 0
        for transactional_id in list(self._entries):
            entry = self._entries.get(transactional_id)
            if entry is None:
                continue
            if entry.ticket is not None:
                yield [entry.ticket.row]
            elif entry.transaction is not None:
                yield [(encode_key(transactional_id), encode_value(entry.transaction))]

    def stored(self, number: int, error: Reason | None, now: Now) -> list[Effect]:
        """Take the result of an Append, in the order of the tickets. None: the row is durable. Else the reason why it counts as
        lost."""
        ticket = self._tickets.pop(number, None)
        if ticket is None:
            return []  # from before `unload`
        transactional_id = ticket.transactional_id
        entry = self._entries[transactional_id]
        entry.ticket = None
        effects: list[Effect] = []
        if ticket.token is not None:
            effects.append(Answer(ticket.token, ticket.reply if error is None else Reply(error)))
        if error is None:
            entry.transaction = ticket.state
        if entry.transaction is None:
            self._drop(transactional_id)
        elif error is None:
            self._follow(transactional_id, entry, now, effects)
        else:
            deadline_ms = self._deadline_ms(entry.transaction, now)
            if deadline_ms is not None:
                self._timers.set(transactional_id, max(deadline_ms, now.timer_ms + RETRY_MS))
        effects.append(Changed(transactional_id))
        return effects

    def _follow(self, transactional_id: str, entry: _Entry, now: Now, effects: list[Effect]) -> None:
        """Begin what the new durable state of an id asks for."""
        known = entry.transaction
        assert known is not None
        deadline_ms = self._deadline_ms(known, now)
        if not known.state.is_prepared:
            if deadline_ms is None:
                self._timers.cancel(transactional_id)
            else:
                self._timers.set(transactional_id, deadline_ms)
        else:
            self._timers.cancel(transactional_id)
            entry.unmarked = set(known.partitions)
            if entry.unmarked:
                effects.append(Mark(transactional_id, known))
            else:
                effects.append(self._append(transactional_id, rules.complete(known, now.wall_ms)))

    @staticmethod
    def _deadline_ms(known: Transaction, now: Now) -> int | None:
        """The time at which an ongoing transaction is aborted, or a change of a prepared one is tried again; None without one."""
        if known.state.is_prepared:
            return now.timer_ms
        if known.state is not State.ONGOING:
            return None
        since_ms = now.wall_ms if known.start_ms == NO_TIME else known.start_ms
        return now.timer_ms + min(max(since_ms + known.timeout_ms - now.wall_ms, 0), known.timeout_ms)

    def _append(self, transactional_id: str, state: Transaction | None, token: object = None, reply: Reply | None = None) -> Append:
        row = encode_key(transactional_id), None if state is None else encode_value(state)
        ticket = _Ticket(transactional_id=transactional_id, row=row, state=state, token=token, reply=reply)
        self._entry(transactional_id).ticket = ticket
        self._ticket += 1
        self._tickets[self._ticket] = ticket
        self.rows_appended += 1
        return Append(self._ticket, [row])

    def _entry(self, transactional_id: str) -> _Entry:
        entry = self._entries.get(transactional_id)
        if entry is None:
            entry = self._entries[transactional_id] = _Entry(None)
            self.budget.ids += 1
        return entry

    def _drop(self, transactional_id: str) -> None:
        if self._entries.pop(transactional_id, None) is not None:
            self._timers.cancel(transactional_id)
            self.budget.ids -= 1
