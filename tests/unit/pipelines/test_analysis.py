"""Mistakes in expressions that Spark's analysis finds, on the schema of Parquet and on the first rows of CSV and JSON.

A mismatch means that such a mistake raises brokers and fails after minutes, or that a good flood is refused.
"""

# Rows of a table of messages are as long as the messages.
# ruff: noqa: E501

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.floods.analysis import analyse
from headgate.pipelines.floods.model import Flood, Source
from headgate.pipelines.floods.spans import span_of
from tests.support import floods

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = "2026-01-01"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One day as Parquet, as CSV below a directory that is a column, and as JSON."""
    place = tmp_path_factory.mktemp("lake") / DAY
    for kind in ("parquet", "csv/country=de", "json"):
        (place / kind).mkdir(parents=True)
    times = pa.array([datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(3)], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"at": times, "user_id": ["u", "v", "w"], "amount": [1, 2, 3]}), place / "parquet" / "a.parquet")
    (place / "csv" / "country=de" / "a.csv").write_text("at,user_id\n01.01.2026 06:00,u\n")
    (place / "json" / "a.json").write_text('{"at": "2026-01-01 06:00:00", "user": {"id": 7}}\n')
    return place.parent


def flood(lake: Path, kind: str, **changes: Any) -> Flood:
    source = Source(path=f"{lake}/%Y-%m-%d/{kind}", format=kind, options={"header": "true"} if kind == "csv" else {})
    usual = {"parquet": "at", "csv": "to_timestamp(at, 'dd.MM.yyyy HH:mm')", "json": "to_timestamp(at)"}
    return floods.flood(source=source, **{"event_time": usual[kind], **changes})


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("parquet", {"key": "concat(userid, 'x')"}, "key is no expression of this source. key=`concat(userid, 'x')` columns=`at, user_id, amount`"),
        ("parquet", {"key": "concat(user_id, 'x'"}, "key is no expression of this source. key=`concat(user_id, 'x'`"),
        ("parquet", {"event_time": "amount + 1"}, "event time must be timestamp or date: to_timestamp(...) makes one of text, timestamp_millis(...) of numbers"),
        ("parquet", {"where": "amount > > 1"}, "where is not a condition on this source. where=`amount > > 1`"),
        ("parquet", {"late": "arrived > 1"}, "late: where is not a condition on this source. where=`arrived > 1`"),
        ("parquet", {"value": "array(user_id, at)"}, "value"),
        ("csv", {"event_time": "to_timestamp(at)"}, "the expressions fail on the first rows of the source. spark=`[CAST_INVALID_INPUT]"),
        ("csv", {"event_time": "try_to_timestamp(at)"}, "event time is null in all of the first rows: is the form of its text another one? event_time=`try_to_timestamp(at)` rows=`1`"),
        ("json", {"key": "user.number"}, "key is no expression of this source. key=`user.number` columns=`at, user`"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_expression(spark: SparkSession, lake: Path, kind: str, changes: dict[str, Any], message: str) -> None:
    one = flood(lake, kind, **changes)
    with pytest.raises(InvalidError) as caught:
        analyse(spark, one, span_of(one.partitions, DAY))
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("parquet", {"key": "concat(user_id, amount)", "where": "amount > 1", "late": "amount = 3"}),
        ("csv", {"key": "concat(country, user_id)", "where": "country = 'de'"}),
        ("json", {"key": "user.id"}),
    ],
)
def test_expressions_that_fit(spark: SparkSession, lake: Path, kind: str, changes: dict[str, Any]) -> None:
    one = flood(lake, kind, **changes)
    analyse(spark, one, span_of(one.partitions, DAY))
