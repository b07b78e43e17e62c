"""JSON Schema: whether rows as JSON fit, as far as their columns tell, and the schema of columns.

The text of a row is that of a flood without a frame: times as text, missing values left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.framing.bytes_of_columns import misfit
from headgate.pipelines.names import did_you_mean

DRAFT = "http://json-schema.org/draft-07/schema#"


def judged(schema: str, columns: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(the columns that become properties, why they do not fit): all columns, but for those that the schema forbids."""
    parsed = _parsed(schema)
    properties: Mapping[str, Any] = parsed.get("properties") or {}
    closed = parsed.get("additionalProperties") is False
    known = [name for name in columns if name in properties or not closed]
    problems = [
        misfit(name, f"the schema requires it, and the source has no such column{did_you_mean(name, columns)}")
        for name in parsed.get("required", ())
        if name not in known
    ]
    for name in known:
        wanted = _types_of(properties.get(name))
        if wanted and not wanted & set(_types(columns[name])):
            problems.append(misfit(name, f"{' or '.join(sorted(wanted))} is wanted, the column is of {columns[name]}"))
    return known, problems


def check_rows(schema: str, columns: Mapping[str, Any]) -> None:
    """Raise InvalidError if a required property is missing in a row."""
    for name in _parsed(schema).get("required", ()):
        if columns[name].null_count:
            raise InvalidError(Reason.INVALID_RECORD, misfit(name, "a value is missing, and the schema requires one"))


def derived(columns: Mapping[str, Any], name: str) -> str:
    """The schema of rows with these columns, all of which may be missing."""
    return json.dumps({"$schema": DRAFT, "title": name, **_object(columns)})


def _object(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: _derived(kind) for name, kind in columns.items()}}


def _derived(kind: Any) -> dict[str, Any]:
    types = pa.types
    if types.is_struct(kind):
        return _object({field.name: field.type for field in kind})
    if types.is_map(kind):
        return {"type": "object", "additionalProperties": _optional(kind.item_type)}
    if types.is_list(kind):
        return {"type": "array", "items": _optional(kind.value_type)}
    (first, *_) = _types(kind)
    formed = {"format": "date-time"} if types.is_timestamp(kind) and kind.tz is not None else {}
    return {"type": first, **formed, **({"format": "date"} if types.is_date32(kind) else {})}


def _optional(kind: Any) -> dict[str, Any]:
    """Of a value in a list or a map, where a missing one stands as null."""
    found = _derived(kind)
    return {**found, "type": [found["type"], "null"]}


def _types(kind: Any) -> Iterator[str]:
    """JSON Schema's types that the text of a column's values has, the narrowest one first."""
    types = pa.types
    if types.is_boolean(kind):
        yield "boolean"
    elif types.is_integer(kind):
        yield from ("integer", "number")
    elif types.is_floating(kind) or types.is_decimal(kind):
        yield "number"
    elif types.is_list(kind):
        yield "array"
    elif types.is_struct(kind) or types.is_map(kind):
        yield "object"
    else:
        yield "string"


def _types_of(schema: Any) -> set[str]:
    """The types that a property allows; empty: any, or more than one look tells."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return set(named)
    found: set[str] = set()
    for branch in schema.get("oneOf") or schema.get("anyOf") or ():
        inside = _types_of(branch)
        if not inside:
            return set()
        found |= inside
    return found


@lru_cache(16)
def _parsed(schema: str) -> dict[str, Any]:
    try:
        found = json.loads(schema)
    except ValueError as error:
        raise InvalidError(Reason.INVALID_REQUEST, f"the registry's schema is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidError(Reason.INVALID_REQUEST, "the registry's schema is no JSON Schema of an object")
    return found
