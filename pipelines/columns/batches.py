"""Batches of rows, joined and divided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches as one."""
    arrow: Any = pa  # the stubs do not know concat_batches
    found: pa.RecordBatch = batches[0] if len(batches) == 1 else arrow.concat_batches(batches)
    return found


def parts(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows in parts of at most `bytes_max`, or of one row each. No row is copied."""
    if batch.num_rows <= 1 or batch.nbytes <= bytes_max:
        yield batch
        return
    half = batch.num_rows // 2
    yield from parts(batch.slice(0, half), bytes_max)
    yield from parts(batch.slice(half), bytes_max)
