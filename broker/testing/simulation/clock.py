"""The clocks of a simulated machine."""

from __future__ import annotations

from broker.runtime.clock import Clock
from broker.testing.simulation.loop import VirtualLoop


class SimulatedClock(Clock):
    """Of one process. `wall_ms` is how far its wall clock is off."""

    __slots__ = ("_loop", "_offset_s", "wall_ms")

    def __init__(self, loop: VirtualLoop, offset_s: float) -> None:
        self._loop = loop
        self._offset_s = offset_s
        self.wall_ms = 0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.wall_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time() + self._offset_s

    def cpu_s(self) -> float:
        return 0.0
