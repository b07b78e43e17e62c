"""The client's sequencing (`broker/client/sequencing.py`) against the broker's own judge of sequences
(`broker/log/producers.py`).

Runs: random schedules of sends, acks, temporary and final refusals, lost streams (with or without the batches written), given-up
batches, and a broker that drops the state of silent producers. Compared: the client's results with the log. A delivered batch is
in it once, no batch is in it twice, a batch that failed for good on its first attempt is not in it, and batches stand in the
order of sending. A mismatch is a lost, doubled or reordered record of an idempotent producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.broker.client.sequencing import IN_FLIGHT_MAX, SEQUENCE_COUNT, PartitionQueue
from headgate.broker.log.producers import WINDOW_BATCHES, ProducerState
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from tests.support.examples import examples


@dataclass(eq=False)
class Batch:
    index: int
    count: int
    producer_id: int = -1
    sequence: int = -1
    ambiguous: bool = False
    over: bool = False
    outcome: str = ""
    attempts: int = 0


class Broker:
    """One partition: the written batches, judged as the broker judges them."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.producers = ProducerState()
        self.now_ms = 0

    def append(self, batch: Batch) -> None:
        """Raises InvalidError(OUT_OF_ORDER_SEQUENCE). A duplicate is accepted and not written."""
        if self.producers.admit(batch.producer_id, 0, batch.sequence, batch.count, len(self.log), self.now_ms) is None:
            self.log.append(batch.index)


class Client:
    def __init__(self, first_sequence: int) -> None:
        self.queue: PartitionQueue[Batch] = PartitionQueue()
        self.broker = Broker()
        self.batches: list[Batch] = []
        self.ids = 0
        self.now_s = 0.0
        self.first_sequence = first_sequence

    def give(self, count: int) -> None:
        batch = Batch(len(self.batches), count)
        self.batches.append(batch)
        self.queue.waiting.append(batch)

    def send(self) -> None:
        """Fill the batches in flight up to their limit."""
        while True:
            if self.queue.producer_id < 0:
                self.queue.identify(self.ids)
                if self.ids == 0:
                    self.queue._next_sequence = self.first_sequence
                self.ids += 1
            batch = self.queue.take(self.now_s)
            if batch is None:
                return
            batch.attempts += 1
            assert len(self.queue.in_flight) <= IN_FLIGHT_MAX

    def answer(self, fault: str) -> None:
        """The broker answers the oldest batch in flight: correctly, or with a fault before or after it wrote."""
        if not self.queue.in_flight:
            return
        batch = self.queue.in_flight[0]
        try:
            if fault == "busy":
                raise RetryError(Reason.OVERLOADED, "busy")
            if fault == "bad":
                raise InvalidError(Reason.INVALID_TIMESTAMP, "bad")
            self.broker.append(batch)
            if fault == "unknown":
                raise RetryError(Reason.STORE_UNAVAILABLE, "written or not")
        except (InvalidError, RetryError) as error:
            if self.queue.refused(batch, error) and not batch.over:
                batch.outcome = "failed"
            return
        self.queue.delivered(batch, self.now_s)
        if not batch.over:
            batch.outcome = "delivered"

    def break_stream(self, written: int) -> None:
        """The stream breaks; the broker got the first `written` batches in flight."""
        for batch in list(self.queue.in_flight)[:written]:
            try:
                self.broker.append(batch)
            except InvalidError:
                continue
        self.queue.lost()

    def give_up(self) -> None:
        """The oldest batch exceeds its delivery timeout."""
        for batch in self.queue:
            if not batch.over:
                batch.over = True
                batch.outcome = "given up"
                break
        self.queue.drop_over()

    def forget_producers(self) -> None:
        """A long silence: the broker drops the producer's state, and the client's last ack is long ago."""
        if not self.queue.in_flight and not any(batch.ambiguous for batch in self.queue):
            self.now_s += 1000
            self.broker.now_ms += 1_000_000
            self.broker.producers.expire(self.broker.now_ms)

    def check(self) -> None:
        written = self.broker.log
        assert written == sorted(set(written)), "doubled or reordered"
        for batch in self.batches:
            if batch.outcome == "delivered":
                assert batch.index in written, "acked and lost"
            if batch.outcome == "failed" and batch.attempts == 1:
                assert batch.index not in written, "failed and written"


FAULTS = st.sampled_from(["", "", "", "", "busy", "bad", "unknown"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.lists(st.integers(1, 3), min_size=1, max_size=4)),
        st.tuples(st.just("answer"), st.lists(FAULTS, min_size=1, max_size=6)),
        st.tuples(st.just("break"), st.integers(0, IN_FLIGHT_MAX)),
        st.tuples(st.sampled_from(["give up", "give up", "silence", "tick"]), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([0, 0, SEQUENCE_COUNT - 3]))
@example(
    # The client gets a new producer id in the middle: batches with the old id and with the new id must not be in flight together.
    [("give", [1, 1, 1]), ("give", [1, 1, 1, 1]), ("answer", [""]), ("give up", 0), ("break", 0)],
    0,
)
@settings(max_examples=examples(300), deadline=None)
def test_every_batch_is_written_once_and_in_order(steps: list[tuple[str, Any]], first_sequence: int) -> None:
    client = Client(first_sequence)
    for step, argument in steps:
        match step:
            case "give":
                for count in argument:
                    client.give(count)
            case "answer":
                for fault in argument:
                    client.answer(fault)
            case "break":
                client.break_stream(argument)
            case "give up":
                client.give_up()
            case "silence":
                client.forget_producers()
            case "tick":
                client.now_s += 0.4
        client.send()
        client.check()
    # Peace: every batch gets its result within a bounded number of turns.
    for _ in range(4 * len(client.batches) + 4):
        client.send()
        client.answer("")
    client.check()
    assert all(batch.outcome for batch in client.batches)
    assert not len(client.queue) and not client.queue.recovering


def test_the_client_keeps_no_more_in_flight_than_the_broker_remembers() -> None:
    assert IN_FLIGHT_MAX <= WINDOW_BATCHES
