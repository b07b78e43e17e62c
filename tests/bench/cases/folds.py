"""Folds of live records to Parquet: their CPU, reads of the files, their size, live producers beside them, the cost of a commit.

A broker receives records of 1 KB that look like JSON. When all are there, its folding process makes files of them, alone on the
machine otherwise, as of records that have become old. librdkafka then reads the files, and the same records from the chunks of a
second broker that never folds. A query of the files runs in DuckDB through the broker's catalog, in `headgate.sql`, and in DuckDB
alone. "Beside folds": a broker receives 50 MB/s, with folds from 16 MiB on and without, and has one core together with its folding
process. A commit is what a fold costs the loops of the leader and the lead: the edit's check, the manifest, the served log, and the
table's next version. The topic has 10, 1,000 or 100,000 folded files already.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headgate.broker.cluster.admission import check
from headgate.broker.cluster.edits.files import FoldToFiles
from headgate.broker.cluster.edits.incarnations import AddChunks, OpenIncarnation
from headgate.broker.cluster.edits.topics import CreateTopic
from headgate.broker.cluster.folded_files import ChunkPart
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk, Extent, Incarnation, Topic
from headgate.broker.cluster.ranges import Ranges
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.engine.partition.extents import AnyExtent, AnyRef, ChunkRef, FileRef
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.log.buffers import BufferPool
from headgate.broker.log.tail import TailMemory
from headgate.broker.wire.iceberg.table import DataFile, Table
from tests.bench import brokers
from tests.bench.brokers import Broker
from tests.bench.cases.cold import leave_cache
from tests.bench.clients import costed, live
from tests.bench.harness import LOCAL_NEVER, Bench, Case, remove_tree
from tests.bench.native import BenchError, cpu_seconds
from tests.bench.report import Goal, Row, paired
from tests.support.lake import duckdb_with_iceberg

TOPIC = "bench"
PARTITIONS = 4
VALUE_BYTES = 1000
BATCH_BYTES = 64 << 10
CORE_SHARE = 0.25
"""Largest share of a core that folding may take to keep up with RATE."""
RATE = 50e6
"""Bytes per second of one busy broker."""
FILES, CHUNKS = "topics/*/data/*/offset=*.parquet", "wal/*/*"
"""Objects of a store with folded records, and with those of the WAL."""
READ_SHARE = 0.6
EXTENTS = (10, 1_000, 100_000)
FLAT = 2.0
COMMITS = 15
ROWS = 10
NEVER = {"offline.after.bytes": "-1", "offline.after.ms": "-1"}
SQL = 'SELECT count(*), sum(octet_length(value)), max(timestamp), max("offset") FROM {}'
SQL_SHARE = 0.9
JSON_BYTES, JSON_VALUES = 200, 200_000
"""Size of small records, and how many different ones there are: more than a codec remembers."""
LIVE_S = 8
LIVE_GOAL = 1.3
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
            if parent == broker.pid and b"file_fold_process" in (entry / "cmdline").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    return None


def _folding_s(broker: Broker) -> float:
    """CPU-seconds of the folding processes so far: of those that have ended, and of the present one."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    folder = _folder(broker)
    if folder is not None:
        with suppress(OSError):  # it has ended
            return ended + cpu_seconds(folder)
    return ended


def _fill(broker: Broker, value_bytes: int, records: int, *more: int) -> None:
    broker.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1", **NEVER})
    costed(broker.pid, "rdkafka", "fill", broker.kafka_port, TOPIC, value_bytes, BATCH_BYTES, records, PARTITIONS, *more)


def _make_old(broker: Broker) -> None:
    """From now on every record is folded."""
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    for name in NEVER:
        change = ConfigEntry(name, "0", incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(change)
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.kafka_port}"})
    admin.incremental_alter_configs([resource])[resource].result(30)


def _bytes(store: Path, pattern: str) -> int:
    return sum(one.stat().st_size for one in store.glob(pattern))


def _fold(broker: Broker, store: Path) -> float:
    """Fold everything. Returns the CPU-seconds of the folding process."""
    deadline = time.monotonic() + TAKEN_S
    spent, last_files = 0.0, -1
    while True:
        pid = _folder(broker)
        if pid is not None:
            with suppress(OSError):  # it has ended
                spent = max(spent, cpu_seconds(pid))
        files = sum(1 for _ in store.glob(FILES))
        if files and pid is None and files == last_files:
            return spent
        last_files = files
        if time.monotonic() > deadline:
            raise BenchError(f"the records do not become files. files=`{files}`")
        time.sleep(0.3)


def _run(bench: Bench) -> Iterable[Row]:
    records = bench.pick(100_000, 2_000_000)
    size = records * VALUE_BYTES
    directory = bench.fresh_directory("folds")
    rates: dict[str, float] = {}
    try:
        for name in ("files", "chunks"):
            store = directory / name
            with brokers.broker(bench.directory, str(store), settings={"wal.fsync": LOCAL_NEVER, **SETTINGS}) as broker:
                _fill(broker, VALUE_BYTES, records)
                if name == "files":
                    _make_old(broker)
                    per_gb = _fold(broker, store) / size * 1e9
                    yield Row(
                        group="folds", case=FOLDING, ratio=per_gb * RATE / 1e9, goal=CORE_SHARE, side=Goal.AT_MOST, unit="cores",
                        measured=f"{per_gb:.2f} s/GB", note=f"to keep up with {RATE / 1e6:.0f} MB/s",
                    )  # fmt: skip
                    yield from _queries(broker, store)
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


def _queries(broker: Broker, store: Path) -> Iterable[Row]:
    """A query of the topic's table in the broker's catalog, and by `headgate.sql`, against one of the same files, in turn."""
    import headgate

    files = [str(one) for one in store.glob(FILES)]
    table = f"http://127.0.0.1:{broker.http_port}/iceberg"
    seconds: dict[str, list[float]] = {"files": [], TABLE: [], QUERY: []}
    with duckdb_with_iceberg() as duck:
        duck.execute(f"ATTACH 'headgate' AS hg (TYPE iceberg, ENDPOINT '{table}', AUTHORIZATION_TYPE 'none')")
        for _ in range(5):
            found = {
                "files": lambda: duck.execute(SQL.format("read_parquet(?)"), [files]).fetchall(),
                TABLE: lambda: duck.execute(SQL.format(f"hg.headgate.{TOPIC}")).fetchall(),
                QUERY: lambda: headgate.sql(SQL.format(TOPIC), cluster=f"127.0.0.1:{broker.grpc_port}").read_all().to_pylist(),
            }
            answers = []
            for name, ask in found.items():
                began = time.perf_counter()
                (answer,) = ask()
                seconds[name].append(time.perf_counter() - began)
                answers.append(list(answer.values() if isinstance(answer, dict) else answer)[:2])
            if any(one != answers[0] for one in answers):
                raise BenchError(f"the answers differ. answers=`{answers}`")
    for name in (TABLE, QUERY):
        ratio = paired(seconds["files"], seconds[name])
        yield Row(
            group="folds", case=name, ratio=ratio.median, low=ratio.low, high=ratio.high, goal=SQL_SHARE if name == TABLE else None,
            unit="of DuckDB alone", measured=f"{statistics.median(seconds[name]):.2f} s",
            ceiling=f"{statistics.median(seconds['files']):.2f} s",
        )  # fmt: skip


def _store(bench: Bench) -> Iterable[Row]:
    """The bytes of small records in chunks and in files, and what is left of the chunks."""
    records = bench.pick(500_000, 10_000_000)
    store = bench.fresh_directory("folds")
    try:
        settings = {"wal.fsync": LOCAL_NEVER, "gate.file.grace.ms": "1000", **SETTINGS}
        with brokers.broker(bench.directory, str(store), settings=settings) as broker:
            _fill(broker, JSON_BYTES, records, JSON_VALUES)
            before = _bytes(store, CHUNKS)
            _make_old(broker)
            _fold(broker, store)
            deadline = time.monotonic() + TAKEN_S
            while (left := _bytes(store, CHUNKS)) > before / 20 and time.monotonic() < deadline:
                time.sleep(0.5)
            after = _bytes(store, FILES)
    finally:
        remove_tree(store)
    yield Row(
        group="folds", case=BYTES, measured=f"{after / 1e6:,.0f} MB of files", ceiling=f"{before / 1e6:,.0f} MB of chunks",
        ratio=after / before, unit="of chunks", note=f"{records:,} records; {left / 1e6:,.0f} MB of chunks are left",
    )  # fmt: skip


def _beside(bench: Bench) -> Iterable[Row]:
    """The p99 of a live producer while the broker receives RATE, with folds and without, in turn."""
    p99: dict[str, list[float]] = {"16777216": [], "-1": []}
    shares, left = [], []
    for _ in range(bench.pick(1, 3)):
        for after, into in p99.items():
            store = bench.fresh_directory("folds")
            try:
                with brokers.broker(bench.directory, str(store), settings=SETTINGS) as broker:
                    broker.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1", **NEVER, "offline.after.bytes": after})
                    broker.create_topic("live", 1)
                    rate = int(RATE / VALUE_BYTES)
                    fill = [sys.executable, "-m", "tests.bench.rdkafka", "fill", str(broker.kafka_port), TOPIC, str(VALUE_BYTES)]
                    fill += [str(BATCH_BYTES), str(rate * (LIVE_S + 6)), str(PARTITIONS), "", str(rate)]
                    with subprocess.Popen(fill, stdout=subprocess.DEVNULL, cwd=brokers.ROOT) as filling:
                        with live(broker.kafka_port, "live", None) as producer:
                            time.sleep(3)
                            before = _folding_s(broker)
                            producer.begin()
                            time.sleep(LIVE_S)
                            if after != "-1":
                                shares.append((_folding_s(broker) - before) / LIVE_S)
                                left.append(_bytes(store, CHUNKS))
                            into.append(producer.p99_ms())
                        filling.wait(60)
            finally:
                remove_tree(store)
    ratio = paired(*p99.values())
    share = f"folding takes {statistics.median(shares):.2f} cores"
    yield Row(
        group="folds", case=BESIDE, ratio=ratio.median, low=ratio.low, high=ratio.high, goal=LIVE_GOAL, side=Goal.AT_MOST, unit="x",
        measured=f"{statistics.median(p99['16777216']):.1f} ms", ceiling=f"{statistics.median(p99['-1']):.1f} ms",
        note=f"{share}; {max(left, default=0) / 1e6:,.0f} MB of chunks wait",
    )  # fmt: skip


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
        self._log.folded(extent.base_offset, extent.end_offset, [file], [FileRef("", file.appended_ms)])
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


FOLDING, READING, QUERY = "CPU of folding 1 KB records", "librdkafka reads files", "headgate.sql reads files"
TABLE = "DuckDB reads files through the catalog"
BYTES, BESIDE = "store bytes of small JSON records", "live p99 beside folds of 50 MB/s"
COMMIT = f"committing a fold into {EXTENTS[-1]:,} extents"
CASES = [
    Case("folds", FOLDING, _run, needs_compiler=False, goal=CORE_SHARE, side=Goal.AT_MOST, unit="cores"),
    Case("folds", BYTES, _store, needs_compiler=False),
    Case("folds", BESIDE, _beside, needs_compiler=False, goal=LIVE_GOAL, side=Goal.AT_MOST, unit="x"),
    Case("folds", COMMIT, _commits, goal=FLAT, side=Goal.AT_MOST, unit="x"),
]
