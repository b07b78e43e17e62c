"""Floods that adopt the source's files, and the same ones that write theirs, against Spark's Kafka sink into a real Apache Kafka:
the whole command and the job. And what the brokers spend to read both topics.

The source has twenty files in the order of time. Each command runs in a fresh process, the kinds in turn; a consumer then reads all
partitions of either topic. CPU is that of the broker and of its encoders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.brokers import ROOT, Broker
from tests.bench.cases.sink import SINK, SINK_NOTE
from tests.bench.clients import client
from tests.bench.harness import LOCAL_ALWAYS, Bench, Case, remove_tree
from tests.bench.kafka import Server, connector_jars, server
from tests.bench.native import BenchError, tree_seconds
from tests.bench.report import Goal, Row
from tests.bench.spark_driver import driver

PARTITIONS = 8
FILES = 20
FIRST_US = 1_700_000_000_000_000
TIMEOUT_S = 900.0
WAYS = ("link", "rewrite", "sink")


@dataclass(frozen=True, slots=True)
class Shape:
    """A source. `columns`: all columns but the time of the rows with these numbers. `value_bytes`: of a record. Goals: the speed of
    the adopted job and of the whole command, and of the written job, of the sink's; the CPU of a read of adopted rows."""

    columns: Callable[[Any], dict[str, Any]]
    rows: int
    value_bytes: int
    job: float
    whole: float
    written: float
    read: float
    value: str = "payload"


def _values(value_bytes: int) -> Callable[[Any], dict[str, Any]]:
    """Half-compressible values."""
    import numpy as np
    import pyarrow as pa

    arrow: Any = pa
    chance, random_bytes = np.random.default_rng(7), value_bytes // 2

    def made(at: Any) -> dict[str, Any]:
        values = np.full((len(at), value_bytes), 65, np.uint8)
        values[:, :random_bytes] = chance.integers(0, 256, (len(at), random_bytes), dtype=np.uint8)
        array = arrow.FixedSizeBinaryArray.from_buffers(pa.binary(value_bytes), len(at), [None, pa.py_buffer(values.tobytes())])
        return {"user": [f"user-{row % 1000}" for row in at.tolist()], "payload": array.cast(pa.binary())}

    return made


def _lake(nested: bool) -> Callable[[Any], dict[str, Any]]:
    """A table of nine columns; `nested`: one of them has parts."""
    import numpy as np
    import pyarrow as pa

    arrow: Any = pa
    chance = np.random.default_rng(7)
    lands = np.array(["DE", "FR", "US", "JP"])

    def made(at: Any) -> dict[str, Any]:
        rows = len(at)
        made = {
            "order_id": arrow.array(chance.integers(0, 10**9, rows)),
            "user": [f"user-{row:06d}" for row in chance.integers(0, 200_000, rows).tolist()],
            "url": [f"https://shop.example/p/{row}?ref=mail" for row in chance.integers(0, 10**6, rows).tolist()],
            "country": arrow.array(lands[chance.integers(0, 4, rows)]),
            "amount": arrow.array(np.round(chance.random(rows) * 500, 2)),
            "quantity": arrow.array(chance.integers(1, 9, rows).astype(np.int32)),
            "is_new": arrow.array(chance.random(rows) < 0.3),
            "coupon": [None if row else "SPRING" for row in chance.integers(0, 3, rows).tolist()],
        }
        if nested:
            quantity = made["quantity"]
            place = arrow.StructArray.from_arrays([made["country"], quantity], ["country", "zone"])
            del made["country"]
            made["place"] = place
        return made

    return made


ROW = "to_json(struct(*))"
SHAPES = {
    "100 B": (lambda: Shape(_values(100), 5_000_000, 100, 10.0, 4.0, 2.0, 1.6)),
    "1 KB": (lambda: Shape(_values(1000), 2_000_000, 1000, 10.0, 4.0, 1.5, 1.25)),
    "rows as JSON": (lambda: Shape(_lake(False), 3_000_000, 194, 3.0, 3.0, 3.0, 1.6, value=ROW)),
    "nested rows as JSON": (lambda: Shape(_lake(True), 3_000_000, 205, 3.0, 3.0, 3.0, 1.6, value=ROW)),
}


def make_source(path: Path, shape: Shape, rows: int) -> None:
    """Files one behind the other in time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow: Any = pa
    each = rows // FILES
    path.mkdir(parents=True)
    for number in range(FILES):
        at = np.arange(number * each, (number + 1) * each)
        times = arrow.array(FIRST_US + at * 1000, pa.timestamp("us", "UTC"))
        table = pa.table({"at": times, **shape.columns(at)})
        pq.write_table(table, path / f"part-{number:03d}.parquet", row_group_size=each // 4, compression="zstd")


def _sink(kafka: Server, source: Path, topic: str, value: str) -> tuple[float, float]:
    """Seconds of a whole process of Spark that writes the source to Kafka, and of its job."""
    client("rdkafka", "create_topic", kafka.kafka_port, topic, PARTITIONS)
    jars = connector_jars()
    os.sync()
    began = time.monotonic()
    with driver(2, jars=jars, warm=False) as spark:
        given = {"path": str(source), "bootstrap": kafka.bootstrap, "topic": topic, "settings": dict(SINK)}
        answer = spark.run("sink", **given, key="cast(user as binary)", value=value)
        job_s = float(answer["seconds"])
    return time.monotonic() - began, job_s


def run_flood(broker: Broker, source: Path, topic: str, files: str, value: str) -> tuple[float, float]:
    """Seconds of a whole command, and of its job."""
    command = [
        sys.executable, "-m", "headgate.broker.cli.main", "flood", "run", "--cluster", f"127.0.0.1:{broker.grpc_port}",
        "--topic", topic, "--partitions", str(PARTITIONS), "--source", str(source), "--key", "user", "--event-time", "at",
        "--value", value, "--files", files, "--json",
    ]  # fmt: skip
    os.sync()
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    whole_s = time.monotonic() - began
    if done.returncode:
        raise BenchError(f"a flood failed: {done.stderr[-500:]}")
    answer = json.loads(done.stdout)
    if bool(answer["adopted_rows"]) is not (files == "link"):
        raise BenchError(f"the flood took another way: {answer['engine_reason'] or done.stderr[-500:]}")
    return whole_s, sum(answer["seconds"].values())


def _run(bench: Bench, name: str) -> Iterable[Row]:
    shape = SHAPES[name]()
    rows = bench.pick(shape.rows // 10, shape.rows)
    place = bench.fresh_directory("adopted")
    try:
        source = place / "source"
        make_source(source, shape, rows)
        with bench.broker(LOCAL_ALWAYS) as broker, server(bench, PARTITIONS) as kafka:
            rounds: list[dict[str, tuple[float, float]]] = []
            for number in range(bench.pick(1, 3)):
                found = {way: run_flood(broker, source, f"{way}-{number}", way, shape.value) for way in WAYS[:2]}
                rounds.append({**found, "sink": _sink(kafka, source, f"sink-{number}", shape.value)})
            spent: dict[str, float] = {}
            for files in WAYS[:2]:
                before = tree_seconds(broker.pid)
                client("rdkafka", "consume", broker.kafka_port, f"{files}-0", rows, PARTITIONS)
                spent[files] = (tree_seconds(broker.pid) - before) / (rows * shape.value_bytes / 1e9)
        note = f"{rows:,} rows, {FILES} files; {SINK_NOTE}"
        for what, at in (("whole command", 0), ("job", 1)):
            for way, goal in (("link", (shape.whole, shape.job)[at]), ("rewrite", (None, shape.written)[at])):
                ratios = [one["sink"][at] / one[way][at] for one in rounds]
                yield Row(
                    group="adopted", case=f"a flood ({way}): speed of the {what}, of Spark's Kafka sink, {name}",
                    ratio=median(ratios), low=min(ratios), high=max(ratios), goal=goal, unit="x",
                    measured=f"{median(one[way][at] for one in rounds):.1f} s",
                    ceiling=f"{median(one['sink'][at] for one in rounds):.1f} s", note=note,
                )  # fmt: skip
        yield Row(
            group="adopted", case=f"one consumer of all partitions: CPU for adopted rows, of history files, {name}",
            ratio=spent["link"] / spent["rewrite"], goal=shape.read, side=Goal.AT_MOST, unit="x",
            measured=f"{spent['link']:.1f} s/GB", ceiling=f"{spent['rewrite']:.1f} s/GB", note="broker and encoders",
        )  # fmt: skip
    finally:
        remove_tree(place)


def _case(name: str) -> Case:
    return Case("adopted", name, lambda bench: _run(bench, name), unit="x")


CASES = [_case(name) for name in SHAPES]
