"""Counts of large partitions by Spark's tasks, before brokers are reserved. The load takes them if the source is unchanged."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from headgate.assets.owners import HOLD_UNTIL_TAG
from headgate.assets.progress import Follower
from headgate.assets.resources import SparkResource
from headgate.assets.steps import Run, check_deadline, past_runs
from headgate.pipelines.floods.plan import Plan, forecast
from headgate.pipelines.floods.spans import span_of

COUNT_BYTES_MIN = 256 << 20
"""Small partitions are only counted by the load: a count ahead looks at the source twice."""


def count_ahead(run: Run, spark: SparkResource, plan: Plan, follow: Follower) -> Plan:
    """Count the large partitions of a plan, as the load would do while brokers wait. Returns the plan with these exact numbers.
    The counts and the plan are kept with the run.

    A run that only raises brokers leaves the count to the flood's own run. Raises HeadgateError: the source cannot be counted, or
    the deadline cannot be kept.
    """
    flood = run.flood
    # A partition that is in the topic is not counted again, and of its late rows only the load knows which ones are missing.
    large = [one.key for one in plan.partitions if one.size_bytes >= COUNT_BYTES_MIN and not one.loaded]
    if not large or HOLD_UNTIL_TAG in run.context.run.tags:
        return plan
    topic = run.topic()
    partitions = flood.topic_partitions if topic is None else topic.partitions
    if partitions is None:
        return plan
    rows: dict[str, int] = {}
    for number, key in enumerate(large, 1):
        text = f"counting {key} ({number} of {len(large)})"
        follow.at("counting", lambda seconds, text=text: f"{text}: {seconds:.0f} s so far")  # type: ignore[misc]
        found = spark.count(flood, span_of(flood.partitions, key), partitions)
        if found is None:
            run.say(f"{key} is counted when it is loaded: only Spark's rows can do it, or its count is too large to keep")
            continue
        rows[key], count = found
        run.kept.keep_count(key, count)
    if not rows:
        return plan
    now = datetime.now(UTC)
    sizes = [replace(one, rows=rows[one.key], exact=True) if one.key in rows else one for one in plan.partitions]
    new = forecast(flood, sizes, past_runs(run), now, plan.deadline)
    made = replace(
        plan,
        partitions=new.partitions,
        rows=new.rows,
        exact=new.exact,
        brokers=new.brokers,
        seconds=new.seconds,
        broker_seconds=new.broker_seconds,
        basis=new.basis,
    )
    run.kept.keep_plan(made)
    check_deadline(made, now)
    return made
