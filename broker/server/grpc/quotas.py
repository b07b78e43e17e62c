"""The quotas of native clients. They have no client id, so quotas of users and of the default client id are theirs.

A stream that has used up its quota is read, or written, no further until there is room again: HTTP/2's flow control then stops the
client. So no time to wait has to be told.
"""

from __future__ import annotations

import asyncio

from headgate.broker.cluster.meters import Meter, Meters
from headgate.broker.server.grpc.callers import quota_user, user_of_call
from headgate.broker.server.grpc.open_calls import Client

SLEEP_S_MAX = 1.0
"""Longest sleep before the quota is looked at again: it may have changed."""


class CallQuota:
    """The quotas of a call's client. `client`: None: the caller."""

    def __init__(self, meters: Meters, client: Client | None = None) -> None:
        self._meters = meters
        self._user = user_of_call() if client is None else quota_user(client)

    async def produce_room(self) -> None:
        """Wait until the client may produce."""
        await self._room("produce")

    async def fetch_room(self) -> None:
        """Wait until the client may fetch."""
        await self._room("fetch")

    async def _room(self, kind: str) -> None:
        meter = self._meter(kind)
        while meter is not None and (wait_s := meter.wait_s(self._meters.now_s())) > 0:
            meter.told_to_wait(min(wait_s, SLEEP_S_MAX), self._meters.now_s())
            await asyncio.sleep(min(wait_s, SLEEP_S_MAX))
            meter = self._meter(kind)

    def produced(self, size: int) -> None:
        self._take("produce", size)

    def fetched(self, size: int) -> None:
        self._take("fetch", size)

    def _meter(self, kind: str) -> Meter | None:
        if self._user is None or not self._meters.is_on:
            return None
        client = self._meters.client(self._user, "")
        return None if client is None else getattr(client, kind)

    def _take(self, kind: str, amount: float) -> None:
        meter = self._meter(kind)
        if meter is not None:
            meter.take(amount, self._meters.now_s())
