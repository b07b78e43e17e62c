"""Floods on columns of far more rows than a task may hold: 160 MiB, ten times the memory of its tasks. The task runs in a process
of its own, which starts without rows: the product's, and in the long form a Python worker of Spark.

Compared: the memory of that process with the stated bound, and the records with their order. A mismatch means that the system
kills tasks of large floods, or that skewed floods lose or mix up records.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.log.partitioner import partition_for_key
from headgate.pipelines.backfill import Backfill
from headgate.pipelines.columns.job import ColumnWork
from headgate.pipelines.columns.memory import limits_of
from headgate.pipelines.columns.plain import plain_source
from headgate.pipelines.columns.processes import Processes
from headgate.pipelines.columns.task_division import PYTHON_BYTES
from headgate.pipelines.spark_rows import Job
from tests.support.broker_process import ROOT
from tests.support.children import children

MEMORY, MEMORY_BYTES = "16m", 16 << 20
ROWS = 16_000
VALUE_BYTES = 10 << 10
PARTITIONS = 3

_SPARK = """
import json, os, sys
from headgate.pipelines.columns.engine import SparkEngine
from headgate.pipelines.columns.job import ColumnWork, read_source
from headgate.pipelines.spark_rows import Job, load, records
from headgate.pipelines.session import end, session

source, store, memory = sys.argv[1:]
spark = session("local[1]", conf={"spark.headgate.taskMemory": memory})
rows = records(load(spark, source, "parquet", {}), key="user", value="payload", event_time="at", headers=None, order_by=(),
               where=None, now_ms=0, options={})
work = ColumnWork(SparkEngine(spark), read_source(rows), 3)
counts = work.count()
written = work.write(Job(store, "t/", "job", 64 << 20, {}))

def peak(_):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

peaks = spark.sparkContext.parallelize([0], 1).map(peak).collect()
print(json.dumps({"rows": counts.rows, "peak_bytes": max(peaks),
                  "files": [[one.partition, [file.path for file in one.files]] for one in written]}))
end(spark)
"""


def without_spark(lake: Path, store: Path) -> dict[str, Any]:
    """The flood in a process of the product."""
    flood = Backfill(topic="t", source=str(lake), key="user", value="payload", event_time="at")
    source = plain_source(flood, limits_of(MEMORY))
    assert source is not None
    with Processes(1) as engine:
        work = ColumnWork(engine, source, PARTITIONS)
        counts = work.count()
        written = work.write(Job(str(store), "t/", "job", 64 << 20, {}))
        (pid,) = (pid for pid, command in children(os.getpid()).items() if "columns.processes" in command)
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
    return {
        "rows": list(counts.rows),
        "peak_bytes": peak,
        "files": [[one.partition, [file.path for file in one.files]] for one in written],
    }


def by_spark(lake: Path, store: Path) -> dict[str, Any]:
    """The flood in a Python worker of Spark."""
    done = subprocess.run(
        [sys.executable, "-c", _SPARK, str(lake), str(store), MEMORY],
        cwd=ROOT, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def lake(path: Path) -> list[tuple[bytes, bytes]]:
    """One file: all rows have one time, nine of ten have one key. Values repeat, so it is small."""
    dice = random.Random(4)
    values = [dice.randbytes(VALUE_BYTES) for _ in range(100)]
    rows = [("hot" if dice.random() < 0.9 else f"user-{dice.randrange(50)}", dice.choice(values)) for _ in range(ROWS)]
    path.mkdir()
    arrays: dict[str, Any] = {
        "user": pa.array([user for user, _ in rows]),
        "payload": pa.array([value for _, value in rows], pa.binary()),
        "at": pa.array([7] * ROWS, pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(arrays), path / "a.parquet", row_group_size=4_000)
    return [(user.encode(), value) for user, value in rows]


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the memory of a worker is read from /proc")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("run", [without_spark, pytest.param(by_spark, marks=pytest.mark.slow)])
def test_ten_times_the_memory_of_one_time_and_one_key(tmp_path: Path, run: Callable[[Path, Path], dict[str, Any]]) -> None:
    rows = lake(tmp_path / "lake")
    assert ROWS * VALUE_BYTES > 9 * MEMORY_BYTES
    store = tmp_path / "store"
    found = run(tmp_path / "lake", store)
    wanted: dict[int, list[tuple[bytes, bytes]]] = {}
    for key, value in rows:
        wanted.setdefault(partition_for_key(key, PARTITIONS), []).append((key, value))
    assert found["rows"] == [len(wanted.get(number, [])) for number in range(PARTITIONS)]
    for partition, paths in found["files"]:
        written = [
            row
            for path in paths
            for batch in pq.ParquetFile(store / path).iter_batches(columns=["key", "value"])
            for row in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        ]
        assert all(before <= after for before, after in pairwise(written))
        assert sorted(wanted[partition]) == written
    assert found["peak_bytes"] <= PYTHON_BYTES + MEMORY_BYTES, f"{found['peak_bytes'] >> 20} MiB"
