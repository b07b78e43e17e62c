"""A flood on columns, from the driver: which sources can take this path, and the Spark jobs that count and write them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from headgate.broker.log.recipe import Shape
from headgate.pipelines.certificate import Tally
from headgate.pipelines.columns import tasks, writing
from headgate.pipelines.columns.adoption import Adoption, NotAdoptedError, adoptable, units_of
from headgate.pipelines.columns.engine import Direct, Engine, Exchanged, Writing
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.expressions import PAIRS, ROW, UTC, Query, read_query
from headgate.pipelines.columns.files import Access, local_path
from headgate.pipelines.columns.kinds import FLOATS, INTEGERS, arrow_type
from headgate.pipelines.columns.layout import ALWAYS, Listed, Piece, as_read, read_layout, read_lines
from headgate.pipelines.columns.lines import Lines
from headgate.pipelines.columns.memory import MEMORY_SETTING, limits_of, way
from headgate.pipelines.columns.source import Source
from headgate.pipelines.columns.stand_ins import Bucket, access
from headgate.pipelines.columns.task_division import (
    SORT_BYTES,
    Limits,
    Stretch,
    buckets,
    readings,
    stretches,
    task_bytes,
    writers,
)
from headgate.pipelines.columns.tasks import Counted, Spec
from headgate.pipelines.columns.writing import Part
from headgate.pipelines.extents import Written
from headgate.pipelines.spark_errors import spark_errors
from headgate.pipelines.spark_paths import S3_SCHEMES
from headgate.pipelines.spark_rows import ARROW, Counts, Job, Rows, check_nulls
from headgate.pipelines.ways import BY_SOURCE, BY_TIME, REWRITE, must_adopt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTING = frozenset(("path", "paths", "recursivefilelookup", "pathglobfilter", "basepath", "__globpaths__"))
"""Options of Spark's readers that only choose the files."""
_SETTINGS = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.legacy.timeParserPolicy": "corrected",
    "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
    "spark.sql.parquet.int96RebaseModeInRead": "corrected",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
"""Settings that change what Spark reads or prints, with the values that have the meaning of columns."""
_IN_PATHS = frozenset((*INTEGERS, "date", "string"))
"""Types that Spark gives to columns in paths, as far as columns know them."""
SAMPLES = 1 << 16
"""Times that the driver knows of a source, to divide its rows. Parts of a partition differ by a few percent."""
FEW_ROWS = 10_000_000
"""Rows whose keys and times the driver reads by itself, if no values are read: some seconds."""
_FORMATS = {
    "ParquetFileFormat": frozenset[str](),
    "CSVFileFormat": frozenset(("header", "sep", "delimiter", "inferschema")),
    "JsonFileFormat": frozenset[str](),
}
"""Spark's classes of the formats that columns know, and the options that they know."""


def read_source(rows: Rows) -> Source:
    """The source of these rows, if it can be read on columns. Raises UnlikeError with the reason when it cannot."""
    frame: Any = rows.frame
    for name, usual in _SETTINGS.items():
        if frame.sparkSession.conf.get(name).lower() != usual:
            raise UnlikeError(f"the session has a setting of its own: {name}")
    plan = frame._jdf.queryExecution().optimizedPlan()
    leaves = plan.collectLeaves()
    if leaves.size() != 1 or leaves.head().getClass().getSimpleName() != "LogicalRelation":
        raise UnlikeError("the source is not a single set of files")
    relation = leaves.head().relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        raise UnlikeError("the source is not files")
    limits = task_limits(frame.sparkSession)
    lines = _lines(frame.sparkSession, relation, limits)
    query = read_query(_with_pairs(json.loads(plan.toJSON()), plan))
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    if zone not in UTC and any(part.reads_times(in_lines=lines is not None) for part in query.parts()):
        raise UnlikeError(f"a text is a time in the session's zone: {zone}")
    if any(name.startswith("_tie_") and node.kind in FLOATS for name, node in query.outputs.items()):
        raise UnlikeError("the order is by floating-point numbers")
    files = _listed(frame.sparkSession, relation, query, partial(_place, frame.sparkSession, bucket=rows.bucket))
    if rows.readings:
        files = [as_read(file, rows.readings[file.path], query) for file in files]
    if lines is None:
        return Source(query, rows.has_key, tuple(read_layout(files, query)), limits)
    paths = {str(name) for name in relation.partitionSchema().fieldNames()}
    lines.check_types([query.source[name] for name in query.columns(*query.outputs) if name not in paths and name != ROW])
    return Source(query, rows.has_key, tuple(read_lines(files, query, lines.piece_bytes)), limits, lines)


def _with_pairs(rows: list[Any], plan: Any) -> list[Any]:
    """The plan's nodes, `plan.toJSON`, with the texts of a constant array of headers, which JSON does not show."""
    for tree in rows[0].get("projectList", []):
        if tree[0]["name"] != "headers" or len(tree) < 3 or not tree[2]["class"].endswith(".Literal"):
            continue
        fields = tree[2]["dataType"]["elementType"]["fields"]
        if [field["type"] for field in fields] == ["string", "string"]:
            made = next(column for column in _scala(plan.expressions()) if column.name() == "headers").child().argument().value()
            pairs = [made.getStruct(number, 2) for number in range(made.numElements())]
            if None in pairs:
                continue  # a header that is null: Spark's rows refuse it
            texts = [[pair.getUTF8String(place) for place in (0, 1)] for pair in pairs]
            tree[2][PAIRS] = [[None if text is None else text.toString() for text in pair] for pair in texts]
    return rows


def _lines(spark: SparkSession, relation: Any, limits: Limits) -> Lines | None:
    """The format of a relation of lines; None for Parquet. Raises UnlikeError for other formats, and for options that
    change what is read."""
    kind = relation.fileFormat().getClass().getSimpleName()
    if kind not in _FORMATS:
        raise UnlikeError(f"the source is not Parquet, CSV or JSON: {kind}")
    options = {str(pair._1()).lower(): str(pair._2()) for pair in _scala(relation.options())}
    unknown = options.keys() - _LISTING - _FORMATS[kind]
    if unknown:
        raise UnlikeError(f"the reader has options of its own: {', '.join(sorted(unknown))}")
    if kind == "ParquetFileFormat":
        return None
    names = tuple(map(str, relation.dataSchema().fieldNames()))
    if spark.conf.get("spark.sql.columnNameOfCorruptRecord") in names:
        raise UnlikeError("a column has the rows that Spark cannot read")
    if kind == "JsonFileFormat":
        return Lines(limits.lines_bytes)
    separator = options.get("sep", options.get("delimiter", ","))
    if len(names) < 2 or len(set(names)) < len(names) or len(separator) != 1 or separator in '"\\\n\r\0 ':
        raise UnlikeError("the CSV has one column, columns of the same name, or another kind of separator")
    return Lines(limits.lines_bytes, names, separator, options.get("header", "false").lower() == "true")


def _listed(spark: SparkSession, relation: Any, query: Query, place: Callable[[str], tuple[str, Access | None]]) -> list[Listed]:
    """The files of a relation, with the values of the columns in their paths that the query reads."""
    schema = relation.partitionSchema()
    wanted = query.columns(*query.outputs)
    fields = [(place, name) for place, name in enumerate(map(str, schema.fieldNames())) if name in wanted]
    for _, name in fields:
        if query.source[name] not in _IN_PATHS:
            raise UnlikeError(f"a column in the files' paths is of type {query.source[name]}: {name}")
    jvm: Any = spark._jvm
    everything = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
    found = []
    for directory in _scala(relation.location().listFiles(everything, everything)):
        row = directory.values()
        values = [(name, _value(row, place, schema.apply(place).dataType(), query.source[name])) for place, name in fields]
        for file in _scala(directory.files()):
            path, how = place(file.getPath().toUri().toString())
            found.append(Listed(path, tuple(values), how))
    return found


def _value(row: Any, place: int, kind: Any, name: str) -> Any:
    """A value of one of Spark's internal rows, as an Arrow scalar."""
    arrow: Any = pa
    if row.isNullAt(place):
        return arrow.scalar(None, arrow_type(name))
    value = row.get(place, kind)
    if name == "date":
        return arrow.scalar(value, pa.int32()).cast(pa.date32())
    return arrow.scalar(str(value) if name == "string" else int(value), arrow_type(name))


def task_limits(spark: SparkSession) -> Limits:
    """The memory of a task, from the session's settings. Raises InvalidError for a size that cannot be."""
    return limits_of(spark.conf.get(MEMORY_SETTING, None))


def _scala(things: Any) -> Iterator[Any]:
    """The members of a Scala collection."""
    iterator = things.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _place(spark: SparkSession, url: str, bucket: Bucket | None) -> tuple[str, Access | None]:
    """The path of a file that Spark lists, and how to reach it. `bucket`: for which local files stand."""
    if bucket is not None:
        return bucket.object_of(local_path(url)), bucket.access
    parts = urlsplit(url)
    if parts.scheme in S3_SCHEMES:
        return f"s3://{parts.netloc}{local_path(url)}", access(spark, parts.netloc)
    if parts.scheme not in ("", "file"):
        raise UnlikeError(f"the source is neither on a local file system nor on S3: {parts.scheme}")
    return local_path(url), None


class ColumnWork:
    """Counts and writes the rows of one source on columns."""

    engine = ARROW
    why = ""

    def __init__(
        self,
        engine: Engine,
        source: Source,
        partitions: int,
        files: str = REWRITE,
        order: str = BY_TIME,
        *,
        proves: bool = False,
    ) -> None:
        """`files`, `order`: see `ways.WAYS`, `ORDERS`. `proves`: adopted rows are read once more, for the certificate."""
        self._engine = engine
        self._files = files
        self._order = order
        self._proves = proves
        self._adoption: Adoption | None = None
        self._shape: Shape | None = None
        self._why_not = ""
        if files != REWRITE:
            try:
                self._shape = adoptable(source, by_source=order == BY_SOURCE)
            except NotAdoptedError as error:
                self._why_not = str(error)
        rows = sum(piece.rows for piece in source.pieces)
        self._spec = Spec(
            source.query,
            partitions,
            source.ties,
            max(rows // SAMPLES, 1),
            spreads=not source.has_key,
            lines=source.lines,
            limits=source.limits,
            spans=self._shape is not None,
        )
        try:
            self._row_bytes = tasks.row_bytes(self._spec, source.pieces)
        except UnlikeError:
            # The rows of an adopted flood are not made here.
            if self._shape is None:
                raise
            self._row_bytes = tasks.stored_row_bytes(source.pieces)
        pieces = [replace(piece, raw_bytes=math.ceil(piece.rows * self._row_bytes)) for piece in source.pieces]
        self._task_bytes = task_bytes(math.ceil(rows * self._row_bytes), engine.slots, source.limits)
        self._unit_bytes = min(self._task_bytes, SORT_BYTES)
        self._stretches = stretches(pieces, self._task_bytes)
        self._spans_known = all((piece.low_us, piece.high_us) != ALWAYS for piece in pieces)
        self.way = way(engine.master, source.limits)
        self._counted: list[Counted] = []
        self._read: list[Piece] = []
        """The pieces that were counted; if each was counted alone, those of `_counted`."""

    def count(self) -> Counts:
        """The rows of each partition. Raises InvalidError for rows without a time; UnlikeError for rows that only Spark can do."""
        if self._why_not:
            self._not_adopted(self._why_not)
        if self._count_stretches() and not self._spec.spreads:
            # Another pass, for their content says where these rows go.
            self._spec = replace(self._spec, spreads=True)
            self._count_stretches()
        spec = self._spec
        keyless = sum(counts.keyless for counts in self._counted)
        totals = tuple(map(sum, zip(*(counts.rows for counts in self._counted), strict=True))) or (0,) * spec.partitions
        check_nulls(sum(counts.nulls for counts in self._counted), sum(totals))
        if self._shape is not None:
            self._adopt()
        lows = [counts.low_us // 1000 for counts in self._counted if counts.low_us is not None]
        highs = [counts.high_us // 1000 for counts in self._counted if counts.high_us is not None]
        return Counts(totals, keyless, min(lows, default=None), max(highs, default=None))

    def _count_stretches(self) -> int:
        """Count the rows. Returns the number of those without a key."""
        work = [(stretch.number, some) for stretch in self._stretches for some in readings(stretch, self._task_bytes)]
        spec, each = self._spec, not self._spans_known or self._spec.spans
        self._read = [piece for _, pieces in work for piece in pieces]

        with spark_errors("source cannot be counted"):
            small = spec.spans and sum(piece.rows for piece in self._read) <= FEW_ROWS
            self._counted = self._engine.each(partial(_count_pieces, spec, each, self._shape), work, small=small)
        keyless = sum(counts.keyless for counts in self._counted)
        if not self._spans_known and (self._spec.spreads or not keyless):
            self._divide_again(self._read)
        return keyless

    def _adopt(self) -> None:
        """Decide whether the source's files are adopted. Raises InvalidError if they must be, and cannot."""
        assert self._shape is not None, "its records are columns"
        try:
            if sum(counts.keyless for counts in self._counted):
                raise NotAdoptedError("rows without a key are spread by their content")
            if formed := next((counts.formed for counts in self._counted if counts.formed), ""):
                raise NotAdoptedError(f"the values of a column are not as its file has them. column=`{formed}`")
            units = tuple(units_of(self._read, self._counted, by_source=self._shape.by_source, divides=self._shape.divides))
            number_key = self._spec.query.source[self._shape.key] in INTEGERS
            self._adoption = Adoption(self._shape, units, self._spec.partitions, self._files, number_key)
        except NotAdoptedError as error:
            self._not_adopted(str(error))
        else:
            self.way = f"{self._adoption.files:,} files of the source are adopted: only keys and times are read"

    def _not_adopted(self, why: str) -> None:
        self._adoption = None
        must_adopt(self._files, self._order, why)
        self.way = f"{self.way}; the source's files are not adopted: {why}"

    def _divide_again(self, pieces: list[Piece]) -> None:
        """Form the stretches from the spans of time that the count found. `pieces`: those of each member of `_counted`."""
        known = []
        for piece, counted in zip(pieces, self._counted, strict=True):
            if counted.low_us is not None and counted.high_us is not None:
                low, high = (piece.low_us, piece.high_us) if self._spec.query.is_by_row else (counted.low_us, counted.high_us)
                known.append(replace(piece, low_us=low, high_us=high))
        self._stretches = stretches(known, self._task_bytes)
        numbers = {(piece.file.path, piece.group): stretch.number for stretch in self._stretches for piece in stretch.pieces}
        for piece, counted in zip(pieces, self._counted, strict=True):
            counted.stretch = numbers.get((piece.file.path, piece.group), counted.stretch)
        self._spans_known = True

    def write(self, job: Job) -> list[Written]:
        """Write the files. Returns the output by partition, in the order of offsets. Raises UnlikeError for rows that only Spark
        can do."""
        if self._adoption is not None:
            kept = self._adoption.commit(job)
            if not isinstance(kept, str):
                return self._proven(kept) if self._proves else kept
            self._not_adopted(kept)
        small = [stretch for stretch in self._stretches if stretch.raw_bytes <= self._task_bytes]
        with_rows = {counts.stretch for counts in self._counted if sum(counts.rows)}
        large = [stretch for stretch in self._stretches if stretch.raw_bytes > self._task_bytes and stretch.number in with_rows]
        spec = self._spec
        with self._engine.spill() as spill, spark_errors("the job failed."):
            jobs: list[Writing] = [self._exchanged(task, job, spill) for task in large]
            if small:
                jobs.append(
                    Direct(partial(_write_stretch, spec, job), [(task.number, task.units(self._unit_bytes)) for task in small])
                )
            parts = self._engine.write(jobs)
        return _in_offset_order(parts, job.bases)

    def _proven(self, written: list[Written]) -> list[Written]:
        """What was adopted, with the sums of all rows."""
        work = [some for stretch in self._stretches for some in readings(stretch, self._task_bytes)]
        with spark_errors("the source cannot be read."):
            found = self._engine.each(partial(tasks.tallies, self._spec), work)
        for part in written:
            part.tally = sum((some for partition, some in found if partition == part.partition), Tally())
        return written

    def _exchanged(self, stretch: Stretch, job: Job, spill: str | None) -> Exchanged:
        """Read a large stretch in some tasks, and write its buckets in others."""
        spec = self._spec
        mine = [counts for counts in self._counted if counts.stretch == stretch.number]
        samples: list[list[int]] = [[] for _ in range(spec.partitions)]
        for counts in mine:
            for partition, time in counts.samples:
                samples[partition].append(time)
        rows = [sum(counts.rows[partition] for counts in mine) for partition in range(spec.partitions)]
        into = buckets(rows, samples, self._row_bytes, self._unit_bytes)
        return Exchanged(
            partial(writing.exchange, spec, into, spill=spill),
            readings(stretch, self._task_bytes),
            writers(into.buckets, self._task_bytes),
            partial(writing.write_buckets, spec, job, stretch.number),
        )


# The following run in the tasks.


def _count_pieces(spec: Spec, each: bool, shape: Shape | None, task: tuple[int, tuple[Piece, ...]]) -> list[Counted]:
    number, pieces = task
    if not each:
        return [tasks.count_stretch(spec, number, pieces)]
    found = []
    for piece in pieces:
        counted = tasks.count_stretch(spec, number, (piece,))
        if shape is not None:
            tasks.measure(spec, counted, piece, shape)
        found.append(counted)
    return found


def _write_stretch(spec: Spec, job: Job, task: tuple[int, tuple[tuple[Piece, ...], ...]]) -> list[Part]:
    return writing.write_stretch(spec, job, *task)


def _in_offset_order(parts: list[Part], bases: dict[int, int]) -> list[Written]:
    """The output by partition, with the offsets that follow from the order of the parts."""
    found: dict[int, Written] = {}
    for part in sorted(parts, key=lambda part: (part.stretch, part.task)):
        some = Written.from_dict(part.written)
        whole = found.setdefault(some.partition, Written(some.partition, Tally()))
        base = bases.get(some.partition, 0) + whole.tally.rows
        whole.files += [replace(file, base_offset=base + file.base_offset) for file in some.files]
        whole.tally += some.tally
    return [found[partition] for partition in sorted(found)]
