"""Time, passed in. Nothing below the composition root asks the operating system what time it is."""

from __future__ import annotations

import time


class Clock:
    """The machine's clocks. Two of them, never mixed: the wall clock for people and records, the monotonic one for waiting."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch. It may jump, back too: good for timestamps, never for time-outs or order."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some fixed moment. Never goes back; comparable only within one process."""
        return time.monotonic()

    def cpu_s(self) -> float:
        """Seconds of processor time that this process has used."""
        return time.process_time()


class ManualClock(Clock):
    """A clock that a test moves by hand. Both times advance together; `jump_wall` moves the wall clock alone."""

    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic_ms / 1000

    def advance(self, ms: int) -> None:
        """Let `ms` (>= 0) milliseconds pass on both clocks."""
        assert ms >= 0, ms
        self._now_ms += ms
        self._monotonic_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Move the wall clock alone, back too, as NTP or an operator does."""
        self._now_ms += ms
