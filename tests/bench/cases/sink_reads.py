"""Spark reads a topic: history by `read_topic`, and records that were produced live, both against Spark's Kafka source on Kafka.

Spark has one core, the servers the other one. History is what a flood and the sink made of the same Parquet files. Live records
come from librdkafka in batches of 16 KB to eight partitions in turn; the servers' files leave the page cache before each reading.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.brokers import Broker
from tests.bench.cases.cold import COLD, leave_cache
from tests.bench.cases.sink import PARTITIONS, SIZES, Size, World, parquet, settle, warm, worlds
from tests.bench.clients import client
from tests.bench.harness import Bench, Case
from tests.bench.kafka import Server
from tests.bench.native import BenchError, cpu_seconds
from tests.bench.report import Row

HISTORY_GOAL = 3.0
COLD_GOAL = 0.9
ROUNDS = 2
TOPIC = "live"
LIVE_BATCH_BYTES = 16_384


def _history(bench: Bench, size: Size) -> Iterable[Row]:
    rows = size.rows(bench)
    ours: list[float] = []
    theirs: list[float] = []
    with worlds(bench, one_core=True) as world:
        warm(world)
        path = parquet(world, size, rows)
        flood, sink = world.flood(path), world.sink(path)
        for command in (flood, sink):
            world.run(command)
        for _ in range(ROUNDS):
            settle()
            ours.append(_read(world, "read_natively", cluster=flood.arguments["cluster"], topic=flood.arguments["topic"]))
            theirs.append(_read(world, "read_kafka", bootstrap=world.kafka.bootstrap, topic=sink.arguments["topic"]))
    yield Row(
        group="sink", case=f"history, {size.name}: `read_topic`, of Spark's Kafka source on Kafka", unit="x", goal=HISTORY_GOAL,
        ratio=min(theirs) / min(ours), measured=f"{min(ours):.1f} s", ceiling=f"{min(theirs):.1f} s",
        note=f"{rows:,} rows; {world.kafka.note or 'best of each'}",
    )  # fmt: skip


def _read(world: World, do: str, **arguments: Any) -> float:
    return float(world.spark.run(do, **arguments)["seconds"])


def _cold(bench: Bench, size: Size) -> Iterable[Row]:
    rows = size.rows(bench)
    gigabytes = rows * size.value_bytes / 1e9
    with worlds(bench, one_core=True, settings=COLD) as world:
        if world.kafka.note:
            raise BenchError(f"there is no Apache Kafka to compare with: {world.kafka.note}")
        world.broker.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1"})
        sides: list[tuple[Broker | Server, Path]] = [(world.broker, Path(world.broker.store)), (world.kafka, world.kafka.place)]
        for server, _ in sides:
            client("rdkafka", "fill", server.kafka_port, TOPIC, size.value_bytes, LIVE_BATCH_BYTES, rows, PARTITIONS)
        times: list[list[float]] = [[], []]
        cpu_s: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for number, (server, place) in enumerate(sides):
                settle()
                leave_cache(place)
                before = cpu_seconds(server.pid)
                times[number].append(_read(world, "read_kafka", bootstrap=f"127.0.0.1:{server.kafka_port}", topic=TOPIC))
                cpu_s[number].append(cpu_seconds(server.pid) - before)
    (ours, theirs), (our_cpu, their_cpu) = (map(min, times), map(statistics.median, cpu_s))
    name = f"cold live records, {size.name}, Spark's Kafka source"
    yield Row(
        group="sink", case=f"{name}: speed, of Kafka's", goal=COLD_GOAL, ratio=theirs / ours,
        measured=f"{ours:.1f} s", ceiling=f"{theirs:.1f} s", note=f"{rows:,} records",
    )  # fmt: skip
    yield Row(
        group="sink", case=f"{name}: server CPU, of Kafka's", unit="x", ratio=our_cpu / their_cpu,
        measured=f"{our_cpu / gigabytes:.2f} s/GB", ceiling=f"{their_cpu / gigabytes:.2f} s/GB",
    )  # fmt: skip


CASES = [
    *(Case("sink", f"history of {size.name}", partial(_history, size=size), goal=HISTORY_GOAL, unit="x") for size in SIZES),
    *(Case("sink", f"cold live records of {size.name}", partial(_cold, size=size), goal=COLD_GOAL) for size in SIZES),
]
