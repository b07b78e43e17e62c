"""The progress of a flood: its phases, and the rows that Spark's tasks have handled so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Phase(StrEnum):
    """The phases of a flood, in their order."""

    COUNTING = "counting"
    OPENING = "opening"
    SHUFFLING = "shuffling"
    WRITING = "writing"
    COMMITTING = "committing"
    VERIFYING = "verifying"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One snapshot. `rows_total` is 0 while unknown; `rows_done` counts the rows of this phase."""

    phase: Phase
    rows_done: int = 0
    rows_total: int = 0
    message: str = ""


Listener: TypeAlias = Callable[[Progress], None]
