"""Replays through a lane, while the lane and the leads are killed.

Runs: two brokers and a lane over one directory, and a topic with history and live records behind it. In each round consumers of
librdkafka, of kafka-python and of our own client read it from the beginning, while the lane or a broker is killed or stopped at a
random moment. Compared: what each consumer got with the topic. A mismatch means that a hand-over to a lane, or back, skips, repeats
or reorders records, or that a consumer lost its place. No client may reset its offset.

Also run: a broker that starts its lane itself. Compared: that it is there when it is needed, and gone with its broker.

HEADGATE_LANES_ROUNDS sets the number of rounds, HEADGATE_LANES_SEED replays a run's choices.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from headgate.broker.client import Admin, GateAdmin
from headgate.broker.client.access_admin import AccessAdmin, Acl
from headgate.broker.client.control import Control, Member
from headgate.broker.cluster.lanes import lane_id
from tests.conftest import BrokerFactory
from tests.support.broker_process import HOST, PATIENCE_S, BrokerDied, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.cluster import Brokers
from tests.support.history import Log, check_reader
from tests.support.history_files import expected, upload
from tests.support.native import NativeReader
from tests.support.pki import Authority
from tests.support.records import Record
from tests.support.secure import Secure
from tests.support.waiting import until
from tests.support.writers import BLOCKED_S, ConfluentReader, KafkaPythonReader, Reader

pytestmark = pytest.mark.asyncio(loop_scope="session")  # grpc.aio has one poller for the process

SEED = int(os.environ.get("HEADGATE_LANES_SEED", time.time_ns() % 1_000_000))
ROUNDS = int(os.environ.get("HEADGATE_LANES_ROUNDS", "2"))
PARTITIONS, ROWS, LIVE = 3, 8000, 100
LANE_ID = 1001
HISTORY_OUT = "headgate_history_out_bytes_total"
SETTINGS = {
    "HEADGATE_HISTORY_LANES": "0",
    "HEADGATE_HISTORY_LANE_BYTES": "100KiB",
    "HEADGATE_CLUSTER_MEMBER_TIMEOUT_MS": "2000",
}


def metric(broker: BrokerProcess, name: str) -> float:
    with urlopen(f"http://{HOST}:{broker.http_port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def fill(brokers: Brokers) -> Log:
    """A topic with history, and live records behind it."""
    async with Admin(f"{HOST}:{brokers.all[0].grpc_port}") as admin, GateAdmin(f"{HOST}:{brokers.all[0].grpc_port}") as gates:
        await admin.create_topic("t", PARTITIONS)
        gate = await gates.open("t", [ROWS] * PARTITIONS, gate_id="history")
        await gates.fill("t", "history", await asyncio.to_thread(upload, gate, files=3))
    live = [Record(partition=number, key=None, value=b"live-%d" % at) for at in range(LIVE) for number in range(PARTITIONS)]
    await asyncio.to_thread(CLIENTS["confluent"].produce, brokers.bootstrap, "t", live, codec="none", idempotent=True)
    return {number: rows + [(ROWS + at, b"live-%d" % at) for at in range(LIVE)] for number, rows in expected(gate).items()}


async def with_lane(
    make_broker: BrokerFactory, store: Path, lane_settings: Mapping[str, str] = MappingProxyType({})
) -> tuple[Brokers, BrokerProcess, Log]:
    """Two brokers with the topic, and a lane that both know."""
    brokers = Brokers(make_broker, store, env=SETTINGS, count=2)
    await asyncio.to_thread(brokers.start)
    log = await fill(brokers)
    lane = make_broker(store, env={**SETTINGS, **lane_settings}, arguments=("--broker-id", str(LANE_ID), "--role", "lane"))
    lane.start()
    until(lambda: all(metric(one, "headgate_cluster_lanes") for one in brokers.all), "all brokers know the lane")
    return brokers, lane, log


def serve(one: BrokerProcess) -> None:
    """Wait until a process serves. One that was replaced while it was stopped, or ended, is started again."""
    while True:
        if not one.running:
            one.spawn()
        with suppress(BrokerDied):
            return one.wait_serving()


def hurt(brokers: Brokers, lane: BrokerProcess, draw: random.Random) -> str:
    """Kill or stop the lane or a broker; afterwards all run."""
    time.sleep(draw.uniform(0.0, 0.8))
    how, victim = draw.choice([("kill", lane), ("stop", lane), ("kill", draw.choice(brokers.all)), ("end", lane)])
    if how == "stop":
        victim.signal(signal.SIGSTOP)
        time.sleep(draw.uniform(0.5, 4.0))
        victim.signal(signal.SIGCONT)
    elif how == "kill":
        victim.kill()
    else:
        victim.terminate()
    time.sleep(draw.uniform(0.0, 1.0))
    for one in (*brokers.all, lane):
        serve(one)
    return f"{how} {'lane' if victim is lane else 'broker'}"


def judge(readers: list[Reader], log: Log) -> list[str]:
    total = sum(len(rows) for rows in log.values())
    for one in readers:
        read = f"{type(one).__name__} reads all {total} records"
        # Where no broker answers for a moment, kafka-python waits for a minute.
        until(lambda one=one: one.check() or one.count >= total, read, 240.0)
        one.stop()
        one.join(BLOCKED_S)
    return [line for one in readers for line in check_reader(type(one).__name__, one.seen, log)]


@pytest.mark.timeout(900)
async def test_replays_through_kills(make_broker: BrokerFactory, tmp_path: Path, report: Callable[[str], None]) -> None:
    draw = random.Random(SEED)
    report(f"replays through kills: HEADGATE_LANES_SEED={SEED}")
    brokers, lane, log = await with_lane(make_broker, tmp_path / "store")

    def read(*kinds: type[Reader]) -> list[Reader]:
        ours = ",".join(f"{HOST}:{one.grpc_port}" for one in brokers.all)
        places = [ours if kind is NativeReader else brokers.bootstrap for kind in kinds]
        readers = [kind(place, "t", PARTITIONS) for kind, place in zip(kinds, places, strict=True)]
        for one in readers:
            one.start()
        return readers

    least = sum(len(value) for rows in log.values() for _, value in rows[:ROWS]) / 2

    def at_lane(kind: type[Reader]) -> bool:
        """Whether the history of a replay comes from the lane, and each partition was sent there."""

        def figures() -> tuple[float, ...]:
            by_leads = (sum(metric(one, name) for one in brokers.all) for name in (HISTORY_OUT, "headgate_lane_sent_readers_total"))
            return metric(lane, HISTORY_OUT), *by_leads

        before = figures()
        assert not judge(read(kind), log)
        by_lane, by_leads, sent = (now - then for now, then in zip(figures(), before, strict=True))
        return by_lane >= least and by_leads <= by_lane / 4 and sent >= PARTITIONS

    for kind in (ConfluentReader, NativeReader):
        # Not at once on a busy machine: a lane that gets no processor time for seconds sends its readers back for a while.
        await asyncio.to_thread(until, lambda kind=kind: at_lane(kind), f"a replay by {kind.__name__} is served by the lane")
    wrong: list[str] = []
    for number in range(ROUNDS):
        readers = read(ConfluentReader, KafkaPythonReader, NativeReader)
        did = await asyncio.to_thread(hurt, brokers, lane, draw)
        wrong += [f"round {number}, {did}: {line}" for line in await asyncio.to_thread(judge, readers, log)]
    assert not wrong, wrong


def lane_pid(broker: BrokerProcess, number: int = 0) -> int:
    """The process of a lane beside the broker; 0: it does not run."""
    return next(iter(broker.children(f"--broker-id={lane_id(1, number)}")), 0)


async def test_a_lane_beside_its_broker(make_broker: BrokerFactory, tmp_path: Path) -> None:
    brokers = Brokers(make_broker, tmp_path / "store", env={**SETTINGS, "HEADGATE_HISTORY_LANES": "1"}, count=1)
    (broker,) = brokers.all
    await asyncio.to_thread(brokers.start)
    log = await fill(brokers)
    assert not lane_pid(broker), "no consumer has read history"

    def read_until_lanes_run(number: int) -> None:
        while metric(broker, "headgate_cluster_lanes") < number or not metric(broker, "headgate_lane_sent_readers_total"):
            reader = ConfluentReader(broker.bootstrap, "t", PARTITIONS)
            reader.start()
            assert not judge([reader], log)

    await asyncio.to_thread(read_until_lanes_run, 1)
    async with Control(f"{HOST}:{broker.grpc_port}") as control:
        view = await control.describe()
        while not view.lanes:  # a lane that gets no processor time for seconds joins again
            view = await control.describe()
        await control.open_reservation(1, 600_000, lanes=2)
    assert [one.broker_id for one in view.members] == [1] and [one.broker_id for one in view.lanes] == [lane_id(1, 0)]
    raised = min(2, os.cpu_count() or 1)
    await asyncio.to_thread(read_until_lanes_run, raised)
    first = lane_pid(broker)
    assert first
    os.kill(first, signal.SIGKILL)
    with socket.create_connection((view.lanes[0].host, view.lanes[0].kafka_port), 60):  # of a client that knows no other way
        until(lambda: lane_pid(broker) not in (0, first), "another lane runs at the same address")
    second = lane_pid(broker)
    until(lambda: metric(broker, "headgate_cluster_lanes") == raised, "it has joined")
    broker.kill()
    until(lambda: not Path(f"/proc/{second}").exists(), "it ends with its broker")


async def test_a_lane_asks_for_the_same_login_and_rights(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for user in ("admin", "alice", "bob"):
        (tmp_path / user).write_text(f"password of {user}")
    settings = {
        "AUTHORIZATION": "acl",
        "ADMIN_PASSWORD_FILE": str(tmp_path / "admin"),
        "HISTORY_LANES": "1",
        "HISTORY_LANE_BYTES": "1",
    }

    def config(user: str, where: str, password: str = "") -> dict[str, Any]:
        return {
            "bootstrap.servers": where,
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(authority.ca),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": password or f"password of {user}",
            "group.id": "unused",
            "auto.offset.reset": "error",
            "log_level": 0,
        }

    with Secure(tmp_path, authority, protocol="SASL_SSL", **settings) as broker:
        broker.start()
        broker.wait_ready()
        address = broker.address(user="admin", password_file=str(tmp_path / "admin"))
        async with Admin(address) as admin, GateAdmin(address) as gates, AccessAdmin(address) as access:
            await admin.create_topic("t", 1)
            for user in ("alice", "bob"):
                await access.create_user(user, f"password of {user}")
            rules = [("topic", "t", "User:alice"), ("group", "unused", "User:*")]
            await access.add_acls([Acl(resource=kind, name=name, principal=who, operation="read") for kind, name, who in rules])
            gate = await gates.open("t", [ROWS], gate_id="history")
            await gates.fill("t", "history", await asyncio.to_thread(upload, gate))

        def read(user: str, where: str, password: str = "") -> tuple[int, int]:
            """(offsets read in order, error code)."""
            failed: list[KafkaError] = []
            consumer = Consumer({**config(user, where, password), "error_cb": failed.append})
            offsets: list[int] = []
            deadline = time.monotonic() + PATIENCE_S
            try:
                consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
                while len(offsets) < ROWS:
                    assert time.monotonic() < deadline
                    if any(one.code() == KafkaError._AUTHENTICATION for one in failed):
                        return len(offsets), KafkaError._AUTHENTICATION
                    for message in consumer.consume(500, 1.0):
                        if (error := message.error()) is not None and not error.retriable():
                            return len(offsets), error.code()
                        offsets += [] if message.error() else [message.offset() or 0]
            finally:
                consumer.close()
            assert offsets == list(range(ROWS))
            return len(offsets), 0

        async def lanes() -> list[Member]:
            async with Control(address) as control:
                return list((await control.describe()).lanes)

        near = f"localhost:{broker.tls_port}"
        assert await asyncio.to_thread(read, "alice", near) == (ROWS, 0)
        found: list[Member] = []
        async with asyncio.timeout(PATIENCE_S):
            while not found:
                found = await lanes()
        assert await asyncio.to_thread(read, "alice", near) == (ROWS, 0)
        kafka = found[0].listeners["SASL_SSL"].rpartition(":")[2]
        told = await asyncio.to_thread(Consumer(config("bob", f"localhost:{kafka}")).list_topics, "t", 60)
        assert told.topics["t"].error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert await asyncio.to_thread(read, "alice", f"localhost:{kafka}", "wrong") == (0, KafkaError._AUTHENTICATION)
        broker.check_output()


async def test_the_page_reads_history_at_the_lane(make_broker: BrokerFactory, tmp_path: Path) -> None:
    brokers, lane, log = await with_lane(make_broker, tmp_path)

    def downloaded(broker: BrokerProcess) -> list[tuple[int, bytes]]:
        address = f"http://{HOST}:{broker.http_port}/topics/t/messages.jsonl?from=oldest&partition=0"
        with urlopen(address, timeout=60) as answer:
            rows = [json.loads(line) for line in answer]
        return [(row["offset"], row["value"].encode() if "value" in row else b64decode(row["value_base64"])) for row in rows]

    def at_lane(broker: BrokerProcess) -> bool:
        """True if the lane served a download; the leads serve the little that is left for its last page."""
        before = [metric(one, HISTORY_OUT) for one in (lane, *brokers.all)]
        assert downloaded(broker) == log[0]
        by_lane, *by_leads = (metric(one, HISTORY_OUT) - was for one, was in zip((lane, *brokers.all), before, strict=True))
        return by_lane > sum(by_leads)

    for broker in brokers.all:
        # Not at once on a busy machine: for a lane that is silent for two seconds, leads serve.
        await asyncio.to_thread(until, lambda broker=broker: at_lane(broker), "the lane serves a page")
    lane.kill()
    assert await asyncio.to_thread(downloaded, brokers.all[0]) == log[0], "the leads serve what a lane that is gone does not"
