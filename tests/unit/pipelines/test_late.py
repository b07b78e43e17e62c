"""Rows that came late are added only if they are exactly those that the topic lacks."""

from __future__ import annotations

import pytest

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.late import Loaded, missing
from headgate.pipelines.part import Part
from headgate.pipelines.spark_rows import Counts

LATE = Counts((2, 1), 1, 5, 9)


def test_late_rows_are_those_that_the_topic_lacks() -> None:
    assert missing(Loaded(Part(), 10), 13, LATE, "f") is LATE
    assert missing(Loaded(Part(), 13), 13, LATE, "f") == Counts((0, 0), 0, None, None), "an earlier run added them"


@pytest.mark.parametrize(("source", "lacking"), [(12, 2), (14, 4), (9, -1)])
def test_other_rows_are_refused(source: int, lacking: int) -> None:
    with pytest.raises(InvalidError, match=f"late=`3` missing=`{lacking}` source=`{source}` loaded=`10` flood=`f`"):
        missing(Loaded(Part(), 10), source, LATE, "f")
