"""Names in a flood's expressions. Pure.

Spark calls some functions without brackets: `user`, on a source without such a column, is the user of the operating system, the
same for every record. A flood takes such a name for the column that it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from itertools import pairwise

BARE_FUNCTIONS = frozenset(
    ("current_date", "current_path", "current_time", "current_timestamp", "current_user", "localtime", "session_user", "user")
)
"""Functions that Spark 4.3 calls without brackets where no column has their name."""
WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""A name that Spark reads without backquotes."""
_TOKEN = re.compile(
    r"""r'[^']*' | r"[^"]*" | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`]|``)*` | --[^\n]* | /\*.*?\*/ | ->|\w+|\S""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMMENTS = ("--", "/*")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that is not there; empty without a similar one."""
    own = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), own, 1)
    return f": did you mean `{own[near[0]]}`?" if near else ""


def quoted(name: str) -> str:
    """A column's name, quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"


def in_sql(name: str) -> str:
    """A column's name as a person writes it in SQL: quoted where it has to be."""
    return name if WORD.fullmatch(name) and name.lower() not in BARE_FUNCTIONS else quoted(name)


def bare_function(text: str, columns: Collection[str]) -> str | None:
    """The first name in an expression that is no column and that Spark would call as a function; None without one."""
    names = {column.lower() for column in columns}
    tokens = [token for token in _TOKEN.findall(text) if not token.startswith(_COMMENTS)]
    # The variables of a lambda are names too.
    names.update(before.lower() for before, after in pairwise(tokens) if after == "->")
    # Backquotes do not keep Spark from calling it.
    alone = (token.strip("`") for token in _alone(tokens))
    return next((token for token in alone if token.lower() in BARE_FUNCTIONS - names), None)


def _alone(tokens: list[str]) -> Iterator[str]:
    """The tokens that are neither calls, nor parts of longer names, nor names that the expression gives."""
    for before, token, after in zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        if after not in ("(", ".") and before != "." and before.lower() != "as":
            yield token


def bare_function_mistake(field: str, text: str, columns: Collection[str]) -> str | None:
    """A message about a function without brackets; None when the expression has none. `columns`: of the source."""
    if text in columns or (name := bare_function(text, columns)) is None:
        return None
    return (
        f"`{name}` is no column of this source, and a function needs its brackets: `{name}()` is the same for every record. "
        f"{field}=`{text}`"
    )
