"""A partition of a flood as a backfill: which rows, from where, under which gate."""

from __future__ import annotations

from dataclasses import replace

from headgate.broker.client.gate_admin import Place
from headgate.pipelines.backfill import Backfill
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan, gate_id, part_of, source_path
from headgate.pipelines.late import Loaded


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
        key_frame=flood.key_frame,
        value_frame=flood.value_frame,
        event_time=flood.event_time,
        headers=flood.headers,
        part=part_of(flood, span),
        flood_id=gate_id(flood, span.key, late=span.late),
        late_behind=Loaded(part_of(flood, replace(span, late=False)), span.loaded) if span.late else None,
        place=Place(flood.place),
        partitions=partitions,
        files=flood.files,
        order=flood.order,
        ttl_ms=flood.gate_ttl_ms,
        verify=flood.verify,
    )
