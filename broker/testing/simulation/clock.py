"""The clocks of a simulated machine."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.broker.runtime.clock import Clock
from headgate.broker.testing.simulation.loop import VirtualLoop

START_MS = 1_700_000_000_000
"""The true time at loop time 0."""


@dataclass(slots=True)
class WallClock:
    """The wall clock of one machine; it outlives the runs of its broker. `wrong_ms`: milliseconds ahead of the true time."""

    wrong_ms: int = 0


class SimulatedClock(Clock):
    """The system clock of one process on a machine."""

    __slots__ = ("_loop", "_offset_s", "wall")

    def __init__(self, loop: VirtualLoop, offset_s: float, wall: WallClock) -> None:
        self._loop = loop
        self._offset_s = offset_s
        self.wall = wall

    def now_ms(self) -> int:
        return START_MS + self.wall.wrong_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time() + self._offset_s

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1e9)

    def suspended_ns(self) -> int:
        return 0

    def cpu_s(self) -> float:
        return 0.0
