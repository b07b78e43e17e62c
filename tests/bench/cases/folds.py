"""Folds of live records to Parquet: their CPU, reads of the files against reads of chunks, and the cost of a commit.

A broker receives 1 KB records of random bytes, and its folding process makes files of them, alone on the machine otherwise.
librdkafka then reads the files, and the same records from the chunks of a second broker that never folds. A commit is what a fold
costs the loops of the leader and the lead: the edit's check, the manifest, the served log, and the table's next version. The topic
has 10, 1,000 or 100,000 folded files already.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from headgate.broker.cluster.admission import check
from headgate.broker.cluster.folded_files import ChunkPart, FoldToFiles
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.manifest import AddChunks, Chunk, CreateTopic, Extent, Incarnation, Manifest, OpenIncarnation, Topic
from headgate.broker.cluster.ranges import Ranges
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.engine.partition.log import AnyExtent, AnyRef, ChunkRef, FileRef, PartitionLog
from headgate.broker.log.buffers import BufferPool
from headgate.broker.log.tail import TailMemory
from headgate.broker.wire.iceberg.table import DataFile, Table
from tests.bench import brokers
from tests.bench.brokers import Broker
from tests.bench.cases.cold import leave_cache
from tests.bench.clients import costed
from tests.bench.harness import LOCAL_NEVER, Bench, Case, remove_tree
from tests.bench.native import BenchError, cpu_seconds
from tests.bench.report import Goal, Row

TOPIC = "bench"
PARTITIONS = 4
VALUE_BYTES = 1000
BATCH_BYTES = 64 << 10
CORE_SHARE = 0.25
"""Largest share of a core that folding may take to keep up with RATE."""
RATE = 50e6
"""Bytes per second of one busy broker."""
READ_SHARE = 0.6
EXTENTS = (10, 1_000, 100_000)
FLAT = 2.0
COMMITS = 15
ROWS = 10
KINDS = {"files": {"offline.after.bytes": "0"}, "chunks": {"offline.after.bytes": "-1", "offline.after.ms": "-1"}}
"""Topic settings by where the records are read."""
TAKEN_S = 120.0
"""Longest wait for the files."""
SETTINGS = {
    "tail.bytes": str(1 << 20),
    "offline.check.interval.ms": "200",
    "wal.checkpoint.interval.ms": "200",
    "wal.chunk.bytes": str(32 << 20),
    "inflight.bytes.max": str(512 << 20),
}


def _folder(broker: Broker) -> int | None:
    """The pid of a broker's folding process."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == broker.pid and b"offline_process" in (entry / "cmdline").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    return None


def _fill(broker: Broker, records: int, config: dict[str, str]) -> None:
    broker.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1", **config})
    costed(broker.pid, "rdkafka", "fill", broker.kafka_port, TOPIC, VALUE_BYTES, BATCH_BYTES, records, PARTITIONS)


def _fold(broker: Broker, store: Path, records: int) -> float:
    """Fold everything. Returns the CPU-seconds of the folding process."""
    deadline = time.monotonic() + TAKEN_S
    spent, last_files = 0.0, -1
    while True:
        pid = _folder(broker)
        if pid is not None:
            with suppress(OSError):  # it has ended
                spent = max(spent, cpu_seconds(pid))
        files = sum(1 for _ in store.glob("topics/*/data/*/offset=*.parquet"))
        if files and pid is None and files == last_files:
            return spent
        last_files = files
        if time.monotonic() > deadline:
            raise BenchError(f"the records do not become files. files=`{files}`")
        time.sleep(0.3)


def _run(bench: Bench) -> Iterable[Row]:
    records = bench.pick(100_000, 400_000)
    size = records * VALUE_BYTES
    directory = bench.fresh_directory("folds")
    rates: dict[str, float] = {}
    try:
        for name, config in KINDS.items():
            store = directory / name
            with brokers.broker(bench.directory, str(store), settings={"wal.fsync": LOCAL_NEVER, **SETTINGS}) as broker:
                _fill(broker, records, config)
                if name == "files":
                    spent = _fold(broker, store, records)
                    per_gb = spent / size * 1e9
                    yield Row(
                        group="folds", case=FOLDING, ratio=per_gb * RATE / 1e9, goal=CORE_SHARE, side=Goal.AT_MOST, unit="cores",
                        measured=f"{per_gb:.2f} s/GB", note=f"to keep up with {RATE / 1e6:.0f} MB/s",
                    )  # fmt: skip
                leave_cache(store)
                bench.wait_quiet()
                answer, _ = costed(broker.pid, "rdkafka", "consume", broker.kafka_port, TOPIC, records, PARTITIONS)
                rates[name] = answer["bytes"] / answer["seconds"]
        yield Row(
            group="folds", case=READING, ratio=rates["files"] / rates["chunks"], goal=READ_SHARE, unit="of chunks",
            measured=f"{rates['files'] / 1e6:.0f} MB/s", ceiling=f"chunks {rates['chunks'] / 1e6:.0f} MB/s",
        )  # fmt: skip
    finally:
        remove_tree(directory)


class Commits:
    """A topic with a number of folded files, as the leader and the lead know it: manifest, served log, table."""

    def __init__(self, extents: int) -> None:
        self.topic = Topic(id=uuid.uuid4(), name=TOPIC, partitions=1)
        self._manifest = Manifest()
        self._files = [self._file(number) for number in range(extents)]
        chunks = [self._chunk(extents, number) for number in range(COMMITS)]
        incarnation = Incarnation(id="00" * 16, broker_id=1, leader_epoch=1, opened_ms=0)
        self._manifest.apply([CreateTopic(self.topic), OpenIncarnation(incarnation), AddChunks(incarnation.id, chunks)])
        self._manifest.files.add(self.topic.id, 0, self._files)
        self._chunks, self._incarnation_id = chunks, incarnation.id
        end = (extents + COMMITS) * ROWS
        self._log = PartitionLog(self.topic, 0, TopicConfig.parse({}), 0, 1, TailMemory(BufferPool(0), 0), end)
        rows: list[tuple[AnyExtent, AnyRef]] = [(one, FileRef("", one.appended_ms)) for one in self._files]
        rows += [(chunk.extents[0], ChunkRef(incarnation.id, chunk)) for chunk in chunks]
        self._log.restore(rows, [], [], 0)
        self._offsets = Ranges()
        for one in self._files:
            self._offsets.add(0, one.base_offset, one.end_offset)
        self._table = (
            Table(id=self.topic.id, location="file:///t").change([_data_file(one) for one in self._files], set(), {}, 1).table
        )

    def commit(self, number: int) -> float:
        """Commit a fold of one more chunk. Returns the seconds."""
        chunk = self._chunks[number]
        extent = chunk.extents[0]
        file = self._file(extent.base_offset // ROWS)
        part = ChunkPart(self._incarnation_id, chunk.number, extent.base_offset, extent.end_offset)
        edit = FoldToFiles(self.topic.id, 0, [file], [part])
        began = time.perf_counter()
        check(self._manifest, edit, self._incarnation_id)
        self._manifest.apply([edit])
        self._log.folded_to_files(extent.base_offset, extent.end_offset, [file])
        self._offsets.add(0, file.base_offset, file.end_offset)
        properties = {"offsets": json.dumps(self._offsets.all())}
        self._table = self._table.change([_data_file(file)], set(), properties, 1).table
        return time.perf_counter() - began

    def _file(self, number: int) -> ParquetExtent:
        path = f"topics/{self.topic.id.hex}/data/partition=0/offset={number * ROWS:020d}.parquet"
        first, end = number * ROWS, number * ROWS + ROWS
        return ParquetExtent(0, first, end, 1, path, 64 << 20, 0, 1_600_000_000_000, 1_600_000_001_000, ROWS, 1_600_000_001_000)

    def _chunk(self, extents: int, number: int) -> Chunk:
        base = (extents + number) * ROWS
        extent = Extent(self.topic.id, 0, base, base + ROWS, 1, 1_600_000_001_000, 1 << 20, 0, 24)
        return Chunk(number=number, last_number=number, size_bytes=1 << 20, appended_ms=0, index_inline=True, extents=[extent])


def _data_file(one: ParquetExtent) -> DataFile:
    return DataFile(
        path=f"file:///t/{one.path}", partition=0, first_offset=one.base_offset, last_offset=one.end_offset - 1,
        timestamp_min_ms=one.timestamp_min_ms, timestamp_max_ms=one.timestamp_max_ms, rows=one.rows, size_bytes=one.size_bytes,
    )  # fmt: skip


def _commits(bench: Bench) -> Iterable[Row]:
    topics = [Commits(extents) for extents in EXTENTS]
    seconds = [[one.commit(number) for one in topics] for number in range(COMMITS)]
    medians = [statistics.median(column) for column in zip(*seconds, strict=True)]
    yield Row(
        group="folds", case=COMMIT, ratio=medians[-1] / medians[0], goal=FLAT, side=Goal.AT_MOST, unit="x",
        measured=f"{medians[-1] * 1e3:.2f} ms", ceiling=f"{medians[0] * 1e3:.2f} ms with {EXTENTS[0]}",
    )  # fmt: skip


FOLDING, READING = "CPU of folding 1 KB records", "librdkafka reads files"
COMMIT = f"committing a fold into {EXTENTS[-1]:,} extents"
CASES = [
    Case("folds", FOLDING, _run, needs_compiler=False, goal=CORE_SHARE, side=Goal.AT_MOST, unit="cores"),
    Case("folds", COMMIT, _commits, goal=FLAT, side=Goal.AT_MOST, unit="x"),
]
