"""The simulation's checkers alone: the shortest answers that break each invariant, and those that keep it.

No cluster runs. Compared: the name of the checker that raises. A mismatch means that a checker sees nothing any more, or that it
blames a cluster that is right. `test_canaries.py` shows that a cluster with a bug gives such answers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.broker.testing.simulation.faults import Replacements
from headgate.broker.testing.simulation.ledger import Ledger, Partition, Violation
from headgate.broker.testing.simulation.transactions import ATOMIC, FENCED, HIDDEN, POSITIONS, Book

P: Partition = (b"topic", 0)
A, B, C = b"a", b"b", b"c"
STALE_ACK = "a fenced broker never acks"
THERE = "acked records are there"
ONE = "one record per offset"
WHOLE = "a gate is filled whole"
GATE = (P[0], "g")


def ended(*records: tuple[int, bytes], start: int = 0) -> Callable[[Ledger], None]:
    """The comparison at the end, with these records of the partition."""
    return lambda ledger: ledger.judge({P: (start, dict(records))})


def sent(ledger: Ledger, *values: bytes) -> None:
    ledger.send(P, 1, values)


def acked(ledger: Ledger) -> None:
    sent(ledger, A, B, C)
    ledger.ack(P, 0, [A, B])


def thinned(ledger: Ledger) -> None:
    acked(ledger)
    ledger.thinned.add(P[0])


def reserved(ledger: Ledger) -> None:
    """A gate for two rows in front of one record."""
    ledger.history[P] = {0: ("g", A), 1: ("g", B)}
    sent(ledger, C)
    ledger.ack(P, 2, [C])


def filled(ledger: Ledger) -> None:
    reserved(ledger)
    ledger.filled.add(GATE)


def sealed(ledger: Ledger) -> None:
    ledger.seal("incarnation", {P: 2})


def skipped(ledger: Ledger) -> None:
    acked(ledger)
    ledger.skipped.append((P, 0, 2))


@pytest.mark.parametrize(
    ("before", "act", "checker"),
    [
        (acked, ended((0, A), (1, B)), None),
        (acked, ended((0, A), (1, B), (2, C)), None),
        (acked, ended((0, A)), THERE),
        (thinned, ended((0, A)), THERE),
        (acked, ended((1, B), start=1), THERE),
        (acked, lambda ledger: ledger.judge({}), THERE),
        (acked, ended((0, A), (1, C)), ONE),
        (acked, ended((1, B), (0, A)), ONE),
        (acked, ended((0, A), (1, B), (2, b"nobody's")), ONE),
        (acked, lambda ledger: ledger.see(P, 1, C, "a fetch"), ONE),
        (acked, ended((0, A), (1, B), (2, A)), "retries never duplicate"),
        (lambda ledger: sent(ledger, A, B), ended((0, B), (1, A)), "order is send order"),
        (sealed, lambda ledger: ledger.broker_acks("incarnation", P, 0, 2), None),
        (sealed, lambda ledger: ledger.broker_acks("incarnation", P, 1, 2), STALE_ACK),
        (sealed, lambda ledger: ledger.broker_acks("successor", P, 1, 2), None),
        (filled, ended((0, A), (1, B), (2, C)), None),
        (filled, ended((0, A), (2, C)), WHOLE),
        (filled, lambda ledger: ledger.see(P, 0, B, "a fetch"), WHOLE),
        (reserved, ended((2, C)), None),
        (reserved, ended((0, A), (1, B), (2, C)), WHOLE),
        (reserved, lambda ledger: ledger.see(P, 0, A, "a fetch"), WHOLE),
        (lambda ledger: ledger.told_filled.add(GATE), ended(), WHOLE),
        (skipped, ended((0, A), (1, B)), "history, then live"),
        (acked, lambda ledger: ledger.answered("the end", 2, 2), None),
        (acked, lambda ledger: ledger.answered("the end", 2, 1), "answers are current"),
        (acked, lambda ledger: ledger.remove_by_age(P[0], {0: 1}), "records live as long as retention says"),
        (acked, lambda ledger: ledger.remove_by_age(P[0], {0: 0}), None),
    ],
)
def test_answers(before: Callable[[Ledger], None], act: Callable[[Ledger], None], checker: str | None) -> None:
    ledger = Ledger()
    before(ledger)
    if checker is None:
        act(ledger)
        return
    with pytest.raises(Violation) as raised:
        act(ledger)
    assert raised.value.checker == checker


def test_only_a_broker_that_hung_may_be_replaced_and_one_at_a_time() -> None:
    now = SimpleNamespace(s=100.0)
    scene: Any = SimpleNamespace(member_timeout_ms=2000, loop=SimpleNamespace(time=lambda: now.s))
    replacements = Replacements(scene)
    hung, late, other = (SimpleNamespace(process=object(), name=name) for name in ("hung", "late", "other"))
    replacements.leads("leader")
    for broker, pause_s in ((hung, 3.0), (late, replacements.pause_s_max), (other, 3.0)):
        replacements.pauses(broker.process, pause_s)  # type: ignore[arg-type]
    with pytest.raises(Violation, match="did nothing but run late"):
        replacements.replaced(late)  # type: ignore[arg-type]
    replacements.replaced(hung)  # type: ignore[arg-type]
    with pytest.raises(Violation, match="after another silent broker"):
        replacements.replaced(other)  # type: ignore[arg-type]
    now.s += replacements.timeout_s
    replacements.replaced(other)  # type: ignore[arg-type]


def committed(book: Book, commit: bool = True) -> None:
    book.replaced("one", 1)
    transaction = book.begin("one", 1)
    book.write(transaction, [A, B])
    transaction.position = 7
    book.ended(transaction, 1, commit=commit)


@pytest.mark.parametrize(
    ("commit", "visible", "positions", "checker"),
    [
        (True, (A, B), {"one": 7}, None),
        (False, (), {"one": -1}, None),
        (True, (A,), {"one": 7}, ATOMIC),
        (True, (), {"one": -1}, ATOMIC),
        (True, (A, B, A), {"one": 7}, ATOMIC),
        (False, (A, B), {"one": -1}, HIDDEN),
        (True, (A, B, C), {"one": 7}, HIDDEN),
        (True, (A, B), {"one": -1}, POSITIONS),
        (False, (), {"one": 7}, POSITIONS),
    ],
)
def test_transactions(commit: bool, visible: tuple[bytes, ...], positions: dict[str, int], checker: str | None) -> None:
    book = Book()
    committed(book, commit)
    if checker is None:
        book.judge(visible, positions)
        return
    with pytest.raises(Violation) as raised:
        book.judge(visible, positions)
    assert raised.value.checker == checker


def test_a_replaced_producer_ends_no_transaction() -> None:
    book = Book()
    transaction = book.begin("one", 1)
    with pytest.raises(Violation, match=FENCED):
        book.ended(transaction, 2, commit=True)
