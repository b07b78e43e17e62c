"""A source of a flood, as its tasks on columns read it."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.pipelines.columns.expressions import Query
from headgate.pipelines.columns.layout import Piece
from headgate.pipelines.columns.lines import Lines
from headgate.pipelines.columns.task_division import Limits


@dataclass(frozen=True, slots=True)
class Source:
    """A source that can be read on columns."""

    query: Query
    has_key: bool
    pieces: tuple[Piece, ...]
    limits: Limits
    lines: Lines | None = None
    snapshot: str = ""
    """Of an Iceberg table, for certificates."""

    @property
    def ties(self) -> tuple[str, ...]:
        """The outputs that order records of equal times."""
        return tuple(name for name in self.query.outputs if name.startswith("_tie_"))
