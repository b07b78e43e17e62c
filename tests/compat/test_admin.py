"""The life of a topic, through the admin clients of librdkafka, kafka-python, aiokafka and kafkajs.

Runs: create, list, describe, grow, configure, find offsets, delete records, delete, describe the cluster. Compared: each
client's output with the actions of another client or of the test. A mismatch means that an administrator's tool shows wrong
information.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.admin import NewTopic as AiokafkaTopic
from aiokafka.admin.config_resource import ConfigResource as AiokafkaResource
from aiokafka.admin.config_resource import ConfigResourceType as AiokafkaResourceType
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.admin import (
    NewPartitions as ConfluentPartitions,
)
from kafka import KafkaAdminClient
from kafka import OffsetSpec as KafkaPythonOffset
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import ConfigResource as KafkaPythonResource

from tests.compat.conftest import EXTERNAL
from tests.compat.topics import create_topic, eventually, fresh
from tests.support.clients.all import CLIENTS, KAFKAJS
from tests.support.records import Record

DYNAMIC_TOPIC_CONFIG = 1
"""The source that Kafka reports for an override."""


@pytest.fixture
def confluent(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def kafka_python(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        yield admin


def configs_of(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return dict(admin.describe_configs([resource])[resource].result(30))


def write(bootstrap: str, topic: str, timestamps_ms: list[int]) -> None:
    records = [Record(partition=0, key=None, value=b"%d" % time_ms, timestamp_ms=time_ms) for time_ms in timestamps_ms]
    CLIENTS["confluent"].produce(bootstrap, topic, records)


def test_confluent_topics(bootstrap: str, confluent: AdminClient) -> None:
    topic = fresh("confluent")
    new = NewTopic(topic, 3, 1, config={"retention.ms": "123456", "cleanup.policy": "compact"})
    confluent.create_topics([new], validate_only=True)[topic].result(30)
    assert topic not in confluent.list_topics(timeout=30).topics, "a topic that was only validated exists"
    confluent.create_topics([new])[topic].result(30)
    described = confluent.describe_topics(TopicCollection([topic]))[topic].result(30)
    assert described.name == topic
    assert [(part.id, part.leader.id, [node.id for node in part.isr]) for part in described.partitions] == [
        (number, described.partitions[0].leader.id, [described.partitions[0].leader.id]) for number in range(3)
    ]
    assert not described.is_internal
    listed = confluent.list_topics(timeout=30).topics[topic]
    assert listed.error is None
    assert sorted(listed.partitions) == [0, 1, 2]
    confluent.create_partitions([ConfluentPartitions(topic, 5)])[topic].result(30)
    assert len(eventually(lambda: confluent.list_topics(timeout=30).topics[topic].partitions, lambda found: len(found) == 5)) == 5
    confluent.delete_topics([topic])[topic].result(30)
    assert topic not in eventually(lambda: confluent.list_topics(timeout=30).topics, lambda found: topic not in found)


def test_topic_ids_are_unique_and_die_with_the_topic(confluent: AdminClient) -> None:
    topic = fresh("id")
    ids = []
    for _ in range(2):
        confluent.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        ids.append(str(confluent.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id))
        assert str(confluent.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id) == ids[-1]
        confluent.delete_topics([topic])[topic].result(30)
        eventually(lambda: confluent.list_topics(timeout=30).topics, lambda found: topic not in found)
    assert ids[0] != ids[1]


def test_a_topic_made_again_is_empty(bootstrap: str, confluent: AdminClient) -> None:
    topic = create_topic(bootstrap, fresh("again"), 1)
    write(bootstrap, topic, [1, 2, 3])
    confluent.delete_topics([topic])[topic].result(30)
    eventually(lambda: confluent.list_topics(timeout=30).topics, lambda found: topic not in found)
    create_topic(bootstrap, topic, 1)
    assert CLIENTS["confluent"].consume(bootstrap, topic, [0]) == {0: []}
    assert CLIENTS["confluent"].produce(bootstrap, topic, [Record(partition=0, key=None, value=b"new")]) == [0]


def test_confluent_configs(bootstrap: str, confluent: AdminClient) -> None:
    topic = create_topic(bootstrap, fresh("configs"), 1, retention_ms="1000000")
    before = configs_of(confluent, topic)
    assert (before["retention.ms"].value, before["retention.ms"].source, before["retention.ms"].is_default) == (
        "1000000",
        DYNAMIC_TOPIC_CONFIG,
        False,
    )
    assert before["cleanup.policy"].value == "delete" and before["cleanup.policy"].is_default
    assert before["max.message.bytes"].value == "1048588"
    assert before["message.timestamp.type"].value == "CreateTime"

    def change(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        confluent.incremental_alter_configs([resource])[resource].result(30)

    def wait(name: str, value: str) -> ConfigEntry:
        found = eventually(lambda: configs_of(confluent, topic)[name], lambda entry: entry.value == value)
        assert found.value == value
        return found

    change("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    wait("cleanup.policy", "delete,compact")
    change("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    wait("cleanup.policy", "compact")
    change("retention.ms", "5000", AlterConfigOpType.SET)
    wait("retention.ms", "5000")
    change("retention.ms", None, AlterConfigOpType.DELETE)
    assert wait("retention.ms", "604800000").is_default
    wait("cleanup.policy", "compact")
    # The older call replaces all overrides at once.
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.bytes": "77"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        confluent.alter_configs([resource])[resource].result(30)
    wait("retention.bytes", "77")
    assert wait("cleanup.policy", "delete").is_default


def test_confluent_offsets(bootstrap: str, confluent: AdminClient) -> None:
    topic = create_topic(bootstrap, fresh("offsets"), 2)
    # Not sorted: the third record is the newest.
    write(bootstrap, topic, [1_000, 3_000, 9_000, 2_000, 4_000])

    def offset(spec: OffsetSpec, partition: int = 0) -> tuple[int, int]:
        asked = TopicPartition(topic, partition)
        found = confluent.list_offsets({asked: spec})[asked].result(30)
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest())[0] == 0
    assert offset(OffsetSpec.latest())[0] == 5
    assert offset(OffsetSpec.max_timestamp()) == (2, 9_000)
    assert offset(OffsetSpec.for_timestamp(0)) == (0, 1_000)
    assert offset(OffsetSpec.for_timestamp(1_001)) == (1, 3_000)
    assert offset(OffsetSpec.for_timestamp(3_001)) == (2, 9_000)
    assert offset(OffsetSpec.for_timestamp(9_001))[0] == -1
    assert offset(OffsetSpec.earliest(), partition=1)[0] == 0
    assert offset(OffsetSpec.latest(), partition=1)[0] == 0
    assert offset(OffsetSpec.max_timestamp(), partition=1)[0] == -1


def test_confluent_delete_records(bootstrap: str, confluent: AdminClient) -> None:
    topic = create_topic(bootstrap, fresh("delete-records"), 1)
    write(bootstrap, topic, [1_000, 2_000, 3_000, 4_000, 5_000])

    def delete_before(offset: int) -> int:
        asked = TopicPartition(topic, 0, offset)
        return int(confluent.delete_records([asked])[asked].result(30).low_watermark)

    assert delete_before(2) == 2
    shown = CLIENTS["confluent"].consume(bootstrap, topic, [0])[0]
    assert [read.offset for read in shown] == [2, 3, 4]
    assert delete_before(1) == 2, "the log start went back"
    earliest = TopicPartition(topic, 0)
    assert confluent.list_offsets({earliest: OffsetSpec.earliest()})[earliest].result(30).offset == 2
    assert confluent.list_offsets({earliest: OffsetSpec.for_timestamp(0)})[earliest].result(30).offset == 2
    assert delete_before(-1) == 5, "-1 deletes up to the high watermark"
    assert CLIENTS["confluent"].consume(bootstrap, topic, [0]) == {0: []}
    assert CLIENTS["confluent"].produce(bootstrap, topic, [Record(partition=0, key=None, value=b"next")]) == [5]


def test_confluent_cluster(bootstrap: str, confluent: AdminClient) -> None:
    cluster = confluent.describe_cluster().result(30)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id
    metadata = confluent.list_topics(timeout=30)
    assert metadata.cluster_id == cluster.cluster_id
    assert [f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()] == [bootstrap]


def test_kafka_python(bootstrap: str, kafka_python: KafkaAdminClient) -> None:
    topic = fresh("kafka-python")
    created = kafka_python.create_topics(
        {topic: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "99000"}}}
    )
    assert [(one["name"], one["error_code"], one["num_partitions"]) for one in created["topics"]] == [(topic, 0, 2)]
    kafka_python.wait_for_topics([topic])
    assert topic in kafka_python.list_topics()
    (described,) = kafka_python.describe_topics([topic])
    assert (described["name"], described["error_code"], len(described["partitions"])) == (topic, 0, 2)
    kafka_python.create_partitions({topic: 4})
    found = eventually(lambda: kafka_python.describe_topics([topic])[0]["partitions"], lambda parts: len(parts) == 4)
    assert sorted(partition["partition_index"] for partition in found) == [0, 1, 2, 3]
    paged = kafka_python.describe_topic_partitions([topic], response_partition_limit=3)
    assert topic in str(paged)

    def retention() -> str:
        shown = kafka_python.describe_configs([KafkaPythonResource("TOPIC", topic)], config_filter="all")
        return str(shown["topic"][topic]["retention.ms"]["value"])

    assert retention() == "99000"
    kafka_python.alter_configs([KafkaPythonResource("TOPIC", topic, {"retention.ms": "98000"})])
    assert eventually(retention, "98000".__eq__) == "98000"
    kafka_python.reset_configs([KafkaPythonResource("TOPIC", topic, {"retention.ms": None})])
    assert eventually(retention, "604800000".__eq__) == "604800000"

    create_topic(bootstrap, topic + "-records", 1)
    write(bootstrap, topic + "-records", [1_000, 5_000, 3_000])
    partition = KafkaPythonPartition(topic + "-records", 0)
    specs = {
        KafkaPythonOffset.EARLIEST: 0,
        KafkaPythonOffset.LATEST: 3,
        KafkaPythonOffset.MAX_TIMESTAMP: 1,
        2_000: 1,
    }
    for spec, offset in specs.items():
        assert kafka_python.list_partition_offsets({partition: spec})[partition].offset == offset, f"spec=`{spec}`"
    assert kafka_python.delete_records({partition: 1})[partition]["low_watermark"] == 1
    assert kafka_python.list_partition_offsets({partition: KafkaPythonOffset.EARLIEST})[partition].offset == 1
    cluster = kafka_python.describe_cluster()
    assert [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]] == [bootstrap]
    assert topic in str(kafka_python.describe_log_dirs())
    kafka_python.delete_topics([topic])
    assert topic not in eventually(kafka_python.list_topics, lambda topics: topic not in topics)


def test_aiokafka(bootstrap: str) -> None:
    asyncio.run(_aiokafka(bootstrap, fresh("aiokafka")))


async def _aiokafka(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        created = await admin.create_topics([AiokafkaTopic(topic, 2, 1, topic_configs={"retention.ms": "99000"})])
        assert [error[:2] for error in created.topic_errors] == [(topic, 0)]
        create_topic(bootstrap, topic + "-records", 1)
        assert topic in await admin.list_topics()
        (described,) = await admin.describe_topics([topic])
        assert (described["topic"], described["error_code"], len(described["partitions"])) == (topic, 0, 2)
        grown = await admin.create_partitions({topic: NewPartitions(total_count=3)})
        assert [error[:2] for error in grown.topic_errors] == [(topic, 0)]

        async def retention() -> str:
            (shown,) = await admin.describe_configs([AiokafkaResource(AiokafkaResourceType.TOPIC, topic)])
            (resource,) = shown.resources
            return str({entry[0]: entry[1] for entry in resource[4]}["retention.ms"])

        assert await retention() == "99000"
        resource = AiokafkaResource(AiokafkaResourceType.TOPIC, topic, configs={"retention.ms": "98000"})
        (altered,) = await admin.alter_configs([resource])
        assert [one[0] for one in altered.resources] == [0]
        async with asyncio.timeout(60):
            while await retention() != "98000":  # noqa: ASYNC110  # Apache Kafka shows it a moment later
                await asyncio.sleep(0.01)
        write(bootstrap, topic + "-records", [1_000, 2_000, 3_000])
        partition = AiokafkaPartition(topic + "-records", 0)
        assert await admin.delete_records({partition: RecordsToDelete(before_offset=2)}) == {partition: 2}
        cluster = await admin.describe_cluster()
        assert [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]] == [bootstrap]
        deleted = await admin.delete_topics([topic])
        assert [error[:2] for error in deleted.topic_error_codes] == [(topic, 0)]
    finally:
        await admin.close()


@pytest.mark.skipif(EXTERNAL is not None, reason="one Kafka broker refuses three replicas")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.kafkajs) if name == "kafkajs" else name for name in CLIENTS])
def test_replicas_on_brokers_that_do_not_run_disturb_no_client(bootstrap: str, confluent: AdminClient, name: str) -> None:
    """A topic with the settings of a production cluster, on one broker: as many replicas as it asked for, all in sync."""
    topic = fresh("replicas")
    config = {"min.insync.replicas": "2", "compression.type": "zstd", "cleanup.policy": ""}
    confluent.create_topics([NewTopic(topic, 1, 3, config=config)])[topic].result(30)
    (part,) = confluent.list_topics(topic, timeout=30).topics[topic].partitions.values()
    assert (len(part.replicas), part.replicas[0], part.isrs) == (3, part.leader, part.replicas)
    records = [Record(partition=0, key=None, value=b"%d" % number, timestamp_ms=number) for number in range(3)]
    CLIENTS[name].produce(bootstrap, topic, records)
    assert [read.value for read in CLIENTS[name].consume(bootstrap, topic, [0])[0]] == [b"0", b"1", b"2"]


@pytest.mark.kafkajs
def test_kafkajs(bootstrap: str) -> None:
    topic = fresh("kafkajs")
    entries = [{"name": "retention.ms", "value": "99000"}]
    wanted = {"topic": topic, "numPartitions": 2, "replicationFactor": 1, "configEntries": entries}
    assert KAFKAJS.admin(bootstrap, "createTopics", {"topics": [wanted], "waitForLeaders": True}) is True
    assert KAFKAJS.admin(bootstrap, "createTopics", {"topics": [wanted]}) is False, "the topic was made twice"
    assert topic in KAFKAJS.admin(bootstrap, "listTopics")
    (described,) = KAFKAJS.admin(bootstrap, "fetchTopicMetadata", {"topics": [topic]})["topics"]
    assert (described["name"], len(described["partitions"])) == (topic, 2)
    KAFKAJS.admin(bootstrap, "createPartitions", {"topicPartitions": [{"topic": topic, "count": 3}]})

    def partitions() -> int:
        return len(KAFKAJS.admin(bootstrap, "fetchTopicMetadata", {"topics": [topic]})["topics"][0]["partitions"])

    assert eventually(partitions, (3).__eq__) == 3

    def retention() -> str:
        asked = {"includeSynonyms": True, "resources": [{"type": 2, "name": topic}]}
        (resource,) = KAFKAJS.admin(bootstrap, "describeConfigs", asked)["resources"]
        return str({entry["configName"]: entry["configValue"] for entry in resource["configEntries"]}["retention.ms"])

    assert retention() == "99000"
    change = {"type": 2, "name": topic, "configEntries": [{"name": "retention.ms", "value": "98000"}]}
    KAFKAJS.admin(bootstrap, "alterConfigs", {"resources": [change]})
    assert eventually(retention, "98000".__eq__) == "98000"
    write(bootstrap, topic, [1_000, 5_000, 9_000])
    by_partition = {row["partition"]: row for row in KAFKAJS.admin(bootstrap, "fetchTopicOffsets", topic)}
    assert (by_partition[0]["low"], by_partition[0]["high"]) == ("0", "3")
    asked = {"topic": topic, "partitions": [{"partition": 0, "offset": "2"}]}
    # This library deletes records only of topics for which the same client has loaded metadata.
    KAFKAJS.admin_calls(bootstrap, [("fetchTopicOffsets", topic), ("deleteTopicRecords", asked)])
    by_partition = {row["partition"]: row for row in KAFKAJS.admin(bootstrap, "fetchTopicOffsets", topic)}
    assert (by_partition[0]["low"], by_partition[0]["high"]) == ("2", "3")
    cluster = KAFKAJS.admin(bootstrap, "describeCluster")
    assert [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]] == [bootstrap]
    KAFKAJS.admin(bootstrap, "deleteTopics", {"topics": [topic]})
    assert topic not in eventually(lambda: KAFKAJS.admin(bootstrap, "listTopics"), lambda topics: topic not in topics)
