"""Durable produce (`wal.fsync=always`), as a share of the rate that the same disk reaches with a bare stream of durable writes.

The raw stream writes blocks of the size that a group commit of that shape has at best: half or all of the bytes in flight.
Nothing is pinned: the broker's writer is a thread beside its loop.

A disk has two ceilings. Rewriting a file of zeros shows the disk's own limit. Writing into space that was only allocated shows
the limit for a log that keeps its data: each such write also writes to the file system's journal. The broker is compared with
both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from tests.bench import frames
from tests.bench.harness import DISTURBED_CORES, LOCAL_ALWAYS, Bench, Case, Pairs, Sample, others_cores, sample
from tests.bench.native import Disk, Shape
from tests.bench.report import Goal, Row, format_rate, paired

TOPIC = "bench"
SAMPLE_BYTES_MAX = 2 << 30
NEW_ROOM = ", into new room"
FIRST_WRITES = 5
"""Streams into fresh space; their median counts."""
PAUSE_US = 150
"""Approximate pause between two writes of one idle client. A disk is slower with pauses than in a stream."""


def shape(batch_bytes: int, connections: int, partitions: int) -> Shape:
    """One request in flight on each connection; each connection always writes to the same partition."""
    batch = frames.batch(batch_bytes)
    requests = [frames.produce_request(TOPIC, partition, batch) for partition in range(partitions)]
    return Shape(frames=requests, window=1, connections=connections, error_at=frames.produce_error_at(TOPIC), per_connection=True)


def _pairs(bench: Bench, traffic: Shape, partitions: int, block_bytes: int) -> tuple[list[Sample], list[Disk]]:
    assert bench.native is not None
    taken: Pairs[Disk] = Pairs(bench.pairs)
    with bench.broker(LOCAL_ALWAYS) as broker:
        broker.create_topic(TOPIC, partitions)
        sample(bench, broker.kafka_port, broker.pid, traffic, seconds=0.2, bytes_max=256 << 20, pinned=False)
        while not taken.enough:
            bench.wait_quiet()
            raw = bench.native.rawdisk(bench.directory, block_bytes, seconds=bench.sample_s / 2)
            taken.add(raw, sample(bench, broker.kafka_port, broker.pid, traffic, bytes_max=SAMPLE_BYTES_MAX, pinned=False))
    return taken.quietest()


def _bare(bench: Bench, traffic: Shape) -> Sample:
    """The bare peer's result with the same traffic."""
    assert bench.native is not None
    with bench.native.ceiling(produce=frames.produce_response(TOPIC, 0), pinned=False) as peer:
        return sample(bench, peer.port, peer.pid, traffic, bytes_max=SAMPLE_BYTES_MAX, pinned=False)


def _first_writes(bench: Bench, block_bytes: int) -> list[Disk]:
    """The raw stream's result in space that was only allocated."""
    native = bench.native
    assert native is not None
    return [native.rawdisk(bench.directory, block_bytes, seconds=bench.sample_s, filled=False) for _ in range(FIRST_WRITES)]


def _throughput(
    bench: Bench, name: str, batch_bytes: int, connections: int, partitions: int, block_bytes: int, goal: float
) -> Iterable[Row]:
    traffic = shape(batch_bytes, connections, partitions)
    ours, raw = _pairs(bench, traffic, partitions, block_bytes)
    bare = _bare(bench, traffic)
    bare_cpu = bare.server_cpu_s / (bare.load.answered * traffic.frame_bytes) * 1e9
    middle = sorted(ours, key=lambda s: s.load.out_bytes_per_s)[len(ours) // 2].load
    cpu = sum(s.server_cpu_s for s in ours) / sum(s.load.answered * traffic.frame_bytes for s in ours) * 1e9

    def row(case: str, ceiling: Sequence[float], note: str) -> Row:
        ratio = paired([s.load.out_bytes_per_s for s in ours], ceiling)
        return Row(
            group="durable",
            case=case,
            measured=f"{format_rate(middle.out_bytes_per_s)}  {middle.requests_per_s / 1e3:.1f} k/s",
            ceiling=f"{format_rate(statistics.median(ceiling))} in {block_bytes >> 20} MiB writes",
            ratio=ratio.median,
            low=ratio.low,
            high=ratio.high,
            goal=goal,
            of_ceiling=True,
            disturbed=others_cores(ours) > DISTURBED_CORES,
            note=note,
        )

    yield row(
        name,
        [disk.bytes_per_s for disk in raw],
        f"p50 {middle.p50_us:.0f}, p99 {middle.p99_us:.0f} µs; CPU broker {cpu:.2f} s/GB; the bare peer, which writes "
        f"nothing, {format_rate(bare.load.out_bytes_per_s)} with {bare_cpu:.2f} s/GB{_direct(raw)}",
    )
    fresh = _first_writes(bench, block_bytes)
    yield row(
        name + NEW_ROOM,
        [statistics.median(disk.bytes_per_s for disk in fresh)] * len(ours),
        f"the same samples; {FIRST_WRITES} raw streams after them{_direct(fresh)}",
    )


def _idle(bench: Bench, name: str, batch_bytes: int, goal: float) -> Iterable[Row]:
    assert bench.native is not None
    traffic = shape(batch_bytes, 1, 1)
    ours, raw = _pairs(bench, traffic, 1, batch_bytes + 4096)
    ratio = paired([s.load.p50_us for s in ours], [d.p50_us for d in raw])
    paused = bench.native.rawdisk(bench.directory, batch_bytes + 4096, seconds=bench.sample_s, pause_us=PAUSE_US)
    bare = _bare(bench, traffic).load
    middle = sorted(ours, key=lambda s: s.load.p50_us)[len(ours) // 2].load
    yield Row(
        group="durable",
        case=name,
        measured=f"p50 {middle.p50_us:.0f} µs",
        ceiling=f"p50 {statistics.median(d.p50_us for d in raw):.0f} µs one write",
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        unit="x",
        goal=goal,
        side=Goal.AT_MOST,
        disturbed=others_cores(ours) > DISTURBED_CORES,
        note=f"p99 {middle.p99_us:.0f} µs; a raw write after a pause takes {paused.p50_us:.0f} µs, the bare peer, which writes "
        f"nothing, {bare.p50_us:.0f} µs{_direct(raw)}",
    )


def _direct(raw: list[Disk]) -> str:
    return "" if all(disk.direct for disk in raw) else "; no O_DIRECT here: the raw stream is O_DSYNC alone"


def _throughput_case(name: str, batch_bytes: int, connections: int, partitions: int, block_bytes: int, goal: float) -> Case:
    def run(bench: Bench) -> Iterable[Row]:
        return _throughput(bench, name, batch_bytes, connections, partitions, block_bytes, goal)

    return Case("durable", name, run, needs_compiler=True, goal=goal)


IDLE = "one idle client, 16 KB, p50 of one raw write"
CASES = [
    _throughput_case("64 KB x 32 connections, of the raw disk", 64 << 10, 32, 8, 2 << 20, 0.50),
    _throughput_case("1 MB x 8 connections, of the raw disk", 1 << 20, 8, 4, 4 << 20, 0.60),
    Case(
        "durable", IDLE, lambda bench: _idle(bench, IDLE, 16 << 10, 2.2), needs_compiler=True, goal=2.2, side=Goal.AT_MOST, unit="x"
    ),
]
