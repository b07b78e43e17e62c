"""SyncGroup (14), versions 0-5: wait for the leader's assignment and get this member's part; the leader's own request brings it.

While groups are loaded the answer is REBALANCE_IN_PROGRESS, as in Kafka: old clients do not expect COORDINATOR_LOAD_IN_PROGRESS
here, and the right reaction is to join again. More assignments than a group may have members are INVALID_REQUEST.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.groups.events import Sync, SyncReply
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import ErrorCode, reason_code
from headgate.broker.server.kafka.rules import on_group
from headgate.broker.wire.kafka.messages.sync_group import SyncGroupRequest, SyncGroupResponse


async def handle(request: SyncGroupRequest, context: Context) -> SyncGroupResponse:
    if len(request.assignments) > context.settings.group_max_size:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_REQUEST)
    event = Sync(
        token=context.groups.token(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple((row.member_id, row.assignment) for row in request.assignments),
    )
    try:
        reply = await context.groups.sync(request.group_id, event)
    except HeadgateError as error:
        loading = error.reason is Reason.COORDINATOR_LOADING
        reply = SyncReply(error=Reason.REBALANCE_IN_PROGRESS if loading else error.reason)
    # The assignment of a whole group can be too large for one record; clients do not handle the exact error code.
    too_large = reply.error is Reason.MESSAGE_TOO_LARGE
    return SyncGroupResponse(
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR if too_large else reason_code(reply.error),
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )


API = Api(
    14,
    versions=(0, 5),
    flexible_from=4,
    request=SyncGroupRequest,
    handle=handle,
    rule=on_group(Operation.READ, SyncGroupResponse),
)
