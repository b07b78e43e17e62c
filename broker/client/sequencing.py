"""The batches of one partition on their way to the broker: each is written once, in order, or is known to have failed. No I/O.

Theory of operation. A batch goes through::

    waiting --> in flight --> delivered
       ^            |-------> failed       (refused for good)
       '- returned -'                      (refused for now, or the stream broke)

A batch gets (producer id, sequence) when it is first taken; the broker recognises a repeated batch by them. The broker remembers
the last 5 batches of a producer, so at most 5 are in flight. It accepts any sequence from an unknown producer, so only one is in
flight until it has acked one recently; otherwise a second batch could overtake a first that was refused.

After the first return or failure, nothing is taken until all in-flight batches are decided (`recovering`). The broker refuses
batches behind a gap, so those come back too. Then, before the next take:

- A batch failed for good and was never written: the batches behind it were not written either, and are renumbered to close the
  gap.
- The first in-flight batch was out of order (an earlier one was given up in an unknown state), or a batch failed for good that
  an earlier
  attempt may have written: the broker's next sequence is unknown. A new producer id is requested.
- Otherwise the numbers stay.

A batch that may have been written (`ambiguous`) is never renumbered: only its old number lets the broker recognise it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError

IN_FLIGHT_MAX = 5
"""Batches of a producer that a broker remembers (`headgate.broker.log.producers.WINDOW_BATCHES`)."""
PROVEN_S = 1.0
"""Time for which an ack proves that the broker knows the producer; at most the shortest expiry of a producer."""
SEQUENCE_COUNT = 1 << 31

OUT_OF_ORDER = frozenset((Reason.OUT_OF_ORDER_SEQUENCE, Reason.INVALID_PRODUCER_EPOCH, Reason.UNKNOWN_PRODUCER_ID))
"""Reasons that mean: the batch was never written, and cannot be written with its number."""


class Numbered(Protocol):
    """The attributes of a batch.

    `sequence` is -1 until it is numbered. `ambiguous`: an attempt may have written it. `over`: its records have failed as
    expired; it is not sent again.
    """

    producer_id: int
    sequence: int
    ambiguous: bool
    over: bool

    @property
    def count(self) -> int:
        """Number of its records."""
        ...


B = TypeVar("B", bound=Numbered)


class PartitionQueue(Generic[B]):
    """The batches of one partition."""

    def __init__(self) -> None:
        self.waiting: deque[B] = deque()
        self.in_flight: deque[B] = deque()
        """Taken, undecided batches, in the order in which they were taken."""
        self.producer_id = -1
        """-1: request a producer id and call `identify` before the next `take`."""
        self.recovering = False
        self._next_sequence = 0
        self._proven_id = -1
        self._proven_until_s = 0.0
        self._returned: list[B] = []
        self._gap: tuple[int, int] | None = None
        """(returned batches in front of it, its sequence) of the first batch of this recovery that failed for good."""
        self._reset = False

    def __iter__(self) -> Iterator[B]:
        """All batches, in order."""
        yield from self._returned
        yield from self.in_flight
        yield from self.waiting

    def __len__(self) -> int:
        return len(self._returned) + len(self.in_flight) + len(self.waiting)

    def identify(self, producer_id: int) -> None:
        """Number batches from 0 under this id, which was never used before."""
        self.producer_id = producer_id
        self._next_sequence = 0

    def can_take(self, now_s: float) -> bool:
        """True when a waiting batch may be sent now."""
        if self.recovering:
            return False
        producer_id = self.producer_id
        if self.waiting and self.waiting[0].sequence >= 0:
            producer_id = self.waiting[0].producer_id
        if self.in_flight and self.in_flight[-1].producer_id != producer_id:
            # To the broker these are two producers, so it would not notice that one overtakes the other.
            return False
        proven = producer_id == self._proven_id and now_s < self._proven_until_s
        return len(self.in_flight) < (IN_FLIGHT_MAX if proven else 1)

    def take(self, now_s: float) -> B | None:
        """The next batch to send, numbered; None when none may be sent now."""
        if not self.waiting or not self.can_take(now_s):
            return None
        batch = self.waiting.popleft()
        if batch.sequence < 0:
            assert self.producer_id >= 0, "identify first"
            batch.producer_id, batch.sequence = self.producer_id, self._next_sequence
            self._next_sequence = (self._next_sequence + batch.count) % SEQUENCE_COUNT
        self.in_flight.append(batch)
        return batch

    def delivered(self, batch: B, now_s: float) -> None:
        """The broker acked an in-flight batch."""
        self.in_flight.remove(batch)
        if not self.recovering:
            self._proven_id = batch.producer_id
            self._proven_until_s = now_s + PROVEN_S
        self._settle()

    def refused(self, batch: B, error: HeadgateError) -> bool:
        """The broker refused an in-flight batch. True: for good, its records fail. False: it will be taken again."""
        self.in_flight.remove(batch)
        first = not self.recovering
        self.recovering = True
        for_good = False
        if error.reason in OUT_OF_ORDER:
            batch.ambiguous = False
            self._reset = self._reset or first
        elif isinstance(error, RetryError):
            batch.ambiguous = True
        elif batch.ambiguous:
            for_good = self._reset = True
        else:
            for_good = True
            if self._gap is None:
                self._gap = len(self._returned), batch.sequence
        if not for_good:
            self._returned.append(batch)
        self._settle()
        return for_good

    def lost(self) -> None:
        """The stream broke: each in-flight batch may or may not have been written."""
        if self.in_flight:
            self.recovering = True
            for batch in self.in_flight:
                batch.ambiguous = True
            self._returned.extend(self.in_flight)
            self.in_flight.clear()
            self._settle()

    def drop_over(self) -> None:
        """Drop waiting batches that are `over`."""
        self.waiting = deque(batch for batch in self.waiting if not batch.over)

    def _settle(self) -> None:
        if not self.recovering or self.in_flight:
            return
        behind: list[B] = []
        if self._gap is not None:
            behind = [*self._returned[self._gap[0] :], *self.waiting]
            if any(batch.ambiguous for batch in behind):
                self._reset = True
        self.waiting.extendleft(reversed(self._returned))
        if self._reset:
            self.producer_id = -1
            for batch in self.waiting:
                if not batch.ambiguous:
                    batch.sequence = -1
        elif self._gap is not None:
            self._next_sequence = self._gap[1]
            for batch in behind:
                batch.sequence = -1
        self._returned = []
        self._gap = None
        self._reset = False
        self.recovering = False
        self._proven_id = -1
        self.drop_over()
