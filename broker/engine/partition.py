"""One partition on the broker that leads it: what the write path and the read path share."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from broker.cluster.manifest import Chunk, Extent, Topic
from broker.cluster.topic_config import TopicConfig, is_internal
from broker.log.buffers import BufferPool
from broker.log.chunk import stream_key
from broker.log.index import BatchIndex
from broker.log.producers import ProducerInfo, ProducerState
from broker.log.tail import Tail
from broker.runtime.errors import HeadgateError


class Appended(NamedTuple):
    """What a producer is told. A tuple, because one is made for every batch.

    `timestamp_ms` is the append time where the topic is LogAppendTime, else -1. A duplicate has the offsets it got the first time.
    """

    base_offset: int
    timestamp_ms: int
    log_start: int


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRef:
    """A sealed chunk, shared by the extents in it."""

    incarnation_id: str
    chunk: Chunk


class SealedExtents:
    """Extents of one partition in sealed chunks, by offset. There may be gaps between them, never overlaps."""

    __slots__ = ("_bases", "extents", "refs")

    def __init__(self) -> None:
        self._bases = array("q")
        self.extents: list[Extent] = []
        self.refs: list[ChunkRef] = []

    def __len__(self) -> int:
        return len(self.extents)

    def add(self, extent: Extent, ref: ChunkRef) -> None:
        assert not self.extents or extent.base_offset >= self.extents[-1].end_offset, "extents overlap"
        self._bases.append(extent.base_offset)
        self.extents.append(extent)
        self.refs.append(ref)

    def find(self, offset: int) -> int:
        """The row of the first extent that ends behind `offset`; len(self) where there is none."""
        row = max(bisect_right(self._bases, offset) - 1, 0)
        while row < len(self.extents) and self.extents[row].end_offset <= offset:
            row += 1
        return row

    def replace(self, extent: Extent, ref: ChunkRef) -> int:
        """Put `extent` in the place of those that it is made of; returns the bytes by which it has more."""
        first = bisect_left(self._bases, extent.base_offset)
        end = bisect_left(self._bases, extent.end_offset)
        if first == end:
            return 0
        assert self.extents[end - 1].end_offset <= extent.end_offset, "extents are folded whole"
        replaced = sum(old.data_bytes for old in self.extents[first:end])
        self._bases[first:end] = array("q", [extent.base_offset])
        self.extents[first:end] = [extent]
        self.refs[first:end] = [ref]
        return extent.data_bytes - replaced

    def drop_below(self, offset: int) -> int:
        """Forget extents that end at or below `offset`; returns the bytes of batches in them."""
        rows = 0
        freed = 0
        while rows < len(self.extents) and self.extents[rows].end_offset <= offset:
            freed += self.extents[rows].data_bytes
            rows += 1
        del self._bases[:rows]
        del self.extents[:rows]
        del self.refs[:rows]
        return freed


class PartitionLog:
    """The log of one partition, as long as this broker leads one segment with it.

    Offsets: ``log_start <= high_watermark <= next_offset``. Records in [log_start, high_watermark) are durable and may be read;
    those in [high_watermark, next_offset) are on their way to the store.
    """

    __slots__ = (
        "bytes_in",
        "bytes_out",
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
        "open_chunks",
        "producers_state",
        "refusal",
        "requests",
        "sealed",
        "segment_id",
        "size_bytes",
        "stream",
        "tail",
        "topic",
        "waiters",
    )

    def __init__(
        self, topic: Topic, number: int, config: TopicConfig, segment_id: int, leader_epoch: int, pool: BufferPool
    ) -> None:
        self.topic = topic
        self.number = number
        self.config = config
        self.segment_id = segment_id
        self.refusal: HeadgateError | None = None
        """Why nothing can be appended any more, or None: the segment is being handed over, or `closed`."""
        self.closed: HeadgateError | None = None
        """Why this broker has nothing to do with the partition any more, or None: topic deleted, or led by another broker."""
        self.internal = is_internal(topic.name)
        """Only the broker itself writes to it."""
        self.stream = stream_key(topic.id.bytes, number)
        self.leader_epoch = leader_epoch
        self.log_start = 0
        self.next_offset = 0
        self.high_watermark = 0
        self.size_bytes = 0
        self.tail = Tail(pool)
        self.sealed = SealedExtents()
        self.open = BatchIndex()
        """Rows of durable batches in chunks that the manifest does not list yet."""
        self.open_chunks: list[tuple[int, int]] = []
        """(first row in `open`, chunk number), ascending: which chunk the rows stand in."""
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, first offset written in it), ascending in both: what OffsetForLeaderEpoch answers from (KIP-101)."""
        self.producers_state = ProducerState()
        self.waiters: dict[Callable[[], None], None] = {}
        """Woken in the order in which they came."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.requests = 0
        """Appends and fetches with records, since the segment was opened."""

    def close(self, error: HeadgateError) -> None:
        """This broker does not lead the partition any more. Who waits for records is woken."""
        self.refusal = self.closed = error
        self.tail.clear()
        for waiter in list(self.waiters):
            waiter()

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic.name}-{self.number} [{self.log_start}, {self.high_watermark}, {self.next_offset}))"

    def subscribe(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` on the loop whenever the high watermark has moved, until `unsubscribe`."""
        self.waiters[waiter] = None

    def unsubscribe(self, waiter: Callable[[], None]) -> None:
        self.waiters.pop(waiter, None)

    def producers(self) -> list[ProducerInfo]:
        return list(self.producers_state.infos())

    def note_epoch(self, epoch: int, base_offset: int) -> None:
        """Remember where a leader epoch begins: at its first batch."""
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, base_offset))

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(greatest known epoch not above `epoch`, offset where the next one begins or the high watermark); KIP-101, KIP-279.

        For an epoch whose records are all gone, as in Kafka: (`epoch`, first offset of the next one that is known), so that a
        consumer which has read them all goes on where it is. (-1, -1) where `epoch` is none, or newer than this partition's.
        """
        if epoch == self.leader_epoch:
            return epoch, self.high_watermark
        if not 0 <= epoch < self.leader_epoch:
            return -1, -1
        row = bisect_right(self.epochs, (epoch, 1 << 63)) - 1
        end = self.epochs[row + 1][1] if row + 1 < len(self.epochs) else self.high_watermark
        return epoch if row < 0 else self.epochs[row][0], end

    def begin_chunk(self, chunk_number: int) -> None:
        """The next rows of `open` stand in this chunk."""
        self.open_chunks.append((len(self.open), chunk_number))

    def open_chunk_of(self, row: int) -> tuple[int, int]:
        """(chunk number, end row in that chunk) of a row in `open`."""
        at = bisect_right(self.open_chunks, (row, 1 << 63)) - 1
        end = self.open_chunks[at + 1][0] if at + 1 < len(self.open_chunks) else len(self.open)
        return self.open_chunks[at][1], end

    def open_rows(self, chunk_number: int) -> tuple[int, int] | None:
        """The rows [first, end) of `open` in a chunk, or None."""
        for at, (first, number) in enumerate(self.open_chunks):
            if number == chunk_number:
                return first, self.open_chunks[at + 1][0] if at + 1 < len(self.open_chunks) else len(self.open)
        return None

    def seal_oldest(self, extent: Extent, ref: ChunkRef) -> None:
        """The oldest open chunk is listed in the manifest now: its rows leave memory, its extent stays."""
        first, number = self.open_chunks.pop(0)
        assert first == 0 and number == ref.chunk.number, "chunks are sealed in order"
        rows = self.open_chunks[0][0] if self.open_chunks else len(self.open)
        self.open.drop(rows)
        self.open_chunks = [(row - rows, chunk_number) for row, chunk_number in self.open_chunks]
        self.sealed.add(extent, ref)

    def replace_sealed(self, extent: Extent, ref: ChunkRef) -> None:
        """Chunks were folded into one, which has their rows of this partition in `extent`."""
        self.size_bytes += self.sealed.replace(extent, ref)

    def set_log_start(self, offset: int) -> None:
        """Records below `offset` are gone for readers."""
        self.log_start = max(self.log_start, offset)
        self.size_bytes -= self.sealed.drop_below(self.log_start)
        while len(self.epochs) > 1 and self.epochs[1][1] <= self.log_start:
            del self.epochs[0]

    def check_invariants(self) -> None:
        """Raise AssertionError where the attributes contradict each other."""
        assert self.log_start <= self.high_watermark <= self.next_offset
        assert list(self.open.offsets) == sorted(self.open.offsets)
        assert self.epochs == sorted(self.epochs)
        if self.open:
            assert not len(self.sealed) or self.sealed.extents[-1].end_offset <= self.open.offsets[0]
