"""Produce on one pipelined connection, as a share of a bare C peer that reads the same bytes and sends answers of the same size.

Server on one core, client on another, peer and broker in adjacent pairs. The broker checks, indexes and keeps the batches; the
peer drops them. The peer pauses between two turns for the time with which it reaches its highest rate. At 1 KB the client, which
sends each request by itself, is then near its own limit.

The goals hold for the store `null:`, which has nothing behind the log: this compares the broker's own work with the peer's. With
the memory store and with `wal.fsync=never` (the page cache) the log's bytes go to memory that is touched for the first time.
That costs a virtual machine more than all work of the broker. Retention drops chunks there when more than a few exist.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from tests.bench import frames
from tests.bench.harness import (
    BACKENDS,
    DISTURBED_CORES,
    LOCAL_NEVER,
    MEMORY,
    NULL,
    Bench,
    Case,
    Pairs,
    Sample,
    cpu_note,
    others_cores,
    sample,
)
from tests.bench.native import Shape
from tests.bench.report import Row, format_rate, paired

TOPIC = "bench"
SHAPES = (("1 KB", 1 << 10, 50, 0.55), ("16 KB", 16 << 10, 16, 0.50), ("64 KB", 64 << 10, 8, 0.45), ("1 MB", 1 << 20, 4, 0.65))
"""Name, batch bytes, requests in flight, goal."""
UNJUDGED = [shape[:3] for shape in SHAPES]
WARM_UP_BYTES = 320 << 20
"""A little more than the broker keeps in memory by default: from then on it reuses memory that it has used before."""
WARM_UP_S = 2.0
SAMPLE_BYTES_MAX = 512 << 20
BROKER_BYTES_MAX = 3 << 30
"""The broker is restarted after this many bytes: one that falls behind with its retention must not fill the machine's memory."""
FORGETFUL = {
    "wal.chunk.bytes": "16MiB",
    "wal.checkpoint.chunks": "1",
    "wal.checkpoint.interval.ms": "20",
    "retention.check.interval.ms": "20",
    "log.level": "warning",
}
RESTS_US = (0, 10, 20, 30, 50, 100, 150)
"""Pauses of the peer between two turns, us. The benchmark first finds the best one, and then compares."""
REST_TRIES = 3
RETAINED = {"retention.bytes": str(64 << 20)}


def shape(batch_bytes: int, window: int, *, burst: bool = False) -> Shape:
    """Produce requests with one batch of that size each."""
    request = frames.produce_request(TOPIC, 0, frames.batch(batch_bytes))
    return Shape(frames=[request], window=window, error_at=frames.produce_error_at(TOPIC), burst=burst)


def best_rest_us(bench: Bench, traffic: Shape) -> int:
    """The value of RESTS_US with which the peer reaches its highest rate. A ceiling that could be higher would be wrong."""
    assert bench.native is not None
    reached: dict[int, float] = {}
    for rest_us in RESTS_US:
        with bench.native.ceiling(produce=frames.produce_response(TOPIC, 0), rest_us=rest_us) as peer:
            tries = [sample(bench, peer.port, peer.pid, traffic, bytes_max=SAMPLE_BYTES_MAX) for _ in range(REST_TRIES)]
        reached[rest_us] = statistics.median(each.load.requests_per_s for each in tries)
    return max(reached, key=reached.__getitem__)


def pairs(bench: Bench, traffic: Shape, backend: str) -> tuple[list[Sample], list[Sample]]:
    """Adjacent samples of (broker, ceiling)."""
    assert bench.native is not None
    taken: Pairs[Sample] = Pairs(bench.pairs)
    with bench.native.ceiling(produce=frames.produce_response(TOPIC, 0), rest_us=best_rest_us(bench, traffic)) as peer:
        while not taken.enough:
            with bench.broker(backend, pinned=True, settings=FORGETFUL if backend == MEMORY else None) as broker:
                broker.create_topic(TOPIC, config=RETAINED if backend == MEMORY else None)
                sample(bench, broker.kafka_port, broker.pid, traffic, seconds=WARM_UP_S, bytes_max=WARM_UP_BYTES)
                sent = WARM_UP_BYTES
                while not taken.enough and sent < BROKER_BYTES_MAX:
                    bench.wait_quiet()
                    top = sample(bench, peer.port, peer.pid, traffic, bytes_max=SAMPLE_BYTES_MAX)
                    taken.add(top, sample(bench, broker.kafka_port, broker.pid, traffic, bytes_max=SAMPLE_BYTES_MAX))
                    sent += SAMPLE_BYTES_MAX
    return taken.quietest()


def row(case: str, goal: float | None, ours: list[Sample], ceiling: list[Sample]) -> Row:
    """The median of the pairs' ratios, with the medians of both sides."""
    ratio = paired([s.load.requests_per_s for s in ours], [s.load.requests_per_s for s in ceiling])
    middle, top = (sorted(samples, key=lambda s: s.load.requests_per_s)[len(samples) // 2].load for samples in (ours, ceiling))
    return Row(
        group="produce",
        case=case,
        measured=f"{format_rate(middle.out_bytes_per_s)}  {middle.requests_per_s / 1e3:.1f} k/s",
        ceiling=f"{format_rate(top.out_bytes_per_s)}  {top.requests_per_s / 1e3:.1f} k/s",
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        goal=goal,
        of_ceiling=True,
        disturbed=others_cores(ours + ceiling) > DISTURBED_CORES,
        note=f"{cpu_note(ours, ceiling, received=False)}; p50 {middle.p50_us:.0f}, p99 {middle.p99_us:.0f} µs",
        details={
            "broker_p50_us": middle.p50_us,
            "broker_p99_us": middle.p99_us,
            "ceiling_p50_us": top.p50_us,
            "ceiling_p99_us": top.p99_us,
        },
    )


def _case(name: str, batch_bytes: int, window: int, goal: float | None, backend: str, *, burst: bool = False) -> Case:
    traffic = shape(batch_bytes, window, burst=burst)
    full = f"{name} x {window}{' in bursts' if burst else ''}, {BACKENDS[backend]}"

    def run(bench: Bench) -> Iterable[Row]:
        yield row(full, goal, *pairs(bench, traffic, backend))

    return Case("produce", full, run, needs_compiler=True, goal=goal)


CASES = [_case(*each, NULL) for each in SHAPES]
CASES += [_case(*each, None, backend) for backend in (MEMORY, LOCAL_NEVER) for each in UNJUDGED]
CASES.append(_case("1 KB", 1 << 10, 50, None, NULL, burst=True))
