"""Whether a flood's expressions fit the columns of its source. Pure: the columns are known already (`source_columns.py`).

A plain column is judged here, by its name and its kind, and so is a condition that compares a column with a constant of its kind.
Another expression is left to Spark's analysis (`analysis.py`), which alone knows its names, types and casts. A kind that the
source's metadata do not tell is None, and fits everywhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headgate.pipelines.definition import WHOLE_ROW
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.names import BARE_FUNCTIONS, WORD, bare_function_mistake, did_you_mean, in_sql

TIME, NANOSECONDS, TEXT, NUMBER, BOOLEAN, BYTES = "time", "time in nanoseconds", "text", "number", "boolean", "bytes"
FRACTION, MAP, LIST, PAIRS, STRUCT = "fractional number", "map", "list", "list of pairs", "struct"
VARIANT, EMPTY, PATH = "variant", "nulls only", "column of the path"
"""Kinds of columns: several of Spark's types share one if they may stand in the same fields. A column of the path has one of
Spark's simple types; one of nulls only is an integer in Spark."""
NAMES_MAX = 30
"""Columns that one message names; a person reads it."""
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_COMPARISON = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)|`(?P<quoted>[^`]+)`)\s*"
    r"(?:(?:>=|<=|==|=|>|<)\s*(?:(?P<number>-?\d{1,9})|'(?P<text>[^'\\]*)')|is\s+(?:not\s+)?null)\s*",
    re.IGNORECASE,
)
_OF_NANOSECONDS = re.compile(r"timestamp_micros\((.+) div 1000\)", re.IGNORECASE)
_CONSTANTS = frozenset(("null", "true", "false"))
"""Words that are expressions without parentheses."""
_NESTED = frozenset((MAP, LIST, PAIRS, STRUCT))
_READABLE = {
    TEXT: {TEXT, BYTES}, BYTES: {BYTES, TEXT, FRACTION}, BOOLEAN: {BOOLEAN}, TIME: {TIME, NUMBER},
    NUMBER: {EMPTY, NUMBER, FRACTION, TIME, NANOSECONDS}, NANOSECONDS: {EMPTY, NUMBER, FRACTION, TIME, NANOSECONDS},
    EMPTY: {EMPTY, NUMBER, FRACTION, TIME, NANOSECONDS}, FRACTION: {FRACTION, NUMBER, TIME}, **dict.fromkeys(_NESTED, _NESTED),
}  # fmt: skip
"""The kinds that a column may have in a Parquet file when Spark reads it as it is in another one. At other kinds Spark fails."""
_NARROW = frozenset((("INT32", "INT64"), ("FLOAT", "INT64"), ("DOUBLE", "INT64"), ("FLOAT", "DOUBLE"), ("FLOAT", "INT32")))
"""How the first file and another one store a number when Spark fails for want of room."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a source: the kind of each by its name. `path`: the file or directory that has them.

    `header`: the first line of a CSV file that is read without the option `header`. `refusal`: a message about columns with which
    Spark refuses the source, whatever a flood needs of it. `is_open`: the kinds are those of the first rows of JSON, and later rows
    may have other columns. `forms`: how a Parquet file stores plain numbers and times of 96 bits (`parquet_kinds.forms_of`).
    """

    path: str
    kinds: Mapping[str, str | None]
    header: str | None = None
    refusal: str | None = None
    is_open: bool = False
    forms: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def kind(self, name: str) -> str | None:
        """The kind of a column. Raises KeyError without such a column."""
        return self.kinds[self._own(name)]

    def form(self, name: str) -> str:
        """How the file stores a column; empty if `forms` does not tell."""
        return self.forms.get(self._own(name), "")

    def __contains__(self, name: str) -> bool:
        return self._own(name) in self.kinds

    def _own(self, name: str) -> str:
        """The column's own spelling: Spark ignores case unless two columns differ only in it."""
        if name in self.kinds:
            return name
        return next((kind for kind in self.kinds if kind.lower() == name.lower()), name)


def plain(text: str, columns: Columns | None = None) -> str | None:
    """The name of the column if an expression is nothing else; None for any other expression."""
    text = text.strip()
    if columns is not None and text in columns:
        return text
    if (quoted := _QUOTED.fullmatch(text)) is not None:
        return quoted[1].replace("``", "`")
    return text if WORD.fullmatch(text) and text.lower() not in _CONSTANTS else None


def expressions(flood: Flood) -> dict[str, str]:
    """The expressions of a flood, by their fields; without the default value, which fits every source."""
    found = {
        "event_time": flood.event_time, "key": flood.key, "headers": flood.headers, "where": flood.where, "late": flood.late,
        "value": None if flood.value == WHOLE_ROW else flood.value,
    }  # fmt: skip
    return {field: text for field, text in found.items() if text is not None}


def time_column(flood: Flood, columns: Columns) -> str | None:
    """The column that alone decides the event time, as a time in the file; None for another expression."""
    text = of_nanoseconds[1] if (of_nanoseconds := _OF_NANOSECONDS.fullmatch(flood.event_time.strip())) else flood.event_time
    return plain(text, columns)


def needs_spark(flood: Flood, columns: Columns | None) -> list[str]:
    """The fields that only Spark can judge. `columns` None: unknown."""
    return [field for field, text in expressions(flood).items() if columns is None or not _is_judged(field, text, columns)]


def _is_judged(field: str, text: str, columns: Columns) -> bool:
    """True when `problems` can judge an expression."""
    name = plain(text, columns)
    if name is None:
        return field in ("where", "late") and _is_comparison(text, columns)
    if name not in columns:
        return not columns.is_open
    kind = columns.kind(name)
    if kind == PATH:
        return field in ("key", "value")
    # In JSON, later rows can make text of lists and objects.
    return kind is not None and not (columns.is_open and kind in _NESTED)


def _is_comparison(text: str, columns: Columns) -> bool:
    """True if a condition compares a column with a constant of its own kind, or with null: Spark accepts it then."""
    found = _COMPARISON.fullmatch(text)
    if found is None or columns.is_open or (name := found["name"] or found["quoted"]) not in columns:
        return False
    kind = columns.kind(name)
    if found["number"] is not None:
        return kind == NUMBER
    return kind == TEXT if found["text"] is not None else kind not in (None, PATH)


def problems(flood: Flood, columns: Columns) -> list[str]:
    """The mistakes in plain columns, each with the nearest column or the expression to write instead."""
    return list(_problems(flood, columns))


def _problems(flood: Flood, columns: Columns) -> Iterator[str]:
    if columns.refusal is not None:
        yield f"{columns.refusal} path=`{columns.path}`"
        return
    for field, text in expressions(flood).items():
        name = plain(text, columns)
        if name is None:
            if (mistake := bare_function_mistake(field, text, columns.kinds)) is not None and not columns.is_open:
                yield f"{mistake} {_named(columns)} path=`{columns.path}`"
        elif not _is_judged(field, text, columns):
            continue
        elif name not in columns:
            yield f"the source has no such column{_hint(name, columns)} {field}=`{text}` {_named(columns)} path=`{columns.path}`"
        elif (way_out := _misfit(field, name, columns.kind(name))) is not None:
            yield f"{way_out} {field}=`{text}` type=`{columns.kind(name)}` path=`{columns.path}`"


def _hint(name: str, columns: Columns) -> str:
    if columns.header is not None and name.lower() in columns.header.lower():
        return ': the first line of the file seems to hold the names, which the option `header: "true"` reads.'
    near = did_you_mean(name, columns.kinds)
    if not near and name.lower() in (*BARE_FUNCTIONS, "now", "localtimestamp"):
        return f": a function needs its brackets, `{name}()`."
    return near or "."


def _named(columns: Columns) -> str:
    names = list(columns.kinds)
    more = ", ..." if len(names) > NAMES_MAX else ""
    return f"columns=`{', '.join(names[:NAMES_MAX])}{more}`"


def _misfit(field: str, name: str, kind: str | None) -> str | None:
    """What to write instead of a column of a wrong kind; None if the kind fits."""
    if kind is None or kind == PATH:
        return None
    text = in_sql(name)
    if field == "event_time" and kind != TIME:
        return "event time must be timestamp or date: " + {
            TEXT: f"`to_timestamp({text})` makes one of text, `to_timestamp({text}, 'dd.MM.yyyy HH:mm')` of text like that.",
            NUMBER: f"`timestamp_millis({text})` makes one of ms since 1970, `timestamp_seconds({text})` of seconds.",
            FRACTION: f"`timestamp_millis(cast({text} as bigint))` makes one of ms since 1970, `timestamp_seconds({text})` of "
            "seconds.",
            NANOSECONDS: f"Spark reads nanoseconds as numbers, of which `timestamp_micros({text} div 1000)` makes one.",
        }.get(kind, "name another column.")
    if field in ("key", "value") and kind in (*_NESTED, VARIANT):
        return f"{field} must be bytes or text: write `to_json({text})`."
    if field in ("where", "late") and kind != BOOLEAN:
        return f"{field} must be a condition: write a comparison, such as `{text} is not null`."
    if field == "headers" and kind not in (MAP, PAIRS):
        constant = name.replace("\\", "\\\\").replace("'", "\\'")
        content = f"to_json({text})" if kind in (*_NESTED, VARIANT) else f"cast({text} as string)"
        return f"headers must be a map, or an array of structs of a key and a value: write `map('{constant}', {content})`."
    return None


def moved_note(flood: Flood, columns: Iterable[Columns | None]) -> list[str]:
    """A note about columns in the default value that tasks on columns cannot write: variants, and nested columns of JSON lines and
    ORC."""
    whole = flood.value == WHOLE_ROW
    moved = (VARIANT,) if flood.source.is_parquet else (*_NESTED, VARIANT)
    nested = dict.fromkeys(
        name for column in columns if column is not None for name, kind in column.kinds.items() if whole and kind in moved
    )
    if not nested:
        return []
    return [
        "Spark moves the rows, which takes about half as long again as work on columns. "
        f"These need it: nested columns ({_some(nested)}) in the value, the row as JSON; a `value` without them would not"
    ]


def _some(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:NAMES_MAX])


def mixture(flood: Flood, first: Columns, other: Columns, other_rows: int) -> str | None:
    """A message about a file whose rows Spark cannot read, because it reads all Parquet files of a source with the columns of the
    first one; None when it can, or may.

    Args:
        first: the columns of the first file by path.
        other: those of another file, which has `other_rows` rows.
    """
    named = {plain(text, first) for text in expressions(flood).values()}
    for own in first.kinds:
        is_read = flood.value == WHOLE_ROW or own.lower() in {column.lower() for column in named if column}
        if own not in other:
            if flood.partition_by == "path" and other_rows and own.lower() == (time_column(flood, first) or "").lower():
                return (
                    f"the event time of all rows of a file is null: it has no such column. event_time=`{flood.event_time}` "
                    f"path=`{other.path}`"
                )
        elif is_read and other_rows and (types := _unread(own, first, other)) is not None:
            return (
                "Spark reads all files with the columns of the first one, and this file has another kind of column. "
                f"column=`{own}` type=`{types[1]}` path=`{other.path}` first_type=`{types[0]}` first=`{first.path}`"
            )
    return None


def _unread(name: str, first: Columns, other: Columns) -> tuple[str | None, str | None] | None:
    """The types of a column that Spark cannot read in another file as it is in the first one; None when it can, or may."""
    forms = first.form(name), other.form(name)
    if forms in _NARROW:
        return forms
    kind, found = first.kind(name), other.kind(name)
    return None if found in _READABLE.get(kind or "", (found,)) else (kind, found)


def drift(first: Columns, other: Columns) -> str | None:
    """A message about two parts of a source with other columns; None when they are alike."""
    changed = sorted(
        [f"+{name}" for name in other.kinds if name not in first]
        + [f"-{name}" for name in first.kinds if name not in other]
        + [
            f"{name}: {first.kind(name)} to {kind}"
            for name, kind in other.kinds.items()
            if name in first and len({first.kind(name), kind, None, EMPTY}) == 4
        ]
    )
    if not changed:
        return None
    return f"the columns change between `{first.path}` and `{other.path}`: {', '.join(changed[:NAMES_MAX])}"
