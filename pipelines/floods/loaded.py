"""What a plan says about partitions that are in the topic: they stay as they are, even if the flood or its source changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.measure import can_count, look
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import SAID_MAX, PartitionSize
from headgate.pipelines.floods.spans import gate_id, spans_of
from headgate.pipelines.floods.standing import Topic, loaded_rows, parts_of

COMPARED_MAX = 31
"""Loaded partitions whose source a plan looks at, the newest ones: the asset's check looks at all partitions of its run."""
_LATE = (
    "the source has rows that came after their partition was loaded, and they are not in the topic. To add them, declare `late` "
    "with a condition that only they meet, and load their partition again."
)
_GONE = "the source has fewer rows than were loaded. The topic keeps them."


def notes_of_loaded(flood: Flood, keys: Collection[str], topic: Topic | None, now: datetime) -> list[str]:
    """What changed since these partitions were loaded: the flood's declaration, or the rows of the source.

    Args:
        keys: of partitions that are in the topic.
    """
    if topic is None or not keys:
        return []
    spans = spans_of(flood.partitions, sorted(keys))
    held = {one.id: one.definition for one in topic.gates}
    differs: dict[str, list[str]] = {}
    for span in spans:
        ours = parts_of(job_of(flood, span, cluster="", partitions=1).definition())
        if parts := sorted({name for name, _ in ours.items() ^ held[gate_id(flood, span.key)].items()}):
            differs.setdefault(", ".join(parts), []).append(span.key)
    notes = declared_otherwise(differs)
    if can_count(flood):
        try:
            sizes = look(flood, spans[-COMPARED_MAX:], now, skip_missing=True).sizes
        except HeadgateError as error:
            return [*notes, f"partitions in the topic are not compared with the source: {error.message}"]
        notes += changed_since({key: loaded_rows(flood, key, topic) for key in keys}, {one.key: one for one in sizes if one.exact})
    return notes


def declared_otherwise(differs: Mapping[str, Sequence[str]]) -> list[str]:
    """Messages about partitions that were loaded under another definition of the flood, by the names of its parts that differ."""
    return [
        "in the topic under another definition of the flood, and left as they are. "
        f"partitions=`{', '.join(short_keys(keys))}` count=`{len(keys)}` differs=`{parts}`"
        for parts, keys in differs.items()
    ]


def short_keys(keys: Sequence[str]) -> list[str]:
    """Keys of partitions, few enough for one line."""
    return list(keys) if len(keys) < 3 else [f"{keys[0]} ... {keys[-1]}"]


def changed_since(rows: Mapping[str, int], counted: Mapping[str, PartitionSize]) -> list[str]:
    """Messages about partitions whose source now has more or fewer rows than were loaded.

    Args:
        rows: what was loaded, by key.
    """
    changed: dict[str, list[str]] = {}
    for key, size in sorted(counted.items()):
        if size.rows != rows.get(key, 0):
            what = _LATE if size.rows > rows.get(key, 0) else _GONE
            changed.setdefault(what, []).append(f"{key}: {abs(size.rows - rows.get(key, 0))}")
    return [f"{what} rows=`{', '.join(each[:SAID_MAX])}` partitions=`{len(each)}`" for what, each in changed.items()]
