"""Detects from outside that records do not become durable.

A store that refuses a write raises an error, and the WAL reports it (`Wal.stalled`). A store that hangs raises no error, or much
later: a frozen disk, or a request that is repeated for half a minute. Clients, /readyz and the leader need to know that too. The
log gets one line at the beginning and one at the end.
"""

from __future__ import annotations

import asyncio

from headgate.broker.engine.write.wal import Wal
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger("wal")

LOOK_S = 1.0
LOOKS = 5
"""Checks in a row that found waiting records, and none that became durable, before the WAL counts as silent. Checks, not
seconds: in a process that was stopped for a while, no record had the time to become durable."""


class WalWatch:
    """Checks a WAL every `LOOK_S`, and sets its `stalled` while it is silent. Lives on the loop."""

    def __init__(self, wal: Wal, loop: asyncio.AbstractEventLoop) -> None:
        self._wal = wal
        self._loop = loop
        self._durable = wal.durable_batches
        self._looks = 0
        """Checks in a row with waiting records of which none became durable."""
        self._silence: HeadgateError | None = None
        """The error that this watch has set, and that only this watch may clear."""
        self._said_s: float | None = None
        """Time in seconds of the log line about waiting records; None: there was none."""
        self._timer = loop.call_later(LOOK_S, self._on_timer)

    def close(self) -> None:
        """Stop checking."""
        self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._on_timer)
        self.look()

    def look(self) -> None:
        """Check once."""
        wal = self._wal
        durable = wal.durable_batches
        is_silent = durable == self._durable and wal.appended_batches > durable
        self._looks = self._looks + 1 if is_silent else 0
        self._durable = durable
        if self._silence is not None and not is_silent:
            if wal.stalled is self._silence:
                wal.stalled = None
            self._silence = None
        elif self._looks >= LOOKS and wal.stalled is None:
            seconds = self._looks * LOOK_S
            wal.stalled_since = self._loop.time() - seconds
            message = f"the store hangs: nothing that was written became durable. seconds=`{seconds:g}`"
            wal.stalled = self._silence = RetryError(Reason.STORE_UNAVAILABLE, message)
        self._say()

    def _say(self) -> None:
        stalled = self._wal.stalled
        if stalled is not None and self._said_s is None:
            self._said_s = self._wal.stalled_since
            logger.warning("records_wait", error=stalled.message)
        elif stalled is None and self._said_s is not None:
            logger.warning("records_stored_again", seconds=round(self._loop.time() - self._said_s, 1))
            self._said_s = None
