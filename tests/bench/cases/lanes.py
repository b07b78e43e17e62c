"""A live producer while consumer groups replay history: at its lead, and through a lane.

Broker, lane, producer and consumers share this machine's two cores. Pinned: the broker and the producer have one core, the lane and
the consumers the other one. The lane is started before the measurement, so that every replay of it finds it.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator

from tests.bench.brokers import ROOT, Broker, broker
from tests.bench.cases.history import RATE_PER_S, publish
from tests.bench.clients import client
from tests.bench.harness import Bench, Case, remove_tree
from tests.bench.native import Cores
from tests.bench.report import Goal, Row

ROWS = 60_000
GROUPS = (1, 4)
LANE_ID = "1001"
SETTINGS = {"wal.fsync": "never", "history.cache_bytes": str(256 << 20), "history.lane_bytes": "1"}
WAYS = ("quiet", "at the lead", "through a lane")


def history_bytes(port: int) -> float:
    """Bytes of history that a process has sent to clients."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("headgate_history_out_bytes_total "))


@contextlib.contextmanager
def _replaying(port: int, groups: int, core: int | None) -> Iterator[None]:
    """Consumers that read the history again and again."""
    command = [sys.executable, "-m", "tests.bench.rdkafka", "consume_again", str(port), "history", str(ROWS)]
    running = [subprocess.Popen([*Cores.prefix(core), *command], cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(groups)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def _live(bench: Bench, there: Broker, core: int | None) -> tuple[float, float]:
    """p50 and p99 of the live producer, in ms."""
    found = client("rdkafka", "paced", there.kafka_port, "live", RATE_PER_S, 0, 1000, bench.pick(3, 8), core=core)
    return found["p50_ms"], found["p99_ms"]


def _measure(bench: Bench, name: str, *, pinned: bool) -> Iterable[Row]:
    first, second = (0, 1) if pinned else (None, None)
    store = bench.fresh_directory("lanes")
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    leads: dict[tuple[str, int], float] = {}
    with broker(store, str(store / "store"), settings=SETTINGS, core=first) as there:
        for topic in ("history", "live"):
            there.create_topic(topic)
        publish(there, "history", ROWS, 1000)
        client("rdkafka", "consume", there.kafka_port, "history", ROWS)  # one-time loads are done now
        for way in WAYS:
            with contextlib.ExitStack() as stack:
                if way == WAYS[2]:
                    lane = {**SETTINGS, "role": "lane", "broker.id": LANE_ID}
                    stack.enter_context(broker(store, str(store / "store"), settings=lane, core=second))
                    client("rdkafka", "consume", there.kafka_port, "history", ROWS)
                for groups in (0,) if way == WAYS[0] else GROUPS:
                    before = history_bytes(there.http_port)
                    with _replaying(there.kafka_port, groups, second):
                        found[way, groups] = [_live(bench, there, first) for _ in range(bench.pick(2, 3))]
                    leads[way, groups] = history_bytes(there.http_port) - before
        found[WAYS[0], 0] += [_live(bench, there, first) for _ in range(bench.pick(1, 2))]
    remove_tree(store)
    quiet = [statistics.median(one) for one in zip(*found[WAYS[0], 0], strict=True)]
    for (way, groups), both in found.items():
        if groups:
            p50, p99 = (statistics.median(one) for one in zip(*both, strict=True))
            yield Row(
                group="lanes",
                case=f"{name}, {groups} {'group' if groups == 1 else 'groups'} {way}",
                measured=f"p50 {p50:.2f}, p99 {p99:.1f} ms",
                ceiling=f"quiet p50 {quiet[0]:.2f}, p99 {quiet[1]:.1f} ms",
                ratio=p50 / quiet[0],
                low=min(one[0] for one in both) / quiet[0],
                high=max(one[0] for one in both) / quiet[0],
                unit="x",
                side=Goal.AT_MOST,
                note=f"{leads[way, groups] / 1e6:,.0f} MB of history through the lead",
            )


CASES = [
    Case("lanes", name, lambda bench, name=name, pinned=pinned: _measure(bench, name, pinned=pinned), unit="x")
    for name, pinned in (("live producer, pinned", True), ("live producer, unpinned", False))
]
