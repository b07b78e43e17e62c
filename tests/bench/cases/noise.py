"""The noise floor: the bare peer against a second one of itself, measured exactly as the broker is.

The ratios should be 100 %. The deviation of single pairs is the deviation that any other single pair may have.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.bench import frames
from tests.bench.cases import fetch, produce
from tests.bench.harness import DISTURBED_CORES, Bench, Case, Pairs, Sample, cpu_note, others_cores, sample
from tests.bench.native import Shape
from tests.bench.report import Row, format_rate, paired


def _run(bench: Bench, name: str, traffic: Shape, *, received: bool) -> Iterable[Row]:
    assert bench.native is not None
    answer = frames.produce_response(produce.TOPIC, 0)
    records = fetch.canned_response(fetch.FETCH_BYTES)
    taken: Pairs[Sample] = Pairs(bench.pairs)
    peer = bench.native.ceiling
    with (
        peer(produce=answer, fetch=records, fetch_copies=fetch.COPIES) as one,
        peer(produce=answer, fetch=records, fetch_copies=fetch.COPIES) as two,
    ):
        for server in (one, two):
            sample(bench, server.port, server.pid, traffic, seconds=0.1)
        while not taken.enough:
            bench.wait_quiet()
            top = sample(bench, one.port, one.pid, traffic, bytes_max=produce.SAMPLE_BYTES_MAX)
            taken.add(top, sample(bench, two.port, two.pid, traffic, bytes_max=produce.SAMPLE_BYTES_MAX))
    second, first = taken.quietest()
    ratio = paired([s.load.requests_per_s for s in second], [s.load.requests_per_s for s in first])
    rates = [[s.load.in_bytes_per_s if received else s.load.out_bytes_per_s for s in samples] for samples in (second, first)]
    measured, ceiling = (format_rate(sorted(side)[len(side) // 2]) for side in rates)
    note = cpu_note(second, first, received=received)
    yield Row(
        group="noise",
        case=name,
        measured=measured,
        ceiling=ceiling,
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        disturbed=others_cores(second + first) > DISTURBED_CORES,
        note=note,
    )


def _case(name: str, traffic: Shape, *, received: bool) -> Case:
    return Case("noise", name, lambda bench: _run(bench, name, traffic, received=received), needs_compiler=True)


CASES = [
    *(
        _case(f"produce {name} x {window}, peer of peer", produce.shape(size, window), received=False)
        for name, size, window, _ in produce.SHAPES
    ),
    _case("fetch 1 MB, peer of peer", fetch.shape(0, 1), received=True),
]
