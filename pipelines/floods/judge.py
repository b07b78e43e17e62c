"""Whether a flood's expressions fit the columns of its source. Pure: the columns are known already (`columns.py`).

A plain column is judged here, by its name and its kind. An expression is left to Spark's analysis (`analysis.py`), which alone
knows its names, types and casts. A kind that the source's metadata do not tell is None, and fits everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from headgate.pipelines.floods.model import Flood

TIME, NANOSECONDS, TEXT, NUMBER, BOOLEAN, BYTES = "time", "time in nanoseconds", "text", "number", "boolean", "bytes"
MAP, LIST, STRUCT = "map", "list", "struct"
"""Kinds of columns: several of Spark's types share one if they may stand in the same fields."""
NAMES_MAX = 30
"""Columns that one message names; a person reads it."""
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_OF_NANOSECONDS = re.compile(r"timestamp_micros\((.+) div 1000\)", re.IGNORECASE)
_CONSTANTS = frozenset(("current_date", "current_timestamp", "current_user", "localtimestamp", "now", "null", "true", "false"))
"""Words that are expressions without parentheses."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a source: the kind of each by its name. `path`: the file or directory that has them.

    `header`: the first line of a CSV file that is read without the option `header`.
    """

    path: str
    kinds: Mapping[str, str | None]
    header: str | None = None

    def kind(self, name: str) -> str | None:
        """The kind of a column. Raises KeyError without such a column."""
        return self.kinds[self._own(name)]

    def __contains__(self, name: str) -> bool:
        return self._own(name) in self.kinds

    def _own(self, name: str) -> str:
        """The column's own spelling: Spark ignores case unless two columns differ only in it."""
        if name in self.kinds:
            return name
        return next((one for one in self.kinds if one.casefold() == name.casefold()), name)


def plain(text: str, columns: Columns | None = None) -> str | None:
    """The name of the column if an expression is nothing else; None for any other expression."""
    text = text.strip()
    if columns is not None and text in columns.kinds:
        return text
    if (quoted := _QUOTED.fullmatch(text)) is not None:
        return quoted[1].replace("``", "`")
    return text if _WORD.fullmatch(text) and text.casefold() not in _CONSTANTS else None


def expressions(flood: Flood) -> dict[str, str]:
    """The expressions of a flood, by their fields; without the default value, which fits every source."""
    found = {
        "event_time": flood.event_time, "key": flood.key, "headers": flood.headers, "where": flood.where, "late": flood.late,
        "value": None if flood.value == "to_json(struct(*))" else flood.value,
    }  # fmt: skip
    return {field: text for field, text in found.items() if text is not None}


def time_column(flood: Flood, columns: Columns) -> str | None:
    """The column that alone decides the event time, as a time in the file; None for another expression."""
    text = of_nanoseconds[1] if (of_nanoseconds := _OF_NANOSECONDS.fullmatch(flood.event_time.strip())) else flood.event_time
    return plain(text, columns)


def needs_spark(flood: Flood, columns: Columns | None) -> list[str]:
    """The fields that only Spark can judge. `columns` None: unknown."""
    return [field for field, text in expressions(flood).items() if columns is None or plain(text, columns) is None]


def problems(flood: Flood, columns: Columns) -> list[str]:
    """The mistakes in plain columns, each with the nearest column or the expression to write instead."""
    return list(_problems(flood, columns))


def _problems(flood: Flood, columns: Columns) -> Iterator[str]:
    for field, text in expressions(flood).items():
        name = plain(text, columns)
        if name is None:
            continue
        if name not in columns:
            yield f"the source has no such column{_hint(name, columns)} {field}=`{text}` {_named(columns)} path=`{columns.path}`"
        elif (way_out := _misfit(field, text, columns.kind(name))) is not None:
            yield f"{way_out} {field}=`{text}` type=`{columns.kind(name)}` path=`{columns.path}`"


def _hint(name: str, columns: Columns) -> str:
    if columns.header is not None and name.casefold() in columns.header.casefold():
        return ': the first line of the file seems to hold the names, which the option `header: "true"` reads.'
    folded = {one.casefold(): one for one in columns.kinds}
    near = get_close_matches(name.casefold(), folded, 1)
    return f": did you mean `{folded[near[0]]}`?" if near else "."


def _named(columns: Columns) -> str:
    names = list(columns.kinds)
    more = ", ..." if len(names) > NAMES_MAX else ""
    return f"columns=`{', '.join(names[:NAMES_MAX])}{more}`"


def _misfit(field: str, text: str, kind: str | None) -> str | None:
    """What to write instead of a column of a wrong kind; None if the kind fits."""
    if kind is None:
        return None
    if field == "event_time" and kind != TIME:
        return "event time must be timestamp or date: " + {
            TEXT: f"`to_timestamp({text})` makes one of text, `to_timestamp({text}, 'dd.MM.yyyy HH:mm')` of text like that.",
            NUMBER: f"`timestamp_millis({text})` makes one of ms since 1970, `timestamp_seconds({text})` of seconds.",
            NANOSECONDS: f"Spark reads nanoseconds as numbers, of which `timestamp_micros({text} div 1000)` makes one.",
        }.get(kind, "name another column.")
    if field in ("key", "value") and kind in (MAP, LIST, STRUCT):
        return f"{field} must be bytes or text: write `to_json({text})`."
    if field in ("where", "late") and kind != BOOLEAN:
        return f"{field} must be a condition: write a comparison, such as `{text} is not null`."
    if field == "headers" and kind not in (MAP, LIST):
        return f"headers must be a map, or an array of structs of a key and a value: write `map('{text}', cast({text} as string))`."
    return None


def drift(first: Columns, other: Columns) -> str | None:
    """A message about two parts of a source with other columns; None when they are alike."""
    changed = sorted(
        [f"+{name}" for name in other.kinds if name not in first]
        + [f"-{name}" for name in first.kinds if name not in other]
        + [
            f"{name}: {first.kinds[name]} to {kind}"
            for name, kind in other.kinds.items()
            if first.kinds.get(name) is not None and kind is not None and first.kinds[name] != kind
        ]
    )
    if not changed:
        return None
    return f"the columns change between `{first.path}` and `{other.path}`: {', '.join(changed[:NAMES_MAX])}"
