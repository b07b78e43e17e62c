"""A partition of a flood as a backfill: which rows, from where, under which gate."""

from __future__ import annotations

from headgate.broker.client.gate_admin import Place
from headgate.pipelines.backfill import Backfill
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan, gate_id, predicate, source_path


def job_of(flood: Flood, span: TimeSpan, cluster: str, partitions: int) -> Backfill:
    """A partition of a flood, as a backfill."""
    return Backfill(
        cluster=cluster,
        topic=flood.topic,
        source=source_path(flood, span),
        format=flood.source.format,
        options=flood.source.options,
        key=flood.key,
        value=flood.value,
        event_time=flood.event_time,
        where=predicate(flood, span),
        flood_id=gate_id(flood, span.key),
        place=Place(flood.place),
        partitions=partitions,
        ttl_ms=flood.gate_ttl_ms,
        verify=flood.verify,
    )
