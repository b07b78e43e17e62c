"""Starts, each beside a bare one, in alternation: a broker from process start to the first answer on the Kafka port, beside a bare
interpreter; `headgate flood run` from process start to the begin of counting, beside a bare Spark session.

The first start of all is not counted: it compiles the modules, as an installation does.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench import brokers
from tests.bench.harness import LOCAL_NEVER, Bench, Case, remove_tree
from tests.bench.native import BenchError, free_port
from tests.bench.report import Goal, Row, paired

GOAL = 8.0
FLOOD = "`headgate flood run` begins to count, of a bare Spark session"
FLOOD_GOAL = 1.2
FLOOD_TIMEOUT_S = 120.0
_BARE_SESSION = (
    "from pyspark.sql import SparkSession; SparkSession.builder.master('local[*]').getOrCreate(); print('there', flush=True)"
)


def _bare() -> float:
    """Seconds of `python -c pass`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, cwd=brokers.ROOT)
    return time.perf_counter() - start


def _first_answer(store: Path, log: Path) -> float:
    """Seconds from the start of a broker to its first answer to ApiVersions; then it is stopped."""
    ports = free_port(), free_port(), free_port()
    with log.open("wb") as sink:
        command = brokers.command(str(store), *ports)
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, cwd=brokers.ROOT, env=brokers.environment({})
        )
        try:
            brokers.wait_for_answer(ports[0], process, log)
            return time.perf_counter() - start
        finally:
            process.terminate()
            try:
                process.wait(brokers.STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _run(bench: Bench, name: str, *, fresh: bool) -> Iterable[Row]:
    log = bench.directory / "start.log"
    kept = bench.fresh_directory("start")
    _first_answer(kept, log)
    bare, ours = [], []
    for _ in range(bench.pick(7, 15)):
        store = bench.fresh_directory("start") if fresh else kept
        bare.append(_bare())
        ours.append(_first_answer(store, log))
        if fresh:
            remove_tree(store)
    remove_tree(kept)
    ratio = paired(ours, bare)
    yield Row(
        group="start",
        case=name,
        measured=f"{statistics.median(ours) * 1e3:.0f} ms",
        ceiling=f"{statistics.median(bare) * 1e3:.1f} ms bare interpreter",
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        unit="x",
        goal=GOAL,
        side=Goal.AT_MOST,
    )


def _case(name: str, *, fresh: bool) -> Case:
    return Case("start", name, lambda bench: _run(bench, name, fresh=fresh), goal=GOAL, side=Goal.AT_MOST, unit="x")


def _until(word: str, command: list[str], environment: dict[str, str]) -> float:
    """Seconds from the start of a command to the first line of its output with this word; then the command is stopped."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=brokers.ROOT, env=environment
    ) as process:
        assert process.stdout is not None
        seen = b""
        try:
            for line in process.stdout:
                seen += line
                if word.encode() in line:
                    return time.perf_counter() - start
        finally:
            process.terminate()
            try:
                process.communicate(timeout=FLOOD_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
    raise BenchError(f"a start ended early. command=`{command[-1]}` output=`{seen.decode(errors='replace')[-300:]}`")


def _flood(bench: Bench) -> Iterable[Row]:
    place = bench.fresh_directory("start")
    source = str(place / "rows.parquet")
    pq.write_table(pa.table({"key": ["a", "b"], "at": pa.array([0, 1], pa.timestamp("us", tz="UTC"))}), source)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    try:
        with bench.broker(LOCAL_NEVER) as broker:
            command = [
                *(sys.executable, "-m", "headgate.broker.cli.main", "flood", "run", "--cluster", f"127.0.0.1:{broker.grpc_port}"),
                *("--topic", "started", "--partitions", "1", "--source", source, "--key", "key", "--event-time", "at"),
            ]
            bare, ours = [], []
            for number in range(bench.pick(3, 7) + 1):
                session_s = _until("there", [sys.executable, "-c", _BARE_SESSION], environment)
                counting_s = _until(": counting", command, environment)
                if number:
                    bare.append(session_s)
                    ours.append(counting_s)
    finally:
        remove_tree(place)
    ratio = paired(ours, bare)
    yield Row(
        group="start", case=FLOOD, ratio=ratio.median, low=ratio.low, high=ratio.high, unit="x", goal=FLOOD_GOAL, side=Goal.AT_MOST,
        measured=f"{statistics.median(ours):.2f} s", ceiling=f"{statistics.median(bare):.2f} s bare session",
    )  # fmt: skip


CASES = [
    _case("first Kafka answer, empty store", fresh=True),
    _case("first Kafka answer, a store that served before", fresh=False),
    Case("start", FLOOD, _flood, goal=FLOOD_GOAL, side=Goal.AT_MOST, unit="x"),
]
