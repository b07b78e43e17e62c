"""When a flood comes: Dagster's schedule of a cron expression, and the sensor that raises brokers ahead and starts fixed times."""

# Dagster reads annotations at run time, so they are not postponed here.
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from headgate.assets.owners import HOLD_UNTIL_TAG, OCCURRENCE_TAG, occurrence_id
from headgate.assets.resources import ClusterResource
from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.run import filled_keys
from headgate.pipelines.floods.spans import Occurrence, last_occurrence, newest_key, occurrences

EXPECT_EVERY_S = 30
LOOK_BACK = timedelta(hours=1)
"""Longest delay of a flood at a fixed time, in seconds, when Dagster was down at that time."""


def schedule_of(flood: Flood, job: Any) -> dg.ScheduleDefinition | None:
    """The schedule of a flood with a cron expression. `job`: the whole flood."""
    if flood.occurrences.cron is None:
        return None

    @dg.schedule(
        name=f"{flood.name}_schedule",
        job=job,
        cron_schedule=flood.occurrences.cron.text,
        execution_timezone=flood.occurrences.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"The flood `{flood.name}` at its times.",
    )
    def flood_schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        at = context.scheduled_execution_time.astimezone(UTC)
        # Dagster's tick decides, not our cron: they differ when the clock changes to or from summer time.
        partition = newest_key(flood.partitions, at)
        if partition is None:
            yield dg.SkipReason("no partition is over yet")
            return
        if (last := last_occurrence(flood)) is not None and at > last:
            yield dg.SkipReason(f"the last partition was due at {last.isoformat()}")
            return
        yield dg.RunRequest(
            run_key=Occurrence(at, partition).run_key(flood.name, "start"),
            partition_key=partition,
            tags={OCCURRENCE_TAG: occurrence_id(at)},
        )

    return flood_schedule


def expected_sensors(flood: Flood) -> list[dg.SensorDefinition]:
    """The sensors of a flood that comes at known times: one raises brokers ahead, one starts floods at fixed times."""
    found = []
    if flood.occurrences.cron is not None or flood.occurrences.at:
        text = f"Raises brokers {flood.lead_time_ms / 60_000:g} minutes ahead of the flood `{flood.name}`."
        found.append(_sensor(flood, "expected", f"{flood.name}_prepare", text))
    if flood.occurrences.at:
        found.append(_sensor(flood, "due", f"{flood.name}_flood", f"Starts the flood `{flood.name}` at its fixed times."))
    return found


def _sensor(flood: Flood, name: str, job: str, description: str) -> dg.SensorDefinition:
    """A sensor that launches the expected runs of one job. (By its name: Dagster warns about itself when it copies a sensor.)"""

    @dg.sensor(
        name=f"{flood.name}_{name}",
        job_name=job,
        minimum_interval_seconds=EXPECT_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def expected(context: dg.SensorEvaluationContext, cluster: ClusterResource) -> Iterator[dg.RunRequest | dg.SkipReason]:
        now = datetime.now(UTC)
        due = {run.partition_key for run in expected_runs(flood, now) if run.job_name == job and run.partition_key is not None}
        if not due:
            return
        try:
            loaded = filled_keys(flood, sorted(due), cluster.gates(flood.topic))
        except HeadgateError as error:
            yield dg.SkipReason(f"the cluster does not say which partitions are loaded: {error.message}")
            return
        if loaded == due:
            yield dg.SkipReason(f"in the topic already: {', '.join(sorted(loaded))}")
        yield from (run for run in expected_runs(flood, now, loaded) if run.job_name == job)

    return expected


def expected_runs(flood: Flood, now: datetime, loaded: Collection[str] = ()) -> list[dg.RunRequest]:
    """The runs that are due: preparations of floods within the lead time, and floods whose fixed time has come; none for loaded
    partitions.

    The same occurrence always yields the same run keys, and Dagster starts each once. Dagster's scheduler starts floods of a
    cron schedule.
    """
    requests = []
    for occurrence in occurrences(flood, now - LOOK_BACK, now + timedelta(milliseconds=flood.lead_time_ms), loaded):
        tags = {OCCURRENCE_TAG: occurrence_id(occurrence.at)}
        if occurrence.at > now:
            requests.append(
                dg.RunRequest(
                    run_key=occurrence.run_key(flood.name, "prepare"),
                    job_name=f"{flood.name}_prepare",
                    partition_key=occurrence.partition,
                    tags={**tags, HOLD_UNTIL_TAG: occurrence.at.isoformat()},
                )
            )
        elif flood.occurrences.cron is None:
            requests.append(
                dg.RunRequest(
                    run_key=occurrence.run_key(flood.name, "start"),
                    job_name=f"{flood.name}_flood",
                    partition_key=occurrence.partition,
                    tags=tags,
                )
            )
    return requests
