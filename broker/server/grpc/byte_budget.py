"""Bounds the bytes in flight of the gRPC calls of one server."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """Bytes that may be in flight. The size of a message is known only after its arrival, so each taker may exceed the limit by
    one message.

    Args:
        limit_bytes: `room` waits while more than this is taken.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def is_overdrawn(self) -> bool:
        return self.used_bytes > self.limit_bytes

    async def room(self) -> None:
        """Wait until the budget is not overdrawn."""
        while self.is_overdrawn:
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
        """Give bytes back. All waiters check again: free room is not reserved for any of them."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, self.used_bytes
        if not self.is_overdrawn:
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_result(None)
