"""Three real brokers, restarted one after the other under load: each client's own retries hide every error.

Runs: librdkafka and the Python client of Headgate write idempotently and read all the time; the latter creates, changes,
describes and deletes topics. First every broker is ended with SIGTERM and restarted, one of them after a drain by hand. Then one
is killed and one is stopped until the others replaced it, while clients that know only the first two addresses continue.
Compared, at the end: the whole topic with every ack and with the readers' reads. A mismatch means a record that was lost,
repeated, reordered or moved; an error means one that a user would have had.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support.broker_process import ROOT
from tests.support.clients.all import CLIENTS
from tests.support.cluster import EXIT_FENCED, PATIENCE_S, PATIENT, Brokers
from tests.support.history import check_log, check_reader, check_writer
from tests.support.native import NativeAdmin, NativeReader, NativeWriter
from tests.support.waiting import until
from tests.support.writers import ConfluentReader, ConfluentWriter, Reader, Running, Writer

PARTITIONS = 6
PAUSE_S = 0.03
"""Pause between two bursts of a writer: requests are under way at each moment, and the processors are left to the brokers."""


class Load:
    """Clients that run all the time, and their acks and reads."""

    def __init__(self, brokers: Brokers, doors: list[str], *others: Running) -> None:
        self.brokers = brokers
        grpc = ",".join(doors)
        self.writers: list[Writer] = [
            ConfluentWriter(brokers.bootstrap, "t", PARTITIONS, 0, idempotent=True, codec="lz4"),
            NativeWriter(grpc, "t", PARTITIONS, 1, idempotent=True, codec="none"),
        ]
        self.readers: list[Reader] = [
            ConfluentReader(brokers.bootstrap, "t", PARTITIONS),
            NativeReader(grpc, "t", PARTITIONS),
        ]
        self.others = others
        for writer in self.writers:
            writer.pause_s = PAUSE_S
        for one in (*self.writers, *self.readers, *self.others):
            one.start()

    def flows(self, more: int = 1) -> None:
        """Wait until every writer has new acks in every partition, and every reader has new records."""

        def acked() -> dict[tuple[Writer, int], int]:
            return {
                (writer, number): len(writer.sent.acks.get(number, ())) for writer in self.writers for number in range(PARTITIONS)
            }

        before, seen = acked(), [reader.count for reader in self.readers]

        def more_came() -> bool:
            for one in (*self.writers, *self.readers, *self.others):
                one.check()
            return all(count >= before[key] + more for key, count in acked().items()) and all(
                reader.count > count for reader, count in zip(self.readers, seen, strict=True)
            )

        until(more_came, "everything flows again")

    def finish(self) -> str:
        """Stop the clients and judge. Returns a summary in words."""
        for one in (*self.others, *self.writers):
            one.stop()
        for one in (*self.others, *self.writers):
            one.join(PATIENCE_S)
        shown = CLIENTS["confluent"].consume(self.brokers.bootstrap, "t", range(PARTITIONS))
        log = {partition: [(read.offset, read.value or b"") for read in reads] for partition, reads in shown.items()}
        ends = {partition: records[-1][0] for partition, records in log.items() if records}
        wrong = check_log(log)
        for writer in self.writers:
            assert not writer.sent.failures, f"{writer.sent.name}: {writer.sent.failures[:3]}"
            wrong += check_writer(writer.sent, log)
        for reader in self.readers:
            reader.finish(ends, PATIENCE_S)
            wrong += check_reader(type(reader).__name__, reader.seen, log)
        assert not wrong, "\n".join(wrong[:20])
        return f"{sum(writer.sent.acked_count for writer in self.writers):,} acked"


def headgate(door: str, *arguments: str) -> str:
    """A command's standard output."""
    command = [sys.executable, "-m", "headgate.broker.cli.main", *arguments, "--cluster", door]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


def all_back(brokers: Brokers) -> bool:
    """Whether all brokers are members. A broker that the busy machine starved, so that it was replaced, is restarted, as
    supervisors do."""
    for broker in brokers.all:
        if not broker.running:
            assert broker.wait_exit(1) == EXIT_FENCED, broker.log_tail()
            broker.start()
    return len(brokers.metadata().brokers) == len(brokers.all)


def doors(brokers: Brokers) -> list[str]:
    return [f"127.0.0.1:{broker.grpc_port}" for broker in brokers.all]


def test_rolling_restart(make_broker: BrokerFactory, tmp_path: Path, report: Callable[[str], None]) -> None:
    brokers = Brokers(make_broker, tmp_path / "store", env=PATIENT)
    brokers.start()
    create_topic(brokers.bootstrap, "t", PARTITIONS)
    admin = NativeAdmin(doors(brokers), "t")
    load = Load(brokers, doors(brokers), admin)
    load.flows(20)
    for number, broker in enumerate(brokers.all, 1):
        if number == 2:
            assert "broker 2 drained" in headgate(doors(brokers)[0], "drain", "2")
            described = json.loads(headgate(doors(brokers)[1], "topic", "describe", "t", "--json"))
            assert 2 not in {part["leader"] for part in described[0]["partitions"]}
            load.flows()
        assert broker.terminate() == 0, broker.log_tail()
        load.flows()
        broker.start()
        until(lambda: len(brokers.metadata().brokers) == len(brokers.all), "it is back")
        load.flows()
    turns = admin.turns
    assert turns > 3
    report(f"rolling restart: {load.finish()}, {turns} rounds of administration, no error")


@pytest.mark.slow  # the short form is tests/unit/control/test_client.py
def test_the_python_client_outlives_brokers(make_broker: BrokerFactory, tmp_path: Path, report: Callable[[str], None]) -> None:
    brokers = Brokers(make_broker, tmp_path / "store")
    brokers.start()
    create_topic(brokers.bootstrap, "t", PARTITIONS)
    load = Load(brokers, doors(brokers)[:2])  # it learns the third address from the other brokers
    load.flows(20)
    dead, hung, last = brokers.all
    dead.kill()
    load.flows()
    hung.signal(signal.SIGSTOP)
    until(lambda: len(brokers.metadata(last.bootstrap).brokers) == 1, "the others are replaced")
    load.flows()
    hung.signal(signal.SIGCONT)
    assert hung.wait_exit(30) == EXIT_FENCED, hung.log_tail()
    hung.start()
    dead.start()
    until(lambda: all_back(brokers), "all are back")
    load.flows(20)
    report(f"clients outlive brokers: {load.finish()}, a broker killed, one stopped, both of them the addresses that were given")
