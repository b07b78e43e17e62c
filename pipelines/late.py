"""Rows that came after their partition was loaded: they enter the topic as a flood of their own, if they are exactly the rows that
the topic lacks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.part import Part
from headgate.pipelines.spark_rows import Counts


@dataclass(frozen=True, slots=True)
class Loaded:
    """A part of a source that is in the topic: `rows` of those in `part`."""

    part: Part
    rows: int


def missing(loaded: Loaded, source_rows: int, late: Counts, flood_id: str) -> Counts:
    """The late rows, or no rows when the topic lacks none.

    Args:
        source_rows: rows of the partition at its source, with the late ones.
        late: the rows that meet the flood's condition of late rows.

    Raises:
        InvalidError: they are other rows than those that the topic lacks.
    """
    lacking = source_rows - loaded.rows
    if lacking == 0:
        return Counts((0,) * len(late.rows), 0, None, None)
    if late.total != lacking:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "the late rows are not those that the topic lacks: `late` must select exactly the rows that came after the partition "
            f"was loaded. late=`{late.total}` missing=`{lacking}` source=`{source_rows}` loaded=`{loaded.rows}` "
            f"flood=`{flood_id}`",
        )
    return late
