"""Batches that consumers cannot read: find them in a partition's log, and let readers step over them.

The broker never drops a batch that was acked. An operator skips a range of offsets: one edit of the manifest, which survives the
brokers, takes it out of every later read, and consumers go on behind it as behind a gap. A range consists of whole batches: the
records of a batch are compressed and checksummed together, so a part of it cannot be served.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.engine.partition import PartitionLog
from headgate.broker.engine.reader import Reader
from headgate.broker.log.batch import BatchHeader, crc_matches, parse_header
from headgate.broker.log.check import RecordError, check_sample
from headgate.broker.runtime.errors import InvalidError, Reason

CHECK_BYTES_MAX = 16 << 20
"""Bytes of batches that one call of `find_unreadable` reads: some tenths of a second of CPU time, in short turns of the loop."""
CHECK_BATCHES_MAX = 10_000
"""Batches that one call of `find_unreadable` reads."""
FOUND_MAX = 100
"""Unreadable batches that one call of `find_unreadable` returns."""
READ_BYTES = 64 << 10
"""Bytes that are read and checked before other work gets its turn, but for a single larger batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A batch that consumers cannot read: its offsets [base_offset, end_offset), its size, and why."""

    base_offset: int
    end_offset: int
    size_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a look at some batches found. The next look begins at `next_offset`; `base_offset`: where the first batch begins."""

    base_offset: int
    next_offset: int
    batches: int
    found: list[Unreadable]


def why_unreadable(header: BatchHeader, batch: memoryview) -> str | None:
    """Why consumers cannot read one whole batch, or None. A very large one is read in part only (`check_sample`)."""
    if not crc_matches(batch):
        return "record batch does not match its CRC-32C"
    try:
        check_sample(header, batch)
    except RecordError as error:
        return error.message
    return None


async def find_unreadable(reader: Reader, partition: PartitionLog, first_offset: int, last_offset: int) -> Checked:
    """Check the batches with the offsets from `first_offset` to `last_offset`, as many as one call reads.

    Rows of Parquet files are passed over: brokers encode them themselves.

    Raises:
        InvalidError: OFFSET_OUT_OF_RANGE. CorruptError, RetryError: the store cannot be read.
    """
    _check_range(partition, first_offset, last_offset)
    offset, base_offset, batches, size = first_offset, -1, 0, 0
    found: list[Unreadable] = []
    end_offset = min(last_offset + 1, partition.high_watermark)
    while offset < end_offset and size < CHECK_BYTES_MAX and batches < CHECK_BATCHES_MAX and len(found) < FOUND_MAX:
        file = reader.file_at(partition, offset)
        if file is not None:
            offset = file[0].end_offset
            continue
        read = await reader.read(partition, offset, READ_BYTES)
        if not read:
            offset = end_offset
        for batch in read:
            header = parse_header(batch)
            if header.base_offset >= end_offset:
                offset = end_offset
                break
            if base_offset < 0:
                base_offset = header.base_offset
            offset, batches, size = header.next_offset, batches + 1, size + len(batch)
            why = why_unreadable(header, batch)
            if why is not None:
                found.append(
                    Unreadable(base_offset=header.base_offset, end_offset=header.next_offset, size_bytes=len(batch), why=why)
                )
        await asyncio.sleep(0)
    return Checked(base_offset=base_offset, next_offset=offset, batches=batches, found=found)


async def whole_batches(reader: Reader, partition: PartitionLog, first_offset: int, last_offset: int) -> tuple[int, int]:
    """The range of offsets of the batches with the offsets from `first_offset` to `last_offset`: (first, behind the last).

    Raises:
        InvalidError: OFFSET_OUT_OF_RANGE; INVALID_REQUEST where there is no batch between them, or a file of history.
    """
    _check_range(partition, first_offset, last_offset)
    if is_internal(partition.topic.name):
        raise InvalidError(Reason.INVALID_TOPIC, f"records of an internal topic cannot be skipped. topic=`{partition.topic.name}`")
    if partition.windows.without(first_offset, last_offset + 1) != [(first_offset, last_offset + 1)]:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"records of a gate cannot be skipped. topic=`{partition.topic.name}` partition=`{partition.number}` "
            f"first=`{first_offset}` last=`{last_offset}`",
        )
    for low, high in partition.cuts:
        if low <= first_offset and last_offset < high:
            return low, high
    found = [parse_header(read[0]) for at in (first_offset, last_offset) if (read := await reader.read(partition, at, 1))]
    if not found or found[0].base_offset > last_offset:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"there is no record to skip. topic=`{partition.topic.name}` partition=`{partition.number}` first=`{first_offset}` "
            f"last=`{last_offset}`",
        )
    # Behind `last_offset` there may be a gap, or what is skipped already: then it is the end.
    last = found[-1]
    return min(first_offset, found[0].base_offset), last.next_offset if last.base_offset <= last_offset else last_offset + 1


def _check_range(partition: PartitionLog, first_offset: int, last_offset: int) -> None:
    if not partition.log_start <= first_offset <= last_offset < partition.high_watermark:
        raise InvalidError(
            Reason.OFFSET_OUT_OF_RANGE,
            f"offsets are out of range. topic=`{partition.topic.name}` partition=`{partition.number}` first=`{first_offset}` "
            f"last=`{last_offset}` log_start=`{partition.log_start}` end=`{partition.high_watermark}`",
        )
