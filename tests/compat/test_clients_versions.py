"""Every version of every API that ApiVersions advertises, requested over a raw socket and decoded by kio.

Runs: one request per advertised version, with arguments that the broker should accept, encoded by kio from Kafka's schema.
Compared: the answer decodes in that version to its last byte, carries no error, and has the same content in every version.
A mismatch means that a client of that age or that library would misread the broker.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.topics import create_topic, eventually, fresh
from tests.support import oracle, wire
from tests.support.batches import batch
from tests.support.wire import ClosedByPeer, RawConnection

REQUIRED = {
    oracle.PRODUCE: (0, 13),
    oracle.FETCH: (4, 17),
    oracle.LIST_OFFSETS: (1, 10),
    oracle.METADATA: (0, 13),
    oracle.API_VERSIONS: (0, 4),
    oracle.CREATE_TOPICS: (2, 7),
    oracle.DELETE_TOPICS: (1, 6),
    oracle.DELETE_RECORDS: (0, 2),
    oracle.INIT_PRODUCER_ID: (0, 5),
    oracle.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    oracle.DESCRIBE_CONFIGS: (1, 4),
    oracle.ALTER_CONFIGS: (0, 2),
    oracle.DESCRIBE_LOG_DIRS: (1, 4),
    oracle.CREATE_PARTITIONS: (0, 3),
    oracle.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    oracle.DESCRIBE_CLUSTER: (0, 2),
    oracle.DESCRIBE_PRODUCERS: (0, 0),
    oracle.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}
"""The versions that the broker guarantees: it advertises at least these."""

PRODUCE_MIN_SERVED = 3
"""The broker advertises lower versions of Produce, as Kafka does for librdkafka's sake, but their message formats are not
served."""

TOPIC_RESOURCE = 2

UNSUPPORTED_FOR_MESSAGE_FORMAT, REBOOTSTRAP_REQUIRED = 43, 129
OF_KAFKA_4_4 = {(oracle.API_VERSIONS, 5), (28, 6)}
"""Versions that the oracle does not know yet: ApiVersions and TxnOffsetCommit."""


@dataclasses.dataclass
class World:
    """A topic with records, and the values that its requests need."""

    bootstrap: str
    connection: RawConnection
    topic: str
    topic_id: Any

    def call(self, api_key: int, version: int, values: dict[str, Any]) -> Any:
        return oracle.call(self.connection, api_key, version, values)


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    return create_topic(bootstrap, fresh("versions"), 2)


@pytest.fixture
def world(bootstrap: str, topic: str) -> Iterator[World]:
    host, port = bootstrap.rsplit(":", 1)
    with RawConnection(host, int(port)) as connection:
        found = oracle.call(connection, oracle.METADATA, 12, {"topics": ({"name": topic},)})
        yield World(bootstrap, connection, topic, found.topics[0].topic_id)


def versions(world: World, api_key: int) -> range:
    host, port = world.bootstrap.rsplit(":", 1)
    low, high = wire.api_versions(host, int(port))[api_key]
    wanted_low, wanted_high = REQUIRED[api_key]
    assert low <= wanted_low and wanted_high <= high, f"too few versions. api=`{api_key}` advertised=`{low}..{high}`"
    # Beyond the guaranteed versions the oracle decides: it knows Kafka's schema.
    return range(low, min(high, wanted_high) + 1)


def named(world: World, version: int, first_version_with_ids: int, **fields: Any) -> dict[str, Any]:
    """A topic by name, or by id from the first version that has only ids."""
    return (
        {"topic_id": world.topic_id, **fields}
        if version >= first_version_with_ids
        else {"topic": world.topic, "name": world.topic, **fields}
    )


def test_api_versions(world: World) -> None:
    for version in versions(world, oracle.API_VERSIONS):
        answer = world.call(oracle.API_VERSIONS, version, {"client_software_name": "oracle", "client_software_version": "1.0"})
        assert answer.error_code == 0
        found = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        for api_key, (low, high) in REQUIRED.items():
            assert found[api_key][0] <= low and high <= found[api_key][1], f"api=`{api_key}` version=`{version}`"


def test_metadata(world: World) -> None:
    for version in versions(world, oracle.METADATA):
        answer = world.call(oracle.METADATA, version, {"topics": ({"name": world.topic},), "allow_auto_topic_creation": True})
        (topic,) = answer.topics
        assert (topic.error_code, topic.name) == (0, world.topic)
        assert sorted(partition.partition_index for partition in topic.partitions) == [0, 1]
        leader = {broker.node_id: broker for broker in answer.brokers}[topic.partitions[0].leader_id]
        assert f"{leader.host}:{leader.port}" == world.bootstrap
        if version >= 10:
            assert topic.topic_id == world.topic_id
        every = world.call(oracle.METADATA, version, {"topics": () if version == 0 else None})
        assert world.topic in {topic.name for topic in every.topics}
        if version >= 12:
            (by_id,) = world.call(oracle.METADATA, version, {"topics": ({"topic_id": world.topic_id, "name": None},)}).topics
            assert (by_id.error_code, by_id.name) == (0, world.topic)


def test_produce_and_fetch(world: World) -> None:
    """Each version's record is fetched by each version: the bytes in between are the same."""
    written: list[bytes] = []
    for version in versions(world, oracle.PRODUCE):
        if version < PRODUCE_MIN_SERVED:
            continue
        value = b"produced with version %d" % version
        for acks in (1, -1):
            partition = {"index": 0, "records": batch([value])}
            request = {"acks": acks, "timeout": 10_000, "topic_data": (named(world, version, 13, partition_data=(partition,)),)}
            (topic,) = world.call(oracle.PRODUCE, version, request).responses
            (answer,) = topic.partition_responses
            assert (answer.index, answer.error_code) == (0, 0), f"version=`{version}`"
            assert answer.base_offset == len(written)
            written.append(value)
    for version in versions(world, oracle.FETCH):
        partition = {
            "partition": 0,
            "fetch_offset": 0,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
        }
        request = {
            "replica_id": -1,
            "max_wait": 100,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": (named(world, version, 13, partitions=(partition,)),),
        }
        (topic,) = world.call(oracle.FETCH, version, request).responses
        (answer,) = topic.partitions
        assert (answer.partition_index, answer.error_code) == (0, 0), f"version=`{version}`"
        assert answer.high_watermark == len(written)
        assert [value for value in written if value in answer.records] == written
        assert answer.records.startswith(b"\x00" * 8), "the first batch does not start at offset 0"


def test_list_offsets(world: World) -> None:
    topic = create_topic(world.bootstrap, fresh("list-offsets"), 1)
    partition = {"index": 0, "records": batch([b"a", b"b", b"c"], timestamp_ms=1_000)}
    world.call(oracle.PRODUCE, 9, {"acks": -1, "timeout": 10_000, "topic_data": ({"name": topic, "partition_data": (partition,)},)})
    # requested timestamp -> (offset, timestamp)
    questions = {-2: (0, -1), -1: (3, -1), 0: (0, 1_000), 1_001: (1, 1_001), 1_002: (2, 1_002), 1_003: (-1, -1)}
    for version in versions(world, oracle.LIST_OFFSETS):
        asked = {**questions, -3: (2, 1_002)} if version >= 7 else questions
        for timestamp, (offset, found_timestamp) in asked.items():
            one = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
            request = {"replica_id": -1, "topics": ({"name": topic, "partitions": (one,)},), "timeout_ms": 10_000}
            (answer,) = world.call(oracle.LIST_OFFSETS, version, request).topics[0].partitions
            assert answer.error_code == 0
            assert (answer.offset, answer.timestamp) == (offset, found_timestamp), f"version=`{version}` asked=`{timestamp}`"


def test_offset_for_leader_epoch(world: World) -> None:
    topic = create_topic(world.bootstrap, fresh("epochs"), 1)
    partition = {"index": 0, "records": batch([b"a", b"b"])}
    world.call(oracle.PRODUCE, 9, {"acks": -1, "timeout": 10_000, "topic_data": ({"name": topic, "partition_data": (partition,)},)})
    epoch = world.call(oracle.METADATA, 12, {"topics": ({"name": topic},)}).topics[0].partitions[0].leader_epoch
    for version in versions(world, oracle.OFFSET_FOR_LEADER_EPOCH):
        one = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": -1}
        (answer,) = (
            world.call(
                oracle.OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": -1, "topics": ({"topic": topic, "partitions": (one,)},)}
            )
            .topics[0]
            .partitions
        )
        assert (answer.error_code, answer.partition, answer.leader_epoch, answer.end_offset) == (0, 0, epoch, 2)


def test_init_producer_id(world: World) -> None:
    given = []
    for version in versions(world, oracle.INIT_PRODUCER_ID):
        request = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        answer = world.call(oracle.INIT_PRODUCER_ID, version, request)
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
        given.append(answer.producer_id)
    assert len(set(given)) == len(given), "a producer id was given twice"
    assert min(given) >= 0


def test_create_and_delete_topics(world: World) -> None:
    creating, deleting = versions(world, oracle.CREATE_TOPICS), versions(world, oracle.DELETE_TOPICS)
    names = [fresh(f"made-with-{version}") for version in creating]
    for version, name in zip(creating, names, strict=True):
        one = {"name": name, "num_partitions": 3, "replication_factor": 1, "configs": ({"name": "retention.ms", "value": "60000"},)}
        (answer,) = world.call(oracle.CREATE_TOPICS, version, {"topics": (one,), "timeout": 30_000}).topics
        assert (answer.name, answer.error_code) == (name, 0)
        if version >= 5:
            assert (answer.num_partitions, answer.replication_factor) == (3, 1)
            assert "retention.ms" in {config.name for config in answer.configs}
    for version, name in zip(deleting, names, strict=True):
        request: dict[str, Any] = {"topic_names": (name,), "timeout": 30_000}
        if version >= 6:
            request = {"topics": ({"name": name},), "timeout": 30_000}
        (answer,) = world.call(oracle.DELETE_TOPICS, version, request).responses
        assert (answer.name, answer.error_code) == (name, 0)


def test_create_partitions(world: World) -> None:
    topic = create_topic(world.bootstrap, fresh("grown"), 1)
    for count, version in enumerate(versions(world, oracle.CREATE_PARTITIONS), start=2):
        request = {"topics": ({"name": topic, "count": count, "assignments": None},), "timeout": 30_000}
        (answer,) = world.call(oracle.CREATE_PARTITIONS, version, request).results
        assert (answer.name, answer.error_code) == (topic, 0)


def test_delete_records(world: World) -> None:
    topic = create_topic(world.bootstrap, fresh("shortened"), 1)
    partition = {"index": 0, "records": batch([b"%d" % number for number in range(10)])}
    world.call(oracle.PRODUCE, 9, {"acks": -1, "timeout": 10_000, "topic_data": ({"name": topic, "partition_data": (partition,)},)})
    for offset, version in enumerate(versions(world, oracle.DELETE_RECORDS), start=1):
        one = {"name": topic, "partitions": ({"partition_index": 0, "offset": offset},)}
        (answer,) = world.call(oracle.DELETE_RECORDS, version, {"topics": (one,), "timeout": 30_000}).topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (0, offset)


def test_configs(world: World) -> None:
    topic = create_topic(world.bootstrap, fresh("configured"), 1)
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic}

    def described(version: int) -> dict[str, Any]:
        request = {
            "resources": ({**resource, "configuration_keys": None},),
            "include_synonyms": True,
            "include_documentation": True,
        }
        (answer,) = world.call(oracle.DESCRIBE_CONFIGS, version, request).results
        assert (answer.error_code, answer.resource_name) == (0, topic)
        return {config.name: config for config in answer.configs}

    newest = versions(world, oracle.DESCRIBE_CONFIGS)[-1]
    for number, version in enumerate(versions(world, oracle.ALTER_CONFIGS), start=1):
        value = str(60_000 * number)
        request = {"resources": ({**resource, "configs": ({"name": "retention.ms", "value": value},)},)}
        (answer,) = world.call(oracle.ALTER_CONFIGS, version, request).responses
        assert answer.error_code == 0
        assert eventually(lambda: described(newest)["retention.ms"].value, value.__eq__) == value
    for number, version in enumerate(versions(world, oracle.INCREMENTAL_ALTER_CONFIGS), start=1):
        value = str(70_000 * number)
        request = {"resources": ({**resource, "configs": ({"name": "retention.ms", "config_operation": 0, "value": value},)},)}
        (answer,) = world.call(oracle.INCREMENTAL_ALTER_CONFIGS, version, request).responses
        assert answer.error_code == 0
        assert eventually(lambda: described(newest)["retention.ms"].value, value.__eq__) == value
    shown = [described(version) for version in versions(world, oracle.DESCRIBE_CONFIGS)]
    for configs in shown:
        assert {name: config.value for name, config in configs.items()} == {name: config.value for name, config in shown[0].items()}
        assert configs["retention.ms"].config_source == 1, "an override is a dynamic topic config"
        assert {"cleanup.policy", "max.message.bytes", "message.timestamp.type"} <= set(configs)


def test_describe_cluster(world: World) -> None:
    for version in versions(world, oracle.DESCRIBE_CLUSTER):
        answer = world.call(oracle.DESCRIBE_CLUSTER, version, {"endpoint_type": 1})
        assert answer.error_code == 0
        assert [f"{broker.host}:{broker.port}" for broker in answer.brokers] == [world.bootstrap]
        assert answer.cluster_id
        assert answer.controller_id == answer.brokers[0].broker_id


def test_describe_log_dirs(world: World) -> None:
    for version in versions(world, oracle.DESCRIBE_LOG_DIRS):
        answer = world.call(oracle.DESCRIBE_LOG_DIRS, version, {"topics": ({"topic": world.topic, "partitions": (0, 1)},)})
        found = {
            (topic.name, partition.partition_index)
            for directory in answer.results
            for topic in directory.topics
            for partition in topic.partitions
        }
        assert found == {(world.topic, 0), (world.topic, 1)}
        assert all(directory.error_code == 0 for directory in answer.results)


def test_describe_producers(world: World) -> None:
    topic = create_topic(world.bootstrap, fresh("producers"), 1)
    given = world.call(oracle.INIT_PRODUCER_ID, 4, {"transactional_id": None, "producer_id": -1, "producer_epoch": -1})
    records = batch([b"a", b"b"], producer_id=given.producer_id, producer_epoch=given.producer_epoch, base_sequence=0)
    partition = {"index": 0, "records": records}
    world.call(oracle.PRODUCE, 9, {"acks": -1, "timeout": 10_000, "topic_data": ({"name": topic, "partition_data": (partition,)},)})
    for version in versions(world, oracle.DESCRIBE_PRODUCERS):
        request = {"topics": ({"name": topic, "partition_indexes": (0,)},)}
        (answer,) = world.call(oracle.DESCRIBE_PRODUCERS, version, request).topics[0].partitions
        assert answer.error_code == 0
        (producer,) = answer.active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (given.producer_id, 0, 1)


def test_describe_topic_partitions(world: World) -> None:
    for version in versions(world, oracle.DESCRIBE_TOPIC_PARTITIONS):
        request = {"topics": ({"name": world.topic},), "response_partition_limit": 2000}
        (topic,) = world.call(oracle.DESCRIBE_TOPIC_PARTITIONS, version, request).topics
        assert (topic.error_code, topic.name, topic.topic_id) == (0, world.topic, world.topic_id)
        assert [partition.partition_index for partition in topic.partitions] == [0, 1]


def test_every_advertised_version_is_known(world: World) -> None:
    """The broker advertises no API that the oracle does not know, and no version that Kafka's schema does not have."""
    host, port = world.bootstrap.rsplit(":", 1)
    for api_key, (low, high) in wire.api_versions(host, int(port)).items():
        for version in range(PRODUCE_MIN_SERVED if api_key == oracle.PRODUCE else low, high + 1):
            if (api_key, version) not in OF_KAFKA_4_4:
                oracle.is_flexible(api_key, version)


def test_a_client_of_kafka_4_4_connects(bootstrap: str) -> None:
    """Version 5 names the cluster and the broker that the client expects (KIP-1242); some clients never try an older version. The
    answer is that of version 4."""
    host, port = bootstrap.rsplit(":", 1)
    for expected, error in ((b"\x00\xff\xff\xff\xff", 0), (b"\x06other\x00\x00\x00\x01", REBOOTSTRAP_REQUIRED)):
        with RawConnection(host, int(port)) as connection:
            body = b"\x02x\x021" + expected + b"\x00"
            answer = oracle.decode(oracle.API_VERSIONS, 4, connection.call(oracle.API_VERSIONS, 5, body, flexible=True))
            assert (int(answer.error_code), bool(answer.api_keys)) == (error, not error)


def test_old_produce_versions_are_refused(bootstrap: str, topic: str) -> None:
    """They are advertised for librdkafka, and their batches are refused. Kafka closes the connection; an error is clearer."""
    host, port = bootstrap.rsplit(":", 1)
    name = topic.encode()
    records = b"\x00" * 8 + struct.pack(">i", 14) + b"\x00" * 14  # a message set with one message of format 0
    partition = struct.pack(">ii", 1, len(records)) + records
    body = struct.pack(">hiih", 1, 1_000, 1, len(name)) + name + struct.pack(">i", 1) + partition
    for version in range(PRODUCE_MIN_SERVED):
        with RawConnection(host, int(port)) as connection:
            try:
                answer = connection.call(oracle.PRODUCE, version, body)
            except ClosedByPeer:
                continue
        index, error = struct.unpack_from(">ih", answer, 4 + 2 + len(name) + 4)
        assert (index, error) == (1, UNSUPPORTED_FOR_MESSAGE_FORMAT), f"version=`{version}` answer=`{answer.hex()}`"


def test_unknown_api_versions_version(bootstrap: str) -> None:
    """A client newer than the broker gets a version 0 answer with the broker's versions (KIP-511)."""
    host, port = bootstrap.rsplit(":", 1)
    for version in (6, 99, 32_767):
        with RawConnection(host, int(port)) as connection:
            answer = oracle.decode(
                oracle.API_VERSIONS, 0, connection.call(oracle.API_VERSIONS, version, b"\x02x\x021\x00", flexible=True)
            )
            assert answer.error_code == wire.UNSUPPORTED_VERSION
            assert oracle.API_VERSIONS in {api.api_key for api in answer.api_keys}
            # The connection stays open: the client asks again with one of these versions.
            again = oracle.call(connection, oracle.API_VERSIONS, 3, {"client_software_name": "x", "client_software_version": "1"})
            assert again.error_code == 0


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (oracle.METADATA, 99), (oracle.FETCH, 3), (oracle.FETCH, 99), (-1, 0)])
def test_unserved_requests_close_the_connection(bootstrap: str, api_key: int, version: int) -> None:
    host, port = bootstrap.rsplit(":", 1)
    with RawConnection(host, int(port)) as connection:
        connection.send_request(api_key, version, b"\x00" * 32)
        assert connection.is_closed_by_peer(within_s=10)
