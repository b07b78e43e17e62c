"""Rows to Parquet extents: `ExtentFiles` writes Arrow batches, in Spark's workers and in processes without Spark.

No reader sees these files before the commit. Their names carry the job's run and the task's attempt, so retries, speculative
copies and a second job never write the same object. Only the list that a task returns (`Written`) counts, and only the driver
decides which lists are committed. Brokers delete files that were never committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headgate.broker.client.file_ref import FileRef
from headgate.broker.client.upload import Uploader
from headgate.broker.log.column_partitioner import runs
from headgate.broker.log.parquet import ExtentEncoder
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.certificate import Tally
from headgate.pipelines.tally import tally

FILE_BYTES = 64 << 20
HELD_BYTES_MAX = 256 << 20
"""Bound of the files that a task holds, in bytes."""


@dataclass(slots=True)
class Written:
    """The output of one task for one partition. `tally` counts the rows as Spark gave them, before they were written."""

    partition: int
    tally: Tally = field(default_factory=Tally)
    files: list[FileRef] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Written:
        return cls(row["partition"], Tally(**row["tally"]), [FileRef(**file) for file in row["files"]])


class ExtentFiles:
    """Writes the rows of any number of partitions to files of about a stated size. A context manager.

    Rows are encoded as they come, a row group at a time. A thread uploads one file while the next one is encoded: a store takes its
    time to make a file durable.

    Args:
        store_url, prefix: the place; the files' keys are ``<prefix>partition=<n>/<name>-<nnn>.parquet``.
        name: start of all file names, unique to this writer.
        file_bytes: target size of a file.
        bases: the offset of each partition's first row; 0 for a missing partition.
        held_bytes: most bytes of the unfinished files, of all partitions together, and of the file that is uploaded.
    """

    def __init__(
        self,
        store_url: str,
        prefix: str,
        name: str,
        file_bytes: int,
        bases: dict[int, int],
        held_bytes: int = HELD_BYTES_MAX,
    ) -> None:
        self._uploader = Uploader(store_url)
        self._thread = ThreadPoolExecutor(1, "headgate-upload")
        self._upload: tuple[list[FileRef], Future[FileRef]] | None = None
        """The upload that runs, and the list for its file."""
        self._prefix = prefix
        self._name = name
        self._file_bytes = file_bytes
        self._bases = bases
        self._held_bytes = held_bytes
        self._uploading_bytes = 0
        self._numbers: dict[int, int] = {}
        """Files of each partition so far."""
        self._encoders: dict[int, ExtentEncoder] = {}
        """The file in the making of each partition."""
        self.written: dict[int, Written] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if self._upload is not None:
                # Only after an error: `finish` waits for the last upload.
                wait([self._upload[1]])
            self._thread.submit(self._uploader.close).result()
        finally:
            self._thread.shutdown()

    def add(self, partition: int, rows: pa.RecordBatch) -> None:
        """Add rows: `timestamp`, `key`, `value` and perhaps `headers`, in the order of their offsets."""
        if rows.num_rows == 0:
            return
        encoder = self._encoders.get(partition)
        if encoder is None:
            encoder = self._encoders[partition] = ExtentEncoder(rows.schema)
        encoder.add(rows)
        done = self.written.setdefault(partition, Written(partition))
        done.tally += tally(rows)
        if encoder.held_bytes >= self._file_bytes:
            self._flush(partition)
        elif self._uploading_bytes + sum(encoder.held_bytes for encoder in self._encoders.values()) >= self._held_bytes:
            self._flush(max(self._encoders, key=lambda number: self._encoders[number].held_bytes))

    def finish(self) -> list[Written]:
        """Write the remaining rows. Returns the output by partition."""
        for partition in list(self._encoders):
            self._flush(partition)
        self._finish_upload()
        return [self.written[partition] for partition in sorted(self.written)]

    def _flush(self, partition: int) -> None:
        file = self._encoders.pop(partition).finish()
        done = self.written[partition]
        number = self._numbers.get(partition, 0)
        self._numbers[partition] = number + 1
        key = f"{self._prefix}partition={partition}/{self._name}-{number:03d}.parquet"
        base_offset = self._bases.get(partition, 0) + done.tally.rows - file.rows
        self._finish_upload()
        self._uploading_bytes = len(file.data)
        self._upload = (done.files, self._thread.submit(self._uploader.put, key, file, partition, base_offset))

    def _finish_upload(self) -> None:
        """Wait for the upload that runs. Raises its error."""
        if self._upload is not None:
            (files, upload), self._upload = self._upload, None
            self._uploading_bytes = 0
            files.append(upload.result())


def by_partition(batches: Iterable[Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split batches into batches of one partition each, without the partition column. The order within a partition stays."""
    pc: Any = pyarrow.compute
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
        rows = rows.take(pa.array(order, pa.int64()))
        for number, start, end in runs(numbers[order]):
            yield number, rows.slice(start, end - start)
