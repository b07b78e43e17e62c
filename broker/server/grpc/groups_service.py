"""`headgate.v1.Groups`: consumer groups, their members, positions and lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from broker.cluster.groups.events import State
from broker.cluster.groups.member import CONSUMER_PROTOCOL
from broker.cluster.groups.shard import Commit, GroupListing
from broker.cluster.offsets import Position
from broker.engine.coordinator import Coordinator
from broker.engine.partition import PartitionLog
from broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from broker.server.grpc.errors import error_message
from broker.server.grpc.handlers import Context
from broker.server.grpc.shared import Shared
from broker.wire.grpc.headgate.v1 import groups_pb2
from broker.wire.kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from broker.wire.kafka.primitives import DecodeError

IDS_MAX = 1000
ROWS_MAX = 10_000
SLICE_GROUPS = 500
"""Groups of a list that are looked at before other work gets its turn."""


class GroupsService:
    """Looks at groups, and changes those without members."""

    def __init__(self, shared: Shared, groups: Coordinator) -> None:
        self._engine = shared.engine
        self._groups = groups

    async def list_groups(self, request: groups_pb2.ListGroupsRequest, context: Context) -> groups_pb2.ListGroupsResponse:
        response = groups_pb2.ListGroupsResponse()
        for number, row in enumerate(sorted(self._groups.list_groups())):
            response.groups.append(self._summary(row))
            if number % SLICE_GROUPS == SLICE_GROUPS - 1:
                await asyncio.sleep(0)
        return response

    async def describe_groups(
        self, request: groups_pb2.DescribeGroupsRequest, context: Context
    ) -> groups_pb2.DescribeGroupsResponse:
        if len(request.ids) > IDS_MAX:
            raise InvalidError(Reason.INVALID_REQUEST, f"too many ids. ids=`{len(request.ids)}` max=`{IDS_MAX}`")
        return groups_pb2.DescribeGroupsResponse(groups=[self._describe(group_id) for group_id in request.ids])

    async def alter_positions(
        self, request: groups_pb2.AlterPositionsRequest, context: Context
    ) -> groups_pb2.AlterPositionsResponse:
        if not request.group:
            raise InvalidError(Reason.INVALID_GROUP_ID, "group id is empty")
        if len(request.rows) > ROWS_MAX:
            raise InvalidError(Reason.INVALID_REQUEST, f"too many rows. rows=`{len(request.rows)}` max=`{ROWS_MAX}`")
        group = self._groups.find(request.group)
        if group is not None and group.state is not State.EMPTY:
            raise _has_members(request.group)
        response = groups_pb2.AlterPositionsResponse()
        positions: list[Position] = []
        accepted: list[groups_pb2.AlterPositionsResponse.Result] = []
        for row in request.rows:
            result = response.results.add(topic=row.topic, partition=row.partition)
            try:
                positions.append(self._position(row))
            except HeadgateError as error:
                result.error.CopyFrom(error_message(error))
                continue
            accepted.append(result)
            before = self._groups.position(request.group, row.topic, row.partition)
            if before is not None:
                result.offset_before = before.offset
        if request.validate_only or not positions:
            return response
        reply = await self._groups.commit(request.group, Commit(token=self._groups.token(), positions=tuple(positions)))
        if reply.error is not None:
            # Somebody joined meanwhile.
            raise _has_members(request.group) if reply.error is Reason.UNKNOWN_MEMBER_ID else _failed(reply.error)
        for result, reason in zip(accepted, reply.errors, strict=True):
            if reason is not None:
                result.error.CopyFrom(error_message(_failed(reason)))
        return response

    async def delete_group(self, request: groups_pb2.DeleteGroupRequest, context: Context) -> groups_pb2.DeleteGroupResponse:
        match (await self._groups.delete_group(request.id)).error:
            case None:
                return groups_pb2.DeleteGroupResponse()
            case Reason.GROUP_ID_NOT_FOUND:
                raise _unknown(request.id)
            case Reason.NON_EMPTY_GROUP:
                raise _has_members(request.id)
            case reason:
                raise _failed(reason)

    # -- the small steps

    def _summary(self, group: GroupListing) -> groups_pb2.Group:
        rows = self._groups.positions(group.group_id)
        lags = (self._groups.lag(topic, partition, value.offset) for topic, partition, value in rows)
        return groups_pb2.Group(
            id=group.group_id,
            state=group.state.value,
            protocol_type=group.protocol_type,
            members=group.members,
            positions=len(rows),
            lag_records=sum(lag or 0 for lag in lags),
        )

    def _describe(self, group_id: str) -> groups_pb2.GroupDescription:
        try:
            group = self._groups.find(group_id)
            if group is None:
                raise _unknown(group_id)
        except HeadgateError as error:
            return groups_pb2.GroupDescription(group=groups_pb2.Group(id=group_id), error=error_message(error))
        shown = group.describe()
        description = groups_pb2.GroupDescription(
            group=self._summary(GroupListing(group_id, shown.protocol_type, shown.state, len(shown.members))),
            protocol=shown.protocol,
            generation=group.generation,
        )
        owners: dict[tuple[str, int], str] = {}
        for member in shown.members:
            owned = list(_owned(member.assignment)) if shown.protocol_type == CONSUMER_PROTOCOL else []
            owners.update((place, member.member_id) for place in owned)
            description.members.add(
                id=member.member_id,
                instance_id=member.instance_id or "",
                client_id=member.client_id,
                client_host=member.client_host.removeprefix("/"),
                partitions=len(owned),
            )
        committed = {(topic, partition): value for topic, partition, value in self._groups.positions(group_id)}
        for topic, partition in sorted(committed.keys() | owners.keys()):
            log = self._log(topic, partition)
            if log is None:
                continue
            row = description.positions.add(
                topic=topic,
                partition=partition,
                leader_epoch=-1,
                log_start=log.log_start,
                high_watermark=log.high_watermark,
                member_id=owners.get((topic, partition), ""),
            )
            value = committed.get((topic, partition))
            if value is not None:
                row.offset, row.leader_epoch, row.metadata = value.offset, value.leader_epoch, value.metadata
                row.committed_ms = value.commit_ms
                row.lag_records = self._groups.lag(topic, partition, value.offset) or 0
        return description

    def _log(self, topic: str, partition: int) -> PartitionLog | None:
        """None where there is no such partition: a garbled assignment may name any."""
        logs = self._engine.logs.get(topic, ())
        return logs[partition] if 0 <= partition < len(logs) else None

    def _position(self, row: groups_pb2.AlterPositionsRequest.Row) -> Position:
        topic = self._engine.topic(row.topic)
        log = self._engine.partition(topic, row.partition)
        self._engine.check_range(log, row.offset)
        return Position(topic=topic.name, partition=row.partition, offset=row.offset, topic_id=topic.id)


def _owned(assignment: bytes) -> Iterator[tuple[str, int]]:
    """The partitions in a consumer's assignment; none where it cannot be read. Every version begins like the first."""
    if len(assignment) <= 2:
        return
    try:
        decoded, _ = ConsumerProtocolAssignment.decode(assignment, 2, 0)
    except DecodeError:
        return
    for topic in decoded.assigned_partitions:
        for partition in topic.partitions:
            yield topic.topic, partition


def _unknown(group_id: str) -> InvalidError:
    return InvalidError(Reason.GROUP_ID_NOT_FOUND, f"group does not exist. group=`{group_id}`")


def _has_members(group_id: str) -> InvalidError:
    return InvalidError(Reason.NON_EMPTY_GROUP, f"group has members: stop them first. group=`{group_id}`")


def _failed(reason: Reason) -> HeadgateError:
    return RetryError(reason, f"group's record could not be stored. reason=`{reason.value}`")
