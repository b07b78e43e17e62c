"""The source of a flood as an external asset: observed rows, bytes and age of its newest partitions."""

# Dagster reads annotations at run time, so they are not postponed here.
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from headgate.assets.metadata import number, size_metadata
from headgate.assets.names import source_key
from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan, newest_key, span_of

LOOK_EVERY_S = 60
LOOK_PARTITIONS = 3
"""Newest partitions that are over and are observed: late files of an older partition are the business of a check."""


def source_asset(flood: Flood, partitions: dg.PartitionsDefinition[str]) -> dg.AssetSpec | None:
    """The asset of a flood's source; None when assets of Dagster write it."""
    key = source_key(flood)
    if key is None:
        return None
    kind = flood.source.format.lower()
    return dg.AssetSpec(
        key,
        partitions_def=partitions,
        group_name=flood.asset.group or flood.name,
        kinds={kind, "s3"} if flood.source.path.startswith(("s3://", "s3a://")) else {kind},
        owners=list(flood.asset.owners),
        description=f"The source of the topic `{flood.topic}`: `{flood.source.path}`. A sensor observes its newest partitions.",
        metadata={"path": flood.source.path},
    )


def source_sensor(flood: Flood) -> dg.SensorDefinition | None:
    """The sensor that observes a flood's source; None without an asset of its own."""
    key = source_key(flood)
    if key is None:
        return None

    @dg.sensor(
        name=f"{flood.name}_source_watch",
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Observes rows, bytes and age of the newest {LOOK_PARTITIONS} partitions of `{flood.source.path}`.",
    )
    def source_watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            before = json.loads(context.cursor or "{}")
        except ValueError:
            before = {}
        now = datetime.now(UTC)
        events, cursor, problems = observations(flood, key, before, now)
        if not events and cursor == before:
            return dg.SkipReason("; ".join(problems) or "the newest partitions are as before")
        return dg.SensorResult(asset_events=events, cursor=json.dumps(cursor))

    return source_watch


def observations(
    flood: Flood, key: dg.AssetKey, before: Mapping[str, Any], now: datetime
) -> tuple[list[dg.AssetObservation], dict[str, Any], list[str]]:
    """Observe the newest partitions of a source.

    Args:
        before: the files that were seen last time, by partition.

    Returns:
        Observations of the partitions whose files changed; the files that are seen now; and why partitions cannot be read.
    """
    from headgate.pipelines.floods.measure import listing, measure

    events: list[dg.AssetObservation] = []
    seen: dict[str, Any] = {}
    problems: list[str] = []
    for span in newest_spans(flood, now):
        try:
            files = listing(flood, span)
            seen[span.key] = [files.files, files.size_bytes, files.modified.timestamp()]
            if seen[span.key] == before.get(span.key):
                continue
            (size,) = measure(flood, [span], now)
        except HeadgateError as error:
            problems.append(f"{span.key}: {error.message}")
            continue
        if size.rows == 0:
            continue
        events.append(
            dg.AssetObservation(
                key,
                partition=span.key,
                metadata={
                    **size_metadata(size),
                    "files": files.files,
                    "age (hours)": number((now - files.modified).total_seconds() / 3600),
                    "dagster/last_updated_timestamp": dg.MetadataValue.timestamp(files.modified),
                },
            )
        )
    return events, seen, problems


def newest_spans(flood: Flood, now: datetime) -> Sequence[TimeSpan]:
    """The newest partitions that are over, oldest first."""
    spans: list[TimeSpan] = []
    at = now
    while len(spans) < LOOK_PARTITIONS and (key := newest_key(flood.partitions, at)) is not None:
        span = span_of(flood.partitions, key)
        spans.insert(0, span)
        # The partition before it is the newest one just before this one is over.
        at = span.end - timedelta(seconds=1)
    return spans
