"""The parts of the page that follow from the manifest: every broker can make them, with or without a leader."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from headgate.broker.cluster import gates as gate_rules
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.objects import Topic as StoredTopic
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.cluster.topic_config import INTERNAL_TOPICS, is_internal
from headgate.broker.runtime.turns import Turn
from headgate.broker.server.view import model

Uploaded = Mapping[int, tuple[int, int]]
"""(files, bytes) by partition."""


@dataclass(slots=True)
class Counts:
    """What a broker leads, or the whole cluster has."""

    segments: int = 0
    partitions: int = 0


async def led(manifest: Manifest, turn: Turn) -> tuple[dict[str, Counts], Counts]:
    """(what each incarnation leads, all of it)."""
    found: dict[str, Counts] = {}
    whole = Counts()
    async for segment in turn.each(list(manifest.segments.open.values())):
        for counts in (whole, found.setdefault(segment.incarnation_id, Counts())):
            counts.segments += 1
            counts.partitions += segment.end_partition - segment.first_partition
    return found, whole


def topic_count(manifest: Manifest) -> int:
    """Number of topics without the cluster's own."""
    return len(manifest.topics) - sum(name in manifest.topics for name in INTERNAL_TOPICS)


async def topic_names(manifest: Manifest, search: str, turn: Turn) -> list[str]:
    """Names of topics that contain `search`, in order. The cluster's own topics are only among them if the search names them."""
    wanted = search.casefold()
    own = wanted.startswith("__")
    found: list[str] = []
    async for name in turn.each(list(manifest.topics)):
        if wanted in name.casefold() and (own or not is_internal(name)):
            found.append(name)
    await turn.pause()
    found.sort()
    return found


def segments_of(manifest: Manifest, topic: StoredTopic) -> Iterator[SegmentInfo | range]:
    """A topic's segments in order; ranges of partitions without a lead in between."""
    leads = manifest.segments.leads.get(topic.id, [])
    number = 0
    while number < len(leads):
        segment = leads[number]
        if segment is not None:
            yield segment
            number = segment.end_partition
            continue
        first = number
        while number < len(leads) and leads[number] is None:
            number += 1
        yield range(first, number)


def topic_row(manifest: Manifest, topic: StoredTopic, segment_row: Callable[[SegmentInfo], model.Segment]) -> model.Topic:
    """One topic, with the first of its segments."""
    rows: list[model.Segment] = []
    total = 0
    bytes_in = bytes_out = 0.0
    measured = False
    for part in segments_of(manifest, topic):
        total += 1
        row = model.Segment(first_partition=part.start, end_partition=part.stop) if isinstance(part, range) else segment_row(part)
        if row.bytes_in_per_s is not None:
            measured = True
            bytes_in += row.bytes_in_per_s
            bytes_out += row.bytes_out_per_s or 0.0
        if total <= model.SEGMENTS_MAX:
            rows.append(row)
    return model.Topic(
        name=topic.name,
        partitions=topic.partitions,
        segments_total=total,
        segments=rows,
        bytes_in_per_s=bytes_in if measured else None,
        bytes_out_per_s=bytes_out if measured else None,
        gates_open=sum(gate.state == "open" for gate in islice(reversed(list(manifest.gates.of(topic.id).values())), 100)),
    )


def plain_segment(manifest: Manifest, segment: SegmentInfo) -> model.Segment:
    """A segment without its load."""
    lead = manifest.incarnations.get(segment.incarnation_id)
    return model.Segment(
        first_partition=segment.first_partition,
        end_partition=segment.end_partition,
        broker_id=None if lead is None else lead.broker_id,
        id=segment.id,
        leader_epoch=segment.leader_epoch,
    )


def plain_broker(broker: Incarnation, counts: Counts, now_ms: int, *, leads_cluster: bool, state: str) -> model.Broker:
    """A broker without its load."""
    return model.Broker(
        id=broker.broker_id,
        host=broker.host,
        kafka_port=broker.kafka_port,
        grpc_port=broker.grpc_port,
        http_port=broker.http_port,
        state=state,
        leads_cluster=leads_cluster,
        uptime_s=max(now_ms - broker.opened_ms, 0) / 1000,
        segments=counts.segments,
        partitions=counts.partitions,
    )


def choose_gates(manifest: Manifest, open_ones: Sequence[tuple[uuid.UUID, str]]) -> list[gate_rules.Gate]:
    """The gates to show: the open ones, then the newest of the others. `open_ones`: topic id and gate id, as far as known."""
    found: dict[tuple[uuid.UUID, str], gate_rules.Gate] = {}
    for topic_id, gate_id in open_ones:
        gate = manifest.gates.of(topic_id).get(gate_id)
        if gate is not None and gate.state == "open":
            found[topic_id, gate_id] = gate
    for topic_id, gates in manifest.gates.by_topic.items():
        for gate in islice(reversed(gates.values()), model.GATES_MAX):
            found[topic_id, gate.id] = gate
    ordered = sorted(found.values(), key=lambda gate: (gate.state != "open", -max(gate.filled_ms, gate.opened_ms)))
    return ordered[: model.GATES_MAX]


def gate_row(
    manifest: Manifest, gate: gate_rules.Gate, now_ms: int, expires_in_ms: int | None, uploaded: Uploaded | None
) -> model.Gate:
    """One gate, with the first of its windows."""
    topic = manifest.topics_by_id.get(gate.topic_id)
    filled: dict[int, tuple[int, int]] = {}
    if gate.state == "filled":
        for extent in manifest.files_of(gate):
            files, size = filled.get(extent.partition, (0, 0))
            filled[extent.partition] = (files + 1, size + extent.size_bytes)
        uploaded = filled
    windows = [
        model.Window(
            partition=window.partition,
            base_offset=window.base_offset,
            end_offset=window.end_offset,
            files=None if uploaded is None else uploaded.get(window.partition, (0, 0))[0],
            bytes=None if uploaded is None else uploaded.get(window.partition, (0, 0))[1],
        )
        for window in gate.windows[: model.WINDOWS_MAX]
    ]
    return model.Gate(
        topic="" if topic is None else topic.name,
        id=gate.id,
        place=gate.place,
        state=gate.state,
        owner=gate.owner,
        age_s=max(now_ms - (gate.filled_ms or gate.opened_ms), 0) / 1000,
        expires_in_s=None if expires_in_ms is None or gate.state != "open" else expires_in_ms / 1000,
        rows_planned=sum(window.rows for window in gate.windows),
        rows=gate.rows,
        size_bytes=gate.size_bytes,
        files=gate.files,
        released_by=gate.released_by,
        windows_total=len(gate.windows),
        windows=windows,
    )
