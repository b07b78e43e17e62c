"""Failed logins by address. No I/O.

A failed login or TLS handshake costs a broker up to three milliseconds, and anyone can cause one. Each address has a bucket that a
failure fills and that empties at a fixed rate; while it is full, new connections of the address are closed before their handshake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headgate.broker.runtime.errors import RetryError

BURST_S = 20.0
"""Seconds of the rate that an address may fail at once: a fleet of clients behind one address starts with an old password."""
ADDRESSES_MAX = 10_000
"""Addresses with failures. Above it those with an empty bucket are forgotten, then the one that failed first."""


class Failures:
    """Counts failures, and decides which addresses may connect.

    Args:
        per_s: failures in a second that an address may have for ever; 0: any number.
        now_s: a monotonic clock.
    """

    def __init__(self, per_s: float, now_s: Callable[[], float]) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self.empty_s: dict[str, float] = {}
        """By address: the time at which its bucket will be empty."""

    def failed(self, host: str) -> None:
        """Count a failure."""
        if not self._per_s:
            return
        now_s = self._now_s()
        if host not in self.empty_s and len(self.empty_s) >= ADDRESSES_MAX:
            self.empty_s = {address: at_s for address, at_s in self.empty_s.items() if at_s > now_s}
            if len(self.empty_s) >= ADDRESSES_MAX:
                del self.empty_s[next(iter(self.empty_s))]
        self.empty_s[host] = max(self.empty_s.get(host, now_s), now_s) + 1 / self._per_s

    def forgiven(self, host: str) -> None:
        """Take one counted failure back."""
        if host in self.empty_s:
            self.empty_s[host] -= 1 / self._per_s

    @contextmanager
    def counted(self, host: str) -> Iterator[None]:
        """Around a login: it counts as failed until it has worked, because a client that does not wait for the answer has caused
        the work, too. A RetryError is the broker's fault, and no failure."""
        self.failed(host)
        try:
            yield
        except RetryError:
            self.forgiven(host)
            raise
        self.forgiven(host)

    def admits(self, host: str) -> bool:
        """Whether an address may have a new connection."""
        return self.empty_s.get(host, 0.0) - self._now_s() < BURST_S
