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
from headgate.pipelines.floods.judge import BOOLEAN, FRACTION, LIST, NAMES_MAX, NUMBER, PATH, STRUCT, TEXT, Columns
from headgate.pipelines.floods.parquet_kinds import arrow_kind, forms_of, kinds_of
from headgate.pipelines.listing import LISTING_OPTIONS
from headgate.pipelines.spark_paths import column_of

ROWS_MAX = 1000
"""Rows of a sample that are looked at."""
_LINE_END = re.compile("\r\n|\n|\r")
_OPENING = frozenset(("[", "{", "[{"))
"""First lines of JSON whose rows go over several lines."""
_UNKNOWN_TEXT = frozenset(("comment", "charset", "encoding", "quote", "escape", "linesep", "multiline"))
"""Options under which the lines of a CSV file are other than this module reads them."""


class _Object(list[tuple[str, Any]]):
    """The fields of a JSON object, in their order."""


def of_parquet(file: Any, path: str, below: Sequence[str]) -> Columns:
    """The columns of a Parquet file, with those of its path.

    Args:
        file: a `pyarrow.parquet.ParquetFile`. below: the directories of its path that are columns (``day=2026-01-01``).
    """
    kinds, twice, refused = kinds_of(file)
    refusal = twice_refusal(twice)
    if refused:
        refusal = (
            "Spark reads no column of this type, and no file that has one: write the files without it, or as text or a number. "
            f"columns=`{', '.join(refused[:NAMES_MAX])}`"
        )
    return Columns(path, _with_path(kinds, below), refusal=refusal, forms=forms_of(file))


def of_table(schema: pa.Schema, path: str) -> Columns:
    """The columns of a table, whatever the types in its files."""
    return Columns(path, {field.name: arrow_kind(field.type) for field in schema})


def twice_refusal(names: Sequence[str]) -> str | None:
    """A message about columns of one name; None without any."""
    if not names:
        return None
    return f"Spark ignores case and refuses columns of one name: rename one of them. columns=`{', '.join(names[:NAMES_MAX])}`"


def _with_path(kinds: Mapping[str, str | None], below: Sequence[str]) -> dict[str, str | None]:
    own = {name.lower(): name for name in kinds}
    names = [column_of(column) for column in below]
    return {**kinds, **{own.get(name.lower(), name): PATH for name in names}}


def of_sample(
    sample: bytes, whole: bool, format: str, options: Mapping[str, str], path: str, below: Sequence[str]
) -> Columns | None:
    """The columns of CSV or JSON lines; None when only Spark can tell them.

    Args:
        sample: the first bytes of the largest file, decompressed. `whole`: they are the whole source.
        below: the directories of its path that are columns.

    Raises:
        InvalidError: the rows are not of this format.
    """
    given = {name.lower(): value for name, value in options.items() if name.lower() not in LISTING_OPTIONS}
    # Spark's lines end with these only; `str.splitlines` knows more.
    lines = _LINE_END.split(sample.decode("utf-8-sig", "replace"))
    if not whole:
        lines = lines[:-1]
    if format == "text":
        return Columns(path, _with_path({"value": TEXT}, below))
    lines = [line for line in lines if line.strip()][:ROWS_MAX]
    found = _of_json(lines, given, path) if format == "json" else _of_csv(lines, given, path)
    return found and replace(found, kinds=_with_path(found.kinds, below), is_open=found.is_open and not whole)


def _of_json(lines: list[str], options: Mapping[str, str], path: str) -> Columns | None:
    if options.get("multiline", "false").lower() == "true" or set(options) - {"multiline", "mode"}:
        return None
    kinds: dict[str, str | None] = {}
    own: dict[str, str] = {}
    twice: list[str] = []
    seen = broken = 0
    for line in lines:
        found = _objects(line)
        seen += len(found)
        broken += not found
        for row in found:
            folded = [name.lower() for name, _ in row]
            twice += [name for name, _ in row if folded.count(name.lower()) > 1]
            for written, value in row:
                # Spark makes one column of names that differ in case, if no row has both.
                name = own.setdefault(written.lower(), written)
                known, kind = kinds.get(name), _json_kind(value)
                # Spark makes text of a column with values of several kinds.
                kinds[name] = kind if known is None or kind == known else known if kind is None else _of_two(known, kind)
    if broken and not seen and lines[0].strip() in _OPENING:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "no row of the source can be parsed: JSON whose rows, or lists of rows, go over several lines needs the option "
            f'`multiLine: "true"`. path=`{path}`',
        )
    # Python's JSON is not Spark's, which also knows single quotes.
    return None if broken or not seen else Columns(path, kinds, refusal=twice_refusal(twice), is_open=True)


def _objects(line: str) -> list[_Object]:
    """The rows of a line: one object, or a list of them."""
    try:
        row = json.loads(line, object_pairs_hook=_Object)
    except ValueError:
        return []
    rows = [row] if isinstance(row, _Object) else row if isinstance(row, list) else []
    return [row for row in rows if isinstance(row, _Object)]


def _of_two(first: str, other: str) -> str:
    return FRACTION if {first, other} == {NUMBER, FRACTION} else TEXT


def _json_kind(value: object) -> str | None:
    """The kind of a value; None for one that tells nothing, such as an empty object, of which Spark makes no column."""
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int | float):
        return NUMBER if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else FRACTION
    if isinstance(value, str):
        return TEXT
    if isinstance(value, _Object):
        return STRUCT if value else None
    return LIST if isinstance(value, list) and value and not any(isinstance(item, _Object) for item in value) else None


def _of_csv(lines: list[str], options: Mapping[str, str], path: str) -> Columns | None:
    if _UNKNOWN_TEXT & set(options) or not lines:
        return None
    separator = options.get("sep", options.get("delimiter", ","))
    if len(separator) != 1 or "\\" in lines[0] or '""' in lines[0]:
        return None
    named = has_header(options)
    infers = options.get("inferschema", "false").lower() == "true"
    try:
        rows = list(csv.reader(lines if infers else lines[:1], delimiter=separator))
    except csv.Error:  # a field of more than 131,072 characters
        return None
    first = rows[0]
    names = safe_names(first, options.get("nullvalue", "")) if named else [f"_c{number}" for number in range(len(first))]
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


def safe_names(header: Sequence[str], null: str) -> list[str]:
    """The names that Spark gives the columns of a CSV file: those of its first line, with a number behind names that occur twice.
    `null`: the text that means null."""
    folded = [name.lower() for name in header]
    return [
        f"_c{number}" if name in ("", null) else f"{name}{number}" if folded.count(name.lower()) > 1 else name
        for number, name in enumerate(header)
    ]


def has_header(options: Mapping[str, str]) -> bool:
    """True when the first line of a CSV file has the names of its columns."""
    return {name.lower(): value.lower() for name, value in options.items()}.get("header") == "true"


def _separator(line: str) -> str | None:
    return next((separator for separator in (";", "\t", "|", ",") if separator in line), None)


def _text_kind(values: Iterable[str]) -> str | None:
    """The kind that Spark infers for a column of text; None where Spark may see a time or a condition in it."""
    found = {NUMBER if _is_number(value) else TEXT if not any(map(str.isdigit, value)) else None for value in values if value}
    if TEXT in found:
        words = [value for value in values if not _is_number(value) and value.lower() not in ("true", "false")]
        return TEXT if words else None
    return FRACTION if found == {NUMBER} else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def nearest(path: str, names: Iterable[str]) -> str:
    """A hint at the sibling whose name is most like that of a path; empty without one."""
    base = os.path.basename(path.rstrip("/"))
    near = get_close_matches(base, list(names), 1, 0.5)
    return f": did you mean `{os.path.join(os.path.dirname(path.rstrip('/')), near[0])}`?" if near else ""
