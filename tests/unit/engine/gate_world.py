"""Gates on one broker without a cluster: the leader's part of gates, over a single engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from headgate.broker.cluster.gates import Gate, GateWindow, ParquetExtent, data_prefix
from headgate.broker.cluster.manifest import Edit, Manifest
from headgate.broker.control.leader_gates import LeaderGates
from headgate.broker.engine.catalog import LocalCatalog
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.topics import Held
from headgate.broker.log.parquet import write_extent_file
from headgate.broker.runtime.clock import Clock

HISTORY_MS = 1_500_000_000_000


class Alone:
    """`control.leader_gates.GateLeader` of a broker that leads everything."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def over(self) -> bool:
        # A real broker that failed ends. Here it would run on, and by a clock that stands still a gate would be retried for ever.
        return self.engine.failed is not None

    @property
    def clock(self) -> Clock:
        return self.engine.clock

    @property
    def manifest(self) -> Manifest:
        return self.engine.manifest

    async def commit_made(self, make: Callable[[Manifest], Sequence[Edit]]) -> None:
        catalog = self.engine._life.catalog
        assert isinstance(catalog, LocalCatalog)
        await catalog.commit_made(make)

    async def hold(self, incarnation_id: str, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int]) -> list[Held]:
        return self.engine.hold(topic_id, gate_id, rows, self.manifest.term_epoch)

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        self.engine.drop_holds(topic_id, gate_id)


def gates_of(engine: Engine) -> LeaderGates:
    return LeaderGates(Alone(engine), engine)


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
