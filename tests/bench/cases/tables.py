"""The cost of planning a query and loading a table, against the number of files of the topic.

One engine alone; a topic whose live records are in 10, 1,000 or 100,000 folded files (references only, the files are not there).
Measured, in turn for all three: a query's plan for the records of one file (`Gates.Layout` with the range that a filter leaves: the
leader's answer as bytes, parsed, and the pieces), the same for a span of time in all partitions, and PyIceberg's load of the
topic's table with its plan of a span of time.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.harness import Bench, Case
from tests.bench.report import Goal, Row

FILES = (10, 1_000, 100_000)
PARTITIONS = 8
RECORDS = 1_000
"""Records of one file; one each second."""
FLAT = 2.0
T0 = 1_700_000_000_000


class Topic:
    """A topic with a given number of folded files."""

    def __init__(self, directory: Path, files: int) -> None:
        self.directory, self.files = directory, files
        self.seconds: dict[str, list[float]] = {}
        self._each = max(files // PARTITIONS, 1)

    async def open(self) -> None:
        from headgate.broker.runtime.clock import Clock
        from headgate.broker.runtime.config import Settings
        from headgate.broker.store.memory import MemoryStore
        from tests.support import nodes

        self._node = nodes.make(Settings(), MemoryStore(), Clock(), _fail)
        await self._node.start()
        engine = self._node.engine
        topic = await engine.create_topic("t", PARTITIONS, {})
        assert topic is not None
        self._extents = [self._extent(topic.id, partition, at) for partition in range(PARTITIONS) for at in range(self._each)]
        for partition in range(PARTITIONS):
            engine.manifest.files.add(topic.id, partition, (one for one in self._extents if one.partition == partition))
        self._manifest = engine.manifest
        self._make_table()

    @staticmethod
    def _extent(topic_id: uuid.UUID, partition: int, number: int) -> Any:
        from headgate.broker.cluster.gates import ParquetExtent

        first, end = number * RECORDS, (number + 1) * RECORDS
        path = f"topics/{topic_id.hex}/data/partition={partition}/offset={first}.parquet"
        times = T0 + first * 1000, T0 + (end - 1) * 1000
        return ParquetExtent(partition, first, end, 1, path, 64 << 20, number, *times, records=RECORDS)

    def _make_table(self) -> None:
        from headgate.broker.wire.iceberg.table import DataFile, Table

        (self.directory / "manifests").mkdir(parents=True)
        (self.directory / "metadata").mkdir()
        files = [
            DataFile(
                path=f"file://{self.directory}/{one.path}", partition=one.partition, first_offset=one.base_offset,
                last_offset=one.end_offset - 1, timestamp_min_ms=one.timestamp_min_ms, timestamp_max_ms=one.timestamp_max_ms,
                rows=one.rows, size_bytes=one.size_bytes,
            )
            for one in self._extents
        ]  # fmt: skip
        # A table grows: versions of 500 files each.
        self._table: Any = Table(id=uuid.uuid4(), location=f"file://{self.directory}")
        for at in range(0, len(files), 500):
            written = self._table.change(files[at : at + 500], set(), {}, T0)
            for name, data in written.objects.items():
                (self.directory / "manifests" / name).write_bytes(data)
            self._table = written.table
        self._metadata = self.directory / "metadata" / "v.metadata.json"
        self._metadata.write_bytes(written.metadata)

    def measure(self) -> None:
        middle = self._each // 2
        first = middle * RECORDS
        self._timed("plan of one file's records", lambda: self._plan(first, first + RECORDS - 1))
        start = T0 + first * 1000
        self._timed("plan of a span of time", lambda: self._plan_time(start, start + RECORDS * 1000 - 1))
        self._timed("load and plan of a span of time by PyIceberg", lambda: self._iceberg(start))

    def _timed(self, name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)

    def _plan(self, first: int, last: int) -> None:
        import pyarrow.dataset as ds

        offset: Any = ds.field("offset")
        self._planned((ds.field("partition") == 3) & (offset >= first) & (offset <= last), 1)

    def _plan_time(self, first_ms: int, last_ms: int) -> None:
        import pyarrow as pa
        import pyarrow.dataset as ds

        at: Any = ds.field("timestamp")
        low, high = (pa.scalar(ms * 1000, pa.timestamp("us", "UTC")) for ms in (first_ms, last_ms))
        self._planned((at >= low) & (at <= high), PARTITIONS)

    def _planned(self, filter: Any, files: int) -> None:
        from headgate.broker.client.gate_admin import layout_of, layout_request
        from headgate.broker.runtime.steps import finish
        from headgate.broker.server.grpc.layout import layout
        from headgate.broker.wire.grpc.headgate.v1 import gates_pb2
        from headgate.pipelines.offsets import Narrowed
        from headgate.pipelines.reads import pieces
        from headgate.pipelines.sql.filters import narrowed

        end = self._each * RECORDS
        wanted = narrowed(filter, range(PARTITIONS), end)
        assert wanted is not None
        answer = finish(layout(self._manifest, "/store", layout_request("t", wanted))).SerializeToString()
        found = layout_of("t", gates_pb2.LayoutResponse.FromString(answer), dict.fromkeys(range(PARTITIONS), end))
        last = wanted.last_offset if wanted.last_offset is not None else end
        planned = pieces(found, dict.fromkeys(range(PARTITIONS), (0, end)), Narrowed(first=wanted.first_offset, last=last))
        assert len([one for one in planned if one.file is not None]) == files, len(planned)

    def _iceberg(self, start_ms: int) -> None:
        from pyiceberg.table import StaticTable

        first, end = (datetime.fromtimestamp((start_ms + add) / 1000, UTC).isoformat() for add in (0, RECORDS * 1000))
        table = StaticTable.from_metadata(str(self._metadata))
        rows = table.scan(row_filter=f"partition = 3 and timestamp >= '{first}' and timestamp < '{end}'")
        assert len(list(rows.plan_files())) == 1

    async def close(self) -> None:
        await self._node.engine.close()


def _fail(error: BaseException) -> None:
    raise error


async def _measure(directory: Path, rounds: int) -> list[Topic]:
    topics = [Topic(directory / str(files), files) for files in FILES]
    for topic in topics:
        await topic.open()
    for _ in range(rounds + 2):
        for topic in topics:
            topic.measure()
    for topic in topics:
        await topic.close()
        for seconds in topic.seconds.values():
            del seconds[:2]  # the first ones import libraries
    return topics


def _run(bench: Bench) -> Iterable[Row]:
    topics = asyncio.run(_measure(bench.directory / "tables", 5 if bench.quick else 15))
    for name in topics[0].seconds:
        medians = [statistics.median(topic.seconds[name]) * 1000 for topic in topics]
        yield Row(
            group="tables",
            case=f"{name}, with {', '.join(f'{topic.files:,}' for topic in topics)} files",
            measured=f"{', '.join(f'{one:.1f}' for one in medians)} ms",
            ratio=max(medians) / min(medians),
            goal=FLAT,
            side=Goal.AT_MOST,
            unit="x",
            note="slowest median of quickest",
            details={"medians_ms": [round(one, 2) for one in medians]},
        )


CASES = [Case("tables", "cost of plans and of tables", _run)]
