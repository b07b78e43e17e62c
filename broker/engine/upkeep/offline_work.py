"""The work of a fold to files: reads the batches of a job from the store, and writes their records as Parquet.

It runs in a process of its own (`offline_process.py`), or on the loop where the store exists in one process only. Memory is
bounded by `READ_BYTES` of batches, their records, and one file.
"""

from __future__ import annotations

import asyncio

import msgspec

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine import keys
from headgate.broker.engine.read.mend import rebuild_index
from headgate.broker.engine.read.reader import checked, read_index, rows_of
from headgate.broker.engine.upkeep.offline import Job, JobPart, Result
from headgate.broker.log.folded_file import FoldedEncoder, read_batches
from headgate.broker.log.index import BatchIndex
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason, RetryError
from headgate.broker.store.interface import Store

READ_BYTES = 8 << 20
"""Bytes of batches that are read and decoded at a time; only a single larger batch exceeds it."""
FILE_BYTES = 64 << 20
"""Encoded bytes from which a file is complete."""


async def fold_to_files(store: Store, job: Job) -> Result:
    """Write the files of a job. They are unused until the job's edit is committed.

    Damaged records, and records that a folded file cannot hold, are refused: they stay where they are.
    """
    writer = _Writer(store, job)
    for part in job.parts:
        try:
            await _fold_part(store, job, part, writer)
        except (InvalidError, CorruptError) as error:
            missing = error.reason is Reason.NOT_FOUND
            return Result(refused=error.message, refused_base=part.extent.base_offset, missing=missing)
        except RetryError as error:
            return Result(retry=error.message)
    try:
        return Result(files=await writer.finish())
    except RetryError as error:
        return Result(retry=error.message)


async def _fold_part(store: Store, job: Job, part: JobPart, writer: _Writer) -> None:
    index = await _index(store, part)
    rows = rows_of(index, part.extent)
    at = rows.start
    key = keys.chunk_object(part.incarnation_id, part.chunk)
    while at < rows.stop:
        wanted = index.rows(at, rows.stop, READ_BYTES)
        data = memoryview(await store.get_ranges(key, wanted.stretches()))
        _, damage = checked(data, wanted, wanted.offsets[0], check_crc=True)
        if damage is not None:
            raise CorruptError(Reason.CORRUPT_STORE, f"{damage}. key=`{key}` offset=`{wanted.offsets[0]}`")
        at += len(wanted)
        end_offset = index.offsets[at] if at < rows.stop else part.extent.end_offset
        await writer.add(data, end_offset, part.chunk.appended_ms)


async def _index(store: Store, part: JobPart) -> BatchIndex:
    """The index of an extent. An index that is an object of its own, and missing or wrong, is made again."""
    try:
        return await read_index(store, part.incarnation_id, part.chunk, part.extent)
    except (InvalidError, CorruptError):
        if part.chunk.index_inline:
            raise
        await rebuild_index(store, part.incarnation_id, part.chunk)
        return await read_index(store, part.incarnation_id, part.chunk, part.extent)


class _Writer:
    """Writes records to as many files as they need. The files together cover the offsets of the job's extents."""

    def __init__(self, store: Store, job: Job) -> None:
        self._store = store
        self._job = job
        self._encoder = FoldedEncoder(job.partition)
        self._files: list[ParquetExtent] = []
        self._base_offset = job.parts[0].extent.base_offset
        self._end_offset = self._base_offset
        self._appended_ms = 0

    async def add(self, batches: memoryview, end_offset: int, appended_ms: int) -> None:
        """Add the records of some batches. `end_offset`: of their extent, or the first offset of the next batch."""
        job = self._job
        rows = read_batches(batches, job.partition, job.log_start, end_offset, job.cuts)
        self._end_offset = end_offset
        self._appended_ms = max(self._appended_ms, appended_ms)
        self._encoder.add(rows)
        if self._encoder.held_bytes >= FILE_BYTES:
            await self._complete()
        # On a broker's own loop, other work gets its turn.
        await asyncio.sleep(0)

    async def finish(self) -> list[ParquetExtent]:
        """The files. [] if no record is left."""
        if self._encoder.rows:
            await self._complete()
        elif self._files and self._end_offset > self._base_offset:
            # The last offsets have no record: they belong to the last file.
            self._files[-1] = msgspec.structs.replace(self._files[-1], end_offset=self._end_offset)
        return self._files

    async def _complete(self) -> None:
        written = self._encoder.finish()
        name = f"offset={self._base_offset:020d}-{self._job.maker}.parquet"
        path = keys.folded_file(self._job.topic_id, self._job.partition, name)
        await self._store.put(path, memoryview(written.data))
        self._files.append(
            ParquetExtent(
                partition=self._job.partition,
                base_offset=self._base_offset,
                end_offset=self._end_offset,
                leader_epoch=self._job.parts[0].extent.leader_epoch,
                path=path,
                size_bytes=len(written.data),
                footer_crc32c=written.footer_crc32c,
                timestamp_min_ms=written.timestamp_min_ms,
                timestamp_max_ms=written.timestamp_max_ms,
                records=written.rows,
                appended_ms=self._appended_ms,
            )
        )
        self._encoder = FoldedEncoder(self._job.partition)
        self._base_offset = self._end_offset
