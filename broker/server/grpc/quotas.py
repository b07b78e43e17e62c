"""The quotas of native clients. They have no client id, so quotas of users and of the default client id are theirs.

A stream that has used up its quota is read, or written, no further until there is room again: HTTP/2's flow control then stops the
client. So no time to wait has to be told.
"""

from __future__ import annotations

import asyncio

from headgate.broker.cluster.meters import Meter, Meters
from headgate.broker.server.grpc.callers import user_of_call

SLEEP_S_MAX = 1.0
"""Longest sleep before the quota is looked at again: it may have changed."""


class CallQuota:
    """The quotas of the current call's client."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._user = user_of_call()

    async def produce_room(self) -> None:
        """Wait until the client may produce."""
        await self._room(writes=True)

    async def fetch_room(self) -> None:
        """Wait until the client may fetch."""
        await self._room(writes=False)

    async def _room(self, *, writes: bool) -> None:
        meter = self._meter(writes=writes)
        while meter is not None and (wait_s := meter.wait_s(self._meters.now_s())) > 0:
            meter.told_to_wait(min(wait_s, SLEEP_S_MAX), self._meters.now_s())
            await asyncio.sleep(min(wait_s, SLEEP_S_MAX))
            meter = self._meter(writes=writes)

    def produced(self, size: int) -> None:
        self._take(self._meter(writes=True), size)

    def fetched(self, size: int) -> None:
        self._take(self._meter(writes=False), size)

    def _meter(self, *, writes: bool) -> Meter | None:
        if self._user is None or not self._meters.is_on:
            return None
        client = self._meters.client(self._user, "")
        return None if client is None else client.produce if writes else client.fetch

    def _take(self, meter: Meter | None, size: int) -> None:
        if meter is not None:
            meter.take(size, self._meters.now_s())
