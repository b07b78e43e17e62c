"""`headgate segment`, `capacity` and `status` against a stand-in leader and a broker that does not lead.

Runs: the commands as a user runs them, in a thread, over real gRPC; the leader's answers are canned, so that every word on the
screen has a known source. Compared: the requests to the leader, the printed text, exit codes. A mismatch means that the user
sees something else than the leader decided, or that a script breaks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from headgate.broker.cli import app
from headgate.broker.cli.cluster_tables import decision_rows, look, state
from headgate.broker.client.control import Control
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.server.grpc.errors import error_message
from headgate.broker.server.grpc.handlers import CallCounts, service_handler
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, control_pb2, gates_pb2
from tests.unit.cluster.test_capacity_service import Door, PaperControl

IN_DOUBT = "clock in doubt, nothing is deleted by age: the broker's time is 3.0 d ahead of the leader's clock"
"""What a broker tells of its clock."""


class PaperGates:
    """The part of `Gates` that `status` needs: there are none."""

    async def list_gates(self, request: Any, context: Any) -> gates_pb2.ListGatesResponse:
        return gates_pb2.ListGatesResponse()

    def __getattr__(self, name: str) -> Any:
        return None


class PaperAdmin:
    """The part of `Admin` that `status` and `segment list` need; it knows both brokers, and answers that no other topics exist."""

    def __init__(self, brokers: list[admin_pb2.Broker]) -> None:
        self.brokers = brokers

    async def status(self, request: Any, context: Any) -> admin_pb2.StatusResponse:
        return admin_pb2.StatusResponse(
            cluster_id="c1",
            broker_id=1,
            brokers=self.brokers,
            topics=[admin_pb2.TopicStatus(name="orders", id=bytes(16), partitions=8)],
        )

    async def describe_topics(self, request: Any, context: Any) -> admin_pb2.DescribeTopicsResponse:
        unknown = error_message(InvalidError(Reason.UNKNOWN_TOPIC, "topic does not exist"))
        topics = [admin_pb2.TopicDescription(error=unknown) for _ in request.names]
        return admin_pb2.DescribeTopicsResponse(broker_id=-1, brokers=self.brokers, topics=topics)

    def __getattr__(self, name: str) -> Any:
        return None


class PaperLeader:
    """`Control` with canned answers. `asked`: the requests that it got."""

    def __init__(self, *, leads: bool) -> None:
        self.leads = leads
        self.asked: list[control_pb2.ReshardRequest] = []
        self.described = 0

    def check(self) -> None:
        if not self.leads:
            raise RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster")

    async def describe(self, request: Any, context: Any) -> control_pb2.DescribeResponse:
        self.check()
        self.described += 1
        member = control_pb2.BrokerMember(broker_id=1, host="h1", kafka_port=9092, grpc_port=9095)
        other = control_pb2.BrokerMember(broker_id=2, host="h2", kafka_port=9192, grpc_port=9195)
        return control_pb2.DescribeResponse(
            leader_broker_id=1,
            version=7,
            members=[
                control_pb2.MemberState(member=other, cpu_share=0.1, draining=True, silence_ms_max=6400),
                control_pb2.MemberState(
                    member=member, cpu_share=0.52, memory_bytes=3 << 20, connections=4, late_ms=1340, starved=True
                ),
            ],
            segments=[
                control_pb2.SegmentState(
                    id=12, topic="orders", first_partition=4, end_partition=8, broker_id=2, leader_epoch=3, bytes_in_per_second=2048
                ),
                control_pb2.SegmentState(id=11, topic="orders", first_partition=0, end_partition=4, broker_id=1, leader_epoch=2),
            ],
            decisions=[
                control_pb2.Decision(
                    age_ms=4200, kind="split", why="segment 9 took 0.40 of a broker", pause_ms=120, topics=["orders"]
                ),
                control_pb2.Decision(age_ms=9000, kind="move", why="brokers were apart", error="member is lost"),
                control_pb2.Decision(age_ms=100, kind="drain", why="broker 2 is to go", under_way=True),
            ],
        )

    async def reshard(self, request: control_pb2.ReshardRequest, context: Any) -> control_pb2.ReshardResponse:
        self.check()
        if request.split.segment_id == 99:
            raise InvalidError(Reason.INVALID_REQUEST, "there is no open segment of this number. segment=`99`")
        self.asked.append(request)
        return control_pb2.ReshardResponse(
            segments=[control_pb2.SegmentState(id=21, topic="orders", first_partition=0, end_partition=3, broker_id=2)]
        )

    def __getattr__(self, name: str) -> Any:
        return None


class Broker(Door):
    """A gRPC server with the services that the commands call."""

    def __init__(self, *, leads: bool, brokers: list[admin_pb2.Broker]) -> None:
        super().__init__(PaperControl(leads=leads))
        self.control = PaperLeader(leads=leads)
        self.admin = PaperAdmin(brokers)

    async def start(self) -> None:
        self.extra = grpc.aio.server(
            handlers=[
                service_handler(control_pb2.DESCRIPTOR.services_by_name["Control"], self.control, CallCounts()),
                service_handler(admin_pb2.DESCRIPTOR.services_by_name["Admin"], self.admin, CallCounts()),
                service_handler(gates_pb2.DESCRIPTOR.services_by_name["Gates"], PaperGates(), CallCounts()),
                *self.capacity_handlers(),
            ]
        )
        port = self.extra.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        number = len(self.admin.brokers) + 1
        doubt = IN_DOUBT if number == 1 else ""
        self.admin.brokers.append(admin_pb2.Broker(id=number, host="127.0.0.1", grpc_port=port, clock_doubt=doubt))
        await self.extra.start()

    async def stop(self) -> None:
        await self.extra.stop(1)
        await self.forwarder.close()


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[tuple[Broker, Broker]]:
    """(the leader, the other broker)."""
    known: list[admin_pb2.Broker] = []
    leader, other = Broker(leads=True, brokers=known), Broker(leads=False, brokers=known)
    await leader.start()
    await other.start()
    other.view.elsewhere = leader.address
    yield leader, other
    await other.stop()
    await leader.stop()


class Commands:
    """Runs commands. Returns (exit code, stdout, stderr)."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    async def __call__(self, at: Broker, *arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(app.run, [*arguments, "--cluster", at.address])
        captured = self.capsys.readouterr()
        assert "\x1b" not in captured.out + captured.err and "Traceback" not in captured.err
        return code, captured.out, captured.err


@pytest.fixture
def headgate(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


async def test_segments_are_listed_at_any_broker(brokers: tuple[Broker, Broker], headgate: Commands) -> None:
    for broker in brokers:
        code, out, _ = await headgate(broker, "segment", "list")
        rows = [line.split("\t") for line in out.splitlines()]
        assert code == 0 and rows[0][:4] == ["segment", "topic", "partitions", "lead"]
        assert rows[1][:4] == ["11", "orders", "0-3", "broker 1"] and rows[2][:6] == [
            "12",
            "orders",
            "4-7",
            "broker 2",
            "3",
            "2.0 KiB",
        ]
    code, out, _ = await headgate(brokers[0], "segment", "list", "--topic", "orders", "--json")
    assert [one["id"] for one in json.loads(out)] == [11, 12]
    code, out, err = await headgate(brokers[0], "segment", "list", "--topic", "other", "--json")
    assert (code, out) == (1, "") and "topic does not exist" in err


async def test_orders_by_hand(brokers: tuple[Broker, Broker], headgate: Commands) -> None:
    leader, other = brokers
    code, out, _ = await headgate(other, "segment", "split", "11", "--at", "3", "--broker", "2")
    assert (code, out) == (0, "segment 11 split: segment 21 of orders 0-2 at broker 2\n")
    split = leader.control.asked[-1].split
    assert (split.segment_id, split.at_partition, split.broker_id) == (11, 3, 2)
    await headgate(leader, "segment", "split", "11")
    split = leader.control.asked[-1].split
    assert not split.HasField("at_partition") and not split.HasField("broker_id")
    code, out, _ = await headgate(leader, "segment", "merge", "11", "12", "--json")
    merge = leader.control.asked[-1].merge
    assert (merge.segment_id, merge.next_segment_id) == (11, 12) and json.loads(out)[0]["id"] == 21
    code, out, _ = await headgate(other, "segment", "move", "11", "--broker", "0")
    assert leader.control.asked[-1].move.broker_id == 0 and out.startswith("segment 11 moved: ")
    assert len(leader.control.asked) == 4
    code, out, err = await headgate(other, "segment", "split", "99")
    assert code == 2 and out == "" and "no open segment of this number" in err and err.count("\n") == 1


async def test_capacity_from_open_to_release(brokers: tuple[Broker, Broker], headgate: Commands) -> None:
    leader, other = brokers
    code, out, _ = await headgate(other, "capacity", "open", "3", "--ttl", "90s", "--id", "flood-1", "--owner", "me")
    assert (code, out) == (0, "reservation flood-1 open: 3 brokers for 1m 30s\n")
    code, out, _ = await headgate(other, "capacity", "list")
    assert out.splitlines()[0] == "3 brokers desired, 2 live" and "flood-1 of me holds 3 brokers" in out.splitlines()[1]
    code, out, _ = await headgate(leader, "capacity", "renew", "flood-1", "--ttl", "2m", "--json")
    assert json.loads(out)["ttl_ms"] == 120_000
    code, out, _ = await headgate(leader, "capacity", "list", "--json")
    assert json.loads(out)["brokers"] == 3 and [one["id"] for one in json.loads(out)["reservations"]] == ["flood-1"]
    code, out, err = await headgate(other, "capacity", "status", "--wait", "200ms")
    assert code == 1 and out.splitlines()[0] == "3 brokers desired, 2 live"
    assert err.endswith("there are fewer brokers than asked for. live=`2` desired=`3`\n"), (
        "the cluster answers: no hint where it is"
    )
    assert (await headgate(other, "capacity", "release", "flood-1"))[1] == "reservation flood-1 released\n"
    code, out, _ = await headgate(other, "capacity", "status", "--wait", "20s", "--json")
    assert code == 0 and json.loads(out)["brokers"] == 1 and json.loads(out)["live_brokers"] == 2
    assert (await headgate(other, "capacity", "release", "flood-1"))[1] == "reservation flood-1 was not open any more\n"
    code, _, err = await headgate(other, "capacity", "renew", "flood-1")
    assert code == 1 and "ran out, or was released" in err
    code, _, err = await headgate(other, "capacity", "open", "10000")
    assert code == 2 and "a reservation is for 1 to 64 brokers. brokers=`10000`" in err
    code, _, err = await headgate(other, "capacity", "open", "3", "--ttl", "9d")
    assert code == 2 and "--ttl" in err
    assert "@" in json.loads((await headgate(other, "capacity", "open", "1", "--json"))[1])["owner"]


async def test_states_of_brokers_and_decisions_in_words(brokers: tuple[Broker, Broker]) -> None:
    async with Control(brokers[1].address) as control:
        found = await look(control)
    states = [state(one, 1, found.view.leader_broker_id) for one in found.view.members]
    assert states == ["serves, leader, starved", "drains"]
    assert decision_rows(found.view.decisions) == [
        ("4.2 s", "split", "orders", "done, writers waited 120 ms", "segment 9 took 0.40 of a broker"),
        ("9.0 s", "move", "", "failed: member is lost", "brokers were apart"),
        ("0.1 s", "drain", "", "under way", "broker 2 is to go"),
    ]


async def test_status_shows_segments_and_decisions(brokers: tuple[Broker, Broker], headgate: Commands) -> None:
    leader, other = brokers
    code, out, _ = await headgate(other, "status", "--window", "0")
    assert code == 0 and "cluster c1: 2 brokers, 1 topic" in out and "2 brokers of 1 desired, leader 1, 2 segments" in out
    assert "segment 9 took 0.40 of a broker" in out and "\norders\t8\t" in out
    assert f"\nbroker 1: {IN_DOUBT}\n" in out
    assert "\nmachine starved: broker 1 runs up to 1.3 s late; a silent broker is replaced after up to 6.4 s\n" in out
    value = json.loads((await headgate(leader, "status", "--window", "0", "--json"))[1])
    assert [one["starved"] for one in value["control"]["view"]["members"]] == [True, False]
    assert value["control"]["view"]["segments"][0]["id"] == 11 and value["control"]["desired"]["brokers"] == 1


async def test_status_without_a_leader_shows_the_rest(
    brokers: tuple[Broker, Broker], headgate: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.broker.cli.commands.status.LEADER_MS", 300)
    leader, other = brokers
    leader.control.leads = False
    code, out, _ = await headgate(other, "status", "--window", "0")
    assert code == 0 and "no leader answers: this broker does not lead the cluster" in out and "\norders\t8\t" in out


async def test_groups_of_commands_show_their_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, commands in (
        ("segment", ("list", "split", "merge", "move")),
        ("capacity", ("open", "renew", "release", "list", "status")),
    ):
        assert await asyncio.to_thread(app.run, [name]) == 0
        out = capsys.readouterr().out
        assert all(f" {command} " in out for command in commands)
