"""The rules of one transactional id (KIP-98, KIP-360, KIP-890). No I/O.

Theory of operation::

    Empty ──add──▶ Ongoing ──end──▶ PrepareCommit ──markers──▶ CompleteCommit ──add──▶ Ongoing
                     │  └────end──▶ PrepareAbort ───markers──▶ CompleteAbort
                     └─time-out, or another producer asks for the id──▶ PrepareAbort, with the next epoch

The outcome is certain once the prepared state is durable. Then the markers are written to all partitions, and only then the next
transaction begins. Each rule returns a `Step`: the answer, and the state to store first. An id has at most one state on its way to
the log; meanwhile all requests get CONCURRENT_TRANSACTIONS, which clients repeat.

Epochs fence. A producer that asks for an id gets the next epoch, and all older ones are refused, here and at each partition. In
the second protocol (EndTxn 5) each end of a transaction begins a new epoch, which its markers carry, so a late batch of the
transaction is refused everywhere. The client gets the epoch with the answer. A retry of EndTxn therefore has the epoch before the
current one. Producers have epochs up to 32766; markers of such a producer may have 32767, and it continues with a new id.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.broker.runtime.errors import Reason
from headgate.broker.transactions.records import EPOCH_MAX, NO_EPOCH, NO_ID, NO_TIME, Partition, State, Transaction

PARTITIONS_MAX = 10_000
"""Partitions of one transaction. Its record has up to 250 bytes for each topic, and is written again for each addition."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request. InitProducerId and EndTxn also return the producer's id and epoch."""

    error: Reason | None = None
    producer_id: int = NO_ID
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Step:
    """The decision about a request: the answer, once `state` is durable; None: nothing changes."""

    reply: Reply
    state: Transaction | None = None


def init(
    known: Transaction | None, timeout_ms: int, expected: tuple[int, int] | None, fresh_id: int, wall_ms: int, timeout_ms_max: int
) -> Step:
    """InitProducerId.

    Args:
        expected: the producer's own id and epoch, if it asks to continue (KIP-360). None: it starts, and fences all others.
        fresh_id: a producer id that was never given.
    """
    if not 0 < timeout_ms <= timeout_ms_max:
        return _refuse(Reason.INVALID_TRANSACTION_TIMEOUT)
    if known is None:
        state = Transaction(producer_id=fresh_id, epoch=0, timeout_ms=timeout_ms, state=State.EMPTY, update_ms=wall_ms)
        return Step(Reply(None, fresh_id, 0), state)
    if expected is not None and not _continues(known, *expected):
        return _refuse(Reason.PRODUCER_FENCED)
    if known.state.is_prepared:
        return _refuse(Reason.CONCURRENT_TRANSACTIONS)
    if known.state is State.ONGOING:
        return Step(Reply(Reason.CONCURRENT_TRANSACTIONS), fence(known, wall_ms))
    if expected is not None and expected != (known.producer_id, known.epoch):
        # A repeated request: its first answer was lost.
        return Step(Reply(None, known.producer_id, known.epoch))
    idle = known.changed(
        wall_ms,
        state=State.EMPTY,
        timeout_ms=timeout_ms,
        last_epoch=NO_EPOCH if expected is None else known.epoch,
        start_ms=NO_TIME,
    )
    if known.epoch >= EPOCH_MAX - 1:
        idle = idle.changed(wall_ms, producer_id=fresh_id, epoch=0, previous_id=known.producer_id)
    else:
        idle = idle.changed(wall_ms, epoch=known.epoch + 1)
    return Step(Reply(None, idle.producer_id, idle.epoch), idle)


def _continues(known: Transaction, producer_id: int, epoch: int) -> bool:
    """True if a producer that names this id and epoch was not fenced."""
    if producer_id == known.producer_id:
        return epoch == known.epoch or (known.last_epoch == epoch and epoch == known.epoch - 1)
    return producer_id == known.previous_id and epoch >= EPOCH_MAX - 1 and known.epoch == 0


def add(
    known: Transaction | None, producer_id: int, epoch: int, partitions: frozenset[Partition], wall_ms: int, *, version: int
) -> Step:
    """AddPartitionsToTxn, AddOffsetsToTxn, and the first batch in a partition with the second protocol (`version` 2)."""
    error = _check(known, producer_id, epoch)
    if error is not None:
        return _refuse(error)
    assert known is not None
    if known.state.is_prepared:
        return _refuse(Reason.CONCURRENT_TRANSACTIONS)
    if known.state is not State.ONGOING:
        state = known.changed(wall_ms, state=State.ONGOING, start_ms=wall_ms, partitions=partitions, version=version)
        return Step(Reply(), state) if len(partitions) <= PARTITIONS_MAX else _refuse(Reason.INVALID_REQUEST)
    if partitions <= known.partitions:
        return Step(Reply())
    both = known.partitions | partitions
    if len(both) > PARTITIONS_MAX:
        return _refuse(Reason.INVALID_REQUEST)
    return Step(Reply(), known.changed(wall_ms, partitions=both, version=max(version, known.version)))


def check_partitions(known: Transaction | None, producer_id: int, epoch: int, partitions: frozenset[Partition]) -> Step:
    """Whether partitions belong to the producer's ongoing transaction: a lead asks before it takes the first batch."""
    error = _check(known, producer_id, epoch)
    if error is not None:
        return _refuse(error)
    assert known is not None
    if known.state.is_prepared:
        return _refuse(Reason.CONCURRENT_TRANSACTIONS)
    belongs = known.state is State.ONGOING and partitions <= known.partitions
    return Step(Reply()) if belongs else _refuse(Reason.INVALID_TRANSACTION_STATE)


def end(
    known: Transaction | None, producer_id: int, epoch: int, wall_ms: int, fresh_id: int, *, commit: bool, version: int
) -> Step:
    """EndTxn. `version` 2: each end begins a new epoch."""
    if version >= 2:
        return _end_with_epoch(known, producer_id, epoch, wall_ms, fresh_id, commit=commit)
    error = _check(known, producer_id, epoch)
    if error is not None:
        return _refuse(error)
    assert known is not None
    if known.state is State.ONGOING:
        outcome = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        return Step(Reply(None, producer_id, epoch), known.changed(wall_ms, state=outcome))
    return _ended(known, commit=commit)


def _end_with_epoch(known: Transaction | None, producer_id: int, epoch: int, wall_ms: int, fresh_id: int, *, commit: bool) -> Step:
    if known is not None and _is_retry(known, producer_id, epoch):
        if commit and known.state in (State.PREPARE_ABORT, State.COMPLETE_ABORT):
            return _refuse(Reason.PRODUCER_FENCED)  # no repetition: its time was over, or another producer has the id
        return _ended(known, commit=commit)
    error = _check(known, producer_id, epoch)
    if error is not None:
        return _refuse(error)
    assert known is not None
    if known.state is State.ONGOING:
        outcome = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    elif known.state.is_prepared:
        return _refuse(Reason.CONCURRENT_TRANSACTIONS)
    elif commit:
        return _refuse(Reason.INVALID_TRANSACTION_STATE)
    else:
        outcome = State.PREPARE_ABORT  # it has no partition, but may have sent batches that no lead has taken yet
    state = known.changed(wall_ms, state=outcome, epoch=epoch + 1, version=2, last_epoch=epoch)
    if state.epoch >= EPOCH_MAX:
        state = state.changed(wall_ms, next_id=fresh_id)
    return Step(reply_of(state), state)


def reply_of(state: Transaction) -> Reply:
    """The id and epoch with which the producer of a prepared or complete transaction continues."""
    return Reply(None, state.producer_id, state.epoch) if state.next_id == NO_ID else Reply(None, state.next_id, 0)


def _is_retry(known: Transaction, producer_id: int, epoch: int) -> bool:
    """True if EndTxn with this epoch is a repetition: the transaction has ended with the next epoch."""
    if known.version < 2 or known.state in (State.EMPTY, State.ONGOING):
        return False
    if producer_id == known.producer_id:
        return epoch == known.epoch - 1
    return producer_id == known.previous_id and epoch == EPOCH_MAX - 1 and known.epoch == 0


def _ended(known: Transaction, *, commit: bool) -> Step:
    """EndTxn for a transaction that is not ongoing."""
    if known.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
        return Step(reply_of(known))
    if known.state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT):
        return _refuse(Reason.CONCURRENT_TRANSACTIONS)
    return _refuse(Reason.INVALID_TRANSACTION_STATE)


def fence(known: Transaction, wall_ms: int) -> Transaction:
    """Abort an ongoing transaction whose producer is gone or replaced: with the next epoch, which fences the producer."""
    epoch = min(known.epoch + 1, EPOCH_MAX)
    return known.changed(wall_ms, state=State.PREPARE_ABORT, epoch=epoch, last_epoch=NO_EPOCH)


def complete(known: Transaction, wall_ms: int) -> Transaction:
    """A prepared transaction after its last marker."""
    outcome = State.COMPLETE_COMMIT if known.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
    done = known.changed(wall_ms, state=outcome, partitions=frozenset(), start_ms=NO_TIME)
    if known.next_id == NO_ID:
        return done
    return done.changed(wall_ms, producer_id=known.next_id, epoch=0, previous_id=known.producer_id, next_id=NO_ID)


def _check(known: Transaction | None, producer_id: int, epoch: int) -> Reason | None:
    if known is None or producer_id != known.producer_id:
        return Reason.INVALID_PRODUCER_ID_MAPPING
    return Reason.PRODUCER_FENCED if epoch != known.epoch else None


def _refuse(reason: Reason) -> Step:
    return Step(Reply(reason))
