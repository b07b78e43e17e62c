"""The second half of a flood's tasks on columns, as they run in Spark's Python workers: exchange, sort, write.

A task holds at most `SORT_BYTES_MAX` of rows that it sorts, usually `plan.TASK_BYTES`. Nothing here calls Spark, except for the
number of the attempt.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.log.column_partitioner import runs
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.expressions import TIMESTAMP, array_of
from headgate.pipelines.columns.layout import Piece
from headgate.pipelines.columns.ordering import in_order
from headgate.pipelines.columns.plan import TASK_BYTES, Buckets
from headgate.pipelines.columns.tasks import ROWS_MAX, Spec, joined, records
from headgate.pipelines.extents import ExtentFiles, attempt_id
from headgate.pipelines.plan import Job

SORT_BYTES_MAX = 4 * TASK_BYTES
"""Bytes of rows that one task may sort. Rows can be larger than those of the sample, and no cut divides rows of one time."""


@dataclass(frozen=True, slots=True)
class Part:
    """The output of one task for one partition. Parts of a partition follow one another by (stretch, task)."""

    stretch: int
    task: int
    written: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spilled:
    """Rows of one bucket in a file that all tasks can read."""

    path: str
    position: int
    size_bytes: int


Blob: TypeAlias = bytes | Spilled


def write_stretch(spec: Spec, job: Job, stretch: int, units: Iterable[tuple[Piece, ...]]) -> list[Part]:
    """Read, sort and write a small stretch, unit after unit."""
    return _write(spec, job, stretch, 0, (records(spec, pieces) for pieces in units))


def exchange(spec: Spec, buckets: Buckets, pieces: Iterable[Piece], spill: str | None) -> Iterator[tuple[int, Blob]]:
    """(bucket, its rows in Arrow's stream format) of some pieces of a large stretch.

    Args:
        spill: a directory that all tasks share; the rows go there. None: Spark carries the rows.
    """
    if spill is None:
        for bucket, rows in _divided(spec, buckets, pieces):
            out = pa.BufferOutputStream()
            _pack(rows, out)
            yield bucket, out.getvalue().to_pybytes()
        return
    try:
        handle, path = tempfile.mkstemp(dir=spill)
        os.close(handle)
        with pa.OSFile(path, "wb") as file:
            for bucket, rows in _divided(spec, buckets, pieces):
                begin = file.tell()
                _pack(rows, file)
                yield bucket, Spilled(path, begin, file.tell() - begin)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RetryError(
            Reason.STORE_FULL,
            "the disk for rows on their way between tasks is full: make room, or name another directory in spark.local.dir. "
            f"directory=`{spill}`",
        ) from error


def _divided(spec: Spec, buckets: Buckets, pieces: Iterable[Piece]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in records(spec, pieces):
        numbers = _bucket_numbers(buckets, batch)
        order: Any = np.argsort(numbers, kind="stable")
        batch = batch.take(pa.array(order))
        for number, begin, end in runs(numbers[order]):
            yield number, batch.slice(begin, end - begin)


def _bucket_numbers(buckets: Buckets, batch: pa.RecordBatch) -> npt.NDArray[Any]:
    partitions: Any = batch.column("partition").to_numpy()
    firsts = np.zeros(max(buckets.first, default=0) + 1, np.int64)
    firsts[list(buckets.first)] = list(buckets.first.values())
    numbers: npt.NDArray[Any] = firsts[partitions]
    for partition, cuts in buckets.cuts.items():
        own = np.flatnonzero(partitions == partition)
        times: Any = batch.column("timestamp").to_numpy()
        numbers[own] += np.searchsorted(np.array(cuts, np.int64), times[own], side="right")
    # numpy sorts numbers of 16 bits by their digits, several times as fast.
    return numbers.astype(np.uint16) if len(buckets.buckets) <= 1 << 16 else numbers


def _pack(batch: pa.RecordBatch, out: Any) -> None:
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)


def write_buckets(spec: Spec, job: Job, stretch: int, task: int, blobs: Iterable[tuple[int, Blob]]) -> list[Part]:
    """Sort and write the rows of some buckets, bucket after bucket. `blobs`: (bucket, some of its rows)."""
    found: dict[int, list[Blob]] = {}
    for bucket, blob in blobs:
        found.setdefault(bucket, []).append(blob)
    # Each bucket's rows leave memory when they are written.
    parts = (found.pop(bucket) for bucket in sorted(found))
    return _write(spec, job, stretch, task, ((batch for blob in some for batch in _unpacked(blob)) for some in parts))


def _bounded(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches, if a task may sort so many bytes. Raises UnlikeError."""
    found: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > SORT_BYTES_MAX:
            raise UnlikeError("many large rows have the same time, or rows are far larger than those of a sample")
        found.append(batch)
    return found


def _unpacked(blob: Blob) -> Iterable[pa.RecordBatch]:
    if isinstance(blob, bytes):
        return pa.ipc.open_stream(blob)
    # Mapped, not copied: the rows are copied once, in front of their sort.
    with pa.memory_map(blob.path) as file:
        file.seek(blob.position)
        return list(pa.ipc.open_stream(file.read_buffer(blob.size_bytes)))


def _write(spec: Spec, job: Job, stretch: int, task: int, units: Iterable[Iterable[pa.RecordBatch]]) -> list[Part]:
    """Sort each unit's rows and write them. The rows of one unit are earlier than those of the next one."""
    name = f"{job.name}.{stretch}.{task}.{attempt_id()}"
    with ExtentFiles(job.store_url, job.prefix, name, job.file_bytes, {}) as files:
        for unit in units:
            batches = _bounded(unit)
            if batches:
                _write_sorted(spec, files, batches)
        return [Part(stretch, task, written.to_dict()) for written in files.finish()]


def _write_sorted(spec: Spec, files: ExtentFiles, batches: list[pa.RecordBatch]) -> None:
    rows = joined(batches)
    batches.clear()
    # No two rows have the same number.
    order = in_order(rows, () if spec.query.is_by_row else spec.ties)
    rows = rows.select(["partition", "timestamp", "key", "value"]).take(order)
    partitions: Any = rows.column("partition").to_numpy()
    times = rows.column("timestamp").cast(TIMESTAMP)
    if spec.query.is_by_row:
        times = array_of(spec.query.outputs["timestamp"], {}, rows.num_rows)
    fields = pa.RecordBatch.from_arrays([times, rows.column("key"), rows.column("value")], names=["timestamp", "key", "value"])
    for partition, begin, end in runs(partitions):
        for start in range(begin, end, ROWS_MAX):
            files.add(partition, fields.slice(start, min(ROWS_MAX, end - start)))
