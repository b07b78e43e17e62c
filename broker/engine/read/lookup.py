"""Offsets by timestamp. The index names the batch; only that batch is opened, on a cold path."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.read.reader import StoreReader, retry_if_swept
from headgate.broker.engine.read.view import reach
from headgate.broker.log.batch import BatchHeader, parse_header
from headgate.broker.log.compression import ExpansionError
from headgate.broker.log.records import Record, iter_records
from headgate.broker.runtime.errors import InvalidError

IN_TURN_BYTES_MAX = 1 << 20
"""Bytes of a batch's records after decompression that a look-up reads on the event loop; a larger batch is read in a thread."""
IN_TURN_RECORDS_MAX = 4096
"""Records that a look-up reads on the event loop: some milliseconds."""
BYTES_MAX = 64 << 20
"""Bytes of a batch's records after decompression that a look-up reads. Some kB hold GBs of records. A larger batch is not opened:
the look-up answers with its first offset."""

_T = TypeVar("_T")


async def offset_for_timestamp(reader: StoreReader, partition: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the first readable record at or after `timestamp_ms`, in offset order; None without one."""
    offset = partition.log_start
    while offset < partition.high_watermark:
        begin, end, _ = reach(partition, offset, skip=True)
        row = partition.sealed.find(begin)
        if row < len(partition.sealed) and (extent := partition.sealed.extents[row]).base_offset < end:
            if extent.timestamp_max_ms < timestamp_ms:
                offset = extent.end_offset
                continue
            if isinstance(extent, ParquetExtent):
                seen = await retry_if_swept(partial(reader.history.first_at, extent, timestamp_ms, begin))
                if seen is not None:
                    return seen
                offset = extent.end_offset
                continue
        located = await reader.locate(partition, offset)
        if located is None:
            return None
        found = located.index.find_timestamp(timestamp_ms, located.first)
        if found is None or found >= located.end:
            offset = located.end_offset
            continue
        # Both values are read before the store: rows of an open chunk may leave memory meanwhile.
        base_offset = max(located.index.offsets[found], offset, partition.log_start)
        next_offset = located.index.offsets[found + 1] if found + 1 < located.end else located.end_offset
        seen = await _look(reader, partition, base_offset, partial(_first_at, timestamp_ms), _begin)
        if seen is not None:
            return seen
        offset = next_offset
    return None


async def max_timestamp(reader: StoreReader, partition: PartitionLog) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record with the greatest timestamp; None when no record is readable.

    The index knows the greatest timestamp of each batch and extent. Only one of which readers see a part is opened, and only where
    the index says that it may have a greater timestamp than those that are readable whole.
    """
    greatest: int | None = None
    parts: list[tuple[int, int, int]] = []
    # The last removed range below an offset ends there or before it: ranges are in order and do not overlap.
    removed = [(0, partition.log_start), *((low, high) for low, high in partition.windows.cuts if high > partition.log_start)]
    ends = [end for _, end in removed]
    for timestamp_ms, base_offset, end_offset in _pieces(partition):
        at = bisect_right(ends, base_offset)
        if at == len(removed) or removed[at][0] >= end_offset:
            greatest = timestamp_ms if greatest is None else max(greatest, timestamp_ms)
        elif base_offset < removed[at][0] or removed[at][1] < end_offset:
            parts.append((timestamp_ms, base_offset, end_offset))
    for timestamp_ms, base_offset, end_offset in parts:
        if greatest is None or timestamp_ms > greatest:
            here = await _greatest_between(reader, partition, base_offset, end_offset)
            greatest = here if greatest is None or here is None else max(greatest, here)
    return None if greatest is None else await offset_for_timestamp(reader, partition, greatest)


def _pieces(partition: PartitionLog) -> Iterator[tuple[int, int, int]]:
    """(greatest timestamp, first offset, end offset) of each extent and of each batch that is in no extent."""
    for extent in partition.sealed.extents:
        yield extent.timestamp_max_ms, extent.base_offset, extent.end_offset
    rows = partition.open.rows
    for row in range(len(rows)):
        if rows.offsets[row] < partition.high_watermark:
            end_offset = rows.offsets[row + 1] if row + 1 < len(rows) else partition.high_watermark
            yield rows.timestamps[row], rows.offsets[row], end_offset


async def _greatest_between(reader: StoreReader, partition: PartitionLog, offset: int, end_offset: int) -> int | None:
    """The greatest timestamp of the readable records in [offset, end_offset); None without one."""
    found: list[int] = []
    offset = max(offset, partition.log_start)
    while offset < end_offset:
        file = reader.file_at(partition, offset)
        if file is not None:
            extent, begin = file
            in_file = await retry_if_swept(partial(reader.history.greatest, extent, begin))
            found += [] if in_file is None else [in_file]
            offset = extent.end_offset
            continue
        located = await reader.locate(partition, offset)
        if located is None:
            break
        begin, _, _ = reach(partition, offset, skip=True)
        index, first = located.index, located.first
        # The first batch may begin in a removed range: its index row may describe a removed record.
        is_cut = index.offsets[first] < begin
        last = min(located.end, bisect_left(index.offsets, end_offset))
        found += index.timestamps[first + is_cut : last]
        offset = located.end_offset
        if is_cut:
            in_batch = await _look(reader, partition, begin, _greatest, lambda header, _: header.max_timestamp)
            found += [] if in_batch is None else [in_batch]
    return max(found, default=None)


def _first_at(timestamp_ms: int, records: Iterator[Record]) -> tuple[int, int] | None:
    return next(((record.timestamp_ms, record.offset) for record in records if record.timestamp_ms >= timestamp_ms), None)


def _begin(header: BatchHeader, offset: int) -> tuple[int, int]:
    """The answer for a batch that is not opened. A reader that begins there misses nothing."""
    return header.max_timestamp, max(header.base_offset, offset)


def _greatest(records: Iterator[Record]) -> int | None:
    return max((record.timestamp_ms for record in records), default=None)


async def _look(
    reader: StoreReader,
    partition: PartitionLog,
    offset: int,
    look: Callable[[Iterator[Record]], _T | None],
    unopened: Callable[[BatchHeader, int], _T],
) -> _T | None:
    """What `look` sees in the records from `offset` on of the batch that contains it, or of the next batch. None without a batch.

    One large batch is open at a time, in a thread, whoever asks. `unopened` answers for a batch that is too large.
    """
    batches = await reader.read(partition, offset, 1)
    if not batches:
        return None
    header = parse_header(batches[0])

    def seen(bytes_max: int) -> _T | None:
        return look(record for record in iter_records(batches[0], decompressed_bytes_max=bytes_max) if record.offset >= offset)

    try:
        if header.record_count <= IN_TURN_RECORDS_MAX:
            try:
                return seen(IN_TURN_BYTES_MAX)
            except ExpansionError:
                pass
        async with reader.opening:
            return await asyncio.get_running_loop().run_in_executor(None, seen, BYTES_MAX)
    except ExpansionError:
        return unopened(header, offset)
    except InvalidError as error:
        raise InvalidError(
            error.reason,
            f"a record batch cannot be read: {error.message}; `headgate topic skip` lets readers step over it. "
            f"topic=`{partition.topic.name}` partition=`{partition.number}` base_offset=`{header.base_offset}`",
        ) from error
