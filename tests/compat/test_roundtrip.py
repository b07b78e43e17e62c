"""Every foreign producer writes, every foreign consumer reads, and every field is compared.

Runs: a real broker; confluent-kafka (librdkafka), aiokafka, kafka-python and kafkajs on both sides; each codec; each shape of
key, value, header, timestamp and size in `shapes.py`; before and after the broker is killed with SIGKILL and restarted.
Compared: key, value, headers, timestamp and its kind, and the offset that the producer got. The consumers check CRCs. A mismatch
means that the broker changed a byte of the producer, lost or repeated a record, or gave a producer a wrong offset.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.compat.conftest import EXTERNAL, QUICK
from tests.compat.shapes import PARTITIONS, shapes
from tests.compat.topics import create_topic, fresh
from tests.support.broker_process import BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.clients.interface import CODECS
from tests.support.records import Read, Record, header_groups


def _row(*values: str) -> object:
    return pytest.param(*values, marks=pytest.mark.kafkajs if "kafkajs" in values else ())


OTHERS = [name for name in CLIENTS if name != "confluent"]
writers = pytest.mark.parametrize("writer", [_row(name) for name in CLIENTS])
readers = pytest.mark.parametrize("reader", [_row(name) for name in CLIENTS])
codecs = pytest.mark.parametrize("codec", CODECS)
all_once = pytest.mark.parametrize(
    ("writer", "codec", "reader"),
    [_row(writer, codec, "confluent") for writer in CLIENTS for codec in CODECS]
    + [_row("confluent", "zstd", reader) for reader in OTHERS],
)
"""Each writer with each codec, and each reader. `test_every_field_survives` has each reader of each writer and codec."""


def expected(records: Sequence[Record], offsets: Sequence[int]) -> dict[int, list[Read]]:
    """The expected reads of a consumer, for a producer's records at the offsets that it got."""
    assert len(offsets) == len(records), "the producer does not tell every record's offset"
    found: dict[int, list[Read]] = {}
    for record, offset in zip(records, offsets, strict=True):
        assert record.timestamp_ms is not None
        found.setdefault(record.partition, []).append(
            Read(
                partition=record.partition,
                offset=offset,
                key=record.key,
                value=record.value,
                headers=record.headers,
                timestamp_ms=record.timestamp_ms,
                append_time=False,
            )
        )
    return found


def compare(reader: str, wanted: Mapping[int, list[Read]], shown: Mapping[int, list[Read]], *, writer: str = "confluent") -> None:
    """Compare field by field, so that a failure names the field instead of printing a megabyte of bytes."""
    header_order = CLIENTS[reader].header_order and CLIENTS[writer].header_order
    assert sorted(shown) == sorted(wanted)
    for partition, records in wanted.items():
        assert [read.offset for read in shown[partition]] == [record.offset for record in records], (
            f"offsets of partition {partition}"
        )
        for record, read in zip(records, shown[partition], strict=True):
            where = f"partition {partition} offset {record.offset}"
            assert read.key == record.key, where
            assert read.value == record.value, where
            if header_order:
                assert read.headers == record.headers, where
            else:
                assert header_groups(read.headers) == header_groups(record.headers), where
            assert read.timestamp_ms == record.timestamp_ms, where
            assert read.append_time in (record.append_time, None), where


@dataclass
class Corpus:
    """The records of each (writer, codec), written once and read by every reader."""

    broker: BrokerProcess | None
    bootstrap: str
    written: dict[tuple[str, str], tuple[str, dict[int, list[Read]]]]
    killed: bool = False

    def topic(self, writer: str, codec: str) -> tuple[str, dict[int, list[Read]]]:
        if (writer, codec) not in self.written:
            name = create_topic(self.bootstrap, fresh(f"shapes-{writer}-{codec}"), PARTITIONS)
            client = CLIENTS[writer]
            records = shapes(client)
            self.written[writer, codec] = name, expected(records, client.produce(self.bootstrap, name, records, codec=codec))
        return self.written[writer, codec]

    def kill_once(self) -> None:
        """Kill the broker with SIGKILL and restart it, the first time this is called."""
        if not self.killed:
            assert self.broker is not None
            self.killed = True
            self.broker.check_alive()
            self.broker.kill()
            self.broker.start()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    if EXTERNAL:
        yield Corpus(None, EXTERNAL, {})
        return
    home = tmp_path_factory.mktemp("roundtrip")
    with BrokerProcess(home / "store", home / "broker.log", env=QUICK) as broker:
        broker.start()
        yield Corpus(broker, broker.bootstrap, {})
        broker.check_alive()
    broker.check_output()


@writers
@codecs
@readers
def test_every_field_survives(corpus: Corpus, writer: str, codec: str, reader: str) -> None:
    topic, wanted = corpus.topic(writer, codec)
    compare(reader, wanted, CLIENTS[reader].consume(corpus.bootstrap, topic, range(PARTITIONS)), writer=writer)


if not EXTERNAL:  # a foreign broker is not killed

    @all_once
    def test_every_field_survives_sigkill(corpus: Corpus, writer: str, codec: str, reader: str) -> None:
        topic, wanted = corpus.topic(writer, codec)
        corpus.kill_once()
        compare(reader, wanted, CLIENTS[reader].consume(corpus.bootstrap, topic, range(PARTITIONS)), writer=writer)


@writers
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(bootstrap: str, writer: str, acks: int) -> None:
    topic = create_topic(bootstrap, fresh("acks"), 2)
    records = [
        Record(partition=number % 2, key=None, value=b"%d" % number, timestamp_ms=1_000_000_000_000 + number)
        for number in range(200)
    ]
    offsets = CLIENTS[writer].produce(bootstrap, topic, records, acks=acks)
    if acks == 0:
        assert set(offsets) == {-1}, "a producer that asked for no ack was given an offset"
        offsets = [number // 2 for number in range(200)]
        wait_for_offsets(bootstrap, topic, {0: 100, 1: 100})
    compare("confluent", expected(records, offsets), CLIENTS["confluent"].consume(bootstrap, topic, [0, 1]))


def wait_for_offsets(bootstrap: str, topic: str, ends: Mapping[int, int]) -> None:
    """Wait until unacknowledged records have arrived: consumers end at the high watermark that they find first."""
    deadline = time.monotonic() + 60
    while True:
        shown = CLIENTS["confluent"].consume(bootstrap, topic, list(ends))
        if {partition: len(reads) for partition, reads in shown.items()} == dict(ends):
            return
        assert time.monotonic() < deadline, f"records written with acks=0 did not arrive. topic=`{topic}`"
        time.sleep(0.05)


@writers
def test_idempotent_producers(bootstrap: str, writer: str) -> None:
    topic = create_topic(bootstrap, fresh("idempotent"), 2)
    records = [
        Record(partition=number % 2, key=b"%d" % number, value=b"v" * number, timestamp_ms=1_000_000_000_000 + number)
        for number in range(200)
    ]
    offsets = CLIENTS[writer].produce(bootstrap, topic, records, codec="lz4", idempotent=True)
    compare("confluent", expected(records, offsets), CLIENTS["confluent"].consume(bootstrap, topic, [0, 1]))


@all_once
def test_append_time(bootstrap: str, writer: str, codec: str, reader: str) -> None:
    """With LogAppendTime the broker's time replaces the producer's in the header, and the CRC must still be right: consumers
    check it."""
    topic = create_topic(bootstrap, fresh("append-time"), 1, message_timestamp_type="LogAppendTime")
    records = [Record(partition=0, key=b"k", value=b"%d" % number, timestamp_ms=1_000_000_000_000 + number) for number in range(20)]
    before_ms = int(time.time() * 1000)
    offsets = CLIENTS[writer].produce(bootstrap, topic, records, codec=codec)
    after_ms = int(time.time() * 1000)
    shown = CLIENTS[reader].consume(bootstrap, topic, [0])[0]
    assert [read.offset for read in shown] == offsets == list(range(20))
    assert [(read.key, read.value) for read in shown] == [(record.key, record.value) for record in records]
    assert {read.append_time for read in shown} <= {True, None}
    times = [read.timestamp_ms for read in shown]
    assert times == sorted(times)
    assert before_ms <= times[0] and times[-1] <= after_ms


@writers
def test_client_clock(bootstrap: str, writer: str) -> None:
    """A producer without a given timestamp writes the time of its own clock, as CreateTime."""
    topic = create_topic(bootstrap, fresh("client-clock"), 1)
    before_ms = int(time.time() * 1000)
    CLIENTS[writer].produce(bootstrap, topic, [Record(partition=0, key=None, value=b"now")])
    after_ms = int(time.time() * 1000)
    (read,) = CLIENTS["confluent"].consume(bootstrap, topic, [0])[0]
    assert read.append_time is False
    assert before_ms <= read.timestamp_ms <= after_ms


@pytest.mark.parametrize(
    ("writer", "reader"), [_row(name, "confluent") for name in CLIENTS] + [_row("confluent", name) for name in OTHERS]
)
def test_many_partitions(bootstrap: str, writer: str, reader: str) -> None:
    count = 100
    topic = create_topic(bootstrap, fresh("many"), count)
    records = [
        Record(partition=number % count, key=b"%d" % number, value=b"%d" % number, timestamp_ms=1_000_000_000_000 + number)
        for number in range(3 * count)
    ]
    offsets = CLIENTS[writer].produce(bootstrap, topic, records)
    compare(reader, expected(records, offsets), CLIENTS[reader].consume(bootstrap, topic, range(count)))


@pytest.mark.parametrize(
    "make_name",
    [
        pytest.param(lambda: uuid.uuid4().hex.ljust(249, "x"), id="longest"),
        pytest.param(lambda: fresh("AZaz09._-"), id="every-kind-of-character"),
        pytest.param(lambda: uuid.uuid4().hex[0], id="one-character"),
        pytest.param(lambda: fresh("..."), id="dots"),
    ],
)
def test_topic_names(bootstrap: str, make_name: Callable[[], str]) -> None:
    """Names at Kafka's limits work with every client."""
    topic = create_topic(bootstrap, make_name(), 1)
    clients = [client for client in CLIENTS.values() if client.name != "kafkajs"]
    for number, client in enumerate(clients):
        assert client.produce(bootstrap, topic, [Record(partition=0, key=None, value=client.name.encode())]) == [number]
    for client in clients:
        shown = client.consume(bootstrap, topic, [0])[0]
        assert [read.value for read in shown] == [writer.name.encode() for writer in clients]
