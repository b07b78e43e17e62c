"""Heartbeat (12), versions 0-4: a member reports that it is alive, and asks whether its group rebalances.

While groups are loaded the answer is NONE, as in Kafka: the member then keeps its state.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.groups.events import Heartbeat
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import reason_code
from headgate.broker.server.kafka.rules import on_group
from headgate.broker.wire.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(request: HeartbeatRequest, context: Context) -> HeartbeatResponse:
    event = Heartbeat(
        token=context.groups.token(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
    )
    try:
        reason = (await context.groups.heartbeat(request.group_id, event)).error
    except HeadgateError as error:
        reason = None if error.reason is Reason.COORDINATOR_LOADING else error.reason
    return HeartbeatResponse(error_code=reason_code(reason))


API = Api(
    12,
    versions=(0, 4),
    flexible_from=4,
    request=HeartbeatRequest,
    handle=handle,
    rule=on_group(Operation.READ, HeartbeatResponse),
)
