"""Time, passed in. Only the composition root reads the operating system's clocks."""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.broker.runtime.logging import get_logger

logger = get_logger("clock")

SLEW_SHARE = 0.1
"""Share of the elapsed time by which `SteadyClock` approaches the system clock: a minute passes in 54 to 66 s at the most."""
SLEW_S_MAX = 1.0
"""Elapsed seconds that one check may use to approach the system clock: `now_ms` steps by 100 ms at the most."""


class Clock:
    """The machine's clocks. Two of them, never mixed: the wall clock for people and records, the monotonic one for waiting."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch. It may jump, also back: good for timestamps, never for time-outs or order."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since a fixed moment. Never goes back; comparable only within one process."""
        return time.monotonic()

    def monotonic_ns(self) -> int:
        """The monotonic time in nanoseconds."""
        return time.monotonic_ns()

    if hasattr(time, "CLOCK_BOOTTIME"):

        def suspended_ns(self) -> int:
            """Nanoseconds for which the machine was suspended since it booted: the monotonic clock leaves them out."""
            return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()

    else:

        def suspended_ns(self) -> int:
            """0: only Linux has a clock that counts suspended time. Elsewhere a suspension is a jump of the system clock."""
            return 0

    def cpu_s(self) -> float:
        """Seconds of processor time that this process has used."""
        return time.process_time()


class SteadyClock(Clock):
    """Wall time that no jump of the system clock moves.

    The clock reads the system clock once and then counts elapsed time. `check` compares the two, about once a second. A
    difference up to the limit is removed slowly. A greater difference is a jump. The clock does not follow a jump: it
    continues counting, and is *in doubt* until the difference is gone. `note` records differences from the store's clock and
    from other brokers' clocks.

    While the clock is in doubt, nothing may be deleted because of its age.

    Args:
        system: the machine's clocks.
        difference_max_ms: the limit.
    """

    __slots__ = (
        "_base_ns",
        "_checked_ns",
        "_differences",
        "_elapsed_ns",
        "_suspended_ns",
        "_system",
        "difference_max_ms",
        "monotonic",
        "started_ms",
    )

    monotonic: Callable[[], float]  # the system's own method saves one call for each request

    def __init__(self, system: Clock, difference_max_ms: int) -> None:
        self._system = system
        # For the machine's own clock, the function of the C library saves one call for each request.
        self._elapsed_ns = time.monotonic_ns if type(system) is Clock else system.monotonic_ns
        self.monotonic = time.monotonic if type(system) is Clock else system.monotonic
        self.difference_max_ms = difference_max_ms
        self._checked_ns = self._elapsed_ns()
        self._suspended_ns = system.suspended_ns()
        self._base_ns = system.now_ms() * 1_000_000 - self._checked_ns
        self.started_ms = system.now_ms()
        """The clock's time when it was made: the clock has counted all time since then."""
        self._differences: dict[str, int] = {}
        """Differences beyond the limit, ms, by the clock that this one was compared with."""

    def now_ms(self) -> int:
        """Wall time, ms since the epoch: the system clock without its jumps."""
        return (self._base_ns + self._elapsed_ns()) // 1_000_000

    def monotonic_ns(self) -> int:
        return self._elapsed_ns()

    def cpu_s(self) -> float:
        return self._system.cpu_s()

    def system_ms(self) -> int:
        """The system clock with its jumps: for comparisons with other machines."""
        return self._system.now_ms()

    def check(self) -> None:
        """Compare this clock with the system clock, and approach the system clock if the difference is small."""
        suspended_ns = self._system.suspended_ns()
        self._base_ns += suspended_ns - self._suspended_ns
        self._suspended_ns = suspended_ns
        now_ns = self._elapsed_ns()
        elapsed_ns, self._checked_ns = now_ns - self._checked_ns, now_ns
        difference_ms = self._system.now_ms() - self.now_ms()
        self.note("system", -difference_ms)
        if abs(difference_ms) <= self.difference_max_ms:
            step_ns = int(min(elapsed_ns, SLEW_S_MAX * 1e9) * SLEW_SHARE)
            self._base_ns += max(-step_ns, min(step_ns, difference_ms * 1_000_000))

    def note(self, other: str, ahead_ms: int) -> None:
        """Take note of a comparison with another clock.

        Args:
            other: the other clock, a key of `_NAMES`.
            ahead_ms: milliseconds that this clock is ahead of it; negative: behind.
        """
        was = other in self._differences
        if abs(ahead_ms) > self.difference_max_ms:
            self._differences[other] = ahead_ms
            if not was:
                logger.warning(
                    "clock_in_doubt",
                    compared_with=_NAMES[other],
                    ahead_ms=ahead_ms,
                    difference_max_ms=self.difference_max_ms,
                    effect="nothing is deleted because of its age",
                )
        elif was:
            del self._differences[other]
            logger.info("clock_agrees", compared_with=_NAMES[other], ahead_ms=ahead_ms)

    def forget(self, other: str) -> None:
        """Forget the comparison with a clock that no longer exists."""
        self._differences.pop(other, None)

    def adopt(self, now_ms: int) -> None:
        """Show `now_ms` from now on. Only for a clock that no other part has used yet."""
        shift_ms = now_ms - self.now_ms()
        logger.warning("clock_adopted", system_ms=self.system_ms(), adopted_ms=now_ms)
        self._base_ns += shift_ms * 1_000_000
        self.started_ms += shift_ms
        self.check()

    @property
    def difference_ms(self) -> int:
        """The greatest difference beyond the limit, ms; 0: all clocks agree."""
        return max(map(abs, self._differences.values()), default=0)

    @property
    def doubt(self) -> str | None:
        """The reason why this clock may be wrong, as text for a person; None: all clocks agree."""
        if not self._differences:
            return None
        texts = [
            f"{_shown(abs(ahead_ms))} {'ahead of' if ahead_ms > 0 else 'behind'} {_NAMES[other]}"
            for other, ahead_ms in self._differences.items()
        ]
        return f"clock in doubt, nothing is deleted by age: the broker's time is {', '.join(texts)}"


_NAMES = {
    "system": "the machine's clock, which jumped or was wrong at the start",
    "leader": "the leader's clock",
    "brokers": "the clocks of most other brokers",
    "store": "the store's clock",
}


def _shown(ms: int) -> str:
    """A duration in its greatest unit."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


class ManualClock(Clock):
    """A clock that a test moves by hand. Both times advance together; `jump_wall` moves the wall clock alone."""

    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic_ms / 1000

    def monotonic_ns(self) -> int:
        return self._monotonic_ms * 1_000_000

    def suspended_ns(self) -> int:
        return 0

    def advance(self, ms: int) -> None:
        """Let `ms` (>= 0) milliseconds pass on both clocks."""
        assert ms >= 0, ms
        self._now_ms += ms
        self._monotonic_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Move the wall clock alone, forward or back, as NTP or an operator does."""
        self._now_ms += ms
