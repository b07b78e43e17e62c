"""What a plan says about partitions that are in the topic, and what a compacted topic refuses. No Spark.

A mismatch means that a user does not learn that a loaded day differs from its source or its declaration, or that records without a
key enter a topic that keeps only the newest one of each key.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.client.types import ConfigEntry
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.planning import make_plan
from headgate.pipelines.floods.spans import gate_id, span_of
from headgate.pipelines.floods.standing import Held, Topic, check_topic
from headgate.pipelines.identity import parts_of
from headgate.pipelines.spark_errors import spark_errors
from headgate.pipelines.topic_rules import TopicRules, check_keys, check_rules, rules_of
from tests.support.errors import raises
from tests.support.floods import flood

NOW = datetime(2026, 1, 5, tzinfo=UTC)
DAY = "2026-01-01"


def write(path: Path, rows: int) -> None:
    times = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=row) for row in range(rows)]
    pq.write_table(pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "user": list(map(str, range(rows)))}), path)


def topic(one: Flood, rows: int) -> Topic:
    """A topic that has the first day of a flood."""
    parts = parts_of(job_of(one, span_of(one.partitions, DAY), cluster="", partitions=1).definition())
    return Topic(partitions=1, live=0, room=0, gates=(Held(gate_id(one, DAY), "filled", rows, parts),))


def notes(one: Flood, there: Topic) -> str:
    return "\n".join(make_plan(one, [DAY], there, NOW, deadline=NOW + timedelta(hours=1)).notes)


def test_a_plan_of_a_loaded_day_says_what_changed_since(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 10)
    one = flood(str(tmp_path), key="user")
    there = topic(one, 10)
    assert notes(one, there) == ""
    changed = notes(replace(one, key=None, value="user"), there)
    assert changed.startswith("these partitions were loaded when the flood was declared differently, and stay as they are:")
    assert f"partitions=`{DAY}` count=`1` differs=`key, value`" in changed
    write(tmp_path / "b.parquet", 3)
    assert f"rows=`{DAY}: 3` partitions=`1`" in notes(one, there) and "declare `late`" in notes(one, there)
    (tmp_path / "a.parquet").unlink()
    assert "the source has fewer rows than were loaded. The topic keeps them." in notes(one, there)


@pytest.mark.parametrize(
    ("policy", "found"), [("compact", True), ("delete", False), ("delete,compact", True), ("compact, delete", True)]
)
def test_a_topic_that_is_compacted(policy: str, found: bool) -> None:
    entry = ConfigEntry(name="cleanup.policy", value=policy, is_default=False, documentation="")
    assert rules_of([entry]) == TopicRules(compacted=found) and rules_of([]) == TopicRules()


def test_a_compacted_topic_takes_no_rows_without_a_key() -> None:
    compacted = replace(topic(flood(), 0), rules=TopicRules(compacted=True))
    with pytest.raises(InvalidError, match="a compacted topic takes no records without a key: name one"):
        check_topic(flood(), compacted)
    check_topic(flood(key="user"), compacted)
    check_keys("t", "user")
    with raises(InvalidError, Reason.INVALID_RECORD, "key=`user` rows=`3`"):
        check_keys("t", "user", 3)


def test_a_topic_whose_records_have_the_time_of_their_append_takes_no_event_times() -> None:
    entry = ConfigEntry(name="message.timestamp.type", value="LogAppendTime", is_default=False, documentation="")
    rules = rules_of([entry])
    with raises(InvalidError, Reason.INVALID_CONFIG, "LogAppendTime takes no records with times of their own"):
        check_topic(flood(), replace(topic(flood(), 0), rules=rules))
    check_rules("t", rules, "user", None)
    check_rules("t", rules_of([replace(entry, value="CreateTime")]), "user", "at")


@pytest.mark.parametrize(
    "text",
    [
        "Job aborted due to stage failure: Master removed our application: FAILED",
        "Cannot call methods on a stopped SparkContext.",
        "Job 3 cancelled because SparkContext was shut down",
    ],
)
def test_a_session_that_its_cluster_ended_says_where_the_cause_is(text: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(RetryError) as caught, spark_errors("the flood failed."):
        raise PySparkException(text)
    assert "its executors could not start, or its master is gone" in caught.value.message and text in caught.value.message
