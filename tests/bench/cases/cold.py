"""Cold reads of records that were produced live: the broker's cost, of the cost of the same reads from memory, and its requests.

Batches of eight partitions are written in turn, so that a partition's batches lie apart in the chunks. A broker with little
memory for tails then serves librdkafka from its store. The files of a directory leave the page cache first. A broker that keeps
everything in memory serves the same records as the measure of a hot read.
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import brokers, frames
from tests.bench.brokers import Broker
from tests.bench.clients import costed
from tests.bench.harness import LOCAL_ALWAYS, Bench, Case, remove_tree
from tests.bench.native import BenchError, Shape
from tests.bench.report import Goal, Row, format_rate
from tests.support.s3_server import MotoServer

TOPIC = "bench"
PARTITIONS = 8
DIRECTORY, S3 = "directory", "S3"
READERS = {"all partitions": PARTITIONS, "one partition": 1}
"""Partitions that the consumer reads, by the case's name."""
CPU_GOAL = 1.3
BYTES_GOAL = 1.2
REQUESTS_GOAL = 2.0
HOT = {"tail.bytes": str(2 << 30), "inflight.bytes.max": str(512 << 20)}
COLD = {"tail.bytes": str(1 << 20), "inflight.bytes.max": str(512 << 20)}
SETTLE_S = 2.5
"""Time for the checkpoint of the last chunks."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One consumer's run: bytes of values, its seconds, and the broker's CPU-seconds, store requests and bytes meanwhile."""

    value_bytes: int
    seconds: float
    cpu_s: float
    requests: float
    store_bytes: float

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / self.value_bytes * 1e9


def store_reads(broker: Broker) -> tuple[float, float]:
    """Requests that read objects, and their bytes, so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if "get" in line]
    requests, sizes = (
        sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"headgate_store_{name}_total{{"))
        for name in ("requests", "bytes")
    )
    return requests, sizes


def _fill(bench: Bench, broker: Broker, batch_bytes: int, total_bytes: int) -> int:
    """Write batches to the partitions in turn. Returns the records of one batch."""
    assert bench.native is not None
    broker.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1"})
    batch = frames.batch(batch_bytes)
    requests = [frames.produce_request(TOPIC, partition, batch) for partition in range(PARTITIONS)]
    shape = Shape(frames=requests, window=64, error_at=frames.produce_error_at(TOPIC))
    bench.native.loadgen(broker.kafka_port, shape, seconds=100, requests_max=total_bytes // batch_bytes)
    time.sleep(SETTLE_S)
    return int.from_bytes(batch[57:61], "big")


def _read(broker: Broker, records: int, partitions: int) -> Reading:
    requests, store_bytes = store_reads(broker)
    answer, cpu_s = costed(broker.pid, "rdkafka", "consume", broker.kafka_port, TOPIC, records, partitions)
    requests_after, store_bytes_after = store_reads(broker)
    return Reading(answer["bytes"], answer["seconds"], cpu_s, requests_after - requests, store_bytes_after - store_bytes)


def leave_cache(store: Path) -> None:
    """Remove a store's files from the page cache."""
    for path in store.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@contextmanager
def store(bench: Bench, kind: str) -> Iterator[tuple[str, Mapping[str, str], Path | None]]:
    """An empty store: (URL, the broker's settings for it, its directory)."""
    if kind == DIRECTORY:
        place = bench.fresh_directory("cold")
        try:
            yield str(place), {"wal.fsync": LOCAL_ALWAYS}, place
        finally:
            remove_tree(place)
        return
    server = MotoServer()
    saved = {name: os.environ.get(name) for name in server.environment}
    os.environ.update(server.environment)
    try:
        yield server.url(server.bucket(), "bench"), {}, None
    finally:
        for name, value in saved.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        server.stop()


def _measure(bench: Bench, kind: str, settings: Mapping[str, str], batch_bytes: int, total_bytes: int) -> dict[str, Reading]:
    """Fill a broker with these settings and read it by each kind of reader."""
    read: dict[str, Reading] = {}
    with (
        store(bench, kind) as (url, needed, place),
        brokers.broker(bench.directory, url, settings={**needed, **settings}) as broker,
    ):
        batch_records = _fill(bench, broker, batch_bytes, total_bytes)
        for reader, partitions in READERS.items():
            if place is not None:
                leave_cache(place)
            bench.wait_quiet()
            records = total_bytes // batch_bytes // PARTITIONS * partitions * batch_records
            read[reader] = _read(broker, records, partitions)
    return read


def _run(bench: Bench, kind: str, batch_name: str, batch_bytes: int) -> Iterable[Row]:
    total_bytes = bench.pick(256, 1024 if kind == DIRECTORY else 256) << 20
    hot = _measure(bench, kind, HOT, batch_bytes, total_bytes)
    cold = _measure(bench, kind, COLD, batch_bytes, total_bytes)
    for reader, one in cold.items():
        if one.store_bytes < one.value_bytes / 2:
            raise BenchError(f"the records were not read from the store. value_bytes=`{one.value_bytes}`")
        name = f"{kind}, {batch_name} batches, {reader}"
        rate, hot_rate = (format_rate(each.value_bytes / each.seconds) for each in (one, hot[reader]))
        costs = [f"{each.cpu_s_per_gb:.2f} s/GB" for each in (one, hot[reader])]
        cpu = one.cpu_s_per_gb / hot[reader].cpu_s_per_gb
        yield _row(f"{name}: CPU of hot", cpu, CPU_GOAL, "x", f"{rate} {costs[0]}", f"hot {hot_rate} {costs[1]}")
        per_mb = one.requests / one.value_bytes * 1e6
        yield _row(f"{name}: store requests", per_mb, REQUESTS_GOAL, "per MB", f"{one.requests:.0f}")
        served = one.store_bytes / one.value_bytes
        yield _row(f"{name}: store bytes", served, BYTES_GOAL, "of served", f"{one.store_bytes / 1e6:.0f} MB")


def _row(case: str, ratio: float, goal: float, unit: str, measured: str, ceiling: str = "") -> Row:
    return Row(group="cold", case=case, ratio=ratio, goal=goal, side=Goal.AT_MOST, unit=unit, measured=measured, ceiling=ceiling)


def _case(kind: str, batch_name: str, batch_bytes: int) -> Case:
    def run(bench: Bench) -> Iterable[Row]:
        return _run(bench, kind, batch_name, batch_bytes)

    return Case("cold", f"{kind}, {batch_name} batches", run, needs_compiler=True, goal=CPU_GOAL, side=Goal.AT_MOST, unit="x")


CASES = [_case(kind, name, size) for kind in (DIRECTORY, S3) for name, size in (("16 KB", 16 << 10), ("1 KB", 1 << 10))]
