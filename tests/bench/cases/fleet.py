"""A local fleet grows from one broker to three while librdkafka writes, and shrinks again.

Measured: the seconds from the reservation until each of three brokers leads partitions of the topic and has acked a record
there. They are the seconds of a user: processes start, join, and take over their part. Each round uses a new fleet, because a
planner does not move partitions again soon after a move.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from headgate.broker.client.control import Control
from tests.bench import brokers
from tests.bench.harness import DISTURBED_CORES, Bench, Case, remove_tree
from tests.bench.native import BenchError, busy_seconds, free_port
from tests.bench.report import Goal, Row

GOAL_S = 5.0
BROKERS = 3
PARTITIONS = 12
TOPIC = "flood"
RATE_PER_S = 1_000
VALUE = b"x" * 1_000
CALM_S = 7.0
"""Wait before the reservation, seconds: a leader makes no moves in its first five seconds."""
PATIENCE_S = 60.0
OWN_CORES = 0.35
"""Cores that the broker and the writer may use before the reservation. Use above this counts as other processes' load."""
PROBE_S = 0.5


class Fleet:
    """`headgate up` with one broker, and the clients' view of it."""

    def __init__(self, kafka_port: int, grpc_port: int) -> None:
        self._address = f"127.0.0.1:{grpc_port}"
        self.bootstrap = f"127.0.0.1:{kafka_port}"
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def leads(self) -> dict[int, int]:
        """By partition: the id of the leading broker."""
        with contextlib.suppress(KafkaException):
            found = self._admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions
            return {number: partition.leader for number, partition in found.items()}
        return {}

    def brokers(self) -> int:
        with contextlib.suppress(KafkaException):
            return len(self._admin.list_topics(timeout=5).brokers)
        return 0

    def ask(self, call: Callable[[Control], Awaitable[object]]) -> None:
        async def talk() -> None:
            async with Control(self._address) as control:
                await call(control)

        asyncio.run(talk())


class Writer:
    """Writes a steady stream to all partitions in turn. `acked`: by partition, the time of the last ack."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: dict[int, float] = {}
        self.failed = ""
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True, "log_level": 0})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-writer")
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.01):
            for _ in range(RATE_PER_S // 100):
                self._producer.produce(TOPIC, VALUE, partition=number % PARTITIONS, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0)
        if self._producer.flush(PATIENCE_S):
            self.failed = self.failed or "records were not acked"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed = self.failed or str(error)
        else:
            self.acked[int(message.partition() or 0)] = time.perf_counter()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@contextlib.contextmanager
def _fleet(bench: Bench, store: Path) -> Iterator[Fleet]:
    kafka_port, grpc_port, http_port = free_port(), free_port(), free_port()
    ports = ["--kafka-port", str(kafka_port), "--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    log = bench.directory / "fleet.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "headgate.broker.cli.main", "up", "--store", str(store), "--max-brokers", str(BROKERS), *ports],
            stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, cwd=brokers.ROOT, env=brokers.environment({}),
        )  # fmt: skip
    try:
        brokers.wait_for_answer(kafka_port, process, log)
        _until(lambda: "headgate serves" in log.read_text(), "it serves")
        fleet = Fleet(kafka_port, grpc_port)
        brokers.Broker(process.pid, kafka_port, grpc_port, http_port, log).create_topic(TOPIC, PARTITIONS)
        yield fleet
    finally:
        process.terminate()
        try:
            process.wait(brokers.STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(question: Callable[[], bool], what: str) -> None:
    deadline = time.perf_counter() + PATIENCE_S
    while not question():
        if time.perf_counter() > deadline:
            raise BenchError(f"it does not come true. what=`{what}` waited_s=`{PATIENCE_S:g}`")
        time.sleep(0.02)


def _is_disturbed() -> bool:
    busy, began = busy_seconds(), time.perf_counter()
    time.sleep(PROBE_S)
    return (busy_seconds() - busy) / (time.perf_counter() - began) > OWN_CORES + DISTURBED_CORES


def _round(bench: Bench) -> tuple[float, float, bool]:
    """Seconds until three brokers ack, and until one is left after the release; and whether other processes used the machine
    meanwhile."""
    store = bench.fresh_directory("fleet")
    try:
        with _fleet(bench, store) as fleet:
            writer = Writer(fleet.bootstrap)
            try:
                time.sleep(CALM_S)
                bench.wait_quiet()
                disturbed = _is_disturbed()
                began = time.perf_counter()
                fleet.ask(lambda control: control.open_reservation(BROKERS, 60_000, owner="bench", reservation_id="bench"))
                leads: dict[int, int] = {}

                def spread() -> bool:
                    leads.update(fleet.leads())
                    return len(set(leads.values())) == BROKERS

                _until(spread, "three brokers lead")
                spread_s = time.perf_counter()
                newcomers = {number for number, lead in leads.items() if lead != 1}
                _until(lambda: all(writer.acked.get(number, 0.0) > spread_s for number in newcomers), "three brokers ack")
                grown_s = time.perf_counter() - began
                time.sleep(1)
                disturbed = _is_disturbed() or disturbed
                began = time.perf_counter()
                fleet.ask(lambda control: control.release_reservation("bench"))
                _until(lambda: fleet.brokers() == 1 and set(fleet.leads().values()) == {1}, "one broker is left")
                shrunk_s = time.perf_counter() - began
            finally:
                writer.stop()
            if writer.failed:
                raise BenchError(f"a record failed while the fleet changed. error=`{writer.failed}`")
    finally:
        remove_tree(store)
    return grown_s, shrunk_s, disturbed


def _run(bench: Bench) -> Iterable[Row]:
    rounds = [_round(bench) for _ in range(bench.pick(2, 5))]
    for name, goal, seconds in (("1 -> 3 brokers that lead and ack", GOAL_S, 0), ("3 -> 1 after the release", None, 1)):
        took = [one[seconds] for one in rounds]
        disturbed = any(one[2] for one in rounds)
        yield Row(
            group="fleet",
            case=name,
            measured=f"{statistics.median(took):.2f} s",
            ratio=statistics.median(took),
            low=min(took),
            high=max(took),
            unit="s",
            goal=goal,
            side=Goal.AT_MOST,
            disturbed=disturbed,
            note=f"{len(took)} rounds, {RATE_PER_S:,} records/s meanwhile, no record failed",
        )


CASES = [Case("fleet", "1 -> 3 brokers and back", _run, goal=GOAL_S, side=Goal.AT_MOST, unit="s")]
