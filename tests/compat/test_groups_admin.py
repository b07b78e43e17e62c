"""Groups and positions, through the admin clients of librdkafka, kafka-python, aiokafka and kafkajs.

Runs: list, describe, positions read, set and deleted, groups deleted. Compared: each client's output with the actions of a
librdkafka consumer. A mismatch means that an administrator's tool shows wrong information, or moves a group to another place
than it reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka.structs import OffsetAndMetadata

from tests.compat.topics import create_topic, fresh
from tests.support.clients.all import CLIENTS, KAFKAJS
from tests.support.records import Record
from tests.support.waiting import until

PARTITIONS = 3
RECORDS = 10
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 68, 69


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    """Ten records in each partition."""
    name = create_topic(bootstrap, fresh("administered"), PARTITIONS)
    records = [Record(partition=number % PARTITIONS, key=None, value=b"x") for number in range(PARTITIONS * RECORDS)]
    CLIENTS["confluent"].produce(bootstrap, name, records)
    return name


def consumer(bootstrap: str, group: str, **config: Any) -> Consumer:
    common = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    return Consumer({**common, **config})


@pytest.fixture
def group(bootstrap: str, topic: str) -> str:
    """A group without members, with the positions 1, 2, 3."""
    name = fresh("administered-group")
    client = consumer(bootstrap, name)
    client.commit(
        offsets=[TopicPartition(topic, number, number + 1, f"note {number}") for number in range(PARTITIONS)], asynchronous=False
    )
    client.close()
    return name


@pytest.fixture
def busy(bootstrap: str, topic: str) -> Iterator[str]:
    """A group with one member that owns all partitions."""
    name = fresh("busy-group")
    client = consumer(bootstrap, name, **{"client.id": "worker"})
    client.subscribe([topic])
    until(lambda: client.poll(0.2), "the group reads")
    yield name
    client.close()


@pytest.fixture
def confluent(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def test_confluent(bootstrap: str, confluent: AdminClient, topic: str, group: str, busy: str) -> None:
    listing = confluent.list_consumer_groups(request_timeout=30).result(30)
    assert not listing.errors
    states = {one.group_id: one.state for one in listing.valid}
    assert (states[group], states[busy]) == (ConsumerGroupState.EMPTY, ConsumerGroupState.STABLE)
    stable = confluent.list_consumer_groups(request_timeout=30, states={ConsumerGroupState.STABLE}).result(30).valid
    assert busy in {one.group_id for one in stable} and group not in {one.group_id for one in stable}

    described = {name: future.result(30) for name, future in confluent.describe_consumer_groups([group, busy]).items()}
    assert described[group].members == []
    (member,) = described[busy].members
    assert (member.client_id, member.host.lstrip("/")) == ("worker", "127.0.0.1")
    assert {(one.topic, one.partition) for one in member.assignment.topic_partitions} == {(topic, p) for p in range(PARTITIONS)}
    assert described[busy].partition_assignor == "range"

    def positions(name: str) -> dict[int, tuple[int, str]]:
        found = confluent.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result(30)
        return {one.partition: (one.offset, one.metadata or "") for one in found.topic_partitions}

    assert positions(group) == {0: (1, "note 0"), 1: (2, "note 1"), 2: (3, "note 2")}
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
    confluent.alter_consumer_group_offsets([change])[group].result(30)
    assert positions(group)[0][0] == 7
    client = consumer(bootstrap, group)
    client.assign([TopicPartition(topic, 0)])
    message = client.poll(30)
    assert message is not None and message.offset() == 7
    client.close()

    with pytest.raises(KafkaException) as refused:
        confluent.delete_consumer_groups([busy])[busy].result(30)
    assert refused.value.args[0].code() == NON_EMPTY_GROUP
    confluent.delete_consumer_groups([group])[group].result(30)
    assert positions(group) == {}
    with pytest.raises(KafkaException) as refused:
        confluent.delete_consumer_groups([group])[group].result(30)
    assert refused.value.args[0].code() == GROUP_ID_NOT_FOUND


def test_kafka_python(bootstrap: str, topic: str, group: str, busy: str) -> None:
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        listed = {one["group_id"]: one for one in admin.list_groups()}
        assert (listed[group]["group_state"], listed[busy]["group_state"]) == ("Empty", "Stable")
        described = admin.describe_groups([group, busy])
        assert (described[group]["group_state"], described[busy]["group_state"]) == ("Empty", "Stable")
        (member,) = described[busy]["members"]
        assert (member["client_id"], member["client_host"]) == ("worker", "/127.0.0.1")

        def positions() -> dict[int, int]:
            return {place.partition: value.offset for place, value in admin.list_group_offsets(group)[group].items()}

        assert positions() == {0: 1, 1: 2, 2: 3}
        admin.alter_group_offsets(group, {KafkaPythonPartition(topic, 1): OffsetAndMetadata(9, "moved", -1)})
        assert positions() == {0: 1, 1: 9, 2: 3}
        admin.delete_group_offsets(group, [KafkaPythonPartition(topic, 0)])
        assert positions() == {1: 9, 2: 3}
        admin.delete_groups([group])
        assert group not in {one["group_id"] for one in admin.list_groups()}


def test_aiokafka(bootstrap: str, topic: str, group: str, busy: str) -> None:
    async def judge() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            listed = dict(await admin.list_consumer_groups())
            assert listed[group] == "" and listed[busy] == "consumer"
            found = await admin.list_consumer_group_offsets(group)
            assert {place.partition: value.offset for place, value in found.items()} == {0: 1, 1: 2, 2: 3}
            asked = await admin.list_consumer_group_offsets(group, partitions=[AiokafkaPartition(topic, 2)])
            ((place, value),) = asked.items()
            # The binding that wrote the text also sends the terminating byte of its C string.
            assert (place.partition, value.offset, value.metadata.rstrip("\0")) == (2, 3, "note 2")
            (response,) = await admin.describe_consumer_groups([busy])
            (row,) = response.groups
            assert row[0] == 0 and row[1] == busy and row[2] == "Stable"
        finally:
            await admin.close()

    asyncio.run(judge())


@pytest.mark.kafkajs
def test_kafkajs(bootstrap: str, topic: str, group: str, busy: str) -> None:
    listed = {one["groupId"]: one["protocolType"] for one in KAFKAJS.admin(bootstrap, "listGroups")["groups"]}
    assert (listed[group], listed[busy]) == ("", "consumer")
    described = KAFKAJS.admin(bootstrap, "describeGroups", [busy])["groups"][0]
    assert (described["state"], described["protocol"], len(described["members"])) == ("Stable", "range", 1)

    def positions() -> dict[int, int]:
        (found,) = KAFKAJS.admin(bootstrap, "fetchOffsets", {"groupId": group, "topics": [topic]})
        return {one["partition"]: int(one["offset"]) for one in found["partitions"]}

    assert positions() == {0: 1, 1: 2, 2: 3}
    KAFKAJS.admin(bootstrap, "setOffsets", {"groupId": group, "topic": topic, "partitions": [{"partition": 2, "offset": "8"}]})
    assert positions() == {0: 1, 1: 2, 2: 8}
    KAFKAJS.admin(bootstrap, "resetOffsets", {"groupId": group, "topic": topic, "earliest": True})
    assert set(positions().values()) <= {0, -2}
    KAFKAJS.admin(bootstrap, "deleteGroups", [group])
    assert group not in {one["groupId"] for one in KAFKAJS.admin(bootstrap, "listGroups")["groups"]}
