"""The end of a broker: its parts close one after another, also after one of them failed, and all of them before one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.tasks import known, looked_at

LATE_S = 1.0
"""Seconds beyond twice the grace in which a broker must have ended. A broker without a grace has this time to seal its log."""
TOLD_S = 0.15
"""Seconds that each part has after the deadline, and again after it was cancelled. A broker has a dozen parts, so the end takes at
most about 5 s longer than the deadline."""


class Ending:
    """Collects what happens while parts close. The time of the whole end begins when this object is made.

    Half of it is for the hand-over to other brokers, the other half for the rest: flush and seal the log, leave the cluster.

    Args:
        error: the reason of the end; None for a requested end.
        grace_s: seconds in which other brokers must take over and requests in progress must end. The whole end may take
            twice as long.
    """

    def __init__(self, error: HeadgateError | None, grace_s: float) -> None:
        self.error = error
        """The first error."""
        self.stuck = False
        """True if a part did not close in time. Its tasks and threads may still run."""
        self._grace_s = grace_s
        self._limit_s = 2 * grace_s + LATE_S
        self._over_at = asyncio.get_running_loop().time() + self._limit_s

    @property
    def grace_s(self) -> float:
        """Seconds that other brokers or requests in progress have from now on."""
        return min(self._grace_s, self._left_s())

    async def close(self, part: str, closing: Coroutine[object, object, None]) -> None:
        """Close one part. Its error is noted, not raised. A part that does not close before the deadline is cancelled. After the
        deadline, each part is still told to close."""
        task = asyncio.create_task(closing, name=f"end of {part}")
        try:
            await asyncio.wait((task,), timeout=max(self._left_s(), TOLD_S))
        finally:
            if not task.done():
                task.add_done_callback(looked_at)
                task.cancel()
        if not task.done():
            self.stuck = True
            self.error = self.error or RetryError(
                Reason.TIMED_OUT,
                f"{part} did not close in time, which loses nothing that was acked. timeout_s=`{self._limit_s:g}`",
            )
            # Not awaited to its end: a part that waits for a thread, for example for an answer of the store, cannot be cancelled.
            await asyncio.wait((task,), timeout=TOLD_S)
        elif (failure := asyncio.CancelledError() if task.cancelled() else task.exception()) is not None:
            self.error = self.error or known(failure, f"end of {part}")

    def _left_s(self) -> float:
        return max(self._over_at - asyncio.get_running_loop().time(), 0.0)
