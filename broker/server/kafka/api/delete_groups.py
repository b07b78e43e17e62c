"""DeleteGroups (42), versions 0-2: delete groups without members, and their positions."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import reason_code
from headgate.broker.server.kafka.rules import GROUP_REFUSED, made
from headgate.broker.wire.kafka.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(request: DeleteGroupsRequest, context: Context) -> DeleteGroupsResponse:
    response = DeleteGroupsResponse()
    asked = {group_id: None async for group_id in context.turn.each(request.groups_names)}
    async for group_id in context.turn.each(asked):
        reason: Reason | None
        try:
            reason = (await context.groups.delete_group(group_id)).error
        except HeadgateError as error:
            reason = error.reason
        response.results.append(DeletableGroupResult(group_id=group_id, error_code=reason_code(reason)))
    return response


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    refused = await asked.drop(request.groups_names, asked.group(Operation.DELETE))
    response = yield None
    for name in refused:
        response.results.append(made(DeletableGroupResult, group_id=name, error_code=GROUP_REFUSED))


API = Api(
    42,
    versions=(0, 2),
    flexible_from=2,
    request=DeleteGroupsRequest,
    handle=handle,
    rule=rule,
    act=lambda request: iter(request.groups_names),
)
