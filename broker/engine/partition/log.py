"""One partition on the broker that leads it: the state that the write path and the read path share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from headgate.broker.cluster.gates import Gate, GateWindow, ParquetExtent
from headgate.broker.cluster.objects import Extent, Topic
from headgate.broker.cluster.topic_config import TopicConfig, is_internal
from headgate.broker.engine.partition.epochs import Epochs
from headgate.broker.engine.partition.extents import AnyExtent, AnyRef, ChunkRef, FileRef, SealedExtents, is_live
from headgate.broker.engine.partition.open_rows import OpenRows
from headgate.broker.engine.partition.traffic import Traffic
from headgate.broker.engine.partition.waiters import Waiters
from headgate.broker.engine.partition.windows import Readers, ReaderWindow, Windows
from headgate.broker.log.batch import LENGTH_OVERHEAD_BYTES, stamp, stamp_append_time
from headgate.broker.log.chunk import stream_key
from headgate.broker.log.producers import ProducerState
from headgate.broker.log.tail import Tail, TailMemory
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason

ADOPT_BYTES_MIN = 32 << 10
"""Smallest batch, in bytes, that the broker keeps in its receive buffer. Smaller batches are copied into one shared slab, so
that a fetch can return them as one slice."""


class Appended(NamedTuple):
    """The answer to a producer. A tuple, because the broker makes one for every batch.

    `timestamp_ms` is the append time if the topic has LogAppendTime, else -1. A duplicate gets the offsets of the first append.
    """

    base_offset: int
    timestamp_ms: int
    log_start: int


Pending: TypeAlias = "tuple[PartitionLog, memoryview, int, int, int]"
"""A batch on its way to the store: (partition, batch, base offset, next offset, greatest timestamp in ms)."""


class PartitionLog:
    """The log of one partition, for as long as this broker leads it in one segment. Only its own methods change its attributes.

    Offsets: ``log_start <= high_watermark <= next_offset``. Records in [log_start, high_watermark) are durable and readable.
    Records in [high_watermark, next_offset) are on their way to the store.

    Args:
        end_offset: the first offset that this lead may assign. All offsets below it are durable, or will never have a record.
        producers: the state of the idempotent producers at `end_offset`; None if no producer wrote.
    """

    __slots__ = (
        "closed",
        "config",
        "epochs",
        "high_watermark",
        "internal",
        "leader_epoch",
        "log_start",
        "next_offset",
        "number",
        "open",
        "producers_state",
        "readers",
        "refusal",
        "sealed",
        "segment_id",
        "size_bytes",
        "stream",
        "tail",
        "topic",
        "traffic",
        "waiters",
        "windows",
    )

    def __init__(
        self,
        topic: Topic,
        number: int,
        config: TopicConfig,
        segment_id: int,
        leader_epoch: int,
        memory: TailMemory,
        end_offset: int = 0,
        producers: ProducerState | None = None,
    ) -> None:
        self.topic = topic
        self.number = number
        self.config = config
        self.segment_id = segment_id
        self.refusal: HeadgateError | None = None
        """The reason why the log refuses appends, or None. Either the segment is being handed over, or the log is `closed`."""
        self.closed: HeadgateError | None = None
        """The reason why this broker no longer serves the partition, or None. Either the topic was deleted, or another broker
        leads it."""
        self.internal = is_internal(topic.name)
        """True if only the broker itself writes to the topic."""
        self.stream = stream_key(topic.id.bytes, number)
        self.leader_epoch = leader_epoch
        self.log_start = 0
        self.next_offset = self.high_watermark = end_offset
        self.size_bytes = 0
        self.tail = Tail(memory)
        self.sealed = SealedExtents()
        self.open = OpenRows()
        self.epochs = Epochs()
        self.producers_state = ProducerState() if producers is None else producers
        self.waiters = Waiters()
        self.windows = Windows()
        self.readers = Readers()
        self.traffic = Traffic()

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic.name}-{self.number} [{self.log_start}, {self.high_watermark}, {self.next_offset}))"

    # -- life

    def restore(
        self,
        extents: Sequence[tuple[AnyExtent, AnyRef]],
        windows: Iterable[tuple[GateWindow, Gate]],
        cuts: Iterable[tuple[int, int]],
        log_start: int,
    ) -> None:
        """Take over what the manifest lists for this partition. Called once, before the log serves a request.

        Args:
            extents: by offset.
            windows: each with its gate, by offset.
        """
        epochs: list[tuple[int, int]] = []
        for extent, ref in extents:
            self.sealed.add(extent, ref)
            self.size_bytes += extent.data_bytes
            epochs.append((extent.base_offset, extent.leader_epoch))
        self.windows.note_files(extent for extent, _ in extents)
        assert not extents or extents[-1][0].end_offset <= self.high_watermark, "a segment begins behind all that is listed"
        for window, gate in windows:
            self.windows.add(ReaderWindow(window.base_offset, window.end_offset, gate.id, gate.state, live=gate.live))
            epochs.append((window.base_offset, window.leader_epoch))
        self.set_cuts(cuts)
        for base_offset, epoch in sorted(epochs):
            self.epochs.note(epoch, base_offset)
        self.set_log_start(log_start)

    def configure(self, topic: Topic, config: TopicConfig) -> None:
        """Called when the manifest has another state of the topic."""
        self.topic, self.config = topic, config

    def refuse(self, error: HeadgateError) -> None:
        """Refuse appends from now on, because the segment is being handed over."""
        self.refusal = error

    def close(self, error: HeadgateError) -> None:
        """Called when this broker no longer leads the partition. Wakes all waiting readers."""
        self.refusal = self.closed = error
        self.tail.clear()
        self.waiters.wake()

    # -- records

    def assign(
        self, buffer: memoryview, position: int, size: int, records: int, timestamp_max: int, now_ms: int, adopt: bytearray | None
    ) -> Pending:
        """Give a checked batch the next offsets, and keep it in the tail. The batch becomes readable with `committed`.

        Args:
            buffer: contains the batch: `size` bytes from `position`.
            records: number of its records. timestamp_max: the greatest timestamp of its records in ms.
            now_ms: the wall clock in ms.
            adopt: the buffer behind the view `buffer`, if the tail may keep it instead of a copy.

        Returns:
            The stamped batch, for the WAL.
        """
        base_offset = self.next_offset
        self.next_offset = next_offset = base_offset + records
        tail = self.tail
        if adopt is not None and size >= ADOPT_BYTES_MIN and size * 2 > len(adopt):
            kept = tail.adopt(adopt, position, size, base_offset, next_offset).view[position : position + size]
        else:
            batch = buffer[position : position + size]
            copied = tail.append_copy(batch, size, base_offset, next_offset)
            if copied is None:
                tail.open_slab(size, base_offset)
                copied = tail.append_copy(batch, size, base_offset, next_offset)
                assert copied is not None, "a new slab has room"
            kept = copied
        stamp(kept, 0, base_offset, size - LENGTH_OVERHEAD_BYTES, self.leader_epoch)
        if self.config.log_append_time:
            timestamp_max = now_ms
            stamp_append_time(kept, 0, size, now_ms)
        return self, kept, base_offset, next_offset, timestamp_max

    def committed(self, batches: Iterable[Pending], chunk_number: int, position: int, now_ms: int) -> int:
        """Called when assigned batches are durable: the high watermark moves. The caller then wakes the waiters.

        Args:
            batches: in the order of `assign`, at least one.
            position: of the first batch in the chunk. The others follow it without a gap.
            now_ms: the wall clock in ms.

        Returns:
            The position behind the last batch.
        """
        rows = self.open.rows.offsets
        count = len(rows)
        self.high_watermark, end = self.open.add(batches, chunk_number, position, now_ms)
        self.epochs.note(self.leader_epoch, rows[count])
        self.size_bytes += end - position
        self.traffic.appended(end - position, len(rows) - count)
        return end

    def listed(self, extents: Sequence[Extent], ref: ChunkRef) -> None:
        """Called when the manifest lists the oldest open chunk. Its rows leave memory, and its extents take their place."""
        self.open.drop_chunk(ref.chunk.number, ref.appended_ms)
        for extent in extents:
            self.sealed.add(extent, ref)
        self.set_log_start(self.log_start)

    def folded(self, base_offset: int, end_offset: int, extents: Sequence[AnyExtent], refs: Sequence[AnyRef]) -> None:
        """Called when the records of [base_offset, end_offset) were moved: `extents`, by offset, now have all of them."""
        kept = [(extent, ref) for extent, ref in zip(extents, refs, strict=True) if extent.end_offset > self.log_start]
        if kept:
            self.size_bytes += self.sealed.replace(
                base_offset, end_offset, [extent for extent, _ in kept], [ref for _, ref in kept]
            )
            self.windows.note_files(extent for extent, _ in kept)

    def relist(self, extents: Iterable[tuple[AnyExtent, AnyRef]]) -> None:
        """Replace all extents by those that the manifest lists now, by offset. Chunks may have been folded meanwhile."""
        first_open = self.high_watermark if self.open.first_offset is None else self.open.first_offset
        self.size_bytes -= self.sealed.clear()
        for extent, ref in extents:
            if extent.base_offset < first_open or not isinstance(extent, Extent):  # else its rows are still in `open`
                self.sealed.add(extent, ref)
                self.size_bytes += extent.data_bytes
        self.windows.note_files(self.sealed.extents)

    @property
    def stable_end(self) -> int:
        """The last stable offset: readers of committed records read up to it."""
        transactions = self.producers_state.transactions
        return max(transactions.stable_end(self.high_watermark), self.log_start)

    # -- windows

    @property
    def has_live(self) -> bool:
        """True if the log has live records: readable ones, or some on their way to the store."""
        if self.open or self.next_offset > max(self.high_watermark, self.windows.end):
            return True
        return any(is_live(extent) for extent in reversed(self.sealed.extents))

    def hold(self, gate_id: str, rows: int, term: int) -> tuple[int, int]:
        """Reserve the next `rows` offsets for a gate, at once. Returns [base, end). A repeated call for the same gate returns
        the same range."""
        held = self.windows.find(gate_id, "held")
        if held is not None and held.end_offset - held.base_offset == rows:
            held.term = term
            return held.base_offset, held.end_offset
        base = self.next_offset
        if rows:
            self.next_offset += rows
            self.windows.add(ReaderWindow(base, self.next_offset, gate_id, "held", term))
        return base, base + rows

    def drop_holds(self, gate_id: str | None = None, but_of_term: int | None = None) -> None:
        """Release reserved offsets, because their gate is not opened. From now on they are gaps.

        Args:
            gate_id: of one gate; None: of all gates.
            but_of_term: keep those of this leader's term; None: keep none.
        """
        if self.windows.drop_holds(gate_id, but_of_term):
            self.step()  # a gate may follow it directly
            self.waiters.wake()

    def open_window(self, window: GateWindow, gate: Gate, now_s: float) -> None:
        """Called when the manifest has a gate. If this lead reserved the offsets, readers at the end of the log may pass the
        window."""
        if not window.rows:
            return
        mine = self.windows.find(gate.id, "held")
        if mine is None or mine.base_offset != window.base_offset:
            self.drop_holds(gate.id)
            mine = ReaderWindow(window.base_offset, window.end_offset, gate.id, gate.state)
            self.windows.add(mine)
        mine.state, mine.live = gate.state, gate.live
        if gate.place == "front":
            self.epochs.note_front(window.base_offset)
            return
        is_empty = window.base_offset == self.log_start
        mine.past = self.readers.standing(self.high_watermark, window.base_offset, now_s, is_empty=is_empty)
        self.next_offset = max(self.next_offset, window.end_offset)
        self.epochs.note(window.leader_epoch, window.base_offset)
        self.step()
        self.waiters.wake()

    def sync_window(self, window: GateWindow, gate: Gate, now_s: float) -> None:
        """Make one window agree with the manifest. The gate may have been opened, filled or released meanwhile."""
        known = self.windows.next(window.base_offset)
        if known is not None and known.base_offset == window.base_offset and known.state != "held":
            known.state, known.gate_id = gate.state, gate.id
        else:
            self.open_window(window, gate, now_s)

    def fill_window(self, gate_id: str, extents: Sequence[ParquetExtent], ref: FileRef) -> None:
        """Called when a gate's files are committed. Waiting readers continue."""
        window = self.windows.find(gate_id, "open", "filled")
        if window is not None:
            window.fill()
            self.windows.forget_readers()
        readable = [extent for extent in extents if extent.end_offset > self.log_start]
        self.sealed.add_run(readable, ref)
        self.size_bytes += sum(extent.data_bytes for extent in readable)
        self.waiters.wake()

    def release_window(self, gate_id: str) -> None:
        """Called when a gate was released. Readers pass its window."""
        window = self.windows.find(gate_id, "open")
        if window is not None:
            window.state = "released"
            window.past.clear()
            self.waiters.wake()

    def step(self, listed_end: int | None = None) -> None:
        """Move the end of the log past a window of the manifest, if the durable records end directly before the window.

        Args:
            listed_end: on a lane, the end of the records that the manifest lists, from which on only windows are known.
        """
        if listed_end is not None:
            self.high_watermark = listed_end
            self.next_offset = max(self.next_offset, listed_end)
        end = offset = self.high_watermark
        while offset < self.windows.end_of_all:
            window = self.windows.next(offset)
            if window is None or window.base_offset > offset or window.state == "held":
                break
            offset = window.end_offset
            if window.gate_id:  # without a gate, only this lead knows of the window: the next lead would begin before it
                end = offset
        if end > self.high_watermark:
            self.high_watermark = end
            self.waiters.wake()

    def set_log_start(self, offset: int) -> None:
        """Make records below `offset` unreadable and free their memory."""
        self.log_start = max(self.log_start, offset)
        self.tail.drop_below(self.log_start)
        self.size_bytes -= self.sealed.drop_below(self.log_start)
        self.producers_state.transactions.drop_below(self.log_start)
        if self.windows.end_of_all:
            # `Checkpointer` still cuts the unlisted rows at the windows between them, also rows that readers cannot read any more.
            first_open = self.open.first_offset
            self.windows.drop_below(self.log_start, self.log_start if first_open is None else min(self.log_start, first_open))
        self.epochs.drop_below(self.log_start)

    def lower_log_start(self, offset: int, cuts: Iterable[tuple[int, int]]) -> None:
        """Lower the start of the log to `offset`, because offsets were added in front. Records below the old start stay deleted
        (`cuts`)."""
        self.log_start = min(self.log_start, offset)
        self.set_cuts(cuts)

    def set_cuts(self, cuts: Iterable[tuple[int, int]]) -> None:
        """Set the deleted ranges. A range was below the log's start when a gate was opened in front, or it was skipped."""
        self.windows.set_cuts(cuts)
        for low, high in self.windows.cuts:
            self.size_bytes -= self.sealed.drop_within(low, high)

    def out_of_range(self, offset: int) -> InvalidError:
        """The error for an offset that the log does not have."""
        return InvalidError(
            Reason.OFFSET_OUT_OF_RANGE,
            f"offset is out of range. topic=`{self.topic.name}` partition=`{self.number}` offset=`{offset}` "
            f"first=`{self.log_start}` end=`{self.high_watermark}`",
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if the attributes contradict each other."""
        assert self.log_start <= self.high_watermark <= self.next_offset
        assert list(self.open.rows.offsets) == sorted(self.open.rows.offsets)
        assert self.epochs.starts == sorted(self.epochs.starts)
        assert self.sealed.records(0) == sum(extent.rows for extent in self.sealed.extents)
        if self.open:
            chunks = [extent for extent in self.sealed.extents if isinstance(extent, Extent)]
            assert not chunks or chunks[-1].end_offset <= self.open.rows.offsets[0]


def records_in(log: PartitionLog) -> int:
    """The readable records: offsets that gates did not fill are none. Counts the end marks of transactions."""
    first_open = log.open.first_offset
    start = log.high_watermark if first_open is None else max(first_open, log.log_start)
    return log.sealed.records(log.log_start) + sum(end - base for base, end in log.windows.without(start, log.high_watermark))
