"""Ends a process with a blocked event loop.

A loop may stand still for ever in code that no handler reaches. Example: gRPC's core waits for a thread that could not start for
lack of memory, and meanwhile the kernel accepts the process's connections. Such a broker neither serves nor ends, and a
supervisor that only watches for ended processes never replaces it. So a thread checks whether the loop still turns.

Time is counted in checks of that thread. On a starved machine, or after a SIGSTOP, both the thread and the loop are late, and
checks for which the thread had no processor time do not count against the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from headgate.broker.runtime.threads import begin

LOOKS = 10
"""Consecutive checks without a turn of the loop between them before the process is ended."""


class Watchdog:
    """Checks the loop from `start` until `close`.

    Args:
        timeout_ms: time without a turn of the loop before `end` is called.
        end: called in the checking thread.

    Raises FatalError(OUT_OF_MEMORY): the thread does not start.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_ms: int, end: Callable[[], object]) -> None:
        self._loop = loop
        self._pause_s = timeout_ms / 1000 / LOOKS
        self._end = end
        self._turned = True
        self._closed = threading.Event()
        self._timer = loop.call_soon(self._turn)
        begin("watchdog", self._look)

    def close(self) -> None:
        """Stop checking."""
        self._closed.set()
        self._timer.cancel()

    def _turn(self) -> None:
        self._turned = True
        self._timer = self._loop.call_later(self._pause_s, self._turn)

    def _look(self) -> None:
        still = 0
        while not self._closed.wait(self._pause_s):
            still = 0 if self._turned else still + 1
            self._turned = False
            if still > LOOKS:
                self._end()
