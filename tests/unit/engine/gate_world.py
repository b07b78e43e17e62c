"""Gates on the only broker of a cluster, and files for them."""

from __future__ import annotations

import pyarrow as pa

from headgate.broker.cluster.gates import Gate, GateWindow, ParquetExtent, data_prefix
from headgate.broker.engine.engine import Engine
from headgate.broker.log.parquet import write_extent_file

HISTORY_MS = 1_500_000_000_000


def value_of(gate_id: str, partition: int, row: int) -> bytes:
    return b"h/%s/%d/%d" % (gate_id.encode(), partition, row)


def rows_of(gate_id: str, partition: int, first: int, count: int) -> pa.Table:
    return pa.table(
        {
            "timestamp": pa.array([HISTORY_MS + row for row in range(first, first + count)], pa.timestamp("ms", tz="UTC")),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array([value_of(gate_id, partition, row) for row in range(first, first + count)], pa.binary()),
        }
    )


async def put_file(engine: Engine, gate: Gate, window: GateWindow, first: int, count: int, attempt: str = "0") -> ParquetExtent:
    """Rows [first, first + count) of a window, as a file in the store."""
    written = write_extent_file(rows_of(gate.id, window.partition, first, count))
    key = f"{data_prefix(gate.topic_id)}partition={window.partition}/{gate.id}-{attempt}-{first:03d}.parquet"
    await engine.store.put(key, memoryview(written.data))
    return ParquetExtent(
        partition=window.partition,
        base_offset=window.base_offset + first,
        end_offset=window.base_offset + first + count,
        leader_epoch=-1,
        path=key,
        size_bytes=len(written.data),
        footer_crc32c=written.footer_crc32c,
        timestamp_min_ms=written.timestamp_min_ms,
        timestamp_max_ms=written.timestamp_max_ms,
    )


async def files_for(
    engine: Engine, gate: Gate, *, missing: int = 0, per_file: int = 1000, attempt: str = "0"
) -> list[ParquetExtent]:
    """Files for every window of a gate, except its last `missing` rows."""
    files: list[ParquetExtent] = []
    for window in gate.windows:
        for first in range(0, window.rows - missing, per_file):
            files.append(await put_file(engine, gate, window, first, min(per_file, window.rows - missing - first), attempt))
    return files
