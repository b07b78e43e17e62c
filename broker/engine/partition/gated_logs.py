"""What gates make of the logs of partitions: their windows, the files in them, and the ranges that readers pass."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence

from headgate.broker.cluster.edits.files import FoldToFiles
from headgate.broker.cluster.gates import Gate, ParquetExtent
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.extents import FileRef
from headgate.broker.engine.partition.log import PartitionLog


class GatedLogs:
    """Brings the gates of the manifest to the logs of a topic.

    Args:
        logs_of: the logs that a topic has on this broker.
        windows_opened: called with logs that have new windows. Before a window there may be records that are not durable yet.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        logs_of: Callable[[uuid.UUID], list[PartitionLog]],
        windows_opened: Callable[[Sequence[PartitionLog]], None],
    ) -> None:
        self._lifecycle = lifecycle
        self._logs_of = logs_of
        self._windows_opened = windows_opened

    def opened(self, gate: Gate) -> None:
        """Called when the manifest has a new gate. The gate may replace a released one."""
        renamed = [
            other for other in self._lifecycle.manifest.gates.of(gate.topic_id).values() if other.id.startswith(f"{gate.id}~")
        ]
        now_s = self._lifecycle.clock.monotonic()
        logs = self._logs_of(gate.topic_id)
        opened: list[PartitionLog] = []
        for log in logs:
            for one in renamed:
                if log.number < len(one.windows) and one.windows[log.number].rows:
                    log.windows.rename(one.windows[log.number].base_offset, one.id)
            if log.number >= len(gate.windows) or not gate.windows[log.number].rows:
                continue
            window = gate.windows[log.number]
            if gate.place == "front":
                self._lower_start(log)
            log.open_window(window, gate, now_s)
            opened.append(log)
        self._windows_opened(opened)
        if gate.state == "filled":
            self.filled(gate)

    def filled(self, gate: Gate) -> None:
        logs = {log.number: log for log in self._logs_of(gate.topic_id)}
        ref = FileRef(gate.id, gate.filled_ms)
        by_partition: dict[int, list[ParquetExtent]] = {number: [] for number in logs}
        for extent in gate.extents:
            if extent.partition in by_partition:
                by_partition[extent.partition].append(extent)
        for number, log in logs.items():
            if number < len(gate.windows) and gate.windows[number].rows:
                log.fill_window(gate.id, by_partition[number], ref)

    def sync(self, topic_id: uuid.UUID) -> None:
        """Update the windows of existing logs: gates may have been opened, filled, or released."""
        manifest = self._lifecycle.manifest
        now_s = self._lifecycle.clock.monotonic()
        for log in self._logs_of(topic_id):
            self._lower_start(log)
            for window, gate in manifest.gates.windows(topic_id, log.number):
                log.sync_window(window, gate, now_s)
            log.waiters.wake()
        self._windows_opened(self._logs_of(topic_id))

    def _lower_start(self, log: PartitionLog) -> None:
        """Update the start of a log: a gate may have been opened in front of it."""
        manifest = self._lifecycle.manifest
        log.lower_log_start(manifest.readable.log_start(log.topic.id, log.number), self.cuts(log))

    def sync_cuts(self, logs: Iterable[PartitionLog]) -> None:
        """Update the ranges that readers pass."""
        for log in logs:
            log.set_cuts(self.cuts(log))
            log.waiters.wake()

    def cuts(self, log: PartitionLog) -> list[tuple[int, int]]:
        return self._lifecycle.manifest.readable.cuts_of(log.topic.id, log.number)

    def file_ref(self, topic_id: uuid.UUID, edit: FoldToFiles, extent: ParquetExtent) -> FileRef:
        """The reference of a file after a fold: of a folded one, or of a piece that stays in its gate."""
        gate = None if extent.folded else self._lifecycle.manifest.gates.of(topic_id).get(edit.merged[0].gate_id)
        return FileRef("", extent.appended_ms) if gate is None else FileRef(gate.id, gate.filled_ms)
