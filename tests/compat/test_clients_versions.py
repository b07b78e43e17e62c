"""Every version of ApiVersions, Produce and Fetch, requested over a raw socket and decoded by kio.

Runs: one request per advertised version, with arguments that the broker should accept, encoded by kio from Kafka's schema.
Compared: the answer decodes in that version to its last byte, carries no error, and has the same content in every version.
A mismatch means that a client of that age or that library would misread the broker. The other APIs: `property/test_wire.py` (their
bytes, by kio) and `unit/kafka_api` (their content).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.topics import create_topic, fresh
from tests.support import oracle, wire
from tests.support.batches import batch
from tests.support.wire import ClosedByPeer, RawConnection

REQUIRED = {oracle.PRODUCE: (0, 13), oracle.FETCH: (4, 17), oracle.API_VERSIONS: (0, 4)}
"""Versions that the broker advertises at least. `unit/kafka_api/test_registry.py` has those of all APIs."""

PRODUCE_MIN_SERVED = 3
"""The broker advertises lower versions of Produce, as Kafka does for librdkafka's sake, but their message formats are not
served."""

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


def test_produce_and_fetch(world: World) -> None:
    """Each version's record is fetched by each version: the bytes in between are the same."""
    written: list[bytes] = []
    for version in versions(world, oracle.PRODUCE):
        if version < PRODUCE_MIN_SERVED:
            continue
        value = b"produced with version %d" % version
        for acks in (1, -1):
            partition = {"index": 0, "records": batch([value])}
            request = {"acks": acks, "timeout": 60_000, "topic_data": (named(world, version, 13, partition_data=(partition,)),)}
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
