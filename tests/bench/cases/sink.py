"""Floods against Spark's own Kafka sink: the same Parquet files, once into Headgate by reference, once into a real Apache Kafka.

One Spark session does both jobs, in turn. "One core": Spark has one core; both servers and a live producer have the other one.
"Two cores": Spark and the servers share both. Each server has its own default durability. The sink waits for all replicas and
has the producer's settings that were the fastest here, of batches from 16 KB to 1 MB and compression with none, lz4 and zstd.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.brokers import Broker
from tests.bench.clients import client, live
from tests.bench.harness import LOCAL_ALWAYS, Bench, Case, quietly, remove_tree
from tests.bench.kafka import Server, connector_jars, server
from tests.bench.native import cpu_seconds, tree_seconds
from tests.bench.report import Goal, Row
from tests.bench.spark_driver import VALUE_BYTES, Driver, driver

PARTITIONS = 8
SINK = {"acks": "all", "batch.size": "262144", "linger.ms": "20", "buffer.memory": "134217728"}
SINK_NOTE = "sink: acks=all, batches of 256 KB, linger 20 ms, no compression"
SETTLE_S = 2.0
"""Pause before each job, so that work for the job before it does not count."""
LIVE_START_S = 1.5
QUIET_S = 5.0
LIVE_GOAL = 1.2
CPU_GOAL = 0.01
TOTAL_GOAL = 1.3
TWO_CORES_GOAL = 2.0
TEXT_GOAL = 1.0
TEXT_ROWS = 10_000_000
TEXTS = {"csv": "CSV", "json": "JSON lines"}


@dataclass(frozen=True, slots=True)
class Size:
    """A source: bytes of a value, rows of a file, rows in a quick and in a full run, rounds in a full run, and the goal on one
    core."""

    name: str
    value_bytes: int
    file_rows: int
    rows_quick: int
    rows_full: int
    rounds_full: int
    goal: float

    def rows(self, bench: Bench) -> int:
        return bench.pick(self.rows_quick, self.rows_full)

    def rounds(self, bench: Bench) -> int:
        return bench.pick(2, self.rounds_full)


SIZES = (
    Size("100 B", VALUE_BYTES, 500_000, 500_000, 5_000_000, 3, 1.5),
    Size("1 KB", 1000, 50_000, 200_000, 2_000_000, 2, 1.3),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One job: its seconds, the CPU-seconds of Spark, of its server and of the idle server meanwhile, the live producer's p99 in ms
    before and during it, the job's answer, and whether other processes disturbed it."""

    seconds: float
    spark_cpu_s: float
    cpu_s: float
    idle_cpu_s: float
    quiet_ms: float
    live_ms: float
    answer: dict[str, Any]
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the Spark driver that fills a new topic: (the topic's server, the other server)."""

    do: str
    arguments: dict[str, Any]
    into: Broker | Server
    other: Broker | Server


@dataclass(kw_only=True)
class World:
    """A Spark driver and both servers. `core`: of the live producer, which `with_live` asks for."""

    bench: Bench
    spark: Driver
    broker: Broker
    kafka: Server
    place: Path
    core: int | None
    with_live: bool
    topics: int = 0

    def flood(self, path: str, **more: Any) -> Command:
        """A flood of the source into a new topic."""
        topic = self._topic()
        self.broker.create_topic(topic, PARTITIONS)
        given = {"path": path, "cluster": f"127.0.0.1:{self.broker.grpc_port}", "topic": topic, "partitions": PARTITIONS, **more}
        return Command("flood", given, self.broker, self.kafka)

    def sink(self, path: str, settings: Mapping[str, str] = SINK, **more: Any) -> Command:
        """The source through Spark's sink into a new topic."""
        topic = self._topic()
        client("rdkafka", "create_topic", self.kafka.kafka_port, topic, PARTITIONS)
        given = {"path": path, "bootstrap": self.kafka.bootstrap, "topic": topic, "settings": dict(settings), **more}
        return Command("sink", given, self.kafka, self.broker)

    def _topic(self) -> str:
        self.topics += 1
        return f"t{self.topics}"

    def run(self, command: Callable[[], Command]) -> Job:
        """Make a command, run it and measure it; again if other processes disturb it."""
        job, disturbed = quietly(lambda: self._run(command()))
        return replace(job, disturbed=disturbed)

    def _run(self, command: Command) -> Job:
        into, other, topic = command.into, command.other, command.arguments["topic"]
        settle()
        quiet_ms = during_ms = 0.0
        with contextlib.ExitStack() as stack:
            producer = None
            if self.with_live:
                quiet_ms = _quiet(into, topic, self.core)
                producer = stack.enter_context(live(into.kafka_port, topic, self.core))
                time.sleep(LIVE_START_S)
                producer.begin()
            own, idle, spark = cpu_seconds(into.pid), cpu_seconds(other.pid), tree_seconds(self.spark.pid)
            answer = self.spark.run(command.do, **command.arguments)
            own, idle = cpu_seconds(into.pid) - own, cpu_seconds(other.pid) - idle
            spark = tree_seconds(self.spark.pid) - spark
            if producer is not None:
                during_ms = producer.p99_ms()
        return Job(answer["seconds"], spark, own, idle, quiet_ms, during_ms, answer)


def settle() -> None:
    """Let the work for the last job end, and its files reach the disk."""
    os.sync()
    time.sleep(SETTLE_S)


def _quiet(into: Broker | Server, topic: str, core: int | None) -> float:
    """The live producer's p99 in ms while no job runs."""
    with live(into.kafka_port, topic, core) as producer:
        time.sleep(LIVE_START_S)
        producer.begin()
        time.sleep(QUIET_S)
        return producer.p99_ms()


@contextlib.contextmanager
def worlds(
    bench: Bench, *, one_core: bool = False, with_live: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[World]:
    """A Spark driver and both servers, empty. `settings`: of the broker."""
    jars = connector_jars()
    place = bench.fresh_directory("sink")
    try:
        with (
            driver(1 if one_core else 2, core=bench.cores.client if one_core else None, jars=jars) as spark,
            bench.broker(LOCAL_ALWAYS, pinned=one_core, settings=settings) as broker,
            server(bench, PARTITIONS, pinned=one_core) as kafka,
        ):
            core = bench.cores.server if one_core else None
            yield World(bench=bench, spark=spark, broker=broker, kafka=kafka, place=place, core=core, with_live=with_live)
    finally:
        remove_tree(place)


def parquet(world: World, size: Size, rows: int, *, ordered: bool = False) -> str:
    """The path of a source with so many rows. `ordered`: its files follow one another in time, as those of most lakes do."""
    path = tempfile.mkdtemp(dir=world.place) + "/source"
    world.spark.run("source", path=path, rows=rows, value_bytes=size.value_bytes, file_rows=size.file_rows, ordered=ordered)
    return path


def warm(world: World) -> None:
    """Both jobs once, so that no measured one compiles the servers' and Spark's code."""
    path = parquet(world, SIZES[0], SIZES[0].rows_quick)
    before, world.with_live = world.with_live, False
    world.run(partial(world.flood, path))
    world.run(partial(world.sink, path))
    world.with_live = before


def _rounds(world: World, path: str, rounds: int, **arguments: Any) -> tuple[list[Job], list[Job]]:
    """(floods, sinks) in turn."""
    floods, sinks = [], []
    for _ in range(rounds):
        floods.append(world.run(partial(world.flood, path, **arguments)))
        sinks.append(world.run(partial(world.sink, path, **arguments)))
    return floods, sinks


def _speed(case: str, rows: int, floods: list[Job], sinks: list[Job], goal: float | None, note: str) -> Row:
    """The sink's typical seconds, of the flood's."""
    ours, theirs = ([job.seconds for job in jobs] for jobs in (floods, sinks))
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    answer = {**floods[-1].answer, **{name: [asdict(job) for job in jobs] for name, jobs in (("floods", floods), ("sinks", sinks))}}
    return Row(
        group="sink", case=case, ratio=statistics.median(theirs) / statistics.median(ours), low=min(ratios), high=max(ratios),
        goal=goal, unit="x", measured=_seconds(ours), ceiling=_seconds(theirs), details=answer, disturbed=_any(floods, sinks),
        note=f"{rows:,} rows; flood by {answer['engine']}, counting {answer['counting']:.1f} s; {note}",
    )  # fmt: skip


def _work(case: str, floods: list[Job], sinks: list[Job]) -> Row:
    """The CPU time of the sink's job in Spark, of the flood's. Other processes of the machine disturb it less than its seconds."""
    ours, theirs = (min(job.spark_cpu_s for job in jobs) for jobs in (floods, sinks))
    return Row(
        group="sink", case=f"{case}: CPU of Spark, of the flood's", ratio=theirs / ours, unit="x",
        measured=f"{ours:.1f} s", ceiling=f"{theirs:.1f} s", note="driver, JVM and Python workers; the servers' comes on top",
    )  # fmt: skip


def _any(*jobs: list[Job]) -> bool:
    """Whether other processes disturbed one of the jobs."""
    return any(job.disturbed for some in jobs for job in some)


def _seconds(times: list[float]) -> str:
    """The typical and the best of some times."""
    return f"{statistics.median(times):.1f} s (best {min(times):.1f})"


def _one_core(bench: Bench, size: Size) -> Iterable[Row]:
    rows = size.rows(bench)
    with worlds(bench, one_core=True, with_live=True) as world:
        warm(world)
        path = parquet(world, size, rows)
        floods, sinks = _rounds(world, path, size.rounds(bench))
    name = f"{size.name}, one core"
    yield _speed(f"{name}: job time, of the sink's", rows, floods, sinks, size.goal, notes(world))
    yield _work(name, floods, sinks)
    yield _live(f"{name}: live p99 during the flood, of quiet", floods, LIVE_GOAL, "the broker syncs each ack to the flood's disk")
    yield _live(f"{name}: live p99 during the sink, of quiet", sinks, None, "Kafka does not sync")


def _live(case: str, jobs: list[Job], goal: float | None, note: str) -> Row:
    """The live producer's typical p99 during some jobs, of that before them."""
    during, quiet = (statistics.median(times) for times in ([job.live_ms for job in jobs], [job.quiet_ms for job in jobs]))
    return Row(
        group="sink", case=case, ratio=during / quiet, goal=goal, side=Goal.AT_MOST, unit="x",
        measured=f"{during:.2f} ms", ceiling=f"{quiet:.2f} ms", disturbed=_any(jobs),
        note=f"1,000 records/s of 1 KB, linger 0, on the server's core; {note}",
    )  # fmt: skip


def _unsynced(bench: Bench, size: Size) -> Iterable[Row]:
    """Live traffic during floods, when the broker leaves syncs to the operating system, as Kafka does."""
    with worlds(bench, one_core=True, with_live=True, settings={"wal.fsync": "never"}) as world:
        warm(world)
        path = parquet(world, size, size.rows(bench))
        floods = [world.run(partial(world.flood, path)) for _ in range(size.rounds(bench))]
    yield _live(f"{size.name}, one core: live p99 during the flood, of quiet, wal.fsync=never", floods, LIVE_GOAL, "no side syncs")


def _two_cores(bench: Bench, size: Size) -> Iterable[Row]:
    rows = size.rows(bench)
    name = f"{size.name}, two cores"
    with worlds(bench) as world:
        warm(world)
        path = parquet(world, size, rows)
        floods, sinks = _rounds(world, path, size.rounds(bench))
        yield _speed(f"{name}: job time, of the sink's", rows, floods, sinks, TWO_CORES_GOAL, notes(world))
        yield _work(name, floods, sinks)
        yield _cpu(name, floods, sinks)
        plain = world.run(partial(world.sink, path, {}))
    yield Row(
        group="sink", case=f"{name}: job time, of the sink's with Spark's default settings", unit="x",
        ratio=plain.seconds / statistics.median(job.seconds for job in floods), ceiling=f"{plain.seconds:.1f} s",
        disturbed=plain.disturbed,
    )  # fmt: skip


def _in_order(bench: Bench, size: Size) -> Iterable[Row]:
    """Files that follow one another in time: no row changes its task."""
    rows = size.rows(bench)
    name = f"{size.name}, files in order of time, two cores"
    with worlds(bench) as world:
        warm(world)
        floods, sinks = _rounds(world, parquet(world, size, rows, ordered=True), size.rounds(bench))
    yield _speed(f"{name}: job time, of the sink's", rows, floods, sinks, TWO_CORES_GOAL, notes(world))
    yield _work(name, floods, sinks)


def _cpu(name: str, floods: list[Job], sinks: list[Job]) -> Row:
    ours = min(own_cpu_s(job, sinks) for job in floods)
    theirs = min(own_cpu_s(job, floods) for job in sinks)
    return Row(
        group="sink", case=f"{name}: broker's CPU, of the sink's server", ratio=ours / theirs, goal=CPU_GOAL, side=Goal.AT_MOST,
        measured=f"{ours * 1e3:.0f} ms", ceiling=f"{theirs * 1e3:.0f} ms", disturbed=_any(floods, sinks),
        note="less what each spends during the other's job",
    )  # fmt: skip


def own_cpu_s(job: Job, others: list[Job]) -> float:
    """CPU-seconds of a job's server, without what the server takes while the other one's jobs run."""
    idle = statistics.median(other.idle_cpu_s / other.seconds for other in others)
    return max(job.cpu_s - idle * job.seconds, 0.0)


def notes(world: World) -> str:
    """What a reader must know about the sink."""
    return "; ".join(note for note in (SINK_NOTE, world.kafka.note) if note)


def _total(bench: Bench, size: Size) -> Iterable[Row]:
    """Both jobs in processes of their own, from the process's start to the job's end."""
    rows = size.rows(bench)
    ours: list[float] = []
    theirs: list[float] = []
    with worlds(bench) as world:
        warm(world)
        path = parquet(world, size, rows)
        jars = connector_jars()
        disturbed = []
        for _ in range(2):
            for times, command, needed in ((ours, partial(world.flood, path), []), (theirs, partial(world.sink, path), jars)):
                taken, loud = quietly(partial(_whole, command, needed))
                times.append(taken)
                disturbed.append(loud)
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    yield Row(
        group="sink", case=f"{size.name}, two cores: total time with the session's start, of the sink's", goal=TOTAL_GOAL, unit="x",
        ratio=statistics.median(theirs) / statistics.median(ours), low=min(ratios), high=max(ratios),
        measured=_seconds(ours), ceiling=_seconds(theirs), disturbed=any(disturbed), note=f"{rows:,} rows; {notes(world)}",
    )  # fmt: skip


def _whole(command: Callable[[], Command], jars: Sequence[Path]) -> float:
    """Seconds of a job in a process of its own, from the process's start."""
    made = command()
    settle()
    began = time.monotonic()
    with driver(2, jars=jars, warm=False) as spark:
        spark.run(made.do, **made.arguments)
        return time.monotonic() - began


def _text(bench: Bench, format: str) -> Iterable[Row]:
    """A source of text, which Spark infers to be text columns."""
    size, rows = SIZES[0], bench.pick(500_000, TEXT_ROWS)
    with worlds(bench) as world:
        warm(world)
        made = parquet(world, size, rows)
        path = f"{made}.{format}"
        world.spark.run("text", path=made, out=path, format=format)
        remove_tree(Path(made))
        floods, sinks = _rounds(world, path, bench.pick(2, 1), format=format)
    name = f"{TEXTS[format]}, two cores"
    yield _speed(f"{name}: job time, of the sink's", rows, floods, sinks, TEXT_GOAL, notes(world))
    yield _work(name, floods, sinks)


CASES = [
    case
    for size in SIZES
    for case in (
        Case("sink", f"{size.name} on one core", partial(_one_core, size=size), goal=size.goal, unit="x"),
        Case("sink", f"{size.name} on two cores", partial(_two_cores, size=size), goal=TWO_CORES_GOAL, unit="x"),
        Case(
            "sink", f"{size.name} with wal.fsync=never", partial(_unsynced, size=size), goal=LIVE_GOAL, side=Goal.AT_MOST, unit="x"
        ),
        Case("sink", f"{size.name} in order of time", partial(_in_order, size=size), goal=TWO_CORES_GOAL, unit="x"),
        Case("sink", f"{size.name}, total time", partial(_total, size=size), goal=TOTAL_GOAL, unit="x"),
    )
]
CASES += [Case("sink", name, partial(_text, format=format), goal=TEXT_GOAL, unit="x") for format, name in TEXTS.items()]
