"""Text as values of other types, where Arrow reads it as Spark does: in the usual forms only. Any other form is Spark's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute

from headgate.pipelines.columns.errors import UnlikeError

arrow: Any = pa
pc: Any = pyarrow.compute

_WHOLE = r"^-?\d+$"
_FRACTION = r"^-?\d+(\.\d+)?([eE][-+]?\d+)?$"
_FORMS = {
    "boolean": r"^(true|false)$",
    **dict.fromkeys(("byte", "short", "integer", "long"), _WHOLE),
    "float": _FRACTION,
    "double": _FRACTION,
    "date": r"^\d{4}-\d{2}-\d{2}$",
    "timestamp": r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z?$",
    "timestamp_ntz": r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?$",
}
"""The texts that Arrow and Spark read alike, by Spark's name of the type. Java reads more, such as `+1` and `1d`; Arrow also reads
hexadecimal numbers."""
TYPES = frozenset(_FORMS)
_YEAR_ZERO = "^0000"


def typed(texts: Any, kind: str, to: Any) -> Any:
    """The values of an array of strings; null stays null. A time without a zone is in UTC.

    Args:
        kind: Spark's name of the type, one of `TYPES`; `to` is its Arrow type.

    Raises:
        UnlikeError: a text has another form, or is no value of the type.
    """
    if not pc.all(pc.fill_null(pc.match_substring_regex(texts, _FORMS[kind]), True)).as_py():
        raise UnlikeError(f"a text is in a form of {kind} that only Spark reads")
    try:
        if kind == "boolean":
            return pc.equal(texts, "true")
        if kind in ("date", "timestamp", "timestamp_ntz"):
            return _time(texts, to)
        return texts.cast(to)
    except pa.ArrowInvalid as error:
        raise UnlikeError(f"a text is no {kind}: {error}") from error


def _time(texts: Any, to: Any) -> Any:
    if pc.any(pc.match_substring_regex(texts, _YEAR_ZERO)).as_py():
        raise UnlikeError("a time is in the year 0")
    return (
        pc.replace_substring_regex(texts, "Z$", "").cast(pa.timestamp("us")).cast(to)
        if pa.types.is_timestamp(to)
        else texts.cast(to)
    )
