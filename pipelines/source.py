"""The Spark data source `headgate`: batch and streaming, read and write. `register(spark)` adds it to a session.

    register(spark)
    spark.read.format("headgate").option("cluster", "127.0.0.1:9095").option("subscribe", "clicks").load()

Options and columns are those of Spark's Kafka source, so a job changes only its format and its address. Reading takes history
straight from the Parquet files in the store. Spark does not tell a Python data source the columns of a query; the option
``columns`` names them. Spark does pass filters; those on offset, timestamp, partition and topic limit the read. Writing uploads
files and commits them in one step, exactly once (`pipelines/sink.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from headgate.broker.client.gate_admin import GateState
from headgate.broker.client.types import Start, TopicPartition
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines import offsets as places
from headgate.pipelines.connection import Connection
from headgate.pipelines.decoded import MESSAGES, read_decoded
from headgate.pipelines.offsets import Narrowed, Offsets, Place, Topics
from headgate.pipelines.options import check_options, cluster_of, flag_option, number_option, option, registry_of, words_option
from headgate.pipelines.reads import PIECE_BYTES, Piece, Wanted, Work, pieces, tasks
from headgate.pipelines.session import activate
from headgate.pipelines.worker_errors import sentences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "headgate"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
POLL_S = 0.2
"""Longest age of the ends that a stream knows, in seconds: Spark asks a hundred times a second."""

TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp_ltz",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
_STREAM_OPTIONS = (
    "cluster", "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "maxOffsetsPerTrigger", "minPartitions", "includeHeaders", "columns",
    "pieceBytes", "registry",
)  # fmt: skip
_BATCH_OPTIONS = (
    *_STREAM_OPTIONS, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsetsByTimestampStrategy",
    "openGates",
)  # fmt: skip
"""Options that Spark's Kafka source also accepts for a batch without effect, `maxOffsetsPerTrigger` among them."""
_OPEN_GATES = ("error", "stop", "skip")


def register(spark: SparkSession) -> None:
    """Add `format("headgate")` to a session, and let Spark pass filters to Python data sources.

    Spark searches the session of the calling thread, and a new thread has none: call this function there too.
    """
    activate(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(HeadgateDataSource)


@sentences
class HeadgateDataSource(DataSource):
    """`format("headgate")`. Its options, in any case:

    - ``cluster``: HOST:GRPC_PORT of any broker, several with commas between. Default 127.0.0.1:9095.
    - ``subscribe``, ``subscribePattern`` or ``assign``; ``startingOffsets``, ``endingOffsets``, ``startingTimestamp``,
      ``endingTimestamp``, ``startingOffsetsByTimestamp``, ``endingOffsetsByTimestamp``, ``startingOffsetsByTimestampStrategy``,
      ``failOnDataLoss``, ``maxOffsetsPerTrigger``, ``minPartitions``, ``includeHeaders``: as of Spark's Kafka source.
    - ``columns``: the wanted columns, with commas between. Default: all.
    - ``registry``: URL of a schema registry. Key and value are then text: JSON if they have its frame, else text that they are, and
      null for other bytes.
    - ``openGates``: a batch's action at an open gate: error (default), stop, skip. A stream waits there.
    - writing: ``topic``; ``fileBytes``.

    Any other option is refused, as is the end of a stream.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return StreamReader(dict(self.options))
        except HeadgateError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from headgate.pipelines.sink import BatchSink

        if overwrite:
            raise InvalidError(Reason.UNSUPPORTED, "records are only ever added: write with mode append")
        return BatchSink(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from headgate.pipelines.sink import StreamSink

        if overwrite:
            raise InvalidError(Reason.UNSUPPORTED, "records are only ever added: write with output mode append")
        return StreamSink(dict(self.options), schema)


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of the result, in order. Raises InvalidError for an unknown column."""
    named = tuple(words_option(options, "columns"))
    for name in named:
        if name not in TYPES:
            raise InvalidError(Reason.INVALID_REQUEST, f"no such column. column=`{name}` columns=`{', '.join(TYPES)}`")
    if named:
        return tuple(dict.fromkeys(named))
    return (*COLUMNS, "headers") if flag_option(options, "includeHeaders", False) else COLUMNS


def types_of(options: Mapping[str, str]) -> dict[str, str]:
    """The columns of the result and their types, in order. Raises InvalidError for an unknown column."""
    texts = () if option(options, "registry") is None else MESSAGES
    return {name: "string" if name in texts else TYPES[name] for name in columns_of(options)}


def schema_of(options: Mapping[str, str]) -> str:
    """The schema of the result, in Spark's DDL. Raises InvalidError for an unknown column."""
    return ", ".join(f"{name} {kind}" for name, kind in types_of(options).items())


@dataclass
class Task(InputPartition):
    """The work of one Spark task."""

    work: Work


class _Reading:
    """The common part of batch and stream."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str], what: str) -> None:
        self._cluster = cluster_of(options)
        check_options(options, known, what)
        self._topics = Topics.of(options)
        self._columns = columns_of(options)
        self._registry = registry_of(options)
        self._piece_bytes = number_option(options, "pieceBytes", PIECE_BYTES) or PIECE_BYTES
        self._tasks_min = number_option(options, "minPartitions", 1) or 1
        self._fail_on_loss = flag_option(options, "failOnDataLoss", True)
        self._narrowed = Narrowed()

    def _chosen(self, connection: Connection) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """The partitions to read, and the ids of their topics."""
        topics = connection.call(connection.admin.list_topics())
        known = {topic.name: topic.partitions for topic in topics}
        chosen = self._topics.choose(known, [topic.name for topic in topics if topic.is_internal])
        return chosen, {topic.name: str(topic.id) for topic in topics if topic.name in chosen}

    def _offsets(self, connection: Connection, chosen: Mapping[str, tuple[int, ...]], place: Place) -> Offsets:
        """A place as offsets. Raises InvalidError for an offset outside the partition.

        When lost records do not matter, the nearest existing offset replaces one that was removed or does not exist yet.
        """
        place.check(chosen)
        starts: dict[TopicPartition, Start] = {
            TopicPartition(topic, number): place.at(topic, number) for topic, numbers in chosen.items() for number in numbers
        }
        given = {at: start for at, start in starts.items() if isinstance(start, int) and start >= 0}
        if given and not self._fail_on_loss:
            firsts, ends = (
                connection.call(connection.admin.offsets(dict.fromkeys(given, word))) for word in ("earliest", "latest")
            )
            starts |= {at: min(max(start, firsts[at].offset), ends[at].offset) for at, start in given.items()}
        found = connection.call(connection.admin.offsets(starts)) if starts else {}
        offsets: Offsets = {topic: {} for topic in chosen}
        for at, answer in found.items():
            start = starts[at]
            if place.strict and not isinstance(start, int | str) and answer.timestamp_ms is None:
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    "no record has that time or a later one: startingOffsetsByTimestampStrategy=latest starts at the end then. "
                    f"topic=`{at.topic}` partition=`{at.partition}` timestamp=`{start.ms}`",
                )
            offsets[at.topic][at.partition] = answer.offset
        return offsets

    def _planned(self, connection: Connection, start: Offsets, end: Offsets, ids: Mapping[str, str], open_gates: str) -> list[Task]:
        share = max(self._tasks_min // max(len(end), 1), 1)
        return [
            Task(work)
            for store_url, found in self._pieces(connection, start, end, ids, open_gates)
            for work in tasks(store_url, found, piece_bytes=self._piece_bytes, tasks_min=share)
        ]

    def _pieces(
        self, connection: Connection, start: Offsets, end: Offsets, ids: Mapping[str, str], open_gates: str
    ) -> Iterator[tuple[str, list[Piece]]]:
        """The store and the pieces of each topic with records between `start` and `end`."""
        share = max(self._tasks_min // max(len(end), 1), 1)
        for topic, ends in end.items():
            ranges = {number: (start.get(topic, {}).get(number, 0), stop) for number, stop in ends.items()}
            ranges = {number: span for number, span in ranges.items() if span[0] < span[1]}
            if not ranges:
                continue
            layout = connection.call(connection.gates.layout(topic))
            if ids.get(topic) not in (None, str(layout.topic_id)):
                self._lost(topic)
                continue
            for part in layout.partitions:
                span = ranges.get(part.partition)
                if span is not None and span[0] < part.log_start:
                    if self._fail_on_loss:
                        raise InvalidError(
                            Reason.OFFSET_OUT_OF_RANGE,
                            "records were removed before they were read: failOnDataLoss=false goes on behind them. "
                            f"topic=`{topic}` partition=`{part.partition}` offset=`{span[0]}` log_start=`{part.log_start}`",
                        )
                    ranges[part.partition] = (part.log_start, max(span[1], part.log_start))
            yield layout.store_url, pieces(layout, ranges, self._narrowed, open_gates=open_gates, tasks_min=share)

    def _lost(self, topic: str) -> None:
        """Records that the query was to read were deleted with their topic. Raises InvalidError unless that does not matter."""
        if self._fail_on_loss:
            raise InvalidError(
                Reason.UNKNOWN_TOPIC,
                "topic of the checkpoint was deleted, or is no longer asked for, with what was not read: failOnDataLoss=false goes "
                f"on, and reads one that was made again from its beginning. topic=`{topic}`",
            )

    def _read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Task):
            return  # Spark runs one task even without partitions to read
        yield from read_decoded(partition.work, Wanted(self._columns, self._narrowed, self._cluster), self._registry)


@sentences
class BatchReader(_Reading, DataSourceReader):
    """A range of offsets, fixed when the query is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options, _BATCH_OPTIONS, "a batch read")
        self._start = Place.of(options, "starting", "earliest")
        self._end = Place.of(options, "ending", "latest")
        self._open_gates = option(options, "openGates") or "error"
        if self._start.every == "latest" or self._end.every == "earliest":
            raise InvalidError(Reason.INVALID_REQUEST, "a batch cannot start at the latest or end at the earliest offset")
        if self._open_gates not in _OPEN_GATES:
            raise InvalidError(Reason.INVALID_REQUEST, f"openGates is error, stop or skip. value=`{self._open_gates}`")

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Limit the read by filters; Spark applies them to the rows as well."""
        self._narrowed = self._narrowed.with_filters(filters)
        return filters

    def partitions(self) -> list[Task]:
        with Connection(self._cluster) as connection:
            return self._planned(connection, *self._range(connection), self._open_gates)

    def cut(self, connection: Connection) -> list[tuple[str, list[Piece]]]:
        """The store and the pieces of each topic with records to read. Asks the cluster once; later records are not in it."""
        return list(self._pieces(connection, *self._range(connection), self._open_gates))

    def _range(self, connection: Connection) -> tuple[Offsets, Offsets, dict[str, str]]:
        """The offsets at which the read starts and ends, and the ids of their topics."""
        chosen, ids = self._chosen(connection)
        return self._offsets(connection, chosen, self._start), self._offsets(connection, chosen, self._end), ids

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read(partition)


@sentences
class RefusedStream(DataSourceStreamReader):
    """Stands for a stream that cannot be, and says so when it is asked. PySpark also stops a reader that it could not make, and
    then shows only the error of that."""

    def __init__(self, error: HeadgateError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error


@sentences
class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An endless read. Lives in one process for the query's whole life; its offsets are the checkpoint's."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options, _STREAM_OPTIONS, "a streaming read")
        self._start = Place.of(options, "starting", "latest")
        self._rows_max = number_option(options, "maxOffsetsPerTrigger")
        self._connection: Connection | None = None
        self._initial: dict[str, Any] | None = None
        self._seen: tuple[Offsets, dict[str, str]] | None = None
        """The ends, and the ids of their topics."""
        self._seen_at_s = 0.0
        self._target: tuple[Offsets, dict[str, str]] | None = None
        """The end of a query with Trigger.AvailableNow."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            connection = self._open()
            chosen, ids = self._chosen(connection)
            self._initial = places.to_json(self._offsets(connection, chosen, self._start), ids)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        ends, ids = self._target if self._target is not None else self._ends()
        connection = self._open()
        began = self._began(connection, start, ends, ids)
        end: Offsets = {
            topic: {number: max(ends.get(topic, {}).get(number, offset), offset) for number, offset in rows.items()}
            for topic, rows in began.items()
        }
        began, end = self._around_gates(connection, began, end)
        if isinstance(limit, ReadMaxRows):
            end = places.rate_limited(began, end, limit.max_rows)
        return places.to_json(end, ids)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._seen is None else places.to_json(*self._seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        stop, ids = places.from_json(end)
        connection = self._open()
        return self._planned(connection, self._began(connection, start, stop, ids), stop, ids, "skip")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint has the offsets."""

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)
            self._connection = None

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._cluster)
            self._connection.__enter__()
        return self._connection

    def _began(self, connection: Connection, start: dict[str, Any], end: Offsets, ids: Mapping[str, str]) -> Offsets:
        """The start of a batch that ends in topics of these ids. Raises InvalidError when a topic of the checkpoint is missing."""
        began, read_ids = places.from_json(start)
        for topic, read_id in read_ids.items():
            if ids.get(topic) != read_id:
                self._lost(topic)
                del began[topic]
        new = {topic: tuple(number for number in rows if number not in began.get(topic, {})) for topic, rows in end.items()}
        if any(new.values()):
            # Partitions that were added since start at their beginning: the query has not read them yet.
            for topic, rows in self._offsets(connection, new, Place("earliest")).items():
                began.setdefault(topic, {}).update(rows)
        return began

    def _ends(self) -> tuple[Offsets, dict[str, str]]:
        """The high watermarks, not older than POLL_S."""
        now = time.monotonic()
        if self._seen is None or now - self._seen_at_s > POLL_S:
            connection = self._open()
            chosen, ids = self._chosen(connection)
            self._seen = self._offsets(connection, chosen, Place("latest")), ids
            self._seen_at_s = now
        return self._seen

    def _around_gates(self, connection: Connection, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Start and end, adjusted to gates.

        Ends stop at open gates, as a consumer does: a partition that waits there does not advance. Starts in the window of a
        released gate move behind it: offsets without records are no work to divide.
        """
        starts, ends = ({topic: dict(rows) for topic, rows in offsets.items()} for offsets in (start, end))
        for topic, rows in end.items():
            if all(start[topic][number] == offset for number, offset in rows.items()):
                continue
            try:
                gates = connection.call(connection.gates.list(topic))
            except HeadgateError as error:
                if error.reason is Reason.UNKNOWN_TOPIC:
                    continue
                raise
            for gate in gates:
                for window in gate.windows:
                    if window.partition not in rows or window.base_offset == window.end_offset:
                        continue
                    first, last = starts[topic][window.partition], ends[topic][window.partition]
                    if gate.state == GateState.OPEN and first < window.end_offset and last > window.base_offset:
                        ends[topic][window.partition] = max(window.base_offset, first)
                    elif gate.state == GateState.RELEASED and window.base_offset <= first < window.end_offset:
                        starts[topic][window.partition] = min(window.end_offset, last)
        return starts, ends
