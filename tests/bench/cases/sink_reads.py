"""Spark reads a topic: history by `read_topic`, and records that were produced live, both against Spark's Kafka source on Kafka.

Spark has one core, the servers the other one. History is what a flood and the sink made of the same Parquet files. Live records
come from librdkafka in batches of 16 KB to eight partitions in turn; the servers' files leave the page cache before each reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.brokers import Broker
from tests.bench.cases.cold import BYTES_GOAL, COLD, CPU_GOAL, HOT, REQUESTS_GOAL, leave_cache, store_reads
from tests.bench.cases.sink import PARTITIONS, SIZES, Size, World, parquet, settle, warm, worlds
from tests.bench.clients import client
from tests.bench.harness import LOCAL_ALWAYS, Bench, Case, quietly
from tests.bench.kafka import Server
from tests.bench.native import BenchError, cpu_seconds
from tests.bench.report import Goal, Row

HISTORY_GOAL = 3.0
COLD_GOAL = 0.9
ROUNDS = 2
TOPIC = "live"
LIVE_BATCH_BYTES = 16_384


def _history(bench: Bench, size: Size) -> Iterable[Row]:
    rows = size.rows(bench)
    ours: list[float] = []
    theirs: list[float] = []
    disturbed = False
    with worlds(bench, one_core=True) as world:
        warm(world)
        path = parquet(world, size, rows)
        flood, sink = world.flood(path), world.sink(path)
        for command in (flood, sink):
            world.spark.run(command.do, **command.arguments)
        topic, produced = flood.arguments["topic"], sink.arguments["topic"]
        sides = [
            (ours, partial(_read, world, "read_natively", cluster=flood.arguments["cluster"], topic=topic)),
            (theirs, partial(_read, world, "read_kafka", bootstrap=world.kafka.bootstrap, topic=produced)),
        ]
        for _ in range(ROUNDS):
            for times, read in sides:
                seconds, loud = quietly(read)
                times.append(seconds)
                disturbed |= loud
    yield Row(
        group="sink", case=f"history, {size.name}: `read_topic`, of Spark's Kafka source on Kafka", unit="x", goal=HISTORY_GOAL,
        ratio=min(theirs) / min(ours), measured=f"{min(ours):.1f} s", ceiling=f"{min(theirs):.1f} s", disturbed=disturbed,
        note=f"{rows:,} rows; {world.kafka.note or 'best of each'}",
    )  # fmt: skip


def _read(world: World, do: str, **arguments: Any) -> float:
    settle()
    return float(world.spark.run(do, **arguments)["seconds"])


@dataclass(frozen=True, slots=True)
class Side:
    """A server with the live records. `place`: its files, which leave the page cache before each reading; None: it reads memory."""

    server: Broker | Server
    place: Path | None


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds of one reading, and the server's CPU-seconds, requests to the store and bytes from it."""

    seconds: float
    cpu_s: float
    requests: float
    store_bytes: float
    disturbed: bool = False


def _cold(bench: Bench, size: Size) -> Iterable[Row]:
    rows = size.rows(bench)
    with (
        worlds(bench, one_core=True, settings=COLD) as world,
        bench.broker(LOCAL_ALWAYS, pinned=True, settings=HOT) as memory,
    ):
        if world.kafka.note:
            raise BenchError(f"there is no Apache Kafka to compare with: {world.kafka.note}")
        sides = [Side(world.broker, Path(world.broker.store)), Side(memory, None), Side(world.kafka, world.kafka.place)]
        for side in sides:
            if isinstance(side.server, Broker):
                side.server.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1"})
            client("rdkafka", "fill", side.server.kafka_port, TOPIC, size.value_bytes, LIVE_BATCH_BYTES, rows, PARTITIONS)

        def by_spark(port: int) -> float:
            return float(world.spark.run("read_kafka", bootstrap=f"127.0.0.1:{port}", topic=TOPIC)["seconds"])

        def by_consumer(port: int) -> float:
            return float(client("rdkafka", "consume", port, TOPIC, rows, PARTITIONS, core=bench.cores.client)["seconds"])

        for reader, read in {"Spark's Kafka source": by_spark, "one consumer": by_consumer}.items():
            taken: list[list[Reading]] = [[], [], []]
            for _ in range(ROUNDS):
                for side, readings in zip(sides, taken, strict=True):
                    reading, disturbed = quietly(partial(_reading, side, read))
                    readings.append(replace(reading, disturbed=disturbed))
            yield from _cold_rows(f"cold live records, {size.name}, {reader}", rows * size.value_bytes, *taken)


def _reading(side: Side, read: Callable[[int], float]) -> Reading:
    settle()
    if side.place is not None:
        leave_cache(side.place)
    pid, before = side.server.pid, _store_reads(side)
    cpu_s = cpu_seconds(pid)
    seconds = read(side.server.kafka_port)
    cpu_s = cpu_seconds(pid) - cpu_s
    requests, store_bytes = (now - then for now, then in zip(_store_reads(side), before, strict=True))
    return Reading(seconds, cpu_s, requests, store_bytes)


def _store_reads(side: Side) -> tuple[float, float]:
    return store_reads(side.server) if isinstance(side.server, Broker) else (0.0, 0.0)


def _cold_rows(name: str, size: int, cold: list[Reading], hot: list[Reading], kafka: list[Reading]) -> Iterable[Row]:
    """`size`: bytes of all values."""
    disturbed = any(one.disturbed for some in (cold, hot, kafka) for one in some)
    ours, memory, theirs = (min(one.seconds for one in some) for some in (cold, hot, kafka))
    cpu, hot_cpu, their_cpu = (min(one.cpu_s for one in some) / size * 1e9 for some in (cold, hot, kafka))
    common: dict[str, Any] = {"group": "sink", "disturbed": disturbed}
    yield Row(
        case=f"{name}: speed, of Kafka's", goal=COLD_GOAL, ratio=theirs / ours, measured=f"{ours:.1f} s",
        ceiling=f"{theirs:.1f} s", note=f"{size / 1e9:g} GB of values; from memory {memory:.1f} s", **common,
    )  # fmt: skip
    yield Row(
        case=f"{name}: server CPU, of hot reads", unit="x", ratio=cpu / hot_cpu, goal=CPU_GOAL, side=Goal.AT_MOST,
        measured=f"{cpu:.2f} s/GB", ceiling=f"{hot_cpu:.2f} s/GB", note=f"Kafka {their_cpu:.2f} s/GB", **common,
    )  # fmt: skip
    requests, store_bytes = (max(getattr(one, field) for one in cold) / size for field in ("requests", "store_bytes"))
    yield Row(case=f"{name}: store requests", unit="per MB", ratio=requests * 1e6, goal=REQUESTS_GOAL, side=Goal.AT_MOST, **common)
    yield Row(case=f"{name}: store bytes", unit="of served", ratio=store_bytes, goal=BYTES_GOAL, side=Goal.AT_MOST, **common)


CASES = [
    *(Case("sink", f"history of {size.name}", partial(_history, size=size), goal=HISTORY_GOAL, unit="x") for size in SIZES),
    *(Case("sink", f"cold live records of {size.name}", partial(_cold, size=size), goal=COLD_GOAL) for size in SIZES),
]
