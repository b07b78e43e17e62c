"""Consumer groups: commits per second and their latency, the time until a large group is stable, and heartbeats beside a flood."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tests.bench.cases.produce import TOPIC, shape
from tests.bench.clients import client, costed
from tests.bench.harness import BACKENDS, LOCAL_ALWAYS, LOCAL_NEVER, Bench, Case
from tests.bench.report import Goal, Row

PARTITIONS = 8
MEMBERS = 50
SETTLE_GOAL_S = 2.0
GROUPS, SIZE = 200, 3
CONSUMERS, MANY_GROUPS = 200, 1_000
FLOOD_BATCH_BYTES = 64 << 10


def _commits(bench: Bench, name: str, backend: str, connections: int) -> Iterable[Row]:
    with bench.broker(backend) as broker:
        broker.create_topic("bench", PARTITIONS)
        seconds = bench.pick(1, 5)
        answer, cpu_s = costed(broker.pid, "group_client", "commits", broker.kafka_port, "bench", PARTITIONS, connections, seconds)
    yield Row(
        group="groups",
        case=name,
        measured=f"{answer['requests_per_s']:,.0f} commits/s  p50 {answer['p50_ms']:.2f}  p99 {answer['p99_ms']:.2f} ms",
        note=f"{answer['positions_per_s']:,.0f} positions/s; broker's CPU {cpu_s / answer['requests'] * 1e6:.0f} µs/commit",
        details=answer,
    )


def _rebalance(bench: Bench, name: str) -> Iterable[Row]:
    with bench.broker(LOCAL_ALWAYS) as broker:
        answer = client("group_client", "rebalance", broker.kafka_port, MEMBERS, bench.pick(3, 7))
    yield Row(
        group="groups",
        case=name,
        measured=f"{answer['seconds'] * 1e3:,.0f} ms",
        ratio=answer["seconds"],
        high=answer["seconds_max"],
        unit="s",
        goal=SETTLE_GOAL_S,
        side=Goal.AT_MOST,
        details=answer,
    )


def _members(bench: Bench, name: str) -> Iterable[Row]:
    """Members send heartbeats while the load client writes as fast as it can."""
    native = bench.native
    assert native is not None
    seconds = bench.pick(3, 15)
    with bench.broker(LOCAL_NEVER) as broker:
        broker.create_topic(TOPIC)
        flood_on = threading.Event()
        written = 0

        def flood() -> None:
            nonlocal written
            while not flood_on.is_set():
                load = native.loadgen(broker.kafka_port, shape(FLOOD_BATCH_BYTES, 8), seconds=0.5, pinned=False)
                written += load.bytes_out

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            answer = client("group_client", "members", broker.kafka_port, GROUPS, SIZE, seconds)
        finally:
            flood_on.set()
            thread.join()
    yield Row(
        group="groups",
        case=name,
        measured=f"{answer['expelled']} of {answer['members']} members expelled, slowest heartbeat {answer['beat_ms_max']:.0f} ms",
        ratio=float(answer["expelled"]),
        unit="members",
        goal=0.0,
        side=Goal.AT_MOST,
        note=f"{answer['beats']:,} heartbeats in {seconds} s beside {written / 1e6:,.0f} MB of records",
        details=answer,
    )


def _consumers(bench: Bench, name: str) -> Iterable[Row]:
    with bench.broker(LOCAL_ALWAYS) as broker:
        broker.create_topic("bench", CONSUMERS)
        answer = client("group_client", "consumers", broker.kafka_port, "bench", CONSUMERS, CONSUMERS, bench.pick(2, 5))
    yield Row(
        group="groups",
        case=name,
        measured=f"{answer['join_s'] * 1e3:,.0f} ms",
        ratio=answer["join_s"],
        high=answer["join_s_max"],
        unit="s",
        goal=SETTLE_GOAL_S,
        side=Goal.AT_MOST,
        note=f"after one has left: at most {answer['leave_s_max'] * 1e3:,.0f} ms",
        details=answer,
    )


def _many_consumers(bench: Bench, name: str) -> Iterable[Row]:
    seconds = bench.pick(3, 15)
    with bench.broker(LOCAL_ALWAYS) as broker:
        broker.create_topic("bench", PARTITIONS)
        groups = bench.pick(100, MANY_GROUPS)
        answer, cpu_s = costed(broker.pid, "group_client", "consumer_groups", broker.kafka_port, "bench", groups, SIZE, seconds)
    yield Row(
        group="groups",
        case=name,
        measured=f"{answer['expelled']} of {answer['members']} members expelled, settled after {answer['settled_s']:.1f} s",
        ratio=float(answer["expelled"]),
        unit="members",
        goal=0.0,
        side=Goal.AT_MOST,
        note=f"{answer['beats_per_s']:,.0f} heartbeats/s; broker's CPU {cpu_s:.1f} s for all of it",
        details=answer,
    )


def _case_commits(backend: str, connections: int) -> Case:
    name = f"commits of {PARTITIONS} partitions, {connections} connections, {BACKENDS[backend]}"
    return Case("groups", name, lambda bench: _commits(bench, name, backend, connections))


_SETTLES = f"{MEMBERS} members settle after the last join"
_BESIDE = f"{GROUPS} groups of {SIZE} beside a flood"

_CONSUMERS = f"{CONSUMERS} members of a KIP-848 group settle after the last join"
_MANY = f"{MANY_GROUPS} KIP-848 groups of {SIZE}"

CASES = [
    Case("groups", _CONSUMERS, lambda bench: _consumers(bench, _CONSUMERS), goal=SETTLE_GOAL_S, side=Goal.AT_MOST, unit="s"),
    Case("groups", _MANY, lambda bench: _many_consumers(bench, _MANY), goal=0.0, side=Goal.AT_MOST, unit="members"),
    *(_case_commits(backend, connections) for backend in (LOCAL_NEVER, LOCAL_ALWAYS) for connections in (1, 64)),
    Case("groups", _SETTLES, lambda bench: _rebalance(bench, _SETTLES), goal=SETTLE_GOAL_S, side=Goal.AT_MOST, unit="s"),
    Case(
        "groups",
        _BESIDE,
        lambda bench: _members(bench, _BESIDE),
        needs_compiler=True,
        goal=0.0,
        side=Goal.AT_MOST,
        unit="members",
    ),
]
