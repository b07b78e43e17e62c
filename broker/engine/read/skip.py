"""Batches that consumers cannot read: finds them in a partition's log, and lets readers pass them.

The broker never drops an acked batch. An operator skips a range of offsets by one edit of the manifest, which survives the
brokers. All later reads leave the range out, and consumers continue after it as after a gap. A range consists of whole batches:
the records of a batch are compressed and checksummed together, so a part of it cannot be served. For the same reason a folded file
is skipped whole.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.read.reader import StoreReader
from headgate.broker.log.batch import BatchHeader, crc_matches, parse_header, split
from headgate.broker.log.check import RecordError, Verdict, check_sample, why_unreadable
from headgate.broker.runtime.errors import InvalidError, Reason

CHECK_BYTES_MAX = 16 << 20
"""Bytes of batches that one call of `find_unreadable` reads: some tenths of a second of CPU time, in short turns of the loop."""
CHECK_BATCHES_MAX = 10_000
"""Batches that one call of `find_unreadable` reads."""
FOUND_MAX = 100
"""Unreadable batches that one call of `find_unreadable` returns."""
READ_BYTES = 64 << 10
"""Bytes that are read and checked before other work gets its turn; only a single larger batch may exceed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A batch that consumers cannot read: its offsets [base_offset, end_offset), its size, and the reason."""

    base_offset: int
    end_offset: int
    size_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a check of some batches. `base_offset`: start of the first batch. `next_offset`: start of the next check."""

    base_offset: int
    next_offset: int
    batches: int
    found: list[Unreadable]


async def _why(reader: StoreReader, header: BatchHeader, batch: memoryview) -> str | None:
    """The reason why consumers cannot read one whole batch, or None. A large batch is read in a thread, one at a time."""
    if not crc_matches(batch):
        return "record batch does not match its CRC-32C"
    try:
        verdict = check_sample(header, batch)
    except RecordError as error:
        return error.message
    if verdict is Verdict.UNKNOWN:
        async with reader.opening:
            return await asyncio.get_running_loop().run_in_executor(None, why_unreadable, header, batch)
    return None


async def find_unreadable(reader: StoreReader, partition: PartitionLog, first_offset: int, last_offset: int) -> Checked:
    """Check the batches with the offsets from `first_offset` to `last_offset`, up to the limits of one call.

    Rows of Parquet files are left out, because brokers encode them themselves.

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
        read = await reader.read(partition, offset, READ_BYTES, check_crc=False)
        if not read:
            offset = end_offset
        # Copies, because the memory of a read may be reused while other work runs.
        for batch in [batch for part in read for batch in split(memoryview(bytes(part)))]:
            header = parse_header(batch)
            if header.base_offset >= end_offset:
                offset = end_offset
                break
            if base_offset < 0:
                base_offset = header.base_offset
            offset, batches, size = header.next_offset, batches + 1, size + len(batch)
            why = await _why(reader, header, batch)
            if why is not None:
                found.append(
                    Unreadable(base_offset=header.base_offset, end_offset=header.next_offset, size_bytes=len(batch), why=why)
                )
        await asyncio.sleep(0)
    return Checked(base_offset=base_offset, next_offset=offset, batches=batches, found=found)


async def whole_batches(reader: StoreReader, partition: PartitionLog, first_offset: int, last_offset: int) -> tuple[int, int]:
    """The range [base, end) of the whole batches and folded files with the offsets from `first_offset` to `last_offset`.

    Raises:
        InvalidError: OFFSET_OUT_OF_RANGE; INVALID_REQUEST if there is no batch in the range, or a file of history.
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
    for low, high in partition.windows.cuts:
        if low <= first_offset and last_offset < high:
            return low, high
    found = [one for at in (first_offset, last_offset) if (one := await _place(reader, partition, at)) is not None]
    if not found or found[0][0] > last_offset:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"there is no record to skip. topic=`{partition.topic.name}` partition=`{partition.number}` first=`{first_offset}` "
            f"last=`{last_offset}`",
        )
    # `last_offset` may be in a gap, or in a range that is already skipped. Then the range ends directly after it.
    base_offset, end_offset = found[-1]
    return min(first_offset, found[0][0]), end_offset if base_offset <= last_offset else last_offset + 1


async def _place(reader: StoreReader, partition: PartitionLog, offset: int) -> tuple[int, int] | None:
    """The offsets [base, end) of the batch or the folded file that contains an offset, or of the next one; None without one. A file
    is not read: it may be the damage."""
    file = reader.file_at(partition, offset)
    if file is not None:
        return file[0].base_offset, file[0].end_offset
    read = await reader.read(partition, offset, 1, check_crc=False)
    if not read:
        return None
    header = parse_header(read[0])
    return header.base_offset, header.next_offset


def _check_range(partition: PartitionLog, first_offset: int, last_offset: int) -> None:
    if not partition.log_start <= first_offset <= last_offset < partition.high_watermark:
        raise InvalidError(
            Reason.OFFSET_OUT_OF_RANGE,
            f"offsets are out of range. topic=`{partition.topic.name}` partition=`{partition.number}` first=`{first_offset}` "
            f"last=`{last_offset}` log_start=`{partition.log_start}` end=`{partition.high_watermark}`",
        )
