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
from headgate.broker.cluster.gates import Gate, ParquetExtent
from headgate.broker.cluster.objects import Extent, Topic
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.cluster.topic_config import TopicConfig, broker_defaults
from headgate.broker.engine.base.life import Life
from headgate.broker.engine.base.live_settings import topic_defaults
from headgate.broker.engine.partition.extents import AnyExtent, AnyRef, ChunkRef, FileRef
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.producers import Producers, load_producers
from headgate.broker.log.chunk import stream_key
from headgate.broker.log.tail import TailMemory
from headgate.broker.runtime.errors import CorruptError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import watch

logger = get_logger("leads")

INSTALL_PARTITIONS_MAX = 250
"""Partitions that are opened in one turn of the loop. They take some three milliseconds."""
DAMAGED_RETRY_S = 10.0
"""Pause before a damaged or lost checkpoint of producers is read again. An operator may restore it."""
RETRY_S = 0.2
"""Pause, in seconds, before a checkpoint of producers is read again after the store did not answer."""


class Leads:
    """The logs of the partitions that this broker leads. Lives on the loop.

    Args:
        copies_wanted: called when a topic that this broker leads gets `ack=replicated`.
        windows_opened: called with logs that have new windows. Before a window there may be records that are not durable yet.
    """

    def __init__(
        self,
        life: Life,
        tail_memory: TailMemory,
        *,
        copies_wanted: Callable[[], None],
        windows_opened: Callable[[Sequence[PartitionLog]], None],
    ) -> None:
        self._life = life
        self._tail_memory = tail_memory
        self._copies_wanted = copies_wanted
        self._windows_opened = windows_opened
        self.logs: dict[str, list[PartitionLog | None]] = {}
        """A slot for every partition of every live topic, by topic name."""
        self.by_id: dict[uuid.UUID, list[PartitionLog | None]] = {}
        """The same slots, by topic id."""
        self._names: dict[uuid.UUID, str] = {}
        self._mine: dict[int, SegmentInfo] = {}
        """Open segments of this incarnation, including those with producer state that is still being read."""
        self._tasks: set[asyncio.Task[None]] = set()
        """They open segments."""
        self._opening: set[asyncio.Future[None]] = set()
        """One for each task, until its segments are open, or wait for an operator."""
        self.damaged: dict[int, str] = {}
        """Segments that are not open, because the store lost the state of their producers: by id, the reported error."""
        self._abandoned: set[int] = set()
        """Damaged segments that stay closed here: they are being sealed."""
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
        return list(self._mine.values())

    def of_segment(self, segment: SegmentInfo) -> list[PartitionLog]:
        """The logs of a segment; [] while the segment is being opened."""
        slots = self.by_id.get(segment.topic_id, [])
        logs = [log for log in slots[segment.first_partition : segment.end_partition] if log is not None]
        return [log for log in logs if log.segment_id == segment.id]

    async def settled(self) -> None:
        """Wait until no segment is being opened. Damaged segments do not count."""
        while self._opening:
            await asyncio.wait(self._opening)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def stop(self) -> None:
        """Stop the opening of segments."""
        for task in self._tasks:
            task.cancel()

    def abandon(self, segment: SegmentInfo) -> None:
        """Never open a damaged segment here: it is about to be sealed as it was opened."""
        self._abandoned.add(segment.id)

    def parse_config(self, topic: Topic) -> TopicConfig:
        """A topic's settings, with the defaults that this broker's own settings give."""
        try:
            return TopicConfig.parse({**topic_defaults(self._life.manifest, self._life.settings), **topic.config})
        except InvalidError:
            # Defaults that clients gave brokers contradict the topic's own settings.
            return TopicConfig.parse({**broker_defaults(self._life.settings), **topic.config})

    def configure_all(self) -> None:
        """Called when the defaults of topic settings may have changed."""
        for topic_id, slots in self.by_id.items():
            logs = [log for log in slots if log is not None]
            topic = self._life.manifest.topics_by_id.get(topic_id)
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
                    self._sync_cuts([log for log in self._logs_of(topic_id) if log.number == number])
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
                            refs = [self._file_ref(topic_id, edit, one) for one in pieces]
                            log.folded(parts[0].base_offset, parts[-1].end_offset, pieces, refs)
                            if not files:
                                self._sync_cuts([log])
                case OpenGate(gate, _):
                    self._open_gate(gate)
                case FillGate(topic_id, gate_id, _, _, _):
                    self._fill_gate(self._life.manifest.gates.by_topic[topic_id][gate_id])
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
        manifest = self._life.manifest
        for topic_id in [*self.by_id, *(manifest.topics_by_id.keys() - self.by_id.keys())]:
            self._sync_topic(topic_id)
        for segment_id in list(self._mine):
            if segment_id not in manifest.segments.open:
                self._close(segment_id)
        self._rebuild_extents()
        for topic_id in self.by_id:
            self._sync_windows(topic_id)
            self._sync_log_starts(topic_id, range(len(self.by_id[topic_id])))
        for log in self.all():
            log.drop_holds(but_of_term=manifest.term_epoch)
        open_segments = manifest.segments.open.values()
        self._open([segment for segment in open_segments if self._is_mine(segment) and segment.id not in self._mine])
        self._note_change()

    def _is_mine(self, segment: SegmentInfo) -> bool:
        return segment.incarnation_id == self._life.incarnation_id

    def _sync_topic(self, topic_id: uuid.UUID) -> None:
        topic = self._life.manifest.topics_by_id.get(topic_id)
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
        self._mine = {key: segment for key, segment in self._mine.items() if segment.topic_id != topic_id}
        self._closed(
            [log for log in slots if log is not None],
            InvalidError(Reason.UNKNOWN_TOPIC, f"topic was deleted. topic=`{name}`"),
        )

    def _sync_log_starts(self, topic_id: uuid.UUID, partitions: Iterable[int]) -> None:
        slots = self.by_id.get(topic_id, [])
        for number in partitions:
            log = slots[number] if number < len(slots) else None
            if log is not None:
                log.set_log_start(self._life.manifest.readable.log_start(topic_id, number))

    def _close(self, segment_id: int) -> None:
        segment = self._mine.pop(segment_id, None)
        self.damaged.pop(segment_id, None)
        self._abandoned.discard(segment_id)
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

    def _open_gate(self, gate: Gate) -> None:
        """Called when the manifest has a new gate. The gate may replace a released one."""
        renamed = [one for one in self._life.manifest.gates.of(gate.topic_id).values() if one.id.startswith(f"{gate.id}~")]
        now_s = self._life.clock.monotonic()
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
            self._fill_gate(gate)

    def _file_ref(self, topic_id: uuid.UUID, edit: FoldToFiles, one: ParquetExtent) -> FileRef:
        """The reference of a file after a fold: of a folded one, or of a piece that stays in its gate."""
        gate = None if one.folded else self._life.manifest.gates.of(topic_id).get(edit.merged[0].gate_id)
        return FileRef("", one.appended_ms) if gate is None else FileRef(gate.id, gate.filled_ms)

    def _fill_gate(self, gate: Gate) -> None:
        logs = {log.number: log for log in self._logs_of(gate.topic_id)}
        ref = FileRef(gate.id, gate.filled_ms)
        by_partition: dict[int, list[ParquetExtent]] = {number: [] for number in logs}
        for extent in gate.extents:
            if extent.partition in by_partition:
                by_partition[extent.partition].append(extent)
        for number, log in logs.items():
            if number < len(gate.windows) and gate.windows[number].rows:
                log.fill_window(gate.id, by_partition[number], ref)

    def _sync_windows(self, topic_id: uuid.UUID) -> None:
        """Update the windows of existing logs: gates may have been opened, filled, or released."""
        manifest = self._life.manifest
        now_s = self._life.clock.monotonic()
        for log in self._logs_of(topic_id):
            self._lower_start(log)
            for window, gate in manifest.gates.windows(topic_id, log.number):
                log.sync_window(window, gate, now_s)
            log.waiters.wake()
        self._windows_opened(self._logs_of(topic_id))

    def _lower_start(self, log: PartitionLog) -> None:
        """Update the start of a log: a gate may have been opened in front of it."""
        manifest = self._life.manifest
        log.lower_log_start(manifest.readable.log_start(log.topic.id, log.number), self._cuts(log))

    def _sync_cuts(self, logs: Iterable[PartitionLog]) -> None:
        """Update the ranges that readers pass."""
        for log in logs:
            log.set_cuts(self._cuts(log))
            log.waiters.wake()

    def _cuts(self, log: PartitionLog) -> list[tuple[int, int]]:
        return self._life.manifest.readable.cuts_of(log.topic.id, log.number)

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
        for key, rows in self._find_extents(logs).items():
            logs[key].relist(rows)

    def _find_extents(self, wanted: Iterable[tuple[uuid.UUID, int]]) -> dict[tuple[uuid.UUID, int], list[tuple[AnyExtent, AnyRef]]]:
        """The extents that the manifest lists for some partitions, by offset."""
        found: dict[tuple[uuid.UUID, int], list[tuple[AnyExtent, AnyRef]]] = {key: [] for key in wanted}
        if not found:
            return found
        manifest = self._life.manifest
        for topic_id in {topic_id for topic_id, _ in found}:
            for gate in manifest.gates.of(topic_id).values():
                file_ref = FileRef(gate.id, gate.filled_ms)
                for file in gate.extents:
                    rows = found.get((topic_id, file.partition))
                    if rows is not None:
                        rows.append((file, file_ref))
        for topic_id, number in found:
            found[topic_id, number] += [(file, FileRef("", file.appended_ms)) for file in manifest.files.of(topic_id, number)]
        for incarnation_id, chunks in manifest.chunks.items():
            for chunk in chunks.values():
                ref: ChunkRef | None = None
                for extent in chunk.extents:
                    rows = found.get((extent.topic_id, extent.partition))
                    if rows is not None:
                        ref = ref or ChunkRef(incarnation_id, chunk)
                        rows.append((extent, ref))
        for (topic_id, number), rows in found.items():
            if topic_id in manifest.readable.cuts:
                rows[:] = [row for row in rows if manifest.readable.has(topic_id, number, row[0].base_offset, row[0].end_offset)]
            rows.sort(key=_base_offset)
        return found

    # -- opening

    def _open(self, segments: list[SegmentInfo]) -> None:
        if not segments:
            return
        self._mine.update((segment.id, segment) for segment in segments)
        origins = sorted({origin for segment in segments for origin in segment.origins})
        if origins or sum(len(segment.partitions) for segment in segments) > INSTALL_PARTITIONS_MAX:
            opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
            task = asyncio.create_task(self._open_soon(segments, origins, opening), name="open-segments")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: _complete(opening))
            watch(task, "opening of segments", self._life.fail)
        else:
            self._install([(segment, segment.partitions) for segment in segments], {})

    async def opened(self) -> None:
        """Wait until every segment that this broker got before the call is open, or belongs to another broker again."""
        if self._opening:
            await asyncio.wait(set(self._opening))

    async def _open_soon(self, segments: list[SegmentInfo], origins: list[str], opening: asyncio.Future[None]) -> None:
        """Open segments.

        Args:
            opening: completed once no caller needs to wait for these segments any more.
        """
        while True:
            try:
                producers = await load_producers(self._life.store, origins)
            except RetryError as error:
                logger.warning("segments_wait", segments=len(segments), error=error.message)
                await asyncio.sleep(RETRY_S)
                continue
            except CorruptError as error:
                if len(segments) > 1:
                    for segment in segments:
                        self._open(self._wanted([segment]))  # only those that need the damaged object wait for it
                    return
                await self._wait_damaged(segments[0], error, opening)
                self._open(self._wanted(segments))
                return
            break
        segments = self._wanted(segments)
        for segment in segments:
            self.damaged.pop(segment.id, None)
        # Many partitions take long to install, so other work gets turns of the loop between the lots.
        for lot in _lots_of(segments):
            self._install([(segment, numbers) for segment, numbers in lot if segment.id in self._mine], producers)
            await asyncio.sleep(0)

    async def _wait_damaged(self, segment: SegmentInfo, error: CorruptError, opening: asyncio.Future[None]) -> None:
        """Wait for an operator. Without the state of its producers, the retry of an acked batch would be appended again."""
        if self.damaged.get(segment.id) != error.message:
            logger.error("partitions_damaged", **self._named(segment), error=error.message)
        self.damaged[segment.id] = error.message
        _complete(opening)
        await asyncio.sleep(DAMAGED_RETRY_S)
        if segment.id not in self._mine:
            self.damaged.pop(segment.id, None)

    def _wanted(self, segments: list[SegmentInfo]) -> list[SegmentInfo]:
        """The segments that this broker still leads, and may open."""
        return [segment for segment in segments if segment.id in self._mine and segment.id not in self._abandoned]

    def _named(self, segment: SegmentInfo) -> dict[str, object]:
        """A segment in the terms of operators, for the log."""
        return {
            "topic": self._names.get(segment.topic_id, ""),
            "first_partition": segment.first_partition,
            "last_partition": segment.end_partition - 1,
        }

    def _install(self, parts: list[tuple[SegmentInfo, range]], producers: Producers) -> None:
        """Open partitions of segments."""
        manifest = self._life.manifest
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
        extents = self._find_extents((log.topic.id, log.number) for log in made if log.high_watermark > 0)
        for log in made:
            key = log.topic.id, log.number
            if key in extents:
                log.restore(extents[key], manifest.gates.windows(*key), self._cuts(log), manifest.readable.log_start(*key))
            self.by_id[log.topic.id][log.number] = log
        self._tell(made)
        self._note_change()


def _complete(opening: asyncio.Future[None]) -> None:
    if not opening.done():
        opening.set_result(None)


def _lots_of(segments: list[SegmentInfo]) -> Iterator[list[tuple[SegmentInfo, range]]]:
    """Split the partitions of segments into lots of INSTALL_PARTITIONS_MAX."""
    lot: list[tuple[SegmentInfo, range]] = []
    room = INSTALL_PARTITIONS_MAX
    for segment in segments:
        left = segment.partitions
        while left:
            lot.append((segment, left[:room]))
            left, room = left[room:], room - len(left[:room])
            if room == 0:
                yield lot
                lot, room = [], INSTALL_PARTITIONS_MAX
    if lot:
        yield lot


def _base_offset(row: tuple[AnyExtent, AnyRef]) -> int:
    return row[0].base_offset
