"""How long a broker waits for another broker's answer, if the way between them is long. No I/O.

A fixed limit is either too long for a broker that hangs or too short for one that is far away: if an answer takes longer than the
limit, no attempt ever succeeds. So a limit that ran out makes the next one `GROWTH` times as long, up to `LONGEST_S`. An answer
makes it twice as long as the answer took, and never shorter than the limit for a near broker.
"""

from __future__ import annotations

from collections.abc import Iterable

GROWTH = 3.0
LONGEST_S = 40.0
"""Longest limit, in seconds. With 5 s of delay each way, a new connection takes four round trips of 10 s at most: one of TCP, two
of TLS, and one of HTTP/2."""


class Patience:
    """The limit for the answers of one broker.

    Args:
        shortest_s: limit for a near broker, in seconds.
    """

    __slots__ = ("_shortest_s", "limit_s")

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self.limit_s = shortest_s
        """The limit for the next answer, in seconds."""

    def answered(self, took_s: float) -> None:
        """Note an answer, and the seconds that it took."""
        self.limit_s = min(max(self._shortest_s, 2 * took_s), LONGEST_S)

    def ran_out(self) -> None:
        """Note that the limit was too short, or that the broker hangs."""
        self.limit_s = min(GROWTH * self.limit_s, LONGEST_S)


class Patiences:
    """The limits for the answers of several brokers, by incarnation.

    Args:
        shortest_s: limit for a near broker, in seconds.
    """

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self._known: dict[str, Patience] = {}

    def of(self, incarnation_id: str, live: Iterable[str]) -> Patience:
        """The limit of one broker.

        Args:
            live: incarnations that are still there. A new broker makes the others be forgotten.
        """
        found = self._known.get(incarnation_id)
        if found is None:
            self._known = {key: self._known[key] for key in self._known.keys() & set(live)}
            found = self._known[incarnation_id] = Patience(self._shortest_s)
        return found
