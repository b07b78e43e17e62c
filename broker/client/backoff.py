"""Pauses between attempts."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Pauses that double from `first_s` to `longest_s`, each shortened by up to half at random, so that clients spread out."""

    def __init__(self, first_s: float = 0.05, longest_s: float = 1.0, uniform: Callable[[], float] = random.random) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._uniform = uniform
        self._next_s = first_s

    def pause_s(self) -> float:
        """The pause before the next attempt, in seconds."""
        pause = self._next_s * (1 - self._uniform() / 2)
        self._next_s = min(self._next_s * 2, self._longest_s)
        return pause

    def reset(self) -> None:
        """Start again at the shortest pause: an attempt succeeded."""
        self._next_s = self._first_s
