"""ListGroups (16), versions 0-5: every group, by state from version 4 and by type (classic or consumer) from version 5."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import error_code
from headgate.broker.wire.kafka.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


async def handle(request: ListGroupsRequest, context: Context) -> ListGroupsResponse:
    each = context.turn.each
    states = {state.lower() async for state in each(request.states_filter)}
    types = {type.lower() async for type in each(request.types_filter)}
    try:
        await context.groups.topic.confirm()
        return ListGroupsResponse(
            groups=[
                ListedGroup(
                    group_id=row.group_id, protocol_type=row.protocol_type, group_state=row.state.value, group_type=row.kind
                )
                async for row in each(context.groups.list_groups())
                if (not states or row.state.value.lower() in states) and (not types or row.kind in types)
            ]
        )
    except HeadgateError as error:
        return ListGroupsResponse(error_code=error_code(error))


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    response = yield None
    if not asked.rights.on_cluster(Operation.DESCRIBE):
        await asked.drop(response.groups, lambda row: asked.rights.on_group(Operation.DESCRIBE, row.group_id))


API = Api(16, versions=(0, 5), flexible_from=3, request=ListGroupsRequest, handle=handle, rule=rule)
