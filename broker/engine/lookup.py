"""Offsets by timestamp. The index names the batch; only that batch is opened, on a cold path."""

from __future__ import annotations

from functools import partial

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine.partition import PartitionLog
from headgate.broker.engine.reader import Reader, again
from headgate.broker.log.records import Record, iter_records


async def offset_for_timestamp(reader: Reader, partition: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the first readable record at or after `timestamp_ms`, in offset order; None without one."""
    offset = partition.log_start
    while offset < partition.high_watermark:
        begin, end, _ = partition.reach(offset, skip=True)
        row = partition.sealed.find(begin)
        if row < len(partition.sealed) and (extent := partition.sealed.extents[row]).base_offset < end:
            if extent.timestamp_max_ms < timestamp_ms:
                offset = extent.end_offset
                continue
            if isinstance(extent, ParquetExtent):
                seen = await again(partial(reader.history.first_at, extent, timestamp_ms, begin))
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
        for record in await _records(reader, partition, base_offset):
            if record.timestamp_ms >= timestamp_ms:
                return record.timestamp_ms, record.offset
        offset = next_offset
    return None


async def max_timestamp(reader: Reader, partition: PartitionLog) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record with the greatest timestamp; None when no record is readable."""
    start = partition.log_start
    file = reader.file_at(partition, start) if start < partition.high_watermark else None
    if file is not None:
        extent, begin, _ = file
        behind = _greatest_behind(partition, extent.end_offset)
        here = await again(partial(reader.history.greatest, extent, begin))
        return await offset_for_timestamp(reader, partition, here if behind is None else max(here, behind))
    located = await reader.locate(partition, start)
    if located is None or start >= partition.high_watermark:
        return None
    index, first, end_offset = located.index, located.first, located.end_offset
    # The first batch may begin below the log's start: its index row may describe a deleted record.
    cut = index.offsets[first] < start
    known = _greatest_behind(partition, end_offset)
    seen = index.timestamps[first + cut : located.end]
    greatest = max([*seen, *([] if known is None else [known])], default=None)
    if not cut:
        return None if greatest is None else await offset_for_timestamp(reader, partition, greatest)
    records = await _records(reader, partition, start)
    best = max(((record.timestamp_ms, -record.offset) for record in records), default=None)
    if best is not None and (greatest is None or best[0] >= greatest):
        return best[0], -best[1]
    return None if greatest is None else await offset_for_timestamp(reader, partition, greatest)


def _greatest_behind(partition: PartitionLog, offset: int) -> int | None:
    """The greatest timestamp of extents and batches that begin at `offset` or after it."""
    known = [extent.timestamp_max_ms for extent in partition.sealed.extents if extent.base_offset >= offset]
    rows = partition.open
    known += [rows.timestamps[row] for row in range(len(rows)) if rows.offsets[row] >= offset]
    return max(known, default=None)


async def _records(reader: Reader, partition: PartitionLog, offset: int) -> list[Record]:
    """The records from `offset` on in the batch that contains it, or in the next batch."""
    batches = await reader.read(partition, offset, 1)
    return [record for record in iter_records(batches[0]) if record.offset >= offset] if batches else []
