"""Quotas on a real broker: requests by hand in every version, a real client, native streams, `headgate quota` and the metrics.

Compared: the throttle time in each answer, the answer to the request behind it, and what operators see. A mismatch means that a
client may use more than its quota, is not told to wait, or waits without a quota.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.broker.cli import app
from headgate.broker.client import Consumer as NativeConsumer
from headgate.broker.client.producer import Producer as NativeProducer
from headgate.broker.server.kafka.apis import APIS
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, PATIENCE_S, BrokerProcess
from tests.support.requests import ordinary
from tests.support.wire import RawConnection

TOPIC = "limited"
DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
INVALID_REQUEST, UNSUPPORTED_VERSION = 42, 35
BYTES = 50_000
RATE = 1_000.0
"""Bytes per second: a request of BYTES takes 49 s too much, whatever the speed of the machine. No test waits that long."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("quotas")
    with BrokerProcess(place / "store", place / "broker.log") as made:
        made.start()
        made.wait_ready()
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
        yield made
        made.check_output()


def _connect(broker: BrokerProcess) -> RawConnection:
    return RawConnection(HOST, broker.kafka_port, timeout_s=PATIENCE_S)


def _alter(broker: BrokerProcess, entity: dict[str, str | None], version: int = 1, **values: float | None) -> tuple[int, str]:
    """Alter quotas of an entity. Returns the error code and message."""
    parts = tuple({"entity_type": word, "entity_name": name} for word, name in entity.items())
    ops = tuple({"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items())
    with _connect(broker) as connection:
        answer = oracle.call(
            connection, ALTER_QUOTAS, version, {"entries": ({"entity": parts, "ops": ops},), "validate_only": False}
        )
    (row,) = answer.entries
    return int(row.error_code), row.error_message or ""


def _call(connection: RawConnection, client_id: str, key: int, version: int, values: dict[str, Any]) -> Any:
    flexible = oracle.is_flexible(key, version)
    connection.send_request(key, version, oracle.encode(key, version, values), flexible=flexible, client_id=client_id)
    return oracle.decode(key, version, connection.receive_frame()[4:])


def _once(broker: BrokerProcess, client_id: str, key: int, version: int, values: dict[str, Any]) -> Any:
    """The answer to a request on a connection of its own."""
    with _connect(broker) as connection:
        return _call(connection, client_id, key, version, values)


def _produce(topic: str = TOPIC) -> dict[str, Any]:
    request = ordinary(topic)[oracle.PRODUCE]
    (row,) = request["topic_data"]
    (partition,) = row["partition_data"]
    return {**request, "topic_data": ({**row, "partition_data": ({**partition, "records": batch([b"x" * BYTES])},)},)}


def _throttle_ms(answer: Any) -> int:
    return int(answer.throttle_time.total_seconds() * 1000)


@pytest.mark.parametrize("version", list(range(3, APIS[0].max_version)))
def test_a_producer_is_answered_at_once_and_then_not_read(broker: BrokerProcess, version: int) -> None:
    client = f"producer-{version}"
    assert _alter(broker, {"client-id": client}, producer_byte_rate=RATE) == (0, "")
    with _connect(broker) as connection:
        first = _call(connection, client, oracle.PRODUCE, version, _produce())
        assert 45_000 < _throttle_ms(first) < 51_000
        connection.send_request(oracle.PRODUCE, version, oracle.encode(oracle.PRODUCE, version, _produce()),
                                flexible=oracle.is_flexible(oracle.PRODUCE, version), client_id=client)  # fmt: skip
        connection.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):  # muted
            connection.receive_frame()
        # Another connection of the same client is muted after its first request, too; another client is not.
        assert _throttle_ms(_once(broker, client, oracle.PRODUCE, version, _produce())) > 60_000
        assert _throttle_ms(_once(broker, "another", oracle.PRODUCE, version, _produce())) == 0
        # A quota that is gone throttles nobody any more.
        assert _alter(broker, {"client-id": client}, producer_byte_rate=None) == (0, "")
        connection.socket.settimeout(PATIENCE_S)
        connection.receive_frame()


@pytest.mark.parametrize("version", range(4, APIS[1].max_version + 1))
def test_a_consumer_gets_its_records_then_nothing_until_it_has_waited(broker: BrokerProcess, version: int) -> None:
    client = f"consumer-{version}"
    with _connect(broker) as connection:
        _call(connection, "feeder", oracle.PRODUCE, 8, _produce())
    assert _alter(broker, {"client-id": client}, consumer_byte_rate=RATE) == (0, "")
    topic_id = _topic_id(broker)
    request = ordinary(TOPIC)[oracle.FETCH]
    (row,) = request["topics"]
    request = {**request, "topics": ({**row, "topic_id": topic_id},)}
    with _connect(broker) as one, _connect(broker) as other:
        first = _call(one, client, oracle.FETCH, version, request)
        assert _throttle_ms(first) > 40_000 and _records(first)
        second = _call(other, client, oracle.FETCH, version, request)
        assert _throttle_ms(second) > 0 and not second.responses, "a client that must wait gets nothing"
        assert _throttle_ms(_once(broker, "another", oracle.FETCH, version, request)) == 0
    assert _alter(broker, {"client-id": client}, consumer_byte_rate=None) == (0, "")


def _records(answer: Any) -> bytes:
    return b"".join(bytes(part.records or b"") for row in answer.responses for part in row.partitions)


def _topic_id(broker: BrokerProcess) -> Any:
    with _connect(broker) as connection:
        answer = oracle.call(connection, oracle.METADATA, 12, {"topics": ({"topic_id": None, "name": TOPIC},)})
    return answer.topics[0].topic_id


def _metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{HOST}:{broker.http_port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and "_created" not in line)


@pytest.mark.parametrize(
    ("entity", "values", "text"),
    [
        ({}, {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
        ({"user": ""}, {"producer_byte_rate": 1.0}, "Empty user not supported"),
        ({"group": "g"}, {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: group"),
        ({"user": "a"}, {"unknown": 1.0}, "Invalid configuration key unknown"),
        ({"user": "a"}, {"producer_byte_rate": 0.0}, "must be greater than 0"),
        ({"user": "a"}, {"producer_byte_rate": -5.0}, "must be greater than 0"),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}, "entity type: ip: known are user, client-id"),
        ({"user": "a"}, {"request_percentage": 50.0}, "known are producer_byte_rate, consumer_byte_rate"),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_a_wrong_quota_is_refused_in_kafkas_words(
    broker: BrokerProcess, entity: dict[str, str | None], values: dict[str, float], text: str, version: int
) -> None:
    code, message = _alter(broker, entity, version, **values)
    assert code == INVALID_REQUEST and text in message
    assert _described(broker) == []


def _described(
    broker: BrokerProcess, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> list[Any]:
    rows = tuple({"entity_type": word, "match_type": kind, "match": name} for word, kind, name in components)
    with _connect(broker) as connection:
        answer = oracle.call(connection, DESCRIBE_QUOTAS, version, {"components": rows, "strict": strict})
    assert not answer.error_code, answer
    return [
        (tuple(sorted((one.entity_type, one.entity_name) for one in row.entity)), {one.key: one.value for one in row.values})
        for row in answer.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_a_filter_selects_quotas(broker: BrokerProcess, version: int) -> None:
    entities: list[dict[str, str | None]] = [{"user": "a"}, {"user": None}, {"user": "a", "client-id": "c"}, {"client-id": None}]
    for entity in entities:
        assert _alter(broker, entity, version, producer_byte_rate=1e6) == (0, "")
    names = {1: (("user", "a"),), 2: (("user", None),), 3: (("client-id", "c"), ("user", "a")), 4: (("client-id", None),)}
    cases: list[tuple[list[tuple[str, int, str | None]], bool, set[int]]] = [
        ([], False, {1, 2, 3, 4}),
        ([], True, set()),
        ([("user", 0, "a")], False, {1, 3}),
        ([("user", 0, "a")], True, {1}),
        ([("user", 1, None)], False, {2}),
        ([("user", 2, None)], True, {1, 2}),
        ([("user", 0, "a"), ("client-id", 2, None)], True, {3}),
        ([("client-id", 1, None)], True, {4}),
    ]
    for components, strict, expected in cases:
        found = {row[0] for row in _described(broker, *components, strict=strict, version=version)}
        assert found == {names[number] for number in expected}, components
    for entity in entities:
        assert _alter(broker, entity, version, producer_byte_rate=None) == (0, "")
    assert _described(broker) == []
    with _connect(broker) as connection:
        for component, code in (
            ({"entity_type": "group", "match_type": 2, "match": None}, UNSUPPORTED_VERSION),
            ({"entity_type": "user", "match_type": 9, "match": None}, INVALID_REQUEST),
            ({"entity_type": "user", "match_type": 0, "match": None}, INVALID_REQUEST),
            ({"entity_type": "", "match_type": 2, "match": None}, INVALID_REQUEST),
        ):
            answer = oracle.call(connection, DESCRIBE_QUOTAS, version, {"components": (component,), "strict": False})
            assert int(answer.error_code) == code


def test_operators_set_quotas_and_see_whose_clients_wait(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--cluster", f"{HOST}:{broker.grpc_port}"]
    assert app.run(["quota", "set", "producer_byte_rate=1KiB", "consumer_byte_rate=5000", "--client-id", "librdkafka", *place]) == 0
    assert "1.0 KiB/s" in capsys.readouterr().out
    waits: list[int] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "librdkafka",
            "throttle_cb": lambda event: waits.append(event.throttle_time),
        }
    )
    producer.produce(TOPIC, b"x" * BYTES)
    assert producer.flush(PATIENCE_S) == 0
    while not waits:
        producer.poll(0.05)
    assert waits[0] > 2
    assert app.run(["status", *place]) == 0
    assert "client id librdkafka waits: producer_byte_rate is 1.0 KiB/s" in capsys.readouterr().out
    assert _metric(broker, 'headgate_quota_throttled_bool{client_id="librdkafka"') == 1
    assert app.run(["quota", "list", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"user": None, "client_id": "librdkafka", "values": {"producer_byte_rate": 1024.0, "consumer_byte_rate": 5000.0}}
    ]
    assert app.run(["quota", "remove", "producer_byte_rate", "consumer_byte_rate", "--client-id", "librdkafka", *place]) == 0
    assert app.run(["quota", "set", "producer_byte_rate=0", "--user", "default", *place]) == 2
    assert "must be greater than 0" in capsys.readouterr().err
    assert app.run(["quota", "set", "producer_byte_rate=1", *place]) == 2
    assert "--user" in capsys.readouterr().err


def test_native_streams_wait_as_well(broker: BrokerProcess) -> None:
    async def write_and_read() -> None:
        address = f"{HOST}:{broker.grpc_port}"
        async with NativeProducer(address) as producer:
            for _ in range(4):
                await producer.send_and_wait(TOPIC, b"x" * 5000)
        async with NativeConsumer(address) as consumer:
            await consumer.assign_topic(TOPIC)
            assert await anext(consumer)

    assert _alter(broker, {"user": "ANONYMOUS"}, producer_byte_rate=10 * RATE, consumer_byte_rate=1e9) == (0, "")
    before = _metric(broker, 'headgate_quota_waited_seconds_total{quota="producer_byte_rate"}')
    asyncio.run(write_and_read())
    assert _metric(broker, 'headgate_quota_waited_seconds_total{quota="producer_byte_rate"}') > before
    assert _alter(broker, {"user": "ANONYMOUS"}, producer_byte_rate=None, consumer_byte_rate=None) == (0, "")


def test_quotas_survive_a_restart(broker: BrokerProcess) -> None:
    assert _alter(broker, {"user": "kept"}, producer_byte_rate=77.0) == (0, "")
    broker.terminate()
    broker.start()
    broker.wait_ready()
    assert _described(broker) == [((("user", "kept"),), {"producer_byte_rate": 77.0})]
    assert _alter(broker, {"user": "kept"}, producer_byte_rate=None) == (0, "")
