"""Real brokers that are far from their leader, and from their store: what a person does and sees.

Runs: three brokers on S3; each byte to the leader, and later each byte to the store, is late; foreign clients write and read all
the time; a broker starts, segments are split, moved and merged, and brokers are drained and told to end, by the command line.
Compared: members, exit codes, the time until a broker ends, and at the end the whole topic with every ack. A mismatch means that a
far broker never joins, that a command gives up while the leader works on, or that a broker does not end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import commands
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.cluster import Brokers, Clients, s3_doors
from tests.support.network import Network
from tests.support.s3_server import MotoServer
from tests.support.waiting import until

LEADER_S, STORE_S = 1.2, 0.3
"""Delay of each way. A commit takes several of them."""
PARTITIONS = 6
END_S = 25.0
"""`shutdown_timeout_ms`: what is not handed over by then is left to the others."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_far_brokers_and_far_stores(make_broker: BrokerFactory, tmp_path: Path, report: Callable[[str], None]) -> None:
    server = MotoServer()
    with Network() as network:
        try:
            env = {**server.environment, "HEADGATE_SHUTDOWN_TIMEOUT_MS": str(round(END_S * 1000))}
            brokers = Brokers(make_broker, s3_doors(network, server, "far"), env=env, network=network)
            brokers.start()
            create_topic(brokers.bootstrap, "t", PARTITIONS)
            run(brokers, network, report)
        finally:
            server.stop()


def run(brokers: Brokers, network: Network, report: Callable[[str], None]) -> None:
    leader = brokers.leader()
    drained, ended = (one for one in brokers.all if one is not leader)

    def headgate(*arguments: str) -> bool:
        """False if the leader itself moves the segment, or has moved it meanwhile."""
        began = time.monotonic()
        environment = {**os.environ, "HEADGATE_CLUSTER": f"{HOST}:{leader.grpc_port}"}
        done = commands.run(arguments, environment, timeout_s=300)
        if "being changed already" in done.stderr or "no open segment" in done.stderr:
            return False
        assert done.returncode == 0, f"headgate {' '.join(arguments)}: {done.stderr}"
        report(f"headgate {' '.join(arguments)}: {time.monotonic() - began:.1f} s")
        return True

    def split() -> bool:
        widest = max(brokers.segments("t"), key=lambda one: one.end_partition - one.first_partition)
        return widest.end_partition - widest.first_partition == 1 or headgate("segment", "split", str(widest.id))

    def move() -> bool:
        first = brokers.segments("t")[0]
        return headgate("segment", "move", str(first.id), "--broker", str(first.broker_id % len(brokers.all) + 1))

    def merge() -> bool:
        first, second = brokers.segments("t")[:2]
        return headgate("segment", "merge", str(first.id), str(second.id))

    def ends(broker: BrokerProcess) -> None:
        """It ends, with all that it had to write: a fold that is under way is left, not waited for."""
        began = time.monotonic()
        broker.signal(signal.SIGTERM)
        assert broker.wait_exit() == 0, broker.log_tail()
        report(f"SIGTERM: {time.monotonic() - began:.1f} s")

    with Clients(brokers, "t", PARTITIONS) as clients:
        clients.acked_in_all(3)
        assert drained.terminate() == 0
        network.delay({str(brokers.number(leader)): LEADER_S})
        drained.spawn()
        until(lambda: len(brokers.metadata(leader.bootstrap).brokers) == len(brokers.all), "a far broker joins")
        clients.acked_in_all(5)
        brokers.revive()
        assert not brokers.revived, "no far broker was replaced"
        network.delay({"store": STORE_S})
        clients.acked_in_all(3)
        for order in (split, move, merge):
            until(order, f"the leader takes an order to {order.__name__}")
        assert headgate("drain", str(brokers.number(drained)))
        clients.acked_in_all(3)
        ends(drained)
        ends(ended)
        clients.acked_in_all(3)
        network.delay({})
        wrong = clients.judge()
    assert not wrong, "\n".join(wrong[:20])
