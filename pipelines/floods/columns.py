"""The columns of a source: from the schema of a Parquet file, or from the first rows of CSV and JSON lines. Without Spark.

A sample tells less than all rows: a column has a kind only if no later row can change what Spark makes of it.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.floods.judge import BOOLEAN, BYTES, LIST, MAP, NANOSECONDS, NUMBER, STRUCT, TEXT, TIME, Columns
from headgate.pipelines.spark_paths import column_of

ROWS_MAX = 1000
"""Rows of a sample that are looked at."""
_TIME = re.compile(r"\d{4}-\d{1,2}(-\d{1,2}([ T].*)?)?")
_UNKNOWN_TEXT = frozenset(("comment", "charset", "encoding", "quote", "escape", "linesep", "multiline"))
"""Options under which the lines of a CSV file are other than this module reads them."""


def of_schema(schema: pa.Schema, path: str, directories: Sequence[str] = ()) -> Columns:
    """The columns of a Parquet file. `directories`: those of its path that are columns, too (``day=2026-01-01``)."""
    return _with_directories(Columns(path, {field.name: _kind(field.type) for field in schema}), directories)


def _with_directories(found: Columns, directories: Sequence[str]) -> Columns:
    return replace(found, kinds={**{column_of(one): None for one in directories}, **found.kinds})


def of_sample(
    sample: bytes, whole: bool, format: str, options: Mapping[str, str], path: str, directories: Sequence[str] = ()
) -> Columns | None:
    """The columns of CSV or JSON lines; None when only Spark can tell them.

    Args:
        sample: the first bytes of the file, decompressed. `whole`: they are the whole file.
        directories: those of its path that are columns, too.

    Raises:
        InvalidError: the rows are not of this format.
    """
    given = {name.lower(): value for name, value in options.items()}
    lines = sample.decode("utf-8-sig", "replace").splitlines()
    if not whole:
        lines = lines[:-1]
    found: Columns | None = Columns(path, {"value": TEXT})
    if format != "text":
        found = (_of_json if format == "json" else _of_csv)(lines[:ROWS_MAX], given, path)
    return None if found is None else _with_directories(found, directories)


def _of_json(lines: list[str], options: Mapping[str, str], path: str) -> Columns | None:
    if options.get("multiline", "false").lower() == "true" or set(options) - {"multiline", "mode"}:
        return None
    kinds: dict[str, str | None] = {}
    seen = broken = 0
    for line in filter(str.strip, lines):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            broken += 1
            continue
        seen += 1
        for name, value in row.items():
            known, kind = kinds.get(name), _json_kind(value)
            # Spark makes text of a column with values of several kinds.
            kinds[name] = kind if known is None or kind == known else known if kind is None else TEXT
    if broken and not seen:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "no row of the source can be parsed: JSON whose rows, or lists of rows, go over several lines needs the option "
            f'`multiLine: "true"`. path=`{path}`',
        )
    return Columns(path, kinds) if seen else None


def _json_kind(value: object) -> str | None:
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int | float):
        return NUMBER
    if isinstance(value, str):
        return TEXT
    return LIST if isinstance(value, list) else STRUCT if isinstance(value, dict) else None


def _of_csv(lines: list[str], options: Mapping[str, str], path: str) -> Columns | None:
    if _UNKNOWN_TEXT & set(options) or not lines:
        return None
    separator = options.get("sep", options.get("delimiter", ","))
    if len(separator) != 1:
        return None
    rows = list(csv.reader(lines, delimiter=separator))
    first = rows[0]
    named = has_header(options)
    names = first if named else [f"_c{number}" for number in range(len(first))]
    infers = options.get("inferschema", "false").lower() == "true"
    forms = any(name in options for name in ("timestampformat", "dateformat", "timestampntzformat"))
    kinds: dict[str, str | None] = {}
    for number, name in enumerate(names):
        values = [row[number] for row in rows[named:] if number < len(row) and row[number]]
        kinds[name] = (None if forms else _text_kind(values)) if infers else TEXT
    if named and len(first) == 1 and (other := _separator(lines[0])) is not None:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "the file has one column only: its fields seem to be separated by another character, which the option "
            f"`sep: '{other}'` names. column=`{first[0][:100]}` path=`{path}`",
        )
    return Columns(path, kinds, header=None if named else lines[0][:1000])


def has_header(options: Mapping[str, str]) -> bool:
    """True when the first line of a CSV file has the names of its columns."""
    return {name.lower(): value.lower() for name, value in options.items()}.get("header") == "true"


def _separator(line: str) -> str | None:
    return next((one for one in (";", "\t", "|", ",") if one in line), None)


def _text_kind(values: Iterable[str]) -> str | None:
    """The kind that Spark infers for a column of text; None as long as later rows can change whether it is a time."""
    found = {NUMBER if _is_number(value) else None if _TIME.fullmatch(value) else TEXT for value in values}
    if found - {None, NUMBER} or len(found) > 1:
        return TEXT
    return found.pop() if found else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _kind(kind: Any) -> str | None:

    types: Any = pa.types
    if types.is_timestamp(kind):
        return NANOSECONDS if kind.unit == "ns" else TIME
    for is_one, name in (
        (types.is_date, TIME), (types.is_string, TEXT), (types.is_large_string, TEXT), (types.is_boolean, BOOLEAN),
        (types.is_integer, NUMBER), (types.is_floating, NUMBER), (types.is_decimal, NUMBER), (types.is_map, MAP),
        (types.is_list, LIST), (types.is_large_list, LIST), (types.is_struct, STRUCT), (types.is_binary, BYTES),
        (types.is_large_binary, BYTES),
    ):  # fmt: skip
        if is_one(kind):
            return name
    return _kind(kind.value_type) if types.is_dictionary(kind) else None


def nearest(path: str, names: Iterable[str]) -> str:
    """A hint at the sibling whose name is most like that of a path; empty without one."""
    base = os.path.basename(path.rstrip("/"))
    near = get_close_matches(base, list(names), 1, 0.5)
    return f": did you mean `{os.path.join(os.path.dirname(path.rstrip('/')), near[0])}`?" if near else ""
