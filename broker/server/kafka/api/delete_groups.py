"""DeleteGroups (42), versions 0-2: delete groups without members, and their positions."""

from __future__ import annotations

from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import reason_code
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
