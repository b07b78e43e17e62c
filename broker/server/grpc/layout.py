"""The places of a topic's records, for readers by reference (`Gates.Layout`).

The cost follows the files that a reader wants, not those that the topic has: lists are sorted, and only the wanted part of each is
looked at. A reader of a span of time passes the other files in blocks (`cluster/file_times.py`), and is told their offsets:
it does not ask the leads for them.
"""

from __future__ import annotations

import heapq
import uuid
from dataclasses import dataclass

from headgate.broker.cluster.file_times import ALL_MS, Passed, Passing
from headgate.broker.cluster.gates import OFFSET_MAX, Gate, ParquetExtent, data_prefix
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.ranges import one_covers
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
    low_ms: int = ALL_MS[0]
    high_ms: int = ALL_MS[1]
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
            low_ms=asked.first_timestamp_ms if asked.HasField("first_timestamp_ms") else ALL_MS[0],
            high_ms=asked.last_timestamp_ms if asked.HasField("last_timestamp_ms") else ALL_MS[1],
            folded=True,
        )


def layout(manifest: Manifest, store_url: str, request: gates_pb2.LayoutRequest) -> Steps[gates_pb2.LayoutResponse]:
    """The places of the wanted records, as of the first step. Raises InvalidError(UNKNOWN_TOPIC)."""
    topic = manifest.topics.get(request.topic)
    if topic is None:
        raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic does not exist. topic=`{request.topic}`")
    wanted = _Wanted.of(request)
    response = gates_pb2.LayoutResponse(store_url=store_url, topic_id=topic.id.bytes, prefix=data_prefix(topic.id))
    response.files = sum(len(gate.extents) for gate in manifest.gates.of(topic.id).values())
    response.files += sum(len(manifest.files.of(topic.id, number)) for number in range(topic.partitions)) if wanted.folded else 0
    # Everything is looked up before the first pause: the manifest may change during one.
    parts = [
        _part(manifest, topic.id, response.partitions.add(partition=number), wanted)
        for number in range(topic.partitions)
        if wanted.partitions is None or number in wanted.partitions
    ]
    for part in parts:
        row = part.row
        left_out = yield from _history(part, wanted)
        for item in part.folded:
            yield 1
            if isinstance(item, Passed):
                left_out += item.ranges
            elif part.is_readable(item):
                row.folded.add(file=file_ref(item), end_offset=item.end_offset)
        row.left_out.extend(gates_pb2.OffsetRange(base_offset=base, end_offset=end) for base, end in _joined(left_out))
    return response


@dataclass(frozen=True, slots=True)
class _Part:
    """A partition at the moment of the request. `row`: to be filled in. `windows`: (gate, base offset, end offset, files) of each
    window with a wanted offset, by offset. `folded`: the folded files, in windows or not. `cuts`: removed ranges."""

    row: gates_pb2.PartitionLayout
    windows: list[tuple[Gate, int, int, Passing]]
    folded: Passing
    cuts: tuple[tuple[int, int], ...]

    def is_readable(self, extent: ParquetExtent) -> bool:
        """True if a file may have a readable record."""
        return extent.end_offset > self.row.log_start and not one_covers(self.cuts, extent.base_offset, extent.end_offset)


def _part(manifest: Manifest, topic_id: uuid.UUID, row: gates_pb2.PartitionLayout, wanted: _Wanted) -> _Part:
    number = row.partition
    row.log_start = manifest.readable.log_start(topic_id, number)
    lead = manifest.segments.leads[topic_id][number]
    if lead is not None:
        broker = manifest.incarnations[lead.incarnation_id]
        row.grpc_address = f"{broker.host}:{broker.grpc_port}"
        row.kafka_address = f"{broker.host}:{broker.kafka_port}"
    windows: list[tuple[Gate, int, int, Passing]] = []
    for window, gate in manifest.gates.windows(topic_id, number):
        base, end = max(window.base_offset, wanted.first), min(window.end_offset, wanted.end)
        if base < end:
            items = manifest.gates.times.passing(gate, number, base, end, wanted.low_ms, wanted.high_ms)
            if gate.state == "filled":
                folded = manifest.files.passing(topic_id, number, base, end, wanted.low_ms, wanted.high_ms)
                items = heapq.merge(items, folded, key=lambda item: item.base_offset)
            windows.append((gate, base, end, items))
    first, end = (max(wanted.first, row.log_start), wanted.end) if wanted.folded else (0, 0)
    return _Part(
        row=row,
        windows=windows,
        folded=manifest.files.passing(topic_id, number, first, end, wanted.low_ms, wanted.high_ms),
        cuts=tuple(manifest.readable.cuts_of(topic_id, number)),
    )


def file_ref(extent: ParquetExtent) -> gates_pb2.FileRef:
    """The message that names a file."""
    return gates_pb2.FileRef(
        partition=extent.partition,
        path=extent.path,
        base_offset=extent.base_offset,
        rows=extent.rows,
        size_bytes=extent.size_bytes,
        footer_crc32c=extent.footer_crc32c,
        timestamp_min_ms=extent.timestamp_min_ms,
        timestamp_max_ms=extent.timestamp_max_ms,
        adopted_bytes=extent.adopted_bytes,
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


def _history(part: _Part, wanted: _Wanted) -> Steps[list[tuple[int, int]]]:
    """Fill in the readable files of gates, and the holes: empty parts of windows, of gates in any state, and records that were
    removed before a gate was opened in front of them. Returns the offsets of the gates' files that have no wanted time.

    For readers that know no folded files, those with history are among the files if every offset has a row: then a row's number
    tells its offset, as in a gate's file. Brokers give such readers the records of the others.
    """
    found = [gates_pb2.Hole(base_offset=base, end_offset=end, state=gates_pb2.GATE_STATE_RELEASED) for base, end in part.cuts]
    left_out: list[tuple[int, int]] = []
    newest: ParquetExtent | None = None
    for gate, base, end, items in part.windows:
        for item in items:
            yield 1
            ranges = item.ranges if isinstance(item, Passed) else ((item.base_offset, item.end_offset),)
            for low, high in ranges:
                if base < low:
                    found.append(_hole(gate, base, low))
                base = max(base, high)
            if isinstance(item, Passed):
                left_out += () if item.folded else ranges
            # A folded file may have the records of several gates.
            # The rows of adopted files come from brokers.
            elif (part.is_readable(item) and not item.adopted) and (
                not item.folded or (item.dense and not wanted.folded and item is not newest)
            ):
                part.row.files.append(file_ref(item))
                newest = item
        found.append(_hole(gate, base, end))
    position = part.row.log_start
    for hole in sorted(found, key=lambda hole: hole.base_offset):
        # A cut may cover windows: each offset appears only once.
        hole.base_offset = max(hole.base_offset, position)
        if hole.base_offset < hole.end_offset:
            part.row.holes.append(hole)
            position = hole.end_offset
    return left_out


def _hole(gate: Gate, base_offset: int, end_offset: int) -> gates_pb2.Hole:
    state = STATES[gate.state]
    return gates_pb2.Hole(gate_id=gate.id, base_offset=base_offset, end_offset=end_offset, state=state)
