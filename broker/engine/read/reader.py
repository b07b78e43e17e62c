"""Reads records that are no longer in memory: rows of the index, then the ranges of their batches in a chunk.

A chunk has the batches of all partitions in the order of their commits, so batches of one partition are apart from each other.
From a directory, one call reads all of them, without the gaps. From S3, whole stretches are read and shared (`stretches.py`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.objects import Chunk, Extent
from headgate.broker.engine.base import keys
from headgate.broker.engine.partition.extents import ChunkRef
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.read.history import HistoryReader
from headgate.broker.engine.read.mend import rebuild_index
from headgate.broker.engine.read.stretches import Stretches
from headgate.broker.engine.read.view import Reach, reach
from headgate.broker.log.batch import CRC_START, HEADER_BYTES, parse_header, unpack_header
from headgate.broker.log.crc import crc32c
from headgate.broker.log.index import BatchIndex
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.store.interface import Buffer, Store

logger = get_logger("reader")

_T = TypeVar("_T")

SECTIONS_SHARE = 4
"""Index sections may fill this part (a fourth) of the cache where stretches of chunks fill the rest."""
BROKEN_MAX = 1000
"""Error messages that the reader remembers, so that it logs each of them once."""
TRIES = 5
AGAIN_S = 0.05
"""Growth, in seconds, of the pause before each repeated look-up. A chunk may be swept between the look-up and the read."""


@dataclass(frozen=True, slots=True)
class Located:
    """Consecutive rows of one partition in one chunk, and the key of that chunk."""

    key: str
    index: BatchIndex
    first: int
    end: int
    end_offset: int


async def read_index(store: Store, incarnation_id: str, chunk: Chunk, extent: Extent) -> BatchIndex:
    """The rows of one extent, from its chunk's index. Raises InvalidError(NOT_FOUND), CorruptError, RetryError."""
    data = await store.get_range(keys.index_object(incarnation_id, chunk), extent.position, extent.length_bytes)
    return parse_index(data, incarnation_id, chunk, extent)


def parse_index(data: Buffer, incarnation_id: str, chunk: Chunk, extent: Extent) -> BatchIndex:
    """The rows of one extent. `data`: its section of the chunk's index. Raises CorruptError."""
    key = keys.index_object(incarnation_id, chunk)
    if len(data) != extent.length_bytes:
        raise CorruptError(Reason.CORRUPT_STORE, f"index section is cut off. key=`{key}` position=`{extent.position}`")
    index = BatchIndex.decode(data)
    if not index.fits(chunk.size_bytes):
        raise CorruptError(Reason.CORRUPT_STORE, f"index section is not what was written. key=`{key}` position=`{extent.position}`")
    rows = rows_of(index, extent)
    size = sum(index.sizes[rows.start : rows.stop])
    # Without this check, a reader would pass a row with a wrong offset.
    if size != extent.data_bytes:
        raise CorruptError(
            Reason.CORRUPT_STORE,
            f"index section lacks batches that the manifest lists. key=`{key}` position=`{extent.position}` "
            f"first=`{extent.base_offset}` bytes=`{size}` listed=`{extent.data_bytes}`",
        )
    return index


def rows_of(index: BatchIndex, extent: Extent) -> range:
    """The rows of one extent. Two extents, on both sides of a window, may share a section."""
    return range(bisect_left(index.offsets, extent.base_offset), bisect_left(index.offsets, extent.end_offset))


def damage_of(batch: memoryview, index: BatchIndex, row: int) -> str | None:
    """The difference between a batch and its row in an index, or None."""
    if len(batch) < HEADER_BYTES or not index.is_row(row, parse_header(batch)):
        return "a batch is not where its index says"
    return None


class MissingError(RetryError):
    """An object that the manifest names is not in the store. An operator may be restoring a copy of it."""


async def retry_if_swept(call: Callable[[], Awaitable[_T]]) -> _T:
    """Call again if a chunk was swept or folded between the look-up and the read."""
    for attempt in range(TRIES):
        try:
            return await call()
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            if attempt == TRIES - 1:
                raise MissingError(Reason.STORE_UNAVAILABLE, f"an object is missing in the store: {error.message}") from error
            # Another broker may have swept the chunk, and its edit has not reached this broker yet.
            await asyncio.sleep(attempt * AGAIN_S)
    raise AssertionError("TRIES is at least 1")


class StoreReader:
    """Batches of a partition from the store.

    Args:
        cache_bytes_max: bytes of index sections and of stretches of chunks in memory; the least recently used is dropped first.
        history: reads the extents of Parquet files.
    """

    def __init__(self, store: Store, incarnation_id: str, cache_bytes_max: int, history: HistoryReader) -> None:
        self.history = history
        self._store = store
        self._incarnation_id = incarnation_id
        self._cache: OrderedDict[tuple[str, int], tuple[BatchIndex, int]] = OrderedDict()
        self._cache_bytes = 0
        self.stretches: Stretches | None = None
        """What readers share of objects; None where the operating system does that."""
        if store.read_unit_bytes:
            self.stretches = Stretches(store, cache_bytes_max - cache_bytes_max // SECTIONS_SHARE)
            cache_bytes_max //= SECTIONS_SHARE
        self._cache_bytes_max = cache_bytes_max
        self._broken: OrderedDict[str, None] = OrderedDict()
        """Error messages that were already logged, oldest first."""
        self._hopeless: OrderedDict[str, None] = OrderedDict()
        """Keys of readable indexes that were rebuilt anyway, oldest first. A second rebuild would not help."""
        self.opening = asyncio.Lock()
        """Held while a large batch is decompressed to read its records: one at a time."""
        self._mending = asyncio.Lock()
        """Lets only one call rebuild an index. A chunk may be large, and many readers may need it at the same time."""

    async def read(
        self, log: PartitionLog, offset: int, max_bytes: int, reached: Reach | None = None, *, check_crc: bool = True
    ) -> list[memoryview]:
        """Slices of whole batches from the one that contains `offset` (or, in a gap, the next one), up to `max_bytes` or one batch.

        `log_start <= offset < high_watermark` must hold at the call. Returns [] only if retention deletes the records during the
        read.

        Args:
            reached: the answer of `view.reach` for `offset`, if the caller has it: of this turn of the loop, or for a file.
            check_crc: refuse a batch that does not match its CRC-32C. The search for unreadable batches turns this off.
        """

        async def read() -> list[memoryview]:
            nonlocal reached
            here = reach(log, offset, skip=True) if reached is None else reached
            reached = None  # the log may have changed before another attempt
            begin, _, in_file = here
            if in_file is not None:
                return await self.history.read(in_file[0], begin, max_bytes, in_file[1])
            located = await self._locate(log, here)
            return [] if located is None else await self._read_rows(located, offset, max_bytes, check_crc=check_crc)

        return await self._told(log, offset, read)

    async def close(self) -> None:
        """End the reads under way of stretches; their readers fail with ClosedError."""
        if self.stretches is not None:
            await self.stretches.close()

    async def _told(self, log: PartitionLog, offset: int, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call `call` through `again`. Rebuilds a lost index. Logs each error that needs an operator only once."""
        try:
            try:
                return await retry_if_swept(call)
            except (MissingError, CorruptError):
                if not await self._mend(log, offset):
                    raise
            return await retry_if_swept(call)
        except (MissingError, CorruptError) as error:
            # `history` logs errors of its own files.
            if error.message not in self._broken and self.file_at(log, offset) is None:
                self._broken[error.message] = None
                if len(self._broken) > BROKEN_MAX:
                    self._broken.popitem(last=False)
                logger.error("records_unreadable", topic=log.topic.name, partition=log.number, offset=offset, error=error.message)
            raise

    async def _mend(self, log: PartitionLog, offset: int) -> bool:
        """Rebuild the index that a read from `offset` needs, if it is lost or damaged. Returns True if another attempt makes
        sense."""
        offset, _, in_file = reach(log, offset, skip=True)
        row = log.sealed.find(offset)
        if in_file is not None or row >= len(log.sealed):
            return False
        extent, ref = log.sealed.extents[row], log.sealed.refs[row]
        if not isinstance(extent, Extent) or not isinstance(ref, ChunkRef) or ref.chunk.index_inline:
            return False
        key = keys.index_object(ref.incarnation_id, ref.chunk)
        somebody_mends = self._mending.locked()
        async with self._mending:
            self._forget(key, extent.position)
            try:
                await read_index(self._store, ref.incarnation_id, ref.chunk, extent)
            except (InvalidError, CorruptError):
                try:
                    await rebuild_index(self._store, ref.incarnation_id, ref.chunk)
                except InvalidError:
                    return False  # the chunk is lost, too
                return True
            if somebody_mends or key in self._hopeless:
                return somebody_mends
            # A readable index may still have wrong rows. Only the whole chunk shows that, so rebuild it once.
            self._hopeless[key] = None
            if len(self._hopeless) > BROKEN_MAX:
                self._hopeless.popitem(last=False)
            try:
                await rebuild_index(self._store, ref.incarnation_id, ref.chunk)
            except (InvalidError, CorruptError):
                return False  # the chunk itself is damaged or lost
            return True

    def _forget(self, key: str, position: int) -> None:
        """Drop a section of an index from the cache, and what was read of its object."""
        if self.stretches is not None:
            self.stretches.forget(key)
        cached = self._cache.pop((key, position), None)
        if cached is not None:
            self._cache_bytes -= cached[1]

    def file_at(self, log: PartitionLog, offset: int) -> tuple[ParquetExtent, int] | None:
        """(extent in a Parquet file, offset) at which a read from `offset` begins. None if it is not in a file."""
        begin, _, in_file = reach(log, offset, skip=True)
        return None if in_file is None else (in_file[0], begin)

    async def locate(self, log: PartitionLog, offset: int) -> Located | None:
        """The rows from the batch that contains `offset` (or, in a gap, the next one) to the end of its chunk.

        Not for offsets in Parquet files; for those see `file_at`.
        """
        return await self._told(log, offset, lambda: self._locate(log, reach(log, offset, skip=True)))

    async def _locate(self, log: PartitionLog, reached: Reach) -> Located | None:
        offset, end_offset, _ = reached
        row = log.sealed.find(offset)
        if row < len(log.sealed) and log.sealed.extents[row].base_offset < end_offset:
            extent, ref = log.sealed.extents[row], log.sealed.refs[row]
            assert isinstance(extent, Extent) and isinstance(ref, ChunkRef), "files are read by `history`"
            index = await self._section(ref, extent)
            key = keys.chunk_object(ref.incarnation_id, ref.chunk)
            # Two extents, on both sides of a window, may share this section.
            end_offset = min(extent.end_offset, end_offset)
            end = bisect_left(index.offsets, end_offset)
            return Located(key, index, index.find(max(offset, extent.base_offset)), end, end_offset)
        rows = log.open.rows
        if not len(rows) or offset >= end_offset:
            return None
        first = rows.find(offset)
        number, end = log.open.chunk_of(first)
        end = min(end, bisect_left(rows.offsets, end_offset))
        # There may be a window between the last row and the next one.
        behind = min(rows.offsets[end], end_offset) if end < len(rows) else end_offset
        return Located(keys.chunk(self._incarnation_id, number), rows, first, end, behind)

    async def _section(self, ref: ChunkRef, extent: Extent) -> BatchIndex:
        cache_key = (keys.index_object(ref.incarnation_id, ref.chunk), extent.position)
        cached = self._cache.get(cache_key)
        if cached is not None:
            self._cache.move_to_end(cache_key)
            return cached[0]
        if self.stretches is None:
            index = await read_index(self._store, ref.incarnation_id, ref.chunk, extent)
        else:
            section = await self.stretches.read(cache_key[0], [(extent.position, extent.length_bytes)])
            try:
                index = parse_index(section, ref.incarnation_id, ref.chunk, extent)
            except CorruptError:
                self.stretches.forget(cache_key[0])
                raise
        if cache_key not in self._cache:
            self._cache[cache_key] = index, extent.length_bytes
            self._cache_bytes += extent.length_bytes
        while self._cache_bytes > self._cache_bytes_max:
            self._cache_bytes -= self._cache.popitem(last=False)[1][1]
        return index

    async def _read_rows(self, located: Located, offset: int, max_bytes: int, *, check_crc: bool) -> list[memoryview]:
        # Copy the rows first: the rows of an open chunk may leave memory while the store is read.
        wanted = located.index.rows(located.first, located.end, max_bytes)
        ranges = wanted.stretches()
        if self.stretches is None:
            data = memoryview(await self._store.get_ranges(located.key, ranges))
        else:
            data = memoryview(await self.stretches.read(located.key, ranges))
        good_bytes, damage = checked(data, wanted, offset, check_crc=check_crc)
        if damage is None:
            return [data] if len(data) else []
        if self.stretches is not None:
            self.stretches.forget(located.key)  # the next read asks the store again: the medium may have healed
        if good_bytes:
            return [data[:good_bytes]]  # the next read begins at the damaged batch, and raises the error
        raise CorruptError(
            Reason.CORRUPT_STORE,
            f"{damage}. key=`{located.key}` position=`{wanted.positions[0]}` offset=`{wanted.offsets[0]}`",
        )


def checked(data: memoryview, rows: BatchIndex, offset: int, *, check_crc: bool) -> tuple[int, str | None]:
    """Compare batches, one behind the other, with their rows: (bytes of the good ones in front, damage of the next one or None).

    Args:
        offset: the first batch must reach beyond it.
    """
    position = 0
    damage: str | None = None
    for row, size in enumerate(rows.sizes):
        end = position + size
        if end > len(data):
            damage = "chunk is cut off"
        elif size < HEADER_BYTES or not rows.is_row(row, header := unpack_header(data, position)):
            damage = "a batch is not where its index says"
        elif not row and header[0] + header[6] < offset:
            damage = "an index lacks the batch that has an offset"
        # The broker checks the CRC because some clients do not: librdkafka's `check.crcs` is off by default.
        elif check_crc and crc32c(data[position + CRC_START : end]) != header[4]:
            damage = "a batch is not what was written"
        if damage is not None:
            break
        position = end
    return position, damage
