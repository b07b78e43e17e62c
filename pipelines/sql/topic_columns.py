"""The columns of a topic as a table, and rows of files and brokers in this form. They are those of the topic's Iceberg table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.reads import microseconds

pc: Any = pyarrow.compute

_HEADERS: Any = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
_FIELDS: list[Any] = [
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("timestamp_type", pa.int32(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", _HEADERS),
]
TABLE = pa.schema(_FIELDS)
"""`timestamp_type` is numbered as in Kafka's clients: 0 CreateTime, 1 LogAppendTime. `headers` is null for a record without any."""


def shaped(rows: pa.RecordBatch, columns: Sequence[str], partition: int, first_offset: int) -> pa.RecordBatch:
    """These columns of `TABLE`, in this order.

    Args:
        rows: some columns of a file or of a broker's answer, whose column of types is `timestampType`.
        first_offset: offset of the first row, if `rows` has no column `offset`; the others follow without a gap.

    Raises:
        InvalidError(INVALID_RECORD): a time that microseconds cannot hold.
    """
    count = rows.num_rows
    names = set(rows.schema.names)
    arrays: list[Any] = []
    for name in columns:
        field = TABLE.field(name)
        found = "timestampType" if name == "timestamp_type" and "timestampType" in names else name
        match name:
            case "partition":
                arrays.append(pa.repeat(pa.scalar(partition, field.type), count))
            case _ if found not in names:
                arrays.append(_absent(name, first_offset, count))
            case "timestamp":
                arrays.append(_times(rows.column(name)))
            case "headers":
                arrays.append(_headers(rows.column(name)))
            case _:
                column = rows.column(found)
                arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([TABLE.field(name) for name in columns]))


def _absent(name: str, first_offset: int, count: int) -> Any:
    """A column that a file need not have."""
    if name == "offset":
        return pa.array(np.arange(first_offset, first_offset + count, dtype=np.int64))
    if name == "timestamp_type":
        return pa.repeat(pa.scalar(0, pa.int32()), count)
    return pa.nulls(count, TABLE.field(name).type)


def _times(column: Any) -> Any:
    try:
        return microseconds(column)
    except pa.ArrowInvalid as error:
        raise InvalidError(Reason.INVALID_RECORD, "a record's time is out of the range of tables: leave out `timestamp`") from error


def _headers(column: Any) -> Any:
    """Headers in the table's form. Kafka does not tell no headers from an empty list of them."""
    headers = column.cast(_HEADERS)
    empty = pc.equal(pc.list_value_length(headers), 0)
    if not pc.any(empty).as_py():
        return headers
    return pc.if_else(empty, pa.scalar(None, _HEADERS), headers)
