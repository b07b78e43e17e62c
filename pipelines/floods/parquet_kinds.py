"""The columns of a Parquet file by Spark's rules, which are not Arrow's: INT96 is a time, nanoseconds are a number, and a file with
a column of some types is refused whole. Pure.

A file that Spark wrote holds Spark's own schema, which its readers take, also from a copy of the file by another writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from headgate.pipelines.floods.judge import (
    BOOLEAN,
    BYTES,
    EMPTY,
    FRACTION,
    LIST,
    MAP,
    NANOSECONDS,
    NUMBER,
    PAIRS,
    STRUCT,
    TEXT,
    TIME,
    VARIANT,
)  # fmt: skip
from headgate.pipelines.spark_parquet import logical_type, spark_schema

_OF_SPARK = {
    "string": TEXT, "boolean": BOOLEAN, "binary": BYTES, "variant": VARIANT, "date": TIME, "timestamp": TIME, "timestamp_ntz": TIME,
    "byte": NUMBER, "short": NUMBER, "integer": NUMBER, "long": NUMBER, "float": FRACTION, "double": FRACTION,
    "map": MAP, "struct": STRUCT,
}  # fmt: skip
_PHYSICAL = {
    "BOOLEAN": BOOLEAN, "INT32": NUMBER, "INT64": NUMBER, "INT96": TIME, "FLOAT": FRACTION, "DOUBLE": FRACTION, "BYTE_ARRAY": BYTES,
    "FIXED_LEN_BYTE_ARRAY": BYTES,
}  # fmt: skip
"""The kind of a column without a logical type."""
_LOGICAL = {
    "String": TEXT, "Enum": TEXT, "JSON": TEXT, "BSON": BYTES, "Date": TIME, "Int": NUMBER, "Null": EMPTY,
}  # fmt: skip
_REFUSED = {"Time": "time of day", "UUID": "uuid", "Float16": "half float", "Interval": "interval"}
"""Logical types, of any column, with which Spark refuses a file."""
DIGITS_MAX = 38
"""Of a decimal in Spark."""


def kinds_of(file: Any) -> tuple[dict[str, str | None], tuple[str, ...], list[str]]:
    """The kinds of a file's columns, names of columns that occur twice, and columns of types with which Spark refuses the file.

    Args:
        file: a `pyarrow.parquet.ParquetFile`.
    """
    own = _of_metadata(file.metadata.metadata or {})
    pairs = list(_of_file(file)) if own is None else own
    refused = [] if own is not None else list(_refused(file.schema))
    names = [name.lower() for name, _ in pairs]
    twice = tuple(dict.fromkeys(name for name, _ in pairs if names.count(name.lower()) > 1))
    return dict(pairs), twice, refused


def forms_of(file: Any) -> dict[str, str]:
    """How the file stores its plain numbers and its times of 96 bits: the physical type of each by its name. Not decimals, unsigned
    numbers and times."""
    found = {}
    for number in range(len(file.schema)):
        column = file.schema.column(number)
        logical = logical_type(column)
        if logical["Type"] in ("None", "Null") or (logical["Type"] == "Int" and logical["isSigned"]):
            found[column.path] = column.physical_type
    return found


def arrow_kind(kind: Any) -> str | None:
    """The kind of one of Arrow's types, for a table that has its schema beside its files."""
    types: Any = pa.types
    if types.is_timestamp(kind):
        return NANOSECONDS if kind.unit == "ns" else TIME
    for is_one, name in (
        (types.is_date, TIME), (types.is_string, TEXT), (types.is_large_string, TEXT), (types.is_boolean, BOOLEAN),
        (types.is_integer, NUMBER), (types.is_floating, FRACTION), (types.is_decimal, FRACTION), (types.is_binary, BYTES),
        (types.is_large_binary, BYTES), (types.is_fixed_size_binary, BYTES),
    ):  # fmt: skip
        if is_one(kind):
            return name
    return _nested(kind)


def _of_metadata(notes: Mapping[bytes, bytes]) -> list[tuple[str, str | None]] | None:
    fields = spark_schema(notes)
    try:
        return None if fields is None else [(name, _of_spark(kind)) for name, kind in fields]
    except (KeyError, TypeError, AttributeError):
        return None


def _of_spark(kind: Any) -> str | None:
    """The kind of one of Spark's types, as its JSON names it."""
    if isinstance(kind, dict):
        if kind["type"] == "udt":
            return _of_spark(kind["sqlType"])
        if kind["type"] == "array":
            element = kind["elementType"]
            return PAIRS if isinstance(element, dict) and len(element.get("fields", ())) == 2 else LIST
        return _OF_SPARK.get(kind["type"])
    name = kind.partition("(")[0].partition(" ")[0]
    return {"decimal": FRACTION, "char": TEXT, "varchar": TEXT}.get(name) or _OF_SPARK.get(name)


def _of_file(file: Any) -> Iterator[tuple[str, str | None]]:
    number = 0
    for field in file.schema_arrow:
        kind: Any = field.type
        yield field.name, _of_leaf(file.schema.column(number)) if _leaves(kind) == 1 and not _nested(kind) else _nested(kind)
        number += _leaves(kind)


def _leaves(kind: Any) -> int:
    """The number of columns that the file has for a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaves(kind.storage_type)
    if pa.types.is_struct(kind):
        return sum(_leaves(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    return _leaves(kind.value_type) if _is_list(kind) else 1


def _is_list(kind: Any) -> bool:
    types: Any = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _nested(kind: Any) -> str | None:
    if pa.types.is_map(kind):
        return MAP
    if pa.types.is_struct(kind):
        return STRUCT
    if _is_list(kind):
        return PAIRS if pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2 else LIST
    return None


def _of_leaf(column: Any) -> str | None:
    logical = logical_type(column)
    name = logical["Type"]
    if name == "None":
        return _PHYSICAL.get(column.physical_type)
    if name == "Timestamp":
        return NANOSECONDS if logical["timeUnit"] == "nanoseconds" else TIME
    if name == "Decimal" or (name == "Int" and not logical["isSigned"] and logical["bitWidth"] == 64):
        return FRACTION
    return _LOGICAL.get(name)


def _refused(schema: Any) -> Iterator[str]:
    for number in range(len(schema)):
        column = schema.column(number)
        logical = logical_type(column)
        if (said := _REFUSED.get(logical["Type"])) is not None:
            yield f"{column.path}: {said}"
        elif logical["Type"] == "Decimal" and logical["precision"] > DIGITS_MAX:
            yield f"{column.path}: decimal of {logical['precision']} digits"
