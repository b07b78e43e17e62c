"""The state of the cluster during a flood: one sample a second, for the plot and for the sum of broker-seconds, and how long live
producers waited."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from headgate.assets.latencies import Latencies
from headgate.broker.runtime.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.broker.client.control import ClusterView, DesiredBrokers

INTERVAL_S = 1.0
SAMPLES_MAX = 100_000
LATENCIES_S = 10.0
"""Pause between two looks at the brokers' latencies: a broker that leaves takes less than this with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample. `at_s`: seconds since the recorder began. `rows_done`: rows of the flood so far. Rates: live traffic of the
    flood's topic."""

    at_s: float
    desired: int
    live: int
    bytes_in_per_s: float
    bytes_out_per_s: float
    rows_done: int


@dataclass(frozen=True, slots=True)
class Recording:
    """What a recorder saw. `p99_ms`: of acks to Kafka producers at all brokers meanwhile; None when no producer wrote."""

    samples: Sequence[Sample] = ()
    p99_ms: float | None = None


class Recorder:
    """Samples the cluster until `stop`. `Recorders.moved` sets `rows_done`."""

    def __init__(self, topic: str, desired: Callable[[], DesiredBrokers], view: Callable[[], ClusterView]) -> None:
        self.rows_done = 0
        self.samples: list[Sample] = []
        self._topic = topic
        self._desired = desired
        self._view = view
        self._latencies = Latencies()
        self._latencies_due_s = 0.0
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._record, name="flood recorder", daemon=True)
        self._thread.start()

    def recording(self) -> Recording:
        """What was seen so far."""
        return Recording(self.samples, self._latencies.p99_ms())

    def stop(self) -> Recording:
        """Take a last sample. Returns all that was seen."""
        self._stop.set()
        self._thread.join()
        self._latencies_due_s = 0.0
        self._look()
        return self.recording()

    def _record(self) -> None:
        self._look()
        while not self._stop.wait(INTERVAL_S) and len(self.samples) < SAMPLES_MAX:
            self._look()

    def _look(self) -> None:
        try:
            desired, view = self._desired(), self._view()
        except HeadgateError:
            return  # a gap in the picture; steps that depend on the cluster report the error themselves
        at_s = time.monotonic() - self._began
        if at_s >= self._latencies_due_s:
            self._latencies.look(view.members)
            self._latencies_due_s = at_s + LATENCIES_S
        own = [segment for segment in view.segments if segment.topic == self._topic]
        self.samples.append(
            Sample(
                at_s=at_s,
                desired=desired.brokers,
                live=desired.live_brokers,
                bytes_in_per_s=sum(segment.bytes_in_per_s for segment in own),
                bytes_out_per_s=sum(segment.bytes_out_per_s for segment in own),
                rows_done=self.rows_done,
            )
        )


class Recorders:
    """The recorders of this process, by reservation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Recorder] = {}

    def begin(
        self, reservation_id: str, topic: str, desired: Callable[[], DesiredBrokers], view: Callable[[], ClusterView]
    ) -> None:
        """Start the recorder of a reservation, unless it runs already."""
        with self._lock:
            if reservation_id not in self._running:
                self._running[reservation_id] = Recorder(topic, desired, view)

    def moved(self, reservation_id: str, rows: int) -> None:
        """Note the rows of the flood so far; without effect without a recorder."""
        with self._lock:
            found = self._running.get(reservation_id)
        if found is not None:
            found.rows_done = rows

    def so_far(self, reservation_id: str) -> Recording:
        """What the recorder of a reservation saw so far; nothing without a recorder."""
        with self._lock:
            found = self._running.get(reservation_id)
        return Recording() if found is None else found.recording()

    def end(self, reservation_id: str) -> Recording:
        """Stop the recorder. Returns what it saw; nothing without a recorder."""
        with self._lock:
            found = self._running.pop(reservation_id, None)
        return Recording() if found is None else found.stop()


RECORDERS = Recorders()


def broker_seconds(samples: Sequence[Sample]) -> float:
    """The sum over all brokers of the seconds that each was up."""
    return sum((left.live * (right.at_s - left.at_s) for left, right in pairwise(samples)), 0.0)


def peak(samples: Sequence[Sample]) -> int:
    """Largest number of brokers at one time."""
    return max((sample.live for sample in samples), default=0)
