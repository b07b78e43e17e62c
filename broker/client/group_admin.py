"""Consumer groups, for monitoring and administration. Members join over Kafka's protocol; changes are its requests, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headgate.broker.client import kafka
from headgate.broker.client.cluster import ADMIN, ClusterClient
from headgate.broker.client.errors import from_message
from headgate.broker.client.rows import from_row, from_rows
from headgate.broker.client.types import OffsetAndTimestamp, Start, TopicPartition
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, groups_pb2
from headgate.broker.wire.grpc.methods import methods
from headgate.broker.wire.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headgate.broker.wire.kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headgate.broker.wire.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

GROUPS = methods(groups_pb2.DESCRIPTOR.services_by_name["Groups"])
ROWS_MAX = 5000
"""Positions of one request, of about 20 bytes each."""
TOPICS_MAX = 1000
"""Topics of one question."""
DESCRIBED_MAX = 100
"""Groups of one question. The answer has all their positions."""
GROUP = 0
"""Kafka's number for the coordinators of groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A group in a list. `protocol_type` is empty if no member ever joined; `lag_records` is the sum over its `positions`."""

    id: str
    state: str
    protocol_type: str
    members: int
    positions: int
    lag_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member. `instance_id` is empty for a dynamic member; `partitions` is the number that it owns."""

    id: str
    instance_id: str
    client_id: str
    client_host: str
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """A group's position in a partition. `offset` is the next record to read; it and `lag_records` are None without a commit.
    `member_id` owns the partition; empty: no member does. When the partition's lead does not answer, the ends are -1 and
    `lag_records` is None."""

    topic: str
    partition: int
    offset: int | None
    metadata: str
    committed_ms: int
    log_start: int
    high_watermark: int
    lag_records: int | None
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """The description of one group: members in the order in which they joined, positions by topic and partition."""

    group: GroupSummary
    protocol: str
    generation: int
    members: tuple[GroupMember, ...]
    positions: tuple[GroupPosition, ...]


class GroupAdmin(ClusterClient):
    """Describes groups, and manages groups without members. An async context manager, as `Admin` is.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        timeout_ms: longest wait for one call, with its retries.

    Methods raise HeadgateError: InvalidError (GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, UNKNOWN_TOPIC, OFFSET_OUT_OF_RANGE) for a
    wrong request, RetryError when the cluster did not answer in time.
    """

    async def list_groups(self) -> list[GroupSummary]:
        """All groups, by id."""
        response: groups_pb2.ListGroupsResponse = await self._cluster.call(
            GROUPS["ListGroups"], groups_pb2.ListGroupsRequest(), retry=True
        )
        return list(from_rows(GroupSummary, response.groups))

    async def describe_group(self, group_id: str) -> GroupDescription:
        """One group. Raises InvalidError(GROUP_ID_NOT_FOUND)."""
        return await self._cluster.retry_until_timeout(lambda: self._describe_group(group_id))

    async def describe_groups(self, group_ids: Sequence[str]) -> list[GroupDescription]:
        """Many groups with few requests, in the order of `group_ids`. Groups that do not exist are left out."""
        found: list[GroupDescription] = []
        for at in range(0, len(group_ids), DESCRIBED_MAX):
            ids = group_ids[at : at + DESCRIBED_MAX]
            rows = await self._cluster.retry_until_timeout(partial(self._describe, ids, Reason.GROUP_ID_NOT_FOUND))
            found += [_description(row) for row in rows if not row.HasField("error")]
        return found

    async def _describe_group(self, group_id: str) -> GroupDescription:
        (row,) = await self._describe([group_id])
        return _description(row)

    async def _describe(self, group_ids: Sequence[str], no_error: Reason | None = None) -> Sequence[groups_pb2.GroupDescription]:
        """One row for each group. Raises the error of the first row that has another one than `no_error`."""
        response: groups_pb2.DescribeGroupsResponse = await self._cluster.call(
            GROUPS["DescribeGroups"], groups_pb2.DescribeGroupsRequest(ids=group_ids), retry=True
        )
        for row in response.groups:
            if row.HasField("error") and (error := from_message(row.error)).reason is not no_error:
                raise error
        return response.groups

    async def alter_positions(
        self, group_id: str, offsets: Mapping[TopicPartition, int], *, validate_only: bool = False
    ) -> dict[TopicPartition, int | None]:
        """Set positions of a group without members; an unknown group is created.

        Args:
            offsets: the next record to read, by partition; inside the readable range, its end included.
            validate_only: check, and change nothing.

        Returns:
            The positions before, by partition; None for a partition without one.

        Raises:
            InvalidError: NON_EMPTY_GROUP; or of the first partition that cannot be set.
        """
        if not group_id:
            raise InvalidError(Reason.INVALID_GROUP_ID, "group id is empty")
        before = await self._cluster.retry_until_timeout(lambda: self._before(group_id, offsets))
        places = [] if validate_only else list(offsets)
        for first in range(0, len(places), ROWS_MAX):
            rows = {place: offsets[place] for place in places[first : first + ROWS_MAX]}
            await self._cluster.retry_until_timeout(partial(self._commit, group_id, rows))
        return before

    async def _before(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The positions of a group without members. Raises InvalidError for one with members, and for offsets that do not exist."""
        known: dict[TopicPartition, int | None] = {}
        try:
            described = await self._describe_group(group_id)
        except InvalidError as error:
            if error.reason is not Reason.GROUP_ID_NOT_FOUND:
                raise
        else:
            if described.members:
                raise _has_members(group_id)
            known = {TopicPartition(row.topic, row.partition): row.offset for row in described.positions}
        await self._check(offsets)
        return {place: known.get(place) for place in offsets}

    async def _check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raise HeadgateError for the first offset that its partition does not have."""
        names = list(dict.fromkeys(place.topic for place in offsets))
        topics: dict[str, admin_pb2.TopicDescription] = {}
        for first in range(0, len(names), TOPICS_MAX):
            request = admin_pb2.DescribeTopicsRequest(names=names[first : first + TOPICS_MAX])
            response: admin_pb2.DescribeTopicsResponse = await self._cluster.call(ADMIN["DescribeTopics"], request, retry=True)
            topics.update((row.topic.name, row) for row in response.topics)
        for place, offset in offsets.items():
            row = topics[place.topic]
            where = f"topic=`{place.topic}` partition=`{place.partition}`"
            if row.HasField("error"):
                raise from_message(row.error)
            if not 0 <= place.partition < len(row.partitions):
                raise InvalidError(Reason.UNKNOWN_TOPIC, f"partition does not exist. {where}")
            part = row.partitions[place.partition]
            if part.high_watermark < 0:
                raise RetryError(Reason.NOT_LEADER, f"the partition's lead does not answer. {where}")
            if not part.log_start <= offset <= part.high_watermark:
                raise InvalidError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"offset is out of range. {where} offset=`{offset}` first=`{part.log_start}` end=`{part.high_watermark}`",
                )

    async def _commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for place, offset in offsets.items():
            row = OffsetCommitRequestPartition(partition_index=place.partition, committed_offset=offset, committed_metadata="")
            topics.setdefault(place.topic, OffsetCommitRequestTopic(name=place.topic)).partitions.append(row)
        request = OffsetCommitRequest(group_id=group_id, topics=list(topics.values()))

        def read(answer: OffsetCommitResponse) -> None:
            for topic in answer.topics:
                for row in topic.partitions:
                    if row.error_code == ErrorCode.UNKNOWN_MEMBER_ID:  # a member has joined meanwhile
                        raise _has_members(group_id)
                    where = f"group=`{group_id}` topic=`{topic.name}` partition=`{row.partition_index}`"
                    kafka.check(row.error_code, None, where)

        coordinator = await self._coordinator(group_id)
        await kafka.ask_broker(self._cluster, coordinator, request, OffsetCommitResponse, read)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its positions. Raises InvalidError(GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP)."""
        request = DeleteGroupsRequest(groups_names=[group_id])
        doubt = False

        async def attempt() -> None:
            nonlocal doubt
            coordinator = await self._coordinator(group_id)
            try:
                await kafka.ask_broker(self._cluster, coordinator, request, DeleteGroupsResponse, read)
            except RetryError as error:
                doubt = doubt or error.reason is not Reason.NOT_COORDINATOR
                raise

        def read(answer: DeleteGroupsResponse) -> None:
            code = answer.results[0].error_code
            if not (doubt and kafka.REASONS.get(code) is Reason.GROUP_ID_NOT_FOUND):
                kafka.check(code, None, f"group=`{group_id}`")

        await self._cluster.retry_until_timeout(attempt)

    async def _coordinator(self, group_id: str) -> int:
        """The id of the broker that holds the group."""
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=[group_id])
        read = kafka.first("coordinators", f"group=`{group_id}`")
        found: Coordinator = await kafka.ask(self._cluster, request, FindCoordinatorResponse, read)
        return found.node_id

    async def offsets(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Turn places into offsets, like `Admin.offsets`."""
        return await self._cluster.offsets(starts)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """Every partition of a topic. Raises InvalidError(UNKNOWN_TOPIC)."""
        view = await self._cluster.topic(topic, refresh=True)
        return [TopicPartition(topic, number) for number in range(len(view.leaders))]


def _has_members(group_id: str) -> InvalidError:
    return InvalidError(Reason.NON_EMPTY_GROUP, f"group has members: stop them first. group=`{group_id}`")


def _description(row: groups_pb2.GroupDescription) -> GroupDescription:
    return from_row(
        GroupDescription, row, group=from_row(GroupSummary, row.group), members=from_rows(GroupMember, row.members),
        positions=from_rows(GroupPosition, row.positions),
    )  # fmt: skip
