"""The work of a fold to files: reads the batches and rows of a job from the store, and writes them as Parquet.

It runs in a process of its own (`file_fold_process.py`), or on the loop where the store exists in one process only. Memory is
bounded by `READ_BYTES` of batches or one row group, their records, and one file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pyarrow as pa

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine.base import keys
from headgate.broker.engine.read.mend import rebuild_index
from headgate.broker.engine.read.reader import checked, read_index, rows_of
from headgate.broker.engine.upkeep.adopted_folds import AdoptedJob, AdoptedResult
from headgate.broker.engine.upkeep.adopted_work import fold_adopted
from headgate.broker.engine.upkeep.compact_work import Compactor as Compactor
from headgate.broker.engine.upkeep.compact_work import Keys, compacted
from headgate.broker.engine.upkeep.file_fold import ChunkSource, FileSource, Job, Result, Source
from headgate.broker.engine.upkeep.file_writer import FileWriter, Origin
from headgate.broker.log.folded_file import FOLDED_SCHEMA, read_batches, read_rows
from headgate.broker.log.index import BatchIndex
from headgate.broker.log.parquet import ExtentFile, read_group, read_parts
from headgate.broker.log.transactions import ranges_of
from headgate.broker.runtime.errors import CorruptError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store.footers import footer_of
from headgate.broker.store.interface import Store

READ_BYTES = 8 << 20
"""Bytes of batches that are read and decoded at a time; only a single larger batch exceeds it."""


class _RefusedError(Exception):
    """A source of a job cannot be read, or has records that a folded file cannot hold."""

    def __init__(self, source: Source, error: HeadgateError) -> None:
        super().__init__(error.message)
        self.result = Result(
            refused=error.message, refused_base=source.extent.base_offset, missing=error.reason is Reason.NOT_FOUND
        )


async def work(store: Store, job: Job | AdoptedJob, compactor: Compactor) -> Result | AdoptedResult:
    """Do a job of either kind."""
    if isinstance(job, AdoptedJob):
        compactor.forget()
        return await fold_adopted(store, job)
    return await fold_to_files(store, job, compactor)


async def fold_to_files(store: Store, job: Job, compactor: Compactor) -> Result:
    """Write the files of a job. They are unused until the job's edit is committed.

    Damaged records, and records that a folded file cannot hold, are refused: they stay where they are.

    Args:
        compactor: of this process.
    """
    try:
        if job.compaction is None:
            compactor.forget()
            return Result(files=await _write(store, job, None))
        dirty = _Reader(store, job, job.compaction.aborted)
        keys_found = await compactor.keys(job, dirty.rows)
        if await _is_compact(store, job, keys_found):
            return Result(unchanged=True, keys_end=keys_found.end_offset)
        return Result(files=await _write(store, job, keys_found), keys_end=keys_found.end_offset)
    except _RefusedError as error:
        return error.result
    except RetryError as error:
        return Result(retry=error.message)


async def _write(store: Store, job: Job, keep: Keys | None) -> list[ParquetExtent]:
    origin = Origin(
        topic_id=job.topic_id, partition=job.partition, leader_epoch=job.parts[0].extent.leader_epoch, history=job.history,
        oldest_ms=job.oldest_ms, maker=job.maker,
    )  # fmt: skip
    writer = FileWriter(store, origin, job.base_offset)
    reader = _Reader(store, job, job.aborted)
    for source in job.parts:
        async for rows, end_offset, appended_ms in reader.read(source):
            writer.reached(end_offset, appended_ms)
            await writer.add(rows if keep is None or job.compaction is None else compacted(rows, keep, job.compaction))
    return await writer.finish()


async def _is_compact(store: Store, job: Job, keep: Keys) -> bool:
    """True if all sources are files already, and no record of them leaves."""
    assert job.compaction is not None
    if any(isinstance(source, ChunkSource) for source in job.parts):
        return False
    for source in job.parts:
        if isinstance(source, FileSource):
            async for rows in _Reader(store, job, []).keys(source):
                if compacted(rows, keep, job.compaction).num_rows < rows.num_rows:
                    return False
    return True


class _Reader:
    """Reads the sources of a job as rows of a folded file, without what is deleted or aborted.

    Args:
        aborted: as `Job.aborted`, of the transactions with records in the sources.
    """

    def __init__(self, store: Store, job: Job, aborted: Iterable[tuple[int, int, int]]) -> None:
        self._store = store
        self._job = job
        self._aborted = ranges_of(aborted)

    async def rows(self, source: Source) -> AsyncIterator[pa.RecordBatch]:
        """The rows of a source. Raises _RefusedError, RetryError."""
        async for rows, _, _ in self.read(source):
            yield rows

    async def read(self, source: Source) -> AsyncIterator[tuple[pa.RecordBatch, int, int]]:
        """The rows of a source in parts, each with the offset below which all was read, and the wall-clock time in ms of the newest
        append. Raises _RefusedError, RetryError."""
        try:
            async for part in self._of_file(source) if isinstance(source, FileSource) else self._of_chunk(source):
                yield part
                # On a broker's own loop, other work gets its turn.
                await asyncio.sleep(0)
        except (InvalidError, CorruptError) as error:
            raise _RefusedError(source, error) from error

    async def keys(self, source: FileSource) -> AsyncIterator[pa.RecordBatch]:
        """The offsets, keys and values of a folded file. Raises _RefusedError, RetryError."""
        try:
            file = await self._footer(source.extent)
            for group in file.groups:
                data = await self._store.get_range(source.extent.path, group.start, group.end - group.start)
                for rows in read_group(file, group, data, ("offset", "key", "value")).to_batches():
                    yield rows
                await asyncio.sleep(0)
        except (InvalidError, CorruptError) as error:
            raise _RefusedError(source, error) from error

    async def _footer(self, extent: ParquetExtent) -> ExtentFile:
        return await footer_of(self._store, extent.path, size_bytes=extent.size_bytes, footer_crc32c=extent.footer_crc32c)

    async def _of_file(self, source: FileSource) -> AsyncIterator[tuple[pa.RecordBatch, int, int]]:
        job, extent = self._job, source.extent
        file = await self._footer(extent)
        if file.rows != extent.rows:
            raise CorruptError(Reason.CORRUPT_STORE, f"a file has other rows than were committed. path=`{extent.path}`")
        for group in file.groups:
            data = await self._store.get_range(extent.path, group.start, group.end - group.start)
            row = extent.base_offset + group.first_row
            for part in read_parts(file, group, data):
                rows = read_rows(part, job.partition, None if extent.folded else row, job.log_start, job.cuts)
                row += part.num_rows
                yield rows, int(rows.column("offset")[-1].as_py()) + 1 if rows.num_rows else extent.base_offset, source.appended_ms
        yield pa.RecordBatch.from_pylist([], FOLDED_SCHEMA), extent.end_offset, source.appended_ms

    async def _of_chunk(self, source: ChunkSource) -> AsyncIterator[tuple[pa.RecordBatch, int, int]]:
        job = self._job
        index = await _index(self._store, source)
        rows = rows_of(index, source.extent)
        at = rows.start
        key = keys.chunk_object(source.incarnation_id, source.chunk)
        while at < rows.stop:
            wanted = index.rows(at, rows.stop, READ_BYTES)
            data = memoryview(await self._store.get_ranges(key, wanted.stretches()))
            _, damage = checked(data, wanted, wanted.offsets[0], check_crc=True)
            if damage is not None:
                raise CorruptError(Reason.CORRUPT_STORE, f"{damage}. key=`{key}` offset=`{wanted.offsets[0]}`")
            at += len(wanted)
            end_offset = index.offsets[at] if at < rows.stop else source.extent.end_offset
            reached = source.extent.base_offset
            for part in read_batches(data, job.partition, job.log_start, end_offset, job.cuts, self._aborted):
                # Behind a part, only its own records are known to be read.
                reached = max(reached, int(part.column("offset")[-1].as_py()) + 1 if part.num_rows else 0)
                yield part, reached, source.chunk.appended_ms
            yield pa.RecordBatch.from_pylist([], FOLDED_SCHEMA), end_offset, source.chunk.appended_ms


async def _index(store: Store, part: ChunkSource) -> BatchIndex:
    """The index of an extent. An index that is an object of its own, and missing or wrong, is made again."""
    try:
        return await read_index(store, part.incarnation_id, part.chunk, part.extent)
    except (InvalidError, CorruptError):
        if part.chunk.index_inline:
            raise
        await rebuild_index(store, part.incarnation_id, part.chunk)
        return await read_index(store, part.incarnation_id, part.chunk, part.extent)
