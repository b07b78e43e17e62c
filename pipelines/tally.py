"""Counting records: one function for the rows that Spark writes to files and for the records that a client reads from the topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute

from headgate.broker.log.history_columns import checksum
from headgate.pipelines.certificate import Tally

if TYPE_CHECKING:
    import pyarrow as pa


def tally(rows: pa.RecordBatch) -> Tally:
    """The number of a batch's records, their size, and their order-independent sum.

    Args:
        rows: with the columns `timestamp`, `key`, `value` and perhaps `headers`.
    """
    return Tally(rows=rows.num_rows, data_bytes=data_bytes(rows), checksum=checksum(rows))


def data_bytes(rows: pa.RecordBatch) -> int:
    """Bytes of keys, values and headers."""
    pc: Any = pyarrow.compute
    names = set(rows.schema.names)
    size = sum(pc.sum(pc.binary_length(rows.column(name))).as_py() or 0 for name in ("key", "value"))
    if "headers" in names:
        pairs = pc.list_flatten(rows.column("headers"))
        for field in ("key", "value"):
            size += pc.sum(pc.binary_length(pc.struct_field(pairs, field))).as_py() or 0
    return int(size)
