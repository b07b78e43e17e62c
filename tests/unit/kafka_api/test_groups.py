"""The handlers of consumer groups and positions, called through encoded requests in every version.

The requests are those of a client of that version. Compared: the answers' fields with Apache Kafka's. A mismatch means that
clients of some version see other errors, or positions that were not committed. The rules of groups are tested in unit/groups.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
import pytest_asyncio

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.runtime.config import Settings
from headgate.broker.server.kafka.apis import APIS
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headgate.broker.wire.kafka.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headgate.broker.wire.kafka.messages.delete_groups import DeleteGroupsRequest
from headgate.broker.wire.kafka.messages.delete_topics import DeleteTopicsRequest
from headgate.broker.wire.kafka.messages.describe_groups import DescribeGroupsRequest
from headgate.broker.wire.kafka.messages.find_coordinator import FindCoordinatorRequest
from headgate.broker.wire.kafka.messages.heartbeat import HeartbeatRequest
from headgate.broker.wire.kafka.messages.init_producer_id import InitProducerIdRequest
from headgate.broker.wire.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headgate.broker.wire.kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headgate.broker.wire.kafka.messages.list_groups import ListGroupsRequest
from headgate.broker.wire.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headgate.broker.wire.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headgate.broker.wire.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headgate.broker.wire.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from headgate.broker.wire.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headgate.broker.wire.kafka.primitives import ZERO_UUID
from tests.unit.kafka_api.conftest import Kafka


@pytest.fixture
def settings() -> Settings:
    return Settings.from_values({"broker_id": 7, "group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 3})


@pytest_asyncio.fixture
async def topic(kafka: Kafka) -> str:
    await kafka.engine.create_topic("t", 4, {})
    return "t"


def versions(name: str) -> list[int]:
    api = next(api for api in APIS.values() if api.name == name)
    return list(range(api.min_version, api.max_version + 1))


def join_request(group: str, version: int, member_id: str = "", **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        protocol_type="consumer",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000 if version >= 1 else -1,
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"topics")],
        **fields,
    )


async def join(kafka: Kafka, group: str, version: int = 9, **fields: Any) -> Any:
    """The only member of its group, after its handshake."""
    answer = await kafka.call(join_request(group, version, **fields), version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await kafka.call(join_request(group, version, answer.member_id, **fields), version)
    assert answer.error_code == 0
    return answer


async def stable(kafka: Kafka, group: str) -> str:
    member_id: str = (await join(kafka, group)).member_id
    request = SyncGroupRequest(
        group_id=group,
        member_id=member_id,
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")],
    )
    assert (await kafka.call(request, 5)).error_code == 0
    return member_id


def commit_request(group: str, rows: list[tuple[str, int, int]], **fields: Any) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    metadata = fields.pop("metadata", "")
    for name, partition, offset in rows:
        topics.setdefault(name, []).append(
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=metadata)
        )
    return OffsetCommitRequest(
        group_id=group,
        topics=[OffsetCommitRequestTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        **fields,
    )


def id_of(kafka: Kafka, name: str) -> uuid.UUID:
    """The id of a topic; of one that does not exist, if the name does not exist."""
    topic = kafka.engine.manifest.topics.get(name)
    return uuid.uuid5(uuid.NAMESPACE_DNS, name) if topic is None else topic.id


async def commit(kafka: Kafka, group: str, rows: list[tuple[str, int, int]], version: int = 9, **fields: Any) -> list[int]:
    """The error codes, in order. From version 10 on, topics are named by their ids."""
    request = commit_request(group, rows, **fields)
    for topic in request.topics if version >= 10 else ():
        topic.topic_id, topic.name = id_of(kafka, topic.name), ""
    answer = await kafka.call(request, version)
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


async def fetch(kafka: Kafka, group: str, topics: list[tuple[str, list[int]]] | None, version: int) -> dict[tuple[str, int], int]:
    return {where: offset for where, (offset, _) in (await fetch_rows(kafka, group, topics, version)).items()}


async def fetch_rows(
    kafka: Kafka, group: str, topics: list[tuple[str, list[int]]] | None, version: int
) -> dict[tuple[str, int], tuple[int, str]]:
    """Positions and their texts."""
    if version >= 8:
        names = {id_of(kafka, name): name for name in (*kafka.engine.manifest.topics, *(name for name, _ in topics or ()))}
        asked = None if topics is None else [OffsetFetchRequestTopics(name=name, partition_indexes=rows) for name, rows in topics]
        for one in asked or () if version >= 10 else ():
            one.topic_id, one.name = id_of(kafka, one.name), ""
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=asked)])
        (answer,) = (await kafka.call(request, version)).groups
        assert answer.group_id == group
    else:
        asked_old = (
            None if topics is None else [OffsetFetchRequestTopic(name=name, partition_indexes=rows) for name, rows in topics]
        )
        answer = await kafka.call(OffsetFetchRequest(group_id=group, topics=asked_old), version)
    assert answer.error_code == 0
    found = {}
    for one in answer.topics:
        name = names[one.topic_id] if version >= 10 else one.name
        for row in one.partitions:
            is_unknown = version >= 10 and name not in kafka.engine.manifest.topics
            assert row.error_code == (ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else 0)
            found[name, row.partition_index] = row.committed_offset, row.metadata
    return found


# -- finding the coordinator


@pytest.mark.parametrize("version", versions("FindCoordinator"))
async def test_this_broker_coordinates_every_group(kafka: Kafka, version: int) -> None:
    if version < 4:
        answer = await kafka.call(FindCoordinatorRequest(key="g"), version)
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 7, "broker.test", 9092)
    else:
        answer = await kafka.call(FindCoordinatorRequest(coordinator_keys=["g", "h"]), version)
        assert [(row.key, row.error_code, row.node_id, row.host, row.port) for row in answer.coordinators] == [
            ("g", 0, 7, "broker.test", 9092),
            ("h", 0, 7, "broker.test", 9092),
        ]


async def test_until_the_first_group_the_leader_coordinates(kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = kafka.engine.manifest
    leader = Incarnation(id="f" * 32, broker_id=9, leader_epoch=1, opened_ms=0, host="leader.test", kafka_port=9093)
    monkeypatch.setattr(manifest, "leader", leader.id)
    (answer,) = (await kafka.call(FindCoordinatorRequest(coordinator_keys=["g"]), 6)).coordinators
    assert (answer.error_code, answer.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    monkeypatch.setitem(manifest.incarnations, leader.id, leader)
    (answer,) = (await kafka.call(FindCoordinatorRequest(coordinator_keys=["g"]), 6)).coordinators
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 9, "leader.test", 9093)
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])])
    assert (await kafka.call(request, 5)).error_code == ErrorCode.NOT_COORDINATOR


async def test_coordinators_of_share_groups_are_refused(kafka: Kafka) -> None:
    (answer,) = (await kafka.call(FindCoordinatorRequest(key_type=2, coordinator_keys=["g"]), 6)).coordinators
    assert (answer.error_code, answer.node_id, answer.port) == (ErrorCode.INVALID_REQUEST, -1, -1)


async def test_the_coordinator_of_a_transactional_id_is_found(kafka: Kafka) -> None:
    answer = await kafka.call(FindCoordinatorRequest(key_type=1, key="tx"), 2)
    assert (answer.error_code, answer.node_id, answer.port) == (0, kafka.settings.broker_id, 9092)
    assert "__transaction_state" not in kafka.engine.manifest.topics, "a look-up creates nothing"


# -- membership


@pytest.mark.parametrize("version", versions("JoinGroup"))
async def test_join(kafka: Kafka, version: int) -> None:
    first = await kafka.call(join_request("g", version), version)
    if version >= 4:
        assert (first.error_code, first.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1) and first.member_id
        first = await kafka.call(join_request("g", version, first.member_id), version)
    assert (first.error_code, first.generation_id, first.leader) == (0, 1, first.member_id)
    assert first.member_id.startswith("test-") and first.protocol_name == "range"
    assert [(member.member_id, member.metadata) for member in first.members] == [(first.member_id, b"topics")]
    if version >= 7:
        assert first.protocol_type == "consumer"
    group = kafka.groups.find("g")
    assert group is not None
    (member,) = group.members.values()
    assert member.client_host == "/127.0.0.1" and member.client_id == "test"
    assert member.rebalance_timeout_ms == (20_000 if version >= 1 else 10_000)


@pytest.mark.parametrize("version", versions("JoinGroup"))
async def test_joins_that_are_refused(kafka: Kafka, version: int) -> None:
    rebalance_ms = 1 if version else -1
    for request, code in (
        (join_request("", version), ErrorCode.INVALID_GROUP_ID),
        (join_request("g", version, "ghost"), ErrorCode.UNKNOWN_MEMBER_ID),
        (
            JoinGroupRequest(group_id="g", session_timeout_ms=1, rebalance_timeout_ms=rebalance_ms),
            ErrorCode.INVALID_SESSION_TIMEOUT,
        ),
        (
            JoinGroupRequest(group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=rebalance_ms),
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
    ):
        answer = await kafka.call(request, version)
        assert (answer.error_code, answer.generation_id, answer.members, answer.leader) == (code, -1, [], "")
        assert not answer.protocol_name
    assert list(kafka.groups.list_groups()) == []


@pytest.mark.parametrize("version", [5, 6, 7, 8, 9])
async def test_a_static_leader_returns(kafka: Kafka, version: int) -> None:
    old = await join(kafka, "g", version, group_instance_id="i")
    assert old.member_id.startswith("i-")
    sync = SyncGroupRequest(
        group_id="g",
        member_id=old.member_id,
        group_instance_id="i",
        generation_id=1,
        assignments=[SyncGroupRequestAssignment(member_id=old.member_id, assignment=b"mine")],
    )
    assert (await kafka.call(sync, 3)).error_code == 0
    new = await join(kafka, "g", version, group_instance_id="i")
    assert (new.generation_id, new.skip_assignment) == (1, version >= 9)
    assert new.leader == (new.member_id if version >= 9 else old.member_id)
    fenced = await kafka.call(HeartbeatRequest(group_id="g", member_id=old.member_id, group_instance_id="i", generation_id=1), 4)
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", versions("SyncGroup"))
async def test_sync(kafka: Kafka, version: int) -> None:
    member_id = (await join(kafka, "g")).member_id
    named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    request = SyncGroupRequest(
        group_id="g",
        member_id=member_id,
        generation_id=1,
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")],
        **named,
    )
    answer = await kafka.call(request, version)
    assert (answer.error_code, answer.assignment) == (0, b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        request.protocol_name = "sticky"
        assert (await kafka.call(request, version)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    request.protocol_name = named.get("protocol_name")
    request.generation_id = 2
    assert (await kafka.call(request, version)).error_code == ErrorCode.ILLEGAL_GENERATION
    request.member_id = "ghost"
    assert (await kafka.call(request, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions("Heartbeat"))
async def test_heartbeat(kafka: Kafka, version: int) -> None:
    member_id = await stable(kafka, "g")
    for group, member, generation, code in (
        ("g", member_id, 1, ErrorCode.NONE),
        ("g", member_id, 2, ErrorCode.ILLEGAL_GENERATION),
        ("g", "ghost", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("h", member_id, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", member_id, 1, ErrorCode.INVALID_GROUP_ID),
    ):
        request = HeartbeatRequest(group_id=group, member_id=member, generation_id=generation)
        assert (await kafka.call(request, version)).error_code == code


@pytest.mark.parametrize("version", versions("LeaveGroup"))
async def test_leave(kafka: Kafka, version: int) -> None:
    member_id = await stable(kafka, "g")
    if version < 3:
        assert (
            await kafka.call(LeaveGroupRequest(group_id="g", member_id="ghost"), version)
        ).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await kafka.call(LeaveGroupRequest(group_id="g", member_id=member_id), version)).error_code == 0
    else:
        members = [MemberIdentity(member_id=member_id), MemberIdentity(member_id="ghost"), MemberIdentity(group_instance_id="i")]
        answer = await kafka.call(LeaveGroupRequest(group_id="g", members=members), version)
        assert answer.error_code == 0
        assert [(row.member_id, row.group_instance_id, row.error_code) for row in answer.members] == [
            (member_id, None, 0),
            ("ghost", None, ErrorCode.UNKNOWN_MEMBER_ID),
            ("", "i", ErrorCode.UNKNOWN_MEMBER_ID),
        ]
    group = kafka.groups.find("g")
    assert group is not None and not group.members


# -- positions


@pytest.mark.parametrize("version", versions("OffsetCommit"))
async def test_commit_by_a_member(kafka: Kafka, topic: str, version: int) -> None:
    member_id = await stable(kafka, "g")
    rows = [("t", 0, 5), ("t", 3, 6), ("t", 4, 7), ("t", -1, 7), ("none", 0, 7), ("bad name", 0, 7)]
    codes = await commit(kafka, "g", rows, version, member_id=member_id, generation_id_or_member_epoch=1)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    by_name = [unknown, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert codes == [0, 0, unknown, unknown, *([ErrorCode.UNKNOWN_TOPIC_ID] * 2 if version >= 10 else by_name)]
    assert await fetch(kafka, "g", None, 9) == {("t", 0): 5, ("t", 3): 6}
    for fields, code in (
        ({"member_id": member_id, "generation_id_or_member_epoch": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "ghost", "generation_id_or_member_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert await commit(kafka, "g", [("t", 0, 9)], version, **fields) == [code]


@pytest.mark.parametrize("version", versions("TxnOffsetCommit"))
async def test_positions_of_a_transaction(kafka: Kafka, topic: str, version: int) -> None:
    """From version 6 topics have ids, and the errors of groups are told apart."""
    begun = await kafka.call(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=10_000), 5)
    ids = {"transactional_id": "tx", "producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    by_id = version >= 6

    async def positions(name: str, **fields: Any) -> list[int]:
        row = TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=5)
        where = {"topic_id": id_of(kafka, name)} if by_id else {"name": name}
        request = TxnOffsetCommitRequest(topics=[TxnOffsetCommitRequestTopic(partitions=[row], **where)], **ids, **fields)
        answer = await kafka.call(request, version)
        assert [(one.topic_id, one.name) for one in answer.topics] == [(where.get("topic_id", ZERO_UUID), where.get("name", ""))]
        return [row.error_code for one in answer.topics for row in one.partitions]

    for group in ("g", "nobody") if version < 5 else ():
        assert (await kafka.call(AddOffsetsToTxnRequest(group_id=group, **ids), 4)).error_code == 0
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await positions("nothing", group_id="g") == [unknown]
    if version >= 3:
        code = ErrorCode.GROUP_ID_NOT_FOUND if by_id else ErrorCode.ILLEGAL_GENERATION
        assert await positions(topic, group_id="nobody", generation_id=1, member_id="m") == [code]
    if version >= 5:
        assert await positions(topic, group_id="g") == [0]


@pytest.mark.parametrize("version", versions("OffsetCommit"))
async def test_commit_without_a_group(kafka: Kafka, topic: str, version: int) -> None:
    assert await commit(kafka, "g", [("t", 0, 5)], version, metadata="note") == [0]
    assert await commit(kafka, "", [("t", 0, 6)], version) == [0], "Kafka allows the empty group for positions alone"
    code = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    assert await commit(kafka, "x", [("t", 0, 5)], version, member_id="m", generation_id_or_member_epoch=1) == [code]
    for metadata, code in (
        ("x" * 4096, 0),
        ("x" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("x" * 30_000, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (None, 0),
    ):
        assert await commit(kafka, "g", [("t", 1, 5)], version, metadata=metadata) == [code]
        assert (await fetch_rows(kafka, "g", [("t", [1])], 9))["t", 1] == (5, "x" * 4096 if code else metadata or "")
    assert await commit(kafka, "g", [], version) == []
    (row,) = [value for _, partition, value in kafka.groups.positions("g") if partition == 0]
    assert (row.offset, row.metadata, row.leader_epoch) == (5, "note", -1)


async def test_a_retention_that_the_client_asks_for(kafka: Kafka, topic: str) -> None:
    await commit(kafka, "g", [("t", 0, 5)], 4, retention_time_ms=1_000)
    (value,) = [value for *_, value in kafka.groups.positions("g")]
    assert value.expire_ms == value.commit_ms + 1_000


@pytest.mark.parametrize("version", versions("OffsetFetch"))
async def test_fetch_positions(kafka: Kafka, topic: str, version: int) -> None:
    await commit(kafka, "g", [("t", 0, 5), ("t", 2, 6)], metadata="nöte")
    assert await fetch_rows(kafka, "g", [("t", [0, 1, 2, 9]), ("none", [0])], version) == {
        ("t", 0): (5, "nöte"),
        ("t", 1): (-1, ""),
        ("t", 2): (6, "nöte"),
        ("t", 9): (-1, ""),
        ("none", 0): (-1, ""),
    }
    assert await fetch(kafka, "unknown", [("t", [0])], version) == {("t", 0): -1}
    if version >= 2:
        assert await fetch(kafka, "g", None, version) == {("t", 0): 5, ("t", 2): 6}
        assert await fetch(kafka, "unknown", None, version) == {}
        assert await fetch(kafka, "g", [], version) == {}


async def test_several_groups_at_once(kafka: Kafka, topic: str) -> None:
    await commit(kafka, "g", [("t", 0, 5)])
    await commit(kafka, "h", [("t", 0, 6)])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in ("g", "h", "unknown")], require_stable=True
    )
    answer = await kafka.call(request, 8)
    assert [
        (group.group_id, [row.committed_offset for topic in group.topics for row in topic.partitions]) for group in answer.groups
    ] == [
        ("g", [5]),
        ("h", [6]),
        ("unknown", []),
    ]


async def test_delete_positions(kafka: Kafka, topic: str) -> None:
    await commit(kafka, "g", [("t", 0, 5), ("t", 1, 6)])
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=row) for row in (0, 3, 4)]),
            OffsetDeleteRequestTopic(name="none", partitions=[OffsetDeleteRequestPartition(partition_index=0)]),
        ],
    )
    answer = await kafka.call(request, 0)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.error_code == 0
    assert [row.error_code for one in answer.topics for row in one.partitions] == [0, 0, unknown, unknown]
    assert await fetch(kafka, "g", None, 9) == {("t", 1): 6}
    request.group_id = "unknown"
    assert (await kafka.call(request, 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# -- groups as a whole


@pytest.mark.parametrize("version", versions("DeleteGroups"))
async def test_delete_groups(kafka: Kafka, topic: str, version: int) -> None:
    await stable(kafka, "full")
    await commit(kafka, "empty", [("t", 0, 5)])
    answer = await kafka.call(DeleteGroupsRequest(groups_names=["full", "empty", "unknown", "empty"]), version)
    assert [(row.group_id, row.error_code) for row in answer.results] == [
        ("full", ErrorCode.NON_EMPTY_GROUP),
        ("empty", 0),
        ("unknown", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert [row.group_id for row in kafka.groups.list_groups()] == ["full"]


@pytest.mark.parametrize("version", versions("ListGroups"))
async def test_list_groups(kafka: Kafka, topic: str, version: int) -> None:
    assert (await kafka.call(ListGroupsRequest(), version)).groups == []
    await stable(kafka, "full")
    await commit(kafka, "simple", [("t", 0, 5)])
    answer = await kafka.call(ListGroupsRequest(), version)
    assert sorted((row.group_id, row.protocol_type) for row in answer.groups) == [("full", "consumer"), ("simple", "")]
    if version >= 4:
        assert {row.group_id: row.group_state for row in answer.groups} == {"full": "Stable", "simple": "Empty"}
        only = await kafka.call(ListGroupsRequest(states_filter=["stAble", "Dead"]), version)
        assert [row.group_id for row in only.groups] == ["full"]
    if version >= 5:
        assert {row.group_type for row in answer.groups} == {"classic"}
        assert len((await kafka.call(ListGroupsRequest(types_filter=["Classic"]), version)).groups) == 2
        assert (await kafka.call(ListGroupsRequest(types_filter=["consumer"]), version)).groups == []


@pytest.mark.parametrize("version", versions("DescribeGroups"))
async def test_describe_groups(kafka: Kafka, version: int) -> None:
    member_id = await stable(kafka, "g")
    request = DescribeGroupsRequest(groups=["g", "unknown"], include_authorized_operations=version >= 3)
    known, unknown = (await kafka.call(request, version)).groups
    assert (known.error_code, known.group_state, known.protocol_type, known.protocol_data) == (0, "Stable", "consumer", "range")
    (member,) = known.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "test", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"topics", b"mine")
    assert unknown.group_state == "Dead" and unknown.members == []
    assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    if version >= 3:
        assert known.authorized_operations == 328


async def test_what_is_asked_for_again_and_again_is_answered_once(kafka: Kafka, topic: str) -> None:
    """Otherwise a request of a few bytes per group could ask for gigabytes of members and metadata."""
    await stable(kafka, "g")
    await commit(kafka, "p", [("t", 0, 5)])
    described = await kafka.call(DescribeGroupsRequest(groups=["g", "h", "g"]), 6)
    assert [group.group_id for group in described.groups] == ["g", "h"]
    everything = OffsetFetchRequestGroup(group_id="p", topics=None)
    fetched = await kafka.call(OffsetFetchRequest(groups=[everything] * 3), 8)
    assert [group.group_id for group in fetched.groups] == ["p"]
    twice = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 0])
    fetched = await kafka.call(OffsetFetchRequest(group_id="p", topics=[twice, twice]), 7)
    assert [row.committed_offset for row in fetched.topics[0].partitions] == [5]


# -- a coordinator that is not ready yet


async def test_answers_while_groups_are_loaded(kafka: Kafka, topic: str) -> None:
    kafka.groups._loaded = False
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await kafka.call(join_request("g", 9), 9)).error_code == loading
    assert (await kafka.call(SyncGroupRequest(group_id="g"), 5)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert (await kafka.call(HeartbeatRequest(group_id="g"), 4)).error_code == 0
    assert (await kafka.call(LeaveGroupRequest(group_id="g"), 5)).error_code == loading
    assert (await kafka.call(LeaveGroupRequest(group_id="g"), 1)).error_code == loading
    assert await commit(kafka, "g", [("t", 0, 1)]) == [loading]
    for version in versions("OffsetFetch"):
        if version >= 8:
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
            assert (await kafka.call(request, version)).groups[0].error_code == loading
        else:
            request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
            answer = await kafka.call(request, version)
            code = answer.error_code if version >= 2 else answer.topics[0].partitions[0].error_code
            assert code == loading and answer.topics[0].partitions[0].committed_offset == -1
    assert (await kafka.call(OffsetDeleteRequest(group_id="g"), 0)).error_code == loading
    assert (await kafka.call(DeleteGroupsRequest(groups_names=["g"]), 2)).results[0].error_code == loading
    assert (await kafka.call(ListGroupsRequest(), 5)).error_code == loading
    for version in versions("DescribeGroups"):
        (described,) = (await kafka.call(DescribeGroupsRequest(groups=["g"]), version)).groups
        assert described.error_code == loading
    kafka.groups._loaded = True


async def test_the_topic_of_positions_cannot_be_deleted_or_resized(kafka: Kafka, topic: str) -> None:
    await commit(kafka, "g", [("t", 0, 5)])
    name = "__consumer_offsets"
    (deleted,) = (await kafka.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 5)).responses
    grown = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=99, assignments=None)], timeout_ms=1000)
    (resized,) = (await kafka.call(grown, 3)).results
    assert deleted.error_code == resized.error_code == ErrorCode.POLICY_VIOLATION
    assert await fetch(kafka, "g", None, 9) == {("t", 0): 5}


async def test_ids_may_be_long(kafka: Kafka, topic: str) -> None:
    """300 characters are allowed, and so are 32,000: only a name that the protocol cannot carry is refused, and never by a
    crash."""
    for length in (300, 32_000):
        group = "g" * length
        member_id = await stable(kafka, group)
        assert await commit(kafka, group, [("t", 0, 1)], member_id=member_id, generation_id_or_member_epoch=1) == [0]
        assert len((await join(kafka, f"{length}", group_instance_id="i" * length)).member_id) < 300


async def test_two_members_meet(kafka: Kafka) -> None:
    leader = await stable(kafka, "g")
    newcomer = asyncio.create_task(join(kafka, "g"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (await kafka.call(HeartbeatRequest(group_id="g", member_id=leader, generation_id=1), 4)).error_code == (
        ErrorCode.REBALANCE_IN_PROGRESS
    )
    again = await kafka.call(join_request("g", 9, leader), 9)
    follower = await newcomer
    assert (again.generation_id, again.leader, len(again.members)) == (2, leader, 2)
    assert (follower.generation_id, follower.leader, follower.members) == (2, leader, [])
    waiting = asyncio.create_task(kafka.call(SyncGroupRequest(group_id="g", member_id=follower.member_id, generation_id=2), 4))
    shares = [SyncGroupRequestAssignment(member_id=row.member_id, assignment=row.member_id.encode()) for row in again.members]
    await kafka.call(SyncGroupRequest(group_id="g", member_id=leader, generation_id=2, assignments=shares), 4)
    assert (await waiting).assignment == follower.member_id.encode()
