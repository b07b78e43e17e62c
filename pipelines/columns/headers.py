"""Headers of records by columns: a map, or an array of pairs, becomes a list of (name, content) for each row. Also their order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headgate.broker.log.column_schema import whole

arrow: Any = pa
pc: Any = pyarrow.compute

NAME, CONTENT = "\0name", "\0content"
"""The columns of all pairs, for the expressions that make text of them."""


def of_column(pairs: Any) -> tuple[Any, Any, Any]:
    """(number of pairs of each row, null for a row without headers; names; contents) of a column of pairs."""
    if pa.types.is_map(pairs.type):
        fields = [("key", pairs.type.key_type), ("value", pairs.type.item_type)]
        pairs = pairs.cast(arrow.list_(arrow.struct(fields)))
    names, contents = pc.list_flatten(pairs).flatten()
    return pc.list_value_length(pairs), names, contents


def of_values(values: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The same of names and contents by turns: each row has all of them."""
    rows = next(len(value) for value in values if not isinstance(value, pa.Scalar))
    filled = [arrow.repeat(value, rows) if isinstance(value, pa.Scalar) else value for value in values]
    count = len(filled) // 2
    by_row = arrow.array(np.arange(count * rows).reshape(count, rows).T.ravel())
    names, contents = (arrow.concat_arrays([whole(header) for header in some]).take(by_row) for some in (filled[::2], filled[1::2]))
    return arrow.array(np.full(rows, count, np.int64)), names, contents


def headers(counts: Any, names: Any, contents: Any) -> Any:
    """The column of headers, of type `HEADERS_TYPE`.

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
