"""The clocks of a simulated machine."""

from __future__ import annotations

from broker.runtime.clock import Clock
from broker.testing.simulation.loop import VirtualLoop


class SimulatedClock(Clock):
    """The system clock of one process. `wall_ms` is how far its machine's wall clock is off."""

    __slots__ = ("_loop", "_offset_s", "wall_ms")

    def __init__(self, loop: VirtualLoop, offset_s: float, wall_ms: int = 0) -> None:
        self._loop = loop
        self._offset_s = offset_s
        self.wall_ms = wall_ms

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.wall_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time() + self._offset_s

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1e9)

    def suspended_ns(self) -> int:
        return 0

    def cpu_s(self) -> float:
        return 0.0
