"""Reads Parquet extents for Kafka clients: turns the rows of a file into record batches, one row group at a time.

The reader opens a file once: it reads the footer, checks it against the reference, and keeps it. Then it fetches one row group
at a time from the store, and another process turns it into batches (`encoding.py`). So the event loop only passes memory on. The
cache of encoded row groups is bounded in bytes. Readers of the same row group share one encoding. While one row group is sent,
the next one is encoded. A row group that would take more than half of the cache is encoded in parts. A foreign file may have all
its rows in one row group, and it stores a value that is repeated a million times only once.

The first file imports pyarrow, in a thread. A broker without history never pays for the import.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine.read.disk_cache import DiskCache, DiskSide
from headgate.broker.engine.read.encoding import Encoders, RowGroupBytes, encode
from headgate.broker.engine.read.history_cache import EncodedGroup, HistoryCache, group_of
from headgate.broker.engine.read.history_files import FileKey, HistoryFiles, OpenFile, corrupt, ended, file_key, first_read
from headgate.broker.engine.read.room import Place, Room
from headgate.broker.engine.read.units import Led, Units, first_in, greatest_in
from headgate.broker.log.compression import Codec
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import end_tasks, outlast
from headgate.broker.runtime.threads import Pool, Pools
from headgate.broker.store.interface import Files, Readable

if TYPE_CHECKING:
    from headgate.broker.log.column_schema import Int64s
    from headgate.broker.log.parquet import ExtentFile, RowGroup

logger = get_logger("history")

IDLE_S = 60.0
"""Seconds without work after which the encoder processes are ended. History is read in bursts, and idle processes would keep
their memory."""
PART_BYTES_MIN = 16 << 20
"""Lower limit, in bytes, for the size of a part. Row groups of our own uploader are smaller, so they are never encoded in parts,
even with a small cache."""
PARTS_MAX = 1000
"""Parts of one row group that the reader remembers."""
BROKEN_MAX = 1000
"""Unreadable files that the reader remembers, so that it logs each of them once."""
GROWTH = 2.0
"""Bytes of batches per byte of columns, before the first measurement. A column stores keys and values with a few bytes around
them."""
SMALL_CACHE_TOLD_S = 60.0
"""Shortest pause, in seconds, between two warnings that the cache is too small."""

_T = TypeVar("_T")
_K = TypeVar("_K")
Encode: TypeAlias = Callable[[RowGroupBytes], Iterable[memoryview]]


class _GroupKey(NamedTuple):
    file: FileKey
    base_offset: int
    leader_epoch: int
    number: int
    first_row: int
    """Counted from the start of the row group."""
    codec: Codec


class HistoryReader:
    """Batches and times of Parquet extents. Lives on the loop; its own threads and processes do the work.

    Args:
        locate: returns the store and the key of an extent's path. Raises InvalidError if the path is not allowed.
        cache_bytes_max: bytes of encoded row groups in the cache.
        parallel: row groups, or parts of them, that are encoded at the same time. Up to `parallel` + 1 are in memory beside the
            cache, and those that the store sends late (`room.py`).
        encoders: encode the row groups; closed with the reader. None: threads of this process encode them.
        pools: makes the reader's threads.
        led: the extents with the same recipe as an extent of adopted rows, of all partitions that are read here.
        disk: keeps encoded row groups for longer than memory has room for them.
    """

    def __init__(
        self,
        locate: Callable[[str], tuple[Readable, str]],
        *,
        cache_bytes_max: int,
        parallel: int,
        codec: Codec = Codec.NONE,
        encoders: Encoders | None = None,
        pools: Pools = Pool,
        led: Led = lambda extent: (),
        disk: DiskCache | None = None,
    ) -> None:
        self._codec = codec
        self._encoders = encoders
        self._encoder: Encode = encode if encoders is None else encoders.encode
        self._small_work = pools(1, "footers")
        self._encode_work = pools(parallel, "history")
        self.disk = None if disk is None else DiskSide(disk, self._run, pools(1, "history-disk"))
        self._resting: asyncio.TimerHandle | None = None
        self._room = Room(parallel + 1)
        self._files = HistoryFiles(locate, self._run, self._shared)
        in_pool = partial(self._run, pool=self._encode_work)
        self._units = Units(self._files, in_pool, self._room, self._shared, led, self._has_unit, encoders, codec)
        self._part_bytes = max(cache_bytes_max // 2, PART_BYTES_MIN)
        self.cache = HistoryCache(cache_bytes_max)
        self._small_cache_told_s = -SMALL_CACHE_TOLD_S
        self._encoding: dict[_GroupKey, asyncio.Task[EncodedGroup]] = {}
        self._wanted: set[_GroupKey] = set()
        """Those of them for which a reader has asked. The others are made ahead."""
        self._growth = GROWTH
        self._broken: OrderedDict[FileKey, None] = OrderedDict()
        self._closed = False
        self.encoded_rows = 0
        self.encoded_bytes = 0
        self.hits = 0
        self.misses = 0

    async def read(
        self, extent: ParquetExtent, offset: int, max_bytes: int, following: ParquetExtent | None = None
    ) -> list[memoryview]:
        """Whole batches from the one that contains `offset`, up to `max_bytes` or one batch. They end at the end of the extent.

        Args:
            offset: within the extent.
            following: the extent that will be read next, if it is known.

        Raises:
            InvalidError(NOT_FOUND): the file does not exist, or no longer. CorruptError: the file is broken, or differs from its
                reference. RetryError: the store does not answer.
        """
        assert extent.base_offset <= offset < extent.end_offset, "the offset is within the extent"
        if self._files.known(extent) is None:
            self.warm()
        try:
            file = await self._files.open(extent)
            batches: list[memoryview] = []
            size = 0
            while True:
                key, encoded = await self._part(extent, file, offset)
                for batch in encoded.batches[encoded.find(offset) :]:
                    if batches and size + len(batch) > max_bytes:
                        self._read_ahead(extent, file, encoded.end, following)
                        return batches
                    batches.append(batch)
                    size += len(batch)
                self.cache.finish(key)
                offset = encoded.end
                # The next call encodes the rest. A reader gets the batches that are ready without a wait.
                if offset == extent.end_offset or size >= max_bytes or self._key(extent, file, offset) not in self.cache:
                    self._read_ahead(extent, file, offset, following)
                    return batches
        except HeadgateError as error:
            self._complain(extent, error)
            raise

    async def first_at(self, extent: ParquetExtent, timestamp_ms: int, offset: int) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the first record of the extent, from `offset` on, whose time is at or after
        `timestamp_ms`."""
        try:
            file = (await self._files.open(extent)).footer
            for index in range(_group_at(extent, file, offset), len(file.groups)):
                group = file.groups[index]
                if group.timestamp_max_ms is not None and group.timestamp_max_ms < timestamp_ms:
                    continue
                if extent.adopted:
                    batches = await self._unit_batches(extent, index, offset)
                    if (found := await self._run(partial(first_in, batches, timestamp_ms, offset))) is not None:
                        return found
                    continue
                times, data = await self._times_bytes(extent, file, group)
                found = await self._run(partial(_first_at, extent, file, times, data, timestamp_ms, offset))
                if found is not None:
                    return found
        except HeadgateError as error:
            self._complain(extent, error)
            raise
        return None

    async def greatest(self, extent: ParquetExtent, offset: int) -> int | None:
        """The greatest time in ms of the extent's records from `offset` on. None if the rest of its offsets have no record."""
        if offset <= extent.base_offset:
            return extent.timestamp_max_ms
        try:
            file = (await self._files.open(extent)).footer
            first = _group_at(extent, file, offset)
            best: int | None = None
            for index in range(first, len(file.groups)):
                group = file.groups[index]
                highest: int | None
                if index > first and group.timestamp_max_ms is not None:
                    highest = group.timestamp_max_ms
                elif extent.adopted:
                    batches = await self._unit_batches(extent, index, offset)
                    highest = await self._run(partial(greatest_in, batches, offset))
                else:
                    times, data = await self._times_bytes(extent, file, group)
                    highest = await self._run(partial(_greatest, extent, file, times, data, offset))
                if highest is not None:
                    best = highest if best is None else max(best, highest)
            return best
        except HeadgateError as error:
            self._complain(extent, error)
            raise

    async def check(self, extent: ParquetExtent) -> None:
        """Raise if the file's footer contradicts its reference. The errors are those of `read`, but the rows are not read. Valid
        footers are kept."""
        await self._files.open(extent)

    async def close(self) -> None:
        """Stop threads and processes. Pending reads fail with ClosedError."""
        self._closed = True
        await end_tasks((*self._encoding.values(), *self._units.tasks(), *self._files.opening()))
        self.cache.clear()
        if self._resting is not None:
            self._resting.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._shutdown)

    def _shutdown(self) -> None:
        if self._encoders is not None:
            self._encoders.close()
        self._small_work.shutdown()
        self._encode_work.shutdown()
        if self.disk is not None:
            self.disk.shutdown()

    # -- bytes

    async def _times_bytes(self, extent: ParquetExtent, file: ExtentFile, group: RowGroup) -> tuple[RowGroup, bytes]:
        """The time column of a row group, with the offsets of a folded file, and its bytes. Hundreds of readers may look up a time
        at the same time, and need no other column."""
        from headgate.broker.log.parquet import times_of

        times = times_of(file, group, "offset") if extent.folded else times_of(file, group)
        return times, await self._files.bytes_of(extent, times)

    async def _unit_batches(self, extent: ParquetExtent, index: int, offset: int) -> list[memoryview]:
        """The batches of a unit of adopted rows. `offset`: within it, or before it."""
        file = await self._files.open(extent)
        begin = extent.base_offset + file.footer.groups[index].first_row
        _, encoded = await self._part(extent, file, max(begin, offset))
        return encoded.batches

    # -- row groups

    def _key(self, extent: ParquetExtent, file: OpenFile, offset: int) -> _GroupKey:
        """The key of the part that contains an offset. If that part is not known, the key of a part that begins at this offset
        or at row 0."""
        index = _group_at(extent, file.footer, offset)
        if extent.folded:
            # Row groups of folded files are small (`FoldedEncoder`), so they have no parts.
            return _GroupKey(file_key(extent), extent.base_offset, extent.leader_epoch, index, 0, self._codec)
        row = offset - extent.base_offset - file.footer.groups[index].first_row
        # The first part shows whether the row group has others.
        known = file.parts.get(index)
        first_row = 0 if known is None else next((first for first, end in known.items() if first <= row < end), row)
        return _GroupKey(file_key(extent), extent.base_offset, extent.leader_epoch, index, first_row, self._codec)

    async def _part(self, extent: ParquetExtent, file: OpenFile, offset: int) -> tuple[_GroupKey, EncodedGroup]:
        """The row group that contains an offset, or the part of it that does."""
        while True:
            key = self._key(extent, file, offset)
            if extent.adopted:
                self._units.reads(extent, file, key.number, self._now_s())
            encoded = self.cache.get(key, self._now_s())
            if encoded is not None:
                self.hits += 1
            else:
                encoding = self._begin(key, extent, file)
                self._wanted.add(key)
                encoded = await self._shared(encoding)
                self.cache.get(key, self._now_s())
            if offset < encoded.end:
                return key, encoded

    def _begin(self, key: _GroupKey, extent: ParquetExtent, file: OpenFile) -> asyncio.Task[EncodedGroup]:
        task = self._encoding.get(key)
        if task is None:
            self.misses += 1
            task = self._encoding[key] = asyncio.get_running_loop().create_task(self._encode(key, extent, file))
            task.add_done_callback(partial(ended, self._encoding, key))
            task.add_done_callback(lambda _: self._wanted.discard(key))
        return task

    async def _encode(self, key: _GroupKey, extent: ParquetExtent, file: OpenFile) -> EncodedGroup:
        from_disk = None
        if self.disk is not None and key in self.disk:
            async with self._room.place():
                from_disk = await self.disk.get(key)
        if extent.adopted:
            if from_disk is not None:
                self._keep(key, from_disk)
                return from_disk
            encoded = await self._units.encode(extent, file, key.number, self._keep_unit)
            self._rest_later()
            return encoded
        if from_disk is not None:
            encoded = from_disk
        else:
            async with self._room.place() as place:
                encoded = await self._encode_part(extent, file.footer, key, place)
            self._rest_later()
        group = file.footer.groups[key.number]
        end_row = group.rows if extent.folded else encoded.end - extent.base_offset - group.first_row
        if key.first_row or end_row < group.rows:
            known = file.parts.setdefault(key.number, {})
            if len(known) == PARTS_MAX:
                known.clear()
            known[key.first_row] = end_row
        self._growth = encoded.size_bytes / max(group.data_bytes, 1)
        if from_disk is None:
            self.encoded_rows += end_row - key.first_row
            self.encoded_bytes += encoded.size_bytes
            self._keep_long(key, encoded)
        self._keep(key, encoded)
        return encoded

    def _keep_unit(self, extent: ParquetExtent, file: OpenFile, index: int, encoded: EncodedGroup) -> None:
        """Keep the batches of a partition in a unit."""
        self.encoded_rows += file.footer.groups[index].rows
        self.encoded_bytes += encoded.size_bytes
        key = self._key(extent, file, encoded.bases[0])
        self._keep_long(key, encoded)
        if key not in self.cache:
            self._keep(key, encoded)

    def _has_unit(self, extent: ParquetExtent, file: OpenFile, index: int) -> bool:
        key = self._key(extent, file, extent.base_offset + file.footer.groups[index].first_row)
        return key in self.cache or (self.disk is not None and key in self.disk)

    def _keep_long(self, key: _GroupKey, encoded: EncodedGroup) -> None:
        if self.disk is not None and not self._closed:
            self.disk.put(key, encoded, self._now_s())

    def warm(self, *, reads: bool = True) -> None:
        """History will be read: import pyarrow. Acks wait for that some milliseconds at a time, and far longer beside lanes and
        encoders that begin.

        Args:
            reads: soon, so a new process imports it at the same time.
        """
        if self._encoders is None or self._closed:
            return
        self._small_work.submit(first_read)
        if reads:
            self._encode_work.submit(self._encoders.warm)
            self._rest_later()

    def _rest_later(self) -> None:
        """End the processes when they have had nothing to do for a time."""
        if self._encoders is not None:
            if self._resting is not None:
                self._resting.cancel()
            self._resting = asyncio.get_running_loop().call_later(IDLE_S, self._encode_work.submit, self._encoders.rest)

    def _keep(self, key: _GroupKey, encoded: EncodedGroup) -> None:
        if self._closed:
            return
        now_s, dropped = self._now_s(), self.cache.dropped_in_use
        self.cache.put(key, encoded, now_s, is_wanted=key in self._wanted)
        if self.cache.dropped_in_use > dropped and now_s - self._small_cache_told_s >= SMALL_CACHE_TOLD_S:
            self._small_cache_told_s = now_s
            logger.warning(
                "history_cache_small",
                cache_bytes=self.cache.bytes_max,
                row_group_bytes=encoded.size_bytes,
                dropped_in_use=self.cache.dropped_in_use,
                hint="row groups are encoded for each fetch again: raise history_cache_bytes to two for each partition read",
            )

    async def _encode_part(self, extent: ParquetExtent, file: ExtentFile, part: _GroupKey, place: Place) -> EncodedGroup:
        store, key = self._files.place(extent)
        descriptor = await store.open_file(key) if self._encoders is not None and isinstance(store, Files) else None
        source: bytes | int | None = descriptor
        if source is None:
            source = await place.read(self._files.bytes_of(extent, file.groups[part.number]))
        base_offset, end_offset = _covered(extent, file, part.number)
        group = RowGroupBytes(
            file, extent.size_bytes, part.number, source, base_offset, extent.leader_epoch, self._codec,
            part.first_row, sys.maxsize if extent.folded else self._part_bytes, end_offset if extent.folded else None,
        )  # fmt: skip
        work = self._run(partial(_encoded, extent, self._encoder, group), self._encode_work)
        if descriptor is not None:
            # Close it only after the thread has finished with it, also if no reader waits any more.
            work.add_done_callback(lambda _: os.close(descriptor))
        return await outlast(work)

    def _read_ahead(self, extent: ParquetExtent, file: OpenFile, offset: int, following: ParquetExtent | None) -> None:
        """Begin to encode the rows that a reader probably asks for next, if no work waits for the threads and the cache has
        room."""
        if self._room.is_full or self._closed:
            return
        if offset >= extent.end_offset:
            if following is None:
                return
            known = self._files.known(following)
            if known is None:
                self._files.begin_to_open(following)
                return
            extent, file, offset = following, known, following.base_offset
        key = self._key(extent, file, offset)
        size_bytes = min(int(file.footer.groups[key.number].data_bytes * self._growth), self._part_bytes)
        # Row groups that are being encoded will need about as much room each.
        if key not in self.cache and self.cache.has_room(size_bytes * (1 + len(self._encoding)), self._now_s()):
            self._begin(key, extent, file)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    # -- threads

    async def _shared(self, task: asyncio.Task[_T]) -> _T:
        """The result of a task that other callers also await."""
        try:
            return await outlast(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:
                raise ClosedError(Reason.CLOSED, "the reader of history was closed") from None
            raise

    def _run(self, call: Callable[[], _T], pool: Executor | None = None) -> asyncio.Future[_T]:
        if self._closed:
            raise ClosedError(Reason.CLOSED, "the reader of history was closed")
        return asyncio.get_running_loop().run_in_executor(pool or self._small_work, call)

    def _complain(self, extent: ParquetExtent, error: HeadgateError) -> None:
        """Log an unreadable file once, because its readers retry again and again."""
        key = file_key(extent)
        if error.reason is Reason.CLOSED or key in self._broken:
            return
        self._broken[key] = None
        if len(self._broken) > BROKEN_MAX:
            self._broken.popitem(last=False)
        logger.error(
            "history_unreadable",
            path=extent.path,
            partition=extent.partition,
            base_offset=extent.base_offset,
            reason=error.reason.value,
            error=error.message,
        )


# The following functions run in the threads. They import pyarrow.


def _encoded(extent: ParquetExtent, encode: Encode, group: RowGroupBytes) -> EncodedGroup:
    try:
        batches = list(encode(group))
    except InvalidError as error:
        raise corrupt(extent, error.message) from error
    return group_of(batches)


def _group_at(extent: ParquetExtent, file: ExtentFile, offset: int) -> int:
    """The index of the row group that covers an offset of the extent, or the first one for an offset before it."""
    return file.group_at(offset) if extent.folded else file.group_of(max(offset - extent.base_offset, 0))


def _covered(extent: ParquetExtent, file: ExtentFile, index: int) -> tuple[int, int]:
    """The offsets [base, end) that the batches of a row group cover. Those of a folded file include the offsets without a record
    up to the next row group."""
    group = file.groups[index]
    if not extent.folded:
        return extent.base_offset + group.first_row, extent.base_offset + group.first_row + group.rows
    base = group.first_offset if index else extent.base_offset
    end = file.groups[index + 1].first_offset if index + 1 < len(file.groups) else extent.end_offset
    assert base is not None and end is not None, "`_agree` has refused files without offsets"
    return base, end


def _times(extent: ParquetExtent, file: ExtentFile, group: RowGroup, data: bytes, offset: int) -> tuple[Int64s, Int64s]:
    """The times in ms of the rows from an offset on, and their offsets."""
    import numpy as np

    from headgate.broker.log.column_schema import timestamps_ms
    from headgate.broker.log.parquet import read_group

    try:
        columns = ("offset", "timestamp") if extent.folded else ("timestamp",)
        table = read_group(file, group, data, columns)
        times = timestamps_ms(table.column("timestamp"))
    except InvalidError as error:
        raise corrupt(extent, error.message) from error
    if extent.folded:
        offsets = table.column("offset").to_numpy()
    else:
        base_offset = extent.base_offset + group.first_row
        offsets = np.arange(base_offset, base_offset + len(times), dtype=np.int64)
    first = int(np.searchsorted(offsets, offset))
    return times[first:], offsets[first:]


def _first_at(
    extent: ParquetExtent, file: ExtentFile, group: RowGroup, data: bytes, timestamp_ms: int, offset: int
) -> tuple[int, int] | None:
    times, offsets = _times(extent, file, group, data, offset)
    rows = (times >= timestamp_ms).nonzero()[0]
    return (int(times[rows[0]]), int(offsets[rows[0]])) if len(rows) else None


def _greatest(extent: ParquetExtent, file: ExtentFile, group: RowGroup, data: bytes, offset: int) -> int | None:
    times, _ = _times(extent, file, group, data, offset)
    return int(times.max()) if len(times) else None
