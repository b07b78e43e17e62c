"""One partition on the broker that leads it: the state that the write path and the read path share."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headgate.broker.cluster.gates import FRONT_EPOCH, Gate, GateWindow, ParquetExtent
from headgate.broker.cluster.objects import Chunk, Extent, Topic
from headgate.broker.cluster.topic_config import TopicConfig, is_internal
from headgate.broker.engine.partition.windows import NOBODY, Readers, ReaderWindow, Windows
from headgate.broker.log.batch import LENGTH_OVERHEAD_BYTES, marker_batch, stamp, stamp_append_time
from headgate.broker.log.chunk import stream_key
from headgate.broker.log.index import BatchIndex
from headgate.broker.log.producers import ProducerInfo, ProducerState
from headgate.broker.log.tail import Tail, TailMemory
from headgate.broker.log.transactions import AbortedTransaction
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


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRef:
    """A sealed chunk, shared by its extents."""

    incarnation_id: str
    chunk: Chunk

    @property
    def appended_ms(self) -> int:
        return self.chunk.appended_ms


@dataclass(frozen=True, slots=True, eq=False)
class FileRef:
    """A gate's files, shared by its extents, or a folded file: then `gate_id` is empty. `appended_ms`: the wall-clock time in ms of
    the commit that filled the gate, or of the newest append of a record in the folded file."""

    gate_id: str
    appended_ms: int


AnyExtent: TypeAlias = Extent | ParquetExtent
AnyRef: TypeAlias = ChunkRef | FileRef


class SealedExtents:
    """The extents that the manifest lists for one partition, by offset: of chunks (`ChunkRef`) and of Parquet files (`FileRef`).

    There may be gaps between them, but they never overlap. `changes` counts the changes.
    """

    __slots__ = ("_bases", "changes", "extents", "refs")

    def __init__(self) -> None:
        self._bases = array("q")
        self.extents: list[AnyExtent] = []
        self.refs: list[AnyRef] = []
        self.changes = 0

    def __len__(self) -> int:
        return len(self.extents)

    def add(self, extent: AnyExtent, ref: AnyRef) -> None:
        self.add_run([extent], ref)

    def add_run(self, extents: Sequence[AnyExtent], ref: AnyRef) -> None:
        """Add extents, by offset. No existing extent lies between them."""
        if not extents:
            return
        at = bisect_left(self._bases, extents[0].base_offset)
        assert at == 0 or self.extents[at - 1].end_offset <= extents[0].base_offset, "extents overlap"
        assert at == len(self.extents) or extents[-1].end_offset <= self._bases[at], "extents overlap"
        self.changes += 1
        self._bases[at:at] = array("q", [extent.base_offset for extent in extents])
        self.extents[at:at] = extents
        self.refs[at:at] = [ref] * len(extents)

    def find(self, offset: int) -> int:
        """The row of the first extent that ends after `offset`; len(self) if all end before."""
        row = max(bisect_right(self._bases, offset) - 1, 0)
        while row < len(self.extents) and self.extents[row].end_offset <= offset:
            row += 1
        return row

    def replace(self, base_offset: int, end_offset: int, extents: Sequence[AnyExtent], refs: Sequence[AnyRef]) -> int:
        """Replace the extents in [base_offset, end_offset) by others, by offset, that have all their records. Returns the number of
        bytes by which these are larger."""
        first = bisect_left(self._bases, base_offset)
        end = bisect_left(self._bases, end_offset)
        if first == end:
            return 0
        assert self.extents[end - 1].end_offset <= end_offset, "extents are folded whole"
        self.changes += 1
        replaced = sum(old.data_bytes for old in self.extents[first:end])
        self._bases[first:end] = array("q", [extent.base_offset for extent in extents])
        self.extents[first:end] = extents
        self.refs[first:end] = refs
        return sum(extent.data_bytes for extent in extents) - replaced

    def drop_below(self, offset: int) -> int:
        """Forget extents that end at or below `offset`. Returns the bytes of batches in them."""
        rows = 0
        freed = 0
        while rows < len(self.extents) and self.extents[rows].end_offset <= offset:
            freed += self.extents[rows].data_bytes
            rows += 1
        self.changes += 1
        del self._bases[:rows]
        del self.extents[:rows]
        del self.refs[:rows]
        return freed

    def drop_within(self, base_offset: int, end_offset: int) -> int:
        """Forget extents of chunks, and folded files, that lie completely in [base_offset, end_offset). Returns their bytes."""
        first = bisect_left(self._bases, base_offset)
        end = first
        while end < len(self.extents) and self.extents[end].end_offset <= end_offset and is_live(self.extents[end]):
            end += 1
        freed = sum(extent.data_bytes for extent in self.extents[first:end])
        self.changes += 1
        del self._bases[first:end], self.extents[first:end], self.refs[first:end]
        return freed

    def clear(self) -> int:
        """Forget all extents. Returns the bytes of batches in them."""
        freed = sum(extent.data_bytes for extent in self.extents)
        self.changes += 1
        del self._bases[:], self.extents[:], self.refs[:]
        return freed


def is_live(extent: AnyExtent) -> bool:
    """True if the records came from producers, not with a gate."""
    return isinstance(extent, Extent) or (extent.folded and not extent.history)


Reach: TypeAlias = tuple[int, int, bool]
"""The offsets that one read covers: (first offset, end offset, True if they are in files). See `PartitionLog.reach`."""
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
        "appended_ms",
        "bytes_in",
        "bytes_out",
        "closed",
        "config",
        "cuts",
        "epochs",
        "files_end",
        "high_watermark",
        "internal",
        "leader_epoch",
        "log_start",
        "next_offset",
        "number",
        "open",
        "open_chunks",
        "open_since_ms",
        "producers_state",
        "readers",
        "refusal",
        "requests",
        "sealed",
        "segment_id",
        "size_bytes",
        "stream",
        "tail",
        "topic",
        "waiters",
        "window_waiters",
        "windows",
        "windows_end",
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
        self.open = BatchIndex()
        """Index rows of durable batches in chunks that the manifest does not list yet."""
        self.open_chunks: list[tuple[int, int]] = []
        """(first row in `open`, chunk number), ascending: the chunk that contains each row."""
        self.appended_ms = 0
        """Wall-clock time in ms at which the newest row of `open` became durable. Meaningless while `open` is empty."""
        self.open_since_ms = 0
        """Wall-clock time in ms before which no row of `open` became durable. Meaningless while `open` is empty."""
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, first offset written in it), ascending in both. OffsetForLeaderEpoch is answered from it (KIP-101)."""
        self.producers_state = ProducerState() if producers is None else producers
        self.waiters: dict[Callable[[], None], None] = {}
        """Called in the order of their subscriptions."""
        self.window_waiters: dict[Callable[[], None], None] = {}
        """Waiters of readers at a window. Live records after the window do not concern them."""
        self.windows = Windows()
        """The ranges without live records: gates, and offsets that are reserved for gates."""
        self.windows_end = 0
        """The end of the last window, cut or folded file. The records from here on are in batches, in memory or in chunks."""
        self.files_end = 0
        """No folded file ends behind this offset."""
        self.cuts: list[tuple[int, int]] = []
        """Deleted ranges of offsets above the log's start, by offset."""
        self.readers = Readers()
        self.bytes_in = 0
        self.bytes_out = 0
        self.requests = 0
        """Number of appends, and of fetches that returned records, since the segment was opened."""

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
        self._note_files(extent for extent, _ in extents)
        assert not extents or extents[-1][0].end_offset <= self.high_watermark, "a segment begins behind all that is listed"
        for window, gate in windows:
            self._add_window(ReaderWindow(window.base_offset, window.end_offset, gate.id, gate.state, live=gate.live))
            epochs.append((window.base_offset, window.leader_epoch))
        self.set_cuts(cuts)
        for base_offset, epoch in sorted(epochs):
            self._note_epoch(epoch, base_offset)
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
        self.wake()

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
        """Called when assigned batches are durable: the high watermark moves. The caller then wakes the waiters (`wake_live`).

        Args:
            batches: in the order of `assign`, at least one.
            position: of the first batch in the chunk. The others follow it without a gap.
            now_ms: the wall clock in ms.

        Returns:
            The position behind the last batch.
        """
        index, first_at = self.open, position
        rows = len(index)
        add_offset, add_timestamp, add_position, add_size = index.adders
        for _, batch, base_offset, next_offset, timestamp_max in batches:  # noqa: B007  # the run ends with its last item
            size = len(batch)
            add_offset(base_offset)
            add_timestamp(timestamp_max)
            add_position(position)
            add_size(size)
            position += size
        if not self.open_chunks or self.open_chunks[-1][1] != chunk_number:
            self.open_chunks.append((rows, chunk_number))
            self._note_epoch(self.leader_epoch, index.offsets[rows])
        if not rows:
            self.open_since_ms = now_ms
        self.high_watermark = next_offset
        self.appended_ms = now_ms
        self.size_bytes += position - first_at
        self.bytes_in += position - first_at
        self.requests += len(index) - rows
        return position

    def listed(self, extents: Sequence[Extent], ref: ChunkRef) -> None:
        """Called when the manifest lists the oldest open chunk. Its rows leave memory, and its extents take their place."""
        first, number = self.open_chunks.pop(0)
        assert first == 0 and number == ref.chunk.number, "chunks are listed in order"
        rows = self.open_chunks[0][0] if self.open_chunks else len(self.open)
        self.open.drop(rows)
        self.open_chunks = [(row - rows, chunk_number) for row, chunk_number in self.open_chunks]
        self.open_since_ms = ref.appended_ms
        for extent in extents:
            self.sealed.add(extent, ref)
        self.set_log_start(self.log_start)

    def folded(self, extent: Extent, ref: ChunkRef) -> None:
        """Called when chunks were folded into one. `extent` has all their rows of this partition."""
        self.size_bytes += self.sealed.replace(extent.base_offset, extent.end_offset, [extent], [ref])

    def folded_to_files(self, base_offset: int, end_offset: int, files: Sequence[ParquetExtent]) -> None:
        """Called when the records of [base_offset, end_offset) were moved to files, by offset."""
        readable = [file for file in files if file.end_offset > self.log_start]
        if readable:
            refs = [FileRef("", file.appended_ms) for file in readable]
            self.size_bytes += self.sealed.replace(base_offset, end_offset, readable, refs)
            self._note_files(readable)

    def _note_files(self, extents: Iterable[AnyExtent]) -> None:
        ends = (extent.end_offset for extent in extents if isinstance(extent, ParquetExtent) and extent.folded)
        self.files_end = max(self.files_end, max(ends, default=0))
        self._note_windows_end()

    def relist(self, extents: Iterable[tuple[AnyExtent, AnyRef]]) -> None:
        """Replace all extents by those that the manifest lists now, by offset. Chunks may have been folded meanwhile."""
        first_open = self.open.offsets[0] if len(self.open) else self.high_watermark
        self.size_bytes -= self.sealed.clear()
        for extent, ref in extents:
            if extent.base_offset < first_open or not isinstance(extent, Extent):  # else its rows are still in `open`
                self.sealed.add(extent, ref)
                self.size_bytes += extent.data_bytes
        self._note_files(self.sealed.extents)

    def fetched(self, size_bytes: int, requests: int = 1) -> None:
        """Count the records of an answer. `requests`: number of fetches that it answers."""
        self.bytes_out += size_bytes
        self.requests += requests

    # -- waiters

    def subscribe(self, waiter: Callable[[], None], *, at_window: bool = False) -> None:
        """Call `waiter` on the loop after each move of the high watermark, until `unsubscribe`.

        Args:
            at_window: call it only when a window has changed (`is_waiting`), or when the log is closed.
        """
        (self.window_waiters if at_window else self.waiters)[waiter] = None

    def unsubscribe(self, waiter: Callable[[], None]) -> None:
        self.waiters.pop(waiter, None)
        self.window_waiters.pop(waiter, None)

    def wake(self) -> None:
        """Make all waiters look again."""
        for waiter in (*self.waiters, *self.window_waiters):
            waiter()

    def wake_live(self) -> None:
        """Make the waiters for live records look again."""
        for waiter in list(self.waiters):
            waiter()

    def is_waiting(self, offset: int, reader: int) -> bool:
        """True if a reader waits for history at a window. Records written after the window do not end its wait."""
        if offset >= self.windows_end:
            return False
        begin, end, _ = self.reach(offset, reader)
        return begin == end and begin < self.high_watermark

    @property
    def stable_end(self) -> int:
        """The last stable offset: readers of committed records read up to it."""
        transactions = self.producers_state.transactions
        return max(transactions.stable_end(self.high_watermark), self.log_start)

    def aborted(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [offset, end_offset), by their first offset."""
        return self.producers_state.transactions.aborted(offset, end_offset)

    def producers(self) -> list[ProducerInfo]:
        return list(self.producers_state.infos())

    def _note_epoch(self, epoch: int, base_offset: int) -> None:
        """Note the offset at which a leader epoch begins: the base offset of its first batch."""
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, base_offset))

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(greatest known epoch not above `epoch`, offset at which the next epoch begins, or the high watermark); KIP-101,
        KIP-279.

        If all records of an epoch are deleted, returns as Kafka does (`epoch`, first offset of the next known epoch). So a
        consumer that has read all of them continues at its position. Returns (-1, -1) if `epoch` is negative, or newer than this
        partition's.
        """
        if epoch == self.leader_epoch:
            return epoch, self.high_watermark
        if not 0 <= epoch < self.leader_epoch:
            return -1, -1
        row = bisect_right(self.epochs, (epoch, 1 << 63)) - 1
        end = self.epochs[row + 1][1] if row + 1 < len(self.epochs) else self.high_watermark
        return epoch if row < 0 else self.epochs[row][0], end

    def open_chunk_of(self, row: int) -> tuple[int, int]:
        """(chunk number, end row of that chunk) for a row in `open`."""
        at = bisect_right(self.open_chunks, (row, 1 << 63)) - 1
        end = self.open_chunks[at + 1][0] if at + 1 < len(self.open_chunks) else len(self.open)
        return self.open_chunks[at][1], end

    def open_rows(self, chunk_number: int) -> tuple[int, int] | None:
        """The rows [first, end) of a chunk in `open`; None if the chunk has none."""
        for at, (first, number) in enumerate(self.open_chunks):
            if number == chunk_number:
                return first, self.open_chunks[at + 1][0] if at + 1 < len(self.open_chunks) else len(self.open)
        return None

    # -- windows

    def reach(self, offset: int, reader: int = NOBODY, *, skip: bool = False, at_rest: bool = False) -> Reach:
        """Plan a read from `offset`, which is at least the log's start.

        The returned range is either completely in files or completely in batches. If there is nothing to read now, it is (begin,
        begin, False).

        Args:
            skip: pass windows that have no history yet. A look-up that must not wait does this.
            at_rest: pass only windows that the reader passes also without a record behind them.
        """
        asked = offset
        while offset < self.windows_end:
            end_offset = self.high_watermark
            for low, high in self.cuts:
                if low <= offset < high:
                    offset = high
                    if not skip:
                        # The last batch before a cut may reach into it. A caller that asks for less than `high` would get deleted
                        # records.
                        return offset, offset, False
                elif offset < low < end_offset:
                    end_offset = low
            window = self.windows.next(offset)
            if window is None:
                return self._alike(offset, max(end_offset, offset))
            if offset < window.base_offset:
                if window.past and offset < window.past.get(reader, offset):
                    del window.past[reader]  # the reader went back: it wants to read all records
                if self.high_watermark < window.base_offset:
                    return self._alike(offset, max(end_offset, offset))
                if self._has_records(offset, window.base_offset):
                    return self._alike(offset, min(end_offset, window.base_offset))
                offset = window.base_offset  # a dead lead had reserved these offsets for a gate that was never opened
            if reader in window.past and self._passes(window, reader, asked, at_rest):
                pass
            elif window.waits:
                if not skip:
                    return offset, offset, False
            elif window.state == "filled":
                row = self.sealed.find(offset)
                if row < len(self.sealed) and self.sealed.extents[row].base_offset < window.end_offset:
                    return max(offset, self.sealed.extents[row].base_offset), window.end_offset, True
            offset = window.end_offset
        return offset, max(self.high_watermark, offset), False

    def _alike(self, offset: int, end_offset: int) -> Reach:
        """The first part of a range outside of windows and cuts that is completely in folded files, or completely in batches."""
        if offset >= min(self.files_end, end_offset):
            return offset, end_offset, False
        row = self.sealed.find(offset)
        if row == len(self.sealed):
            return offset, end_offset, False
        extent = self.sealed.extents[row]
        if isinstance(extent, Extent):
            return offset, min(end_offset, extent.end_offset), False
        begin = max(offset, extent.base_offset)
        return (begin, min(end_offset, extent.end_offset), True) if begin < end_offset else (offset, end_offset, False)

    def _passes(self, window: ReaderWindow, reader: int, asked: int, at_rest: bool) -> bool:
        """True if a reader of `window.past` that asks for `asked` passes the window."""
        behind = window.state == "filled" and self.readers.was_at(reader, window.end_offset)
        if asked > window.base_offset or behind:
            del window.past[reader]  # it was behind the window, or sought its records
            return False
        return window.live or (window.waits and not at_rest)

    def seek(self, reader: int, offset: int) -> None:
        """Called when a reader looked for a time, whose first record is at `offset`: it may want the records of a window."""
        window = self.windows.next(offset) if offset < self.windows_end else None
        if window is not None and window.base_offset <= offset:
            window.past.pop(reader, None)

    def read_memory(self, offset: int, reached: Reach, max_bytes: int, reader: int = NOBODY) -> list[memoryview] | None:
        """Whole batches from the tail, for the reader at `offset` to which `reach` gave `reached`.

        Returns:
            [] if there is nothing to read now. None if the records are not in memory.
        """
        begin, end, in_files = reached
        if in_files:
            return None
        slices = self.tail.read(begin, end, max_bytes)
        return self.over(offset, reader) if slices == [] and offset < self.windows_end else slices

    def over(self, offset: int, reader: int = NOBODY) -> list[memoryview]:
        """A marker batch for a reader at `offset` if the next offsets have no record for it and never will. `reach` finds nothing
        to read there.

        A reader continues after the last record that it received. Without records it would stay at `offset`, below the high
        watermark. So the reader gets a batch that shows no record, at the last of these offsets.

        Returns:
            One batch. [] if the reader has records to read, or records to wait for.
        """
        begin, end, _ = self.reach(offset, reader, at_rest=True)
        begin, end = min(begin, self.high_watermark), min(end, self.high_watermark)
        if begin == offset or begin < end:
            return []
        row = bisect_right(self.epochs, begin - 1, key=lambda epoch: epoch[1]) - 1
        return [marker_batch(begin - 1, self.leader_epoch if row < 0 else self.epochs[row][0])]

    def _has_records(self, offset: int, end_offset: int) -> bool:
        """True if there are records between `offset` and the next window, which begins at `end_offset`."""
        if len(self.open) and self.open.offsets[0] < end_offset:
            return True
        row = self.sealed.find(offset)
        return row < len(self.sealed) and self.sealed.extents[row].base_offset < end_offset

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
            self._add_window(ReaderWindow(base, self.next_offset, gate_id, "held", term))
        return base, base + rows

    def drop_holds(self, gate_id: str | None = None, but_of_term: int | None = None) -> None:
        """Release reserved offsets, because their gate is not opened. From now on they are gaps.

        Args:
            gate_id: of one gate; None: of all gates.
            but_of_term: keep those of this leader's term; None: keep none.
        """
        dropped = False
        for window in self.windows.rows:
            if window.state == "held" and (gate_id is None or window.gate_id == gate_id) and window.term != but_of_term:
                window.state, window.gate_id, dropped = "released", "", True
        if dropped:
            self.step()  # a gate may follow it directly
            self.wake()

    def open_window(self, window: GateWindow, gate: Gate, now_s: float) -> None:
        """Called when the manifest has a gate. If this lead reserved the offsets, readers at the end of the log may pass the
        window."""
        if not window.rows:
            return
        mine = self.windows.find(gate.id, "held")
        if mine is None or mine.base_offset != window.base_offset:
            self.drop_holds(gate.id)
            mine = ReaderWindow(window.base_offset, window.end_offset, gate.id, gate.state)
            self._add_window(mine)
        mine.state, mine.live = gate.state, gate.live
        if gate.place == "front":
            self._note_front(window.base_offset)
            return
        is_empty = window.base_offset == self.log_start
        mine.past = self.readers.standing(self.high_watermark, window.base_offset, now_s, is_empty=is_empty)
        self.next_offset = max(self.next_offset, window.end_offset)
        self._note_epoch(window.leader_epoch, window.base_offset)
        self.step()
        self.wake()

    def _note_front(self, base_offset: int) -> None:
        """Note the offset at which the first epoch begins, after offsets were added in front of all others."""
        if self.epochs and self.epochs[0][0] == FRONT_EPOCH:
            base_offset = min(base_offset, self.epochs.pop(0)[1])
        self.epochs.insert(0, (FRONT_EPOCH, base_offset))

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
        self.wake()

    def release_window(self, gate_id: str) -> None:
        """Called when a gate was released. Readers pass its window."""
        window = self.windows.find(gate_id, "open")
        if window is not None:
            window.state = "released"
            window.past.clear()
            self.wake()

    def rename_window(self, window: GateWindow, gate_id: str) -> None:
        """Give the window of a released gate its new id."""
        for one in self.windows.rows:
            if one.base_offset == window.base_offset:
                one.gate_id = gate_id

    def step(self) -> None:
        """Move the end of the log past a window of the manifest, if the durable records end directly before the window."""
        end = offset = self.high_watermark
        while offset < self.windows_end:
            window = self.windows.next(offset)
            if window is None or window.base_offset > offset or window.state == "held":
                break
            offset = window.end_offset
            if window.gate_id:  # without a gate, only this lead knows of the window: the next lead would begin before it
                end = offset
        if end > self.high_watermark:
            self.high_watermark = end
            self.wake()

    def _add_window(self, window: ReaderWindow) -> None:
        """Add a window that is new on this lead."""
        self.windows.add(window)
        self._note_windows_end()

    def _note_windows_end(self) -> None:
        self.windows_end = max(self.windows.end, self.files_end, max((high for _, high in self.cuts), default=0))

    def set_log_start(self, offset: int) -> None:
        """Make records below `offset` unreadable and free their memory."""
        self.log_start = max(self.log_start, offset)
        self.tail.drop_below(self.log_start)
        self.size_bytes -= self.sealed.drop_below(self.log_start)
        self.producers_state.transactions.drop_below(self.log_start)
        if self.windows_end:
            # `Checkpointer` still cuts the unlisted rows at the windows between them, also rows that readers cannot read any more.
            self.windows.drop_below(min(self.log_start, self.open.offsets[0]) if self.open else self.log_start)
            self.cuts = [cut for cut in self.cuts if cut[1] > self.log_start]
            self._note_windows_end()
        while len(self.epochs) > 1 and self.epochs[1][1] <= self.log_start:
            del self.epochs[0]

    def lower_log_start(self, offset: int, cuts: Iterable[tuple[int, int]]) -> None:
        """Lower the start of the log to `offset`, because offsets were added in front. Records below the old start stay deleted
        (`cuts`)."""
        self.log_start = min(self.log_start, offset)
        self.set_cuts(cuts)

    def set_cuts(self, cuts: Iterable[tuple[int, int]]) -> None:
        """Set the deleted ranges. A range was below the log's start when a gate was opened in front, or it was skipped."""
        self.cuts = list(cuts)
        for low, high in self.cuts:
            self.size_bytes -= self.sealed.drop_within(low, high)
        self._note_windows_end()

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
        assert list(self.open.offsets) == sorted(self.open.offsets)
        assert self.epochs == sorted(self.epochs)
        if self.open:
            chunks = [extent for extent in self.sealed.extents if isinstance(extent, Extent)]
            assert not chunks or chunks[-1].end_offset <= self.open.offsets[0]
