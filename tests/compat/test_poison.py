"""Batches with a right CRC whose records no consumer can read never stop the readers of a partition.

Runs: a real broker; poison sent as raw Produce requests on connections of their own, good records beside it; librdkafka, aiokafka,
kafka-python and the project's own consumer. Compared: error codes, the records that each consumer shows, and where it stands. A
mismatch means that one client can block all readers of a partition, or that a refused batch is stored.
"""

from __future__ import annotations

import struct

import pytest

from broker.log.check import ALL_RECORDS_MAX
from tests.compat.conftest import EXTERNAL
from tests.compat.test_errors import INVALID_RECORD, MESSAGE_TOO_LARGE, Broker, broker
from tests.compat.topics import create_topic, fresh
from tests.support import oracle
from tests.support.batches import batch, patched
from tests.support.clients.all import CLIENTS
from tests.support.poison import GOOD, POISON
from tests.support.records import Record
from tests.support.wire import RawConnection

__all__ = ("broker",)
pytestmark = pytest.mark.skipif(EXTERNAL is not None, reason="Apache Kafka does not look into uncompressed records")

READERS = ("confluent", "aiokafka", "kafka-python")
SAMPLED = [name for name in POISON if name != "gzip-bomb"]


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    return create_topic(broker.bootstrap, fresh("poison"), 1)


@pytest.mark.parametrize("name", SAMPLED)
def test_poison_is_refused(broker: Broker, topic: str, name: str) -> None:
    before = broker.end(topic)
    assert broker.produce(topic, POISON[name]) == (INVALID_RECORD, -1)
    assert broker.end(topic) == before, "a refused batch was written"


@pytest.mark.parametrize("name", POISON)
def test_poison_after_good_batches_is_refused_where_all_is_checked(broker: Broker, name: str) -> None:
    topic = create_topic(broker.bootstrap, fresh("all"), 1, headgate_check_records="all")
    with RawConnection(broker.host, broker.port, timeout_s=10) as connection:

        def produce(records: bytes) -> int:
            data = {"name": topic, "partition_data": ({"index": 0, "records": records},)}
            answer = oracle.call(connection, oracle.PRODUCE, 9, {"acks": -1, "timeout": 10_000, "topic_data": (data,)})
            return int(answer.responses[0].partition_responses[0].error_code)

        for _ in range(40):
            assert produce(GOOD) == 0
        assert produce(POISON[name]) == (MESSAGE_TOO_LARGE if name in ("gzip-bomb",) else INVALID_RECORD)
        assert produce(GOOD) == 0
    assert broker.end(topic) == 41 * 3


def test_more_records_than_a_topic_that_checks_all_takes(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap, fresh("all"), 1, headgate_check_records="all")
    assert broker.produce(topic, batch([b""] * (ALL_RECORDS_MAX + 1))) == (MESSAGE_TOO_LARGE, -1)
    assert broker.produce(topic, batch([b""] * ALL_RECORDS_MAX)) == (0, 0)


@pytest.mark.parametrize("version", [8, 9])
def test_the_first_wrong_record_is_named(broker: Broker, topic: str, version: int) -> None:
    """KIP-467: a Java producer fails the record that is wrong, and says so."""
    good = batch([b"a", b"b", b"c"])
    spoiled = patched(good, len(good) - 4, struct.pack("B", 9))  # the last record's null key
    data = {"name": topic, "partition_data": ({"index": 0, "records": spoiled},)}
    answer = broker.call(oracle.PRODUCE, version, {"acks": -1, "timeout": 10_000, "topic_data": (data,)})
    row = answer.responses[0].partition_responses[0]
    assert int(row.error_code) == INVALID_RECORD
    assert [(one.batch_index, one.batch_index_error_message) for one in row.record_errors] == [(2, row.error_message)]
    assert "record=`2`" in row.error_message


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
