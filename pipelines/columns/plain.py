"""A flood of plain columns, without Spark: the query from its definition, types from a footer, files from a listing.

Spark takes seconds to start and to look at a source. A flood of Parquet files whose key, value, time and order are columns needs
nothing of that: Spark's rules for them are few, and stand here. Whatever is not certain raises `UnlikeError`, and Spark decides. A
test compares the source found here with the one that Spark's analysis gives, for a table of sources and definitions.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.broker.log.parquet import metadata_of
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.expressions import (
    ROW,
    ROW_OUTPUT,
    Node,
    Query,
    cast,
    comparison,
    printable,
    readable,
    row_as_json,
)
from headgate.pipelines.columns.files import S3, Access, access_by_environment, footer_of, opened, place_of
from headgate.pipelines.columns.kinds import FLOATS, INTEGERS, arrow_type, kind_of, kind_of_arrow, nested_kind, parts_of_arrow
from headgate.pipelines.columns.layout import Listed, as_read, read_layout
from headgate.pipelines.columns.source import Source
from headgate.pipelines.columns.task_division import Limits
from headgate.pipelines.definition import Backfill
from headgate.pipelines.iceberg import ICEBERG, read_table
from headgate.pipelines.listing import LISTING_OPTIONS, DataFile, list_files
from headgate.pipelines.part import Part
from headgate.pipelines.spark_parquet import logical_type, spark_schema
from headgate.pipelines.spark_paths import bucket_of, column_of

ZONE = "UTC"
"""The zone of a session with Headgate's settings."""
_TIMES = ("date", "timestamp", "timestamp_ntz")
_PHYSICAL = {"BOOLEAN": "boolean", "INT32": "integer", "INT64": "long", "INT96": "timestamp", "FLOAT": "float", "DOUBLE": "double"}
_BINARY = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_SIGNED = {8: "byte", 16: "short", 32: "integer", 64: "long"}
_UNSIGNED = {8: "short", 16: "integer", 32: "long", 64: "decimal(20,0)"}
_LOGICAL = {"String": "string", "Enum": "string", "JSON": "string", "BSON": "binary", "Date": "date"}
_BELOW = {"struct": "", "map": ".key_value", "array": ".list"}
"""What the format's specification has between a nested column and its parts."""
_DIGITS_MAX = 38
"""Of a decimal in Spark."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a column in a path for rows without one."""
_NUMBER = re.compile(r"-?\d{1,18}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_WORD = re.compile(r"(?!T\d|nan$|inf|epoch$|now$|today$|tomorrow$|yesterday$)[A-Za-z_][A-Za-z0-9_ -]*", re.IGNORECASE)
"""Texts that Spark takes for no number and no time."""
_CONDITION = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)|`(?P<quoted>[^`]+)`)\s*"
    r"(?:(?P<operator>>=|<=|==|=|>|<)\s*(?:(?P<number>-?\d{1,18})|'(?P<text>[^'\\]*)')|(?P<is>is\s+(?:not\s+)?null))\s*",
    re.IGNORECASE,
)
_ROW = re.compile(r"\s*to_json\(\s*struct\(\s*\*\s*\)\s*\)\s*", re.IGNORECASE)
"""The row as JSON, as floods in Dagster name it."""
_QUOTED = re.compile(r"\s*`([^`]+)`\s*")
_AND = re.compile(r"and\b", re.IGNORECASE)
_OPERATORS = {
    "=": "EqualTo", "==": "EqualTo", ">": "GreaterThan", ">=": "GreaterThanOrEqual", "<": "LessThan", "<=": "LessThanOrEqual",
}  # fmt: skip


def plain_source(flood: Backfill, limits: Limits) -> Source | None:
    """The source of a flood; None when it is there and has no rows. Without event time the records' time is now.

    Raises:
        UnlikeError: only Spark can tell what the source or the definition means. FatalError, RetryError: S3 does not give it out.
    """
    if not isinstance(flood.source, str) or flood.late_behind is not None:
        raise UnlikeError("the source is a DataFrame, or its late rows are compared with those in the topic")
    kind = flood.format.lower()
    if kind not in ("parquet", ICEBERG) or flood.headers is not None:
        raise UnlikeError("Spark reads the source's format, or makes the headers")
    if kind == ICEBERG:
        return _source_of_table(flood, limits)
    if unknown := {name.lower() for name in flood.options} - LISTING_OPTIONS:
        raise UnlikeError(f"the reader has options of its own: {', '.join(sorted(unknown))}")
    files, access = _files(flood.source, flood.options)
    if not files:
        return None
    front = S3 if access is not None else ""
    kinds = kinds_of_file(f"{front}{files[0].path}", access)
    given = path_values([file.columns for file in files])
    if twice := {name.lower() for name in kinds} & {name.lower() for name in given}:
        raise UnlikeError(f"a column is in the files and in their paths. column=`{min(twice)}`")
    columns = {**kinds, **{name: kind for name, (kind, _) in given.items()}}
    found = query(flood, columns)
    wanted = [name for name in given if name in found.columns(*found.outputs)]
    listed = [
        Listed(f"{front}{file.path}", tuple((name, given[name][1][number]) for name in wanted), access)
        for number, file in enumerate(files)
    ]
    return Source(found, flood.key is not None, tuple(read_layout(listed, found)), limits)


def _source_of_table(flood: Backfill, limits: Limits) -> Source:
    """The source of an Iceberg table. Raises as `plain_source`; InvalidError, RetryError for the table."""
    assert isinstance(flood.source, str), "a table has a name"

    def query_of(columns: pa.Schema) -> Query:
        return query(flood, {column.name: kind_of_arrow(column.type) or str(column.type) for column in columns})

    # Before all of its files are opened: a flood that needs Spark reads the table once more.
    snapshot = read_table(flood.source, flood.options, query_of)
    found = query_of(snapshot.columns)
    listed = []
    for file in snapshot.files:
        path, access = file.path, None
        if bucket := bucket_of(path):
            path, access = f"{S3}{path.partition('://')[2]}", access_by_environment(bucket)
        elif "://" in path:
            raise UnlikeError("the table's files are neither on a local file system nor on S3")
        listed.append(as_read(Listed(path, (), access), file.reading, found))
    return Source(found, flood.key is not None, tuple(read_layout(listed, found)), limits, snapshot=snapshot.name)


def _files(source: str, options: Mapping[str, str]) -> tuple[Sequence[DataFile], Access | None]:
    """The files of a path, by path, and the access to their bucket."""
    try:
        place = place_of(source, access_by_environment)
        if place is None:
            raise UnlikeError("the source is neither on a local file system nor on S3")
        files, base, access = place
        found = list_files(files, base, options)
    except (OSError, ValueError, InvalidError) as error:
        raise UnlikeError(f"the source cannot be listed: {error}") from error
    if not found.is_there or found.left_out or found.log:
        raise UnlikeError("the path is not there, has directories that Spark does not read, or has the log of a stream's sink")
    return found.files, access


# -- the columns


def kinds_of_file(path: str, access: Access | None) -> dict[str, str]:
    """Spark's names of the types of a file's columns, in their order. Raises UnlikeError."""
    try:
        handle, state = opened(path, access)
        with handle:
            return kinds_of(metadata_of(footer_of(handle, state.size_bytes)))
    except (OSError, InvalidError, pa.ArrowException) as error:
        raise UnlikeError(f"a footer cannot be read: {error} file=`{path}`") from error


def kinds_of(metadata: pq.FileMetaData) -> dict[str, str]:
    """Spark's names of the types of the columns of a file: those that Spark wrote there, or by the types of Parquet. Raises
    UnlikeError for a file that Spark may refuse, or read in another way."""
    known = spark_schema(metadata.metadata)
    pairs = list(_of_parquet(metadata)) if known is None else [(name, kind_of(kind)) for name, kind in known]
    names = [name.lower() for name, _ in pairs]
    if len(set(names)) < len(names):
        raise UnlikeError("two columns have one name")
    return dict(pairs)


def _of_parquet(metadata: pq.FileMetaData) -> Iterator[tuple[str, str]]:
    leaves = map(metadata.schema.column, range(metadata.num_columns))
    for field in metadata.schema.to_arrow_schema():
        yield field.name, _of_arrow(field.type, leaves, field.name)
    assert next(leaves, None) is None, "each leaf belongs to a column"


def _of_arrow(kind: Any, leaves: Iterator[Any], path: str) -> str:
    """The kind of a column of a file, whose leaves come next. `path`: of the column in the file, if it is nested as the format's
    specification says. Raises UnlikeError for other forms, which Spark reads by rules of its own."""
    shape, inside = parts_of_arrow(kind)
    if shape:
        return nested_kind(shape, [(name, _of_arrow(kind, leaves, f"{path}{_BELOW[shape]}.{name}")) for name, kind in inside])
    leaf = next(leaves)
    # A name with a dot looks like a part of another column.
    if leaf.path != path:
        raise UnlikeError(f"Spark may read a nested column in another way. column=`{leaf.path}`")
    return _of_leaf(leaf)


def _of_leaf(column: Any) -> str:
    """The kind of a column of a file. Raises UnlikeError for types with which Spark refuses a file."""
    logical = logical_type(column)
    kind, physical = logical["Type"], column.physical_type
    found = None
    if kind == "None":
        found = "binary" if physical in _BINARY else _PHYSICAL.get(physical)
    elif kind == "Int":
        found = (_SIGNED if logical["isSigned"] else _UNSIGNED).get(logical["bitWidth"])
    elif kind == "Timestamp" and logical["timeUnit"] == "nanoseconds":
        found = "long"
    elif kind == "Timestamp":
        found = "timestamp" if logical["isAdjustedToUTC"] else "timestamp_ntz"
    elif kind == "Decimal" and logical["precision"] <= _DIGITS_MAX:
        found = f"decimal({logical['precision']},{logical['scale']})"
    else:
        found = _LOGICAL.get(kind)
    if found is None:
        raise UnlikeError(f"Spark may refuse a column, or read it as another type. column=`{column.path}` type=`{kind}`")
    return found


def path_values(files: Sequence[Sequence[str]]) -> dict[str, tuple[str, list[Any]]]:
    """(kind, value of each file) of the columns in paths, by name. Raises UnlikeError for values whose type is not certain.

    Args:
        files: the directories of each file that are columns, such as ``day=2026-01-01``.
    """
    arrow: Any = pa
    found = {}
    for place, directory in enumerate(files[0] if files else ()):
        name = column_of(directory)
        texts = [unquote(file[place].partition("=")[2]) for file in files]
        kind = _kind_of_texts({text for text in texts if text != _NULL})
        if kind is None or name in found:
            raise UnlikeError(f"only Spark knows the type of a column in the files' paths. column=`{name}`")
        values = [None if text == _NULL else _typed(text, kind) for text in texts]
        found[name] = kind, [arrow.scalar(value, arrow_type(kind)) for value in values]
    return found


def _kind_of_texts(texts: set[str]) -> str | None:
    if texts and all(map(_NUMBER.fullmatch, texts)):
        return "integer" if all(-(1 << 31) <= int(text) < 1 << 31 for text in texts) else "long"
    if texts and all(map(_DATE.fullmatch, texts)):
        try:
            return "date" if all(datetime.date.fromisoformat(text).year > 0 for text in texts) else None
        except ValueError:
            return None
    return "string" if texts and all(map(_WORD.fullmatch, texts)) else None


def _typed(text: str, kind: str) -> Any:
    return int(text) if kind in INTEGERS else datetime.date.fromisoformat(text) if kind == "date" else text


# -- the query


def query(flood: Backfill, columns: Mapping[str, str]) -> Query:
    """The query of a flood on these columns, by name. Raises UnlikeError for anything but plain columns."""
    known = {name.lower(): Node("column", kind, name=name) for name, kind in columns.items()}
    if len(known) < len(columns):
        raise UnlikeError("two columns have one name")

    def column(text: str) -> Node:
        quoted = _QUOTED.fullmatch(text)
        name = (quoted.group(1) if quoted else text).lower()
        if name not in known:
            raise UnlikeError(f"an expression is no column: {text}")
        return readable(known[name])

    part = flood.part or Part()
    filters: list[Node] = []
    for condition in (flood.where, *part.conditions):
        if condition is not None:
            filters += _conditions(condition, column)
    if (bounds := part.span) is not None and flood.event_time is not None:
        time = column(flood.event_time)
        if time.kind != "timestamp":
            raise UnlikeError("a span of time is compared with a column that is no timestamp")
        low, high = (Node("constant", "timestamp", value=round(at.timestamp()) * 1_000_000) for at in bounds)
        filters += [_present(time), comparison("GreaterThanOrEqual", (time, low)), comparison("LessThan", (time, high))]
    is_row = flood.value is None or _ROW.fullmatch(flood.value) is not None
    outputs = {
        "timestamp": _timestamp(flood, column),
        "key": Node("constant", "binary") if flood.key is None else _as_bytes(column(flood.key)),
        "value": _as_bytes(row_as_json(columns, map(printable, known.values())) if is_row else column(flood.value or "")),
    }
    if flood.event_time is None:
        outputs[ROW_OUTPUT] = Node("column", "long", name=ROW)
    for number, text in enumerate(flood.order_by):
        tie = column(text)
        if tie.kind in FLOATS:
            raise UnlikeError("the order is by floating-point numbers")
        outputs[f"_tie_{number}"] = tie
    unique = {repr(condition): condition for condition in filters}
    return Query(outputs, tuple(unique.values()), {ROW: "long", **columns})


def _timestamp(flood: Backfill, column: Any) -> Node:
    if flood.event_time is None:
        return Node("constant", "timestamp", value=time.time_ns() // 1_000_000 * 1000)
    found = column(flood.event_time)
    if found.kind not in _TIMES:
        raise UnlikeError("the event time is no time")
    return cast(found, "timestamp", ZONE)


def _as_bytes(node: Node) -> Node:
    return node if node.kind == "binary" else cast(cast(node, "string", ZONE), "binary", ZONE)


def _present(column: Node) -> Node:
    return Node("is_not_null", "boolean", (column,))


def _conditions(text: str, column: Any) -> Iterator[Node]:
    """Comparisons of columns with constants, as Spark evaluates them."""
    position = 0
    while True:
        found = _CONDITION.match(text, position)
        if found is None:
            raise UnlikeError(f"a condition is no comparison of a column with a constant: {text}")
        at = column(found["name"] or found["quoted"])
        if found["is"]:
            yield _present(at) if "not" in found["is"].lower() else Node("is_null", "boolean", (at,))
        else:
            yield _present(at)
            yield comparison(_OPERATORS[found["operator"]], (at, _constant(at.kind, found["number"], found["text"])))
        position = found.end()
        if position == len(text):
            return
        joint = _AND.match(text, position)
        if joint is None:
            raise UnlikeError(f"a condition is no comparison of a column with a constant: {text}")
        position = joint.end()


def _constant(kind: str, number: str | None, text: str | None) -> Node:
    if number is not None and kind in ("integer", "long"):
        value = int(number)
        if kind == "long" or -(1 << 31) <= value < 1 << 31:
            return Node("constant", kind, value=value)
    if text is not None and kind == "string":
        return Node("constant", kind, value=text)
    if text is not None and kind == "date" and _DATE.fullmatch(text):
        try:
            return Node("constant", kind, value=datetime.date.fromisoformat(text))
        except ValueError:
            pass
    raise UnlikeError(f"a constant is of another type than its column. constant=`{number or text}` type=`{kind}`")
