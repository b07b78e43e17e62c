"""Counting records: the same function for what Spark gives to the files and for what a client reads from the topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.certificate import Tally

if TYPE_CHECKING:
    import pyarrow as pa


def tally(rows: pa.RecordBatch) -> Tally:
    """The records of one batch: how many, how large, and their order-independent sum.

    Args:
        rows: with the columns `timestamp`, `key`, `value` and perhaps `headers`.
    """
    from broker.log.columns import checksum

    return Tally(rows=rows.num_rows, data_bytes=data_bytes(rows), checksum=checksum(rows))


def data_bytes(rows: pa.RecordBatch) -> int:
    """Bytes of keys, values and headers."""
    import pyarrow.compute as pc

    names = set(rows.schema.names)
    size = sum(pc.sum(pc.binary_length(rows.column(name))).as_py() or 0 for name in ("key", "value"))
    if "headers" in names:
        pairs = rows.column("headers").flatten()
        for field in ("key", "value"):
            size += pc.sum(pc.binary_length(pairs.field(field))).as_py() or 0
    return int(size)
