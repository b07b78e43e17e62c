"""A broker's memory: when idle, and for each idle connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

from tests.bench import brokers, frames
from tests.bench.brokers import exchange
from tests.bench.harness import LOCAL_ALWAYS, Bench, Case
from tests.bench.native import resident_bytes
from tests.bench.report import Goal, Row

IDLE_BYTES_MAX = 90e6
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


IDLE = "idle broker"
CONNECTION = "1,000 idle connections: each"
CASES = [
    Case("memory", IDLE, _idle, goal=IDLE_BYTES_MAX / 1e6, side=Goal.AT_MOST, unit="MB"),
    Case("memory", CONNECTION, _connections, goal=CONNECTION_BYTES_MAX / 1e3, side=Goal.AT_MOST, unit="kB"),
]
