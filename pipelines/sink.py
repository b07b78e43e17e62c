"""Writing a DataFrame to a topic: tasks upload files, the driver commits all of them in one step, or none.

The step is a gate at the end of the topic, opened and filled at once. Its id is the write's. For a streaming query it consists
of the query's id and the batch's number, so a batch that is replayed after a crash finds its gate filled and adds nothing.
Brokers delete the files of retried, copied and cancelled tasks, which no commit names.

Columns: `value` (required), `key`, `partition`, `timestamp`, `headers`. A row without a partition goes to the partition of its
key; a row without a key goes to the partitions of its task in turn. A row without a time gets the time of its task.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
from pyspark import TaskContext
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headgate.broker.client.gate_admin import FileRef, Gate, GateState
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.attempts import attempt_id
from headgate.pipelines.connection import Connection
from headgate.pipelines.extents import FILE_BYTES, ExtentFiles, Written, by_partition
from headgate.pipelines.murmur2 import kafka_partitions
from headgate.pipelines.options import check_options, cluster_of, number_option, option
from headgate.pipelines.worker_errors import sentences

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
COLUMNS = ("key", "value", "partition", "timestamp", "headers")
OPTIONS = ("cluster", "topic", "fileBytes")


@dataclass
class Done(WriterCommitMessage):
    """The result of a task for the driver, with the id of its query."""

    written: list[dict[str, Any]]
    query_id: str = ""


class _Sink:
    """The common part of batch and stream. Created on the driver; checks that the topic exists and the columns fit."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._cluster = cluster_of(options)
        check_options(options, OPTIONS, "a write")
        topic = option(options, "topic")
        if topic is None:
            raise InvalidError(Reason.INVALID_REQUEST, "say where to write with the option topic; one write is one topic's")
        self._topic = topic
        self._file_bytes = number_option(options, "fileBytes", FILE_BYTES) or FILE_BYTES
        check_schema(schema)
        self._write_id = f"spark-{uuid.uuid4().hex}"
        with Connection(self._cluster) as connection:
            layout = connection.call(connection.gates.layout(topic))
        self._store_url = layout.store_url
        self._prefix = layout.prefix
        self._partitions = len(layout.partitions)

    def _upload(self, batches: Iterator[Any]) -> Done:
        context = TaskContext.get()
        query_id = (context.getLocalProperty(QUERY_ID) or "") if context is not None else ""
        turn = context.partitionId() if context is not None else 0
        name = f"{self._write_id}.{attempt_id()}"
        with ExtentFiles(self._store_url, self._prefix, name, self._file_bytes, {}) as files:
            for partition, rows in by_partition(self._placed(batches, turn)):
                files.add(partition, rows)
            return Done([written.to_dict() for written in files.finish()], query_id)

    def _placed(self, batches: Iterator[Any], turn: int) -> Iterator[Any]:
        """Batches with the columns of a file, and the partition of every row."""
        pc: Any = pyarrow.compute
        now = pa.scalar(time.time_ns() // 1000, pa.timestamp("us", tz="UTC"))
        for batch in batches:
            count = batch.num_rows
            if not count:
                continue
            names = set(batch.schema.names)
            value = batch.column("value").cast(pa.binary())
            key = batch.column("key").cast(pa.binary()) if "key" in names else pa.nulls(count, pa.binary())
            times = batch.column("timestamp").fill_null(now) if "timestamp" in names else pa.repeat(now, count)
            partition = kafka_partitions(key, self._partitions).fill_null(turn % self._partitions)
            turn += 1
            if "partition" in names:
                given = batch.column("partition").cast(pa.int32())
                span = pc.min_max(given).as_py()
                if span["min"] is not None and not 0 <= span["min"] <= span["max"] < self._partitions:
                    raise InvalidError(
                        Reason.INVALID_RECORD,
                        "rows name partitions that the topic has not. "
                        f"topic=`{self._topic}` partitions=`{self._partitions}` lowest=`{span['min']}` highest=`{span['max']}`",
                    )
                partition = pc.coalesce(given, partition)
            columns = {"partition": partition, "timestamp": times, "key": key, "value": value}
            if "headers" in names:
                columns["headers"] = batch.column("headers")
            yield pa.RecordBatch.from_pydict(columns)

    def _files(self, messages: list[WriterCommitMessage | None]) -> list[FileRef]:
        """The results of the tasks, in their order."""
        rows: dict[int, int] = {}
        files: list[FileRef] = []
        for message in messages:
            if not isinstance(message, Done):
                continue
            for row in message.written:
                written = Written.from_dict(row)
                for file in written.files:
                    base = rows.get(written.partition, 0)
                    files.append(replace(file, base_offset=base))
                    rows[written.partition] = base + file.rows
        return files


@sentences
class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("headgate")`."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._upload(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = self._files(messages)
        if files:
            with Connection(self._cluster) as connection:
                connection.call(connection.gates.publish(self._topic, files, gate_id=self._write_id))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: no reader saw the files, and brokers delete them."""


@sentences
class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("headgate")`."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._upload(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        known = [message.query_id for message in messages if isinstance(message, Done)]
        files = self._files(messages)
        if not files:
            return
        assert known[0], "Spark did not say which query a task belongs to"
        gate_id = f"{_gates_of(known[0])}{batchId}"
        with Connection(self._cluster) as connection:
            try:
                connection.call(connection.gates.publish(self._topic, files, gate_id=gate_id))
            except InvalidError as error:
                if error.reason is not Reason.GATE_CONFLICT:
                    raise
                # The replayed files have other names, and other rows if the query is not deterministic: this batch was committed
                # before, and Spark was not informed in time.
                gates = connection.call(connection.gates.list(self._topic))
                check_replay(gates, known[0], batchId, sum(file.rows for file in files))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: no reader saw the files, and brokers delete them."""


def check_replay(gates: Sequence[Gate], query_id: str, batch_id: int, rows: int) -> None:
    """Accept a batch whose gate exists; it adds nothing. Raises InvalidError when that would lose records.

    A batch that is replayed after a crash is the query's last one, and has no more rows than before. A checkpoint older than the
    topic counts from its own last batch, and its batches mean other records.
    """
    name = _gates_of(query_id)
    numbered = re.compile(re.escape(name) + "([0-9]+)")
    committed = {
        int(found.group(1)): gate.rows
        for gate in gates
        if gate.state is GateState.FILLED and (found := numbered.fullmatch(gate.id)) is not None
    }
    last, before = max(committed, default=0), committed.get(batch_id, 0)
    if rows > before or last > batch_id:
        raise InvalidError(
            Reason.GATE_CONFLICT,
            "batch was committed before, as other records: the checkpoint is an older copy, or the query was changed before it "
            "was told of its last batch. Begin with a new checkpoint where the topic's last records came from (startingOffsets), "
            "or run the query once as it was. "
            f"query=`{query_id}` batch=`{batch_id}` rows=`{rows}` committed=`{before}` last_batch=`{last}`",
        )


def _gates_of(query_id: str) -> str:
    """Prefix of the ids of a streaming query's gates; the batch's number follows."""
    return f"stream-{query_id}-"


def check_schema(schema: StructType) -> None:
    """Raise InvalidError when the columns cannot be records."""
    kinds = {field.name: field.dataType for field in schema}
    if "value" not in kinds:
        raise InvalidError(Reason.INVALID_REQUEST, f"there is no column value. columns=`{', '.join(kinds)}`")
    for name, kind in kinds.items():
        match name:
            case "key" | "value":
                fits = isinstance(kind, T.BinaryType | T.StringType)
            case "partition":
                fits = isinstance(kind, T.IntegerType | T.LongType | T.ShortType)
            case "timestamp":
                fits = isinstance(kind, T.TimestampType)
            case "headers":
                fits = isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StructType)
            case "topic" | "offset" | "timestampType":
                fits = True  # a read returns these columns; the option wins, and a record gets a new offset
            case _:
                raise InvalidError(
                    Reason.INVALID_REQUEST, f"records have no such column. column=`{name}` columns=`{', '.join(COLUMNS)}`"
                )
        if not fits:
            raise InvalidError(Reason.INVALID_REQUEST, f"column has a wrong type. column=`{name}` type=`{kind.simpleString()}`")
