"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords and DescribeLogDirs over a real engine.

Compared: each answer with Kafka 4.2's, for good input and bad, in every version. A mismatch means that the broker does something
else than an admin tool requested, or reports something else than it did.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import Reason
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.leads import Replicas
from headgate.broker.wire.kafka.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headgate.broker.wire.kafka.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from headgate.broker.wire.kafka.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from headgate.broker.wire.kafka.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from headgate.broker.wire.kafka.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from headgate.broker.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from headgate.broker.wire.kafka.primitives import ZERO_UUID
from tests.unit.kafka_api.conftest import Kafka


def topic(name: str, **fields: Any) -> CreatableTopic:
    return CreatableTopic(name=name, **{"num_partitions": 2, "replication_factor": 1, **fields})


def assignments(*rows: tuple[int, list[int]]) -> list[CreatableReplicaAssignment]:
    return [CreatableReplicaAssignment(partition_index=number, broker_ids=brokers) for number, brokers in rows]


def configs(**values: str | None) -> list[CreatableTopicConfig]:
    return [CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in values.items()]


async def create(
    kafka: Kafka, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return list((await kafka.call(request, version)).topics)


@pytest.mark.parametrize("version", range(2, 8))
async def test_create(kafka: Kafka, version: int) -> None:
    (result,) = await create(kafka, topic("a", configs=configs(retention_ms="5")), version=version)
    made = kafka.engine.topic("a")
    assert (made.partitions, made.config) == (2, {"retention.ms": "5"})
    assert (result.name, result.error_code) == ("a", 0)
    assert result.topic_id == (made.id if version >= 7 else ZERO_UUID)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)
        listed = {entry.name: (entry.value, entry.config_source) for entry in result.configs or ()}
        assert listed["retention.ms"] == ("5", 1)
        assert listed["cleanup.policy"] == ("delete", 5)
    again = (await create(kafka, topic("a"), version=version))[0]
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert again.error_message


async def test_defaults(kafka: Kafka) -> None:
    (result,) = await create(kafka, topic("a", num_partitions=-1, replication_factor=-1), version=4)
    assert result.error_code == 0
    assert kafka.engine.topic("a").partitions == kafka.settings.num_partitions


@pytest.mark.parametrize("factor", [1, 3, 10])
async def test_replicas_are_shown_as_the_topic_was_created(kafka: Kafka, factor: int) -> None:
    """One broker runs. Tools compare the lists with the factor and with `min.insync.replicas`."""
    (result,) = await create(kafka, topic("a", replication_factor=factor))
    assert (result.error_code, result.error_message, result.replication_factor) == (0, None, factor)
    response = await kafka.call(MetadataRequest(topics=[MetadataRequestTopic(name="a")]), 12)
    for part in response.topics[0].partitions:
        assert part.replica_nodes == part.isr_nodes == [7, *range(1, 12)][: min(factor, 7)] + [8, 9, 10][: max(0, factor - 7)]
        assert part.offline_replicas == []


def test_replicas_form_a_ring_that_begins_at_the_lead() -> None:
    replicas = Replicas([1, 2, 5, 6])
    assert [replicas.of(lead, 3) for lead in (1, 2, 5, 6)] == [[1, 2, 5], [2, 5, 6], [5, 6, 1], [6, 1, 2]]
    assert replicas.of(5, 1) == [5]
    assert replicas.of(5, 6) == [5, 6, 1, 2, 3, 4]


async def test_manual_assignment(kafka: Kafka) -> None:
    rows = assignments((1, [7]), (0, [7]), (2, [7]))
    (result,) = await create(kafka, topic("a", num_partitions=-1, replication_factor=-1, assignments=rows))
    assert (result.error_code, kafka.engine.topic("a").partitions, result.replication_factor) == (0, 3, 1)


MANUAL: dict[str, Any] = {"num_partitions": -1, "replication_factor": -1}
INVALID = [
    ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"name": "x" * 30_000}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"name": "is.there"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
    ({"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS),
    ({"num_partitions": 2**31 - 1}, ErrorCode.INVALID_PARTITIONS),
    ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ({"replication_factor": -2}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ({"configs": configs(no_such="1")}, ErrorCode.INVALID_CONFIG),
    ({"configs": configs(retention_ms="soon")}, ErrorCode.INVALID_CONFIG),
    ({"configs": configs(retention_ms=None)}, ErrorCode.INVALID_CONFIG),
    ({"replication_factor": 11}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ({"configs": configs(compression_type="brotli")}, ErrorCode.INVALID_CONFIG),
    ({"assignments": assignments((0, [7]))}, ErrorCode.INVALID_REQUEST),
    (MANUAL | {"num_partitions": 1, "assignments": assignments((0, [7]))}, ErrorCode.INVALID_REQUEST),
    (MANUAL | {"replication_factor": 1, "assignments": assignments((0, [7]))}, ErrorCode.INVALID_REQUEST),
    (MANUAL | {"assignments": assignments((1, [7]))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (MANUAL | {"assignments": assignments((0, [7]), (0, [7]))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (MANUAL | {"assignments": assignments((0, []))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (MANUAL | {"assignments": assignments((0, [7, 7]))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (MANUAL | {"assignments": assignments((0, [7, 8]))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
]


@pytest.mark.parametrize(("fields", "code"), INVALID)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_topics_that_cannot_be(kafka: Kafka, fields: dict[str, Any], code: int, validate_only: bool) -> None:
    await kafka.engine.create_topic("is_there", 1, {})
    results = await create(kafka, topic(**{"name": "wrong", **fields}), topic("right"), validate_only=validate_only)
    assert [(one.error_code, bool(one.error_message)) for one in results] == [(code, True), (0, False)]
    assert {one.name for one in kafka.engine.topics()} == {"is_there"} | (set() if validate_only else {"right"})


@pytest.mark.parametrize("version", range(2, 8))
async def test_validate_only(kafka: Kafka, version: int) -> None:
    (result,) = await create(kafka, topic("a"), version=version, validate_only=True)
    assert (result.error_code, result.topic_id) == (0, ZERO_UUID)
    assert kafka.engine.topics() == []
    await kafka.engine.create_topic("a", 1, {})
    (result,) = await create(kafka, topic("a"), version=version, validate_only=True)
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_topic_twice_in_a_request(kafka: Kafka) -> None:
    results = await create(kafka, topic("a"), topic("b"), topic("a", num_partitions=9))
    assert {one.name: one.error_code for one in results} == {"a": ErrorCode.INVALID_REQUEST, "b": 0}
    assert [one.name for one in kafka.engine.topics()] == ["b"]


# -- DeleteTopics


async def delete(kafka: Kafka, *topics: DeleteTopicState, version: int = 6) -> list[DeletableTopicResult]:
    request = DeleteTopicsRequest(topics=list(topics))
    if version < 6:
        request = DeleteTopicsRequest(topic_names=[one.name or "" for one in topics])
    return list((await kafka.call(request, version)).responses)


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_by_name(kafka: Kafka, version: int) -> None:
    made = await kafka.engine.create_topic("a", 1, {})
    found, missing = await delete(kafka, DeleteTopicState(name="a"), DeleteTopicState(name="no"), version=version)
    assert (found.name, found.error_code) == ("a", 0)
    assert found.topic_id == (made.id if version >= 6 else ZERO_UUID)
    assert (missing.name, missing.error_code) == ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert kafka.engine.topics() == []


async def test_delete_by_id(kafka: Kafka) -> None:
    made = await kafka.engine.create_topic("a", 1, {})
    unknown = uuid4()
    found, missing = await delete(
        kafka, DeleteTopicState(name=None, topic_id=made.id), DeleteTopicState(name=None, topic_id=unknown)
    )
    assert (found.name, found.topic_id, found.error_code) == ("a", made.id, 0)
    assert (missing.name, missing.topic_id, missing.error_code) == (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID)


async def test_delete_requests_that_contradict_themselves(kafka: Kafka) -> None:
    a, b = await kafka.engine.create_topic("a", 1, {}), await kafka.engine.create_topic("b", 1, {})
    for wrong in (
        [DeleteTopicState(name=None)],
        [DeleteTopicState(name="a", topic_id=a.id)],
        [DeleteTopicState(name="a"), DeleteTopicState(name="a")],
        [DeleteTopicState(name=None, topic_id=b.id), DeleteTopicState(name=None, topic_id=b.id)],
        [DeleteTopicState(name="a"), DeleteTopicState(name=None, topic_id=a.id)],
    ):
        results = await delete(kafka, *wrong)
        assert {one.error_code for one in results} == {ErrorCode.INVALID_REQUEST}
    assert len(kafka.engine.topics()) == 2


async def test_a_topic_of_the_same_name_has_another_id(kafka: Kafka) -> None:
    (first,) = await create(kafka, topic("a"))
    await delete(kafka, DeleteTopicState(name="a"))
    (second,) = await create(kafka, topic("a"))
    assert first.topic_id != second.topic_id
    assert (await delete(kafka, DeleteTopicState(name=None, topic_id=first.topic_id)))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


# -- CreatePartitions


async def grow(kafka: Kafka, *rows: tuple[str, int, list[list[int]] | None], version: int = 3, **fields: Any) -> dict[str, int]:
    topics = [
        CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None if brokers is None else [CreatePartitionsAssignment(broker_ids=one) for one in brokers],
        )
        for name, count, brokers in rows
    ]
    response = await kafka.call(CreatePartitionsRequest(topics=topics, timeout_ms=1000, **fields), version)
    assert all(bool(one.error_message) == bool(one.error_code) for one in response.results)
    return {one.name: one.error_code for one in response.results}


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 2, {})
    assert await grow(kafka, ("a", 4, None), version=version, validate_only=True) == {"a": 0}
    assert kafka.engine.topic("a").partitions == 2
    assert await grow(kafka, ("a", 4, None), version=version) == {"a": 0}
    assert kafka.engine.topic("a").partitions == 4
    assert await grow(kafka, ("a", 6, [[7], [7]]), version=version) == {"a": 0}
    await kafka.append("a", [b"x"], partition=5)


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (("no", 4, None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("a", 2, None), ErrorCode.INVALID_PARTITIONS),
        (("a", 1, None), ErrorCode.INVALID_PARTITIONS),
        (("a", 0, None), ErrorCode.INVALID_PARTITIONS),
        (("a", -1, []), ErrorCode.INVALID_PARTITIONS),
        (("a", 2**31 - 1, None), ErrorCode.INVALID_PARTITIONS),
        (("a", 4, [[7]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (("a", 3, [[]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (("a", 3, [[8]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (("a", 3, [[7, 7]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_partitions_that_cannot_be(kafka: Kafka, row: tuple[str, int, list[list[int]] | None], code: int) -> None:
    await kafka.engine.create_topic("a", 2, {})
    assert await grow(kafka, row) == {row[0]: code}
    assert kafka.engine.topic("a").partitions == 2


async def test_growing_a_topic_twice_in_a_request(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 2, {})
    assert await grow(kafka, ("a", 4, None), ("a", 5, None)) == {"a": ErrorCode.INVALID_REQUEST}
    assert kafka.engine.topic("a").partitions == 2


# -- DeleteRecords


async def cut(kafka: Kafka, name: str, offset: int, *, partition: int = 0, version: int = 2) -> tuple[int, int]:
    """(error code, low watermark)."""
    one = DeleteRecordsPartition(partition_index=partition, offset=offset)
    response = await kafka.call(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[one])]), version)
    (answer,) = response.topics[0].partitions
    return answer.error_code, answer.low_watermark


@pytest.mark.parametrize("version", range(3))
async def test_delete_records(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 1, {})
    await kafka.append("a", [b"x"] * 5)
    assert await cut(kafka, "a", 0, version=version) == (0, 0)
    assert await cut(kafka, "a", 3, version=version) == (0, 3)
    assert await cut(kafka, "a", 2, version=version) == (0, 3)  # a log's start never goes back
    assert await cut(kafka, "a", 6, version=version) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await cut(kafka, "a", -2, version=version) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await cut(kafka, "a", -1, version=version) == (0, 5)
    assert await cut(kafka, "a", 0, partition=1, version=version) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await cut(kafka, "no", 0, version=version) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


async def test_records_of_many_partitions_are_deleted_in_one_edit(kafka: Kafka) -> None:
    """An edit of the manifest takes a store some tens of milliseconds: one edit per partition would exceed a client's timeout."""
    await kafka.engine.create_topic("a", 20, {})
    await kafka.engine.create_topic("b", 1, {})
    for number in range(20):
        await kafka.append("a", [b"x"] * 3, partition=number)
    await kafka.append("b", [b"x"] * 3)
    catalog = kafka.engine._lifecycle.catalog
    assert isinstance(catalog, RoutedCatalog)
    before = catalog.version
    parts = [DeleteRecordsPartition(partition_index=number, offset=-1 if number % 2 else 2) for number in range(20)]
    parts += [DeleteRecordsPartition(partition_index=0, offset=1), DeleteRecordsPartition(partition_index=1, offset=4)]
    other = DeleteRecordsTopic(name="b", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="a", partitions=parts), other])
    first, second = (await kafka.call(request, 2)).topics
    answers = [(one.partition_index, one.error_code, one.low_watermark) for one in first.partitions]
    assert answers[:20] == [(number, 0, 3 if number % 2 else 2) for number in range(20)]
    assert answers[20:] == [(0, 0, 2), (1, ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
    assert [(one.error_code, one.low_watermark) for one in second.partitions] == [(0, 1)]
    assert catalog.version == before + 1


async def test_records_that_may_not_be_deleted(kafka: Kafka) -> None:
    await kafka.engine.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    await kafka.engine.create_topic("both", 1, {"cleanup.policy": "compact,delete"})
    await kafka.engine.create_topic("__consumer_offsets", 1, {})
    assert await cut(kafka, "compacted", -1) == (ErrorCode.POLICY_VIOLATION, -1)
    assert await cut(kafka, "both", -1) == (0, 0)
    assert await cut(kafka, "__consumer_offsets", -1) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


# -- DescribeLogDirs


async def sizes(kafka: Kafka, version: int, topics: list[DescribableLogDirTopic] | None) -> dict[tuple[str, int], int]:
    response = await kafka.call(DescribeLogDirsRequest(topics=topics), version)
    (directory,) = response.results
    assert (directory.error_code, directory.log_dir) == (0, "memory:")
    assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)
    return {(one.name, part.partition_index): part.partition_size for one in directory.topics for part in one.partitions}


@pytest.mark.parametrize("version", range(1, 5))
async def test_sizes(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 2, {})
    await kafka.engine.create_topic("b", 1, {})
    await kafka.append("a", [b"x" * 100])
    everything = await sizes(kafka, version, None)
    assert set(everything) == {("a", 0), ("a", 1), ("b", 0)}
    assert everything["a", 0] > 100
    assert everything["a", 1] == 0
    asked = [
        DescribableLogDirTopic(topic="a", partitions=[1, 9, -1, 1]),
        DescribableLogDirTopic(topic="no", partitions=[0]),
    ]
    assert await sizes(kafka, version, asked) == {("a", 1): 0}
    assert await sizes(kafka, version, []) == {}


async def test_a_broker_without_proof_of_its_lead_tells_no_sizes(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})
    await kafka.append("a", [b"x" * 100])
    assert await sizes(kafka, 4, None)
    await kafka.fence()
    assert await sizes(kafka, 4, None) == {}


def version(kafka: Kafka) -> int:
    catalog = kafka.engine._lifecycle.catalog
    assert isinstance(catalog, RoutedCatalog)
    return catalog.version


async def test_topics_of_one_request_are_made_and_deleted_with_one_commit(kafka: Kafka) -> None:
    await kafka.engine.create_topic("there", 1, {})
    before = version(kafka)
    names = [f"t{number}" for number in range(60)]
    wrong = [topic("there"), topic("a_b"), topic("a.b"), topic("bad", configs=configs(no_such="1"))]
    results = await create(kafka, *(topic(name) for name in names), *wrong)
    assert [one.error_code for one in results[:61]] == [0] * 60 + [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert [one.error_code for one in results[61:]] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_CONFIG]
    assert version(kafka) == before + 1
    request = DeleteTopicsRequest(topic_names=[*names, "no-such", "a_b"])
    answers = (await kafka.call(request, 5)).responses
    assert {one.name for one in answers if one.error_code} == {"no-such"}
    assert [one.name for one in kafka.engine.topics()] == ["there"]
    assert version(kafka) == before + 2


async def test_topics_that_are_too_much_for_one_turn_of_the_loop_are_made_with_several_commits(kafka: Kafka) -> None:
    before = version(kafka)
    results = await create(kafka, *(topic(f"t{number}", num_partitions=80) for number in range(5)))
    assert [one.error_code for one in results] == [0] * 5
    assert version(kafka) == before + 3


async def test_a_topic_with_many_partitions_is_led_when_it_is_answered(kafka: Kafka) -> None:
    """The broker opens the partitions in several turns of the loop."""
    results = await create(kafka, topic("wide", num_partitions=2_000))
    assert [one.error_code for one in results] == [0]
    assert all(kafka.engine.logs["wide"])
    assert [log.number for log in kafka.engine.logs["wide"] if log is not None] == list(range(2_000))


async def test_a_topic_that_somebody_else_deleted_meanwhile_stops_none_of_the_others(kafka: Kafka) -> None:
    topics = [await kafka.engine.create_topic(name, 1, {}) for name in ("a", "gone", "b")]
    await kafka.engine.delete_topic(topics[1])
    errors = await kafka.engine.delete_topics(topics)
    assert [error and error.reason for error in errors] == [None, Reason.UNKNOWN_TOPIC_ID, None]
    assert not kafka.engine.topics()


async def test_a_topic_that_two_delete_at_once_is_unknown_to_the_second_one_as_it_asked_for_it(kafka: Kafka) -> None:
    made = await kafka.engine.create_topic("a", 1, {})
    by_name = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")])
    by_id = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=made.id)])
    answers = await asyncio.gather(*(kafka.call(request, 6) for request in (by_name, by_name, by_id)))
    assert [answer.responses[0].error_code for answer in answers] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]


class TestFullCluster:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings.from_values({"broker_id": 7, "partitions_max": 10})

    async def test_partitions_beyond_the_limit_are_refused(self, kafka: Kafka) -> None:
        results = await create(kafka, topic("a", num_partitions=6), topic("b", num_partitions=5), topic("c", num_partitions=4))
        assert [one.error_code for one in results] == [0, ErrorCode.POLICY_VIOLATION, 0]
        assert "partitions_max" in (results[1].error_message or "")
        more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=7, assignments=None)])
        assert (await kafka.call(more, 3)).results[0].error_code == ErrorCode.POLICY_VIOLATION
        auto = MetadataRequest(topics=[MetadataRequestTopic(name="d")], allow_auto_topic_creation=True)
        assert (await kafka.call(auto, 9)).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await kafka.engine.delete_topic(kafka.engine.topic("c"))
        assert [one.error_code for one in await create(kafka, topic("e", num_partitions=4))] == [0]
        await kafka.engine.create_topic("__consumer_offsets", 50, {})  # the limit does not apply to the groups' own topic
