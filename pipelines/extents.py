"""Rows to Parquet extents: `ExtentFiles` for whoever has Arrow batches, and `ExtentSink`, which has Spark's executors do it.

Nothing that is written here can be seen by a reader. The names of the files carry the job's run and the task's attempt, so that
retries, speculative copies and a second job never write the same object; what a task hands back (`Written`) is all that counts, and
only the driver decides which of it is committed. Files that nobody commits are swept by the brokers.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from broker.client.gates import FileRef
from broker.runtime.errors import InvalidError, Reason
from pipelines.certificate import Tally

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "headgate_extents"
FILE_BYTES = 64 << 20
RAW_BYTES_MAX = 256 << 20
"""Most bytes of rows that a task holds before it writes them, however well they compress."""


@dataclass(slots=True)
class Written:
    """What one task wrote of one partition. `tally`: of the rows as Spark gave them, before they were written."""

    partition: int
    tally: Tally = Tally()
    files: list[FileRef] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Written:
        return cls(row["partition"], Tally(**row["tally"]), [FileRef(**file) for file in row["files"]])


class ExtentFiles:
    """Writes the rows of any number of partitions to files of about a stated size.

    Args:
        store_url, prefix: where: the files' keys are ``<prefix>partition=<n>/<name>-<nnn>.parquet``.
        name: begins the names of all files; nobody else may use it.
        file_bytes: size that a file is to have.
        bases: the offset of each partition's first row; 0 where there is none.
    """

    def __init__(self, store_url: str, prefix: str, name: str, file_bytes: int, bases: dict[int, int]) -> None:
        self._store_url = store_url
        self._prefix = prefix
        self._name = name
        self._file_bytes = file_bytes
        self._bases = bases
        self._ratio = 1.0
        """Bytes of a file by bytes of its rows, as the last file had it."""
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._waiting_bytes: dict[int, int] = {}
        self.written: dict[int, Written] = {}

    def add(self, partition: int, rows: pa.RecordBatch) -> None:
        """Take rows: `timestamp`, `key`, `value` and perhaps `headers`, in the order of their offsets."""
        if rows.num_rows == 0:
            return
        self._waiting.setdefault(partition, []).append(rows)
        size = self._waiting_bytes.get(partition, 0) + rows.nbytes
        self._waiting_bytes[partition] = size
        if size * self._ratio >= self._file_bytes or size >= RAW_BYTES_MAX:
            self._flush(partition)
        elif sum(self._waiting_bytes.values()) >= RAW_BYTES_MAX:
            self._flush(max(self._waiting_bytes, key=self._waiting_bytes.__getitem__))

    def finish(self) -> list[Written]:
        """Write what waits. Returns what was written, by partition."""
        for partition in list(self._waiting):
            self._flush(partition)
        return [self.written[partition] for partition in sorted(self.written)]

    def _flush(self, partition: int) -> None:
        import pyarrow as pa

        from broker.client.upload import write_extent
        from pipelines.tally import tally

        batches = self._waiting.pop(partition)
        size = self._waiting_bytes.pop(partition)
        done = self.written.setdefault(partition, Written(partition))
        key = f"{self._prefix}partition={partition}/{self._name}-{len(done.files):03d}.parquet"
        base_offset = self._bases.get(partition, 0) + done.tally.rows
        table = pa.Table.from_batches(batches)
        file = write_extent(self._store_url, key, table, partition, base_offset)
        done.files.append(file)
        for batch in batches:
            done.tally += tally(batch)
        self._ratio = min(max(file.size_bytes / size, 0.02), 1.5)


@dataclass(frozen=True, slots=True)
class Job:
    """What every task of a job must know. `result_path`: file on the driver that gets what the tasks handed back."""

    store_url: str
    prefix: str
    name: str
    file_bytes: int
    bases: dict[int, int]
    result_path: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        row = json.loads(text)
        row["bases"] = {int(partition): base for partition, base in row["bases"].items()}
        return cls(**row)


@dataclass
class TaskDone(WriterCommitMessage):
    """What a task hands to the driver."""

    written: list[dict[str, Any]]


class ExtentSink(DataSource):
    """The sink of `pipelines.backfill`. Its rows have the columns `partition`, `timestamp`, `key`, `value` and perhaps `headers`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return ExtentWriter(self.options["job"])


class ExtentWriter(DataSourceArrowWriter):
    """Writes extents in the tasks; on the driver it only writes down what came back."""

    def __init__(self, job: str) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task: one partition, sorted."""
        job = Job.from_json(self._job)
        files = ExtentFiles(job.store_url, job.prefix, f"{job.name}.{attempt_id()}", job.file_bytes, job.bases)
        for partition, rows in by_partition(iterator):
            files.add(partition, rows)
        return TaskDone([written.to_dict() for written in files.finish()])

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Hand everything to the driver's own process, which this is not."""
        done = [written for message in messages if isinstance(message, TaskDone) for written in message.written]
        path = Job.from_json(self._job).result_path
        handle, name = tempfile.mkstemp(dir=os.path.dirname(path))
        with os.fdopen(handle, "w") as file:
            json.dump(done, file)
        os.replace(name, path)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was visible, nothing is to be undone."""


def attempt_id() -> int:
    """The number of this attempt at a task: no other attempt of the application has it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()


def by_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of one partition each, without the column that names it. The order within a partition stays."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        if batch.num_rows == 0:
            continue
        partitions = batch.column("partition")
        rows = batch.drop_columns(["partition"])
        span = pc.min_max(partitions).as_py()
        if span["min"] is None or partitions.null_count:
            raise InvalidError(Reason.INVALID_RECORD, "partition of a row is null")
        if span["min"] == span["max"]:
            yield span["min"], rows
            continue
        numbers = partitions.to_numpy(zero_copy_only=False)
        order = np.argsort(numbers, kind="stable")
        rows = rows.take(pa.array(order))
        numbers = numbers[order]
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in zip(cuts, cuts[1:], strict=False):
            yield int(numbers[start]), rows.slice(start, end - start)
