"""ApiVersions, Metadata, DescribeCluster and DescribeTopicPartitions over a real engine.

Compared: each answer with Kafka 4.2's for the same request, in the versions where the rules change. A mismatch means that
clients find no broker, no leader, or a topic that they may not see.
"""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from headgate.broker.runtime.config import Settings
from headgate.broker.server.kafka.apis import APIS
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.served_versions import unsupported_version
from headgate.broker.wire.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headgate.broker.wire.kafka.messages.describe_cluster import DescribeClusterRequest
from headgate.broker.wire.kafka.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from headgate.broker.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headgate.broker.wire.kafka.primitives import ZERO_UUID
from tests.unit.kafka_api.conftest import Kafka


def named(*names: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


def codes(response: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


# -- ApiVersions


@pytest.mark.parametrize("version", range(6))
async def test_api_versions_lists_what_is_served(kafka: Kafka, version: int) -> None:
    response = await kafka.call(ApiVersionsRequest(client_software_name="test", client_software_version="1.0"), version)
    assert response.error_code == 0
    listed = {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}
    assert listed[0] == (0, 13)  # otherwise librdkafka turns features off
    assert listed[1] == (4, 17)
    assert listed[3] == (0, 13)
    assert listed[18] == (0, 5)
    assert listed == {api.key: (api.advertised_min_version, api.max_version) for api in APIS.values()}


def test_an_unknown_version_is_answered_in_version_0() -> None:
    response, _ = ApiVersionsResponse.decode(unsupported_version(), 0, 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (18, 0, 5) in {(one.api_key, one.min_version, one.max_version) for one in response.api_keys}


@pytest.mark.parametrize("name", ["", " a", "a b", "a_b", "-a", "a-", "ä", "a\n"])
async def test_software_names_that_kafka_refuses(kafka: Kafka, name: str) -> None:
    for request in (
        ApiVersionsRequest(client_software_name=name, client_software_version="1"),
        ApiVersionsRequest(client_software_name="a", client_software_version=name),
    ):
        assert (await kafka.call(request, 3)).error_code == ErrorCode.INVALID_REQUEST
        assert (await kafka.call(request, 2)).error_code == 0  # version 2 has no such fields


@pytest.mark.parametrize("name", ["a", "librdkafka", "apache-kafka-java", "4.2.0-SNAPSHOT", "v2.15.0-1-g0"])
async def test_software_names(kafka: Kafka, name: str) -> None:
    assert (await kafka.call(ApiVersionsRequest(client_software_name=name, client_software_version=name), 4)).error_code == 0


async def test_a_client_that_expects_another_cluster_or_broker_is_told(kafka: Kafka) -> None:
    """KIP-1242, as Kafka 4.4: both must be those of this broker."""
    here = kafka.engine.cluster_id
    for cluster_id, node_id, code in (
        (None, -1, ErrorCode.NONE),
        (here, 7, ErrorCode.NONE),
        (here, 8, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("other", 7, ErrorCode.REBOOTSTRAP_REQUIRED),
        (here, -1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, 7, ErrorCode.INVALID_REQUEST),
    ):
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1", cluster_id=cluster_id, node_id=node_id)
        response = await kafka.call(request, 5)
        assert (response.error_code, bool(response.api_keys)) == (code, code == ErrorCode.NONE), (cluster_id, node_id)


def test_the_bytes_of_version_5() -> None:
    """No other implementation here knows them: the cluster as a compact nullable string, then the broker in four bytes."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1", cluster_id="xyz", node_id=7)
    assert request.encode(5) == b"\x02a\x021\x04xyz\0\0\0\x07\0"
    assert ApiVersionsRequest.decode(b"\x02a\x021\0\xff\xff\xff\xff\0", 0, 5)[0].cluster_id is None


# -- Metadata


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_a_topic(kafka: Kafka, version: int) -> None:
    topic = await kafka.engine.create_topic("a", 3, {})
    response = await kafka.call(MetadataRequest(topics=named("a")), version)
    assert [(one.node_id, one.host, one.port, one.rack) for one in response.brokers] == [(7, "broker.test", 9092, None)]
    if version >= 1:
        assert response.controller_id == 7
    if version >= 2:
        assert response.cluster_id == kafka.engine.cluster_id
    assert response.error_code == 0
    (one,) = response.topics
    assert (one.error_code, one.name, one.is_internal) == (0, "a", False)
    assert one.topic_id == (topic.id if version >= 10 else ZERO_UUID)
    assert one.topic_authorized_operations == -(2**31)
    assert [(part.partition_index, part.leader_id, part.replica_nodes, part.isr_nodes) for part in one.partitions] == [
        (number, 7, [7], [7]) for number in range(3)
    ]
    if version >= 7:
        assert {part.leader_epoch for part in one.partitions} == {kafka.engine.partition(topic, 0).leader_epoch}


async def test_all_topics(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})
    await kafka.engine.create_topic("__consumer_offsets", 1, {})
    for version in (1, 9, 13):
        response = await kafka.call(MetadataRequest(topics=None), version)
        assert {one.name: one.is_internal for one in response.topics} == {"a": False, "__consumer_offsets": True}
        assert (await kafka.call(MetadataRequest(topics=[]), version)).topics == []
    assert len((await kafka.call(MetadataRequest(topics=[]), 0)).topics) == 2


async def test_topics_are_created_when_they_are_asked_for(kafka: Kafka) -> None:
    response = await kafka.call(MetadataRequest(topics=named("new", "new")), 12)
    (one,) = response.topics
    assert (one.error_code, len(one.partitions)) == (0, kafka.settings.num_partitions)
    assert one.topic_id == kafka.engine.topic("new").id
    assert codes(await kafka.call(MetadataRequest(topics=named("old")), 3)) == {"old": 0}


async def test_creation_needs_the_client_and_the_broker(kafka: Kafka) -> None:
    request = MetadataRequest(topics=named("no", "not a name", ""), allow_auto_topic_creation=False)
    refused = {"no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not a name": ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert codes(await kafka.call(request, 12)) == refused | {"": ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert kafka.engine.topics() == []


async def test_creation_of_topics_that_cannot_be(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a.b", 1, {})
    response = await kafka.call(MetadataRequest(topics=named("a b", "x" * 250, "a_b", "ok")), 12)
    invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert codes(response) == {"a b": invalid, "x" * 250: invalid, "a_b": invalid, "ok": 0}


class TestNoAutoCreation:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings.from_values({"auto_create_topics": False})

    async def test_nothing_is_created(self, kafka: Kafka) -> None:
        for version in (0, 4, 13):
            assert codes(await kafka.call(MetadataRequest(topics=named("no")), version)) == {"no": 3}


async def test_metadata_by_id(kafka: Kafka) -> None:
    topic = await kafka.engine.create_topic("a", 1, {})
    unknown = uuid4()
    asked = [MetadataRequestTopic(name=None, topic_id=one) for one in (topic.id, unknown, topic.id)]
    for version in (12, 13):
        response = await kafka.call(MetadataRequest(topics=asked), version)
        assert [(one.error_code, one.name, one.topic_id) for one in response.topics] == [
            (0, "a", topic.id),
            (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown),
        ]
    # Kafka refuses topic ids in those versions that have them in the schema but came before the brokers' support.
    response = await kafka.call(MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic.id)]), 10)
    assert [(one.error_code, one.name) for one in response.topics] == [(ErrorCode.INVALID_REQUEST, "")]


async def test_authorized_operations(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})
    request = MetadataRequest(
        topics=named("a"), include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    response = await kafka.call(request, 8)
    assert (response.topics[0].topic_authorized_operations, response.cluster_authorized_operations) == (3576, 8096)


@pytest.mark.parametrize("version", range(14))
async def test_the_last_broker_is_named_until_it_is_gone(kafka: Kafka, version: int) -> None:
    """The broker has sealed its log and leads nothing more, but its connections are still open."""
    await kafka.engine.create_topic("a", 1, {})
    await kafka.close()
    response = await kafka.call(MetadataRequest(topics=named("a")), version)
    assert [(one.node_id, one.host, one.port) for one in response.brokers] == [(7, "broker.test", 9092)]
    ((part,),) = [topic.partitions for topic in response.topics]
    assert (part.error_code, part.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert [one.broker_id for one in (await kafka.call(DescribeClusterRequest(), 0)).brokers] == [7]


# -- DescribeCluster


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(kafka: Kafka, version: int) -> None:
    response = await kafka.call(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, kafka.engine.cluster_id, 7)
    assert [(one.broker_id, one.host, one.port, one.is_fenced) for one in response.brokers] == [(7, "broker.test", 9092, False)]
    assert response.cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE), (9, 115)]
)
async def test_describe_cluster_of_controllers(kafka: Kafka, endpoint: int, code: int) -> None:
    assert (await kafka.call(DescribeClusterRequest(endpoint_type=endpoint), 1)).error_code == code


# -- DescribeTopicPartitions


async def pages(kafka: Kafka, names: list[str], limit: int) -> list[list[tuple[str | None, list[int]]]]:
    found = []
    cursor = None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )
        response = await kafka.call(request, 0)
        found.append([(topic.name, [part.partition_index for part in topic.partitions]) for topic in response.topics])
        if response.next_cursor is None:
            return found
        cursor = Cursor(topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index)


async def test_pages_of_partitions(kafka: Kafka) -> None:
    for name, partitions in (("b", 3), ("a", 2), ("c", 2)):
        await kafka.engine.create_topic(name, partitions, {})
    everything = [("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0, 1])]
    assert await pages(kafka, [], 2000) == [everything]
    assert await pages(kafka, [], 7) == [everything]
    assert await pages(kafka, [], 4) == [[("a", [0, 1]), ("b", [0, 1])], [("b", [2]), ("c", [0, 1])]]
    assert await pages(kafka, [], 2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2]), ("c", [0])], [("c", [1])]]
    assert await pages(kafka, ["c", "b", "c"], 3) == [[("b", [0, 1, 2])], [("c", [0, 1])]]
    assert len(await pages(kafka, [], -5)) == 7  # at least one a page


async def test_description_of_partitions(kafka: Kafka) -> None:
    topic = await kafka.engine.create_topic("a", 1, {})
    response = await kafka.call(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")]), 0)
    (one,) = response.topics
    assert (one.error_code, one.topic_id, one.topic_authorized_operations) == (0, topic.id, 3576)
    (part,) = one.partitions
    assert (part.leader_id, part.replica_nodes, part.isr_nodes) == (7, [7], [7])
    assert part.leader_epoch == kafka.engine.partition(topic, 0).leader_epoch
    assert (part.eligible_leader_replicas, part.last_known_elr, part.offline_replicas) == ([], [], [])


async def test_topics_that_are_not_there(kafka: Kafka) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="no"), TopicRequest(name="not a name")])
    response = await kafka.call(request, 0)
    assert [(one.name, one.error_code) for one in response.topics] == [
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("not a name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert response.topics[0].topic_id == UUID(int=0)


async def test_a_cursor_that_cannot_be(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 2, {})
    cursor = Cursor(topic_name="a", partition_index=-1)
    response = await kafka.call(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")], cursor=cursor), 0)
    assert [one.error_code for one in response.topics] == [ErrorCode.INVALID_REQUEST]
    behind = Cursor(topic_name="a", partition_index=9)
    response = await kafka.call(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")], cursor=behind), 0)
    assert [one.partitions for one in response.topics] == [[]]
