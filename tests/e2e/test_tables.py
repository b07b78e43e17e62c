"""A topic as a table through the REST catalog of a real broker: PyIceberg and DuckDB see what librdkafka reads.

Runs: a broker whose records become files at once, killed with SIGKILL while it folds, as are its folding processes. Compared: the
rows of PyIceberg and of DuckDB, up to the offsets that the table states, with the records that librdkafka reads, by the
order-independent checksum; also through a catalog of the user's, which the asset of broker/README.md keeps in step. A mismatch
means that a table loses, doubles or changes records.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient

import headgate
from headgate.broker.client import FileRef, Gate, GateAdmin, Place, Producer
from headgate.broker.client.upload import Uploader
from headgate.broker.log.history_columns import SCHEMA, checksum
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support.broker_process import HOST, ROOT, BrokerProcess
from tests.support.lake import duckdb_with_iceberg
from tests.support.mixed_topic import ENV, PARTITIONS, T0, produce, row_of
from tests.support.waiting import until

RECORDS = 6000
PATIENCE_S = 90.0
ROOM = 1000


def consume(broker: BrokerProcess, topic: str, ends: dict[int, int], left: int = -1, isolation: str = "read_committed") -> pa.Table:
    """The records below these offsets, as librdkafka reads them. `left`: their number, if not every offset has a record."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": isolation})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
    rows: list[dict[str, Any]] = []
    left = sum(ends.values()) if left < 0 else left
    deadline = time.monotonic() + PATIENCE_S
    while len(rows) < left:
        assert time.monotonic() < deadline, f"records are missing. read=`{len(rows)}` expected=`{left}`"
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None, message.error()
            if message.offset() < ends[message.partition()]:
                rows.append(row_of(message))
    consumer.close()
    fields = [pa.field("partition", pa.int32()), *SCHEMA]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def sums(rows: pa.Table, *, gaps: bool = False) -> list[tuple[int, int]]:
    """Rows and checksum of each partition, of rows in any order. Without `gaps`, every offset has a row."""
    found = []
    for partition in range(PARTITIONS):
        mine = rows.filter(pa.compute.equal(rows.column("partition"), partition)).sort_by("offset")
        offsets = mine.column("offset").to_pylist()
        assert len(set(offsets)) == len(offsets) and (gaps or offsets == list(range(len(offsets))))
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


def documented_asset(uri: str, store: str, lake: str) -> Any:
    """The asset of broker/README.md that registers tables in the catalog `lake`, a file here."""
    (text,) = re.findall(r"^```python\n(import dagster.*?)^```$", (ROOT / "broker" / "README.md").read_text(), re.M | re.S)
    made: dict[str, Any] = {}
    for shown, used in (
        ("http://127.0.0.1:9090/iceberg", uri),
        ("s3://bucket/prefix/", store),
        ('load_catalog("lake")', f'load_catalog("lake", type="sql", uri="{lake}")'),
    ):
        assert text.count(shown) == 1
        text = text.replace(shown, used)
    exec(text, made)
    return made["lake_tables"]


def test_readers_of_tables_see_what_consumers_see(make_broker: BrokerFactory, tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    broker = make_broker(env=ENV)
    broker.start()
    topic = create_topic(broker.bootstrap, "clicks", PARTITIONS, offline_after_bytes="0")
    uri = f"http://{HOST}:{broker.http_port}/iceberg"
    catalog = load_catalog("headgate", type="rest", uri=uri)
    assert catalog.load_table(("headgate", topic)).scan().to_arrow().num_rows == 0
    for number in range(4):
        produce(broker, topic, number * RECORDS // 4, RECORDS // 4)
        broker.kill_children("file_fold_process")
        if number % 2:
            broker.kill()
            broker.start()
    until(lambda: sum(ends_of(broker, topic).values()) >= RECORDS, lambda: f"records become files\n{broker.log_tail()}")
    expected = sums(consume(broker, topic, ends_of(broker, topic)))
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
    file = f"sqlite:///{tmp_path}/lake.db"
    lake: Any = load_catalog("lake", type="sql", uri=file)
    asset = documented_asset(uri, table.metadata_location.partition("topics/")[0], file)
    other = create_topic(broker.bootstrap, "other", 1)
    place = Path(table.metadata_location.removeprefix("file://"))
    copy = place.parents[1] / "old.metadata.json"  # not among the table's versions
    old = f"file://{copy}"
    copy.write_bytes(place.read_bytes())
    assert dg.materialize([asset]).success
    assert lake.list_tables("headgate") == [("headgate", topic)], "a topic without files has no table"
    assert sums(lake.load_table(("headgate", topic)).scan().to_arrow()) == expected
    lake.drop_table(("headgate", topic))
    lake.register_table(("headgate", topic), old)
    lake.register_table(("headgate", "gone"), old)
    theirs = load_catalog("theirs", type="sql", uri=f"sqlite:///{tmp_path}/theirs.db", warehouse=f"file://{tmp_path}/theirs")
    theirs.create_namespace("x")
    foreign = theirs.create_table(("x", "t"), table.schema()).metadata_location
    lake.register_table(("headgate", "theirs"), foreign)
    assert dg.materialize([asset]).success, "again, with tables that are old, gone, and of others"
    found = {name: lake.load_table(("headgate", name)).metadata_location for _, name in lake.list_tables("headgate")}
    assert found == {topic: catalog.load_table(("headgate", topic)).metadata_location, "theirs": foreign}
    lake.register_table(("headgate", other), foreign)
    assert dg.materialize([asset]).success and lake.load_table(("headgate", other)).metadata_location == foreign


def test_aborted_records_leave_and_committed_ones_stay(make_broker: BrokerFactory) -> None:
    """Transactions of librdkafka, one of them open for most of the test; a third of the others aborts. Both kinds of readers."""
    from pyiceberg.catalog import load_catalog

    broker = make_broker(env=ENV)
    broker.start()
    topic = create_topic(broker.bootstrap, "payments", PARTITIONS, offline_after_bytes="0")
    made = {"bootstrap.servers": broker.bootstrap, "linger.ms": 0}
    late = KafkaProducer({**made, "transactional.id": "late"})
    late.init_transactions()
    late.begin_transaction()
    late.produce(topic, b"late", b"late", partition=0)
    assert late.flush(PATIENCE_S) == 0
    producer = KafkaProducer({**made, "transactional.id": "payer"})
    producer.init_transactions()
    committed = {b"late"}
    for number in range(12):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, at) for at in range(20)]
        for at, value in enumerate(values):
            producer.produce(topic, value, b"k", partition=at % PARTITIONS)
        if number % 3 == 2:
            assert producer.flush(PATIENCE_S) == 0
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            committed.update(values)
    catalog = load_catalog("headgate", type="rest", uri=f"http://{HOST}:{broker.http_port}/iceberg")

    def rows_when(count: int) -> pa.Table:
        def rows() -> pa.Table:
            return catalog.load_table(("headgate", topic)).scan().to_arrow()

        until(lambda: rows().num_rows >= count, lambda: f"{count} rows: `{rows().num_rows}`\n{broker.log_tail()}")
        return rows()

    # Behind the first record of an open transaction nothing becomes a file.
    elsewhere = sum(int(value.rpartition(b"-")[2]) % PARTITIONS != 0 for value in committed - {b"late"})
    assert 0 not in rows_when(elsewhere)["partition"].to_pylist()
    late.commit_transaction(PATIENCE_S)
    rows = rows_when(len(committed))
    assert sorted(rows["value"].to_pylist()) == sorted(committed)
    broker.kill()
    broker.start()
    ends = ends_of(broker, topic)
    for isolation in ("read_committed", "read_uncommitted"):
        seen = consume(broker, topic, ends, len(committed), isolation)
        assert sums(seen, gaps=True) == sums(rows, gaps=True)


def test_floods_publishes_and_deletions_are_in_the_table(make_broker: BrokerFactory) -> None:
    """A flood in front of live records, a publish behind them, and DeleteRecords in the middle of the flood's file."""
    from pyiceberg.catalog import load_catalog

    broker = make_broker(env=ENV)
    broker.start()
    topic = create_topic(
        broker.bootstrap, "history", PARTITIONS, offline_after_bytes="0", offline_after_ms="0", history_room=str(ROOM)
    )
    produce(broker, topic, 0, 300)
    rows = pa.table(
        {
            "timestamp": pa.array([T0 + number for number in range(240)], pa.timestamp("ms", tz="UTC")),
            "key": pa.array([b"k%d" % (number % 9) for number in range(240)], pa.binary()),
            "value": pa.array([b"history-%d" % number for number in range(240)], pa.binary()),
        }
    )

    def upload(gate: Gate) -> list[FileRef]:
        with Uploader(gate.store_url) as uploader:
            return [
                uploader.write(f"{gate.prefix}partition={at}/flood-0.parquet", rows[at * 80 : at * 80 + 80], at, one.base_offset)
                for at, one in enumerate(gate.windows)
            ]

    async def bring() -> None:
        async with GateAdmin(f"{HOST}:{broker.grpc_port}") as gates, Producer(f"{HOST}:{broker.grpc_port}") as producer:
            gate = await gates.open(topic, [80] * PARTITIONS, gate_id="flood", place=Place.FRONT)
            await gates.fill(topic, "flood", await asyncio.to_thread(upload, gate))
            await producer.publish_table(topic, rows, publish_id="published")

    asyncio.run(bring())
    uri = f"http://{HOST}:{broker.http_port}/iceberg"
    table = load_catalog("headgate", type="rest", uri=uri).load_table(("headgate", topic))

    def settled(count: int) -> pa.Table:
        def rows() -> pa.Table:
            return table.refresh().scan().to_arrow()

        until(lambda: rows().num_rows == count, lambda: f"{count} rows: `{rows().num_rows}`\n{broker.log_tail()}")
        return rows()

    found = settled(240 + 300 + 240)
    ends = dict.fromkeys(range(PARTITIONS), ROOM * 2)
    assert sums(consume(broker, topic, ends, 780), gaps=True) == sums(found, gaps=True)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_records([TopicPartition(topic, partition, ROOM - 50) for partition in range(PARTITIONS)])
    left = settled(780 - 30 * PARTITIONS)
    expected = sums(consume(broker, topic, ends, 690), gaps=True)
    assert sums(left, gaps=True) == expected
    with duckdb_with_iceberg() as duck:
        duck.execute(f"ATTACH 'headgate' AS hg (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none')")
        duck.execute("SET TimeZone = 'UTC'")
        query = f"SELECT * EXCLUDE timestamp_type FROM hg.headgate.{topic}"
        assert sums(duck.execute(query).fetch_arrow_table(), gaps=True) == expected


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
    topic = create_topic(broker.bootstrap, "there", 1)
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=30)
    heads = {"": 204, "/tables/none": 404, f"/tables/{topic}": 204}
    for path, status in heads.items():
        connection.request("HEAD", f"/iceberg/v1/namespaces/headgate{path}")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (status, b""), path
    connection.close()
