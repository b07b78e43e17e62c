"""The names that Avro schemas define."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def named_types(schemas: Iterable[Any]) -> dict[str, Any]:
    """The schema of each name: of full names, and of short ones unless an earlier schema has them.

    Args:
        schemas: as JSON says, those that others use first.

    Raises KeyError, TypeError, AttributeError for what is no schema.
    """
    named: dict[str, Any] = {}
    for schema in schemas:
        _collect(schema, "", named)
    return named


def _collect(schema: Any, space: str, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, space, named)
        return
    if not isinstance(schema, dict):
        return
    space = schema.get("namespace", space)
    if schema["type"] in ("record", "enum", "fixed", "error"):
        name = schema["name"]
        full = name if "." in name or not space else f"{space}.{name}"
        named[full] = schema
        named.setdefault(full.rpartition(".")[2], schema)
    for field in schema.get("fields", ()):
        _collect(field["type"], space, named)
    for part in ("items", "values"):
        if part in schema:
            _collect(schema[part], space, named)
    if isinstance(schema["type"], dict | list):
        _collect(schema["type"], space, named)
