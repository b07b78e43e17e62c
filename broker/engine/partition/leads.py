"""The partitions that this broker leads. `Leads` follows the manifest.

Theory of operation. Every partition of every topic has a slot. If the open segment of a partition belongs to this incarnation,
its slot has a `PartitionLog`; otherwise the slot has None. `applied` receives every change of the manifest, in order. `sync`
compares all slots with the manifest, after the whole manifest was replaced. A log is made from the manifest alone: when a
segment opens, the manifest lists all acked records of its partitions. Only the state of their producers is read from the store,
which may take a moment. Until then the slots stay empty, and clients are told to retry.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

from headgate.broker.cluster.edits.brokers import SetLeader
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.files import FoldToFiles
from headgate.broker.cluster.edits.gates import FillGate, OpenGate, ReleaseGate
from headgate.broker.cluster.edits.incarnations import FoldChunks
from headgate.broker.cluster.edits.segments import OpenSegment, SealSegment
from headgate.broker.cluster.edits.topics import CreateTopic, DeleteTopic, SetLogStart, SetPartitions, SetTopicConfig, SkipRecords
from headgate.broker.cluster.objects import Extent, Topic
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.cluster.topic_config import TopicConfig, broker_defaults
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.base.live_settings import topic_defaults
from headgate.broker.engine.partition.extents import ChunkRef, find_extents
from headgate.broker.engine.partition.gated_logs import GatedLogs
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.openings import Openings
from headgate.broker.engine.partition.producers import Producers
from headgate.broker.log.chunk import stream_key
from headgate.broker.log.tail import TailMemory
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger("leads")


class Leads:
    """The logs of the partitions that this broker leads. Lives on the loop.

    Args:
        copies_wanted: called when a topic that this broker leads gets `ack=replicated`.
        windows_opened: called with logs that have new windows. Before a window there may be records that are not durable yet.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        tail_memory: TailMemory,
        *,
        copies_wanted: Callable[[], None],
        windows_opened: Callable[[Sequence[PartitionLog]], None],
    ) -> None:
        self._lifecycle = lifecycle
        self._tail_memory = tail_memory
        self._copies_wanted = copies_wanted
        self._gated = GatedLogs(lifecycle, self._logs_of, windows_opened)
        self.logs: dict[str, list[PartitionLog | None]] = {}
        """A slot for every partition of every live topic, by topic name."""
        self.by_id: dict[uuid.UUID, list[PartitionLog | None]] = {}
        """The same slots, by topic id."""
        self._names: dict[uuid.UUID, str] = {}
        self.openings = Openings(lifecycle, self._install)
        self._watchers: list[Callable[[PartitionLog], None]] = []
        self._changed = asyncio.Event()

    # -- for others

    def next_change(self) -> asyncio.Event:
        """An event that is set when a partition next gets another lead, on any broker, or takes records again.

        Get it before the attempt that may have to wait: a change during the attempt then ends the wait at once.
        """
        return self._changed

    def watch(self, watcher: Callable[[PartitionLog], None]) -> None:
        """Call back with each log when its slot gets it, and again when it is closed."""
        self._watchers.append(watcher)

    def all(self) -> Iterator[PartitionLog]:
        """Every log, in any order."""
        for slots in self.logs.values():
            for log in slots:
                if log is not None:
                    yield log

    def segments(self) -> list[SegmentInfo]:
        """The segments that this broker leads, including those that are still being opened."""
        return list(self.openings.mine.values())

    def of_segment(self, segment: SegmentInfo) -> list[PartitionLog]:
        """The logs of a segment; [] while the segment is being opened."""
        slots = self.by_id.get(segment.topic_id, [])
        logs = [log for log in slots[segment.first_partition : segment.end_partition] if log is not None]
        return [log for log in logs if log.segment_id == segment.id]

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def parse_config(self, topic: Topic) -> TopicConfig:
        """A topic's settings, with the defaults that this broker's own settings give."""
        try:
            return TopicConfig.parse({**topic_defaults(self._lifecycle.manifest, self._lifecycle.settings), **topic.config})
        except InvalidError:
            # Defaults that clients gave brokers contradict the topic's own settings.
            return TopicConfig.parse({**broker_defaults(self._lifecycle.settings), **topic.config})

    def configure_all(self) -> None:
        """Called when the defaults of topic settings may have changed."""
        for topic_id, slots in self.by_id.items():
            logs = [log for log in slots if log is not None]
            topic = self._lifecycle.manifest.topics_by_id.get(topic_id)
            if topic is not None and logs:
                self._configure(topic, logs, self.parse_config(topic))

    def _configure(self, topic: Topic, logs: Iterable[PartitionLog], config: TopicConfig) -> None:
        for log in logs:
            if config.replicated and not log.config.replicated:
                self._copies_wanted()
            log.configure(topic, config)

    # -- following

    def applied(self, edits: Sequence[Edit]) -> None:
        """Called with edits that the manifest has just applied."""
        opened: list[SegmentInfo] = []
        for edit in edits:
            match edit:
                case CreateTopic(topic):
                    self._sync_topic(topic.id)
                case DeleteTopic(topic_id) | SetPartitions(topic_id, _) | SetTopicConfig(topic_id, _, _):
                    self._sync_topic(topic_id)
                case SetLogStart(topic_id, offsets, _):
                    self._sync_log_starts(topic_id, offsets)
                case SkipRecords(topic_id, number, _, _):
                    self._gated.sync_cuts([log for log in self._logs_of(topic_id) if log.number == number])
                case SealSegment(segment_id, _, _):
                    self._close(segment_id)
                case OpenSegment(segment) if self._is_mine(segment):
                    opened.append(segment)
                case FoldChunks(incarnation_id, _, chunk):
                    self._replace(chunk.extents, ChunkRef(incarnation_id, chunk))
                case FoldToFiles(topic_id, number, files):
                    for log in self._logs_of(topic_id):
                        if log.number == number:
                            parts = edit.parts
                            pieces = edit.pieces
                            refs = [self._gated.file_ref(topic_id, edit, piece) for piece in pieces]
                            log.folded(parts[0].base_offset, parts[-1].end_offset, pieces, refs)
                            if not files:
                                self._gated.sync_cuts([log])
                case OpenGate(gate, _):
                    self._gated.opened(gate)
                case FillGate(topic_id, gate_id, _, _, _):
                    self._gated.filled(self._lifecycle.manifest.gates.by_topic[topic_id][gate_id])
                case ReleaseGate(topic_id, gate_id, _):
                    for log in self._logs_of(topic_id):
                        log.release_window(gate_id)
                case SetLeader(_, leader_epoch):
                    # The former leader had asked for gates that it did not commit. They can no longer be committed, so release
                    # their offsets.
                    for log in self.all():
                        log.drop_holds(but_of_term=leader_epoch)
        self._open(opened)
        if any(isinstance(edit, SealSegment | OpenSegment | DeleteTopic) for edit in edits):
            self._note_change()

    def sync(self) -> None:
        """Called when the manifest was replaced as a whole. It may be newer by any number of edits."""
        manifest = self._lifecycle.manifest
        for topic_id in [*self.by_id, *(manifest.topics_by_id.keys() - self.by_id.keys())]:
            self._sync_topic(topic_id)
        for segment_id in list(self.openings.mine):
            if segment_id not in manifest.segments.open:
                self._close(segment_id)
        self._rebuild_extents()
        for topic_id in self.by_id:
            self._gated.sync(topic_id)
            self._sync_log_starts(topic_id, range(len(self.by_id[topic_id])))
        for log in self.all():
            log.drop_holds(but_of_term=manifest.term_epoch)
        found = [
            segment
            for segment in manifest.segments.open.values()
            if self._is_mine(segment) and segment.id not in self.openings.mine
        ]
        self._open(found)
        self._note_change()

    def _open(self, segments: list[SegmentInfo]) -> None:
        self.openings.open(segments)

    def _is_mine(self, segment: SegmentInfo) -> bool:
        return segment.incarnation_id == self._lifecycle.incarnation_id

    def _sync_topic(self, topic_id: uuid.UUID) -> None:
        topic = self._lifecycle.manifest.topics_by_id.get(topic_id)
        slots = self.by_id.get(topic_id)
        if topic is None:
            if slots is not None:
                self._drop_topic(topic_id, slots)
            return
        if slots is None:
            slots = self.logs[topic.name] = self.by_id[topic_id] = []
            self._names[topic_id] = topic.name
        slots.extend([None] * (topic.partitions - len(slots)))
        changed = [log for log in slots if log is not None and log.topic is not topic]
        if changed:
            self._configure(topic, changed, self.parse_config(topic))

    def _drop_topic(self, topic_id: uuid.UUID, slots: list[PartitionLog | None]) -> None:
        name = self._names.pop(topic_id)
        del self.by_id[topic_id]
        if self.logs[name] is slots:
            del self.logs[name]
        for segment in self.segments():
            if segment.topic_id == topic_id:
                del self.openings.mine[segment.id]
        self._closed(
            [log for log in slots if log is not None],
            InvalidError(Reason.UNKNOWN_TOPIC, f"topic was deleted. topic=`{name}`"),
        )

    def _sync_log_starts(self, topic_id: uuid.UUID, partitions: Iterable[int]) -> None:
        slots = self.by_id.get(topic_id, [])
        for number in partitions:
            log = slots[number] if number < len(slots) else None
            if log is not None:
                log.set_log_start(self._lifecycle.manifest.readable.log_start(topic_id, number))

    def _close(self, segment_id: int) -> None:
        segment = self.openings.forget(segment_id)
        if segment is None:
            return
        logs = self.of_segment(segment)
        slots = self.by_id[segment.topic_id]
        for log in logs:
            slots[log.number] = None
        name = self._names[segment.topic_id]
        self._closed(
            logs,
            RetryError(
                Reason.NOT_LEADER,
                f"another broker leads these partitions now. topic=`{name}` first=`{segment.first_partition}` "
                f"end=`{segment.end_partition}`",
            ),
        )

    def _closed(self, logs: list[PartitionLog], error: HeadgateError) -> None:
        if not logs:
            return
        for log in logs:
            log.close(error)
        self._tell(logs)

    def _tell(self, logs: Iterable[PartitionLog]) -> None:
        for watcher in self._watchers:
            for log in logs:
                watcher(log)

    # -- gates

    def _logs_of(self, topic_id: uuid.UUID) -> list[PartitionLog]:
        return [log for log in self.by_id.get(topic_id, []) if log is not None]

    # -- extents

    def _replace(self, extents: Iterable[Extent], ref: ChunkRef) -> None:
        for extent in extents:
            slots = self.by_id.get(extent.topic_id, [])
            log = slots[extent.partition] if extent.partition < len(slots) else None
            if log is not None:
                log.folded(extent.base_offset, extent.end_offset, [extent], [ref])

    def _rebuild_extents(self) -> None:
        """Update the extents of existing logs: chunks may have been folded."""
        logs = {(log.topic.id, log.number): log for log in self.all()}
        for key, rows in find_extents(self._lifecycle.manifest, logs).items():
            logs[key].relist(rows)

    def _install(self, parts: list[tuple[SegmentInfo, range]], producers: Producers) -> None:
        """Open partitions of segments."""
        manifest = self._lifecycle.manifest
        made: list[PartitionLog] = []
        for segment, numbers in parts:
            topic = manifest.topics_by_id[segment.topic_id]
            config = self.parse_config(topic)
            for number in numbers:
                base_offset = segment.base_offsets[number - segment.first_partition]
                # A gate may have been opened after the last record.
                end_offset = max(base_offset, manifest.gates.window_end(topic.id, number))
                _, states = producers.get(stream_key(topic.id.bytes, number), (0, None))
                made.append(
                    PartitionLog(topic, number, config, segment.id, segment.leader_epoch, self._tail_memory, end_offset, states)
                )
        extents = find_extents(manifest, [(log.topic.id, log.number) for log in made if log.high_watermark > 0])
        for log in made:
            key = log.topic.id, log.number
            if key in extents:
                log.restore(extents[key], manifest.gates.windows(*key), self._gated.cuts(log), manifest.readable.log_start(*key))
            self.by_id[log.topic.id][log.number] = log
        self._tell(made)
        self._note_change()
