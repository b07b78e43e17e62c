"""Exactly once, observed from outside: consume-transform-produce on three brokers that are killed, drained and cut off.

Runs: three real brokers over one directory; librdkafka and aiokafka transactors (`tests/support/transactors.py`), which abort,
leave transactions open and revive zombies. Round after round a broker is killed, drained, or cut off from its peers until they
have replaced it; each moves leads and coordinators. Compared, at the end: the committed records of the targets with the source. A
mismatch means that a record was lost, came twice, left its order, or came from an aborted transaction.

HEADGATE_TRANSACTION_ROUNDS sets the number of rounds (`make transactions`: 30), HEADGATE_CLUSTER_SEED replays a run's choices.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import maven
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import Brokers
from tests.support.network import Network
from tests.support.transactors import (
    ABORTED,
    TIMEOUT_S,
    AiokafkaTransactor,
    ConfluentTransactor,
    ProcessTransactor,
    Source,
    Transactor,
    committed,
)
from tests.support.waiting import PATIENCE_S, until

SEED = int(os.environ.get("HEADGATE_CLUSTER_SEED", time.time_ns() % 1_000_000))
ROUNDS = int(os.environ.get("HEADGATE_TRANSACTION_ROUNDS", "3"))
PARTITIONS = 3
KAFKA_VERSION = "4.4.0"
ROOT = Path(__file__).parents[2]
RECORDS_PER_ROUND = 150


def python_clients(bootstrap: str) -> list[Transactor]:
    return [
        ConfluentTransactor(bootstrap, "source", "by-librdkafka", "librdkafka", SEED),
        AiokafkaTransactor(bootstrap, "source", "by-aiokafka", "aiokafka", SEED),
    ]


def java_client(bootstrap: str) -> list[Transactor]:
    """The second protocol of transactions, in which leads add partitions and each transaction has an epoch."""
    artifacts = (f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}", "org.slf4j:slf4j-nop:1.7.36")
    home = maven.jars(f"kafka-clients-{KAFKA_VERSION}", artifacts)
    program = ROOT / "tests/support/transactors_java/Transactor.java"
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{home}/*", str(program)]
    return [ProcessTransactor(command, bootstrap, "source", "by-java", "java", SEED)]


def go_client(bootstrap: str) -> list[Transactor]:
    """franz-go."""
    program = Path(tempfile.mkdtemp(prefix="transactor-")) / "transactor"
    folder = ROOT / "tests/support/transactors_go"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=folder, check=True, timeout=TIMEOUT_S)
    return [ProcessTransactor([str(program)], bootstrap, "source", "by-go", "go", SEED)]


def cut_off(brokers: Brokers, network: Network, victim: BrokerProcess) -> None:
    """Cut a broker off from its peers, until they have replaced it. Clients still reach it."""
    mine = str(brokers.number(victim))
    network.cut(*((mine, str(brokers.number(broker))) for broker in brokers.all if broker is not victim))
    until(
        lambda: not victim.running or brokers.number(victim) not in brokers.metadata(brokers.others(victim)).brokers,
        "the others replaced the broker that was cut off",
    )


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    "clients",
    [
        python_clients,
        pytest.param(java_client, marks=[pytest.mark.slow, pytest.mark.skipif(bool(maven.missing()), reason="no Maven")]),
        pytest.param(go_client, marks=[pytest.mark.slow, pytest.mark.skipif(not shutil.which("go"), reason="no Go")]),
    ],
)
@pytest.mark.timeout(1800 if ROUNDS > 3 else 400)
def test_rounds(
    clients: Callable[[str], list[Transactor]],
    make_broker: BrokerFactory,
    tmp_path: Path,
    report: Callable[[str], None],
    opened: ExitStack,
) -> None:
    draw = random.Random(f"{SEED}-transactions")
    network = opened.enter_context(Network())
    brokers = Brokers(make_broker, tmp_path / "store", network=network)
    brokers.start()
    transactors = clients(brokers.bootstrap)
    for topic in ("source", *(one.target for one in transactors)):
        create_topic(brokers.bootstrap, topic, PARTITIONS)
    source = Source(brokers.bootstrap, "source", PARTITIONS)
    for one in transactors:
        one.start()
    try:
        for number in range(ROUNDS):
            source.write(RECORDS_PER_ROUND // 3)
            before = [one.done for one in transactors]
            until(
                lambda before=before: all(one.done > then for one, then in zip(transactors, before, strict=True)),
                lambda: f"transactions go on: {[(one.name, one.done, one.restarts) for one in transactors]}",
                2 * PATIENCE_S,
            )
            victim = draw.choice(brokers.all)
            source.write(RECORDS_PER_ROUND // 3)
            if number % 3 == 1:
                victim.wait_ready()  # a broker that was revived just now does not know the signal yet
                assert victim.terminate() == 0, "a drained broker hands over its transactions and ends"
            elif number % 3 == 2:
                cut_off(brokers, network, victim)
            else:
                victim.kill()
            source.write(RECORDS_PER_ROUND // 3)
            network.heal()
            if not victim.running:
                victim.start()
            brokers.revive()
        wanted = source.written
        results: dict[str, list[list[bytes]]] = {}
        for one in transactors:

            def is_done(one: Transactor = one) -> bool:
                results[one.name] = committed(brokers.bootstrap, one.target, PARTITIONS)
                return all(len(got) >= len(want) for got, want in zip(results[one.name], wanted, strict=True))

            # As long as it takes: what must not take long is the next transaction.
            while not is_done():
                before_it = one.done
                until(
                    lambda one=one, then=before_it: one.done > then or is_done(one),
                    lambda one=one: f"{one.name} goes on: {[len(got) for got in results[one.name]]}, {one.restarts} restarts",
                )
    finally:
        for one in transactors:
            one.stop()
    for one in transactors:
        got = committed(brokers.bootstrap, one.target, PARTITIONS)
        assert not [value for values in got for value in values if value.startswith(ABORTED)], one.name
        assert got == wanted, one.name
        report(
            f"transactions by {one.name}: {one.done} committed, {one.aborted} aborted, {one.abandoned} left open, "
            f"{one.restarts} restarts, zombies got {sorted(set(one.fenced))}"
        )
