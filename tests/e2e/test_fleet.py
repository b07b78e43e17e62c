"""A local fleet as a user runs it: `headgate up`, reservations, brokers that die, Ctrl-C; all with real processes and a
producer.

Runs: one broker under load; a reservation brings two more, which get their part of the load; one of them is killed; the
reservation ends and the surplus drains. Then a fleet of three that is told to end. Compared: the running processes, the leaders,
exit codes; at the end the whole topic with every ack (`tests/support/history.py`). A mismatch means that capacity does not come,
does not go, or that records were lost on the way.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka.admin import AdminClient

from headgate.broker.client.control import Control, DesiredBrokers
from headgate.broker.runtime.errors import RetryError
from headgate.broker.wire.grpc.headgate.v1 import externalscaler_pb2
from headgate.broker.wire.grpc.methods import methods
from tests.compat.topics import create_topic
from tests.e2e.test_process import Running, Spawn, spawn
from tests.support.broker_process import HOST
from tests.support.children import children
from tests.support.clients.all import CLIENTS
from tests.support.history import check_log, check_writer
from tests.support.waiting import until
from tests.support.writers import ConfluentWriter

__all__ = ["spawn"]

SCALER = methods(externalscaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"])
PARTITIONS = 6
PATIENCE_S = 90.0
"""Ends a hang; no test judges by it."""


def brokers_of(running: Running) -> dict[int, int]:
    """Process ids of the brokers that a supervisor runs, by broker id."""
    found: dict[int, int] = {}
    for child, command in children(running.process.pid).items():
        given = [argument for argument in command.split() if argument.startswith("--broker-id=")]
        found[int(given[0].partition("=")[2]) if given else 1] = child
    return found


def eventually(question: Callable[[], bool], what: str, running: Running) -> None:
    until(lambda: running.process.poll() is not None or question(), lambda: f"{what}\n{running.err}")
    assert running.process.poll() is None, f"it ended\n{running.out}\n{running.err}"


class Fleet:
    """The clients' view of a supervisor's brokers."""

    def __init__(self, running: Running) -> None:
        self.running = running
        running.wait_for(r"headgate serves kafka=\S+ grpc=\S+ http=\S+ store=.+ \(Ctrl-C ends it\)\n")
        self.bootstrap = f"{HOST}:{running.ports[0]}"
        self.address = f"{HOST}:{running.ports[1]}"

    def leads(self) -> dict[int, int]:
        """The leader of every partition of the topic `t`."""
        topic = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=60).topics["t"]
        return {number: partition.leader for number, partition in topic.partitions.items()}

    def call(self, ask: Callable[[Control], Any]) -> Any:
        async def talk() -> Any:
            async with Control(self.address) as control:
                return await ask(control)

        return asyncio.run(talk())

    def desired(self) -> DesiredBrokers:
        found: DesiredBrokers = self.call(lambda control: control.desired_brokers())
        return found


def test_brokers_come_and_go_with_a_reservation(spawn: Spawn, tmp_path: Path, report: Callable[[str], None]) -> None:
    running = spawn("up", "--store", str(tmp_path / "store"), "--max-brokers", "3")
    fleet = Fleet(running)
    create_topic(fleet.bootstrap, "t", PARTITIONS)
    writer = ConfluentWriter(fleet.bootstrap, "t", PARTITIONS, 0, idempotent=True, codec="lz4")
    writer.pause_s = 0.02  # so little that the load alone needs no second broker
    writer.start()

    def acked_everywhere() -> None:
        before = {number: len(writer.sent.acks.get(number, ())) for number in range(PARTITIONS)}

        def more() -> bool:
            writer.check()
            return all(len(writer.sent.acks.get(number, ())) > count for number, count in before.items())

        eventually(more, "every partition acks", running)

    acked_everywhere()
    assert list(brokers_of(running)) == [1]
    with pytest.raises(Exception, match="a reservation is for 1 to 3 brokers"):
        fleet.call(lambda control: control.open_reservation(4, 60_000))
    began = time.monotonic()
    fleet.call(lambda control: control.open_reservation(3, 600_000, owner="test", reservation_id="r"))
    eventually(lambda: set(fleet.leads().values()) == {1, 2, 3}, "three brokers lead", running)
    acked_everywhere()
    took_s = time.monotonic() - began
    desired = fleet.desired()
    assert (desired.brokers, desired.live_brokers) == (3, 3) and "reservation r of test holds 3 brokers" in desired.reasons[0]

    victim = brokers_of(running)[3]
    os.kill(victim, signal.SIGKILL)
    running.wait_for("broker 3 ended: killed by SIGKILL; it starts again", in_errors=True)
    running.wait_for("broker 3 serves again", in_errors=True)
    eventually(lambda: set(fleet.leads().values()) == {1, 2, 3}, "three brokers lead again", running)
    acked_everywhere()
    assert brokers_of(running).keys() == {1, 2, 3} and brokers_of(running)[3] != victim

    # The reservation expires by itself: no client renews it.
    fleet.call(lambda control: control.renew_reservation("r", 2_000))
    eventually(lambda: list(brokers_of(running)) == [1], "the surplus is gone", running)
    assert set(fleet.leads().values()) == {1}
    acked_everywhere()
    assert running.err.count("hands over what it leads") == 2 and "SIGKILL; it" in running.err and "exit code" not in running.err
    writer.stop()
    writer.join(PATIENCE_S)
    shown = CLIENTS["confluent"].consume(fleet.bootstrap, "t", range(PARTITIONS))
    log = {partition: [(read.offset, read.value or b"") for read in reads] for partition, reads in shown.items()}
    wrong = check_log(log) + check_writer(writer.sent, log)
    assert not wrong, "\n".join(wrong[:20])
    report(f"fleet: 1 -> 3 brokers that lead and ack in {took_s:.2f} s, {writer.sent.acked_count:,} acked")
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0
    assert running.out.count("\n") == 1


def ask(channel: grpc.Channel, name: str, request: Any) -> Any:
    """Send one of KEDA's requests."""
    return SCALER[name].response.FromString(channel.unary_unary(SCALER[name].path)(request.SerializeToString(), timeout=PATIENCE_S))


def test_a_reservation_survives_the_leader_and_ends_by_itself(spawn: Spawn, tmp_path: Path) -> None:
    running = spawn("up", "--brokers", "2", "--max-brokers", "2", "--store", str(tmp_path / "store"))
    fleet = Fleet(running)
    fleet.call(lambda control: control.open_reservation(2, 600_000, owner="test", reservation_id="r"))
    leader = AdminClient({"bootstrap.servers": fleet.bootstrap, "log_level": 0}).list_topics(timeout=60).controller_id
    os.kill(brokers_of(running)[leader], signal.SIGKILL)
    running.wait_for(f"broker {leader} serves again", in_errors=True)
    (kept,) = fleet.call(lambda control: control.reservations())
    assert (kept.id, kept.owner, kept.brokers, kept.ttl_ms) == ("r", "test", 2, 600_000)
    fleet.call(lambda control: control.renew_reservation("r", 1_000))
    eventually(lambda: not fleet.call(lambda control: control.reservations()), "it ends", running)
    assert fleet.call(lambda control: control.release_reservation("r")) is False

    # A broker that was replaced while it was stopped notices that, ends, and is restarted.
    doors = dict(zip((1, 2), re.findall(r"[\d.]+:\d+", running.out.split()[2]), strict=True))
    leader = AdminClient({"bootstrap.servers": doors[1], "log_level": 0}).list_topics(timeout=60).controller_id
    sleeper = 3 - leader
    others = AdminClient({"bootstrap.servers": doors[leader], "log_level": 0})
    pid = brokers_of(running)[sleeper]
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: sleeper not in others.list_topics(timeout=60).brokers, "it was replaced", running)
    os.kill(pid, signal.SIGCONT)
    running.wait_for(f"broker {sleeper} ended: .*it starts again", in_errors=True)
    eventually(lambda: running.err.count(" serves again\n") == 2, "it is back", running)
    eventually(lambda: sleeper in others.list_topics(timeout=60).brokers, "it is a member", running)

    # KEDA asks any broker, and gets the same number.
    for address in re.findall(r"[\d.]+:\d+", running.out.split()[3]):
        with grpc.insecure_channel(address) as channel:
            metric = ask(channel, "GetMetricSpec", externalscaler_pb2.ScaledObjectRef()).metricSpecs[0]
            assert (metric.metricName, metric.targetSize) == ("headgate-desired-brokers", 1)
            asked = externalscaler_pb2.GetMetricsRequest(metricName=metric.metricName)
            assert ask(channel, "GetMetrics", asked).metricValues[0].metricValue == 2
            assert ask(channel, "IsActive", externalscaler_pb2.ScaledObjectRef()).result
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0


def test_three_end_together_and_nothing_is_left_to_recover(spawn: Spawn, tmp_path: Path) -> None:
    store = str(tmp_path / "a store")
    running = spawn("up", "--brokers", "3", "--max-brokers", "3", "--store", store)
    fleet = Fleet(running)
    line = running.out
    assert line.endswith(f" store={store} (Ctrl-C ends it)\n")
    assert line.count("\n") == 1 and all(part.count(",") == 2 for part in line.split()[2:5])
    create_topic(fleet.bootstrap, "t", PARTITIONS)
    # A broker that has just started is busy with its imports, so it may lead nothing at first.
    eventually(lambda: set(fleet.leads().values()) == {1, 2, 3}, "three brokers lead", running)
    pids = list(brokers_of(running).values())
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 0, running.err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert running.err == ""
    again = spawn("up", "--store", store, "--log-level", "info", "--log-format", "json")
    opened = again.wait_for(r'"event": "engine_open".*\n', in_errors=True).group()
    assert '"recovered_records": 0' in opened
    Fleet(again)
    # At once the supervisor gives the wanted number of brokers, or says that it does not know it yet; never a number below the
    # present one.
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            desired = Fleet(again).desired()
            break
        except RetryError:
            assert time.monotonic() < deadline
    assert (desired.brokers, desired.live_brokers) == (1, 1)
    again.process.send_signal(signal.SIGTERM)
    assert again.wait() == 0
