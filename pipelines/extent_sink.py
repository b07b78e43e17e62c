"""The sink of `headgate.pipelines.backfill` for Spark's rows: `ExtentSink` writes Parquet extents on Spark's executors."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from headgate.pipelines.attempts import attempt_id
from headgate.pipelines.extents import ExtentFiles, by_partition
from headgate.pipelines.spark_rows import Job

FORMAT = "headgate_extents"


@dataclass(frozen=True, slots=True)
class SinkJob:
    """A job of `ExtentSink`. `result_path`: file on the driver that receives the tasks' results."""

    job: Job
    result_path: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SinkJob:
        row = json.loads(text)
        bases = {int(partition): base for partition, base in row["job"].pop("bases").items()}
        return cls(Job(**row["job"], bases=bases), row["result_path"])


@dataclass
class TaskDone(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    written: list[dict[str, Any]]


class ExtentSink(DataSource):
    """The sink of `headgate.pipelines.backfill`. Its rows have the columns `partition`, `timestamp`, `key`, `value`, perhaps
    `headers`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return ExtentWriter(self.options["job"])


class ExtentWriter(DataSourceArrowWriter):
    """Writes extents in the tasks. On the driver it only saves the tasks' results."""

    def __init__(self, job: str) -> None:
        self._job = job

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Run one task: one partition, sorted."""
        job = SinkJob.from_json(self._job).job
        name = f"{job.name}.{attempt_id()}"
        with ExtentFiles(job.store_url, job.prefix, name, job.file_bytes, job.bases) as files:
            for partition, rows in by_partition(iterator):
                files.add(partition, rows)
            return TaskDone([written.to_dict() for written in files.finish()])

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Save all results to a file: Spark calls this method in a Python process other than the driver's own."""
        done = [written for message in messages if isinstance(message, TaskDone) for written in message.written]
        path = SinkJob.from_json(self._job).result_path
        handle, name = tempfile.mkstemp(dir=os.path.dirname(path))
        with os.fdopen(handle, "w") as file:
            json.dump(done, file)
        os.replace(name, path)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: no reader saw the files, and brokers delete them."""
