"""A broker with a capped address space for a moment either serves afterwards or has ended with a reason.

Runs: a real broker; producers with small and large frames, fetches, and requests that need the store arrive all the time.
Meanwhile prlimit(2) caps the broker's address space a little above its current use, so that it cannot allocate threads, stacks
and buffers; this happens while it serves and while it still opens its ports. Then the cap is lifted. Other tests make one
function run out of memory, again and again. Compared: whether a new record is acked, or the process has ended, and its output. A
mismatch means a broker that is half alive: it neither serves nor ends, and no supervisor replaces it.

HEADGATE_MEMORY_ROUNDS sets the number of rounds; HEADGATE_MEMORY_SEED replays a run's choices.
"""

from __future__ import annotations

import os
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from headgate.broker.server.kafka.frames import FRAME_BYTES_FIRST
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.costly_grpc import METHODS
from tests.support.short_of_memory import PLACES
from tests.support.waiting import until
from tests.support.wire import ClosedByPeer, RawConnection

SEED = int(os.environ.get("HEADGATE_MEMORY_SEED", time.time_ns() % 1_000_000))
ROUNDS = int(os.environ.get("HEADGATE_MEMORY_ROUNDS", "3"))
PATIENCE_S = 90.0
"""Ends a hang; no test judges by it."""
STACK_BYTES = 8 << 20
"""Stack size of a thread on Linux. A cap just above it lets a thread start, and leaves no memory for its work."""


def address_space_bytes(broker: BrokerProcess) -> int:
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def produce(broker: BrokerProcess, topic: str, value: bytes, timeout_s: float) -> bool:
    """Whether one record was acked."""
    data = {"name": topic, "partition_data": ({"index": 0, "records": batch([value])},)}
    with suppress(OSError, ClosedByPeer), RawConnection(HOST, broker.kafka_port, timeout_s=timeout_s) as connection:
        answer = oracle.call(connection, oracle.PRODUCE, 9, {"acks": -1, "timeout": 30_000, "topic_data": (data,)})
        return bool(answer.responses[0].partition_responses[0].error_code == 0)
    return False


def fetch(broker: BrokerProcess, topic: str, timeout_s: float) -> bool:
    """Whether a fetch was answered."""
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 8 << 20, "current_leader_epoch": -1, "log_start_offset": -1}
    values = {"replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": 8 << 20, "session_epoch": -1}
    with suppress(OSError, ClosedByPeer), RawConnection(HOST, broker.kafka_port, timeout_s=timeout_s) as connection:
        oracle.call(connection, oracle.FETCH, 11, {**values, "topics": ({"topic": topic, "partitions": (part,)},)})
        return True
    return False


def create(broker: BrokerProcess) -> None:
    values = {"topics": ({"name": f"t{time.monotonic_ns()}", "num_partitions": 1, "replication_factor": 1},), "timeout": 1000}
    with suppress(OSError, ClosedByPeer), RawConnection(HOST, broker.kafka_port, timeout_s=2) as connection:
        oracle.call(connection, oracle.CREATE_TOPICS, 2, values)


@contextmanager
def load(broker: BrokerProcess, topic: str, draw: random.Random) -> Iterator[None]:
    """Clients that request all kinds of memory, again and again, whatever their answers are."""
    ended = threading.Event()
    large = draw.randbytes(3 << 20)

    def again(call: Callable[[], object]) -> None:
        while not ended.wait(0.01):
            call()

    calls: list[Callable[[], object]] = [
        lambda: produce(broker, topic, b"small", 2),
        lambda: produce(broker, topic, large, 2),
        lambda: fetch(broker, topic, 2),
        lambda: create(broker),
    ]
    threads = [threading.Thread(target=again, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.timeout(600)
def test_a_capped_broker_serves_again_or_ends(make_broker: BrokerFactory, report: Callable[[str], None]) -> None:
    draw = random.Random(SEED)
    ends: list[str] = []
    for number in range(ROUNDS):
        broker = make_broker(env={"HEADGATE_LOOP_TIMEOUT_MS": "5s"})
        broker.forked = False  # what a fork shares with its parent would not count
        broker.start()
        # Without this wait, the broker may still import gRPC and HTTP: their libraries crash without memory.
        wait = draw.random() < 0.7
        if wait:
            broker.wait_ready()
        topic = create_topic(broker.bootstrap, "capped", 1)
        assert produce(broker, topic, b"first", 30)
        room = draw.choice([0, 1 << 16, 1 << 20, STACK_BYTES + (64 << 10), STACK_BYTES + (1 << 20), 2 * STACK_BYTES + (1 << 18)])
        resource.prlimit(broker.pid, resource.RLIMIT_AS, (address_space_bytes(broker) + room, resource.RLIM_INFINITY))
        with load(broker, topic, draw):
            time.sleep(1 + draw.random())
            if broker.running:
                with suppress(ProcessLookupError):
                    resource.prlimit(broker.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(
            lambda: not broker.running or produce(broker, topic, b"last", 5),  # noqa: B023  # called before the loop goes on
            lambda: f"it serves or ends. round=`{number}` seed=`{SEED}`\n{broker.log_tail()}",  # noqa: B023
        )
        code = broker.exit_code()
        ends.append("serves" if code is None else f"exit {code}")
        if code == 1:
            assert "memory" in broker.output(), broker.log_tail()
        broker.kill()
        broker.log_path.unlink()
    report(f"memory cap: {', '.join(ends)}; HEADGATE_MEMORY_SEED={SEED}")


REQUESTS_OWN = {"frame", "growing", "fetch"}
"""Functions that allocate memory of one request, before anything was changed."""


def ask_status(broker: BrokerProcess) -> None:
    """Ask over gRPC, once: the command line would ask again until its time is over."""
    with grpc.insecure_channel(f"{HOST}:{broker.grpc_port}") as channel, suppress(grpc.RpcError):
        channel.unary_unary(METHODS["Admin/Status"].path)(b"", timeout=PATIENCE_S)


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_broker_without_memory_at_one_place(make_broker: BrokerFactory, tmp_path: Path, place: str) -> None:
    """If a request's own allocation fails, its connection ends; if another allocation fails, the broker ends and gives the
    reason."""
    broker = make_broker(env={"HEADGATE_MESSAGE_BYTES_MAX": "8MiB"})
    full = tmp_path / "full"
    broker.entry = ("tests.support.short_of_memory", place, str(full))
    broker.start()
    topic = create_topic(broker.bootstrap, "short", 1)
    assert produce(broker, topic, b"first", PATIENCE_S)
    full.touch()
    # The frame of the larger one does not fit into its first buffer.
    large = bytes(2 * FRAME_BYTES_FIRST if place == "growing" else 512 << 10)
    if place in REQUESTS_OWN:
        for _ in range(3):
            assert not (fetch(broker, topic, PATIENCE_S) if place == "fetch" else produce(broker, topic, large, PATIENCE_S))
        full.unlink()
        assert produce(broker, topic, large, PATIENCE_S) and fetch(broker, topic, PATIENCE_S)
        assert broker.output().count("out_of_memory") == 3
        broker.check_alive()
        return
    deadline = time.monotonic() + PATIENCE_S
    while broker.running:
        assert time.monotonic() < deadline, broker.log_tail()
        if place == "grpc":
            ask_status(broker)
        elif place in ("store", "cold"):
            create(broker)
        else:
            produce(broker, topic, b"small", 2)
    assert broker.exit_code() == 1
    assert "headgate broker 1: out of memory" in broker.output(), broker.log_tail()
