"""What happened in the cluster under its present leader, for people: events with their reasons, and a short history of numbers.

It is in the leader's memory only, and bounded. No I/O; time is an argument, in seconds of the monotonic clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

EVENTS_MAX = 500
TEXT_CHARS_MAX = 500
SAMPLE_S = 10.0
"""Pause between two samples."""
SAMPLES_MAX = 180
"""Half an hour of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One event. `kind`: gate, flood, capacity or leader. `why`: one sentence. `topic`: "" if it concerns no single topic."""

    at_s: float
    kind: str
    why: str
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The cluster at one moment. `desired` is 0 while the leader is too new to know the number."""

    at_s: float
    desired: int
    live: int
    bytes_in_per_s: float
    bytes_out_per_s: float


class Chronicle:
    """Events and samples; the newest are last."""

    def __init__(self) -> None:
        self.events: deque[Happened] = deque(maxlen=EVENTS_MAX)
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def note(self, kind: str, why: str, now_s: float, topic: str = "") -> None:
        """Remember an event."""
        self.events.append(Happened(at_s=now_s, kind=kind, why=why[:TEXT_CHARS_MAX], topic=topic))

    def is_sample_due(self, now_s: float) -> bool:
        return not self.samples or now_s - self.samples[-1].at_s >= SAMPLE_S

    def sample(self, sample: Sample) -> None:
        """Remember a sample."""
        self.samples.append(sample)
