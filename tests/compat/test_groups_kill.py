"""Groups of real clients through SIGKILL and restart of the broker.

Runs: eager, cooperative and static groups consume and commit while a producer writes and the broker is killed again and again,
some of their members with it. Compared: every acked record is processed by each group, committed positions never go back, and no
committed record is processed again. A mismatch means that a crash of the broker makes consumers lose or repeat work.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.compat.topics import create_topic, fresh
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.clients.confluent import QUICK_RECONNECT
from tests.support.group_members.process import PYTHON_CLIENTS, Group

PARTITIONS = 6
PER_ROUND = 600
SEED = 7


class Writer:
    """An idempotent producer; `ends`: the end of the acked records, by partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 90_000,
                **QUICK_RECONNECT,
            }
        )
        self.ends = dict.fromkeys(range(PARTITIONS), 0)

    def write(self, count: int) -> None:
        """Send records; their acks come in `flush`."""
        for number in range(count):
            self._producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self.ends[partition] = max(self.ends[partition], offset + 1)

    def flush(self) -> None:
        assert self._producer.flush(90) == 0, "records are not acked"


@dataclass(frozen=True)
class Shape:
    """One of the groups that consume side by side."""

    clients: tuple[str, ...]
    assignor: str = "range"
    static: bool = False

    def start(self, group: Group, number: int) -> None:
        """Start the member with this number, or restart it after its death."""
        client = self.clients[number % len(self.clients)]
        group.start(client, assignor=self.assignor, instance=f"i{number}" if self.static else None)


PYTHON_SHAPES = (
    Shape(PYTHON_CLIENTS),
    Shape(("confluent", "confluent"), assignor="cooperative-sticky"),
    Shape(("confluent", "aiokafka"), static=True),
)
KAFKAJS_SHAPES = (Shape(("kafkajs", "kafkajs")),)


@pytest.mark.parametrize(
    ("shapes", "rounds"),
    [
        pytest.param(PYTHON_SHAPES, 4, id="python"),
        pytest.param(KAFKAJS_SHAPES, 2, marks=pytest.mark.kafkajs, id="kafkajs"),
        pytest.param(PYTHON_SHAPES, 20, marks=[pytest.mark.slow, pytest.mark.timeout(900)], id="python-long"),
        pytest.param(
            KAFKAJS_SHAPES, 20, marks=[pytest.mark.kafkajs, pytest.mark.slow, pytest.mark.timeout(900)], id="kafkajs-long"
        ),
    ],
)
def test_groups_survive_the_broker(
    make_broker: BrokerFactory, tmp_path: Path, shapes: tuple[Shape, ...], rounds: int, report: Callable[[str], None]
) -> None:
    """In every second round a member of each group dies with the broker, and its successor starts while no broker runs."""
    broker = make_broker()
    broker.start()
    topic = create_topic(broker.bootstrap, fresh("consumed"), PARTITIONS)
    groups = [Group(broker.bootstrap, fresh("group"), topic, tmp_path) for _ in shapes]
    writer = Writer(broker.bootstrap, topic)
    chance = random.Random(SEED)
    try:
        for shape, group in zip(shapes, groups, strict=True):
            for number in range(len(shape.clients)):
                shape.start(group, number)
        for group in groups:
            group.wait_shared(PARTITIONS)
        for done in range(rounds):
            writer.write(PER_ROUND)
            time.sleep(chance.choice((0.0, 0.02, 0.1, 0.5)))
            broker.kill()
            if done % 2:
                for shape, group in zip(shapes, groups, strict=True):
                    number = done // 2 % len(shape.clients)
                    group.running[0].kill()
                    shape.start(group, number)
            broker.start()
        writer.write(PER_ROUND)
        writer.flush()
        assert sum(writer.ends.values()) == (rounds + 1) * PER_ROUND
        for group in groups:
            group.wait_processed(writer.ends)
        for group in groups:
            group.stop_all()
    finally:
        for group in groups:
            for member in group.members:
                member.kill()
    for shape, group in zip(shapes, groups, strict=True):
        group.check()
        twice = sum(member.records for member in group.members) - sum(writer.ends.values())
        kind = f"{'+'.join(shape.clients)} {'static ' if shape.static else ''}{shape.assignor}"
        report(
            f"groups: {kind} through {rounds} kills: {sum(writer.ends.values())} records, {twice} again, none that was committed"
        )


class LaterBroker(BrokerProcess):
    """A broker with a wall clock that is some days ahead."""

    days = 0
    forked = False

    def command(self) -> list[str]:
        program, _, _, *arguments = super().command()
        code = (
            f"import sys, time; real = time.time_ns; time.time_ns = lambda: real() + {self.days} * 86_400 * 10**9; "
            "from headgate.broker.cli.main import main; sys.exit(main())"
        )
        return [program, "-c", code, *arguments]


def test_a_consumer_that_is_away_for_thirty_days_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Every process is restarted, and the broker looks for expired groups all the time."""
    broker = LaterBroker(tmp_path / "store", tmp_path / "broker.log", env={"HEADGATE_OFFSETS_RETENTION_CHECK_INTERVAL_MS": "50"})
    with broker:
        broker.start()
        topic = create_topic(broker.bootstrap, fresh("consumed"), PARTITIONS, retention_ms="-1")
        group = Group(broker.bootstrap, fresh("group"), topic, tmp_path)
        writer = Writer(broker.bootstrap, topic)
        try:
            writer.write(PER_ROUND)
            writer.flush()
            first = group.start("confluent")
            group.wait_processed(writer.ends)
            first.stop()
            committed = dict(writer.ends)
            broker.kill()
            broker.days = 30
            broker.start()
            writer.write(PER_ROUND)
            writer.flush()
            time.sleep(0.5)
            broker.kill()
            broker.start()
            second = group.start("aiokafka")
            group.wait_processed(writer.ends)
            second.stop()
            starts = {one["partition"]: one["offset"] for one in reversed(second.of("record"))}
            assert starts == committed
        finally:
            for member in group.members:
                member.kill()
        group.check()
    broker.check_output()
