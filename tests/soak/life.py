"""One run of the soak: two brokers, the verifier, and rounds of floods, groups, topics and kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headgate.broker.client import GateAdmin, GateState
from tests.compat.topics import create_topic
from tests.soak.sample import Sampler
from tests.support.broker_process import HOST, ROOT, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.clients.confluent import QUICK_RECONNECT
from tests.support.clients.interface import Deadline
from tests.support.cluster import PATIENCE_S, Brokers
from tests.support.flood_sources import events, write
from tests.support.history_files import expected, upload
from tests.support.records import Record
from tests.support.verifier import Verifier
from tests.support.waiting import until

PARTITIONS = 2
"""Of the topics that the rounds use."""
FLOOD_ROWS = 1_000
"""Rows of a flood by reference, in each partition."""
FLOODS_PER_TOPIC = 4
"""Floods after which their topic is deleted, and the next one is created."""
SPARK_ROWS = 5_000
SPARK_EVERY_S = 3600.0
VALUE_BYTES = 4_000
"""Size of the verifier's records: within the retention time a broker writes so many chunks that they are folded."""
PROBE = "probe"
MIB = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parameters of a run.

    Args:
        duration_s: time of the rounds.
        directory: place of logs, the verifier's history, and the store if it has no other.
        store: URL, or None for a directory.
        rate: records of 4 KB per second that the verifier writes.
        spark: whether floods run through Spark, too.
    """

    duration_s: float
    directory: Path
    store: str | None = None
    rate: int = 500
    spark: bool = True

    @property
    def retention_s(self) -> float:
        """Age at which records are deleted: short enough that what is kept is constant long before warm-up ends."""
        return min(max(self.duration_s / 8, 15.0), 180.0)

    def topic(self) -> dict[str, str]:
        """Settings of the topics. A record becomes part of a Parquet file in the middle of its life."""
        return {"retention.ms": str(round(self.retention_s * 1000)), "offline.after.ms": str(round(self.retention_s * 500))}

    @property
    def round_s(self) -> float:
        return self.retention_s / 6

    @property
    def sample_s(self) -> float:
        return max(self.duration_s / 400, 0.5)

    def settings(self) -> dict[str, str]:
        """Settings of the brokers. Their caches are so small that they are full before warm-up ends."""
        retention_ms = str(round(self.retention_s * 1000))
        return {
            "HEADGATE_WAL_CHUNK_BYTES": str(MIB),
            "HEADGATE_WAL_CHECKPOINT_INTERVAL_MS": "1000",
            "HEADGATE_RETENTION_CHECK_INTERVAL_MS": "1000",
            "HEADGATE_OFFLINE_CHECK_INTERVAL_MS": "1000",
            "HEADGATE_GATE_FILE_GRACE_MS": retention_ms,
            "HEADGATE_PRODUCER_ID_EXPIRATION_MS": retention_ms,
            "HEADGATE_OFFSETS_RETENTION_MINUTES": str(max(1, round(self.retention_s / 60))),
            "HEADGATE_OFFSETS_RETENTION_CHECK_INTERVAL_MS": "1000",
            "HEADGATE_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
            "HEADGATE_TAIL_BYTES": str(4 * MIB),
            "HEADGATE_READ_CACHE_BYTES": str(2 * MIB),
            "HEADGATE_HISTORY_CACHE_BYTES": str(2 * MIB),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """The outcome of a run. `page`: the verifier's. `folded`, `files`: most folded chunks and files of live records seen at
    once."""

    rows: list[dict[str, float | None]]
    page: Mapping[str, Any]
    floods: int
    spark_floods: int
    kills: int
    folded: int
    files: int
    missed: int


def live(plan: Plan, say: Say) -> Lived:
    """Run a plan. Raises AssertionError if a flood, a group or a recovery goes wrong, or a broker ends by itself."""
    plan.directory.mkdir(parents=True, exist_ok=True)
    made: list[BrokerProcess] = []

    def make(store: str | Path, **options: Any) -> BrokerProcess:
        made.append(BrokerProcess(store, plan.directory / f"broker-{len(made) + 1}.log", **options))
        return made[-1]

    store = plan.store or str(plan.directory / "store")
    with contextlib.ExitStack() as opened:
        opened.callback(lambda: [broker.kill() for broker in made])
        brokers = Brokers(make, lambda number: store, env=plan.settings(), count=2)
        # The first broker is alone at first, so it becomes the leader; it is never killed.
        brokers.all[0].start()
        brokers.start()
        create_topic(brokers.bootstrap, PROBE, 2 * PARTITIONS, retention_ms=str(round(plan.retention_s * 1000)))
        options = ("--rate", str(plan.rate), "--partitions", "6", "--groups", "2", "--value-bytes", str(VALUE_BYTES))
        kept = ["--patience", "2m", "--settle", "30s"]
        for name, value in plan.topic().items():
            kept += ["--topic-config", f"{name}={value}"]
        verifier = opened.enter_context(Verifier(brokers.bootstrap, plan.directory / "history", *options, *kept))
        verifier.acknowledges()
        spark = SparkFlood(plan.directory, brokers.all[0], say) if plan.spark else None
        if spark is not None:
            # It ends before the first sample: in a short run it would take longer than warm-up.
            spark.start()
            spark.end()
        sampler = opened.enter_context(Sampler(brokers.all[0], plan.sample_s))
        rounds = Rounds(plan, brokers, sampler, spark)
        rounds.run(verifier)
        sampler.check()
        _, page = verifier.end()
    for broker in made:
        broker.check_output()
    return Lived(
        rows=sampler.rows,
        page=page,
        floods=rounds.floods,
        spark_floods=0 if spark is None else spark.floods,
        kills=rounds.kills,
        folded=sampler.folded,
        files=sampler.files,
        missed=sampler.missed,
    )


class Rounds:
    """The work beside the verifier."""

    def __init__(self, plan: Plan, brokers: Brokers, sampler: Sampler, spark: SparkFlood | None) -> None:
        self._plan, self._brokers, self._sampler, self._spark = plan, brokers, sampler, spark
        self.floods = self.kills = 0
        self._topic = ""

    def run(self, verifier: Verifier) -> None:
        number = 0
        while (began_s := self._sampler.elapsed_s) < self._plan.duration_s:
            if self._spark is not None and began_s >= self._spark.floods * SPARK_EVERY_S:
                self._spark.end()
                self._spark.start()
            self._flood()
            self._group(f"round-{number}")
            if number % 2:
                self._kill()
            self._sampler.check()
            verifier.check()
            number += 1
            while self._sampler.elapsed_s < min(began_s + self._plan.round_s, self._plan.duration_s):
                self._brokers.all[0].check_alive()
                time.sleep(0.1)
        if self._spark is not None:
            self._spark.end()

    def _flood(self) -> None:
        """One flood by reference, between live records; its rows are read back."""
        bootstrap = self._brokers.bootstrap
        if self.floods % FLOODS_PER_TOPIC == 0:
            if self._topic:
                admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
                admin.delete_topics([self._topic])[self._topic].result(PATIENCE_S)
            self._topic = create_topic(bootstrap, f"floods-{self.floods}", PARTITIONS, **self._plan.topic())
        topic, name = self._topic, f"flood-{self.floods}"
        rows = [FLOOD_ROWS] * PARTITIONS
        live = [Record(partition=number, key=None, value=b"live" * 20) for number in range(PARTITIONS) for _ in range(20)]
        wanted = asyncio.run(self._fill(topic, name, rows, lambda: CLIENTS["confluent"].produce(bootstrap, topic, live)))
        found = self._read(topic, {number: (some[0][0], len(some)) for number, some in wanted.items()})
        assert found == wanted, f"a flood has other rows than its files. topic=`{topic}` gate=`{name}`"
        self.floods += 1

    async def _fill(
        self, topic: str, name: str, rows: list[int], meanwhile: Callable[[], object]
    ) -> dict[int, list[tuple[int, bytes]]]:
        async with GateAdmin(f"{HOST}:{self._brokers.all[0].grpc_port}") as gates:
            gate = await gates.open(topic, rows, gate_id=name)
            await asyncio.to_thread(meanwhile)
            filled = await gates.fill(topic, name, await asyncio.to_thread(upload, gate, files=2))
        assert (filled.state, filled.rows) == (GateState.FILLED, sum(rows))
        return expected(gate)

    def _read(self, topic: str, places: dict[int, tuple[int, int]]) -> dict[int, list[tuple[int, bytes]]]:
        """Read from each partition: (first offset, number of records)."""
        found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in places}
        consumer = Consumer({"bootstrap.servers": self._brokers.bootstrap, "group.id": "unused", "log_level": 0, **QUICK_RECONNECT})
        deadline = Deadline(f"the read of a flood of {topic}", PATIENCE_S)
        try:
            consumer.assign([TopicPartition(topic, number, first) for number, (first, _) in places.items()])
            while any(len(found[number]) < count for number, (_, count) in places.items()):
                for one in consumer.consume(500, 0.2):
                    number, offset, value = one.partition(), one.offset(), one.value()
                    if one.error() is None and isinstance(value, bytes) and len(found[number]) < places[number][1]:  # type: ignore[index]
                        found[number].append((offset, value))  # type: ignore[index, arg-type]
                deadline.check(sum(map(len, found.values())))
        finally:
            consumer.close()
        return found

    def _group(self, name: str) -> None:
        """A group that reads something, commits, and never comes back."""
        group = {"group.id": name, "auto.offset.reset": "earliest", "enable.auto.commit": False, **QUICK_RECONNECT}
        consumer = Consumer({"bootstrap.servers": self._brokers.bootstrap, "log_level": 0, **group})
        deadline = Deadline(f"the group {name}", PATIENCE_S)
        try:
            consumer.subscribe([self._topic])
            while not any(one.error() is None for one in consumer.consume(100, 0.2)):
                deadline.check()
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    def _kill(self) -> None:
        """Kill the second broker, and measure until a new client has acks from all partitions of a topic, and it serves again."""
        victim = self._brokers.all[1]
        began = time.monotonic()
        victim.kill()
        victim.spawn()
        self._probe()
        self._sampler.add("recovery_s", time.monotonic() - began)
        victim.wait_serving(PATIENCE_S)
        until(lambda: len(self._brokers.metadata().brokers) == 2, "both brokers are members")
        self.kills += 1

    def _probe(self) -> None:
        producer = Producer({"bootstrap.servers": self._brokers.bootstrap, "linger.ms": 0, "log_level": 0, **QUICK_RECONNECT})
        failed: list[object] = []
        for number in range(2 * PARTITIONS):
            producer.produce(PROBE, b"probe", partition=number, on_delivery=lambda error, _: error and failed.append(error))
        assert producer.flush(PATIENCE_S) == 0 and not failed, failed


class SparkFlood:
    """Runs `headgate flood run` in a process. A flood that is run again adds nothing, and proves that it is whole."""

    def __init__(self, directory: Path, broker: BrokerProcess, say: Say) -> None:
        self._source, self._broker, self._say = write(directory / "source", events(SPARK_ROWS)), broker, say
        self.floods = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "headgate.broker.cli.main", "flood", "run", "--topic", "spark"]
        command += ["--source", str(self._source), "--key", "user", "--value", "payload", "--event-time", "at"]
        command += ["--partitions", str(PARTITIONS), "--verify", "--json"]
        environment = {**os.environ, "HEADGATE_CLUSTER": f"{HOST}:{self._broker.grpc_port}"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def end(self) -> None:
        """Wait until a started flood is whole."""
        if self._process is not None:
            output, _ = self._process.communicate(timeout=5 * PATIENCE_S)
            assert self._process.returncode == 0, output[-3000:]
            self._process = None
            self.floods += 1
            self._say("a flood through Spark is whole")
