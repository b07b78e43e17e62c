"""A topic as a table through the REST catalog of a real broker: PyIceberg and DuckDB see what librdkafka reads.

Runs: a broker whose records become files at once, killed with SIGKILL while it folds, as are its folding processes. Compared: the
rows of PyIceberg and of DuckDB, up to the offsets that the table states, with the records that librdkafka reads, by the
order-independent checksum. A mismatch means that a table loses, doubles or changes records.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from contextlib import suppress
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

import headgate
from headgate.broker.log.columns import SCHEMA, checksum
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.lake import duckdb_with_iceberg

PARTITIONS = 3
RECORDS = 6000
PATIENCE_S = 90.0
T0 = 1_700_000_000_000


def produce(broker: BrokerProcess, topic: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(first, first + count):
        headers = [("a", b"1"), ("b", b""), ("a", None)] if number % 3 == 0 else None
        key = b"key-%d" % (number % 50) if number % 5 else None
        value = json.dumps({"n": number, "text": "x" * (number % 200)}).encode() if number % 11 else None
        producer.produce(topic, value, key, partition=number % PARTITIONS, headers=headers, timestamp=T0 + number * 60_000)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def consume(broker: BrokerProcess, topic: str, ends: dict[int, int]) -> pa.Table:
    """The records below these offsets, as librdkafka reads them."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    rows: list[dict[str, Any]] = []
    left = sum(ends.values())
    deadline = time.monotonic() + PATIENCE_S
    while len(rows) < left:
        assert time.monotonic() < deadline, f"records are missing. read=`{len(rows)}` expected=`{left}`"
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None, message.error()
            if message.offset() < ends[message.partition()]:
                headers = [{"key": name, "value": value} for name, value in message.headers() or []]
                rows.append(
                    {
                        "partition": message.partition(), "offset": message.offset(), "timestamp": message.timestamp()[1],
                        "key": message.key(), "value": message.value(), "headers": headers or None,
                    }
                )  # fmt: skip
    consumer.close()
    fields = [pa.field("partition", pa.int32()), *SCHEMA]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def sums(rows: pa.Table) -> list[tuple[int, int]]:
    """Rows and checksum of each partition, of rows in any order."""
    found = []
    for partition in range(PARTITIONS):
        mine = rows.filter(pa.compute.equal(rows.column("partition"), partition)).sort_by("offset")
        offsets = mine.column("offset").to_pylist()
        assert offsets == list(range(len(offsets)))
        found.append((mine.num_rows, checksum(mine.select(SCHEMA.names).cast(SCHEMA))))
    return found


def get(broker: BrokerProcess, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=30)
    connection.request("GET", f"/iceberg/v1{path}")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, json.loads(body)


def ends_of(broker: BrokerProcess, topic: str) -> dict[int, int]:
    """The offsets that the table states."""
    _, answer = get(broker, f"/namespaces/headgate/tables/{topic}")
    ranges = json.loads(answer["metadata"]["properties"].get("headgate.offsets", "{}"))
    assert all(len(one) == 1 and one[0][0] == 0 for one in ranges.values()), ranges
    return {int(partition): one[0][1] for partition, one in ranges.items()}


def test_readers_of_tables_see_what_consumers_see(make_broker: BrokerFactory) -> None:
    from pyiceberg.catalog import load_catalog

    broker = make_broker(
        env={
            "HEADGATE_OFFLINE_CHECK_INTERVAL_MS": "100ms",
            "HEADGATE_WAL_CHECKPOINT_INTERVAL_MS": "100ms",
            "HEADGATE_TAIL_BYTES": "1MiB",
        }
    )
    broker.start()
    topic = create_topic(broker.bootstrap, "clicks", PARTITIONS, offline_after_bytes="0")
    uri = f"http://{HOST}:{broker.http_port}/iceberg"
    catalog = load_catalog("headgate", type="rest", uri=uri)
    assert catalog.load_table(("headgate", topic)).scan().to_arrow().num_rows == 0
    for number in range(4):
        produce(broker, topic, number * RECORDS // 4, RECORDS // 4)
        for pid in broker.children("offline_process"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if number % 2:
            broker.kill()
            broker.start()
    deadline = time.monotonic() + PATIENCE_S
    while sum((ends := ends_of(broker, topic)).values()) < RECORDS:
        assert time.monotonic() < deadline, f"records do not become files. ends=`{ends}`\n{broker.log_tail()}"
        time.sleep(0.1)
    expected = sums(consume(broker, topic, ends))
    assert sum(rows for rows, _ in expected) == RECORDS
    assert catalog.list_namespaces() == [("headgate",)] and catalog.list_tables("headgate") == [("headgate", topic)]
    table = catalog.load_table(("headgate", topic))
    assert sums(table.scan().to_arrow()) == expected
    assert table.scan(row_filter="partition = 1 and offset >= 10 and offset < 25").to_arrow().num_rows == 15
    assert 0 < len(list(table.scan(row_filter="partition = 1").plan_files())) < len(list(table.scan().plan_files()))
    found = headgate.sql(f"SELECT * EXCLUDE timestamp_type FROM {topic}", cluster=f"{HOST}:{broker.grpc_port}")
    assert sums(found.read_all()) == expected and found.reads.broker_rows == 0
    with duckdb_with_iceberg() as duck:
        duck.execute(f"ATTACH 'headgate' AS hg (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none')")
        duck.execute("SET TimeZone = 'UTC'")
        assert sums(duck.execute(f"SELECT * EXCLUDE timestamp_type FROM hg.headgate.{topic}").fetch_arrow_table()) == expected


def test_what_is_not_there_is_said_in_the_clients_terms(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    broker.start()
    broker.wait_ready()
    for path, kind in (
        ("/namespaces/other", "NoSuchNamespaceException"),
        ("/namespaces/other/tables", "NoSuchNamespaceException"),
        ("/namespaces/headgate/tables/none", "NoSuchTableException"),
        ("/namespaces/headgate/tables/__consumer_offsets", "NoSuchTableException"),
    ):
        status, body = get(broker, path)
        assert (status, body["error"]["type"], body["error"]["code"]) == (404, kind, 404)
