"""The durable batches of one partition in chunks that the manifest does not list yet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from headgate.broker.log.index import BatchIndex


class OpenRows:
    """One row for each batch, by offset, and the chunk that contains it. Empty when the manifest lists all durable batches."""

    __slots__ = ("chunks", "newest_ms", "oldest_ms", "rows")

    def __init__(self) -> None:
        self.rows = BatchIndex()
        self.chunks: list[tuple[int, int]] = []
        """(first row, chunk number), ascending: the chunk that contains each row."""
        self.newest_ms = 0
        """Wall-clock time in ms at which the newest row became durable. Meaningless without rows."""
        self.oldest_ms = 0
        """Wall-clock time in ms before which no row became durable. Meaningless without rows."""

    def __len__(self) -> int:
        return len(self.rows.offsets)

    @property
    def first_offset(self) -> int | None:
        """The base offset of the first row; None without rows."""
        return self.rows.offsets[0] if self.rows.offsets else None

    @property
    def size_bytes(self) -> int:
        return sum(self.rows.sizes)

    def add(
        self, batches: Iterable[tuple[object, memoryview, int, int, int]], chunk_number: int, position: int, now_ms: int
    ) -> tuple[int, int]:
        """Add batches of one chunk that became durable.

        Args:
            batches: at least one, in the order of their offsets; see `log.Pending`.
            position: of the first batch in the chunk. The others follow it without a gap.
            now_ms: the wall clock in ms.

        Returns:
            (the offset behind the last batch, the position behind it).
        """
        rows = self.rows
        before = len(rows)
        add_offset, add_timestamp, add_position, add_size = rows.adders
        for _, batch, base_offset, next_offset, timestamp_max in batches:  # noqa: B007  # the run ends with its last item
            size = len(batch)
            add_offset(base_offset)
            add_timestamp(timestamp_max)
            add_position(position)
            add_size(size)
            position += size
        if not self.chunks or self.chunks[-1][1] != chunk_number:
            self.chunks.append((before, chunk_number))
        if not before:
            self.oldest_ms = now_ms
        self.newest_ms = now_ms
        return next_offset, position

    def drop_chunk(self, number: int, appended_ms: int) -> None:
        """Forget the rows of the oldest chunk, which the manifest now lists.

        Args:
            appended_ms: the wall-clock time in ms at which its last batch became durable.
        """
        first, oldest = self.chunks.pop(0)
        assert first == 0 and oldest == number, "chunks are listed in order"
        dropped = self.chunks[0][0] if self.chunks else len(self)
        self.rows.drop(dropped)
        self.chunks = [(row - dropped, chunk_number) for row, chunk_number in self.chunks]
        self.oldest_ms = appended_ms

    def chunk_of(self, row: int) -> tuple[int, int]:
        """(number of the chunk that contains a row, the end row of that chunk)."""
        at = bisect_right(self.chunks, (row, 1 << 63)) - 1
        end = self.chunks[at + 1][0] if at + 1 < len(self.chunks) else len(self)
        return self.chunks[at][1], end

    def of_chunk(self, number: int) -> tuple[int, int] | None:
        """The rows [first, end) of a chunk; None if it has none."""
        for at, (first, chunk_number) in enumerate(self.chunks):
            if chunk_number == number:
                return first, self.chunks[at + 1][0] if at + 1 < len(self.chunks) else len(self)
        return None

    def is_late(self, before_ms: int, span_ms: int) -> bool:
        """True if the newest row is from before `before_ms`, or if the rows span more than `span_ms`.

        A chunk counts as old when its newest record is old. With a few records a day, one chunk would stay open and young for
        ever; so no chunk may span more than a part of the age that matters.
        """
        return self.newest_ms < before_ms or self.newest_ms - self.oldest_ms > span_ms
