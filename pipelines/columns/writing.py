"""The second half of a flood's tasks on columns, as they run in Spark's Python workers: exchange, sort, write.

A task holds at most `Limits.sort_bytes` of rows that it sorts; the files of `runs.py` have the others. Nothing here calls Spark,
except for the number of the attempt.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.log.column_partitioner import runs
from headgate.pipelines.attempts import attempt_id
from headgate.pipelines.columns.expressions import array_of
from headgate.pipelines.columns.kinds import TIMESTAMP
from headgate.pipelines.columns.layout import Piece
from headgate.pipelines.columns.ordering import in_order, place_of
from headgate.pipelines.columns.runs import Order, disk_is_there, sorted_rows, temporary
from headgate.pipelines.columns.task_division import Buckets
from headgate.pipelines.columns.tasks import ROWS_MAX, Spec, records
from headgate.pipelines.extents import ExtentFiles
from headgate.pipelines.spark_rows import Job

DIRECTORIES = "SPARK_LOCAL_DIRS"
"""Environment variable with the directories for rows that do not fit into a task's memory."""


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
    with disk_is_there(spill):
        handle, path = tempfile.mkstemp(dir=spill)
        os.close(handle)
        # Append mode: ext4 flushes a truncated file to the disk at close (auto_da_alloc), and acks wait for that disk.
        with pa.OSFile(path, "ab") as file:
            for bucket, rows in _divided(spec, buckets, pieces):
                begin = file.tell()
                _pack(rows, file)
                yield bucket, Spilled(path, begin, file.tell() - begin)


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
    with _kept(blobs, spec.limits.sort_bytes) as found:
        # Each bucket's rows leave memory when they are written.
        parts = (found.pop(bucket) for bucket in sorted(found))
        return _write(spec, job, stretch, task, ((batch for blob in some for batch in _unpacked(blob)) for some in parts))


@contextmanager
def _kept(blobs: Iterable[tuple[int, Blob]], bytes_max: int) -> Iterator[dict[int, list[Blob]]]:
    """The blobs of each bucket: up to `bytes_max` in memory, the others in a file."""
    found: dict[int, list[Blob]] = {}
    size = 0
    with temporary(_local_directory()) as directory:
        with ExitStack() as stack:
            file: Any = None
            for bucket, blob in blobs:
                if isinstance(blob, bytes) and (size := size + len(blob)) > bytes_max:
                    path = os.path.join(directory(), "rows")
                    with disk_is_there(path):
                        file = file or stack.enter_context(pa.OSFile(path, "wb"))
                        blob = Spilled(path, file.tell(), file.write(blob))
                found.setdefault(bucket, []).append(blob)
        yield found


def _local_directory() -> str | None:
    """Spark's directory for files of this task on this machine. Spark removes it at its end, whatever becomes of the task."""
    places = [directory for directory in os.environ.get(DIRECTORIES, "").split(",") if directory]
    return places[attempt_id() % len(places)] if places else None


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
    # No two rows have the same number.
    ties = () if spec.query.is_by_row else spec.ties
    outputs = ("partition", "timestamp", *spec.fields)
    order = Order(lambda rows: in_order(rows, ties), lambda rows, row: place_of(rows, ties, row))
    with ExtentFiles(job.store_url, job.prefix, name, job.file_bytes, {}, spec.limits.files_bytes) as files:
        for unit in units:
            for rows in sorted_rows(unit, order, spec.limits.sort_bytes, outputs, _local_directory()):
                _add(spec, files, rows)
        return [Part(stretch, task, written.to_dict()) for written in files.finish()]


def _add(spec: Spec, files: ExtentFiles, rows: pa.RecordBatch) -> None:
    """Add sorted rows to the files of their partitions."""
    partitions: Any = rows.column("partition").to_numpy()
    times = rows.column("timestamp").cast(TIMESTAMP)
    if spec.query.is_by_row:
        times = array_of(spec.query.outputs["timestamp"], {}, rows.num_rows)
    fields = pa.RecordBatch.from_arrays([times, *map(rows.column, spec.fields)], names=["timestamp", *spec.fields])
    for partition, begin, end in runs(partitions):
        for start in range(begin, end, ROWS_MAX):
            files.add(partition, fields.slice(start, min(ROWS_MAX, end - start)))
