"""The query of a flood whose keys or values a schema registry's frame has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.columns.expressions import Node
from headgate.pipelines.columns.kinds import arrow_type
from headgate.pipelines.framing.frame import frame

if TYPE_CHECKING:
    from headgate.pipelines.columns.source import Source
    from headgate.pipelines.framing.declared import Framing

FRAMED = "framed"
"""The function of a node whose `value` is a `Frame`."""


def framed(source: Source, *, key: Framing | None, value: Framing | None) -> Source:
    """The source with framed keys and values. Raises as `frame`; InvalidError for an expression in a column's place."""
    outputs = dict(source.query.outputs)
    if key is not None:
        column = outputs["key"].without_casts()
        if column.function != "column":
            raise InvalidError(Reason.INVALID_REQUEST, "a key in a frame is a column, and this one is more")
        outputs["key"] = _node(key, {column.name: column}, is_key=True)
    if value is not None:
        row = outputs["value"].without_casts()
        if row.function != "json" or [argument.name for argument in row.arguments] != list(row.value):
            raise InvalidError(
                Reason.INVALID_REQUEST, "a value in a frame is the row: leave the value out, and let the schema choose"
            )
        outputs["value"] = _node(value, {argument.name: argument for argument in row.arguments}, is_key=False)
    return replace(source, query=replace(source.query, outputs=outputs))


def _node(framing: Framing, columns: Mapping[str, Node], *, is_key: bool) -> Node:
    types: dict[str, Any] = {name: arrow_type(column.kind) for name, column in columns.items()}
    found = frame(framing, types, is_key=is_key)
    return Node(FRAMED, "binary", tuple(columns[name] for name in found.columns), value=found)
