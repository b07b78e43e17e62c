"""Patterns of topics, as brokers resolve them for consumer groups (KIP-848): RE2, which takes linear time for every pattern.

It is the RE2 of Arrow. Kafka uses RE2/J, with the same syntax. A pattern must match the whole name.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from headgate.broker.runtime.errors import InvalidError, Reason

PATTERN_CHARS_MAX = 1_000
"""Length of a pattern. RE2 bounds the memory of the compiled form."""


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that a pattern matches. Raises InvalidError(INVALID_REGULAR_EXPRESSION)."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise InvalidError(Reason.INVALID_REGULAR_EXPRESSION, f"pattern is too long. characters=`{len(pattern)}`")
    rows = pa.array([*names, ""], pa.string())
    try:
        # First alone: parentheses around it would hide that its own are not in pairs.
        pc.match_substring_regex(rows[:1], pattern)
        found = rows.filter(pc.match_substring_regex(rows, f"^(?:{pattern})$"))
    except pa.ArrowInvalid as error:
        raise InvalidError(
            Reason.INVALID_REGULAR_EXPRESSION, f"pattern is not valid RE2. pattern=`{pattern}` error=`{error}`"
        ) from error
    return frozenset(name for name in found.to_pylist() if name)
