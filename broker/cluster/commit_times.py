"""How long commits take at the moment, and how many segments may be handed over at a time therefore. No I/O; time is an argument.

The writers of a segment that is handed over wait for at least one commit. If the store answers in milliseconds, they do not notice
it. If it answers in seconds, each hand-over that only balances the load costs its writers more than the balance brings them.
"""

from __future__ import annotations

from collections import deque

RECENT_S = 10.0
"""Seconds for which the time of a commit counts. The time of the newest commit counts until the next one ends."""
COMMITS_MAX = 64
"""Commits that are remembered."""
WAITED_S = 2.0
"""Hand-overs that balance the load: as many are under way at a time as commits fit into this number of seconds, at least one."""
COMMIT_S_MAX = 5.0
"""Seconds of a commit from which on none begins. The store is then the bottleneck, and another broker reaches it no better."""


def hand_overs_max(commit_s: float) -> int:
    """Hand-overs that balance the load and that may be under way at a time.

    Args:
        commit_s: seconds that a commit takes at the moment.
    """
    if commit_s >= COMMIT_S_MAX:
        return 0
    return max(int(WAITED_S / max(commit_s, 0.001)), 1)


class CommitTimes:
    """The times of recent commits, and of those that are under way."""

    def __init__(self) -> None:
        self._running: dict[int, float] = {}
        """Beginnings of the commits under way, in seconds of the monotonic clock, by number."""
        self._ended: deque[tuple[float, float]] = deque(maxlen=COMMITS_MAX)
        """(end, duration) of commits, both in seconds."""
        self._number = 0

    def began(self, now_s: float) -> int:
        """Note the beginning of a commit. Returns its number."""
        self._number += 1
        self._running[self._number] = now_s
        return self._number

    def ended(self, number: int, now_s: float) -> None:
        """Note the end of a commit, with an error or without one."""
        self._ended.append((now_s, now_s - self._running.pop(number)))

    def longest_s(self, now_s: float) -> float:
        """Seconds of the longest recent commit. One that is under way counts with the time that it has taken until now."""
        recent = [took_s for at_s, took_s in self._ended if now_s - at_s < RECENT_S]
        newest = [took_s for _, took_s in list(self._ended)[-1:]]
        return max([*recent, *newest, *(now_s - since_s for since_s in self._running.values())], default=0.0)
