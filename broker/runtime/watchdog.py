"""Ends a process whose event loop stands still.

A loop may stand still for ever in code that no handler reaches: gRPC's core waits for a thread that memory kept from starting, and
the kernel accepts connections in the place of the process meanwhile. Such a broker neither serves nor ends, and a supervisor that
looks only for processes that are gone never replaces it. So a thread looks whether the loop still turns.

Time counts in looks of that thread. On a starved machine, or after a stop by SIGSTOP, both are late, and looks that the thread had
no processor for do not count against the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from headgate.broker.runtime.threads import begin

LOOKS = 10
"""Looks in a row without a turn of the loop between them, until the process is ended."""


class Watchdog:
    """Looks from `start` on until `close`.

    Args:
        timeout_ms: the loop stands still for so long until `end` is called.
        end: called in the thread that looks.

    Raises FatalError(OUT_OF_MEMORY): its thread does not start.
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
        """Stop looking."""
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
