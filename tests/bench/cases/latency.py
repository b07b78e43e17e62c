"""Produce latency at a steady rate, with librdkafka: from produce() to the ack, 1 KB values, acks=all."""

from __future__ import annotations

from collections.abc import Iterable

from tests.bench.clients import client
from tests.bench.harness import BACKENDS, LOCAL_ALWAYS, LOCAL_NEVER, Bench, Case
from tests.bench.report import Row

RATES = ((1000, 0), (1000, 5), (20_000, 5))
"""Records per second, and linger in ms."""


def _run(bench: Bench, name: str, rate: int, linger_ms: int, backend: str) -> Iterable[Row]:
    with bench.broker(backend) as broker:
        broker.create_topic("bench")
        answer = client("rdkafka", "paced", broker.kafka_port, "bench", rate, linger_ms, 1000, 2 if bench.quick else 8)
    yield Row(
        group="latency",
        case=name,
        measured=f"p50 {answer['p50_ms']:.2f}  p99 {answer['p99_ms']:.2f}  p99.9 {answer['p999_ms']:.2f} ms",
        note=f"{answer['records']:,} records; the client itself was at worst {answer['late_max_ms']:.1f} ms late",
        details=answer,
    )


def _case(rate: int, linger_ms: int, backend: str) -> Case:
    name = f"{rate:,} records/s, linger {linger_ms} ms, {BACKENDS[backend]}"
    return Case("latency", name, lambda bench: _run(bench, name, rate, linger_ms, backend))


CASES = [_case(rate, linger_ms, backend) for backend in (LOCAL_NEVER, LOCAL_ALWAYS) for rate, linger_ms in RATES]
