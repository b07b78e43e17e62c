"""The order of a flood's records: partition, time, the flood's own order, content. On columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from headgate.pipelines.columns import headers
from headgate.pipelines.columns.kinds import HEADERS

pc: Any = pyarrow.compute


def in_order(rows: pa.RecordBatch, ties: Sequence[str]) -> npt.NDArray[np.int64]:
    """The rows' numbers in the order of their offsets.

    Most rows differ in partition or time, so only those that are equal in both are compared by content. Nulls come first, and bytes
    are compared without a sign, as Spark does.

    Args:
        rows: columns `partition` (int32), `timestamp` (int64, microseconds), `key`, `value`, perhaps `headers`, and `ties`.
    """
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    partitions: Any = rows.column("partition").to_numpy(zero_copy_only=False)
    times: Any = rows.column("timestamp").to_numpy(zero_copy_only=False)
    low, high = int(times.min()), int(times.max())
    if (int(partitions.max()) + 1) * (high - low + 1) < 1 << 62:
        code = partitions.astype(np.int64) * (high - low + 1) + (times - low)
        order: Any = np.argsort(code)
        code = code[order]
        same = code[1:] == code[:-1]
    else:
        order = np.lexsort((times, partitions))
        same = (np.diff(partitions[order]) == 0) & (np.diff(times[order]) == 0)
    if same.any():
        _order_ties(rows, ties, order, same)
    found: npt.NDArray[np.int64] = order
    return found


def _order_ties(rows: pa.RecordBatch, ties: Sequence[str], order: npt.NDArray[Any], same: npt.NDArray[Any]) -> None:
    """Order the rows that are equal in partition and time, in place. `same`: a row equals the one behind it."""
    begins = np.concatenate(([True], ~same))
    tied = np.flatnonzero(~begins | np.concatenate((same, [False])))
    names = [*ties, "key", "value"]
    some: Any = pa.Table.from_batches([rows.select(names).take(pa.array(order[tied]))])
    some = some.append_column("_group", pa.array(np.cumsum(begins)[tied]))
    by = [("_group", "ascending")]
    for name in names:
        if some.column(name).null_count:
            # Arrow's releases differ in how they are told to put nulls first.
            some = some.append_column(f"_has_{name}", some.column(name).is_valid())
            by.append((f"_has_{name}", "ascending"))
        by.append((name, "ascending"))
    found: Any = pc.sort_indices(some, sort_keys=by).to_numpy()
    order[tied] = order[tied][found]
    if HEADERS in rows.schema.names:
        _order_by_headers(rows, order, tied, some.select(["_group", *names]).take(found))


def _order_by_headers(rows: pa.RecordBatch, order: npt.NDArray[Any], tied: npt.NDArray[Any], some: Any) -> None:
    """Order the rows that differ in headers only, in place. `some`: what the rows at `tied` are ordered by, in order."""
    same: Any = np.ones(max(len(tied) - 1, 0), np.bool_)
    for column in some.columns:
        before, after = column.slice(0, len(same)), column.slice(1)
        equal = pc.or_(pc.equal(before, after).fill_null(False), pc.and_(before.is_null(), after.is_null()))
        same &= equal.to_numpy()
    begins = np.flatnonzero(np.concatenate(([True], ~same)))
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(tied)], strict=True):
        if end - begin > 1:
            alike = order[tied[begin:end]]
            order[tied[begin:end]] = alike[headers.in_order(rows.column(HEADERS).take(pa.array(alike)))]


def place_of(rows: pa.RecordBatch, ties: Sequence[str], row: int) -> tuple[Any, ...]:
    """The place of one row in the order of `in_order`, which compares with the places of other batches' rows."""
    names = ("partition", "timestamp", *ties, "key", "value")
    values = (_comparable(rows.column(name).slice(row, 1)) for name in names)
    place = tuple((value is not None, value) for value in values)
    if HEADERS not in rows.schema.names:
        return place
    return (*place, headers.comparable(rows.column(HEADERS).slice(row, 1))[0])


def _comparable(value: Any) -> Any:
    """The value of an array of one row. Python's own times do not have all years."""
    if pa.types.is_temporal(value.type):
        value = value.cast(pa.int32() if value.type == pa.date32() else pa.int64())
    return value[0].as_py()
