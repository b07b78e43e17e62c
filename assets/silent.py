"""Runs of floods whose process is gone without a word: Dagster counts them as started, and they keep their topic's queue closed.

Dagster notices the death of a run's process only while the code server that started it lives. After the end of a machine or of a
container with both, a run stays `STARTED` until `max_runtime_seconds`, a day, and no other flood of its topic starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import dagster as dg
from dagster import DagsterInstance

from headgate.assets.names import topic_key
from headgate.pipelines.floods.model import Flood

SILENT_S = 600.0
"""A run without a line in its log for this long, in seconds, has no process any more: a flood reports every 5 s, and a starved
machine delays that by seconds."""


def end_silent(instance: DagsterInstance, floods: Sequence[Flood], now: datetime) -> list[str]:
    """Mark silent runs of floods as failed: they are retried, and their topic's queue goes on. Returns the actions as text."""
    done = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
        run = record.dagster_run
        if not any(_loads_only(flood, run) for flood in floods):
            continue
        newest = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
        spoke_s = newest[0].timestamp if newest else record.start_time or record.create_timestamp.timestamp()
        silence_s = now.timestamp() - spoke_s
        if silence_s > SILENT_S:
            instance.report_run_failed(
                run,
                f"The run has said nothing for {silence_s / 60:.0f} minutes: its process has ended with its machine or container. "
                "Brokers and gates that it held are given back; a retry adds nothing twice.",
            )
            done.append(f"run {run.run_id} is over: it said nothing for {silence_s / 60:.0f} minutes")
    return done


def _loads_only(flood: Flood, run: dg.DagsterRun) -> bool:
    """True if a run has no steps but a flood's: those of other assets may be silent for as long as they like."""
    return run.job_name == f"{flood.name}_flood" or run.asset_selection == {topic_key(flood)}
