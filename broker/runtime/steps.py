"""Work in small steps: a generator that yields before each step and returns the result.

Pure code (a decoder, an encoder) yields where it may be interrupted, and does not depend on the event loop. `turns.py` runs
steps on the loop; `finish` runs them at once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[int, None, T]
"""Each yield gives the number of elements that the next step handles; the generator returns the result."""


def finish(steps: Steps[T]) -> T:
    """Run steps to their end at once. For small work, and for code outside of the event loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
