"""Mutated requests of real clients are replayed beside live clients, which must lose or double no record.

Runs: a real broker; librdkafka, aiokafka and kafka-python produce, fetch and read in groups through a proxy that records their
requests. The Java client's requests were recorded once (`tests/support/java_frames`). Then each replay takes one of these
requests, flips bits, overwrites lengths, cuts, repeats or swaps parts of it (in record batches with a right CRC, too), and sends
it on a new connection. Meanwhile an idempotent producer writes, and a group reads. Compared: the live clients' acks and reads;
the process, its memory and its output; and every record that a mutated request stored, which all clients must be able to read. A
mismatch means that one client's broken requests harm other clients.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, Producer
from crc32c import crc32c
from kafka import KafkaConsumer

from tests.compat.topics import create_topic, topic_id
from tests.e2e.hostile import MIB, check_healthy, check_raw
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.clients.interface import Deadline
from tests.support.java_frames import recorded
from tests.support.ports import free_port
from tests.support.recorder import Recorder
from tests.support.records import Record
from tests.support.wire import framed

READERS = ("confluent", "aiokafka", "kafka-python")
PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2
GROUPS = (8, 9, 10, 11, 12, 13, 14)
"""OffsetCommit, OffsetFetch, FindCoordinator, JoinGroup, Heartbeat, LeaveGroup, SyncGroup."""
KINDS = (PRODUCE, FETCH, LIST_OFFSETS, *GROUPS)
MEMORY_BOUND_BYTES = 500 * MIB
EDGES = (*(struct.pack(">i", value) for value in (0, 1, -1, -2, 2**31 - 1, -(2**31), 1 << 24)), b"\x80" * 4)
ANSWER_S = 2.0
"""The longest wait for an answer: a mutated fetch may request a longer wait."""


@dataclass
class World:
    broker: BrokerProcess
    frames: dict[str, dict[int, list[bytes]]]
    """Recorded requests, by origin and kind."""
    bootstrap: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("mutated-frames")
    port = free_port()
    limits = {
        "HEADGATE_FETCH_WAIT_MAX_MS": "200",
        "HEADGATE_ADVERTISED_KAFKA_PORT": str(port),
        "HEADGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    with BrokerProcess(home / "store", home / "broker.log", env=limits) as broker:
        broker.start()
        with Recorder(port, broker.kafka_port) as door:
            bootstrap = f"{HOST}:{port}"
            record(bootstrap)
            door.recording = False
            origins = {
                "recorded": {kind: door.of(kind) for kind in KINDS},
                "java": recorded(topic_id(broker.bootstrap, "recorded")),
            }
            for frames in origins.values():
                assert all(frames.get(kind) for kind in KINDS), {kind: len(found) for kind, found in frames.items()}
            yield World(broker, origins, bootstrap)
            check_healthy(broker)
        assert broker.terminate() == 0
    broker.check_output()


def record(bootstrap: str) -> None:
    """Let real clients do their ordinary work."""
    create_topic(bootstrap, "recorded", 2, headgate_check_records="all")
    for reader in READERS:
        rows = [
            Record(partition=at % 2, key=b"key%d" % at, value=b"value" * at, headers=[("name", b"content")]) for at in range(12)
        ]
        for codec in ("none", "gzip"):
            CLIENTS[reader].produce(bootstrap, "recorded", rows, codec=codec, idempotent=reader == "confluent" and codec == "none")
        CLIENTS[reader].consume(bootstrap, "recorded", [0, 1])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "recorded-1", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["recorded"])
        deadline = Deadline("a group of librdkafka")
        while not any(one.error() is None for one in consumer.consume(100, 1)):
            deadline.check()
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    python = KafkaConsumer(
        "recorded",
        bootstrap_servers=bootstrap,
        group_id="recorded-2",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=100,
        session_timeout_ms=6000,
    )
    try:
        deadline = Deadline("a group of kafka-python")
        while not python.poll(timeout_ms=500):
            deadline.check()
        python.poll(timeout_ms=500)
        python.commit()
    finally:
        python.close()


def batch_at(frame: bytes) -> tuple[int, int] | None:
    """The position of a record batch in a Produce request: (first byte, end)."""
    for start in range(len(frame) - 61):
        if frame[start + 16] == 2:
            end = start + 12 + struct.unpack_from(">i", frame, start + 8)[0]
            if start + 61 <= end <= len(frame):
                (crc,) = struct.unpack_from(">I", frame, start + 17)
                if crc == crc32c(frame[start + 21 : end]):
                    return start, end
    return None


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """The request, with one to three mutations behind its length."""
    batch = batch_at(frame) if frame[:2] == b"\0\0" and rng.random() < 0.6 else None
    low, high = (0, len(frame)) if batch is None else (batch[0] + 21, batch[1])
    part = bytearray(frame[low:high])
    for _ in range(rng.randint(1, 3)):
        if len(part) < 8:
            break
        at, size = rng.randrange(len(part)), rng.choice((1, 2, 4, 8, 16))
        match rng.choice(("flip", "flip", "byte", "edge", "cut", "repeat", "swap", "remove")):
            case "flip":
                part[at] ^= 1 << rng.randrange(8)
            case "byte":
                part[at] = rng.randrange(256)
            case "edge":
                part[at : at + 4] = rng.choice(EDGES)
            case "cut":
                del part[at:]
            case "repeat":
                part[at:at] = part[at : at + size] * rng.choice((1, 2, 100))
            case "swap":
                other = rng.randrange(len(part))
                part[at : at + size], part[other : other + size] = part[other : other + size], part[at : at + size]
            case "remove":
                del part[at : at + size]
    if batch is None:
        whole = bytes(part)
        # Sometimes the length is wrong.
        return framed(whole) if rng.random() < 0.9 else struct.pack(">i", max(len(whole) + rng.randint(-9, 9), 0)) + whole
    header = bytearray(frame[batch[0] : low])
    header[8:12] = struct.pack(">i", len(header) + len(part) - 12)
    header[17:21] = struct.pack(">I", crc32c(bytes(part)))
    prefix, behind = frame[: batch[0]], frame[batch[1] :]
    if rng.random() < 0.5:
        return framed(prefix + header + part + behind)
    # If the records' length is a varint of one or two bytes or an int32, it is sometimes corrected too.
    old, new = batch[1] - batch[0], len(header) + len(part)
    for encode in (lambda size: struct.pack(">i", size), compact):
        if prefix.endswith(encode(old)):
            prefix = prefix[: len(prefix) - len(encode(old))] + encode(new)
            break
    return framed(prefix + header + part + behind)


def compact(size: int) -> bytes:
    """The length of compact bytes: an unsigned varint of the length plus one."""
    size += 1
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def replay(port: int, data: bytes) -> None:
    """Send it, close the sending side, and read everything. The broker closes the connection or answers."""
    with socket.create_connection((HOST, port)) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass


class Live:
    """An idempotent producer and a group that reads its records."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = create_topic(bootstrap, topic, 1)
        self.bootstrap = bootstrap
        self.over = threading.Event()
        self.written: list[int] = []
        """Offsets, in the order of the acks."""
        self.failures: list[str] = []
        self.read: list[tuple[int, bytes]] = []
        self.enough = threading.Event()
        self._threads = [threading.Thread(target=self._write), threading.Thread(target=self._read)]

    def __enter__(self) -> Live:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 0})

        def delivered(error: object, message: object) -> None:
            if error is not None:
                self.failures.append(str(error))
            else:
                self.written.append(message.offset())  # type: ignore[attr-defined]

        number = 0
        while not self.over.is_set():
            producer.produce(self.topic, b"%d" % number, on_delivery=delivered)
            number += 1
            producer.poll(0.002)
        assert producer.flush(90) == 0

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.topic,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 50,
            }
        )
        try:
            consumer.subscribe([self.topic])
            deadline = Deadline("the live reader", 600)
            while not (self.over.is_set() and not self._threads[0].is_alive() and len(self.read) >= len(self.written)):
                for one in consumer.consume(1000, 0.1):
                    if one.error() is None:
                        self.read.append((one.offset(), one.value()))
                deadline.check(len(self.read), len(self.written))
        finally:
            consumer.close()

    def check(self) -> None:
        assert not self.failures
        assert self.written == list(range(len(self.written))), "lost, doubled or reordered"
        assert self.read == [(offset, b"%d" % offset) for offset in self.written]


def run(world: World, origin: str, seed: int, replays: int) -> None:
    rng = random.Random(seed)
    frames = world.frames[origin]
    with Live(world.bootstrap, f"live-{origin}-{seed}") as live:
        for number in range(replays):
            data = mutated(rng.choice(frames[rng.choice((PRODUCE, PRODUCE, *KINDS))]), rng)
            replay(world.broker.kafka_port, data)
            if number % 50 == 0:
                check_raw(world.broker)
    live.check()
    assert len(live.written) > 0
    assert world.broker.starts == 1
    assert world.broker.resident_bytes() < MEMORY_BOUND_BYTES
    shown = {name: CLIENTS[name].consume(world.bootstrap, "recorded", [0, 1]) for name in READERS}
    values = [{number: [(one.offset, one.value) for one in rows] for number, rows in each.items()} for each in shown.values()]
    assert values[0] == values[1] == values[2], "readers disagree about what mutated requests stored"


@pytest.mark.parametrize(("origin", "replays"), [("recorded", 300), ("java", 100)])
def test_mutated_frames_beside_live_clients(world: World, origin: str, replays: int) -> None:
    run(world, origin, 1, replays)


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["recorded", "java"])
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_mutated_frames_beside_live_clients(world: World, origin: str, seed: int) -> None:
    run(world, origin, seed, 5000)
