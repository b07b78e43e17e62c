"""Rows as JSON text by columns, byte for byte as Spark's `to_json` writes them. No I/O.

Fields without a value are left out, but elements of arrays and values of maps without one are ``null``. Times are in milliseconds,
bytes in base 64, numbers that are none ("NaN") in quotes.

Everything between two values is a constant, so that one kernel of Arrow joins a row from its values and from few constants: each
byte of the text is written once.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from headgate.broker.log.java_numbers import java_text

arrow: Any = pa
pc: Any = pyarrow.compute

DAY_MS = 86_400_000
YEAR_1, YEAR_10000 = -719_162, 2_932_897
"""Days since 1970. Between them a year has four digits."""
_ESCAPES = {
    **{chr(code): f"\\u{code:04X}" for code in range(0x20)},
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    '"': '\\"',
}
"""Every character that JSON text must escape, but for the backslash."""
_ESCAPE_BYTES = len("\\u0000")
_VALUE_BYTES = 56
"""Of a number, a date or a time with what stands around it, at most; of a decimal of 38 digits with its power of ten."""
_SIXTY = np.array([f"{number:02}" for number in range(60)], "S2")
_HOURS = np.array([f"T{hour:02}:" for hour in range(24)], "S4")
_MINUTES = np.char.add(np.char.add(_HOURS[:, None], _SIXTY), b":").ravel()
_CLOCK = np.char.add(_MINUTES[:, None], _SIXTY).ravel()
"""The text of each second of a day. Made by columns: every process that makes history, or counts a flood, imports this."""
_MILLIS = {zone: np.array([f".{at:03}{zone}" for at in range(1000)], "S") for zone in ("", "Z")}
_PLAIN = (
    pa.types.is_integer,
    pa.types.is_decimal128,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
)
_MAP_KEYS = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)


class UnlikeJavaError(ValueError):
    """Java writes a value in another way; the text says which one."""


def is_writable(kind: Any) -> bool:
    """True if values of an Arrow type, and all within them, are written as Spark does."""
    types = pa.types
    if types.is_struct(kind):
        return all(is_writable(field.type) for field in kind)
    if types.is_list(kind):
        return is_writable(kind.value_type)
    if types.is_map(kind):
        return any(is_kind(kind.key_type) for is_kind in _MAP_KEYS) and is_writable(kind.item_type)
    if types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return any(is_kind(kind) for is_kind in _PLAIN)


def json_rows(names: Sequence[str], columns: Sequence[Any], *, replaces: bool = False) -> Any:
    """One JSON object, a string, for each row.

    Args:
        columns: arrays of equal length, at least one, of types that are `is_writable`; those of large strings are JSON already.
        replaces: bytes of a text that are not UTF-8 become U+FFFD.

    Raises:
        UnlikeJavaError: a text is not UTF-8, and Java replaces such bytes by rules of its own.
    """
    return _object(names, columns, len(columns[0]), replaces)


def json_bytes_max(names: Sequence[str], columns: Sequence[Any]) -> int:
    """Bytes that `json_rows` makes of these columns, at most."""
    rows = len(columns[0]) if columns else 0
    return rows * len("{}") + sum(rows * len(f"{_quoted(name)}:,".encode()) for name in names) + sum(map(_bytes_max, columns))


def _bytes_max(column: Any) -> int:
    """Bytes of the values of a column as JSON, at most."""
    kind = column.type
    if pa.types.is_struct(kind):
        return json_bytes_max([field.name for field in kind], column.flatten()) + len(column) * _VALUE_BYTES
    if pa.types.is_map(kind):
        parts = [_elements(column, part)[0] for part in (column.keys, column.items)]
    elif pa.types.is_list(kind):
        parts = [_elements(column, column.values)[0]]
    elif pa.types.is_large_string(kind):
        return int(column.nbytes)
    else:
        # Of a text each byte may have an escape.
        has_bytes = pa.types.is_string(kind) or pa.types.is_binary(kind)
        return len(column) * _VALUE_BYTES + (_ESCAPE_BYTES * int(column.nbytes) if has_bytes else 0)
    return len(column) * _VALUE_BYTES + sum(map(_bytes_max, parts))


def _object(names: Sequence[str], columns: Sequence[Any], rows: int, replaces: bool) -> Any:
    """Objects of these fields. The constant before a value ends with the end of the value before it.

    A field that may lack its value brings its comma with it: behind itself if it stands before the first field that every row has,
    else before itself.
    """
    first = next((place for place, column in enumerate(columns) if not column.null_count), len(columns))
    pieces: list[Any] = []
    constant = "{"
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        text, quote = _text(column, replaces)
        begin = f"{_quoted(name)}:{quote}"
        if column.null_count:
            before, after = ("", ",") if place < first < len(columns) else (",", "")
            pieces += [constant, _joined(f"{before}{begin}", text, f"{quote}{after}")]
            constant = ""
        else:
            pieces += [f"{constant}{',' if place > first else ''}{begin}", text]
            constant = quote
    pieces.append(f"{constant}}}")
    if len(pieces) == 1:
        return arrow.repeat("{}", rows)
    some = [piece for piece in pieces if not isinstance(piece, str) or piece]
    found = pc.binary_join_element_wise(*some, "", null_handling="replace", null_replacement="")
    if first == len(columns):
        found = pc.replace_substring(found, "{,", "{", max_replacements=1)
    return found


def _joined(*parts: Any) -> Any:
    """The parts of each row as one text; null if one is null."""
    return pc.binary_join_element_wise(*parts, "")


def _text(column: Any, replaces: bool) -> tuple[Any, str]:
    """The values of a column as text, null for null, and the quotes to which they belong."""
    kind = column.type
    if pa.types.is_large_string(kind):
        return column.cast(pa.string()), ""
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string()), ""
    if pa.types.is_floating(kind):
        return _number(column), ""
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "true", "false"), ""
    if pa.types.is_string(kind):
        return _escaped(column, replaces), '"'
    if pa.types.is_date(kind):
        return dates(column), '"'
    if pa.types.is_timestamp(kind):
        return _times(column), '"'
    if pa.types.is_binary(kind):
        return arrow.array([None if value is None else b64encode(value).decode() for value in column.to_pylist()], pa.string()), '"'
    if pa.types.is_struct(kind):
        found = _object([field.name for field in kind], column.flatten(), len(column), replaces)
    elif pa.types.is_map(kind):
        found = _map(column, replaces)
    else:
        values, lengths = _elements(column, column.values)
        found = _bracketed("[", _value(values, replaces), lengths, "]")
    return (pc.if_else(column.is_valid(), found, None) if column.null_count else found), ""


def _value(column: Any, replaces: bool) -> Any:
    """The values of a column as they stand behind a colon, or in an array."""
    text, quote = _text(column, replaces)
    return (_joined(quote, text, quote) if quote else text).fill_null("null")


def _map(column: Any, replaces: bool) -> Any:
    keys, lengths = _elements(column, column.keys)
    values, _ = _elements(column, column.items)
    return _bracketed("{", _joined('"', _text(keys, replaces)[0], '":', _value(values, replaces)), lengths, "}")


def _elements(column: Any, values: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """The elements of all lists of a column, and how many each has. `values`: those of the array of which the column is a slice."""
    offsets: npt.NDArray[np.int64] = np.asarray(column.offsets).astype(np.int64)
    return values.slice(offsets[0], offsets[-1] - offsets[0]), np.diff(offsets)


def _bracketed(begin: str, elements: Any, lengths: npt.NDArray[np.int64], end: str) -> Any:
    """The elements of each list, with commas between them."""
    offsets = arrow.array(np.append(0, np.cumsum(lengths)), pa.int32())
    return _joined(begin, pc.binary_join(arrow.ListArray.from_arrays(offsets, elements), ","), end)


def _number(column: Any) -> Any:
    text, finite = java_text(column), pc.is_finite(column)
    return text if pc.all(finite.fill_null(True)).as_py() is not False else pc.if_else(finite, text, _joined('"', text, '"'))


def dates(column: Any) -> Any:
    """Dates as text, null for null."""
    days = np.asarray(column.cast(pa.int32()).fill_null(0)).astype(np.int64)
    return _of_bytes(_days(days), column)


def _times(column: Any) -> Any:
    """Times as ISO 8601 has them, with the zone of those that have one."""
    millis = np.asarray(column.cast(pa.int64()).fill_null(0)) // 1000
    days = millis // DAY_MS
    at = millis - days * DAY_MS
    seconds = at // 1000
    ends = _MILLIS["" if column.type.tz is None else "Z"]
    dates = _days(days)
    if dates.dtype.kind == "O":
        clock = np.char.add(_CLOCK[seconds], ends[at - seconds * 1000])
        return _of_bytes(np.array([*map(bytes.__add__, dates.tolist(), clock.tolist()), b""], object)[:-1], column)
    rows = np.empty(len(at), [("date", dates.dtype), ("clock", _CLOCK.dtype), ("millis", ends.dtype)])
    rows["date"], rows["clock"], rows["millis"] = dates, _CLOCK[seconds], ends[at - seconds * 1000]
    return _of_bytes(rows, column)


def _days(days: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The texts of some days: bytes of equal length, or objects."""
    low, high = (int(days.min()), int(days.max())) if len(days) else (0, 0)
    if not YEAR_1 <= low <= high < YEAR_10000:
        return np.array([*map(_far_day, days.tolist()), b""], object)[:-1]
    if high - low <= max(len(days), 1000):
        return _names(np.arange(low, high + 1))[days - low]
    some, places = np.unique(days, return_inverse=True)
    return _names(some)[places]


def _names(days: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    return np.datetime_as_string(days.astype("M8[D]")).astype("S10")


def _far_day(day: int) -> bytes:
    """A day of any year, as Java's pattern "uuuu-MM-dd" writes it: a sign stands before more than four digits."""
    # 400 years of the calendar have 146,097 days.
    cycles, rest = divmod(day, 146_097)
    year, _, end = str(np.datetime64(rest, "D")).partition("-")
    shifted = int(year) + 400 * cycles
    sign = "-" if shifted < 0 else "+" if shifted > 9999 else ""
    return f"{sign}{abs(shifted):04}-{end}".encode()


def _of_bytes(rows: npt.NDArray[Any], column: Any) -> Any:
    """Bytes of equal length, or objects, as texts; null where the column is null."""
    if rows.dtype.kind == "O":
        found = arrow.array([row.decode() for row in rows.tolist()], pa.string())
    else:
        ends = np.arange(0, (len(rows) + 1) * rows.itemsize, rows.itemsize, dtype=np.int32)
        found = arrow.StringArray.from_buffers(len(rows), arrow.py_buffer(ends), arrow.py_buffer(rows))
    return pc.if_else(column.is_valid(), found, None) if column.null_count else found


def _escaped(texts: Any, replaces: bool) -> Any:
    """Texts with the escapes of JSON. Most columns have none to make, which few looks at all bytes show."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        if not replaces:
            raise UnlikeJavaError("a text is not UTF-8, and Java replaces such bytes") from None
        known = texts.cast(pa.binary()).to_pylist()
        texts = arrow.array([None if value is None else value.decode(errors="replace") for value in known], pa.string())
    for character in _special(texts):
        texts = pc.replace_substring(texts, character, "\\\\" if character == "\\" else _ESCAPES[character])
    return texts


def _special(texts: Any) -> Iterator[str]:
    """The characters in some texts that JSON escapes; the backslash, which stands in all escapes, first."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return
    begin, end = (int(at) for at in np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]])
    content = np.frombuffer(data, np.uint8)[begin:end]
    if not len(content):
        return
    if (content == ord("\\")).any():
        yield "\\"
    if (content == ord('"')).any():
        yield '"'
    if content.min() < 0x20:
        for code in np.flatnonzero(np.bincount(content[content < 0x20])).tolist():
            yield chr(code)


def _quoted(name: str) -> str:
    return '"' + "".join("\\\\" if letter == "\\" else _ESCAPES.get(letter, letter) for letter in name) + '"'
