"""Messages about a flood while Spark runs it: about expressions that do not fit its source, and about its progress.

Compared: messages. A mismatch means that a user gets a message about an expression that is not in the file of floods, or no
message.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from headgate.assets.spark import gates_ahead, own_words
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.model import Source
from headgate.pipelines.floods.spans import TimeSpan, span_of, spans_of
from tests.support.floods import flood

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("event_time", "where", "text"),
    [
        ("clicked", None, "event time is no expression of this source. event_time=`clicked` columns=`at, n, its time`"),
        ("n", None, "event time must be timestamp or date: to_timestamp(...) makes one of text, timestamp_millis(...) of numbers."),
        ("its time", None, "event time is a column whose name is no word: it needs backquotes around it. event_time=`its time`"),
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
    with pytest.raises(InvalidError) as caught, own_words(spark, declared, job):
        job.rows(spark, now_ms=0)
    assert caught.value.message.startswith(text)


def test_who_waits_for_many_gates_is_told_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = flood()
    days = [f"2026-01-0{day}" for day in range(1, 10)]
    now = 0.0

    def count(span: TimeSpan) -> bool:
        nonlocal now
        now += 2
        return False

    monkeypatch.setattr("headgate.assets.progress.time", SimpleNamespace(monotonic=lambda: now))
    said: list[str] = []
    gates_ahead(declared, spans_of(declared.partitions, days), count, said.append)
    assert [text.split(":")[0] for text in said] == ["2026-01-01 (1 of 9)", "2026-01-04 (4 of 9)", "2026-01-07 (7 of 9)"]
