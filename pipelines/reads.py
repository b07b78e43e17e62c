"""The reads of a Spark task: pieces of Parquet extents straight from the store, other records from the brokers.

`pieces` and `tasks` are pure. An extent's rows never pass a broker: a task opens the file, takes the row groups that may hold
wanted rows, and of these the wanted columns. Records outside extents (the live ones) are fetched from the lead of their partition
and decoded by column.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headgate.broker.client.gate_admin import FileRef, Layout, PartitionLayout
from headgate.broker.client.types import DEFAULT_CLUSTER
from headgate.broker.log.parquet import ExtentFile, read_group
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.broker.store.footers import footer_of
from headgate.pipelines.offsets import Narrowed

if TYPE_CHECKING:
    from headgate.broker.store.interface import Readable

PIECE_BYTES = 64 << 20
"""Target size of the extents that one task reads, in bytes."""
PIECES_MAX = 64
"""Bound of the pieces of one task, however small: each file costs two store requests before its first row."""
ROWS_MAX = 1 << 16
"""Rows of one batch that goes to Spark."""
FETCH_ROWS = 1 << 20
"""Records that one task fetches from a broker."""
FETCH_ROWS_SHARED = 1 << 16
"""Fewer records than this share a task with others: starting a task takes as long as reading them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [start, end) of one partition: in `file`, or fetched from the broker when `file` is None.

    `folded_end`: for a folded file, the offset behind its last one; its column `offset` tells which offsets have a record. 0: the
    file has a row for every offset.
    """

    topic: str
    partition: int
    start: int
    end: int
    file: FileRef | None = None
    folded_end: int = 0

    @property
    def size_bytes(self) -> int:
        """Approximate bytes that are read of the file."""
        return 0 if self.file is None else self.file.size_bytes * (self.end - self.start) // max(self.file.rows, 1)


@dataclass(frozen=True, slots=True)
class Work:
    """The pieces that one task reads, in order."""

    store_url: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of every task: the columns of the result in order, and the range that filters leave."""

    columns: tuple[str, ...]
    narrowed: Narrowed
    cluster: str = DEFAULT_CLUSTER


def pieces(
    layout: Layout, ranges: dict[int, tuple[int, int]], narrowed: Narrowed, *, open_gates: str = "error", tasks_min: int = 1
) -> list[Piece]:
    """The files, and the offsets outside files, that have the records of a topic.

    Args:
        ranges: offsets [start, end) by partition.
        open_gates: action at an open gate inside a range: ``error``; ``stop`` there, as a consumer does; ``skip`` it.
        tasks_min: divide the offsets outside files so that this many tasks can share them.

    Raises:
        RetryError(GATE_CONFLICT): an open gate, with ``error``.
    """
    # The bytes of fetched records are unknown; their number replaces them.
    rows_max = max(min(FETCH_ROWS, sum(stop - start for start, stop in ranges.values()) // tasks_min), 1)
    found: list[Piece] = []
    for part in layout.partitions:
        if part.partition in ranges and narrowed.reads(layout.topic, part.partition):
            start, end = ranges[part.partition]
            end = _end(layout.topic, part, start, min(end, narrowed.last + 1), open_gates)
            found.extend(_pieces(layout.topic, part, max(start, narrowed.first), end, narrowed, rows_max))
    return found


def narrowed_pieces(found: Iterable[Piece], narrowed: Narrowed) -> list[Piece]:
    """The pieces, or their parts, that may have records in the range that filters leave."""
    left = []
    for piece in found:
        start, end = max(piece.start, narrowed.first), min(piece.end, narrowed.last + 1)
        in_time = piece.file is None or _in_time(piece.file, narrowed)
        if start < end and in_time and narrowed.reads(piece.topic, piece.partition):
            left.append(replace(piece, start=start, end=end))
    return left


def _end(topic: str, part: PartitionLayout, start: int, end: int, open_gates: str) -> int:
    """The end offset of a range, or of its part in front of an open gate. Raises RetryError(GATE_CONFLICT) as `pieces` does."""
    for hole in part.holes:
        if hole.open and max(start, hole.base_offset) < min(end, hole.end_offset):
            if open_gates == "stop":
                end = min(end, max(hole.base_offset, start))
            elif open_gates == "error":
                raise RetryError(
                    Reason.GATE_CONFLICT,
                    "a flood is under way: its gate is open. Wait for its end, or say with the option openGates what to do: "
                    f"stop there, or skip it. topic=`{topic}` partition=`{part.partition}` gate=`{hole.gate_id}`",
                )
    return end


def _pieces(topic: str, part: PartitionLayout, start: int, end: int, narrowed: Narrowed, rows_max: int) -> Iterator[Piece]:
    """The pieces of a partition's offsets [start, end), in their order: files, and ranges of at most `rows_max` records between
    them."""

    def fetched(low: int, high: int) -> Iterator[Piece]:
        return (Piece(topic, part.partition, at, min(at + rows_max, high)) for at in range(low, high, rows_max))

    position = start
    held: list[tuple[int, int, FileRef | None, int]] = [
        (extent.base_offset, extent.end_offset, extent, 0) for extent in part.extents
    ]
    held += [(folded.file.base_offset, folded.end_offset, folded.file, folded.end_offset) for folded in part.folded]
    held += [(hole.base_offset, hole.end_offset, None, 0) for hole in part.holes]
    held += [(base, stop, None, 0) for base, stop in part.left_out]
    # A hole comes first: a file's first rows may have been removed from the topic, and stay in the file.
    held.sort(key=lambda item: (item[0], item[2] is not None))
    for base, stop, file, folded_end in held:
        low, high = max(base, position), min(stop, end)
        if low >= high:
            continue
        if position < low:
            yield from fetched(position, low)
        if file is not None and _in_time(file, narrowed):
            if "://" in file.path:
                # The file is outside the cluster's store: the brokers know how to reach it.
                yield from fetched(low, high)
            else:
                yield Piece(topic, part.partition, low, high, file, folded_end)
        position = high
    if position < end:
        yield from fetched(position, end)


def _in_time(file: FileRef, narrowed: Narrowed) -> bool:
    """True when a file may have rows of the wanted time. The file's times are in ms, rounded down."""
    first, last = narrowed.first_us, narrowed.last_us
    return (first is None or file.timestamp_max_ms * 1000 + 999 >= first) and (last is None or file.timestamp_min_ms * 1000 <= last)


def tasks(store_url: str, found: Sequence[Piece], *, piece_bytes: int = PIECE_BYTES, tasks_min: int = 1) -> list[Work]:
    """The tasks that read these pieces. Joins small pieces and splits large files.

    A task is full with `piece_bytes` of files, or `FETCH_ROWS_SHARED` records of a broker.

    Args:
        piece_bytes: target size of the files that one task reads.
        tasks_min: split further, until there are this many tasks.
    """
    fetch_rows = max(min(FETCH_ROWS_SHARED, sum(piece.end - piece.start for piece in found) // tasks_min), 1)
    if tasks_min > 1:
        total = sum(piece.size_bytes for piece in found)
        piece_bytes = max(min(piece_bytes, total // tasks_min), 1)
    work: list[Work] = []
    waiting: list[Piece] = []
    full = 0.0
    for whole in found:
        for piece in _split(whole, piece_bytes):
            part = (piece.end - piece.start) / fetch_rows if piece.file is None else piece.size_bytes / piece_bytes
            if waiting and (full + part > 1 or len(waiting) == PIECES_MAX):
                work.append(Work(store_url, tuple(waiting)))
                waiting, full = [], 0.0
            waiting.append(piece)
            full += part
    if waiting:
        work.append(Work(store_url, tuple(waiting)))
    return work


def _split(piece: Piece, piece_bytes: int) -> list[Piece]:
    """A piece larger than two tasks' worth, in equal parts."""
    parts = min(piece.size_bytes // piece_bytes, piece.end - piece.start)
    if parts < 2:
        return [piece]
    rows = piece.end - piece.start
    cuts = [piece.start + rows * number // parts for number in range(parts + 1)]
    return [Piece(piece.topic, piece.partition, cuts[number], cuts[number + 1], piece.file) for number in range(parts)]


# -- in a task


def read(work: Work, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The rows of one task, with the wanted columns. Raises HeadgateError."""
    repeated = Repeated()
    with asyncio.Runner() as runner:
        # `Runner.run` is not used: around each call it swaps signal handlers, which prints the result, megabytes of bytes.
        loop = runner.get_loop()
        with ExitStack() as opened:
            files: ExtentReader | None = None
            broker: RecordReader | None = None
            for piece in work.pieces:
                if piece.file is not None:
                    files = files or opened.enter_context(closing(ExtentReader(loop, work.store_url)))
                    batches = files.read(piece, wanted)
                else:
                    broker = broker or opened.enter_context(closing(RecordReader(loop, wanted.cluster)))
                    batches = broker.read(piece, wanted)
                for offsets, rows in batches:
                    for part in range(0, rows.num_rows, ROWS_MAX):
                        yield shaped(piece, offsets + part, rows.slice(part, ROWS_MAX), wanted.columns, repeated)


class ExtentReader:
    """Reads pieces of extents from one store."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store_url: str) -> None:
        from headgate.broker.store.open import open_store

        self._loop = loop
        self._store = loop.run_until_complete(_opened(open_store, store_url))

    def close(self) -> None:
        """Close threads and sockets."""
        self._loop.run_until_complete(self._store.close())

    def read(self, piece: Piece, wanted: Wanted) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(offset of the first row, rows without the column `offset`) by row group."""
        file = piece.file
        assert file is not None
        footer = self._loop.run_until_complete(committed_footer(self._store, file))
        # In the order of the file, which is also the order of the result.
        columns = tuple(name for name in footer.columns if name in wanted.columns)
        for group in footer.groups:
            base = file.base_offset + group.first_row
            low, high = max(piece.start, base), min(piece.end, base + group.rows)
            if low >= high or not _group_in_time(group, wanted.narrowed):
                continue
            if not columns:
                yield low, rows_only(high - low)
                continue
            data = self._get(file, group.start, group.end - group.start)
            for batch in read_group(footer, group, data, columns).slice(low - base, high - low).to_batches():
                yield low, batch
                low += batch.num_rows

    def _get(self, file: FileRef, start: int, length: int) -> bytes:
        data: bytes = self._loop.run_until_complete(self._store.get_range(file.path, start, length))
        return data


async def committed_footer(store: Readable, file: FileRef) -> ExtentFile:
    """The content of a file's footer. Raises the errors of `store.footers.footer_of`."""
    return await footer_of(store, file.path, size_bytes=file.size_bytes, footer_crc32c=file.footer_crc32c)


async def _opened(what: Callable[[str], Any], where: str) -> Any:
    """Open a store or a client while the loop runs, as they require."""
    return what(where)


def _group_in_time(group: Any, narrowed: Narrowed) -> bool:
    first, last = narrowed.first_us, narrowed.last_us
    if first is not None and group.timestamp_max_ms is not None and group.timestamp_max_ms * 1000 + 999 < first:
        return False
    return not (last is not None and group.timestamp_min_ms is not None and group.timestamp_min_ms * 1000 > last)


def rows_only(count: int) -> pa.RecordBatch:
    """Rows of which only the number counts."""
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=["_"])


class RecordReader:
    """Reads the pieces outside extents from the brokers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: str) -> None:
        from headgate.broker.client.fetcher import Fetcher

        self._loop = loop
        self._fetcher = loop.run_until_complete(_opened(Fetcher, cluster))

    def close(self) -> None:
        """Close threads and sockets."""
        self._loop.run_until_complete(self._fetcher.close())

    def read(self, piece: Piece, wanted: Wanted) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Records with the column `offset`, possibly with gaps."""

        async def following(batches: Any) -> Any:
            return await anext(batches, None)

        typed = "timestampType" in wanted.columns
        batches: Any = self._fetcher.read(piece.topic, piece.partition, piece.start, piece.end, with_timestamp_type=typed)
        try:
            while (rows := self._loop.run_until_complete(following(batches))) is not None:
                if rows.num_rows:
                    yield 0, rows
        finally:
            self._loop.run_until_complete(batches.aclose())


class Repeated:
    """Columns with one value in every row, created once."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, object], Any] = {}

    def column(self, name: str, value: object, kind: Any, count: int) -> Any:
        """`count` rows of `value`."""

        known = self._columns.get((name, value))
        if known is None or len(known) < count:
            known = self._columns[name, value] = pa.repeat(pa.scalar(value, kind), max(count, ROWS_MAX))
        return known.slice(0, count)


def shaped(piece: Piece, first_offset: int, rows: pa.RecordBatch, columns: Sequence[str], repeated: Repeated) -> pa.RecordBatch:
    """Rows for Spark: these columns in this order, with exactly the types of the schema."""
    count = rows.num_rows
    names = set(rows.schema.names)
    arrays: list[Any] = []
    fields = arrow_fields()
    for name in columns:
        kind = fields[name]
        match name:
            case "topic":
                arrays.append(repeated.column(name, piece.topic, kind, count))
            case "partition":
                arrays.append(repeated.column(name, piece.partition, kind, count))
            case "timestampType" if "timestampType" not in names or piece.file is not None:
                # Rows of a file have the time that their writer gave them.
                arrays.append(repeated.column(name, 0, kind, count))
            case "offset" if "offset" not in names or piece.file is not None:
                # A file's own column has the same offsets; the broker refuses any other file.
                arrays.append(pa.array(np.arange(first_offset, first_offset + count, dtype=np.int64)))
            case "timestamp" if piece.file is not None:
                arrays.append(microseconds(rows.column(name)))
            case _ if name in names:
                column = rows.column(name)
                arrays.append(column if column.type == kind else column.cast(kind))
            case _:
                arrays.append(pa.nulls(count, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(name, fields[name]) for name in columns]))


def microseconds(column: Any) -> Any:
    """A file's times for Spark, as the broker reads them: an integer is ms, and parts of a microsecond are rounded down."""
    if pa.types.is_int64(column.type):
        column = column.cast(pa.timestamp("ms"))
    elif pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        column = pa.array(np.floor_divide(numbers, 1000)).cast(pa.timestamp("us"))
    return column.cast(arrow_fields()["timestamp"])


def arrow_fields() -> dict[str, Any]:
    """The types of all columns, by name, for Spark."""
    return {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    }
