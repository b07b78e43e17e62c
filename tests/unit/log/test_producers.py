"""Idempotent producers (`broker/log/producers.py`): each row of its theory of operation, and the checkpoint.

A mismatch means that a retry is written twice, that a healthy producer is refused, or that a restart loses producer state.
"""

from __future__ import annotations

import struct

import pytest

from headgate.broker.log.producers import ACTIVE_MAX, PRODUCERS_MAX, SEQUENCE_COUNT, WINDOW_BATCHES, ProducerState
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason

ID = 42
LAST = SEQUENCE_COUNT - 1
NOW_MS = 1_700_000_000_000


class Log:
    """A log that appends the batches which the producer state accepts; offsets count records."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.next_offset = 100

    def forget_everybody(self) -> None:
        """Drop the state of all producers: from now on each may begin at any sequence."""
        self.state.record(1 << 40, 0, 0, 1, 0, 0)
        self.state.expire(1)

    def send(self, sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = ID) -> int | str:
        """The offset that the producer gets, or the reason of the refusal."""
        try:
            duplicate = self.state.admit(producer_id, epoch, sequence, count, self.next_offset, NOW_MS + self.next_offset)
        except InvalidError as error:
            return error.reason.value
        if duplicate is not None:
            return duplicate[0]
        base_offset, self.next_offset = self.next_offset, self.next_offset + count
        return base_offset


@pytest.fixture
def log() -> Log:
    return Log()


OUT_OF_ORDER = Reason.OUT_OF_ORDER_SEQUENCE.value
UNKNOWN = Reason.UNKNOWN_PRODUCER_ID.value
OLD_EPOCH = Reason.INVALID_PRODUCER_EPOCH.value


@pytest.mark.parametrize("sequence", [1, 17, LAST])
def test_a_producer_that_is_not_known_begins_at_0(log: Log, sequence: int) -> None:
    """Its earlier batches went to a leader that was replaced: accepting this batch would put it before them."""
    assert log.send(sequence) == UNKNOWN
    assert log.send(0) == 100


@pytest.mark.parametrize("sequence", [0, 1, 17, LAST])
def test_a_producer_that_may_have_expired_begins_anywhere(log: Log, sequence: int) -> None:
    log.send(0, producer_id=ID + 1)
    log.state.expire(NOW_MS + 1000)
    assert log.send(sequence) == 101
    assert log.send(sequence, producer_id=ID + 2) == (102 if sequence == 0 else UNKNOWN)


def test_what_has_expired_is_known_after_a_restart(log: Log) -> None:
    log.send(0)
    log.state.expire(NOW_MS + 1000)
    assert not log.state.is_empty
    assert copy(log, 101).send(17) == 101


def test_sequences_follow_each_other(log: Log) -> None:
    assert log.send(0, 3) == 100
    assert log.send(3, 2) == 103
    assert log.send(6) == OUT_OF_ORDER
    assert log.send(5) == 105
    assert log.send(5, 2) == OUT_OF_ORDER
    assert log.send(4) == OUT_OF_ORDER


def test_a_batch_that_came_is_answered_with_its_first_offset(log: Log) -> None:
    offsets = [log.send(2 * number, 2) for number in range(WINDOW_BATCHES)]
    end = log.next_offset
    for number, offset in enumerate(offsets):
        assert log.send(2 * number, 2) == offset
    assert log.next_offset == end
    assert log.state.admit(ID, 0, 4, 2, end, NOW_MS) == (104, NOW_MS + 104)


def test_a_duplicate_is_the_same_batch_and_not_a_part_of_one(log: Log) -> None:
    log.send(0, 4)
    log.send(4, 4)
    for sequence, count in ((0, 3), (1, 3), (0, 8), (4, 3), (5, 3), (4, 5), (1, 1)):
        assert log.send(sequence, count) == OUT_OF_ORDER, (sequence, count)


def test_what_has_left_the_window_is_out_of_order(log: Log) -> None:
    for number in range(WINDOW_BATCHES + 1):
        log.send(number)
    assert log.send(0) == OUT_OF_ORDER
    assert log.send(1) == 101


def test_sequences_wrap_between_two_batches(log: Log) -> None:
    log.forget_everybody()
    assert log.send(LAST - 1, 2) == 100
    assert log.send(1) == OUT_OF_ORDER
    assert log.send(0, 2) == 102
    assert log.send(LAST - 1, 2) == 100
    assert log.send(0, 2) == 102
    assert log.send(2) == 104


def test_sequences_wrap_within_a_batch(log: Log) -> None:
    log.forget_everybody()
    assert log.send(LAST - 1, 5) == 100
    assert log.send(0) == OUT_OF_ORDER
    assert log.send(LAST - 1, 5) == 100
    assert log.send(3) == 105


def test_a_lower_epoch_is_refused_for_ever(log: Log) -> None:
    log.send(0, epoch=5)
    assert log.send(1, epoch=4) == OLD_EPOCH
    assert log.send(0, epoch=0) == OLD_EPOCH
    assert log.send(1, epoch=5) == 101


def test_a_higher_epoch_begins_at_zero_with_a_new_window(log: Log) -> None:
    log.send(0, epoch=5)
    log.send(1, epoch=5)
    assert log.send(2, epoch=6) == OUT_OF_ORDER
    assert log.send(1, epoch=6) == OUT_OF_ORDER
    assert log.send(2, epoch=5) == 102
    assert log.send(0, epoch=6) == 103
    assert log.send(1, epoch=6) == 104
    assert log.send(0, epoch=6) == 103
    assert log.send(3, epoch=5) == OLD_EPOCH


def test_producers_do_not_know_of_each_other(log: Log) -> None:
    log.send(0, producer_id=1)
    log.send(0, producer_id=2, epoch=3)
    assert log.send(1, producer_id=1) == 102
    assert log.send(1, producer_id=2, epoch=3) == 103
    assert {(info.producer_id, info.epoch, info.last_sequence, info.last_timestamp_ms) for info in log.state.infos()} == {
        (1, 0, 1, NOW_MS + 102),
        (2, 3, 1, NOW_MS + 103),
    }


def test_who_was_silent_is_forgotten(log: Log) -> None:
    log.send(0, producer_id=1)
    log.send(0, producer_id=2)
    log.state.expire(NOW_MS + 101)
    assert [info.producer_id for info in log.state.infos()] == [2]
    log.state.expire(NOW_MS + 102)
    assert not list(log.state.infos())


def test_a_producer_is_known_when_many_others_wrote_since(log: Log) -> None:
    for number in range(WINDOW_BATCHES + 3):
        log.send(number, epoch=3)
    for other in range(3 * ACTIVE_MAX):
        log.send(0, producer_id=1000 + other)
    assert log.send(3, epoch=3) == 103
    assert log.send(WINDOW_BATCHES + 4, epoch=3) == OUT_OF_ORDER
    assert log.send(0, epoch=2) == OLD_EPOCH
    assert log.send(WINDOW_BATCHES + 3, epoch=3) == log.next_offset - 1
    assert log.send(0, producer_id=1000) == 100 + WINDOW_BATCHES + 3


def test_of_a_flood_of_producers_those_that_were_silent_the_longest_are_forgotten(log: Log) -> None:
    log.send(0, producer_id=1)
    for producer_id in range(2, PRODUCERS_MAX + 3 * ACTIVE_MAX):
        log.send(0, producer_id=producer_id)
        if producer_id == PRODUCERS_MAX // 2:
            assert log.send(1, producer_id=1) == log.next_offset - 1
    known = {info.producer_id for info in log.state.infos()}
    assert len(known) <= PRODUCERS_MAX
    assert 1 in known, "it wrote since"
    gone = set(range(1, PRODUCERS_MAX + 3 * ACTIVE_MAX)) - known
    assert gone and max(gone) < min(known - {1})
    assert log.send(17, producer_id=2) == log.next_offset - 1, "as one that has expired"
    assert log.send(17, producer_id=1 << 40) == UNKNOWN


def copy(log: Log, before_offset: int) -> Log:
    """The log as it is after a crash that lost everything from `before_offset` on."""
    restarted = Log()
    restarted.state = ProducerState.decode(log.state.encode(before_offset))
    restarted.next_offset = before_offset
    return restarted


def test_a_checkpoint_keeps_what_is_durable_and_nothing_else(log: Log) -> None:
    for number in range(6):
        log.send(number)
    log.send(0, producer_id=7, epoch=2)
    restarted = copy(log, 104)
    assert {info.producer_id for info in restarted.state.infos()} == {ID}
    assert restarted.send(3) == 103
    # 4 and 5 were lost: when they are sent again, they are no duplicates.
    assert restarted.send(5) == OUT_OF_ORDER
    assert restarted.send(4) == 104
    assert restarted.send(5) == 105
    assert restarted.send(0, producer_id=7, epoch=0) == 106


def test_five_durable_batches_are_kept_beside_five_in_flight(log: Log) -> None:
    for number in range(10):
        log.send(number)
    restarted = copy(log, 105)
    assert [restarted.send(number) for number in range(5)] == [100, 101, 102, 103, 104]


def test_a_checkpoint_says_the_same_when_it_is_made_again(log: Log) -> None:
    assert copy(log, 0).state.is_empty
    for number in range(20):
        log.send(number % SEQUENCE_COUNT, producer_id=number % 3)
    data = log.state.encode(1 << 40)
    assert ProducerState.decode(data).encode(1 << 40) == data
    assert ProducerState.decode(memoryview(data)).encode(1 << 40) == data


def test_a_damaged_checkpoint_is_said_to_be(log: Log) -> None:
    log.send(0)
    log.send(0, producer_id=2)
    data = log.state.encode(1 << 40)
    for size in range(len(data)):
        with pytest.raises(CorruptError):
            ProducerState.decode(data[:size])
    without_batches = struct.pack("<I", 1) + struct.pack("<qhqB", 1, 0, 0, 0)
    for damaged in (data + b"\0", without_batches, b"\xff\xff\xff\xff" + data[4:]):
        with pytest.raises(CorruptError):
            ProducerState.decode(damaged)
