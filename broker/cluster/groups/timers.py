"""Deadlines by key, for state machines that are told the time. No clock, no callbacks."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """A set of keys with one deadline each, ms of any one clock.

    Putting a deadline off, which every heartbeat does, costs a dictionary write: the heap holds one entry per key that may be too
    early, and is corrected when that entry comes up.
    """

    __slots__ = ("_deadlines", "_heap", "_queued", "_sequence")

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        """All and only the keys that have a deadline."""
        self._heap: list[tuple[int, int, Key]] = []
        """For each key that has a deadline at least one entry that is not later. The number keeps keys from being compared."""
        self._queued: dict[Key, int] = {}
        """The earliest entry of the key in the heap."""
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def set(self, key: Key, deadline_ms: int) -> None:
        """Give `key` a deadline in place of the one that it may have."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._push(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Take the deadline of `key` away; nothing happens if it has none."""
        self._deadlines.pop(key, None)

    def clear(self) -> None:
        """Take every deadline away."""
        self._deadlines.clear()
        self._heap.clear()
        self._queued.clear()

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest deadline, or None."""
        heap = self._heap
        while heap:
            at, _, key = heap[0]
            deadline = self._deadlines.get(key)
            if deadline == at:
                return at
            heappop(heap)
            if self._queued.get(key) == at:
                del self._queued[key]
                if deadline is not None:
                    self._push(key, deadline)
        return None

    def pop_due(self, now_ms: int) -> Key | None:
        """The key of the earliest deadline that is not after `now_ms`, whose deadline is thereby gone; None if there is none."""
        at = self.next_deadline_ms
        if at is None or at > now_ms:
            return None
        _, _, key = heappop(self._heap)
        self._queued.pop(key, None)
        del self._deadlines[key]
        return key

    def _push(self, key: Key, deadline_ms: int) -> None:
        self._sequence += 1
        self._queued[key] = deadline_ms
        heappush(self._heap, (deadline_ms, self._sequence, key))
