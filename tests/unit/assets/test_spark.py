"""Messages about a flood while Spark runs it: about expressions that do not fit its source, and about its progress.

Compared: messages. A mismatch means that a user gets a message about an expression that is not in the file of floods, or no
message.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.loading import gates_ahead
from headgate.pipelines.floods.model import Source
from headgate.pipelines.floods.spans import TimeSpan, span_of, spans_of
from headgate.pipelines.follower import Follower
from tests.support.floods import flood

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("event_time", "where", "text"),
    [
        ("clicked", None, "event time is no expression of this source. event_time=`clicked` columns=`at, n, its time`"),
        (
            "n",
            None,
            "event time must be timestamp or date: to_timestamp(...) makes one of text, timestamp_millis(...) of numbers, ",
        ),
        (
            "user",
            None,
            "`user` is no column of this source, and a function needs its brackets: `user()` is the same for every record.",
        ),
        ("at", "n > > 1", "where is not a condition on this source. where=`n > > 1` spark="),
    ],
)
def test_a_mistake_is_told_in_the_words_of_the_flood(
    spark: SparkSession, tmp_path: Path, event_time: str, where: str | None, text: str
) -> None:
    (tmp_path / "a.csv").write_text("at,n,its time\n2026-01-01T00:00:00Z,1,2026-01-01T00:00:00Z\n")
    source = Source(path=str(tmp_path), format="csv", options={"header": "true", "inferSchema": "true"})
    declared = flood(source=source, event_time=event_time, where=where)
    job = job_of(declared, span_of(declared.partitions, "2026-01-01"), "127.0.0.1:1", 1)
    with pytest.raises(InvalidError) as caught:
        job.rows(spark, now_ms=0)
    assert caught.value.message.startswith(text)


def test_the_line_about_gates_names_the_day_that_is_counted() -> None:
    declared = flood()
    days = [f"2026-01-0{day}" for day in range(1, 4)]
    lines: list[str] = []
    said: list[str] = []
    with Follower(said.append) as follow:

        def count(span: TimeSpan) -> bool:
            lines.append(follow.line(7.0))
            return span.key != days[1]

        gates_ahead(declared, spans_of(declared.partitions, days), count, follow)
    assert lines == [f"counting {day} ({number} of 3), for its gate: 7 s so far" for number, day in enumerate(days, 1)]
    assert said[-1] == "gates open: 2; readers from the beginning wait for them, nobody else does"
