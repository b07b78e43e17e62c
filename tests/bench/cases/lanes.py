"""A live producer while consumer groups replay history, at its lead and through a lane; and what lanes serve.

Broker, lanes, producer and consumers share this machine's two cores. Pinned: the broker and the producer have one core, the lane
and the consumers the other one. Beside the lane: the broker starts its own lane, on the core that it shares with the producer; the
consumers have the other one. Lanes are started before the measurement, so that every replay finds them.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping

from tests.bench.brokers import ROOT, Broker, broker
from tests.bench.cases.history import publish
from tests.bench.clients import client
from tests.bench.harness import Bench, Case, remove_tree
from tests.bench.native import Cores, tree_seconds
from tests.bench.report import Goal, Row, format_rate

ROWS = 60_000
GROUPS = (1, 10)
RATE_PER_S = 1000
LANE_ID = 1001
SETTINGS = {"wal.fsync": "never", "history.lane_bytes": "1"}
LANED, UNLANED = "through a lane", "at the lead"
BESIDE = "beside the lane"
PLACES: dict[str, tuple[int | None, int | None]] = {"pinned": (0, 1), BESIDE: (0, 1), "not pinned": (None, None)}
"""Cores of broker and producer, and of the consumers."""
SCALE_PARTITIONS, SCALE_GROUPS, SCALE_LANES = 6, 3, (1, 2, 3)


def metric(port: int, name: str) -> float:
    """A number of a process."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rsplit(None, 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


@contextlib.contextmanager
def _lanes(bench: Bench, lead: Broker, count: int, settings: Mapping[str, str], core: int | None = None) -> Iterator[list[Broker]]:
    """Lanes that the lead knows."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(count):
            values = {**settings, "role": "lane", "broker.id": str(LANE_ID + number)}
            found.append(stack.enter_context(broker(bench.directory, lead.store, settings=values, core=core)))
        while metric(lead.http_port, "headgate_cluster_lanes") < count:
            time.sleep(0.05)
        yield found


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
    """p50 and p99 of the live producer, in ms, in a minute."""
    found = client("rdkafka", "paced", there.kafka_port, "live", RATE_PER_S, 0, 1000, bench.pick(5, 60), core=core)
    return found["p50_ms"], found["p99_ms"]


def _measure(bench: Bench, cores: str, way: str) -> Iterable[Row]:
    name = f"live producer {cores}, replays {way}"
    first, second = PLACES[cores]
    beside = cores == BESIDE
    store = bench.fresh_directory("lanes")
    settings = {**SETTINGS, "history.cache_bytes": str(256 << 20), **({"history.lanes": "1"} if beside else {})}
    found: dict[int, tuple[float, float]] = {}
    through: dict[int, float] = {}
    with broker(store, str(store / "store"), settings=settings, core=first) as there, contextlib.ExitStack() as stack:
        for topic in ("history", "live"):
            there.create_topic(topic)
        publish(there, "history", ROWS, 1000)
        if way == LANED and not beside:
            stack.enter_context(_lanes(bench, there, 1, settings, second))
        client("rdkafka", "consume", there.kafka_port, "history", ROWS)  # one-time loads are done now
        while beside and not metric(there.http_port, "headgate_cluster_lanes"):
            time.sleep(0.05)
        before = _live(bench, there, first)
        for groups in GROUPS:
            bytes_before = metric(there.http_port, "headgate_history_out_bytes_total")
            with _replaying(there.kafka_port, groups, second):
                found[groups] = _live(bench, there, first)
            through[groups] = metric(there.http_port, "headgate_history_out_bytes_total") - bytes_before
        after = _live(bench, there, first)
    remove_tree(store)
    quiet = [statistics.mean(one) for one in zip(before, after, strict=True)]
    for groups, (p50, p99) in found.items():
        yield Row(
            group="lanes",
            case=f"{name}, {groups} {'group' if groups == 1 else 'groups'}",
            measured=f"p50 {p50:.2f}, p99 {p99:.1f} ms",
            ceiling=f"quiet p50 {before[0]:.2f} before and {after[0]:.2f} after, p99 {before[1]:.1f} and {after[1]:.1f} ms",
            ratio=p50 / quiet[0],
            unit="x",
            side=Goal.AT_MOST,
            note=f"p99 {p99 / quiet[1]:.2f} x; {through[groups] / 1e6:,.0f} MB of history through the lead",
        )


def _scale(bench: Bench, name: str) -> Iterable[Row]:
    """Groups that read all partitions at the same time through lanes, which have the partitions in turn."""
    rows = SCALE_PARTITIONS * bench.pick(20_000, 60_000)
    store = bench.fresh_directory("lanes")
    with broker(store, str(store / "store"), settings=SETTINGS) as lead:
        lead.create_topic("history", SCALE_PARTITIONS)
        publish(lead, "history", rows, 1000, keys=True)
        stored = sum(file.stat().st_size for file in (store / "store").rglob("*.parquet"))
        command = [sys.executable, "-m", "tests.bench.rdkafka", "consume", str(lead.kafka_port), "history", str(rows)]
        for count in SCALE_LANES:
            bench.wait_quiet()
            with _lanes(bench, lead, count, SETTINGS) as lanes:

                def total(name: str, lanes: list[Broker] = lanes) -> float:
                    return sum(metric(lane.http_port, name) for lane in lanes)

                spent = sum(tree_seconds(lane.pid) for lane in lanes)
                through_lead = metric(lead.http_port, "headgate_history_out_bytes_total")
                groups = [
                    subprocess.Popen([*command, str(SCALE_PARTITIONS)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
                    for _ in range(SCALE_GROUPS)
                ]
                answers = [json.loads(group.communicate()[0]) for group in groups]
                spent = sum(tree_seconds(lane.pid) for lane in lanes) - spent
                sent = total("headgate_history_out_bytes_total")
                decoded = total("headgate_history_encoded_records_total") / rows
                through_lead = metric(lead.http_port, "headgate_history_out_bytes_total") - through_lead
            yield Row(
                group="lanes",
                case=f"{name}, {count} {'lane' if count == 1 else 'lanes'}",
                measured=f"{format_rate(sent / spent)} per core of lanes, {spent / (sent / 1e9):.2f} s/GB",
                ceiling=f"{format_rate(sent / max(answer['seconds'] for answer in answers))} in all",
                ratio=decoded,
                unit="x",
                side=Goal.AT_MOST,
                note=f"each row decoded so often; {decoded * stored / sent:.3f} bytes of files per byte served; "
                f"{through_lead / 1e6:,.0f} MB of history through the lead",
            )
    remove_tree(store)


CASES = [
    *[
        Case(
            "lanes",
            f"live producer {cores}, replays {way}",
            lambda bench, cores=cores, way=way: _measure(bench, cores, way),
            unit="x",
        )
        for cores, way in (
            ("pinned", UNLANED),
            ("pinned", LANED),
            (BESIDE, LANED),
            ("not pinned", UNLANED),
            ("not pinned", LANED),
        )
    ],
    Case("lanes", f"{SCALE_GROUPS} groups at once", lambda bench: _scale(bench, f"{SCALE_GROUPS} groups at once"), unit="x"),
]
