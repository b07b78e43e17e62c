"""Folded files: live records as Parquet, with everything that consumers saw of them. No I/O.

The columns are those of a topic as an Iceberg table, with Iceberg's field ids, so that the same file serves consumers and tables.
The column `offset` decides where a record is: offsets without a record (control batches, aborted, compacted or deleted records)
have no row. Rows are sorted by offset. Times are in microseconds, because Iceberg knows no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.broker.log.batch import Buffer, split
from headgate.broker.log.column_decoder import decode_in_parts, timestamp_types
from headgate.broker.log.column_schema import ArrowArray, Columns, take_apart, whole
from headgate.broker.log.parquet import ROW_GROUP_BYTES, ExtentEncoder
from headgate.broker.log.records import iter_records
from headgate.broker.log.transactions import Ranges, without_aborted
from headgate.broker.runtime.errors import InvalidError, Reason

PART_BYTES = 16 << 20
"""Bytes of decoded batches from which a part is complete. A few MB of zstd can hold GBs of records."""
BATCH_BYTES_MAX = 64 << 20
"""Bytes of one batch's records after decompression that a fold decodes. A larger batch stays as it was sent."""
BATCH_RECORDS_MAX = 1 << 20
"""Records of one batch that a fold decodes: each costs some hundred bytes of memory meanwhile."""
TIMESTAMP_MS_MAX = 1 << 53
"""Times beyond this are not representable in microseconds."""
_REPLACEMENT = "\ufffd"
"""What decoding leaves in place of bytes that are not UTF-8."""


def _field(name: str, kind: Any, field_id: int, *, nullable: bool = False) -> Any:
    return pa.field(name, kind, nullable=nullable, metadata={"PARQUET:field_id": str(field_id)})


_HEADER = pa.struct([_field("key", pa.string(), 9), _field("value", pa.binary(), 10, nullable=True)])
_HEADERS: Any = pa.list_(_field("element", _HEADER, 8))
FOLDED_SCHEMA = pa.schema(
    [
        _field("partition", pa.int32(), 1),
        _field("offset", pa.int64(), 2),
        _field("timestamp", pa.timestamp("us", tz="UTC"), 3),
        _field("timestamp_type", pa.int32(), 4),
        _field("key", pa.binary(), 5, nullable=True),
        _field("value", pa.binary(), 6, nullable=True),
        _field("headers", _HEADERS, 7, nullable=True),
    ]
)
"""The columns of a folded file. `timestamp_type` is numbered as in Kafka's clients: 0 CreateTime, 1 LogAppendTime."""
_NUMBERS = ["partition", "offset", "timestamp", "timestamp_type"]


class FoldedEncoder(ExtentEncoder):
    """A folded file of one partition in the making. `add` takes the rows of `read_batches`."""

    def __init__(self, partition: int, *, row_group_bytes: int = ROW_GROUP_BYTES) -> None:
        self._partition = partition
        super().__init__(FOLDED_SCHEMA, row_group_bytes=row_group_bytes)

    def _layout(self) -> pa.Schema:
        return FOLDED_SCHEMA

    def _encodings(self) -> dict[str, Any]:
        return {
            "use_dictionary": ["partition", "timestamp_type"],
            "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
            "write_statistics": _NUMBERS,
        }

    def _arrays(self, times: ArrowArray, columns: Columns) -> list[ArrowArray]:
        assert columns.offsets is not None and columns.types is not None, "the rows have all columns"
        headers = columns.headers if columns.headers is not None else pa.nulls(len(columns), _HEADERS)
        return [
            pa.array(np.full(len(columns), self._partition, np.int32)),
            pa.array(columns.offsets),
            times,
            pa.array(columns.types),
            columns.key,
            columns.value,
            headers.cast(_HEADERS),
        ]


def read_batches(
    data: Buffer,
    partition: int,
    start: int,
    end: int,
    cuts: Sequence[tuple[int, int]] = (),
    aborted: Ranges | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of batches as rows of a folded file, in parts, at least one. Markers of transactions are none.

    Memory is bounded, however far the batches expand: by `PART_BYTES` and one batch of `BATCH_BYTES_MAX` and `BATCH_RECORDS_MAX`.

    Args:
        data: whole batches, back to back.
        start, end: only offsets in [start, end). cuts: offsets in these ranges are left out.
        aborted: the aborted transactions with records in the batches; their records are left out.

    Raises:
        InvalidError: CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION or MESSAGE_TOO_LARGE, as `decode_in_parts`; INVALID_RECORD for
            records that a folded file cannot hold: with a header's name that is not UTF-8, or with a time that is out of range.
            CORRUPT_MESSAGE also for a batch above the limits.
    """
    for rows in decode_in_parts(
        without_aborted(memoryview(data), aborted) if aborted else [data],
        start=start,
        end=end,
        decompressed_bytes_max=BATCH_BYTES_MAX,
        records_max=BATCH_RECORDS_MAX,
        part_bytes=PART_BYTES,
    ):
        yield _folded(rows, data, partition, start, cuts)


def _folded(rows: pa.RecordBatch, data: Buffer, partition: int, start: int, cuts: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    offsets = rows.column("offset").to_numpy()
    types = timestamp_types(data, offsets) if len(offsets) else np.zeros(0, np.int32)
    times = rows.column("timestamp").cast(pa.int64()).to_numpy()
    if len(times) and max(abs(int(times.min())), abs(int(times.max()))) > TIMESTAMP_MS_MAX:
        raise InvalidError(Reason.INVALID_RECORD, f"a time is out of range. lowest_ms=`{times.min()}` highest_ms=`{times.max()}`")
    headers: ArrowArray = rows.column("headers")
    if (
        len(headers.flatten())
        and pc.any(pc.match_substring(headers.flatten().field(0), _REPLACEMENT)).as_py()
        and _lost_names(data)
    ):
        raise InvalidError(Reason.INVALID_RECORD, "the name of a header is not UTF-8")
    folded = pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(len(offsets), partition, np.int32)),
            rows.column("offset"),
            rows.column("timestamp").cast(pa.timestamp("us", tz="UTC")),
            pa.array(types),
            rows.column("key"),
            rows.column("value"),
            headers.cast(_HEADERS),
        ],
        schema=FOLDED_SCHEMA,
    )
    return _readable(folded, start, cuts)


def read_rows(
    rows: pa.Table, partition: int, first_offset: int | None, start: int, cuts: Sequence[tuple[int, int]] = ()
) -> pa.RecordBatch:
    """Rows of a Parquet file as rows of a folded file.

    Args:
        rows: at least one, with the columns of history, or of a folded file.
        first_offset: of the first row; the others follow it without a gap. None: the column `offset` tells them.
        start: only offsets from there on. cuts: offsets in these ranges are left out.

    Raises:
        InvalidError: as `take_apart`.
    """
    columns = take_apart(rows)
    offsets = columns.offsets if first_offset is None else np.arange(first_offset, first_offset + len(columns), dtype=np.int64)
    if offsets is None:
        raise InvalidError(Reason.INVALID_RECORD, "a folded file has a column `offset`")
    kind = rows.schema.field("timestamp").type
    in_us = pa.types.is_timestamp(kind) and kind.unit == "us"
    times = whole(rows.column("timestamp")).cast(pa.int64()) if in_us else pa.array(columns.timestamps * 1000)
    headers = columns.headers if columns.headers is not None else pa.nulls(len(columns), _HEADERS)
    folded = pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(len(columns), partition, np.int32)),
            pa.array(offsets),
            times.cast(pa.timestamp("us", tz="UTC")),
            pa.array(columns.types if columns.types is not None else np.zeros(len(columns), np.int32)),
            columns.key,
            columns.value,
            headers.cast(_HEADERS),
        ],
        schema=FOLDED_SCHEMA,
    )
    return _readable(folded, start, cuts)


def _readable(rows: pa.RecordBatch, start: int, cuts: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    """The rows from an offset on that are in none of these ranges."""
    offsets = rows.column("offset").to_numpy()
    keep = offsets >= start
    for low, high in cuts:
        keep &= (offsets < low) | (offsets >= high)
    return rows if keep.all() else rows.filter(pa.array(keep))


def _lost_names(data: Buffer) -> bool:
    """True if a header's name is not UTF-8. A producer may also have sent the character that stands for such bytes."""
    batches = split(memoryview(data))
    records = (record for batch in batches for record in iter_records(batch, decompressed_bytes_max=BATCH_BYTES_MAX))
    names = (name for record in records for name, _ in record.headers)
    return any("\udc80" <= letter <= "\udcff" for name in names for letter in name)
