"""A broker's memory: when idle, for each batch in its index, and for each idle connection."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterable

from tests.bench import brokers, frames
from tests.bench.brokers import ROOT, exchange
from tests.bench.harness import LOCAL_ALWAYS, Bench, Case
from tests.bench.native import BenchError, resident_bytes
from tests.bench.report import Goal, Row

IDLE_BYTES_MAX = 90e6
BATCH_BYTES_MAX = 40.0
GC_PAUSE_MS_MAX = 5.0
CONNECTION_BYTES_MAX = 30e3
CONNECTIONS = 1000
SETTLE_S = 1.5
"""The gRPC and HTTP servers start after the Kafka port answers."""


def _limit(case: str, value: float, goal: float, unit: str, note: str = "") -> Row:
    return Row(group="memory", case=case, ratio=value, goal=goal, side=Goal.AT_MOST, unit=unit, note=note)


def _idle(bench: Bench) -> Iterable[Row]:
    with bench.broker(LOCAL_ALWAYS) as broker:
        time.sleep(SETTLE_S)
        for port in (broker.grpc_port, broker.http_port):
            with socket.create_connection(("127.0.0.1", port), 5):
                pass
        yield _limit(IDLE, resident_bytes(broker.pid) / 1e6, IDLE_BYTES_MAX / 1e6, "MB", "resident set, all three ports served")


def _connections(bench: Bench) -> Iterable[Row]:
    with bench.broker(LOCAL_ALWAYS) as broker:
        time.sleep(SETTLE_S)
        brokers.roundtrip(broker.kafka_port, frames.api_versions_request())
        before = resident_bytes(broker.pid)
        opened = []
        try:
            for _ in range(CONNECTIONS):
                opened.append(socket.create_connection(("127.0.0.1", broker.kafka_port), 5))
                exchange(opened[-1], frames.api_versions_request())
            time.sleep(0.5)
            each = (resident_bytes(broker.pid) - before) / CONNECTIONS
        finally:
            for connection in opened:
                connection.close()
    yield _limit(
        CONNECTION,
        each / 1e3,
        CONNECTION_BYTES_MAX / 1e3,
        "kB",
        "each has asked once (ApiVersions); the kernel's part is not in it",
    )


def _index(bench: Bench) -> Iterable[Row]:
    del bench
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.index_memory"], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )
    if done.returncode:
        raise BenchError(f"the index could not be exercised. message=`{done.stderr.strip()[-300:]}`")
    for shape in json.loads(done.stdout):
        name = f"1,000,000 batches indexed in {shape['partitions']:,} partition{'s' if shape['partitions'] > 1 else ''}"
        yield _limit(
            f"{name}: each", shape["bytes_per_batch"], BATCH_BYTES_MAX, "bytes", f"{shape['seconds'] * 1e3:.0f} ns to add one"
        )
        yield _limit(
            f"{name}: longest gc pause",
            shape["gc_pause_max_ms"],
            GC_PAUSE_MS_MAX,
            "ms",
            f"full collections with the index alive; {shape['gc_pause_empty_ms']:.1f} ms without it",
        )


IDLE = "idle broker"
CONNECTION = "1,000 idle connections: each"
CASES = [
    Case("memory", IDLE, _idle, goal=IDLE_BYTES_MAX / 1e6, side=Goal.AT_MOST, unit="MB"),
    Case("memory", CONNECTION, _connections, goal=CONNECTION_BYTES_MAX / 1e3, side=Goal.AT_MOST, unit="kB"),
    Case("memory", "1,000,000 batches indexed", _index, goal=BATCH_BYTES_MAX, side=Goal.AT_MOST, unit="bytes"),
]
