"""Consumer groups of real clients: confluent-kafka, aiokafka, kafka-python and kafkajs, alone and mixed.

Runs: each member is a separate process that commits after every batch; members join, leave, and die without leaving the group.
Compared: every record is processed, committed positions never go back, and no committed record is processed again. A mismatch
means lost or repeated work for consumers in a group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.topics import create_topic, fresh
from tests.support.clients.confluent import Confluent
from tests.support.group_members.process import PYTHON_CLIENTS, Group
from tests.support.records import Record

PARTITIONS = 6
CLIENTS = [*PYTHON_CLIENTS, pytest.param("kafkajs", marks=pytest.mark.kafkajs)]

MakeGroup = Callable[..., Group]


@pytest.fixture
def make_group(bootstrap: str, tmp_path: Path) -> Iterator[MakeGroup]:
    """Makes groups on a fresh topic; at the end none of their members runs, and all their events are judged."""
    made: list[Group] = []

    def make(partitions: int = PARTITIONS, **options: int) -> Group:
        topic = create_topic(bootstrap, fresh("consumed"), partitions)
        made.append(Group(bootstrap, fresh("group"), topic, tmp_path, **options))
        return made[-1]

    yield make
    for group in made:
        for member in group.members:
            member.kill()
        group.check()


class Feed:
    """Writes to every partition of a group's topic, and knows the written offsets."""

    def __init__(self, group: Group, partitions: int = PARTITIONS) -> None:
        self._group = group
        self.ends = dict.fromkeys(range(partitions), 0)

    def write(self, each: int) -> None:
        records = [Record(partition=partition, key=None, value=b"%d" % number) for number in range(each) for partition in self.ends]
        Confluent().produce(self._group.bootstrap, self._group.topic, records)
        for partition in self.ends:
            self.ends[partition] += each


@pytest.mark.parametrize("client", CLIENTS)
def test_members_join_leave_and_crash(make_group: MakeGroup, client: str) -> None:
    group = make_group()
    feed = Feed(group)
    feed.write(20)
    first = group.start(client)
    group.wait_shared(PARTITIONS)
    second = group.start(client)
    group.wait_shared(PARTITIONS)
    third = group.start(client)
    group.wait_shared(PARTITIONS)
    feed.write(20)
    group.wait_processed(feed.ends)
    second.stop()
    group.wait_shared(PARTITIONS)
    feed.write(20)
    group.wait_processed(feed.ends)
    third.kill()
    feed.write(20)
    group.wait_processed(feed.ends)
    group.wait_shared(PARTITIONS)
    first.stop()


@pytest.mark.parametrize("client", ["confluent", pytest.param("java", marks=[pytest.mark.kafka_server, pytest.mark.slow])])
def test_members_of_a_consumer_group_join_leave_and_crash(make_group: MakeGroup, client: str) -> None:
    """KIP-848: the broker assigns, and what a member keeps is not taken from it meanwhile."""
    group = make_group()
    feed = Feed(group)
    feed.write(20)
    first = group.start(client, assignor="kip848")
    group.wait_shared(PARTITIONS)
    group.start(client, assignor="kip848")
    group.wait_shared(PARTITIONS)
    revoked = [partition for one in first.of("revoked") for partition in one["partitions"]]
    assert len(revoked) == PARTITIONS // 2
    third = group.start(client, assignor="kip848")
    group.wait_shared(PARTITIONS)
    feed.write(20)
    group.wait_processed(feed.ends)
    group.running[1].stop()
    group.wait_shared(PARTITIONS)
    third.kill()
    feed.write(20)
    group.wait_processed(feed.ends)
    group.wait_shared(PARTITIONS)
    first.stop()


@pytest.mark.parametrize(
    ("client", "classic"),
    [
        ("confluent", "range"),
        ("confluent", "cooperative-sticky"),
        pytest.param("java", "range", marks=[pytest.mark.kafka_server, pytest.mark.slow]),
    ],
)
def test_a_group_changes_its_protocol_while_its_members_roll(make_group: MakeGroup, client: str, classic: str) -> None:
    """To KIP-848 and back: positions stay, and no committed record comes again."""
    group = make_group()
    feed = Feed(group)
    feed.write(20)
    for _ in range(2):
        group.start(client, assignor=classic)
        group.wait_shared(PARTITIONS)
    for assignor in ("kip848", "kip848", classic, classic):
        old = group.running[0]
        group.start(client, assignor=assignor)
        group.wait_shared(PARTITIONS)
        feed.write(20)
        group.wait_processed(feed.ends)
        old.stop()
        group.wait_shared(PARTITIONS)
        feed.write(20)
        group.wait_processed(feed.ends)
    group.stop_all()


@pytest.mark.parametrize("assignor", ["roundrobin", "range"])
def test_a_group_of_all_clients_whose_assignors_agree(make_group: MakeGroup, assignor: str) -> None:
    group = make_group()
    feed = Feed(group)
    feed.write(20)
    for client in PYTHON_CLIENTS:
        group.start(client, assignor=assignor)
        group.wait_shared(PARTITIONS)
    feed.write(50)
    group.wait_processed(feed.ends)
    for _ in range(len(PYTHON_CLIENTS) - 1):
        group.running[0].stop()
        group.wait_shared(PARTITIONS)
        feed.write(20)
        group.wait_processed(feed.ends)
    group.stop_all()


def test_cooperative_members_keep_what_they_do_not_give(make_group: MakeGroup) -> None:
    group = make_group()
    feed = Feed(group)
    feed.write(20)
    first = group.start("confluent", assignor="cooperative-sticky")
    group.wait_shared(PARTITIONS)
    group.start("confluent", assignor="cooperative-sticky")
    group.wait_shared(PARTITIONS)
    revoked = [partition for one in first.of("revoked") for partition in one["partitions"]]
    assert len(revoked) == PARTITIONS // 2, "what it keeps is not taken from it meanwhile"
    group.start("confluent", assignor="cooperative-sticky")
    group.wait_shared(PARTITIONS)
    feed.write(20)
    group.wait_processed(feed.ends)
    group.running[1].kill()
    group.wait_shared(PARTITIONS)
    feed.write(20)
    group.wait_processed(feed.ends)
    group.stop_all()


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka_python"])
def test_a_static_member_that_restarts_does_not_disturb_the_others(make_group: MakeGroup, client: str) -> None:
    group = make_group(session_ms=30_000)
    feed = Feed(group)
    feed.write(20)
    # The remaining member leads. kafka-python joins twice if its poll's time ends just before the answer comes, and a leader that
    # rejoins makes any group rebalance.
    stays = group.start(client, instance="i0")
    group.wait_shared(PARTITIONS)
    goes = group.start(client, instance="i1")
    group.wait_shared(PARTITIONS)
    feed.write(20)
    group.wait_processed(feed.ends)
    owned = goes.owns
    before = len(stays.of("assigned"))
    goes.kill()
    back = group.start(client, instance="i1")
    group.wait("it has its partitions again", lambda: back.owns == owned)
    feed.write(20)
    group.wait_processed(feed.ends)
    assert len(stays.of("assigned")) == before, "the group rebalanced"
    group.stop_all()


def test_a_second_process_with_the_same_instance_fences_the_first(make_group: MakeGroup) -> None:
    group = make_group(session_ms=30_000)
    feed = Feed(group)
    feed.write(20)
    first = group.start("confluent", instance="i0")
    group.wait_shared(PARTITIONS)
    second = group.start("confluent", instance="i0")
    group.wait("the second has everything", lambda: len(second.owns) == PARTITIONS)
    feed.write(20)
    # librdkafka does not hand each fatal error to its caller, but always says it.
    group.wait("the first is told that it is fenced", lambda: first.of("fatal") or "FATAL" in first.output())
    group.wait_processed(feed.ends)
    second.stop()


def test_a_stopped_group_goes_on_soon(make_group: MakeGroup, report: Callable[[str], None]) -> None:
    """After the last member died without leaving, its successor waits for the session timeout and little more."""
    group = make_group(1)
    feed = Feed(group, 1)
    feed.write(50)
    first = group.start("confluent")
    group.wait_processed(feed.ends)
    group.wait("it committed", lambda: first.of("committed") and first.of("committed")[-1]["offsets"] == {"0": 50})
    feed.write(50)
    group.wait_processed(feed.ends)
    first.kill()
    feed.write(50)
    began = time.monotonic()
    second = group.start("confluent")
    group.wait_processed(feed.ends)
    took_s = second.of("record")[0]["at"] - began
    session_s = group.session_ms / 1000
    report(f"groups: a successor got its first record {took_s:.1f} s after its start; the session time-out is {session_s:.0f} s")
    second.stop()
