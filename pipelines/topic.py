"""`read_topic`: a topic as a DataFrame, with its history scanned by Spark's own Parquet reader.

The driver asks the cluster once for the places of the topic's records (one cut) and reads the footers of the files. Files that
Spark reads with the same result (`pipelines/native.py`) become scans of Parquet. The data source reads the rest: exactly the other
pieces of the same cut. A record's offset is its file's base offset plus its row number, Spark's ``_metadata.row_index``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headgate.broker.client.gate_admin import FileRef
from headgate.broker.client.types import DEFAULT_CLUSTER
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.store.open import open_readable
from headgate.pipelines.connection import Connection
from headgate.pipelines.decoded import read_decoded
from headgate.pipelines.native import STORED, NativeFile, NotShared, candidates, readable_url, store_of, unit_of, url_of
from headgate.pipelines.offsets import Narrowed
from headgate.pipelines.options import number_option, option, registry_of
from headgate.pipelines.reads import PIECE_BYTES, Piece, Wanted, committed_footer, narrowed_pieces, tasks
from headgate.pipelines.source import TYPES, BatchReader, Task, columns_of, register, schema_of, types_of
from headgate.pipelines.spark_parquet import Unit
from headgate.pipelines.worker_errors import sentences

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "headgate_pieces"
FOOTERS_MAX = 16
"""Footers that the driver reads at the same time: as many as the threads of a store."""
REASONS_MAX = 3
"""Reasons that one log line names, of the files that Spark does not scan itself."""
S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
SCAN_OPTIONS = {
    # Without this option Spark would add the columns that it reads from the names of directories.
    "recursiveFileLookup": "true",
    # A session may be set to leave out such files; records would be missing without an error.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    # The data source checks the pages of a file too.
    "parquet.page.verify-checksum.enabled": "true",
}

_log = logging.getLogger("headgate.spark")


def read_topic(spark: SparkSession, topic: str | None = None, *, cluster: str = DEFAULT_CLUSTER, **options: object) -> DataFrame:
    """Records of a topic, with the columns, types and rows of a batch read through ``format("headgate")``.

    The range of offsets is fixed by this call: all actions on the result see the same records. A file that retention deletes
    afterwards is an error of the action, as it is for any reader of Parquet.

    Args:
        topic: the topic, or several with commas between them. None: the option `assign` or `subscribePattern` says what to read.
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        options: those of a batch read through the data source, such as ``startingTimestamp=1_750_000_000_000``,
            ``endingOffsets={"clicks": {"0": 23}}``, ``columns="key,value"``. With `registry` the data source reads everything.
            `pieceBytes` and `minPartitions` divide only the part
            that the data source reads.

    Raises:
        HeadgateError: as a batch read: InvalidError for options, topics or offsets that do not exist, RetryError(GATE_CONFLICT) for
            an open gate, unless the option `openGates` says what to do.
    """
    register(spark)
    spark.dataSource.register(PiecesSource)
    given = {name: _text(value) for name, value in options.items()} | {"cluster": cluster}
    if topic is not None:
        given["subscribe"] = topic
    reader = BatchReader(given)
    columns, registry = columns_of(given), registry_of(given)
    # A column of the data source may be null; of a scan, some may not. This frame has no rows, and Spark drops it from the plan.
    nulls = ", ".join(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in types_of(given).items())
    frames = [spark.sql(f"SELECT {nulls} WHERE false")]
    rest: list[Piece] = []
    store_url = ""
    with Connection(cluster) as connection:
        for store_url, pieces in reader.cut(connection):
            files, reasons = ([], []) if registry else _native_files(spark, connection, store_url, pieces, columns)
            scanned: set[Piece] = set()
            for _, group in groupby(sorted(files, key=_scan_of), _scan_of):
                one_scan = list(group)
                frame = _scan(spark, one_scan, columns, reasons)
                if frame is not None:
                    frames.append(frame)
                    scanned.update(partition.piece for partition in one_scan)
            _tell(pieces, scanned, reasons)
            rest.extend(piece for piece in pieces if piece not in scanned)
    if rest:
        chosen = {"cluster": cluster, "columns": ",".join(columns), "pieces": to_json(store_url, rest)}
        chosen |= {name: text for name in ("pieceBytes", "minPartitions", "registry") if (text := option(given, name)) is not None}
        frames.append(spark.read.format(FORMAT).options(**chosen).load())
    result = frames[0]
    for frame in frames[1:]:
        result = result.unionAll(frame)
    return result


def _text(value: object) -> str:
    """An option's value as Spark's readers take it."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict) else str(value)


# -- the files that Spark scans


def _native_files(
    spark: SparkSession, connection: Connection, store_url: str, pieces: Sequence[Piece], columns: Sequence[str]
) -> tuple[list[NativeFile], list[str]]:
    """The files that Spark reads as the data source does, and the reasons against the others."""
    found = candidates(pieces)
    if not found:
        return [], []
    try:
        store = store_of(store_url, lambda bucket: _s3a_endpoint(spark, bucket))
        footers = connection.call(_footers(readable_url(store_url), [piece.file for piece in found if piece.file is not None]))
    except (NotShared, HeadgateError) as error:
        return [], [str(error)]
    files: list[NativeFile] = []
    reasons: list[str] = []
    for piece, footer in zip(found, footers, strict=True):
        assert piece.file is not None
        try:
            if isinstance(footer, HeadgateError):
                raise NotShared(str(footer))
            files.append(NativeFile(url_of(store, piece.file), piece, unit_of(footer, piece.file, columns), footer.rows))
        except NotShared as error:
            reasons.append(str(error))
    return files, reasons


def _s3a_endpoint(spark: SparkSession, bucket: str) -> str | None:
    """The endpoint at which the session's S3A looks for a bucket, "" for AWS's own; None when the session cannot read S3."""
    java_session: Any = getattr(spark, "_jsparkSession", None)
    if java_session is None:
        return None
    settings = java_session.sessionState().newHadoopConf()
    if settings.getClassByNameOrNull(S3A) is None:
        return None
    return str(settings.get(f"fs.s3a.bucket.{bucket}.endpoint") or settings.get("fs.s3a.endpoint") or "")


async def _footers(url: str, files: Sequence[FileRef]) -> list[Any]:
    """The footers of files in a store, or the HeadgateError of each file that cannot be read."""
    store = open_readable(url)
    room = asyncio.Semaphore(FOOTERS_MAX)

    async def one(file: FileRef) -> Any:
        async with room:
            try:
                return await committed_footer(store, file)
            except HeadgateError as error:
                return error

    try:
        return await asyncio.gather(*map(one, files))
    finally:
        await store.close()


def _scan_of(file: NativeFile) -> tuple[str, Unit, bool]:
    """Files with the same answer are read by one scan."""
    return file.piece.topic, file.unit, file.is_whole


def _scan(spark: SparkSession, files: Sequence[NativeFile], columns: Sequence[str], reasons: list[str]) -> DataFrame | None:
    """The rows of files of one topic, with times of one unit. None, and a reason, when Spark does not find exactly these files."""
    stored = [name for name in columns if name in STORED] or ["timestamp"]
    reader = spark.read.schema(", ".join(f"{name} {TYPES[name]}" for name in stored)).options(**SCAN_OPTIONS)
    try:
        frame = reader.parquet(*(file.url for file in files))
        # Hadoop writes file:/x and file:///x for the same file.
        seen = {unquote(url).replace("file:///", "file:/"): url for url in frame.inputFiles()}
    except AnalysisException as error:
        reasons.append(str(error))
        return None
    if seen.keys() != {file.url for file in files}:
        reasons.append("spark finds other files under these paths")
        return None
    rows = {name: F.col(name) for name in stored}
    if files[0].unit == "ms" and "timestamp" in rows:
        # Spark 4.3 rounds the bound of a pushed filter to the file's ms, and loses the rows at `timestamp < '... 00.0005'`. An
        # expression is not pushed.
        rows["timestamp"] = F.timestamp_micros(F.unix_micros("timestamp"))
    if not files[0].is_whole or not {"offset", "partition"}.isdisjoint(columns):
        frame, places = _with_places(
            spark,
            frame.select(*stored, F.col("_metadata.file_path").alias("_file"), F.col("_metadata.row_index").alias("_row")),
            files,
            seen,
        )
        rows |= places
    rows |= {"topic": F.lit(files[0].piece.topic), "timestampType": F.lit(0)}
    return frame.select(*(rows[name].alias(name) for name in columns))


def _with_places(
    spark: SparkSession, rows: DataFrame, files: Sequence[NativeFile], seen: Mapping[str, str]
) -> tuple[DataFrame, dict[str, Column]]:
    """The rows that belong to the pieces, and the columns `partition` and `offset`.

    The places of the files are joined by path. A path is unique, so Spark drops the join when a query needs none of these columns.

    Args:
        rows: with the columns `_file` and `_row`.
        seen: Spark's form of each file's URL.
    """
    table: dict[str, list[Any]] = {"_file": [], "_partition": [], "_base": [], "_first": [], "_end": []}
    for file in files:
        for form in {seen[file.url], seen[file.url].replace("file:///", "file:/")}:
            values = (form, file.piece.partition, file.base_offset, file.first_row, file.end_row)
            for column, value in zip(table.values(), values, strict=True):
                column.append(value)
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64())
    places = pa.table([pa.array(column, kind) for column, kind in zip(table.values(), kinds, strict=True)], names=list(table))
    unique = spark.createDataFrame(places).coalesce(1).dropDuplicates(["_file"])
    rows = rows.join(F.broadcast(unique), "_file", "left")

    def known(name: str) -> Column:
        # Every file has its place. If Spark wrote a path in another form, a missing place would look like a missing record.
        lost = F.raise_error(F.concat(F.lit("place of a file is unknown: "), F.col("_file")))
        return F.coalesce(F.col(name), lost.cast("int" if name == "_partition" else "bigint"))

    if not files[0].is_whole:
        rows = rows.where((F.col("_row") >= known("_first")) & (F.col("_row") < known("_end")))
    return rows, {"partition": known("_partition"), "offset": known("_base") + F.col("_row")}


def _tell(pieces: Sequence[Piece], scanned: set[Piece], reasons: Sequence[str]) -> None:
    """Log the files that Spark does not scan itself: the result is the same, the speed is not."""
    left = sum(piece.file is not None and piece not in scanned for piece in pieces)
    if left:
        told = "; ".join(sorted(set(reasons))[:REASONS_MAX]) or "a file stands at two places of the topic"
        _log.warning(
            "files are read through python, and not by spark's parquet reader: %s. topic=`%s` files=`%d`",
            told,
            pieces[0].topic,
            left,
        )


# -- the rest


def to_json(store_url: str, pieces: Iterable[Piece]) -> str:
    """The pieces as an option of `PiecesSource`."""
    return json.dumps({"store_url": store_url, "pieces": [asdict(piece) for piece in pieces]})


def from_json(text: str) -> tuple[str, list[Piece]]:
    """The reverse of `to_json`."""
    found = json.loads(text)
    return found["store_url"], [
        Piece(**{**piece, "file": None if piece["file"] is None else FileRef(**piece["file"])}) for piece in found["pieces"]
    ]


@sentences
class PiecesSource(DataSource):
    """The data source of `read_topic`'s rest: reads stated pieces. It is internal; its options are those of a batch read."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PiecesReader(dict(self.options))


@sentences
class PiecesReader(DataSourceReader):
    """A batch read of pieces that are known already: no call to the cluster before the tasks run."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._store_url, self._pieces = from_json(options["pieces"])
        self._columns, self._registry = columns_of(options), registry_of(options)
        self._cluster = options["cluster"]
        self._piece_bytes = number_option(options, "pieceBytes", PIECE_BYTES) or PIECE_BYTES
        self._tasks_min = number_option(options, "minPartitions", 1) or 1
        self._narrowed = Narrowed()

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Limit the read by filters; Spark applies them to the rows as well."""
        self._narrowed = self._narrowed.with_filters(filters)
        return filters

    def partitions(self) -> list[Task]:
        left = narrowed_pieces(self._pieces, self._narrowed)
        work = tasks(self._store_url, left, piece_bytes=self._piece_bytes, tasks_min=self._tasks_min)
        return [Task(task) for task in work]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, Task):  # Spark runs one task even without partitions to read
            yield from read_decoded(partition.work, Wanted(self._columns, self._narrowed, self._cluster), self._registry)
