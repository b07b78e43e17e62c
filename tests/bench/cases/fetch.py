"""Fetch of 1 MB answers from a broker's memory, as a share of a bare C peer that sends the same amount from its own.

The broker is filled first; the requests walk over the partition so that each answer has other bytes, and the peer walks over the
same amount of memory. The peer's answer has the length of the broker's answer: the shapes are the same, whatever length the
broker gives.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.bench import frames
from tests.bench.harness import BACKENDS, DISTURBED_CORES, MEMORY, Bench, Case, Pairs, Sample, cpu_note, others_cores, sample
from tests.bench.native import BenchError, Shape
from tests.bench.report import Row, format_rate, paired

TOPIC = "bench"
FETCH_BYTES = 1 << 20
COPIES = 64
"""MB that the requests walk over."""
GOAL = 0.85


def shape(step: int, count: int) -> Shape:
    """Fetches of FETCH_BYTES at offsets 0, step, 2 x step ...; two in flight, so that one always waits."""
    requests = [frames.fetch_request(TOPIC, 0, i * step, bytes_max=FETCH_BYTES) for i in range(count)]
    return Shape(frames=requests, window=2, error_at=frames.fetch_error_at(TOPIC))


def canned_response(records_bytes: int) -> bytes:
    """A response with this many bytes of records; no client reads their content."""
    return frames.fetch_response(TOPIC, 0, bytes(records_bytes), high_watermark=1 << 20)


def _run(bench: Bench, name: str, batch_bytes: int, goal: float | None) -> Iterable[Row]:
    assert bench.native is not None
    batch = frames.batch(batch_bytes)
    records_per_batch = int.from_bytes(batch[57:61], "big")
    per_fetch = FETCH_BYTES // batch_bytes
    fill = Shape(frames=[frames.produce_request(TOPIC, 0, batch)], window=8, error_at=frames.produce_error_at(TOPIC))
    taken: Pairs[Sample] = Pairs(bench.pairs)
    with bench.broker(MEMORY, pinned=True) as broker:
        broker.create_topic(TOPIC)
        bench.native.loadgen(broker.kafka_port, fill, seconds=30, requests_max=(COPIES + 1) * per_fetch)
        traffic = shape(per_fetch * records_per_batch, COPIES)
        first = sample(bench, broker.kafka_port, broker.pid, traffic, seconds=0.2)
        answer_bytes = round(first.load.bytes_in / first.load.requests)
        if answer_bytes < FETCH_BYTES // 2:
            raise BenchError(f"the broker's answers are not of the size that was asked for. bytes=`{answer_bytes}`")
        canned = canned_response(answer_bytes - frames.fetch_overhead_bytes(TOPIC))
        with bench.native.ceiling(fetch=canned, fetch_copies=COPIES) as peer:
            sample(bench, peer.port, peer.pid, traffic, seconds=0.1)
            while not taken.enough:
                bench.wait_quiet()
                top = sample(bench, peer.port, peer.pid, traffic)
                taken.add(top, sample(bench, broker.kafka_port, broker.pid, traffic))
    ours, ceiling = taken.quietest()
    ratio = paired([s.load.in_bytes_per_s for s in ours], [s.load.in_bytes_per_s for s in ceiling])
    middle, best = (sorted(samples, key=lambda s: s.load.in_bytes_per_s)[len(samples) // 2].load for samples in (ours, ceiling))
    yield Row(
        group="fetch",
        case=name,
        measured=format_rate(middle.in_bytes_per_s),
        ceiling=format_rate(best.in_bytes_per_s),
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        goal=goal,
        of_ceiling=True,
        disturbed=others_cores(ours + ceiling) > DISTURBED_CORES,
        note=f"{cpu_note(ours, ceiling, received=True)}; {answer_bytes / (1 << 20):.2f} MiB an answer",
        details={"answer_bytes": answer_bytes, "broker_p50_us": middle.p50_us, "ceiling_p50_us": best.p50_us},
    )


def _case(batch_name: str, batch_bytes: int, goal: float | None) -> Case:
    name = f"1 MB of {batch_name} batches, {BACKENDS[MEMORY]}"
    return Case("fetch", name, lambda bench: _run(bench, name, batch_bytes, goal), needs_compiler=True, goal=goal)


CASES = [_case("64 KB", 64 << 10, GOAL), _case("1 KB", 1 << 10, GOAL)]
