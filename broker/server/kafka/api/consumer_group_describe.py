"""ConsumerGroupDescribe (69), versions 0-1: state, members and assignments of consumer groups (KIP-848).

A group that does not exist, or is classic, is GROUP_ID_NOT_FOUND: tools then ask DescribeGroups. A group that occurs twice in the
request is answered once. All operations are authorized, as in a Kafka without an authorizer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.groups.assignors import Partition
from headgate.broker.groups.consumer_member import Holding, Identity
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.api.consumer_group_heartbeat import by_topic
from headgate.broker.server.kafka.constants import GROUP_OPERATIONS, NO_OPERATIONS
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code, error_message
from headgate.broker.server.kafka.leads import find_group_doubt
from headgate.broker.server.kafka.rules import GROUP_REFUSED, TOPIC_REFUSED, limit, made
from headgate.broker.wire.kafka.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def handle(request: ConsumerGroupDescribeRequest, context: Context) -> ConsumerGroupDescribeResponse:
    each = context.turn.each
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
    doubt = await find_group_doubt(context)
    asked = {group_id: None async for group_id in each(request.group_ids)}
    return ConsumerGroupDescribeResponse(
        groups=[await _describe(group_id, context, operations, doubt) async for group_id in each(asked)]
    )


async def _describe(group_id: str, context: Context, operations: int, doubt: HeadgateError | None) -> DescribedGroup:
    try:
        if doubt is not None:
            raise doubt
        shard = context.groups.look(group_id)
        group = None if shard is None else shard.find_consumer(group_id)
    except HeadgateError as error:
        return DescribedGroup(group_id=group_id, error_code=error_code(error), error_message=error_message(error))
    if group is None:
        message = f"there is no such consumer group. group=`{group_id}`"
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
    shown = group.describe()
    return DescribedGroup(
        group_id=group_id,
        group_state=shown.state.value,
        group_epoch=shown.epoch,
        assignment_epoch=shown.target_epoch,
        assignor_name=shown.assignor,
        members=[_member(context, *member) async for member in context.turn.each(shown.members)],
        authorized_operations=operations,
    )


def _member(context: Context, identity: Identity, holding: Holding, target: frozenset[Partition]) -> Member:
    return Member(
        member_id=identity.member_id,
        instance_id=identity.instance_id,
        rack_id=identity.rack_id,
        member_epoch=holding.epoch,
        client_id=identity.client_id,
        client_host=identity.client_host,
        subscribed_topic_names=sorted(identity.topics),
        subscribed_topic_regex=identity.pattern,
        assignment=_assignment(context, holding.assigned),
        target_assignment=_assignment(context, target),
        member_type=CONSUMER_MEMBER if identity.classic is None else CLASSIC_MEMBER,
    )


def _assignment(context: Context, partitions: frozenset[Partition]) -> Assignment:
    topics = context.engine.manifest.topics_by_id
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=numbers)
            for topic_id, numbers in by_topic(partitions).items()
            if topic_id in topics
        ]
    )


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    may = asked.topic(Operation.DESCRIBE)
    refused = await asked.drop(request.group_ids, asked.group(Operation.DESCRIBE))
    response = yield None
    rows: list[Message] = []
    async for group in asked.context.turn.each(response.groups):
        held = [partition.topic_name for member in group.members for partition in member.assignment.topic_partitions]
        named = [name for member in group.members for name in member.subscribed_topic_names]
        hidden = not all(map(may, dict.fromkeys((*held, *named))))
        rows.append(made(DescribedGroup, group_id=group.group_id, error_code=TOPIC_REFUSED) if hidden else group)
    response.groups = rows + [made(DescribedGroup, group_id=name, error_code=GROUP_REFUSED) for name in refused]
    await limit(response.groups, asked, "authorized_operations", Resource.GROUP, lambda row: row.group_id)


API = Api(69, versions=(0, 1), flexible_from=0, request=ConsumerGroupDescribeRequest, handle=handle, rule=rule)
