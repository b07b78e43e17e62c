"""The clock of a coordinator's deadlines, and the alarm for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.broker.coordination.effects import Now
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.logging import get_logger

logger = get_logger(__name__)

TICK_S = 0.5
"""Longest pause, in seconds, between two checks of deadlines."""
STALL_S = 1.5
"""If no check happened for this many seconds, this process did not run: see `PatientClock`."""


class PatientClock:
    """The clock of the group deadlines: monotonic ms without the time in which this process did not run.

    After a pause (SIGSTOP, a migrated machine, a blocked loop), sockets hold requests that were sent in time. With an ordinary
    clock, the coordinator would expel every member before it reads the member's heartbeat.
    """

    __slots__ = ("_clock", "_seen_s", "stalled_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_s = clock.monotonic()
        self.stalled_s = 0.0

    def now(self) -> Now:
        """Both times. The caller must ask at least every TICK_S."""
        at_s = self._clock.monotonic()
        gap_s = at_s - self._seen_s
        if gap_s > STALL_S:
            self.stalled_s += gap_s - TICK_S
            logger.warning("coordinator_stalled", seconds=round(gap_s, 3))
        self._seen_s = at_s
        return Now(int((at_s - self.stalled_s) * 1000), self._clock.now_ms())


class Alarm:
    """Calls back at one time, in ms of the patient clock; a new time replaces the one before."""

    __slots__ = ("_loop", "_ring", "_timer", "at_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self.at_ms = 0

    def set(self, at_ms: int, now_ms: int) -> None:
        self.stop()
        self.at_ms = at_ms
        # One ms later, because a timer that fires a fraction of a millisecond early would find no deadline reached.
        self._timer = self._loop.call_later(max(at_ms - now_ms + 1, 0) / 1000, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
