"""History for tests: rows that differ from live records, as files for a gate."""

from __future__ import annotations

import zlib

import pyarrow as pa

from headgate.broker.client import FileRef, Gate, GateWindow
from headgate.broker.client.upload import Uploader
from tests.support.history import payload

FIRST_MS = 1_500_000_000_000
"""The time of the first row of a window; each row is a millisecond later."""


def value_of(gate_id: str, partition: int, row: int) -> bytes:
    """The value of a row, in the format of `history.py`. Its writer number is at least 1000; those of live writers are smaller."""
    return payload(1000 + zlib.crc32(gate_id.encode()) % 60_000, partition, row)


def rows_of(gate_id: str, partition: int, first: int, count: int) -> pa.Table:
    """Rows [first, first + count) of a window, without offsets."""
    return pa.table(
        {
            "timestamp": pa.array([FIRST_MS + row for row in range(first, first + count)], pa.timestamp("ms", tz="UTC")),
            "key": pa.array([f"k{row % 7}".encode() if row % 5 else None for row in range(first, first + count)], pa.binary()),
            "value": pa.array([value_of(gate_id, partition, row) for row in range(first, first + count)], pa.binary()),
        }
    )


def key_of(gate: Gate, partition: int, number: int, attempt: str = "0") -> str:
    return f"{gate.prefix}partition={partition}/{gate.id}-{attempt}-{number:03d}.parquet"


def upload_window(
    uploader: Uploader, gate: Gate, window: GateWindow, *, files: int = 1, attempt: str = "0", missing: int = 0
) -> list[FileRef]:
    """Files that fill a window except its last `missing` rows."""
    total = max(0, window.end_offset - window.base_offset - missing)
    refs: list[FileRef] = []
    first = 0
    for number in range(files):
        count = total // files + (number < total % files)
        if count:
            rows = rows_of(gate.id, window.partition, first, count)
            refs.append(
                uploader.write(key_of(gate, window.partition, number, attempt), rows, window.partition, window.base_offset + first)
            )
        first += count
    return refs


def upload(gate: Gate, *, store_url: str | None = None, files: int = 1, attempt: str = "0", missing: int = 0) -> list[FileRef]:
    """Files that fill a whole gate."""
    with Uploader(store_url or gate.store_url) as uploader:
        return [
            ref
            for window in gate.windows
            for ref in upload_window(uploader, gate, window, files=files, attempt=attempt, missing=missing)
        ]


def expected(gate: Gate, *, missing: int = 0) -> dict[int, list[tuple[int, bytes]]]:
    """(offset, value) of every row of a filled gate, by partition."""
    return {
        window.partition: [
            (offset, value_of(gate.id, window.partition, offset - window.base_offset))
            for offset in range(window.base_offset, window.end_offset - missing)
        ]
        for window in gate.windows
    }
