"""Floods: their speed against the same Spark job without a cluster, their cost for the broker, and their effect on live
producers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.bench.brokers import ROOT, Broker
from tests.bench.clients import costed
from tests.bench.harness import LOCAL_NEVER, Bench, Case, quietly, remove_tree
from tests.bench.native import BenchError, Cores, cpu_seconds
from tests.bench.report import Goal, Row
from tests.bench.spark_driver import FILE_ROWS, KEY_BYTES, VALUE_BYTES, Driver, driver

PARTITIONS = 8
THREADS = 2
BACKFILL = "backfill of the plain Spark job (repartition, sort, write Parquet)"
BROKER_CPU = "broker CPU by reference, of the same rows through the Kafka port"
PRODUCED_BATCHES = {"1 MB batches": 1_000_000, "16 KB batches": 16_384}
"""Largest batches of librdkafka and of the Java client by default."""
BROKER_BYTES = "bytes that passed the broker, of the flood's"
ALONE = "backfill on one core, of the same work in one thread without Spark"
READ = "Spark reads a topic, of spark.read.parquet through Arrow"
READ_NATIVELY = "Spark reads a topic natively, of spark.read.parquet"
LIVE = "live producer's p99 during a flood, of the quiet p99"
READ_BACK = "live producer's p99 while a consumer reads it back, of the quiet p99"
TIMEOUT_S = 600.0
SETTLE_S = 3.0
"""Pause, so that the broker's work for one flood does not count for the next."""


def _rows(bench: Bench) -> int:
    return bench.pick(1_000_000, 10_000_000)


def _run(bench: Bench) -> Iterable[Row]:
    """One source and one broker for all cases that need no core of their own."""
    rows = _rows(bench)
    place = bench.fresh_directory("flood")
    try:
        with driver(THREADS) as spark, bench.broker(LOCAL_NEVER) as broker:
            source = str(place / "source")
            spark.run("source", path=source, rows=rows)
            spark.run("flood", path=source, cluster=_cluster(broker), topic="first", partitions=PARTITIONS)
            ratios: list[float] = []
            flood_s: list[float] = []
            plain_s: list[float] = []
            cpu_s: list[float] = []
            moved = 0
            for number in range(bench.pick(2, 3)):
                out = place / f"plain.{number}"
                time.sleep(SETTLE_S)
                # A tick costs more on a busy machine: the broker's own cost is measured beside the plain job.
                before, began = cpu_seconds(broker.pid), time.monotonic()
                plain_s.append(spark.run("plain", path=source, out=str(out), partitions=PARTITIONS)["seconds"])
                own = (cpu_seconds(broker.pid) - before) / (time.monotonic() - began)
                remove_tree(out)
                bytes_before = _moved_bytes(broker)
                time.sleep(SETTLE_S)
                before, began = cpu_seconds(broker.pid), time.monotonic()
                done = spark.run("flood", path=source, cluster=_cluster(broker), topic=f"t{number}", partitions=PARTITIONS)
                spent = time.monotonic() - began
                cpu_s.append(max(cpu_seconds(broker.pid) - before - own * spent, 0.0))
                moved = max(moved, _moved_bytes(broker) - bytes_before)
                flood_s.append(done["seconds"])
                ratios.append(plain_s[-1] / flood_s[-1])
            best = min(flood_s)
            yield Row(
                group="flood", case=BACKFILL, ratio=max(ratios), low=min(ratios), high=max(ratios), goal=0.75,
                measured=f"{rows / best / 1e6:.2f} M rows/s", ceiling=f"{rows / min(plain_s) / 1e6:.2f} M rows/s",
                note=f"{rows:,} rows; of the best of {len(ratios)} pairs; counting {done['counting']:.1f} s of {flood_s[-1]:.1f} s",
                details=done,
            )  # fmt: skip
            yield from _cost(bench, broker, rows, min(cpu_s), moved)
            yield from _reading(bench, spark, broker, rows)
    finally:
        remove_tree(place)


def _cost(bench: Bench, broker: Broker, rows: int, flood_cpu_s: float, moved: int) -> Iterable[Row]:
    size = KEY_BYTES + VALUE_BYTES
    for batches, batch_bytes in PRODUCED_BATCHES.items():
        topic = f"produced-{batch_bytes}"
        broker.create_topic(topic)
        command = ("rdkafka", "produce", broker.kafka_port, topic, size, batch_bytes, "none", bench.pick(2, 6))
        answer, cpu_s = costed(broker.pid, *command)
        produced_s = cpu_s / answer["records"] * rows
        yield Row(
            group="flood", case=f"{BROKER_CPU}, {batches}", ratio=flood_cpu_s / produced_s, goal=0.01, side=Goal.AT_MOST,
            measured=f"{flood_cpu_s * 1e3:.0f} ms", ceiling=f"{produced_s * 1e3:.0f} ms",
            note="less what the broker spends beside the plain job, when nobody wants anything of it",
        )  # fmt: skip
    size *= rows
    yield Row(
        group="flood", case=BROKER_BYTES, ratio=moved / size, goal=0.01, side=Goal.AT_MOST,
        measured=f"{moved / 1e3:.0f} kB", ceiling=f"{size / 1e6:.0f} MB",
        note="its own counters: records in and out, and what it read and wrote in the store (footers, the manifest)",
    )  # fmt: skip


def _reading(bench: Bench, spark: Driver, broker: Broker, rows: int) -> Iterable[Row]:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/healthz", timeout=10):
        pass
    topic_s, natively_s, parquet_s, native_s = [], [], [], []
    files = _files(bench)
    for _ in range(bench.pick(2, 3)):
        topic_s.append(spark.run("read_topic", cluster=_cluster(broker), topic="t0")["seconds"])
        natively_s.append(spark.run("read_natively", cluster=_cluster(broker), topic="t0")["seconds"])
        parquet_s.append(spark.run("read_parquet", path=str(files), arrow=True)["seconds"])
        native_s.append(spark.run("read_parquet", path=str(files), arrow=False)["seconds"])
    yield Row(
        group="flood", case=READ, ratio=min(parquet_s) / min(topic_s), goal=0.7,
        measured=f"{rows / min(topic_s) / 1e6:.2f} M rows/s", ceiling=f"{rows / min(parquet_s) / 1e6:.2f} M rows/s",
        note=f"without Arrow and Python Spark reads {rows / min(native_s) / 1e6:.2f} M rows/s; best of {len(topic_s)}",
    )  # fmt: skip
    yield Row(
        group="flood", case=READ_NATIVELY, ratio=min(native_s) / min(natively_s), goal=0.9,
        measured=f"{rows / min(natively_s) / 1e6:.2f} M rows/s", ceiling=f"{rows / min(native_s) / 1e6:.2f} M rows/s",
        note=f"`read_topic`, without Arrow and Python; best of {len(natively_s)}",
    )  # fmt: skip


def _files(bench: Bench) -> Path:
    """The directory of one topic's files in the newest store of the benchmark: all topics have the same rows."""
    stores = sorted(bench.directory.glob("store.*"), key=lambda path: path.stat().st_mtime)
    found = sorted(path for path in stores[-1].glob("topics/*/data") if any(path.rglob("*.parquet")))
    if not found:
        raise BenchError("no files of a flood were found")
    return found[0]


def _alone(bench: Bench, name: str, value_bytes: int, file_rows: int, rows: int) -> Iterable[Row]:
    """Spark and the bare work have one core, in turn; the broker has the other one."""
    place = bench.fresh_directory("flood")
    try:
        with driver(1, core=bench.cores.client) as spark, bench.broker(LOCAL_NEVER, pinned=True) as broker:
            source, out = str(place / "source"), place / "alone"
            spark.run("source", path=source, rows=rows, value_bytes=value_bytes, file_rows=file_rows)
            floods = 0

            def bare() -> dict[str, Any]:
                remove_tree(out)
                os.sync()
                return spark.run("alone", path=source, out=str(out), partitions=PARTITIONS)

            def flood() -> dict[str, Any]:
                nonlocal floods
                floods += 1
                os.sync()
                return spark.run("flood", path=source, cluster=_cluster(broker), topic=f"t{floods}", partitions=PARTITIONS)

            flood()
            pairs = [(quietly(bare), quietly(flood)) for _ in range(bench.pick(2, 3))]
        ratios = [ours["seconds"] / bare_one["seconds"] for (bare_one, _), (ours, _) in pairs]
        bare_s, flood_s = (min(pair[side][0]["seconds"] for pair in pairs) for side in (0, 1))
        done = pairs[-1][1][0]
        yield Row(
            group="flood", case=f"{ALONE}, {name}", ratio=flood_s / bare_s, low=min(ratios), high=max(ratios), goal=1.3,
            side=Goal.AT_MOST, unit="x", measured=f"{flood_s:.1f} s", ceiling=f"{bare_s:.1f} s",
            disturbed=any(loud for pair in pairs for _, loud in pair),
            note=f"{rows:,} rows; best of {len(pairs)}; counting {done['counting']:.1f} s of {done['seconds']:.1f} s", details=done,
        )  # fmt: skip
    finally:
        remove_tree(place)


def _live(bench: Bench) -> Iterable[Row]:
    """Spark has one core of its own, the broker and the live producer the other one."""
    rows = bench.pick(1_000_000, 10_000_000)
    seconds = bench.pick(5, 20)
    server, client = bench.cores.server, bench.cores.client
    place = bench.fresh_directory("flood")
    try:
        with driver(1, core=client) as spark, bench.broker(LOCAL_NEVER, pinned=True) as broker:
            source = str(place / "source")
            spark.run("source", path=source, rows=rows)
            broker.create_topic("live", PARTITIONS)
            quiet = _paced(broker, server, seconds)
            spark.begin("flood", path=source, cluster=_cluster(broker), topic="live", partitions=PARTITIONS)
            time.sleep(1.0)
            during = _paced(broker, server, seconds)
            spark.end()
            consumer = subprocess.Popen(
                [*_rdkafka(client), "consume_again", str(broker.kafka_port), "live", str(rows), str(PARTITIONS)],
                cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                back = _paced(broker, server, seconds)
            finally:
                consumer.kill()
                consumer.wait()
        for case, seen in ((LIVE, during), (READ_BACK, back)):
            yield Row(
                group="flood", case=case, ratio=seen / quiet, goal=1.5, side=Goal.AT_MOST, unit="x",
                measured=f"{seen:.2f} ms", ceiling=f"{quiet:.2f} ms",
                note=f"1,000 records/s of 1 KB, linger 0; {rows:,} rows; Spark, and the consumer, on a core of their own",
            )  # fmt: skip
    finally:
        remove_tree(place)


def _paced(broker: Broker, core: int | None, seconds: int) -> float:
    """The p99 of a producer at 1,000 records/s, in ms."""
    done = subprocess.run(
        [*_rdkafka(core), "paced", str(broker.kafka_port), "live", "1000", "0", "1000", str(seconds)],
        cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"the live producer failed. message=`{done.stderr.strip()[-300:]}`")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer["p99_ms"]


def _rdkafka(core: int | None) -> list[str]:
    """The command of a client in a separate process, on one core."""
    return [*Cores.prefix(core), sys.executable, "-m", "tests.bench.rdkafka"]


def _moved_bytes(broker: Broker) -> int:
    """Bytes of records in and out, and of the store, from the broker's counters."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    names = ("headgate_store_bytes_total", "headgate_topic_in_bytes_total", "headgate_topic_out_bytes_total")
    return int(sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(names)))


def _cluster(broker: Broker) -> str:
    return f"127.0.0.1:{broker.grpc_port}"


def _alone_case(name: str, value_bytes: int, file_rows: int, rows: int) -> Case:
    def run(bench: Bench) -> Iterable[Row]:
        return _alone(bench, name, value_bytes, file_rows, bench.pick(rows // 5, rows))

    return Case("flood", f"on one core, {name}", run, goal=1.3, side=Goal.AT_MOST, unit="x")


CASES = [
    Case("flood", "by reference: speed, cost, reading back", _run, goal=0.75),
    _alone_case("100 B", VALUE_BYTES, FILE_ROWS, 5_000_000),
    _alone_case("1 KB", 1000, 50_000, 1_000_000),
    Case("flood", "live traffic", _live, goal=1.5, side=Goal.AT_MOST, unit="x"),
]
