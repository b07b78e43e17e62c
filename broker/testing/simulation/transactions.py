"""What transactional producers did, and the checks of what consumers of committed records see.

1. A transaction is visible as a whole, in all its partitions, or not at all: after an answered commit it is, after an abort never.
2. No consumer of committed records sees a record before its producer asked for the commit, nor a record twice.
3. A producer that was replaced (a zombie) never commits.
4. The position that a transaction commits has the fate of its records.

Some transactions stay open, or lose the answer to their end. They may have either fate, but only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headgate.broker.testing.simulation.ledger import Violation

ATOMIC = "transactions are atomic"
HIDDEN = "aborted records stay hidden"
FENCED = "zombies are fenced"
POSITIONS = "positions go with their transaction"


class Fate(Enum):
    """What a transaction's producer knows about it."""

    OPEN = "open"
    ASKED = "asked to commit"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transaction:
    """One transaction. `run`: the run of the producer that began it. `position`: of the producer's group, committed with it."""

    transactional_id: str
    number: int
    run: int
    fate: Fate = Fate.OPEN
    values: list[bytes] = field(default_factory=list)
    position: int | None = None


@dataclass(slots=True)
class Book:
    """All transactions of a run of the simulation, in the order in which they began."""

    transactions: list[Transaction] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    """By transactional id: the newest run that got its epoch. All earlier ones are fenced from this moment on."""
    _of: dict[bytes, Transaction] = field(default_factory=dict)
    """By value."""

    def begin(self, transactional_id: str, run: int) -> Transaction:
        self.transactions.append(Transaction(transactional_id, len(self.transactions), run))
        return self.transactions[-1]

    def write(self, transaction: Transaction, values: Iterable[bytes]) -> None:
        for value in values:
            transaction.values.append(value)
            self._of[value] = transaction

    def replaced(self, transactional_id: str, run: int) -> None:
        """A new run has its epoch. Transactions of earlier runs whose producer never asked for a commit can only abort."""
        self.runs[transactional_id] = run
        for transaction in self.transactions:
            if transaction.transactional_id == transactional_id and transaction.run < run and transaction.fate is Fate.OPEN:
                transaction.fate = Fate.ABORTED

    def ended(self, transaction: Transaction, newest: int, *, commit: bool) -> None:
        """A producer has the answer to its EndTxn. `newest`: the newest run when it asked first. Raises Violation."""
        if transaction.run < newest:
            raise Violation(FENCED, f"a replaced producer ended it. transaction=`{transaction.number}` commit=`{commit}`")
        transaction.fate = Fate.COMMITTED if commit else Fate.ABORTED

    def see(self, value: bytes) -> None:
        """A consumer of committed records has a record. Raises Violation."""
        transaction = self._of.get(value)
        if transaction is None:
            raise Violation(HIDDEN, f"no producer sent it. value=`{value[:24]!r}`")
        if transaction.fate in (Fate.OPEN, Fate.ABORTED):
            raise Violation(
                HIDDEN, f"a consumer has its record. transaction=`{transaction.number}` fate=`{transaction.fate.value}`"
            )

    def judge(self, visible: Iterable[bytes], positions: Mapping[str, int]) -> None:
        """Compare with all committed records at the end, and with the positions of the groups, by transactional id. Raises
        Violation."""
        seen: set[bytes] = set()
        for value in visible:
            self.see(value)
            if value in seen:
                raise Violation(ATOMIC, f"a record is there twice. value=`{value[:24]!r}`")
            seen.add(value)
        expected = dict.fromkeys(positions, -1)
        for transaction in self.transactions:
            there = [value for value in transaction.values if value in seen]
            if there and len(there) < len(transaction.values):
                raise Violation(
                    ATOMIC,
                    f"a part of it is visible. transaction=`{transaction.number}` visible=`{len(there)}` "
                    f"of=`{len(transaction.values)}`",
                )
            if transaction.fate is Fate.COMMITTED and not there:
                raise Violation(ATOMIC, f"it was committed, and nothing of it is visible. transaction=`{transaction.number}`")
            if there and transaction.position is not None:
                expected[transaction.transactional_id] = transaction.position
        if positions != expected:
            raise Violation(POSITIONS, f"the last visible transactions have others. positions=`{positions}` theirs=`{expected}`")
