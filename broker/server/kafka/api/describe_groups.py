"""DescribeGroups (15), versions 0-6: state, protocol and members.

A group that does not exist is shown as `Dead`; from version 6 with GROUP_ID_NOT_FOUND (KIP-1043). All operations are authorized,
as in a Kafka without an authorizer. A group that occurs twice in the request is answered once; otherwise a small request could
ask for an answer of any size.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.groups.events import State
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.constants import GROUP_OPERATIONS, NO_OPERATIONS
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code, error_message
from headgate.broker.server.kafka.leads import find_group_doubt
from headgate.broker.server.kafka.rules import GROUP_REFUSED, TEXTS, limit, made
from headgate.broker.wire.kafka.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

NOT_FOUND_VERSION_MIN = MESSAGE_VERSION_MIN = 6


async def handle(request: DescribeGroupsRequest, context: Context) -> DescribeGroupsResponse:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
    each = context.turn.each
    doubt = await find_group_doubt(context)
    asked = {group_id: None async for group_id in each(request.groups)}
    return DescribeGroupsResponse(groups=[await _describe(group_id, context, operations, doubt) async for group_id in each(asked)])


async def _describe(group_id: str, context: Context, operations: int, doubt: HeadgateError | None) -> DescribedGroup:
    try:
        if doubt is not None:
            raise doubt
        group = context.groups.find(group_id)
    except HeadgateError as error:
        message = error_message(error) if context.api_version >= MESSAGE_VERSION_MIN else None
        return DescribedGroup(group_id=group_id, error_code=error_code(error), error_message=message)
    if group is None:
        unknown = DescribedGroup(group_id=group_id, group_state=State.DEAD.value, authorized_operations=operations)
        if context.api_version >= NOT_FOUND_VERSION_MIN:
            unknown.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            unknown.error_message = "group does not exist"
        return unknown
    shown = group.describe()
    return DescribedGroup(
        group_id=group_id,
        group_state=shown.state.value,
        protocol_type=shown.protocol_type,
        protocol_data=shown.protocol,
        authorized_operations=operations,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.subscription,
                member_assignment=member.assignment,
            )
            async for member in context.turn.each(shown.members)
        ],
    )


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    refused = await asked.drop(request.groups, asked.group(Operation.DESCRIBE))
    response = yield None
    await limit(response.groups, asked, "authorized_operations", Resource.GROUP, lambda row: row.group_id)
    text = TEXTS[GROUP_REFUSED] if asked.context.api_version >= MESSAGE_VERSION_MIN else None
    for name in refused:
        row = made(DescribedGroup, group_id=name, error_code=GROUP_REFUSED, error_message=text)
        response.groups.append(row)


API = Api(15, versions=(0, 6), flexible_from=5, request=DescribeGroupsRequest, handle=handle, rule=rule)
