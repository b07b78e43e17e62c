"""Offsets by timestamp. The index says which batch; only that batch is opened, on a cold path."""

from __future__ import annotations

from broker.engine.partition import PartitionLog
from broker.engine.reader import Reader
from broker.log.records import iter_records


async def offset_for_timestamp(reader: Reader, partition: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the first readable record at or after `timestamp_ms`, in offset order; None where there is none."""
    offset = partition.log_start
    while offset < partition.high_watermark:
        row = partition.sealed.find(offset)
        if row < len(partition.sealed) and partition.sealed.extents[row].timestamp_max_ms < timestamp_ms:
            offset = partition.sealed.extents[row].end_offset
            continue
        located = await reader.locate(partition, offset)
        if located is None:
            return None
        found = located.index.find_timestamp(timestamp_ms, located.first)
        if found is None or found >= located.end:
            offset = located.end_offset
            continue
        base_offset = located.index.offsets[found]
        match = await _first_record(reader, partition, max(base_offset, partition.log_start), timestamp_ms)
        if match is not None:
            return match
        offset = located.index.offsets[found + 1] if found + 1 < located.end else located.end_offset
    return None


async def max_timestamp(reader: Reader, partition: PartitionLog) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record with the greatest timestamp; None where nothing is readable."""
    extents = partition.sealed.extents
    greatest = max((extent.timestamp_max_ms for extent in extents), default=-1)
    if len(partition.open):
        greatest = max(greatest, max(partition.open.timestamps))
    found = await offset_for_timestamp(reader, partition, greatest)
    if found is None and partition.log_start < partition.high_watermark:
        # The record that had it stands below the log's start, in a batch that reaches above it: look at what is left.
        best: tuple[int, int] | None = None
        for batch in await reader.read(partition, partition.log_start, 1):
            for record in iter_records(batch):
                if record.offset >= partition.log_start and (best is None or record.timestamp_ms > best[0]):
                    best = record.timestamp_ms, record.offset
        return best
    return found


async def _first_record(reader: Reader, partition: PartitionLog, offset: int, timestamp_ms: int) -> tuple[int, int] | None:
    for batch in (await reader.read(partition, offset, 1))[:1]:
        for record in iter_records(batch):
            if record.offset >= offset and record.timestamp_ms >= timestamp_ms:
                return record.timestamp_ms, record.offset
    return None
