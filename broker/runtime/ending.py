"""The end of a broker: its parts close one after another, also after one of them failed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.tasks import known

LATE_S = 1.0
"""Seconds that a part may take beyond the grace before it counts as stuck."""


class Ending:
    """Collects what happens while parts close.

    Args:
        error: the reason of the end; None for a requested end.
        grace_s: seconds in which each part must close.
    """

    def __init__(self, error: HeadgateError | None, grace_s: float) -> None:
        self.error = error
        """The first error."""
        self.grace_s = grace_s
        self.stuck = False
        """True if a part did not close in time."""

    async def close(self, part: str, closing: Coroutine[object, object, None]) -> None:
        """Close one part. Its error is noted, not raised."""
        limit_s = self.grace_s + LATE_S
        try:
            await asyncio.wait_for(closing, limit_s)
        except TimeoutError:
            self.stuck = True
            self.error = self.error or RetryError(
                Reason.TIMED_OUT, f"{part} did not close in time, which loses nothing that was acked. timeout_s=`{limit_s:g}`"
            )
        except Exception as failure:  # noqa: BLE001  # the other parts must still be closed, and the first error is reported
            self.error = self.error or known(failure, f"end of {part}")
