"""The quotas of one connection's client (KIP-219). It does no I/O and knows no event loop.

A request is answered at once, with the time that its client must wait; then nothing is read from the client for that time, whether
or not the client heeds it. Only a fetch of a client that must wait already gets no records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from headgate.broker.cluster.acl import ANONYMOUS
from headgate.broker.cluster.meters import Client
from headgate.broker.cluster.quotas import user_of
from headgate.broker.wire.kafka import fetch as fetch_wire
from headgate.broker.wire.kafka import produce as produce_wire

if TYPE_CHECKING:
    from headgate.broker.cluster.meters import Meters
    from headgate.broker.log.batch import Buffer
    from headgate.broker.server.access.rights import Identity
    from headgate.broker.server.kafka.common import Common
    from headgate.broker.server.kafka.fetch import FetchRequest
    from headgate.broker.server.kafka.slot import Slot

CLIENT_ID_CHARS_MAX = 250
"""Characters of a client id that count."""
ANSWER_S = 10.0
"""Seconds of its quota that one answer to a fetch may have, as in Kafka."""
ANSWER_BYTES_MIN = 1024
THROTTLE_MS_MAX = (1 << 31) - 1
NO_QUOTAS = Client(None, None)


class Muted(Protocol):
    """The session of a client."""

    identity: Identity | None
    logged_in: bool
    active_at: float

    def fill_counted(self, slot: Slot, data: list[Buffer]) -> None:
        """Give an answer to the client."""

    def pause(self) -> None:
        """Read nothing more from the client for now."""

    def resume(self) -> None:
        """Read on, if no limit forbids it."""


class Throttle:
    """Counts what the client of a session uses.

    Args:
        unmute_at: calls `unmute` at a time of the monotonic clock, instead of an earlier one.
    """

    __slots__ = ("_client", "_client_id", "_common", "_session", "_unmute_at", "_version", "muted_until_s")

    def __init__(self, session: Muted, common: Common, unmute_at: Callable[[float], None]) -> None:
        self._session = session
        self._common = common
        self._unmute_at = unmute_at
        self._client = NO_QUOTAS
        self._client_id: bytes | None = None
        self._version = -1
        """Version of the latest request: produce requests that are answered together have one."""
        self.muted_until_s = 0.0
        """Time until which nothing is read from the client; 0: it need not wait."""

    def is_another(self, client_id: bytes, version: int) -> bool:
        """Whether a request is of another client or version than the one before."""
        before = (self._client_id, self._version)
        self._client_id, self._version = client_id, version
        return before != (client_id, version)

    def meet(self, meters: Meters) -> None:
        """Find the meters of the client. Before a login there are none."""
        identity = self._session.identity
        self._client = NO_QUOTAS
        if not self._session.logged_in:
            self._client_id = None
        elif identity is None or not identity.is_broker:
            user = user_of(ANONYMOUS if identity is None else identity.principal)
            name = (self._client_id or b"").decode("utf-8", "replace")[:CLIENT_ID_CHARS_MAX]
            self._client = meters.client(user, name) or NO_QUOTAS

    def produced(self, size: int, answers: list[bytes]) -> list[bytes]:
        """Count received bytes. Returns the answers with the time that the client must wait."""
        meter = self._client.produce
        wait_ms = 0 if meter is None else self._mute(meter.take(size, self._common.now()))
        return [produce_wire.throttled(answer, self._version, wait_ms) for answer in answers] if wait_ms else answers

    def refuses(self, request: FetchRequest, correlation_id: int, slot: Slot) -> bool:
        """Answer a fetch without records if its client must wait already. Otherwise bound its answer."""
        meter = self._client.fetch
        if meter is None:
            return False
        now_s = self._common.now()
        wait_s = meter.wait_s(now_s)
        if not wait_s:
            request.max_bytes = min(request.max_bytes, max(int(meter.share * ANSWER_S), ANSWER_BYTES_MIN))
            return False
        meter.told_to_wait(wait_s, now_s)
        answer = fetch_wire.empty(request.version, correlation_id)
        fetch_wire.throttled(answer, request.version, self._mute(wait_s))
        self._session.fill_counted(slot, answer)
        return True

    def fetched(self, answer: list[Buffer], version: int) -> None:
        """Count an answer's bytes, and write into it how long the client must wait."""
        meter = self._client.fetch
        if meter is not None:
            wait_ms = self._mute(meter.take(sum(map(len, answer)), self._common.now()))
            if wait_ms:
                fetch_wire.throttled(answer, version, wait_ms)

    def _mute(self, seconds: float) -> int:
        """Read nothing from the client for some time. Returns that time in ms."""
        if seconds <= 0:
            return 0
        until_s = self._common.now() + seconds
        if until_s > self.muted_until_s:
            self.muted_until_s = until_s
            self._session.pause()
            self._unmute_at(until_s)
        return min(math.ceil(seconds * 1000), THROTTLE_MS_MAX)

    def unmute(self) -> None:
        """Read on: the client has waited long enough."""
        if self.muted_until_s:
            self.muted_until_s = 0.0
            self._session.active_at = self._common.now()
            self._session.resume()
