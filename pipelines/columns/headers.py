"""Headers of records by columns: a map, or an array of pairs, becomes a list of (name, content) for each row. Also their order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

arrow: Any = pa
pc: Any = pyarrow.compute

KIND = "headers"
"""The kind of an expression that makes headers. Spark has no type of this name."""
NAME, CONTENT = "\0name", "\0content"
"""The columns of all pairs, for the expressions that make text of them."""
TYPE = arrow.list_(arrow.struct([("key", pa.string()), ("value", pa.binary())]))


def pair_kind(kind: Mapping[str, Any]) -> str | None:
    """The kind of a column of pairs, with the names and kinds of a pair's fields; None for any other nested type of Spark's."""
    if kind.get("type") == "map":
        fields = [("key", kind["keyType"]), ("value", kind["valueType"])]
        return f"map {json.dumps(fields)}"
    element = kind.get("elementType") if kind.get("type") == "array" else None
    if not isinstance(element, dict) or element.get("type") != "struct" or len(element["fields"]) != 2:
        return None
    return f"array {json.dumps([(one['name'], one['type']) for one in element['fields']])}"


def fields_of(kind: str) -> list[tuple[str, str]]:
    """(name, kind) of the two fields of a column of pairs; empty for another kind."""
    shape, _, fields = kind.partition(" ")
    return [(name, one) for name, one in json.loads(fields)] if fields and shape in ("map", "array") else []


def is_pairs(found: Any, kind: str) -> bool:
    """True if a column of this Arrow type has the shape of a kind of pairs. The fields' types are not compared."""
    if kind.startswith("map "):
        return bool(pa.types.is_map(found))
    names = [name for name, _ in fields_of(kind)]
    is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
    return is_list and pa.types.is_struct(found.value_type) and [one.name for one in found.value_type] == names


def pair_types(found: Any) -> list[Any]:
    """The Arrow types of the two fields of a column of pairs."""
    return [found.key_type, found.item_type] if pa.types.is_map(found) else [one.type for one in found.value_type]


def of_column(pairs: Any) -> tuple[Any, Any, Any]:
    """(number of pairs of each row, null for a row without headers; names; contents) of a column of pairs."""
    if pa.types.is_map(pairs.type):
        fields = [("key", pairs.type.key_type), ("value", pairs.type.item_type)]
        pairs = pairs.cast(arrow.list_(arrow.struct(fields)))
    names, contents = pc.list_flatten(pairs).flatten()
    return pc.list_value_length(pairs), names, contents


def of_values(values: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The same of names and contents by turns: each row has all of them."""
    rows = next(len(one) for one in values if not isinstance(one, pa.Scalar))
    whole = [arrow.repeat(one, rows) if isinstance(one, pa.Scalar) else one for one in values]
    count = len(whole) // 2
    by_row = arrow.array(np.arange(count * rows).reshape(count, rows).T.ravel())
    names, contents = (arrow.concat_arrays(_whole(some)).take(by_row) for some in (whole[::2], whole[1::2]))
    return arrow.array(np.full(rows, count, np.int64)), names, contents


def _whole(columns: Sequence[Any]) -> list[Any]:
    return [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns]


def headers(counts: Any, names: Any, contents: Any) -> Any:
    """The column of headers, of type `TYPE`.

    Args:
        counts: the number of each row's headers, null for none.
        names, contents: strings and bytes of all headers, row after row.
    """
    ends = np.cumsum(counts.fill_null(0).to_numpy(zero_copy_only=False))
    offsets = arrow.array(np.append(0, ends), pa.int32())
    pairs = arrow.StructArray.from_arrays([names.cast(pa.string()), contents.cast(pa.binary())], names=["key", "value"])
    return arrow.ListArray.from_arrays(offsets, pairs, mask=counts.is_null() if counts.null_count else None)


def comparable(found: Any) -> list[tuple[Any, ...]]:
    """Each row of a column of headers as a tuple. Tuples have Spark's order of arrays: no headers first, then pair by pair, a
    shorter list before a longer one, null before any value, bytes without a sign."""
    counts, names, contents = of_column(found)
    pairs = [
        (name is not None, name or b"", content is not None, content or b"")
        for name, content in zip(names.cast(pa.binary()).to_pylist(), contents.to_pylist(), strict=True)
    ]
    ends = [0, *np.cumsum(counts.fill_null(0).to_numpy(zero_copy_only=False)).tolist()]
    return [(known, pairs[begin:end]) for known, (begin, end) in zip(counts.is_valid().to_pylist(), pairwise(ends), strict=True)]


def in_order(found: Any) -> list[int]:
    """The numbers of the rows of a column of headers, in order."""
    rows = comparable(found)
    return sorted(range(len(rows)), key=rows.__getitem__)
