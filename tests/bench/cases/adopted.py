"""Floods that adopt the source's files: the whole command and the job against the same flood that writes its files, and what the
brokers spend to read both topics.

The source has twenty files in the order of time. Each command runs in a fresh process, the two kinds in turn; a consumer then reads
all partitions of either topic. CPU is that of the broker and of its encoders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.brokers import ROOT, Broker
from tests.bench.clients import client
from tests.bench.harness import LOCAL_NEVER, Bench, Case, remove_tree
from tests.bench.native import BenchError, tree_seconds
from tests.bench.report import Goal, Row

PARTITIONS = 8
FILES = 20
SIZES = {"100 B": (100, 5_000_000, 4.0, 1.6), "1 KB": (1000, 2_000_000, 4.0, 1.25)}
"""Bytes of a value, rows of a full run, and the goals: speed of the whole command, CPU of a read."""
TIMEOUT_S = 900.0


def _source(path: Path, value_bytes: int, rows: int) -> None:
    """Files with half-compressible values, one behind the other in time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow: Any = pa
    chance, each, random_bytes = np.random.default_rng(7), rows // FILES, value_bytes // 2
    path.mkdir(parents=True)
    for number in range(FILES):
        at = np.arange(number * each, (number + 1) * each)
        values = np.full((each, value_bytes), 65, np.uint8)
        values[:, :random_bytes] = chance.integers(0, 256, (each, random_bytes), dtype=np.uint8)
        table = pa.table(
            {
                "at": arrow.array(1_700_000_000_000_000 + at * 1000, pa.timestamp("us", "UTC")),
                "user": [f"user-{row % 1000}" for row in at.tolist()],
                "payload": arrow.FixedSizeBinaryArray.from_buffers(
                    pa.binary(value_bytes), each, [None, pa.py_buffer(values.tobytes())]
                ).cast(pa.binary()),
            }
        )
        pq.write_table(table, path / f"part-{number:03d}.parquet", row_group_size=each // 4, compression="zstd")


def _flood(broker: Broker, source: Path, topic: str, files: str) -> tuple[float, float]:
    """Seconds of a whole command, and of its job."""
    command = [
        sys.executable, "-m", "headgate.broker.cli.main", "flood", "run", "--cluster", f"127.0.0.1:{broker.grpc_port}",
        "--topic", topic, "--partitions", str(PARTITIONS), "--source", str(source), "--key", "user", "--event-time", "at",
        "--value", "payload", "--files", files, "--json",
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
    value_bytes, most, speed_goal, read_goal = SIZES[name]
    rows = bench.pick(most // 10, most)
    place = bench.fresh_directory("adopted")
    try:
        _source(place / "source", value_bytes, rows)
        with bench.broker(LOCAL_NEVER) as broker:
            pairs = [
                {files: _flood(broker, place / "source", f"{files}-{number}", files) for files in ("link", "rewrite")}
                for number in range(bench.pick(1, 3))
            ]
            spent: dict[str, float] = {}
            for files in ("link", "rewrite"):
                before = tree_seconds(broker.pid)
                client("rdkafka", "consume", broker.kafka_port, f"{files}-0", rows, PARTITIONS)
                spent[files] = (tree_seconds(broker.pid) - before) / (rows * value_bytes / 1e9)
        for what, place_of in (("whole command", 0), ("job", 1)):
            ratios = [pair["rewrite"][place_of] / pair["link"][place_of] for pair in pairs]
            yield Row(
                group="adopted", case=f"a flood that adopts files, speed of the {what}, of one that writes them, {name}",
                ratio=median(ratios), low=min(ratios), high=max(ratios), goal=speed_goal, unit="x",
                measured=f"{median(pair['link'][place_of] for pair in pairs):.1f} s",
                ceiling=f"{median(pair['rewrite'][place_of] for pair in pairs):.1f} s", note=f"{rows:,} rows, {FILES} files",
            )  # fmt: skip
        yield Row(
            group="adopted", case=f"one consumer of all partitions: CPU for adopted rows, of history files, {name}",
            ratio=spent["link"] / spent["rewrite"], goal=read_goal, side=Goal.AT_MOST, unit="x",
            measured=f"{spent['link']:.1f} s/GB", ceiling=f"{spent['rewrite']:.1f} s/GB", note="broker and encoders",
        )  # fmt: skip
    finally:
        remove_tree(place)


def _case(name: str) -> Case:
    return Case("adopted", name, lambda bench: _run(bench, name), goal=SIZES[name][2], unit="x")


CASES = [_case(name) for name in SIZES]
