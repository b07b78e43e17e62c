"""Consumer groups, for monitoring and administration. Members join over Kafka's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.broker.client.cluster import ClusterClient
from headgate.broker.client.errors import from_message
from headgate.broker.client.types import OffsetAndTimestamp, Start, TopicPartition
from headgate.broker.runtime.errors import Reason
from headgate.broker.wire.grpc.headgate.v1 import groups_pb2
from headgate.broker.wire.grpc.methods import methods

GROUPS = methods(groups_pb2.DESCRIPTOR.services_by_name["Groups"])
ROWS_MAX = 5000
"""Positions of one request; a broker accepts twice as many."""


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
        return [_summary(row) for row in response.groups]

    async def describe_group(self, group_id: str) -> GroupDescription:
        """One group. Raises InvalidError(GROUP_ID_NOT_FOUND)."""
        return await self._cluster.again(lambda: self._describe_group(group_id))

    async def _describe_group(self, group_id: str) -> GroupDescription:
        response: groups_pb2.DescribeGroupsResponse = await self._cluster.call(
            GROUPS["DescribeGroups"], groups_pb2.DescribeGroupsRequest(ids=[group_id]), retry=True
        )
        row = response.groups[0]
        if row.HasField("error"):
            raise from_message(row.error)
        return GroupDescription(
            group=_summary(row.group),
            protocol=row.protocol,
            generation=row.generation,
            members=tuple(
                GroupMember(
                    id=member.id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    partitions=member.partitions,
                )
                for member in row.members
            ),
            positions=tuple(_position(position) for position in row.positions),
        )

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
            InvalidError: NON_EMPTY_GROUP; or of the first partition that cannot be set, when others may have been set.
        """
        rows = [
            groups_pb2.AlterPositionsRequest.Row(topic=place.topic, partition=place.partition, offset=offset)
            for place, offset in offsets.items()
        ]
        before: dict[TopicPartition, int | None] = {}
        for first in range(0, max(len(rows), 1), ROWS_MAX):  # without rows the group is still checked
            request = groups_pb2.AlterPositionsRequest(
                group=group_id, rows=rows[first : first + ROWS_MAX], validate_only=validate_only
            )
            await self._alter_positions(request, before)
        return before

    async def _alter_positions(self, request: groups_pb2.AlterPositionsRequest, before: dict[TopicPartition, int | None]) -> None:
        async def attempt() -> None:
            response: groups_pb2.AlterPositionsResponse = await self._cluster.call(GROUPS["AlterPositions"], request, retry=True)
            for row in response.results:
                if not row.HasField("error"):
                    # The positions before the first attempt that changed them.
                    before.setdefault(
                        TopicPartition(row.topic, row.partition), row.offset_before if row.HasField("offset_before") else None
                    )
            for row in response.results:
                if row.HasField("error"):
                    raise from_message(row.error)

        await self._cluster.again(attempt)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its positions. Raises InvalidError(GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP)."""
        request = groups_pb2.DeleteGroupRequest(id=group_id)
        await self._cluster.change(GROUPS["DeleteGroup"], request, already=Reason.GROUP_ID_NOT_FOUND)

    async def offsets(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Turn places into offsets, like `Admin.offsets`."""
        return await self._cluster.offsets(starts)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """Every partition of a topic. Raises InvalidError(UNKNOWN_TOPIC)."""
        view = await self._cluster.topic(topic, refresh=True)
        return [TopicPartition(topic, number) for number in range(len(view.leaders))]


def _summary(row: groups_pb2.Group) -> GroupSummary:
    return GroupSummary(
        id=row.id,
        state=row.state,
        protocol_type=row.protocol_type,
        members=row.members,
        positions=row.positions,
        lag_records=row.lag_records,
    )


def _position(row: groups_pb2.GroupPosition) -> GroupPosition:
    return GroupPosition(
        topic=row.topic,
        partition=row.partition,
        offset=row.offset if row.HasField("offset") else None,
        metadata=row.metadata,
        committed_ms=row.committed_ms,
        log_start=row.log_start,
        high_watermark=row.high_watermark,
        lag_records=row.lag_records if row.HasField("lag_records") else None,
        member_id=row.member_id,
    )
