"""A reservation that lives as long as this process renews it.

The reservation is in the cluster and ends by itself; a thread here renews it. When the process dies, is killed, or hangs in a
way that stops its threads, renewals stop and the brokers leave. The thread never outlives `most_s`, so a run that hangs does not
keep them for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from headgate.broker.runtime.errors import HeadgateError

BEATS_PER_TTL = 3
"""Renewals in one time-to-live: one or two may be lost."""


class Renewable(Protocol):
    """The cluster's methods that a held reservation needs."""

    def reserve(self, reservation_id: str, brokers: int, ttl_ms: int, owner: str, lanes: int = 0) -> None: ...


class Heartbeat:
    """Repeats an action until `stop`, from a thread of its own.

    Args:
        what: the subject of messages.
        work: may raise HeadgateError, which is reported; the next beat tries again.
        ttl_ms: time to live of the renewed object.
        most_s: no beat after this time.
        say: receives the reports.
    """

    def __init__(self, what: str, work: Callable[[], None], ttl_ms: int, most_s: float, say: Callable[[str], None]) -> None:
        self._what = what
        self._work = work
        self._pause_s = ttl_ms / 1000 / BEATS_PER_TTL
        self._until = time.monotonic() + most_s
        self._say = say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat {what}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing. The renewed object itself stays."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._pause_s):
            if time.monotonic() > self._until:
                self._say(f"{self._what} is not renewed any more: the run took longer than it may")
                return
            try:
                self._work()
            except HeadgateError as error:
                self._say(f"{self._what} was not renewed, trying again: {error.message}")


class HeldReservations:
    """The reservations that this process renews: the steps of one run share one. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[tuple[int, int], Heartbeat]] = {}
        """The numbers of brokers and lanes, and what renews them."""

    def hold(
        self,
        cluster: Renewable,
        reservation_id: str,
        brokers: int,
        ttl_ms: int,
        owner: str,
        most_s: float,
        say: Callable[[str], None],
        lanes: int = 0,
    ) -> bool:
        """Open the reservation and keep it open. Returns True if this process did not hold it yet. Raises HeadgateError."""
        cluster.reserve(reservation_id, brokers, ttl_ms, owner, lanes)

        # Opening it again renews it, and restores one that expired while the machine slept.
        def renew() -> None:
            cluster.reserve(reservation_id, brokers, ttl_ms, owner, lanes)

        with self._lock:
            before = self._held.get(reservation_id)
            if before is not None and before[0] == (brokers, lanes):
                return False
            if before is not None:
                before[1].stop()
            beat = Heartbeat(f"reservation {reservation_id}", renew, ttl_ms, most_s, say)
            self._held[reservation_id] = ((brokers, lanes), beat)
            return before is None

    def drop(self, reservation_id: str) -> None:
        """Stop renewing a reservation from this process."""
        with self._lock:
            held = self._held.pop(reservation_id, None)
        if held is not None:
            held[1].stop()

    def held(self) -> list[str]:
        """The reservations that this process renews now."""
        with self._lock:
            return sorted(self._held)


RESERVATIONS = HeldReservations()
"""The reservations of this process. With the in-process executor all steps of a run share them; with another executor each step
holds its own."""
