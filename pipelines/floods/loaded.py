"""What a plan says about partitions that are in the topic: they stay as they are, even if the flood or its source changed."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.measure import can_count, look
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.otherwise import changed_since, declared_otherwise
from headgate.pipelines.floods.spans import gate_id, spans_of
from headgate.pipelines.floods.standing import Topic, loaded_rows

COMPARED_MAX = 31
"""Loaded partitions whose source a plan looks at, the newest ones: the asset's check looks at all partitions of its run."""


def notes_of_loaded(flood: Flood, keys: Collection[str], topic: Topic | None, now: datetime) -> list[str]:
    """What changed since these partitions were loaded: the flood's declaration, or the rows of the source.

    Args:
        keys: of partitions that are in the topic.
    """
    if topic is None or not keys:
        return []
    spans = spans_of(flood.partitions, sorted(keys))
    held = {gate.id: gate.definition for gate in topic.gates}
    differs: dict[str, list[str]] = {}
    for span in spans:
        ours = job_of(flood, span, cluster="", partitions=1).identity()
        if parts := ours.differs_from(held[gate_id(flood, span.key)]):
            differs.setdefault(", ".join(parts), []).append(span.key)
    notes = declared_otherwise(differs)
    if can_count(flood):
        try:
            sizes = look(flood, spans[-COMPARED_MAX:], now, skip_missing=True).sizes
        except HeadgateError as error:
            return [*notes, f"partitions in the topic are not compared with the source: {error.message}"]
        notes += changed_since(
            {key: loaded_rows(flood, key, topic) for key in keys}, {size.key: size for size in sizes if size.exact}
        )
    return notes
