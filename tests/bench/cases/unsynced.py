"""Produce with `wal.fsync=never`, compared with `always`: users who trade safety for speed must not lose speed.

Two brokers with a directory each; samples of both in turn. One case sends with librdkafka (1 KB values, batches of 64 KB, many
requests in flight), the others with the load client. Nothing is pinned: the WAL thread works beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tests.bench.brokers import Broker
from tests.bench.cases.durable import shape
from tests.bench.clients import costed
from tests.bench.harness import LOCAL_ALWAYS, LOCAL_NEVER, Bench, Case, sample
from tests.bench.native import Shape
from tests.bench.report import Goal, Row, format_rate, paired

TOPIC = "bench"
SAMPLE_BYTES_MAX = 512 << 20
VALUE_BYTES = 1000
CLIENT_BATCH_BYTES = 64 << 10

Taken = tuple[float, float]
"""Rate in bytes/s, and the broker's CPU-seconds per byte."""


def _librdkafka(bench: Bench, broker: Broker) -> Taken:
    arguments = broker.kafka_port, TOPIC, VALUE_BYTES, CLIENT_BATCH_BYTES, "none", bench.sample_s * 2
    sent, cpu_s = costed(broker.pid, "rdkafka", "produce", *arguments)
    size = sent["records"] * VALUE_BYTES
    return size / sent["seconds"], cpu_s / size


def _loadgen(bench: Bench, broker: Broker, traffic: Shape) -> Taken:
    taken = sample(bench, broker.kafka_port, broker.pid, traffic, bytes_max=SAMPLE_BYTES_MAX, pinned=False)
    return taken.load.out_bytes_per_s, taken.server_cpu_s / (taken.load.answered * traffic.frame_bytes)


def _compare(bench: Bench, name: str, measure: Callable[[Broker], Taken]) -> Iterable[Row]:
    never: list[Taken] = []
    always: list[Taken] = []
    with bench.broker(LOCAL_NEVER) as unsynced, bench.broker(LOCAL_ALWAYS) as synced:
        for broker in (unsynced, synced):
            broker.create_topic(TOPIC, 8, {"retention.bytes": str(64 << 20)})
            measure(broker)
        for _ in range(bench.pairs):
            bench.wait_quiet()
            never.append(measure(unsynced))
            always.append(measure(synced))
    yield _row(f"{name}: rate", [rate for rate, _ in never], [rate for rate, _ in always], Goal.AT_LEAST)
    yield _row(f"{name}: CPU", [cpu for _, cpu in never], [cpu for _, cpu in always], Goal.AT_MOST)


def _row(case: str, never: Sequence[float], always: Sequence[float], side: Goal) -> Row:
    def text(values: Sequence[float]) -> str:
        middle = sorted(values)[len(values) // 2]
        return format_rate(middle) if side is Goal.AT_LEAST else f"{middle * 1e9:.2f} s/GB"

    ratio = paired(never, always)
    return Row(
        group="unsynced",
        case=case,
        measured=text(never),
        ceiling=text(always),
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        goal=1.0,
        side=side,
    )


def _case(name: str, measure: Callable[[Bench, Broker], Taken], needs_compiler: bool) -> Case:
    def run(bench: Bench) -> Iterable[Row]:
        return _compare(bench, name, lambda broker: measure(bench, broker))

    return Case("unsynced", name, run, needs_compiler=needs_compiler, goal=1.0)


def _load_case(name: str, batch_bytes: int, connections: int) -> Case:
    traffic = shape(batch_bytes, connections, 8)
    return _case(f"{name} x {connections} connections", lambda bench, broker: _loadgen(bench, broker, traffic), True)


CASES = [
    _case("librdkafka, 1 KB values", _librdkafka, False),
    _load_case("1 KB", 1 << 10, 32),
    _load_case("64 KB", 64 << 10, 32),
    _load_case("1 MB", 1 << 20, 8),
]
