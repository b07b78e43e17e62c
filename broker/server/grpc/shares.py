"""Divides the bytes in flight of one server's gRPC calls among its clients.

All calls of one client have one share. A client that uses up its share stops its own calls, and no others: it may take half of the
budget at most, and what it takes below `guaranteed_bytes` never waits for other clients. So clients that read no answers, or that
send batches and want no acks, cannot use up the budget of all. Brokers have no share: they wait for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

GUARANTEED_PART = 16
"""A client is guaranteed one part in so many of the budget."""
MOST_PART = 2
"""A client gets one part in so many of the budget at most."""


class Shares:
    """The budget of one server.

    Args:
        limit_bytes: what all clients may have in flight together. The size of a message is known only after its arrival, so each
            call may exceed its limits by one message.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._used: dict[Hashable, int] = {}
        """Bytes in flight by client. All values are above 0."""
        self._waiters: dict[asyncio.Future[None], Hashable] = {}

    def must_wait(self, client: Hashable | None) -> bool:
        """Whether a call of the client has to wait before it takes more. None: a broker."""
        used, limit = self._used.get(client, 0), self.limit_bytes
        if client is None or used <= limit // GUARANTEED_PART:
            return False
        return used > limit // MOST_PART or self.used_bytes > limit

    def take(self, client: Hashable | None, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self._used[client] = self._used.get(client, 0) + size_bytes

    def give(self, client: Hashable | None, size_bytes: int) -> None:
        """Give bytes back. All calls that may go on check again: no room is reserved for any of them."""
        self.used_bytes -= size_bytes
        left = self._used.get(client, 0) - size_bytes
        assert left >= 0, left
        if left:
            self._used[client] = left
        else:
            self._used.pop(client, None)
        for waiter in [waiter for waiter, waiting in self._waiters.items() if not self.must_wait(waiting)]:
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)

    async def room(self, client: Hashable | None) -> None:
        """Wait until the client may take more."""
        while self.must_wait(client):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = client
            try:
                await waiter
            finally:
                self._waiters.pop(waiter, None)


class Share:
    """The bytes of one client in a budget."""

    __slots__ = ("_budget", "_client")

    def __init__(self, budget: Shares, client: Hashable | None) -> None:
        self._budget, self._client = budget, client

    async def room(self) -> None:
        """Wait until the client may take more."""
        await self._budget.room(self._client)

    @property
    def is_full(self) -> bool:
        """True if the client may not take more now."""
        return self._budget.must_wait(self._client)

    def take(self, size_bytes: int) -> None:
        self._budget.take(self._client, size_bytes)

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Take bytes for as long as the context lasts."""
        self.take(size_bytes)
        try:
            yield
        finally:
            self.give(size_bytes)

    def give(self, size_bytes: int) -> None:
        self._budget.give(self._client, size_bytes)
