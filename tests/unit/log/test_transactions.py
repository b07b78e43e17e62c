"""The transactions of one partition: what is open, what readers of committed records must pass, and what a checkpoint keeps.

A small model keeps every batch of a random log; the last stable offset and the aborted transactions are computed from it anew.
"""

from __future__ import annotations

import random

import pytest

from headgate.broker.log.batch import CONTROL, TRANSACTIONAL, crc_matches, parse_header
from headgate.broker.log.producers import ProducerState
from headgate.broker.log.transactions import Transactions, is_commit, marker
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason, RetryError
from tests.support.errors import raises


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_a_control_batch_that_says_its_outcome(commit: bool) -> None:
    batch = memoryview(marker(77, 3, 9, commit=commit))
    header = parse_header(batch)
    assert header.attributes == CONTROL | TRANSACTIONAL
    assert (header.producer_id, header.producer_epoch, header.record_count) == (77, 3, 1)
    assert header.size_bytes == len(batch) and crc_matches(batch)
    assert is_commit(batch) is commit


def test_another_control_batch_is_no_marker() -> None:
    batch = marker(77, 3, 9, commit=True)
    batch[65] = 6
    with pytest.raises(CorruptError):
        is_commit(memoryview(batch))


def test_a_first_batch_needs_consent_and_a_marker_ends_the_consent() -> None:
    state = Transactions()
    with raises(RetryError, Reason.TRANSACTION_UNVERIFIED):
        state.check(1, 0)
    token = state.ask(1)
    assert state.ask(1) == token, "questions at the same time share a token"
    state.end(1, 10, commit=False, end_offset=10)
    assert not state.consent(1, 0, token), "the marker came while the coordinator was asked"
    assert state.consent(1, 0, state.ask(1))
    with pytest.raises(RetryError):
        state.check(1, 1)
    state.check(1, 0)
    state.begin(1, 0, 5)
    state.check(1, 0)
    state.end(1, 6, commit=True, end_offset=7)
    with pytest.raises(RetryError):
        state.check(1, 0)


def test_open_transactions_and_aborted_ones_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.broker.log.transactions.OPEN_MAX", 1)
    state = Transactions()
    state.begin(1, 0, 0)
    assert state.consent(2, 0, state.ask(2))
    state.check(1, 0)
    with raises(InvalidError, Reason.POLICY_VIOLATION):
        state.check(2, 0)


@pytest.mark.parametrize("seed", range(20))
def test_random_logs_agree_with_a_model(seed: int) -> None:
    draw = random.Random(seed)
    state = ProducerState()
    log: list[tuple[int, int, str]] = []  # (offset, producer, batch | commit | abort)
    opened: dict[int, int] = {}
    ended: list[tuple[int, int, int, bool]] = []  # (producer, first offset, marker, commit)
    for offset in range(300):
        producer = draw.randrange(6)
        if producer in opened and draw.random() < 0.4:
            commit = draw.random() < 0.5
            ended.append((producer, opened.pop(producer), offset, commit))
            state.fence(producer, 0, offset, 0)
            state.transactions.end(producer, offset, commit=commit, end_offset=offset + 1)
            log.append((offset, producer, "commit" if commit else "abort"))
        else:
            opened.setdefault(producer, offset)
            state.record(producer, 0, 0, 1, offset, 0)
            state.transactions.begin(producer, 0, offset)
            log.append((offset, producer, "batch"))
    for durable in (300, 150, 37):
        # What a checkpoint at this offset says, and what the state itself says with this high watermark.
        copy = ProducerState.decode(state.encode(durable)).transactions
        then_open = {one[1] for one in ended if one[2] >= durable > one[1]} | {at for at in opened.values() if at < durable}
        assert copy.stable_end(durable) == min(then_open, default=durable)
        known = [(p, first, end) for p, first, end, commit in ended if not commit and end < durable]
        for _ in range(30):
            low = draw.randrange(durable)
            high = draw.randrange(low + 1, durable + 1)
            expected = sorted((one for one in known if one[2] >= low and one[1] < high), key=lambda one: one[1])
            assert [tuple(one) for one in copy.aborted(low, high)] == expected
    assert state.transactions.stable_end(300) == min(opened.values(), default=300)
    state.transactions.drop_below(200)
    assert [tuple(one) for one in state.transactions.aborted(200, 300)] == sorted(
        ((p, first, end) for p, first, end, commit in ended if not commit and end >= 200), key=lambda one: one[1]
    )


def test_a_transaction_stays_open_for_readers_until_its_marker_is_durable() -> None:
    state = Transactions()
    state.begin(1, 0, 4)
    state.end(1, 8, commit=True, end_offset=9)
    assert state.stable_end(8) == 4
    assert state.stable_end(9) == 9


def test_a_checkpoint_of_an_older_release_has_no_transactions() -> None:
    state = ProducerState()
    state.record(5, 0, 0, 3, 0, 1)
    data = state.encode(10)
    assert ProducerState.decode(data).transactions.is_empty
    for damage in (data + b"\0", data + b"\1\0\0\0\0\0\0\0"):
        with pytest.raises(CorruptError):
            ProducerState.decode(damage)


def test_a_marker_with_a_new_epoch_fences_older_batches() -> None:
    state = ProducerState()
    state.record(5, 0, 0, 3, 0, 1)
    state.fence(5, 1, 3, 2)
    with raises(InvalidError, Reason.INVALID_PRODUCER_EPOCH):
        state.admit(5, 0, 3, 1, 4, 3)
    again = ProducerState.decode(state.encode(10))
    assert again.epoch_of(5) == 1
    assert again.admit(5, 1, 0, 1, 4, 3) is None, "the new epoch begins with sequence 0"
