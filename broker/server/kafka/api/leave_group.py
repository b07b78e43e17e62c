"""LeaveGroup (13), versions 0-5: members leave, and the others need not wait for the end of their sessions.

Before version 3 one member leaves, and its error is the response's own. From version 3 up to as many members as a group may have
leave, also static ones by their instance id (KIP-345).
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.groups.events import Leave, LeaveReply, Leaving
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import ErrorCode, reason_code
from headgate.broker.server.kafka.rules import on_group
from headgate.broker.wire.kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

MEMBERS_VERSION_MIN = 3


async def handle(request: LeaveGroupRequest, context: Context) -> LeaveGroupResponse:
    if len(request.members) > context.settings.group_max_size:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_REQUEST)
    several = context.api_version >= MEMBERS_VERSION_MIN
    members = tuple(Leaving(member_id=member.member_id, instance_id=member.group_instance_id) for member in request.members)
    event = Leave(token=context.groups.token(), members=members if several else (Leaving(member_id=request.member_id),))
    try:
        reply = await context.groups.leave(request.group_id, event)
    except HeadgateError as error:
        reply = LeaveReply(error=error.reason)
    if not several:
        reasons = [reply.error, *(reason for _, reason in reply.members)]
        return LeaveGroupResponse(error_code=reason_code(next(filter(None, reasons), None)))
    return LeaveGroupResponse(
        error_code=reason_code(reply.error),
        members=[
            MemberResponse(member_id=member.member_id, group_instance_id=member.instance_id, error_code=reason_code(reason))
            for member, reason in reply.members
        ],
    )


API = Api(
    13,
    versions=(0, 5),
    flexible_from=4,
    request=LeaveGroupRequest,
    handle=handle,
    rule=on_group(Operation.READ, LeaveGroupResponse),
)
