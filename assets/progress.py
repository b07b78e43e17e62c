"""Progress lines in a run's log: often enough to follow, rarely enough to read."""

from __future__ import annotations

import time
from collections.abc import Callable

SAY_S = 5.0
"""Shortest pause between two lines about one subject, in seconds."""


def throttled(say: Callable[[str], None], every_s: float = SAY_S) -> Callable[[str, str], None]:
    """Wrap `say`: passes on a text when its subject changes, and otherwise at most once per interval."""
    last: dict[str, float] = {}

    def tell(subject: str, text: str) -> None:
        now = time.monotonic()
        if now - last.get(subject, -every_s) >= every_s:
            last[subject] = now
            say(text)

    return tell
