"""Floods in a schema registry's frame: history that clients of Confluent read with their own deserializers, beside live records of
their own serializers. A real broker, floods in this process without a JVM, and a registry of `tests/support/registry.py`.

A mismatch means that a consumer of a topic fails on its first record of history, or sees other values there than live.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

import headgate
from headgate.broker.runtime.errors import InvalidError, RetryError
from headgate.broker.schemas import registry as client
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.framing.declared import Framing
from headgate.pipelines.session import LazySession
from tests.e2e.test_flood import TIMEOUT_S, cluster, content, create, gates, read
from tests.support import registry as support
from tests.support.broker_process import ROOT, BrokerProcess, broker_of_module
from tests.support.registry import FakeRegistry, proto_descriptor
from tests.support.signals import python

ROWS = 2000
T0 = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


broker = broker_of_module()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arrow: Any = pa
    path = tmp_path_factory.mktemp("lake") / "a.parquet"
    rows = list(map(row, range(ROWS)))
    kinds = {
        "user": pa.string(),
        "n": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "share": pa.float64(),
        "tags": pa.list_(pa.string()),
    }
    pq.write_table(arrow.Table.from_pylist(rows, arrow.schema(list(kinds.items()))), path, row_group_size=700)
    return path


def row(number: int) -> dict[str, Any]:
    return {
        "user": f"u{number % 7}", "n": None if number % 5 == 0 else number, "at": T0 + datetime.timedelta(seconds=number),
        "share": number / 4, "tags": ["x", f"t{number}"][: number % 3],
    }  # fmt: skip


@pytest.fixture
def theirs(fake: FakeRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": fake.url}) as made:
        yield made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    with support.registry() as made:
        yield made


def flood(broker: BrokerProcess, topic: str, source: Path, **fields: Any) -> Any:
    made = Backfill(cluster=cluster(broker), topic=topic, source=str(source), key="user", event_time="at", verify=True, **fields)
    return run(made, LazySession(lambda: pytest.fail("a session of Spark starts"), "local[2]", {}))


def live(broker: BrokerProcess, topic: str, key: bytes, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, value, key, partition=0)
    assert producer.flush(30) == 0


def values(broker: BrokerProcess, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of all records, in the order of their times."""
    rows = sorted(one for some in content(read(broker, topic)).values() for one in some)
    return [(key, value) for _, key, value in rows]


def test_avro_keys_and_values_are_those_of_live_producers(
    broker: BrokerProcess, lake: Path, fake: FakeRegistry, theirs: SchemaRegistryClient
) -> None:
    schema: dict[str, Any] = {
        "type": "record", "name": "Clicks", "namespace": "web",
        "fields": [
            {"name": "user", "type": "string"}, {"name": "n", "type": ["null", "long"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}, {"name": "share", "type": "double"},
            {"name": "tags", "type": {"type": "array", "items": "string"}}, {"name": "later", "type": "string", "default": "none"},
        ],
    }  # fmt: skip
    context, of_key = SerializationContext("avro", MessageField.VALUE), SerializationContext("avro", MessageField.KEY)
    write: Any = AvroSerializer(theirs, json.dumps(schema))
    write_key: Any = AvroSerializer(theirs, '"string"')
    said = [(write_key(one["user"], of_key), write({**one, "later": "none"}, context)) for one in map(row, range(ROWS))]
    create(broker, "avro")
    frames = {
        f"{part}_frame": Framing(format="avro", registry=fake.url, subject=f"avro-{part}") for part in ("key", "value")
    }  # fmt: skip
    done = flood(broker, "avro", lake, **frames)
    assert (done.rows, done.added_rows) == (ROWS, ROWS)
    live(broker, "avro", *said[-1])
    found = values(broker, "avro")
    assert found == [*said, said[-1]], "history has the bytes that their serializers write"
    decode: Any = AvroDeserializer(theirs)
    assert decode(found[7][1], context) == {**row(7), "later": "none"}
    printed = subprocess.run(
        [*python("-m", "headgate.broker.cli.main"), "consume", "avro", "-b", "-e", "-k", " ", "--registry", fake.url,
         "--cluster", cluster(broker)],
        cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=True,
    ).stdout.splitlines()  # fmt: skip
    shown = {"user": "u0", "n": 7, "at": "2026-01-01T00:00:07.000000Z", "share": 1.75, "tags": ["x"], "later": "none"}
    assert [json.loads(line[5:]) for line in printed if b'"n":7,' in line] == [shown] and len(printed) == ROWS + 1
    assert printed[0][:2] == b'"u'
    query = "SELECT decoded(key) AS k, count(*) AS c FROM avro WHERE decoded(value) ->> '$.n' = '7' GROUP BY ALL"
    with headgate.sql(query, cluster=cluster(broker), registry=fake.url) as rows:
        assert rows.read_all().to_pylist() == [{"k": '"u0"', "c": 1}]
    fake.broken = 10**6
    with pytest.raises(RetryError, match="registry"):
        headgate.sql(query, cluster=cluster(broker), registry=fake.url).read_all()
    fake.broken = 0
    assert flood(broker, "avro", lake, **frames).added_rows == 0
    # A newer schema does not change what is there, and the flood is still the same.
    fake.register("avro-value", json.dumps({**schema, "doc": "newer"}))
    assert flood(broker, "avro", lake, **frames).added_rows == 0


def test_registered_messages_and_json_are_read_by_their_deserializers(
    broker: BrokerProcess, lake: Path, fake: FakeRegistry, theirs: SchemaRegistryClient
) -> None:
    for format in ("protobuf", "json"):
        create(broker, format)
        framing = Framing(format=format, registry=fake.url, subject=f"{format}-value", register=True)  # type: ignore[arg-type]
        assert flood(broker, format, lake, value_frame=framing).added_rows == ROWS
    context = SerializationContext("json", MessageField.VALUE)
    decode: Any = JSONDeserializer(None, schema_registry_client=theirs)
    texts = values(broker, "json")
    for number in (5, 6):
        wanted = {name: value for name, value in row(number).items() if value is not None}
        assert decode(texts[number][1], context) == {**wanted, "at": f"2026-01-01T00:00:0{number}.000Z"}
    schema = theirs.get_latest_version("json-value").schema
    assert schema.schema_str is not None
    write: Any = JSONSerializer(schema.schema_str, theirs, conf={"auto.register.schemas": False, "use.latest.version": True})
    assert write({"n": 5}, context)[:5] == (texts[5][1] or b"")[:5]
    text = theirs.get_latest_version("protobuf-value").schema.schema_str
    assert text is not None
    pool: Any = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(file)
    pool.Add(file)
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(proto_descriptor(text, {})))
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("Protobuf"))
    read_message: Any = ProtobufDeserializer(kind, {"use.deprecated.format": False}, theirs)
    message = read_message(values(broker, "protobuf")[7][1], SerializationContext("protobuf", MessageField.VALUE))
    assert (message.user, message.n, list(message.tags), message.share) == ("u0", 7, ["x"], 1.75)
    assert message.at.ToDatetime(datetime.UTC) == row(7)["at"]


def test_a_source_that_does_not_fit_opens_nothing(broker: BrokerProcess, lake: Path, fake: FakeRegistry, tmp_path: Path) -> None:
    create(broker, "unfit")
    framing = Framing(format="avro", registry=fake.url, subject="unfit-value")
    with pytest.raises(InvalidError, match="has no such subject: register a schema"):
        flood(broker, "unfit", lake, value_frame=framing)
    fields = [{"name": "usr", "type": "string"}, {"name": "n", "type": "int"}]
    fake.register("unfit-value", json.dumps({"type": "record", "name": "T", "fields": fields}))
    with pytest.raises(InvalidError, match=r"did you mean `user`\? field=`usr`; int is wanted, the column is of int64"):
        flood(broker, "unfit", lake, value_frame=framing)
    fake.register("unfit-value", json.dumps({"type": "record", "name": "T", "fields": [{"name": "n", "type": "long"}]}))
    # Its fifth rows have no number.
    with pytest.raises(InvalidError, match=r"a value is missing, and the schema wants one\. field=`n` file=.* row=`0`"):
        flood(broker, "unfit", lake, value_frame=framing)
    fake.broken = 100
    with pytest.raises(RetryError, match="the registry fails now"):
        flood(broker, "unfit", lake, value_frame=framing)
    with pytest.raises(InvalidError, match="a framed value is the row"):
        flood(broker, "unfit", lake, value_frame=framing, value="user")
    assert all(one.state.name != "OPEN" for one in gates(broker, "unfit")) and values(broker, "unfit") == []
    # The plan of a file says the same, before brokers start.
    fake.broken = 0
    floods = tmp_path / "floods.yaml"
    floods.write_text(
        f"floods:\n- name: unfit\n  topic: unfit\n  source: {lake}\n  key: user\n  event_time: at\n"
        f"  value: {{format: avro, registry: '{fake.url}'}}\n  partitions: {{by: day, start: 2026-01-01, end: 2026-01-02}}\n"
    )
    command = [*python("-m", "headgate.broker.cli.main"), "flood", "plan", str(floods), "--cluster", cluster(broker)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0 and "each value has the avro schema 2 of `unfit-value` in its frame" in done.stdout, done.stderr
    assert "the schema has no field for user, at, share, tags" in done.stdout
    floods.write_text(floods.read_text().replace("value: {format: avro", "value: {subject: other-value, format: avro"))
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode != 0 and "has no such subject" in done.stderr + done.stdout
