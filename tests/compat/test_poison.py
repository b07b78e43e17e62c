"""Batches with a right CRC and records that no consumer can read never stop the readers of a partition.

Runs: a real broker; poison sent as raw Produce requests on separate connections, good records beside it; librdkafka, aiokafka,
kafka-python and the project's own consumer. Compared: error codes, the records of each consumer, and its position. A mismatch
means that one client can block all readers of a partition, or that a refused batch is stored.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer

from headgate.broker.client import Admin, TopicPartition
from headgate.broker.client import Consumer as OwnConsumer
from headgate.broker.runtime.errors import InvalidError
from tests.compat.conftest import EXTERNAL
from tests.compat.test_errors import INVALID_RECORD, MESSAGE_TOO_LARGE, Broker, broker
from tests.compat.topics import create_topic, fresh
from tests.support import commands, oracle
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.poison import GOOD, POISON
from tests.support.records import Record
from tests.support.wire import RawConnection

__all__ = ("broker",)
pytestmark = pytest.mark.skipif(EXTERNAL is not None, reason="Apache Kafka does not look into uncompressed records")

READERS = ("confluent", "aiokafka", "kafka-python")
SAMPLED = [name for name in POISON if name != "gzip-bomb"]


@pytest.mark.parametrize("name", ["noise", "huge-count", "gzip-bomb"])
def test_poison_after_good_batches_is_refused_where_all_is_checked(broker: Broker, name: str) -> None:
    topic = create_topic(broker.bootstrap, fresh("all"), 1, headgate_check_records="all")
    with RawConnection(broker.host, broker.port, timeout_s=60) as connection:

        def produce(records: bytes) -> int:
            data = {"name": topic, "partition_data": ({"index": 0, "records": records},)}
            answer = oracle.call(connection, oracle.PRODUCE, 9, {"acks": -1, "timeout": 60_000, "topic_data": (data,)})
            return int(answer.responses[0].partition_responses[0].error_code)

        for _ in range(40):
            assert produce(GOOD) == 0
        assert produce(POISON[name]) == (MESSAGE_TOO_LARGE if name in ("gzip-bomb",) else INVALID_RECORD)
        assert produce(GOOD) == 0
    assert broker.end(topic) == 41 * 3


@pytest.mark.parametrize("idempotent", [False, True])
def test_librdkafka_tells_wrong_records_from_those_beside_them(broker: Broker, idempotent: bool) -> None:
    """A producer that keeps wrong records apart would keep the whole batch, if the answer named none of them."""
    topic = create_topic(broker.bootstrap, fresh("compacted"), 1, cleanup_policy="compact")
    answers: list[int | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 60_000, "enable.idempotence": idempotent})
    for at in range(100):
        producer.produce(
            topic,
            b"%d" % at,
            b"key" if at % 10 else None,
            partition=0,
            on_delivery=lambda error, _: answers.append(None if error is None else error.code()),
        )
    assert producer.flush(60) == 0
    assert (answers.count(INVALID_RECORD), answers.count(KafkaError._INVALID_DIFFERENT_RECORD)) == (10, 90)
    assert broker.end(topic) == 0


@pytest.mark.parametrize("reader", READERS)
def test_readers_go_on_where_poison_was_refused(broker: Broker, reader: str) -> None:
    topic = create_topic(broker.bootstrap, fresh("refused"), 1)
    records = [Record(partition=0, key=b"k", value=b"before"), Record(partition=0, key=b"k", value=b"behind")]
    CLIENTS["confluent"].produce(broker.bootstrap, topic, records[:1])
    for name in SAMPLED:
        assert broker.produce(topic, POISON[name])[0] == INVALID_RECORD
    CLIENTS["confluent"].produce(broker.bootstrap, topic, records[1:])
    shown = CLIENTS[reader].consume(broker.bootstrap, topic, [0])[0]
    assert [(one.offset, one.value) for one in shown] == [(0, b"before"), (1, b"behind")]


class Skipped:
    """A topic that takes poison, because it checks headers only. `layout`: the batches of each partition, in order."""

    layout = ("good poison good", "good poison", "poison good", "poison", "good poison good poison poison good", "good good")
    kinds = ("noise", "not-zstd", "two-as-one", "cut-off", "gzip-noise", "noise")

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.cluster = f"{HOST}:{broker.grpc_port}"
        self.topic = create_topic(broker.bootstrap, fresh("skip"), len(self.layout), headgate_check_records="header")
        self.wanted: dict[int, list[int]] = {}
        self.poison: dict[int, list[tuple[int, int]]] = {}
        """First and last offsets of the poisoned batches."""
        self.ends: dict[int, int] = {}
        door = Broker(broker.bootstrap, HOST, broker.kafka_port)
        for number, (batches, kind) in enumerate(zip(self.layout, self.kinds, strict=True)):
            self.wanted[number], self.poison[number] = [], []
            for one in batches.split():
                data = GOOD if one == "good" else POISON[kind]
                code, base = door.produce(self.topic, data, partition=number)
                assert code == 0
                self.ends[number] = base + int.from_bytes(data[57:61], "big")
                if one == "good":
                    self.wanted[number] += range(base, self.ends[number])
                else:
                    self.poison[number].append((base, self.ends[number] - 1))

    def headgate(self, *arguments: str, code: int = 0) -> str:
        done = commands.run(["topic", *arguments, "--cluster", self.cluster], os.environ)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout

    def check_read(self, reader: str) -> None:
        shown = CLIENTS[reader].consume(self.broker.bootstrap, self.topic, list(self.wanted))
        assert {number: [one.offset for one in rows] for number, rows in shown.items()} == self.wanted

    async def own(self, number: int) -> list[int]:
        """The reads of the project's own consumer, from the beginning to the end of a partition."""
        offsets: list[int] = []
        place = TopicPartition(self.topic, number)
        async with OwnConsumer(self.cluster) as consumer:
            await consumer.assign({place: "earliest"})
            while consumer.position(place) < self.ends[number]:
                offsets += [record.offset for record in await consumer.poll(timeout_ms=100)]
        return offsets


@pytest.fixture(scope="module")
def skipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skipped]:
    """Poison that was stored, and then skipped."""
    home = tmp_path_factory.mktemp("skip")
    with BrokerProcess(home / "store", home / "broker.log") as broker:
        broker.start()
        topic = Skipped(broker)
        check_before(topic)
        for number, ranges in topic.poison.items():
            for first, last in ranges:
                arguments = ("skip", topic.topic, "--partition", str(number), "--offset", str(first), "--to", str(last))
                assert "nothing was changed" in topic.headgate(*arguments)
                assert "step over" in topic.headgate(*arguments, "--execute")
        yield topic
    broker.check_output()


def check_before(topic: Skipped) -> None:
    """The project's own consumer names the offset and the command that skips it, and so does `topic check`."""
    with pytest.raises(InvalidError, match=rf"headgate topic skip {topic.topic} --partition 1 --offset 3 --to 5"):
        asyncio.run(topic.own(1))
    out = topic.headgate("check", topic.topic, code=1)
    assert f"unreadable: {sum(map(len, topic.poison.values()))}" in out
    assert "unreadable: 0" in topic.headgate("check", topic.topic, "--partition", "5")


@pytest.mark.parametrize("reader", READERS)
def test_readers_step_over_what_is_skipped(skipped: Skipped, reader: str) -> None:
    skipped.check_read(reader)


def test_the_own_consumer_steps_over_what_is_skipped(skipped: Skipped) -> None:
    for number, wanted in skipped.wanted.items():
        assert asyncio.run(skipped.own(number)) == wanted


def test_a_skip_is_shown(skipped: Skipped) -> None:
    async def ranges() -> dict[int, list[tuple[int, int]]]:
        async with Admin(skipped.cluster) as admin:
            described = await admin.describe_topic(skipped.topic)
        return {part.number: [(first, end - 1) for first, end in part.skipped] for part in described.partitions}

    shown = asyncio.run(ranges())
    # Adjacent ranges become one.
    assert shown == {**skipped.poison, 4: [skipped.poison[4][0], (skipped.poison[4][1][0], skipped.poison[4][2][1])]}
    assert "skipped from" in skipped.headgate("describe", skipped.topic)
    assert "unreadable: 0" in skipped.headgate("check", skipped.topic)


def test_a_batch_is_skipped_whole_and_shown_before(skipped: Skipped) -> None:
    out = skipped.headgate("skip", skipped.topic, "--partition", "5", "--offset", "4")
    assert "offsets 3 to 5" in out and "a batch is skipped whole" in out and "records are skipped, too" in out
    assert asyncio.run(skipped.own(5)) == skipped.wanted[5]


@pytest.mark.parametrize(("first", "last", "code"), [("5", "4", 2), ("0", "99", 1), ("99", "99", 1)])
def test_offsets_that_are_not_there(skipped: Skipped, first: str, last: str, code: int) -> None:
    skipped.headgate("skip", skipped.topic, "--partition", "5", "--offset", first, "--to", last, "--execute", code=code)


def test_a_skip_survives_the_broker(skipped: Skipped) -> None:
    skipped.broker.kill()
    skipped.broker.start()
    for reader in READERS:
        skipped.check_read(reader)
    test_a_skip_is_shown(skipped)
