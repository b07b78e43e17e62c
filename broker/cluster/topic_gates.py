"""The gates of all topics. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import msgspec

from headgate.broker.cluster.file_times import GateTimes
from headgate.broker.cluster.gates import GATES_MAX, Gate, GateWindow, ParquetExtent


class TopicGates:
    """The gates of live topics."""

    def __init__(self) -> None:
        self.by_topic: dict[uuid.UUID, dict[str, Gate]] = {}
        """Gates by topic and id, in the order of their opening. Only topics that have gates."""
        self.times = GateTimes()
        self._window_ends: dict[uuid.UUID, list[int]] = {}
        """The end of each partition's last window that is not at the front, for commits of positions. Only topics with gates."""

    def of(self, topic_id: uuid.UUID) -> Mapping[str, Gate]:
        """The gates of a topic, by id."""
        return self.by_topic.get(topic_id, _NO_GATES)

    def all(self) -> Iterator[Gate]:
        """Every gate of every topic."""
        for gates in self.by_topic.values():
            yield from gates.values()

    def window_end(self, topic_id: uuid.UUID, partition: int) -> int:
        """The end of the last window of a partition that is not at the front. Live records never begin before it."""
        ends = self._window_ends.get(topic_id, _NO_ENDS)
        return ends[partition] if partition < len(ends) else 0

    def front(self, topic_id: uuid.UUID, partition: int) -> int | None:
        """The beginning of the first window at the front; None without one."""
        bases = (
            gate.windows[partition].base_offset
            for gate in self.of(topic_id).values()
            if gate.place == "front" and partition < len(gate.windows) and gate.windows[partition].rows
        )
        return min(bases, default=None)

    def windows(self, topic_id: uuid.UUID, partition: int) -> list[tuple[GateWindow, Gate]]:
        """The windows of a partition that are not empty, by offset."""
        found = [
            (gate.windows[partition], gate)
            for gate in self.of(topic_id).values()
            if partition < len(gate.windows) and gate.windows[partition].rows
        ]
        return sorted(found, key=lambda item: item[0].base_offset)

    def add(self, gate: Gate, has_files: Callable[[Gate], bool]) -> None:
        """Add a gate that was opened, above the limit in place of the oldest one that is not open and has no files."""
        gates = self.by_topic.setdefault(gate.topic_id, {})
        self.times.changed(gate.topic_id)
        before = gates.pop(gate.id, None)
        if before is not None:
            number = next(number for number in range(1, GATES_MAX + 2) if f"{gate.id}~{number}" not in gates)
            gates[f"{gate.id}~{number}"] = msgspec.structs.replace(before, id=f"{gate.id}~{number}")
        gates[gate.id] = gate
        if len(gates) > GATES_MAX:
            oldest = next((key for key, gate in gates.items() if gate.state != "open" and not has_files(gate)), None)
            if oldest is not None:
                del gates[oldest]
        self._note_windows(gate)

    def put(self, gate: Gate) -> None:
        """Add a gate of a snapshot."""
        self.by_topic.setdefault(gate.topic_id, {})[gate.id] = gate
        self._note_windows(gate)

    def _note_windows(self, gate: Gate) -> None:
        if gate.place != "front":
            ends = self._window_ends.setdefault(gate.topic_id, [])
            ends.extend([0] * (len(gate.windows) - len(ends)))
            for partition, window in enumerate(gate.windows):
                ends[partition] = max(ends[partition], window.end_offset)

    def change(self, topic_id: uuid.UUID, gate_id: str, **changes: object) -> None:
        """Change fields of a gate, if it is there."""
        gates = self.by_topic.get(topic_id, {})
        gate = gates.get(gate_id)
        if gate is not None:
            gates[gate_id] = msgspec.structs.replace(gate, **changes)
            if "extents" in changes:
                self.times.changed(topic_id)

    def forget_files(self, topic_id: uuid.UUID, gone: Callable[[list[ParquetExtent]], Iterator[ParquetExtent]]) -> None:
        """Forget files of a topic's gates. `gone`: picks them among the files of one gate."""
        for gate_id, gate in list(self.of(topic_id).items()):
            ids = set(map(id, gone(gate.extents)))
            if ids:
                self.change(topic_id, gate_id, extents=[extent for extent in gate.extents if id(extent) not in ids])

    def drop_topic(self, topic_id: uuid.UUID) -> None:
        self.by_topic.pop(topic_id, None)
        self.times.changed(topic_id)
        self._window_ends.pop(topic_id, None)

    def check_invariants(self, partitions: Mapping[uuid.UUID, int]) -> None:
        """Raise AssertionError if windows overlap, or a file lies outside its window. `partitions`: of the live topics."""
        assert set(self.by_topic) <= set(partitions)
        for topic_id, gates in self.by_topic.items():
            assert gates and all(key == gate.id and gate.topic_id == topic_id for key, gate in gates.items())
            for number in range(partitions[topic_id]):
                for (one, _), (other, _) in pairwise(self.windows(topic_id, number)):
                    assert one.end_offset <= other.base_offset, "windows overlap"
            for gate in gates.values():
                for extent in gate.extents:
                    window = gate.windows[extent.partition]
                    assert window.base_offset <= extent.base_offset < extent.end_offset <= window.end_offset


_NO_GATES: Mapping[str, Gate] = {}
_NO_ENDS: list[int] = []
