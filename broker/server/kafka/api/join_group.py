"""JoinGroup (11), versions 0-9: become a member of a group, and wait until its next generation begins.

Changes by version: 1 has a separate rebalance time-out, 4 gives a new member its id first (KIP-394), 5 has static members
(KIP-345), 7 returns the protocol's type, 9 lets a static leader skip the assignment (KIP-814). The rules are in
`groups/group.py`.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.groups.events import Join, JoinReply
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import ErrorCode, reason_code
from headgate.broker.server.kafka.rules import on_group
from headgate.broker.wire.kafka.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

REBALANCE_TIMEOUT_VERSION_MIN = 1
MEMBER_ID_REQUIRED_VERSION_MIN = 4
NULL_PROTOCOL_VERSION_MIN = 7
SKIP_ASSIGNMENT_VERSION_MIN = 9

PROTOCOLS_MAX = 100
"""Assignors that one member may name. A group compares the assignors of all members in one turn of the loop; clients have three
or four."""


async def handle(request: JoinGroupRequest, context: Context) -> JoinGroupResponse:
    groups, version = context.groups, context.api_version
    if len(request.protocols) > PROTOCOLS_MAX:
        return JoinGroupResponse(error_code=ErrorCode.INVALID_REQUEST, member_id=request.member_id)
    client_id = context.client_id or ""
    has_rebalance_timeout = version >= REBALANCE_TIMEOUT_VERSION_MIN
    event = Join(
        token=groups.token(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        fresh_member_id=groups.fresh_member_id(client_id if request.group_instance_id is None else request.group_instance_id),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms,
        client_id=client_id,
        client_host=f"/{context.client_host}",
        require_member_id=version >= MEMBER_ID_REQUIRED_VERSION_MIN,
        can_skip_assignment=version >= SKIP_ASSIGNMENT_VERSION_MIN,
    )
    try:
        reply = await groups.join(request.group_id, event)
    except HeadgateError as error:
        reply = JoinReply(error=error.reason, member_id=request.member_id)
    return JoinGroupResponse(
        error_code=reason_code(reply.error),
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name if version >= NULL_PROTOCOL_VERSION_MIN else reply.protocol_name or "",
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponseMember(member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata)
            for member in reply.members
        ],
    )


API = Api(
    11,
    versions=(0, 9),
    flexible_from=6,
    request=JoinGroupRequest,
    handle=handle,
    rule=on_group(Operation.READ, JoinGroupResponse, protocol_name=""),
)
