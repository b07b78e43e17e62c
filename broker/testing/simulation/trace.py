"""The ordered events of a run. They prove that two runs of one seed are the same, and they explain a seed that failed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TextIO


class Trace:
    """Events of one run.

    Args:
        time: the virtual time, s.
        out: events are written here as they happen, or None.
    """

    def __init__(self, time: Callable[[], float], out: TextIO | None = None) -> None:
        self._time = time
        self._out = out
        self._events: list[tuple[object, ...]] = []

    def __len__(self) -> int:
        return len(self._events)

    def __call__(self, who: object, what: str, *details: object) -> None:
        self._events.append((self._time(), str(who), what, details))
        if self._out is not None:
            self.note(who, what, *details)

    def note(self, who: object, what: str, *details: object) -> None:
        """Print a line that is no part of the digest."""
        if self._out is not None:
            text = " ".join(str(detail) for detail in details)
            self._out.write(f"{self._time() - 1000:9.4f} {who!s:12} {what:20} {text}\n")

    def digest(self) -> str:
        """A hash of all events: equal for equal runs."""
        return hashlib.blake2b(repr(self._events).encode(), digest_size=16).hexdigest()
