"""CSV and JSON lines by columns. Pieces of a file are ranges of bytes; a line belongs to the piece in which it begins.

Arrow parses them. It is stricter than Spark: it refuses rows with missing or additional fields, values of another type, and any
JSON that the standard does not allow. For such input, and for quotes and escapes that the two read differently, the flood takes
Spark's rows (`UnlikeError`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from headgate.broker.log.column_schema import whole
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.texts import TYPES, typed

arrow: Any = pa
csv: Any = pacsv
json: Any = pajson

LINE_BYTES_MAX = 16 << 20
"""A longer line is Spark's."""
LINE_STEP_BYTES = 64 << 10
"""Bytes that are read at once behind a piece, for the end of its last line."""
_BOM = b"\xef\xbb\xbf"
_BLANK_LINE = re.compile(rb"^[\x01-\x09\x0b-\x20]+$", re.MULTILINE)
"""A line that is not empty, and whose fields are."""
_JSON_TYPES: dict[str, Any] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "double": pa.float64(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "short": pa.int16(),
}
"""Types that JSON itself has. Dates and times are strings there."""
_JSON_TEXTS = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True)
class Lines:
    """A format of lines, in pieces of `piece_bytes`.

    `names`: all columns of a CSV file, in their order; empty for JSON. `header`: each file begins with a line of names.
    """

    piece_bytes: int
    names: tuple[str, ...] = ()
    separator: str = ","
    header: bool = False

    def check_types(self, kinds: Sequence[str]) -> None:
        """Raise UnlikeError when columns of these types cannot be read."""
        known = TYPES | {"string"} if self.names else frozenset((*_JSON_TYPES, *_JSON_TEXTS, "string"))
        unknown = sorted(set(kinds) - known)
        if unknown:
            raise UnlikeError(f"a column of the text is of type {unknown[0].partition(' ')[0]}")

    def read(self, handle: Any, path: str, begin: int, end: int, columns: dict[str, tuple[str, Any]]) -> pa.Table:
        """The rows of the lines that begin in the bytes [begin, end) of a file.

        Args:
            handle: a `pyarrow.NativeFile`; `path` is for messages.
            columns: the columns to read, at least one: Spark's name of the type, and the Arrow type.
        """
        data = _lines(handle, begin, end, self.header)
        if not data:
            return _table({name: arrow.array([], to) for name, (_, to) in columns.items()})
        _check_text(data)
        try:
            return self._csv(data, columns) if self.names else _json(data, columns)
        except pa.ArrowInvalid as error:
            raise UnlikeError(f"Arrow does not read the text: {str(error)[:200]} file=`{path}` byte=`{begin}`") from error

    def _csv(self, data: bytes, columns: dict[str, tuple[str, Any]]) -> pa.Table:
        if (self.separator <= " " or len(self.names) == 1) and _BLANK_LINE.search(data) is not None:
            raise UnlikeError("a line has only spaces or tabs, and Spark drops it")
        quoted = b'"' in data
        if b"\\" in data:
            raise UnlikeError("a backslash escapes in Spark's CSV")
        if quoted:
            _check_quotes(data, self.separator)
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=list(self.names), use_threads=False, block_size=len(data) + 1),
            csv.ParseOptions(delimiter=self.separator, quote_char='"' if quoted else False, double_quote=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(self.names, pa.string()),
                include_columns=list(columns),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                check_utf8=False,
            ),
        )
        made = {
            name: whole(table.column(name)) if kind == "string" else typed(whole(table.column(name)), kind, to)
            for name, (kind, to) in columns.items()
        }
        return _table(made)


def _json(data: bytes, columns: dict[str, tuple[str, Any]]) -> pa.Table:
    schema = pa.schema([(name, _JSON_TYPES.get(kind, pa.string())) for name, (kind, _) in columns.items()])
    rows = _objects(data)
    table = json.read_json(
        pa.BufferReader(data),
        json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        json.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != rows:
        raise UnlikeError("a line has several JSON objects")
    made = {}
    for name, (kind, to) in columns.items():
        values = whole(table.column(name))
        if kind == "double":
            _check_doubles(values)
        made[name] = typed(values, kind, to) if kind in _JSON_TEXTS else values
    return _table(made)


def _objects(data: bytes) -> int:
    """The number of lines that are not empty. Raises UnlikeError unless each begins and ends with a brace: Arrow does not look at
    the ends of lines."""
    read = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(read == ord("\n"))
    begins, ends = np.append(0, breaks + 1), np.append(breaks, len(read))
    begins, ends = begins[ends > begins], ends[ends > begins]
    if not ((read[begins] == ord("{")).all() and (read[ends - 1] == ord("}")).all()):
        raise UnlikeError("a line is no JSON object")
    return len(begins)


def _table(columns: dict[str, Any]) -> pa.Table:
    table: pa.Table = arrow.table(columns)
    return table


def _lines(handle: Any, begin: int, end: int, header: bool) -> bytes:
    """The lines that begin in the bytes [begin, end), without the header."""
    size = handle.size()
    # The byte before the piece shows whether a line begins with it.
    at = max(begin - 1, 0)
    data: bytes = handle.read_at(max(min(end, size) - at, 0), at)
    at += len(data)
    ended = not data or data.endswith(b"\n")
    rest: list[bytes] = []
    while at < size and not ended:
        more = handle.read_at(min(LINE_STEP_BYTES, size - at), at)
        line, found, _ = more.partition(b"\n")
        rest.append(line + found)
        at += len(more)
        ended = bool(found)
        if len(rest) * LINE_STEP_BYTES > LINE_BYTES_MAX:
            raise UnlikeError(f"a line is longer than {LINE_BYTES_MAX} bytes")
    data = b"".join((data, *rest)) if rest else data
    if begin:
        before, found, lines = data.partition(b"\n")
        return lines if found and len(before) < end - begin else b""
    if data.startswith(_BOM):
        raise UnlikeError("a file begins with a byte order mark")
    if not header:
        return data
    first, _, data = data.partition(b"\n")
    if not first.strip():
        raise UnlikeError("a file begins with an empty line")
    return data


def _check_text(data: bytes) -> None:
    if b"\r" in data:
        raise UnlikeError("a line ends with a carriage return")
    if b"\0" in data:
        raise UnlikeError("a text has zero bytes")
    try:
        data.decode()
    except UnicodeDecodeError:
        raise UnlikeError("a text is not UTF-8, and Java replaces such bytes") from None


def _check_quotes(data: bytes, separator: str) -> None:
    """Raise UnlikeError unless each quote opens a field or closes it on the same line: others Spark and Arrow read differently."""
    read = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(read == ord('"'))
    opens, closes = quotes[::2], quotes[1::2]
    alone = len(opens) != len(closes)
    if not alone:
        edges = np.array([ord(separator), ord("\n")], np.uint8)
        before = read[np.maximum(opens - 1, 0)]
        after = read[np.minimum(closes + 1, len(read) - 1)]
        breaks = np.flatnonzero(read == ord("\n"))
        alone = not (
            (np.isin(before, edges) | (opens == 0)).all()
            and (np.isin(after, edges) | (closes == len(read) - 1)).all()
            and (np.searchsorted(breaks, opens) == np.searchsorted(breaks, closes)).all()
        )
    if alone:
        raise UnlikeError("a quote is inside a field, or a field has several lines")


def _check_doubles(values: Any) -> None:
    """Raise UnlikeError for -0, which Spark reads as 0, and for values that JSON has no number for."""
    found: Any = values.fill_null(1).to_numpy(zero_copy_only=False)
    if not np.isfinite(found).all() or np.signbit(found[found == 0]).any():
        raise UnlikeError("a number is -0 or none")
