"""The places of a topic's records, for readers by reference (`Gates.Layout`).

The cost follows the files that a reader wants, not those that the topic has: lists are sorted, and only the wanted part of each is
looked at. A reader that wants a span of time is told the offsets of the other files as ranges: it does not ask the leads for them.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from headgate.broker.cluster.gates import OFFSET_MAX, STEP_FILES, Gate, ParquetExtent, data_prefix
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.steps import Steps
from headgate.broker.wire.grpc.headgate.v1 import gates_pb2

STATES = {
    "open": gates_pb2.GATE_STATE_OPEN,
    "filled": gates_pb2.GATE_STATE_FILLED,
    "released": gates_pb2.GATE_STATE_RELEASED,
}
"""A gate's state in messages."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The records that a reader asks for: offsets [first, end), and times in ms, both included."""

    partitions: frozenset[int] | None = None
    first: int = 0
    end: int = OFFSET_MAX
    low_ms: int = -OFFSET_MAX
    high_ms: int = OFFSET_MAX
    folded: bool = False

    @classmethod
    def of(cls, request: gates_pb2.LayoutRequest) -> _Wanted:
        if not request.HasField("wanted"):
            return cls()
        asked = request.wanted
        return cls(
            partitions=frozenset(asked.partitions) or None,
            first=max(asked.first_offset, 0),
            end=asked.last_offset + 1 if asked.HasField("last_offset") else OFFSET_MAX,
            low_ms=asked.first_timestamp_ms if asked.HasField("first_timestamp_ms") else -OFFSET_MAX,
            high_ms=asked.last_timestamp_ms if asked.HasField("last_timestamp_ms") else OFFSET_MAX,
            folded=True,
        )

    @property
    def by_time(self) -> bool:
        return self.low_ms > -OFFSET_MAX or self.high_ms < OFFSET_MAX


def layout(manifest: Manifest, store_url: str, request: gates_pb2.LayoutRequest) -> Steps[gates_pb2.LayoutResponse]:
    """The places of the wanted records, as of the first step. Raises InvalidError(UNKNOWN_TOPIC)."""
    topic = manifest.topics.get(request.topic)
    if topic is None:
        raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic does not exist. topic=`{request.topic}`")
    wanted = _Wanted.of(request)
    response = gates_pb2.LayoutResponse(store_url=store_url, topic_id=topic.id.bytes, prefix=data_prefix(topic.id))
    response.files = sum(len(gate.extents) for gate in manifest.gates.get(topic.id, {}).values())
    response.files += sum(len(manifest.files.of(topic.id, number)) for number in range(topic.partitions)) if wanted.folded else 0
    # Everything is looked up before the first pause: the manifest may change during one.
    found: list[tuple[gates_pb2.PartitionLayout, list[ParquetExtent], list[ParquetExtent]]] = []
    for number in range(topic.partitions):
        if wanted.partitions is not None and number not in wanted.partitions:
            continue
        row = response.partitions.add(partition=number, log_start=manifest.log_start(topic.id, number))
        lead = manifest.leads[topic.id][number]
        if lead is not None:
            broker = manifest.incarnations[lead.incarnation_id]
            row.grpc_address = f"{broker.host}:{broker.grpc_port}"
            row.kafka_address = f"{broker.host}:{broker.kafka_port}"
        files, holes = _history(manifest, topic.id, number, wanted)
        row.holes.extend(holes)
        first = max(wanted.first, row.log_start)
        folded = manifest.files.within(topic.id, number, first, wanted.end) if wanted.folded else []
        found.append((row, files, folded))
    for row, files, folded in found:
        cuts = [(hole.base_offset, hole.end_offset) for hole in row.holes if not hole.gate_id]
        left_out: list[tuple[int, int]] = []
        every = files + folded
        for start in range(0, len(every), STEP_FILES):
            yield STEP_FILES
            some = every[start : start + STEP_FILES]
            if wanted.by_time:
                inside = [one for one in some if wanted.low_ms <= one.timestamp_max_ms and one.timestamp_min_ms <= wanted.high_ms]
                if len(inside) < len(some):
                    kept = set(map(id, inside))
                    left_out += [(one.base_offset, one.end_offset) for one in some if id(one) not in kept]
                some = inside
            for one in some:
                if not one.folded or not wanted.folded:
                    row.files.append(file_ref(one))
                elif not any(base <= one.base_offset and one.end_offset <= end for base, end in cuts):
                    row.folded.add(file=file_ref(one), end_offset=one.end_offset)
        row.left_out.extend(gates_pb2.OffsetRange(base_offset=base, end_offset=end) for base, end in _joined(left_out))
    return response


def file_ref(one: ParquetExtent) -> gates_pb2.FileRef:
    """The message that names a file."""
    return gates_pb2.FileRef(
        partition=one.partition,
        path=one.path,
        base_offset=one.base_offset,
        rows=one.rows,
        size_bytes=one.size_bytes,
        footer_crc32c=one.footer_crc32c,
        timestamp_min_ms=one.timestamp_min_ms,
        timestamp_max_ms=one.timestamp_max_ms,
    )


def _joined(ranges: list[tuple[int, int]]) -> list[list[int]]:
    """Ranges of offsets that do not overlap, by offset; neighbours are one range. `cluster.ranges` takes five times as long."""
    joined: list[list[int]] = []
    for base, end in sorted(ranges):
        if joined and joined[-1][1] == base:
            joined[-1][1] = end
        else:
            joined.append([base, end])
    return joined


def _history(
    manifest: Manifest, topic_id: uuid.UUID, partition: int, wanted: _Wanted
) -> tuple[list[ParquetExtent], list[gates_pb2.Hole]]:
    """The readable files of gates, by offset, and the holes: empty parts of windows, of gates in any state, and records that were
    removed before a gate was opened in front of them.

    For readers that know no folded files, those with history are among the files if every offset has a row: then a row's number
    tells its offset, as in a gate's file. Brokers give such readers the records of the others.
    """
    cuts = manifest.cuts.get(topic_id, {}).get(partition, ())
    found = [gates_pb2.Hole(base_offset=base, end_offset=end, state=gates_pb2.GATE_STATE_RELEASED) for base, end in cuts]
    files: list[ParquetExtent] = []
    for window, gate in manifest.windows(topic_id, partition):
        base, end = max(window.base_offset, wanted.first), min(window.end_offset, wanted.end)
        if base >= end:
            continue
        start = bisect_left(gate.extents, partition, key=lambda one: one.partition)
        stop = bisect_right(gate.extents, partition, lo=start, key=lambda one: one.partition)
        start = bisect_right(gate.extents, base, lo=start, hi=stop, key=lambda one: one.end_offset)
        stop = bisect_left(gate.extents, end, lo=start, hi=stop, key=lambda one: one.base_offset)
        folded = manifest.files.within(topic_id, partition, base, end) if gate.state == "filled" else []
        for one in sorted([*gate.extents[start:stop], *folded], key=lambda file: file.base_offset):
            if manifest.is_readable(topic_id, partition, one.base_offset, one.end_offset):
                # A folded file may have the records of several gates.
                if not one.folded or (one.dense and not wanted.folded and one not in files[-1:]):
                    files.append(one)
                found.append(_hole(gate, base, one.base_offset))
                base = one.end_offset
        found.append(_hole(gate, base, end))
    holes: list[gates_pb2.Hole] = []
    position = manifest.log_start(topic_id, partition)
    for hole in sorted(found, key=lambda one: one.base_offset):
        # A cut may cover windows: each offset appears only once.
        hole.base_offset = max(hole.base_offset, position)
        if hole.base_offset < hole.end_offset:
            holes.append(hole)
            position = hole.end_offset
    return files, holes


def _hole(gate: Gate, base_offset: int, end_offset: int) -> gates_pb2.Hole:
    state = STATES[gate.state]
    return gates_pb2.Hole(gate_id=gate.id, base_offset=base_offset, end_offset=end_offset, state=state)
