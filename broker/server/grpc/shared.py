"""What the streams and calls of the gRPC door share: a budget of bytes, and the news that the broker stops."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from broker.engine.engine import Engine
from broker.runtime.config import Settings


class Budget:
    """Bytes that may be in flight. What is taken is known only once it is there, so the limit may be passed by one message a taker.

    Args:
        limit_bytes: `room` waits while more than this is taken.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def room(self) -> None:
        """Wait until the budget is not overdrawn."""
        while self.used_bytes > self.limit_bytes:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if not waiter.done() or waiter.cancelled():
                    self._waiters.remove(waiter)

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Put back what was taken. All who wait look again: that there is room now is not a promise to any of them."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, self.used_bytes
        if self.used_bytes <= self.limit_bytes:
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_result(None)


class Shared:
    """Of all calls of one server."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.budget = Budget(settings.inflight_bytes_max)
        self.stopping = False
        self._on_stop: set[Callable[[], None]] = set()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call back when the server stops; at once where it has."""
        self._on_stop.add(callback)
        if self.stopping:
            callback()

    def forget(self, callback: Callable[[], None]) -> None:
        self._on_stop.discard(callback)

    def stop(self) -> None:
        """Tell every call that waits for something to end itself."""
        self.stopping = True
        for callback in list(self._on_stop):
            callback()
