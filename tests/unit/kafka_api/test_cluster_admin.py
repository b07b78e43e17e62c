"""Reassignments, elections, the quorum and features over a real engine of one broker.

Compared: each answer with Kafka's, for good input and bad. A mismatch means that an administrator's tool reports a success or a
fault that is none. `e2e/test_admin_tools.py` moves leads between brokers, with Kafka's own tools.
"""

from __future__ import annotations

import pytest

from headgate.broker.cluster.manifest_format import encode_snapshot
from headgate.broker.cluster.topics import NewTopic
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages import alter_partition_reassignments as alter
from headgate.broker.wire.kafka.messages import describe_quorum, elect_leaders, metadata, update_features
from headgate.broker.wire.kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.unit.kafka_api.conftest import Kafka

GONE = 99
"""A broker that does not exist."""


async def reassign(kafka: Kafka, rows: dict[int, list[int] | None], topic: str = "a", **fields: bool) -> dict[int, int]:
    partitions = [alter.ReassignablePartition(partition_index=number, replicas=replicas) for number, replicas in rows.items()]
    topics = [alter.ReassignableTopic(name=topic, partitions=partitions)]
    response = await kafka.call(alter.AlterPartitionReassignmentsRequest(topics=topics, **fields), 1)
    assert (response.error_code, [one.name for one in response.responses]) == (0, [topic])
    answers = response.responses[0].partitions
    assert all(bool(one.error_message) == bool(one.error_code) for one in answers)
    return {one.partition_index: one.error_code for one in answers}


async def replicas(kafka: Kafka, topic: str = "a") -> list[list[int]]:
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])
    (described,) = (await kafka.call(request, 9)).topics
    return [one.replica_nodes for one in described.partitions]


async def test_a_reassignment_that_needs_no_move_is_done_at_once(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 3, {})
    assert await reassign(kafka, {0: [7], 2: [7]}) == {0: 0, 2: 0}
    for _ in range(2):
        assert await replicas(kafka) == [[7], [7], [7]]
    assert not (await kafka.call(ListPartitionReassignmentsRequest(topics=None), 0)).topics
    assert await reassign(kafka, {0: None}) == {0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}


@pytest.mark.parametrize(
    ("topic", "number", "wanted", "code"),
    [
        ("a", 0, [GONE], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("a", 0, [7, GONE], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("a", 0, [-1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("a", 0, [7, 7], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("a", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("a", 1, [7], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", -1, [7], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("no", 0, [7], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("no", 0, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", 0, [7], ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_reassignments_that_are_refused(kafka: Kafka, topic: str, number: int, wanted: list[int] | None, code: int) -> None:
    await kafka.engine.create_topic("a", 1, {})
    before = encode_snapshot(kafka.engine.manifest)
    assert await reassign(kafka, {number: wanted}, topic) == {number: code}
    assert encode_snapshot(kafka.engine.manifest) == before


async def test_another_replication_factor_must_be_allowed(kafka: Kafka) -> None:
    await kafka.engine.create_topics([NewTopic("a", 1, replication_factor=3)])
    refused = await reassign(kafka, {0: [7]}, allow_replication_factor_change=False)
    assert refused == {0: ErrorCode.INVALID_REPLICATION_FACTOR}
    assert len((await replicas(kafka))[0]) == 3
    assert await reassign(kafka, {0: [7]}) == {0: 0}
    assert await replicas(kafka) == [[7]]


async def test_a_reassignment_in_progress_is_listed_and_given_up(kafka: Kafka) -> None:
    topic = await kafka.engine.create_topic("a", 2, {})
    await kafka.engine.reassign({topic.id: {1: [8, 7]}})  # broker 8 was there when a client asked
    for topics in (None, [ListPartitionReassignmentsTopics(name="a", partition_indexes=[0, 1])]):
        (row,) = (await kafka.call(ListPartitionReassignmentsRequest(topics=topics), 0)).topics
        (partition,) = row.partitions
        assert (row.name, partition.partition_index) == ("a", 1)
        assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ([8, 7], [8], [])
    for other in (ListPartitionReassignmentsTopics(name="a", partition_indexes=[0]), ListPartitionReassignmentsTopics(name="no")):
        assert not (await kafka.call(ListPartitionReassignmentsRequest(topics=[other]), 0)).topics
    assert await replicas(kafka) == [[7], [7]]
    assert await reassign(kafka, {0: None, 1: None}) == {0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, 1: 0}
    assert not (await kafka.call(ListPartitionReassignmentsRequest(topics=None), 0)).topics


@pytest.mark.parametrize("version", range(3))
async def test_elections(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 1, {})

    async def elect(topic: str, number: int) -> int:
        rows = [elect_leaders.TopicPartitions(topic=topic, partitions=[number])]
        response = await kafka.call(elect_leaders.ElectLeadersRequest(topic_partitions=rows, timeout_ms=1000), version)
        return int(response.replica_election_results[0].partition_result[0].error_code)

    assert await elect("a", 0) == ErrorCode.ELECTION_NOT_NEEDED
    assert await elect("a", 1) == await elect("no", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await reassign(kafka, {0: [7]})
    assert await elect("a", 0) == ErrorCode.ELECTION_NOT_NEEDED
    everything = elect_leaders.ElectLeadersRequest(topic_partitions=None, timeout_ms=1000)
    assert not (await kafka.call(everything, version)).replica_election_results


@pytest.mark.parametrize("version", range(3))
async def test_the_leader_is_the_quorum(kafka: Kafka, version: int) -> None:
    rows = [
        describe_quorum.TopicData(topic_name=name, partitions=[describe_quorum.PartitionData(partition_index=number)])
        for name, number in (("__cluster_metadata", 0), ("__cluster_metadata", 1), ("a", 0))
    ]
    response = await kafka.call(describe_quorum.DescribeQuorumRequest(topics=rows), version)
    found, *others = [topic.partitions[0] for topic in response.topics]
    assert (found.error_code, found.leader_id, found.leader_epoch) == (0, 7, kafka.engine.manifest.term_epoch)
    (voter,) = found.current_voters
    assert voter.replica_id == 7 and voter.log_end_offset == found.high_watermark == kafka.engine.journal_version > 0
    assert not found.observers
    assert [one.error_code for one in others] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    if version == 2:
        assert [(node.node_id, node.listeners[0].port) for node in response.nodes] == [(7, 9092)]


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("feature", "level", "refused"),
    [
        ("transaction.version", 2, False),
        ("transaction.version", 1, True),
        ("group.version", 2, True),
        ("group.version", 0, True),
        ("metadata.version", 27, True),
        ("no.such", 1, True),
    ],
)
async def test_levels_of_features_are_fixed(kafka: Kafka, version: int, feature: str, level: int, refused: bool) -> None:
    row = update_features.FeatureUpdateKey(feature=feature, max_version_level=level)
    response = await kafka.call(update_features.UpdateFeaturesRequest(feature_updates=[row]), version)
    code = ErrorCode.INVALID_UPDATE_VERSION if refused else 0
    assert (response.error_code, response.error_message is None) == (code, not refused)
    assert [one.error_code for one in response.results] == ([] if version == 2 else [code])


async def test_an_update_names_a_feature(kafka: Kafka) -> None:
    response = await kafka.call(update_features.UpdateFeaturesRequest(), 2)
    assert response.error_code == ErrorCode.INVALID_REQUEST
