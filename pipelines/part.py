"""The rows of a source that a partition of a flood is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows that meet all `conditions`, and whose event time is in `span` [start, end). `span` None: at any time."""

    conditions: tuple[str, ...] = ()
    span: tuple[datetime, datetime] | None = None

    def bounds(self) -> tuple[str, str] | None:
        """Start and end of the span as Spark SQL."""
        if self.span is None:
            return None
        start, end = (f"timestamp '{at:%Y-%m-%d %H:%M:%S}+00:00'" for at in self.span)
        return start, end

    def text(self, event_time: str | None, where: str | None = None) -> str | None:
        """The part, and another condition `where`, as one condition, for the digest that a gate keeps; never for Spark, which may
        need quotes around a name. The text of one part never changes: a loaded gate would seem to be another flood's."""
        conditions = [f"({condition})" for condition in ((where,) if where else ()) + self.conditions]
        if (bounds := self.bounds()) is not None:
            column = event_time if event_time and event_time.isidentifier() else f"({event_time})"
            conditions.append(f"{column} >= {bounds[0]} and {column} < {bounds[1]}")
        return " and ".join(conditions) or None
