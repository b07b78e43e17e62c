"""Transactional ids: the rules of one id, and the fold of a partition of `__transaction_state`.

A log stands for the partition: rows become durable when the test says so. Then a second shard replays them, and must agree.
"""

from __future__ import annotations

import pytest

from headgate.broker.coordination.effects import Answer, Append, Budget, Now, Row
from headgate.broker.runtime.errors import CorruptError, Reason
from headgate.broker.transactions import rules
from headgate.broker.transactions.records import EPOCH_MAX, State, Transaction, decode_value, encode_value
from headgate.broker.transactions.rules import Reply, Step
from headgate.broker.transactions.shard import Mark, Rule, Shard

ID, TIMEOUT_MS = "orders", 60_000
PLACES = frozenset([("a", 0), ("a", 2), ("b", 1)])


class Log:
    """A shard and its partition."""

    def __init__(self) -> None:
        self.shard = Shard(Budget(10))
        self.now = Now(0, 1_000_000)
        self.rows: list[Row] = []
        self.marks: list[Mark] = []
        self.waiting: list[Append] = []
        self.answers: list[Reply] = []
        self.fresh_id = 100
        self.durable = True
        self.failure: Reason | None = None

    def run(self, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert isinstance(effect.response, Reply)
                self.answers.append(effect.response)
            elif isinstance(effect, Append):
                self.waiting.append(effect)
            elif isinstance(effect, Mark):
                self.marks.append(effect)
        while self.durable and self.waiting:
            append = self.waiting.pop(0)
            if self.failure is None:
                self.rows += append.rows
            self.run(list(self.shard.stored(append.ticket, self.failure, self.now)))

    def ask(self, rule: Rule) -> Reply:
        self.run(list(self.shard.handle(ID, rule, object(), creates=True)))
        return self.answers[-1]

    def init(self, expected: tuple[int, int] | None = None, timeout_ms: int = TIMEOUT_MS) -> Reply:
        self.fresh_id += 1
        wall, fresh = self.now.wall_ms, self.fresh_id
        return self.ask(lambda known: rules.init(known, timeout_ms, expected, fresh, wall, 900_000))

    def add(self, producer: Reply, version: int = 0, places: frozenset[tuple[str, int]] = PLACES) -> Reply:
        wall = self.now.wall_ms
        return self.ask(lambda known: rules.add(known, producer.producer_id, producer.epoch, places, wall, version=version))

    def verify(self, producer: Reply, places: frozenset[tuple[str, int]] = PLACES) -> Reply:
        return self.ask(lambda known: rules.check_partitions(known, producer.producer_id, producer.epoch, places))

    def end(self, producer: Reply, *, commit: bool = True, version: int = 0) -> Reply:
        self.fresh_id += 1
        wall, fresh = self.now.wall_ms, self.fresh_id

        def rule(known: Transaction | None) -> Step:
            return rules.end(known, producer.producer_id, producer.epoch, wall, fresh, commit=commit, version=version)

        return self.ask(rule)

    def mark(self, places: frozenset[tuple[str, int]] = PLACES) -> None:
        mark = self.marks[-1]
        self.run(list(self.shard.marked(mark.transactional_id, mark.transaction, set(places), self.now)))

    def wait(self, ms: int) -> None:
        self.now = Now(self.now.timer_ms + ms, self.now.wall_ms + ms)
        self.run(list(self.shard.tick(self.now)))

    @property
    def state(self) -> State:
        known = self.shard.find(ID)
        assert known is not None
        return known.state

    def reopen(self) -> Log:
        """The next coordinator."""
        other = Log()
        other.now, other.fresh_id, other.rows = self.now, self.fresh_id + 1000, list(self.rows)
        for key, value in self.rows:
            assert key is not None
            other.shard.replay(key, value)
        other.run(list(other.shard.loaded(other.now)))
        return other


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_from_its_begin_to_its_end(commit: bool) -> None:
    log = Log()
    producer = log.init()
    assert (producer.error, producer.epoch) == (None, 0)
    assert log.verify(producer).error is Reason.INVALID_TRANSACTION_STATE
    assert log.add(producer).error is None
    assert log.state is State.ONGOING
    assert log.verify(producer).error is None
    assert log.verify(producer, frozenset([("c", 0)])).error is Reason.INVALID_TRANSACTION_STATE
    assert log.end(producer, commit=commit) == Reply(None, producer.producer_id, 0)
    assert log.state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
    assert log.end(producer, commit=commit).error is Reason.CONCURRENT_TRANSACTIONS
    assert log.end(producer, commit=not commit).error is Reason.INVALID_TRANSACTION_STATE
    assert log.add(producer).error is Reason.CONCURRENT_TRANSACTIONS
    log.mark(frozenset([("a", 0)]))
    assert log.state.is_prepared, "markers are missing"
    log.mark()
    assert log.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert log.end(producer, commit=commit).error is None, "a retry"
    assert log.end(producer, commit=not commit).error is Reason.INVALID_TRANSACTION_STATE
    assert log.add(producer).error is None


def test_the_second_protocol_begins_an_epoch_with_each_end() -> None:
    log = Log()
    producer = log.init()
    for epoch in range(1, 4):
        assert log.add(producer, version=2).error is None
        after = log.end(producer, version=2)
        assert after == Reply(None, producer.producer_id, epoch)
        assert log.marks[-1].transaction.epoch == epoch, "markers fence the transaction's own batches"
        assert log.end(producer, version=2).error is Reason.CONCURRENT_TRANSACTIONS, "a retry before the markers"
        log.mark()
        assert log.end(producer, version=2) == after, "a retry behind the markers"
        assert log.end(producer, commit=False, version=2).error is Reason.INVALID_TRANSACTION_STATE
        assert log.add(producer, version=2).error is Reason.PRODUCER_FENCED
        producer = after
    assert log.end(producer, version=2).error is Reason.INVALID_TRANSACTION_STATE, "there is nothing to commit"
    aborted = log.end(producer, commit=False, version=2)
    assert (aborted.error, aborted.epoch) == (None, 4), "an abort without partitions begins an epoch, too"


def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction() -> None:
    log = Log()
    old = log.init()
    log.add(old)
    assert log.init().error is Reason.CONCURRENT_TRANSACTIONS
    assert log.state is State.PREPARE_ABORT and log.marks[-1].transaction.epoch == 1
    log.mark()
    new = log.init()
    assert (new.producer_id, new.epoch) == (old.producer_id, 2)
    assert log.add(old).error is Reason.PRODUCER_FENCED
    assert log.end(old).error is Reason.PRODUCER_FENCED
    assert log.init(expected=(old.producer_id, old.epoch)).error is Reason.PRODUCER_FENCED
    assert log.add(new).error is None


def test_a_producer_continues_with_its_own_epoch() -> None:
    log = Log()
    first = log.init()
    second = log.init(expected=(first.producer_id, first.epoch))
    assert second.epoch == 1
    assert log.init(expected=(first.producer_id, first.epoch)) == second, "its answer was lost"
    assert log.init(expected=(second.producer_id, 7)).error is Reason.PRODUCER_FENCED
    assert log.init(expected=(5, 0)).error is Reason.PRODUCER_FENCED


def test_a_transaction_left_open_is_aborted_and_its_producer_fenced() -> None:
    log = Log()
    producer = log.init()
    log.wait(TIMEOUT_MS)
    log.add(producer)
    log.wait(TIMEOUT_MS - 1)
    assert log.state is State.ONGOING
    log = log.reopen()
    log.wait(1)
    assert log.state is State.PREPARE_ABORT
    log.mark()
    assert log.state is State.COMPLETE_ABORT
    assert log.end(producer).error is Reason.PRODUCER_FENCED


def test_the_next_coordinator_writes_the_missing_markers() -> None:
    log = Log()
    producer = log.init()
    log.add(producer)
    log.end(producer)
    log.mark(frozenset([("a", 0)]))
    other = log.reopen()
    assert other.state is State.PREPARE_COMMIT
    assert other.marks[-1].transaction.partitions == PLACES
    other.mark()
    assert other.reopen().state is State.COMPLETE_COMMIT


@pytest.mark.parametrize("version", [0, 2])
def test_an_exhausted_epoch_gives_a_new_producer_id(version: int) -> None:
    log = Log()
    producer = log.init()
    known = log.shard.find(ID)
    assert known is not None
    last = known.changed(0, epoch=EPOCH_MAX - 1, version=version)
    log.shard = Shard(Budget(10))
    key = log.rows[0][0]
    log.rows = [(key, encode_value(last))]
    log = log.reopen()
    producer = Reply(None, producer.producer_id, EPOCH_MAX - 1)
    assert log.add(producer, version=version).error is None
    after = log.end(producer, version=version)
    assert log.marks[-1].transaction.producer_id == producer.producer_id
    log.mark()
    if version == 2:
        assert log.marks[-1].transaction.epoch == EPOCH_MAX
        assert after.producer_id != producer.producer_id and after.epoch == 0
        assert log.end(producer, version=2) == after, "a retry"
        assert log.add(after, version=2).error is None
    else:
        fresh = log.init(expected=(producer.producer_id, producer.epoch))
        assert fresh.producer_id != producer.producer_id and fresh.epoch == 0
        assert log.init(expected=(producer.producer_id, producer.epoch)) == fresh, "a retry"
    assert log.add(producer).error is Reason.INVALID_PRODUCER_ID_MAPPING


def test_one_change_at_a_time() -> None:
    log = Log()
    producer = log.init()
    log.durable = False
    log.run(list(log.shard.handle(ID, lambda known: rules.add(known, producer.producer_id, 0, PLACES, 0, version=0), object())))
    assert log.verify(producer).error is Reason.CONCURRENT_TRANSACTIONS
    log.durable = True
    log.run([])
    assert log.verify(producer).error is None


def test_a_refused_change_changes_nothing_and_is_tried_again() -> None:
    log = Log()
    producer = log.init()
    log.failure = Reason.COORDINATOR_NOT_AVAILABLE
    assert log.add(producer).error is Reason.COORDINATOR_NOT_AVAILABLE
    assert log.state is State.EMPTY
    log.failure = None
    log.add(producer)
    log.end(producer)
    log.failure = Reason.COORDINATOR_NOT_AVAILABLE
    log.mark()
    assert log.state is State.PREPARE_COMMIT
    log.failure = None
    log.wait(5_000)
    assert log.state is State.COMPLETE_COMMIT


def test_bad_requests() -> None:
    log = Log()
    for timeout_ms in (0, -1, 900_001):
        assert log.init(timeout_ms=timeout_ms).error is Reason.INVALID_TRANSACTION_TIMEOUT
    unknown = Reply(None, 7, 0)
    assert log.add(unknown).error is Reason.INVALID_PRODUCER_ID_MAPPING
    assert log.end(unknown).error is Reason.INVALID_PRODUCER_ID_MAPPING
    producer = log.init()
    assert log.end(producer).error is Reason.INVALID_TRANSACTION_STATE
    many = frozenset(("a", number) for number in range(rules.PARTITIONS_MAX + 1))
    assert log.add(producer, places=many).error is Reason.INVALID_REQUEST


def test_unused_ids_are_forgotten_and_a_snapshot_keeps_the_others() -> None:
    log = Log()
    producer = log.init()
    assert [row for rows in log.shard.snapshot() for row in rows] == log.rows[-1:]
    log.add(producer)
    log.run(list(log.shard.clean(log.now.wall_ms + 1)))
    assert log.state is State.ONGOING
    log.end(producer)
    log.mark()
    log.run(list(log.shard.clean(log.now.wall_ms + 1)))
    assert log.shard.find(ID) is None and log.shard.live_count() == 0
    assert log.reopen().shard.find(ID) is None


def test_a_lost_partition_answers_all() -> None:
    log = Log()
    producer = log.init()
    log.durable = False
    log.run(list(log.shard.handle(ID, lambda known: rules.add(known, producer.producer_id, 0, PLACES, 0, version=0), object())))
    log.run(list(log.shard.unload(Reason.NOT_COORDINATOR)))
    assert log.answers[-1].error is Reason.NOT_COORDINATOR
    assert log.shard.budget.ids == 0


def test_values_are_what_was_written() -> None:
    value = Transaction(
        producer_id=1 << 40, epoch=7, timeout_ms=5, state=State.PREPARE_ABORT, partitions=PLACES, update_ms=9, start_ms=8,
        previous_id=4, next_id=6, version=2,
    )  # fmt: skip
    data = encode_value(value)
    assert decode_value(data) == value
    for end in range(len(data)):
        with pytest.raises(CorruptError):
            decode_value(data[:end])
    with pytest.raises(CorruptError):
        decode_value(data[:16] + b"\x09" + data[17:])
