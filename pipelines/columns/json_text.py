"""Rows as JSON text by columns, byte for byte as Spark's `to_json` writes them.

Fields without a value are left out, times are in milliseconds, bytes in base 64, numbers that are none ("NaN") in quotes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.numbers import java_text

arrow: Any = pa
pc: Any = pyarrow.compute

YEAR_1_US = -62_135_596_800_000_000
YEAR_10000_US = 253_402_300_800_000_000
"""Java and Arrow print times from the first year to 9999 alike."""
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


def json_rows(names: Sequence[str], columns: Sequence[Any]) -> Any:
    """One JSON object, a string, for each row.

    Args:
        columns: arrays of equal length.

    Raises:
        UnlikeError: a text is not UTF-8, or a time is before the year 1 or after 9999.
    """
    pieces = [_field(name, column) for name, column in zip(names, columns, strict=True)]
    joined = pc.binary_join_element_wise(b"{", *pieces, b"}", arrow.scalar(b"", pa.binary()), null_handling="skip")
    # Each field begins with a comma, the first one too. (pyarrow 25's binary_slice fails for empty values.)
    return pc.replace_substring(joined, b"{,", b"{", max_replacements=1).cast(pa.string())


def _field(name: str, column: Any) -> Any:
    """``,"name":value`` for each row; null where there is no value."""
    begin = arrow.scalar(f",{_quoted(name)}:".encode(), pa.binary())
    quote = arrow.scalar(b'"', pa.binary())
    nothing = arrow.scalar(b"", pa.binary())
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return pc.binary_join_element_wise(begin, column.cast(pa.string()).cast(pa.binary()), nothing)
    if pa.types.is_floating(kind):
        text = java_text(column).cast(pa.binary())
        quotes = pc.if_else(pc.is_finite(column), nothing, quote)
        return pc.binary_join_element_wise(begin, quotes, text, quotes, nothing)
    if pa.types.is_boolean(kind):
        return pc.binary_join_element_wise(begin, pc.if_else(column, "true", "false").cast(pa.binary()), nothing)
    return pc.binary_join_element_wise(begin, quote, _text(column).cast(pa.binary()), quote, nothing)


def _text(column: Any) -> Any:
    """The content of a quoted value."""
    kind = column.type
    if pa.types.is_string(kind):
        return _escaped(column)
    if pa.types.is_date(kind):
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        micros: Any = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if len(micros) and not YEAR_1_US <= micros.min() <= micros.max() < YEAR_10000_US:
            raise UnlikeError("a time is before the year 1 or after 9999, and Java prints it in another way")
        mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        times = arrow.array(micros // 1000, pa.int64(), mask=mask).cast(pa.timestamp("ms")).cast(pa.string())
        return pc.binary_join_element_wise(pc.replace_substring(times, " ", "T"), zone, "")
    assert pa.types.is_binary(kind), "the expressions have no other types"
    return arrow.array([None if value is None else b64encode(value) for value in column.to_pylist()], pa.binary())


def _escaped(texts: Any) -> Any:
    """Texts with the escapes of JSON. Most columns have none to make, which one look at all bytes shows."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raise UnlikeError("a text is not UTF-8, and Java replaces such bytes") from None
    data = texts.buffers()[2]
    if data is None:
        return texts
    seen = np.bincount(np.frombuffer(data, np.uint8), minlength=256) > 0
    if seen[ord("\\")]:
        texts = pc.replace_substring(texts, "\\", "\\\\")
    for character, escape in _ESCAPES.items():
        if seen[ord(character)]:
            texts = pc.replace_substring(texts, character, escape)
    return texts


def _quoted(name: str) -> str:
    return '"' + "".join("\\\\" if one == "\\" else _ESCAPES.get(one, one) for one in name) + '"'
