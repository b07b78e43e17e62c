"""A cluster of three brokers.

Measured: how long writers wait when one broker is killed, and when segments are split, merged and moved; the cost of an ack with
and without a follower; the cost of a change of the manifest, for long and short histories. A librdkafka producer (idempotent,
otherwise with its defaults) writes to all partitions in turn. A record's wait is from produce() to its ack; a result is the
longest wait in a partition, over the affected partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from headgate.broker.client.control import Control, Segment
from headgate.broker.cluster.edits.incarnations import AddChunks, OpenIncarnation
from headgate.broker.cluster.edits.topics import CreateTopic
from headgate.broker.cluster.objects import Chunk, Extent, Incarnation, Topic
from headgate.broker.engine.catalog import LocalCatalog
from headgate.broker.store.local import LocalStore
from tests.bench import brokers
from tests.bench.harness import Bench, Case, remove_tree
from tests.bench.native import BenchError, free_port
from tests.bench.report import Goal, Row
from tests.support.s3_server import MotoServer

BROKERS = 3
PARTITIONS = 12
TOPIC = "bench"
RATE_PER_S = 1_200
VALUE = b"x" * 1_000
SETTLE_S = 1.0
PATIENCE_S = 60.0

FAILOVER_GOAL_S = 2.0
FAILOVER_WORST_GOAL_S = 5.0
RESHARD_GOAL_MS = 500.0
COMMIT_GOAL = 1.5
EXTENTS = (10, 1_000, 100_000)
EXTENTS_PER_CHUNK = 8


class Writer:
    """Writes a steady stream. `waits`: (partition, time of produce(), seconds until the ack) of every record."""

    def __init__(self, bootstrap: str, topic: str = TOPIC) -> None:
        self.waits: list[tuple[int, float, float]] = []
        self.failed = ""
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-writer")
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            for _ in range(PARTITIONS):
                self._produce(number % PARTITIONS)
                number += 1
            self._producer.poll(PARTITIONS / RATE_PER_S)
        if self._producer.flush(PATIENCE_S):
            self.failed = self.failed or "records were not acked"

    def _produce(self, partition: int) -> None:
        at = time.perf_counter()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed = self.failed or str(error)
            else:
                self.waits.append((partition, at, time.perf_counter() - at))

        with contextlib.suppress(BufferError):
            self._producer.produce(self._topic, VALUE, partition=partition, on_delivery=delivered)

    def acked_since(self, at: float) -> set[int]:
        """Partitions with an acked record that was produced after a moment."""
        return {partition for partition, produced, _ in self.waits[-20_000:] if produced > at}

    def longest(self, partitions: Iterable[int], since: float, until: float) -> float:
        """The longest wait of the records that were produced in a span of time."""
        wanted = set(partitions)
        return max((wait for number, at, wait in self.waits if number in wanted and since <= at <= until), default=0.0)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self.failed:
            raise BenchError(f"a record failed. error=`{self.failed}`")


class Cluster:
    """Three broker processes on one store, and the clients' view of them. `environment`: additional variables for the store."""

    def __init__(self, bench: Bench, store: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._bench, self._store, self._environment = bench, store, environment
        self._ports = [(free_port(), free_port(), free_port()) for _ in range(BROKERS)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * BROKERS
        self.bootstrap = ",".join(f"127.0.0.1:{kafka}" for kafka, _, _ in self._ports)
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def start(self, number: int) -> None:
        log = self._bench.directory / f"cluster.{number}.log"
        with log.open("ab") as sink:
            command = [*brokers.command(self._store, *self._ports[number - 1]), "--broker-id", str(number)]
            environment = brokers.environment({}) | dict(self._environment)
            process = subprocess.Popen(
                command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, cwd=brokers.ROOT, env=environment
            )
        self._processes[number - 1] = process
        brokers.wait_for_answer(self._ports[number - 1][0], process, log)

    def create_topic(self, name: str = TOPIC, config: Mapping[str, str] = MappingProxyType({})) -> None:
        until(lambda: self.brokers() == BROKERS, "all brokers are members")
        kafka, grpc, http = self._ports[0]
        brokers.Broker(0, kafka, grpc, http, self._bench.directory).create_topic(name, PARTITIONS, config)

    def kill(self, number: int) -> None:
        process = self._processes[number - 1]
        assert process is not None
        process.kill()
        process.wait()

    def end(self) -> None:
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()

    def brokers(self) -> int:
        with contextlib.suppress(KafkaException):
            return len(self._admin.list_topics(timeout=5).brokers)
        return 0

    def leader(self) -> int:
        return int(self._admin.list_topics(timeout=5).controller_id)

    def led_by(self, number: int) -> set[int]:
        """The partitions that a broker leads."""
        found = self._admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions
        return {partition for partition, about in found.items() if about.leader == number}

    def address(self) -> str:
        return f"127.0.0.1:{self._ports[0][1]}"


@contextlib.contextmanager
def cluster(bench: Bench) -> Iterator[tuple[Cluster, Writer]]:
    """A cluster under load."""
    store = bench.fresh_directory("cluster")
    made = Cluster(bench, str(store))
    try:
        for number in range(1, BROKERS + 1):
            made.start(number)
        made.create_topic()
        writer = Writer(made.bootstrap)
        try:
            until(lambda: len(writer.acked_since(0.0)) == PARTITIONS, "every partition acks")
            yield made, writer
        finally:
            writer.stop()
    finally:
        made.end()
        remove_tree(store)


def until(question: Callable[[], bool], what: str) -> None:
    deadline = time.perf_counter() + PATIENCE_S
    while not question():
        if time.perf_counter() > deadline:
            raise BenchError(f"it does not come true. what=`{what}` waited_s=`{PATIENCE_S:g}`")
        time.sleep(0.02)


def _failover(bench: Bench) -> Iterable[Row]:
    """Every other victim is the leader of the cluster too."""
    took: list[float] = []
    others: list[float] = []
    with cluster(bench) as (made, writer):
        for number in range(bench.pick(4, 12)):
            until(lambda: all(made.led_by(one) for one in range(1, BROKERS + 1)), "every broker leads something")
            time.sleep(SETTLE_S)
            leader = made.leader()
            victim = leader if number % 2 == 0 else leader % BROKERS + 1
            concerned = made.led_by(victim)
            began = time.perf_counter()
            made.kill(victim)
            until(lambda began=began: len(writer.acked_since(began)) == PARTITIONS, "every partition acks again")  # type: ignore[misc]
            time.sleep(SETTLE_S / 2)
            ended = time.perf_counter()
            took.append(writer.longest(concerned, began - 0.05, ended))
            others.append(writer.longest(set(range(PARTITIONS)) - concerned, began - 0.05, ended))
            made.start(victim)
            until(lambda: made.brokers() == BROKERS, "all brokers are members")
    note = (
        f"{len(took)} rounds of SIGKILL, every other one of the leader; others' partitions {statistics.median(others):.2f} s median"
    )
    yield _row("SIGKILL of a lead: acked again, median", "s", took, FAILOVER_GOAL_S, statistics.median(took), note)
    yield _row("SIGKILL of a lead: acked again, worst", "s", took, FAILOVER_WORST_GOAL_S, max(took), note)


def _acks(bench: Bench) -> Iterable[Row]:
    """Send the same steady stream to two topics, one after the other, on the same three brokers and one S3 (moto)."""
    server = MotoServer()
    made = Cluster(bench, server.url(server.bucket(), "bench"), server.environment)
    took: dict[str, list[float]] = {}
    try:
        for number in range(1, BROKERS + 1):
            made.start(number)
        for ack in ("durable", "replicated"):
            made.create_topic(f"{TOPIC}-{ack}", {"ack": ack})
            writer = Writer(made.bootstrap, f"{TOPIC}-{ack}")
            try:
                until(lambda writer=writer: len(writer.acked_since(0.0)) == PARTITIONS, "every partition acks")  # type: ignore[misc]
                time.sleep(2 * SETTLE_S)  # time for brokers to find their followers
                began = time.perf_counter()
                time.sleep(bench.pick(4, 12))
            finally:
                writer.stop()
            took[ack] = sorted(wait for _, at, wait in writer.waits if at > began)
    finally:
        made.end()
        server.stop()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        durable, replicated = (took[ack][int(len(took[ack]) * share)] for ack in ("durable", "replicated"))
        yield Row(
            group="cluster",
            case=f"ack=replicated on S3, {name}",
            measured=f"{replicated * 1e3:.1f} ms",
            ceiling=f"{durable * 1e3:.1f} ms with ack=durable",
            ratio=replicated / durable,
            unit="x",
            side=Goal.AT_MOST,
            note=f"{len(took['replicated']):,} records of 1 KB at {RATE_PER_S:,}/s, librdkafka's defaults (linger 5 ms)",
        )


def _row(name: str, unit: str, values: list[float], goal: float | None, ratio: float, note: str) -> Row:
    return Row(
        group="cluster",
        case=name,
        measured=f"{statistics.median(values):.3g} {unit} median",
        ratio=ratio,
        low=min(values),
        high=max(values),
        unit=unit,
        goal=goal,
        side=Goal.AT_MOST,
        note=note,
    )


def _reshard(bench: Bench) -> Iterable[Row]:
    waits: dict[str, list[float]] = {"split": [], "move": [], "merge": []}
    others: list[float] = []
    quiet: list[float] = []
    with cluster(bench) as (made, writer):

        async def change(what: str, segments: list[Segment], control: Control) -> None:
            first = segments[0]
            concerned = set(range(first.first_partition, first.end_partition))
            if what == "merge":
                concerned |= set(range(segments[1].first_partition, segments[1].end_partition))
            await asyncio.sleep(SETTLE_S)
            began = time.perf_counter()
            everything = range(PARTITIONS)
            quiet.append(writer.longest(everything, began - SETTLE_S, began - SETTLE_S / 2) * 1e3)
            if what == "split":
                await control.split(first.id)
            elif what == "move":
                await control.move(first.id, first.broker_id % BROKERS + 1)
            else:
                await control.merge(first.id, segments[1].id)
            await asyncio.sleep(SETTLE_S)
            ended = began + SETTLE_S / 2
            waits[what].append(writer.longest(concerned, began - 0.05, ended) * 1e3)
            others.append(writer.longest(set(everything) - concerned, began - 0.05, ended) * 1e3)

        async def rounds() -> None:
            async with Control(made.address()) as control:
                for _ in range(bench.pick(3, 10)):
                    for what in waits:
                        found = (await control.describe()).segments
                        mine = sorted((one for one in found if one.topic == TOPIC), key=lambda one: one.first_partition)
                        await change(what, mine, control)

        asyncio.run(rounds())
    beside = f"a record in a quiet half-second waits {statistics.median(quiet):.0f} ms at the longest"
    for what, values in waits.items():
        yield _row(f"{what}: the segment's writers wait", "ms", values, RESHARD_GOAL_MS, statistics.median(values), beside)
    yield _row("split, move, merge: the others wait", "ms", others, None, statistics.median(others), beside)


def _commit(bench: Bench) -> Iterable[Row]:
    """A broker lists a chunk of eight extents, in manifests with different numbers of extents: in alternation, on one disk."""
    took = asyncio.run(_commits(bench, bench.pick(100, 400)))
    base = statistics.median(took[EXTENTS[0]])
    for size in EXTENTS:
        median = statistics.median(took[size])
        yield Row(
            group="cluster",
            case=f"commit to a manifest with {size:,} extents",
            measured=f"{median * 1e3:.2f} ms median",
            ceiling=f"{base * 1e3:.2f} ms with {EXTENTS[0]}",
            ratio=median / base,
            unit="x",
            goal=None if size == EXTENTS[0] else COMMIT_GOAL,
            side=Goal.AT_MOST,
            note=f"{len(took[size])} durable commits; the slowest {max(took[size]) * 1e3:.1f} ms",
        )


async def _commits(bench: Bench, commits: int) -> dict[int, list[float]]:
    """Seconds of each commit, by the number of extents before it."""
    directory = bench.fresh_directory("manifest")
    topic = Topic(id=uuid.uuid4(), name=TOPIC, partitions=EXTENTS_PER_CHUNK, config={}, created_ms=0)
    mine = uuid.uuid4().hex
    stores = {size: LocalStore(str(directory / str(size)), fsync="always", fsync_interval_ms=100) for size in EXTENTS}
    catalogs = {size: LocalCatalog(store, mine) for size, store in stores.items()}
    took: dict[int, list[float]] = {size: [] for size in EXTENTS}
    try:
        for size, catalog in catalogs.items():
            await catalog.load()
            await catalog.commit(
                CreateTopic(topic), OpenIncarnation(Incarnation(id=mine, broker_id=1, leader_epoch=1, opened_ms=0))
            )
            chunks = [_chunk(topic, number) for number in range(size // EXTENTS_PER_CHUNK)]
            # The broker also writes snapshots of everything. They are not measured: each is paid for by the same number of bytes of
            # edits.
            await catalog.commit(AddChunks(incarnation_id=mine, chunks=chunks))
        for number in range(commits):
            for size, catalog in catalogs.items():
                edit = AddChunks(incarnation_id=mine, chunks=[_chunk(topic, size // EXTENTS_PER_CHUNK + number)])
                began = time.perf_counter()
                await catalog.commit(edit)
                took[size].append(time.perf_counter() - began)
    finally:
        for store in stores.values():
            await store.close()
        remove_tree(directory)
    return took


def _chunk(topic: Topic, number: int) -> Chunk:
    extents = [
        Extent(
            topic_id=topic.id,
            partition=partition,
            base_offset=number * 1_000,
            end_offset=(number + 1) * 1_000,
            leader_epoch=1,
            timestamp_max_ms=number,
            data_bytes=1 << 20,
            position=partition << 20,
            length_bytes=240,
        )
        for partition in range(EXTENTS_PER_CHUNK)
    ]
    return Chunk(
        number=number,
        last_number=number,
        size_bytes=EXTENTS_PER_CHUNK << 20,
        appended_ms=number,
        index_inline=True,
        extents=extents,
    )


CASES = [
    Case("cluster", "SIGKILL of a lead", _failover, goal=FAILOVER_GOAL_S, side=Goal.AT_MOST, unit="s"),
    Case("cluster", "split, move, merge", _reshard, goal=RESHARD_GOAL_MS, side=Goal.AT_MOST, unit="ms"),
    Case("cluster", "acks of two brokers' memory", _acks, unit="x", side=Goal.AT_MOST),
    Case("cluster", "commits to a long manifest", _commit, goal=COMMIT_GOAL, side=Goal.AT_MOST, unit="x"),
]
