"""History by reference: rows to batches and back, and the rate at which Kafka clients get it.

Encoding is compared with a copy of the same keys and values, which it makes at least once. Both walk through more memory than a
cache holds, thousands of rows at a time; a batch is freed before the next one is made, as in the processes that encode for a
broker. Sizes of values vary by half around their mean. Reading is compared with reading the same records from Apache Kafka, by the
same client.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from headgate.broker.client import Producer
from tests.bench.brokers import Broker
from tests.bench.clients import client
from tests.bench.harness import LOCAL_ALWAYS, Bench, Case, remove_tree
from tests.bench.kafka import server
from tests.bench.native import tree_seconds
from tests.bench.rdkafka import values
from tests.bench.report import Goal, Row, format_rate, paired

KEY_BYTES = 16
GROUP_ROWS = 16_384
"""Rows that are encoded in one call."""
ENCODE_GOALS = {100: 0.13, 1000: 0.45}
"""Goal: share of the rate of memcpy, by value size in bytes."""
DECODE_GOALS = {100: 3.0, 1000: 1.6}
"""Goal: millions of rows per second and core, by value size in bytes."""
BESIDE_GOALS = {100: (2.5, 0.7), 1000: (1.8, 0.7)}
"""Goal: CPU s/GB of a first and of a second group, by value size in bytes."""


def _groups(value_bytes: int, total_bytes: int) -> list[Any]:
    """Row groups of random rows."""
    import numpy as np
    import pyarrow as pa

    source = np.random.default_rng(7)
    groups = []
    count = GROUP_ROWS
    for _ in range(max(total_bytes // (count * (value_bytes + KEY_BYTES)), 2)):
        columns = []
        for sizes in (np.full(count, KEY_BYTES), source.integers(value_bytes // 2, value_bytes * 3 // 2, count)):
            offsets = np.zeros(count + 1, np.int32)
            np.cumsum(sizes, out=offsets[1:])
            buffers: Any = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(source.bytes(int(offsets[-1])))]
            columns.append(pa.Array.from_buffers(pa.binary(), count, buffers))
        times = np.sort(source.integers(1_700_000_000_000, 1_700_000_000_000 + 20 * count, count))
        stamps = pa.array(times).cast(pa.timestamp("ms", tz="UTC"))
        groups.append(pa.RecordBatch.from_arrays([stamps, *columns], names=["timestamp", "key", "value"]))
    return groups


def _spent(call: Callable[[], object]) -> float:
    """CPU-seconds of this thread: other threads are not counted."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def _encode(bench: Bench, name: str, value_bytes: int) -> Iterable[Row]:
    import numpy as np
    from crc32c import crc32c

    from headgate.broker.log.history_columns import encode_batches

    groups = _groups(value_bytes, bench.pick(64, 192) << 20)
    rows = sum(group.num_rows for group in groups)
    sources = [np.frombuffer(group.column(column).buffers()[2], np.uint8) for group in groups for column in ("key", "value")]
    size = sum(source.nbytes for source in sources)
    target = np.zeros(size, np.uint8)

    def copy() -> None:
        at = 0
        for source in sources:
            target[at : at + len(source)] = source
            at += len(source)

    def copy_and_check() -> None:
        copy()
        crc32c(target)

    def encode() -> None:
        for group in groups:
            for batch in encode_batches(group, 0):
                del batch

    copy()
    encode()
    copied, checked, encoded = [], [], []
    for _ in range(bench.pairs):
        bench.wait_quiet()
        copied.append(size / _spent(copy))
        checked.append(size / _spent(copy_and_check))
        encoded.append(size / _spent(encode))
    ratio = paired(encoded, copied)
    median = statistics.median(encoded)
    yield Row(
        group="history",
        case=name,
        measured=f"{median * rows / size / 1e6:.1f} M rows/s {format_rate(median)}",
        ceiling=f"memcpy {format_rate(statistics.median(copied))}",
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        goal=ENCODE_GOALS[value_bytes],
        of_ceiling=True,
        note=f"{KEY_BYTES} B keys, {GROUP_ROWS:,} rows a call, CRC-32C included: memcpy and CRC-32C of everything at once "
        f"{paired(checked, copied).median:.0%}",
    )


def _decode(bench: Bench, name: str, value_bytes: int, batch_bytes: int) -> Iterable[Row]:
    from headgate.broker.log.history_columns import decode_batches, encode_batches

    groups = _groups(value_bytes, bench.pick(32, 96) << 20)
    # Sizes as in one answer to a fetch.
    encoded = [b"".join(encode_batches(group, 0, batch_bytes_max=batch_bytes)) for group in groups]
    rows = sum(group.num_rows for group in groups)

    def decode() -> None:
        for batches in encoded:
            decode_batches([batches])

    decode()
    rates = []
    for _ in range(bench.pairs):
        bench.wait_quiet()
        rates.append(rows / _spent(decode) / 1e6)
    yield Row(
        group="history",
        case=name,
        measured=format_rate(statistics.median(rates) * 1e6 * (value_bytes + KEY_BYTES)),
        ratio=statistics.median(rates),
        low=min(rates),
        high=max(rates),
        unit="M rows/s",
        goal=DECODE_GOALS[value_bytes],
        note=f"{KEY_BYTES} B keys; CRC-32C checked; one thread's CPU time",
    )


def publish(broker: Broker, topic: str, rows: int, value_bytes: int, *, keys: bool = False) -> None:
    """History with the same values as those of `rdkafka produce`. `keys`: divide the rows among the topic's partitions."""
    import pyarrow as pa

    pool = values(value_bytes)
    indices = pa.array(range(len(pool)))
    repeats = -(-rows // len(pool))
    value = pa.chunked_array([pa.array(pool, pa.binary()).take(indices) for _ in range(repeats)]).slice(0, rows)
    key: Any = pa.array(map(str, range(rows))) if keys else pa.nulls(rows)
    table = pa.table({"timestamp": pa.array(range(rows)), "key": key, "value": value})

    async def publish() -> None:
        async with Producer(f"127.0.0.1:{broker.grpc_port}") as producer:
            await producer.publish_table(topic, table)

    asyncio.run(publish())


def _beside_kafka(bench: Bench, name: str, value_bytes: int) -> Iterable[Row]:
    """One consumer of history, and another group after it; and one consumer of the same records in Apache Kafka. Server and client
    have a core each. The CPU is that of the server with its encoders."""
    rows = bench.pick(200, 1000) * 1_000_000 // value_bytes
    gigabytes = rows * value_bytes / 1e9
    speeds: dict[str, list[float]] = {"a first group": [], "a second group": [], "Kafka": []}
    costs: dict[str, list[float]] = {who: [] for who in speeds}

    def read(who: str, pid: int, port: int, topic: str) -> None:
        bench.wait_quiet()
        before = tree_seconds(pid)
        answer = client("rdkafka", "consume", port, topic, rows, core=bench.cores.client)
        costs[who].append((tree_seconds(pid) - before) / gigabytes)
        speeds[who].append(answer["records"] * value_bytes / answer["seconds"])

    with server(bench, 1, pinned=True) as kafka:
        client("rdkafka", "fill", kafka.kafka_port, "history", value_bytes, 1 << 20, rows, 1)
        for number in range(bench.pick(2, 3)):
            cache = bench.fresh_directory("cache")
            with bench.broker(LOCAL_ALWAYS, pinned=True, settings={"history.cache_dir": str(cache)}) as broker:
                broker.create_topic("history")
                publish(broker, "history", rows, value_bytes)
                for who in ("a first group", "a second group"):
                    read(who, broker.pid, broker.kafka_port, "history")
            remove_tree(cache)
            read("Kafka", kafka.pid, kafka.kafka_port, "history")
            if number == 0:  # one-time loads
                for found in (*speeds.values(), *costs.values()):
                    found.clear()
    for who, goal in zip(("a first group", "a second group"), BESIDE_GOALS[value_bytes], strict=True):
        yield Row(
            group="history",
            case=f"{who}, {value_bytes} B values: CPU, beside Kafka's",
            measured=f"{statistics.median(costs[who]):.2f} s/GB, {format_rate(statistics.median(speeds[who]))}",
            ceiling=f"{statistics.median(costs['Kafka']):.2f} s/GB, {format_rate(statistics.median(speeds['Kafka']))}",
            ratio=statistics.median(costs[who]),
            low=min(costs[who]),
            high=max(costs[who]),
            unit="s/GB",
            goal=goal,
            side=Goal.AT_MOST,
            note=kafka.note or "the second group reads what history_cache_dir keeps",
        )


def _case(name: str, run: Callable[[Bench, str], Iterable[Row]], goal: float | None = None, unit: str = "%") -> Case:
    return Case("history", name, lambda bench: run(bench, name), goal=goal, unit=unit)


CASES = [
    *[
        _case(f"encode, {size} B values", lambda bench, name, size=size: _encode(bench, name, size), goal)
        for size, goal in ENCODE_GOALS.items()
    ],
    *[
        _case(
            f"decode, {size} B values, {batch_name} batches",
            lambda bench, name, size=size, batch=batch: _decode(bench, name, size, batch),
            goal,
            "M rows/s",
        )
        for size, goal in DECODE_GOALS.items()
        for batch, batch_name in ((1 << 20, "1 MB"), (64 << 10, "64 KB"))
    ],
    *[
        _case(f"beside Apache Kafka, {size} B values", lambda bench, name, size=size: _beside_kafka(bench, name, size))
        for size in BESIDE_GOALS
    ],
]
