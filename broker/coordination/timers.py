"""Deadlines by key, for state machines that receive the time. No clock, no callbacks."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """A set of keys with one deadline each, in ms of any one clock.

    Postponing a deadline, which every heartbeat does, costs one dictionary write: the heap holds one entry per key, which may be
    too early and is corrected when it comes up.
    """

    __slots__ = ("_deadlines", "_heap", "_queued", "_sequence")

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        """All and only the keys that have a deadline."""
        self._heap: list[tuple[int, int, Key]] = []
        """At least one entry for each key with a deadline, not later than the deadline. The number keeps keys from being
        compared."""
        self._queued: dict[Key, int] = {}
        """The key's earliest entry in the heap."""
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def set(self, key: Key, deadline_ms: int) -> None:
        """Set the deadline of `key`, in place of an earlier one."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._push(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._deadlines.pop(key, None)

    def clear(self) -> None:
        """Remove all deadlines."""
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
        """The key of the earliest deadline not after `now_ms`, and remove that deadline; None if there is none."""
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
