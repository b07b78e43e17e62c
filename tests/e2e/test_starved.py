"""Brokers on a machine that gives them too little CPU time.

Runs: three broker processes that are stopped together (SIGSTOP) for longer than `cluster_member_timeout_ms` and run for a moment
between two stops, as on a machine with far more runnable processes than cores; then one that is stopped for good. The brokers of
`headgate up`, in the same way.
Compared: the processes that still run with the started ones. A mismatch means that healthy brokers replace one another, and each
replacement costs the machine more; or that a broker that hangs is never replaced.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from headgate.broker.runtime.errors import RetryError
from tests.conftest import BrokerFactory
from tests.e2e.test_fleet import Fleet, brokers_of
from tests.e2e.test_fleet import eventually as eventually_up
from tests.e2e.test_process import Spawn, spawn
from tests.support.cluster import EXIT_FENCED, Brokers
from tests.support.waiting import until

__all__ = ["spawn"]

TIMEOUT_S = 1.0
"""`cluster_member_timeout_ms`: it is short, so that the stops, and thus the test, are short."""
STOPS = 4
GO_ON_S = 0.3


def test_brokers_that_are_starved_together_do_not_replace_one_another(make_broker: BrokerFactory, tmp_path: Path) -> None:
    timeout_ms = str(round(TIMEOUT_S * 1000))
    brokers = Brokers(make_broker, tmp_path / "store", env={"HEADGATE_CLUSTER_MEMBER_TIMEOUT_MS": timeout_ms})
    brokers.start()
    for _ in range(STOPS):
        for broker in brokers.all:
            broker.signal(signal.SIGSTOP)
        time.sleep(2 * TIMEOUT_S)
        for broker in brokers.all:
            broker.signal(signal.SIGCONT)
        time.sleep(GO_ON_S)

    def all_are_known() -> bool:
        # A replaced broker finds its fence when it stores or joins next.
        assert [broker.exit_code() for broker in brokers.all] == [None] * len(brokers.all)
        return len(brokers.metadata().brokers) == len(brokers.all)

    until(all_are_known, "all brokers are known again")
    assert len(brokers.describe().members) == len(brokers.all)

    leader = brokers.leader()
    hung = next(broker for broker in brokers.all if broker is not leader)
    hung.signal(signal.SIGSTOP)
    try:
        until(lambda: len(brokers.metadata(leader.bootstrap).brokers) == len(brokers.all) - 1, "the broker that hangs is replaced")
    finally:
        hung.signal(signal.SIGCONT)
    until(lambda: hung.exit_code() == EXIT_FENCED, "the broker that hung finds out")


def is_starved(fleet: Fleet) -> bool:
    try:
        return any(member.starved for member in fleet.call(lambda control: control.describe()).members)
    except RetryError:
        return False


def test_a_local_fleet_that_is_starved_keeps_its_brokers(spawn: Spawn, tmp_path: Path) -> None:
    """The same processes run afterwards."""
    timeout_ms = str(round(TIMEOUT_S * 1000))
    environment = {"HEADGATE_CLUSTER_MEMBER_TIMEOUT_MS": timeout_ms}
    running = spawn("up", "--store", str(tmp_path / "store"), "--brokers", "3", environment=environment)
    fleet = Fleet(running)
    before = brokers_of(running)
    assert len(before) == 3
    for _ in range(STOPS):
        for pid in before.values():
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * TIMEOUT_S)
        for pid in before.values():
            os.kill(pid, signal.SIGCONT)
        time.sleep(GO_ON_S)
    eventually_up(lambda: is_starved(fleet), "the leader tells that the machine is starved", running)
    assert brokers_of(running) == before, running.err
    assert "ended" not in running.err, running.err
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0
