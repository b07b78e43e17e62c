"""The reads of one table in a query: row groups of files from the store, other records from the leads of their partitions.

A scan runs on the event loop of its `Reader`, and hands batches to the thread of DuckDB that asks for them. Bounds: `WORKERS`
pieces at the same time, each with one row group or one answer of a broker, and `WAITING_BYTES` that no thread has taken yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headgate.broker.client.fetcher import Fetcher
from headgate.broker.client.gate_admin import FileRef, GateAdmin, RecordRange
from headgate.broker.client.types import DEFAULT_CLUSTER
from headgate.broker.log.parquet import ExtentFile, RowGroup, iter_group, part_of
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.store.interface import Readable
from headgate.broker.store.open import open_readable
from headgate.pipelines.native import readable_url
from headgate.pipelines.offsets import Narrowed
from headgate.pipelines.reads import Piece, committed_footer, pieces, rows_only
from headgate.pipelines.sql.cut import Cut
from headgate.pipelines.sql.filters import columns_in, may_match, narrowed, rows_known
from headgate.pipelines.sql.topic_columns import TABLE, shaped

pc: Any = pyarrow.compute

WORKERS = 4
"""Pieces that one scan reads at the same time: a store answers several requests in the time of one."""
WAITING_BYTES = 64 << 20
"""Batches of a scan that wait for DuckDB, in bytes. One batch is always admitted."""
SMALL_COLUMNS = frozenset(("partition", "timestamp_type"))
"""Columns that need no read of a gate's file; of a folded file only `partition`."""


@dataclass(slots=True)
class Reads:
    """What a query has read so far. `files_known`: the files of the scanned topics, read or not. `rows_planned`: records that the
    begun scans read at most. Bytes of files are counted as read, those of brokers as decoded."""

    files: int = 0
    files_known: int = 0
    file_bytes: int = 0
    file_rows: int = 0
    rows_planned: int = 0
    broker_rows: int = 0
    broker_bytes: int = 0
    open_gates: set[str] = field(default_factory=set)
    """Topics with a flood under way, whose records are no part of the result."""


class Reader:
    """The connections of a query: to the brokers and to their store. Lives on one event loop; `close` ends its scans."""

    def __init__(self, cluster: str = DEFAULT_CLUSTER) -> None:
        self.gates = GateAdmin(cluster)
        self.fetcher = Fetcher(cluster)
        self.reads = Reads()
        self.loop = asyncio.get_running_loop()
        self._stores: dict[str, Readable] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, scan: Scan) -> None:
        """Begin a scan."""
        task = asyncio.create_task(scan.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(scan.ended)
        scan.task = task

    def store(self, url: str) -> Readable:
        """The store at a URL."""
        if url not in self._stores:
            self._stores[url] = open_readable(readable_url(url))
        return self._stores[url]

    async def close(self) -> None:
        """End all scans, and close the connections."""
        await end_tasks(self._tasks)
        for store in self._stores.values():
            await store.close()
        await self.fetcher.close()
        await self.gates.close()


class Scan:
    """One scan of a topic: these columns of the records in a cut for which a filter is true, in any order."""

    def __init__(
        self, reader: Reader, cut: Cut, columns: Sequence[str], filter: Any, failed: Callable[[HeadgateError], None]
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._reader = reader
        self._failed = failed
        self._cut = cut
        self._filter = filter
        self._columns = tuple(columns)
        self._read = tuple(dict.fromkeys((*columns, *(() if filter is None else columns_in(filter)))))
        self._ready: SimpleQueue[pa.RecordBatch | BaseException | None] = SimpleQueue()
        self._waiting_bytes = 0
        self._room = asyncio.Event()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([TABLE.field(name) for name in self._columns])

    # -- in a thread of DuckDB

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Closing this iterator ends the scan."""
        try:
            while (batch := self._ready.get()) is not None:
                if isinstance(batch, BaseException):
                    raise batch
                self._reader.loop.call_soon_threadsafe(self._taken, batch.nbytes)
                yield batch
        finally:
            if self.task is not None and not self._reader.loop.is_closed():
                self._reader.loop.call_soon_threadsafe(self.task.cancel)

    # -- on the loop of the reader

    def _taken(self, size_bytes: int) -> None:
        self._waiting_bytes -= size_bytes
        self._room.set()

    def ended(self, task: asyncio.Task[None]) -> None:
        """Hand the end of the task of `run`, and its error, to the thread that asks for batches."""
        end: BaseException | None = InvalidError(Reason.INVALID_REQUEST, "the query was ended")
        if not task.cancelled():
            error = task.exception()
            end = None if error is None else self._told(error)
            if isinstance(end, HeadgateError):
                self._failed(end)
        self._ready.put(end)

    def _told(self, error: BaseException) -> BaseException:
        if isinstance(error, HeadgateError) and error.reason is Reason.UNKNOWN_TOPIC:
            return InvalidError(Reason.UNKNOWN_TOPIC, f"topic was deleted while the query read it. topic=`{self._cut.topic}`")
        return error

    async def run(self) -> None:
        """Read everything, and put the batches where their thread takes them."""
        cut = self._cut
        wanted = narrowed(self._filter, cut.ranges, cut.end)
        if wanted is None:
            return
        layout = await self._reader.gates.layout(cut.topic, wanted)
        self._check_id(layout.topic_id)
        ranges = {number: span for number, span in cut.ranges.items() if span[0] < span[1]}
        for part in layout.partitions:
            start, end = ranges.get(part.partition, (0, 0))
            if max(start, wanted.first_offset) < min(part.log_start, end):
                raise InvalidError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    "records were removed while the query ran: run it again. "
                    f"topic=`{cut.topic}` partition=`{part.partition}` offset=`{start}` log_start=`{part.log_start}`",
                )
            if any(hole.open and hole.base_offset < end and hole.end_offset > start for hole in part.holes):
                self._reader.reads.open_gates.add(cut.topic)
        store = self._reader.store(layout.store_url)
        found = pieces(layout, ranges, _narrowed(wanted), open_gates="skip")
        self._reader.reads.files_known += layout.files
        found = self._possible(found)
        self._reader.reads.rows_planned += sum(stretch.end - stretch.start for stretch in found)
        await self._work(store, found)
        if found:
            # A topic that was made again under the same name would have answered, too.
            self._check_id(
                (await self._reader.gates.layout(cut.topic, RecordRange(partitions=frozenset((0,)), first_offset=cut.end))).topic_id
            )

    def _check_id(self, topic_id: Any) -> None:
        if topic_id != self._cut.topic_id:
            raise InvalidError(Reason.UNKNOWN_TOPIC, "another topic has this name by now")

    def _possible(self, found: Sequence[Piece]) -> list[Piece]:
        """The pieces that may have a row for which the filter is true."""
        if self._filter is None:
            return list(found)
        known = [
            rows_known(
                stretch.partition,
                stretch.start,
                stretch.end,
                None if stretch.file is None else stretch.file.timestamp_min_ms * 1000,
                None if stretch.file is None else stretch.file.timestamp_max_ms * 1000 + 999,
            )
            for stretch in found
        ]
        return [stretch for stretch, left in zip(found, may_match(self._filter, known), strict=True) if left]

    async def _work(self, store: Readable, found: Iterable[Piece]) -> None:
        left = iter(found)

        async def worker() -> None:
            for piece in left:
                if piece.file is None:
                    await self._records(piece)
                else:
                    await self._file(store, piece, piece.file)

        workers = [asyncio.create_task(worker()) for _ in range(WORKERS)]
        try:
            await asyncio.gather(*workers)
        finally:
            await end_tasks(workers)

    # -- files

    async def _file(self, store: Readable, piece: Piece, file: FileRef) -> None:
        whole = piece.start <= file.base_offset and piece.end >= (piece.folded_end or file.end_offset)
        small = SMALL_COLUMNS if not piece.folded_end else SMALL_COLUMNS - {"timestamp_type"}
        if whole and small.issuperset(self._read):
            await self._put(self._shaped(rows_only(file.rows), piece, file.base_offset))
            self._reader.reads.file_rows += file.rows
            return
        position = piece.start
        try:
            footer = await committed_footer(store, file)
            self._reader.reads.files += 1
            self._reader.reads.file_bytes += len(footer.footer)
            for number, group in self._groups(piece, file, footer):
                await self._group(store, piece, file, footer, group)
                position = _end_of(piece, file, footer, number)
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            # The file was replaced by another one meanwhile, or removed. The lead knows: it answers with the records or an error.
            await self._records(Piece(piece.topic, piece.partition, position, piece.end))

    def _groups(self, piece: Piece, file: FileRef, footer: ExtentFile) -> list[tuple[int, RowGroup]]:
        """The row groups that may have a wanted row, with their indexes."""
        spans = []
        for number, group in enumerate(footer.groups):
            first = (group.first_offset or 0) if piece.folded_end else file.base_offset + group.first_row
            spans.append((number, group, max(first, piece.start), min(_end_of(piece, file, footer, number), piece.end)))
        spans = [span for span in spans if span[2] < span[3]]
        if self._filter is None:
            return [(number, group) for number, group, _, _ in spans]
        known = [
            rows_known(
                piece.partition,
                first,
                end,
                None if group.timestamp_min_ms is None else group.timestamp_min_ms * 1000,
                None if group.timestamp_max_ms is None else group.timestamp_max_ms * 1000 + 999,
            )
            for _, group, first, end in spans
        ]
        return [stretch[:2] for stretch, left in zip(spans, may_match(self._filter, known), strict=True) if left]

    async def _group(self, store: Readable, piece: Piece, file: FileRef, footer: ExtentFile, group: RowGroup) -> None:
        columns = tuple(name for name in footer.columns if name in self._read)
        if piece.folded_end:
            columns = tuple(dict.fromkeys(("offset", *columns)))
        elif not columns:
            columns = ("timestamp",)
        part = group if group.repeats else part_of(footer, group, columns)
        data = await store.get_range(file.path, part.start, part.end - part.start)
        self._reader.reads.file_bytes += len(data)
        rows = iter_group(footer, part, data, columns)
        first = file.base_offset + group.first_row

        def following() -> tuple[int, pa.RecordBatch] | None:
            nonlocal first
            found = next(rows, None)
            if found is None:
                return None
            base, first = first, first + found.num_rows
            if piece.folded_end:
                offsets = found.column("offset")
                found = found.filter(pc.and_(pc.greater_equal(offsets, piece.start), pc.less(offsets, piece.end)))
            else:
                skipped = min(max(piece.start - base, 0), found.num_rows)
                found = found.slice(skipped, max(min(piece.end - base, found.num_rows) - skipped, 0))
                base += skipped
            return found.num_rows, self._shaped(found, piece, base)

        while (answer := await asyncio.to_thread(following)) is not None:
            self._reader.reads.file_rows += answer[0]
            await self._put(answer[1])

    # -- brokers

    async def _records(self, piece: Piece) -> None:
        typed = "timestamp_type" in self._read
        rows: Any = self._reader.fetcher.read(piece.topic, piece.partition, piece.start, piece.end, with_timestamp_type=typed)
        try:
            async for batch in rows:
                self._reader.reads.broker_rows += batch.num_rows
                self._reader.reads.broker_bytes += batch.nbytes
                await self._put(self._shaped(batch, piece, piece.start))
        finally:
            await rows.aclose()

    # -- both

    def _shaped(self, rows: pa.RecordBatch, piece: Piece, first_offset: int) -> pa.RecordBatch:
        """The wanted columns of the wanted rows."""
        found = shaped(rows, self._read, piece.partition, first_offset)
        if self._filter is not None:
            found = found.filter(self._filter)
        return found.select(list(self._columns))

    async def _put(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        while self._waiting_bytes and self._waiting_bytes + batch.nbytes > WAITING_BYTES:
            self._room.clear()
            await self._room.wait()
        self._waiting_bytes += batch.nbytes
        self._ready.put(batch)


def _end_of(piece: Piece, file: FileRef, footer: ExtentFile, number: int) -> int:
    """The offset behind the records of a row group, and behind the offsets without a record that follow it."""
    group = footer.groups[number]
    if not piece.folded_end:
        return file.base_offset + group.first_row + group.rows
    if number + 1 < len(footer.groups):
        return footer.groups[number + 1].first_offset or 0
    return piece.folded_end


def _narrowed(wanted: RecordRange) -> Narrowed:
    last = wanted.last_offset
    return Narrowed(
        first=wanted.first_offset,
        last=(1 << 63) - 1 if last is None else last,
        first_us=None if wanted.first_timestamp_ms is None else wanted.first_timestamp_ms * 1000,
        last_us=None if wanted.last_timestamp_ms is None else wanted.last_timestamp_ms * 1000 + 999,
        partitions=wanted.partitions,
    )
