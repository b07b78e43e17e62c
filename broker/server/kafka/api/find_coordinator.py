"""FindCoordinator (10), versions 0-6: the broker that coordinates a group or a transactional id. Several keys at once from version
4.

It is the lead of the key's partition of `__consumer_offsets` or `__transaction_state`. Until the first key creates that topic,
every broker names the leader of the cluster. Share groups (version 6) are INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.leads import broker_address
from headgate.broker.server.kafka.rules import GROUP_REFUSED, TRANSACTION_REFUSED, made
from headgate.broker.wire.kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

KEYS_VERSION_MIN = 4
GROUP, TRANSACTION = 0, 1


async def handle(request: FindCoordinatorRequest, context: Context) -> FindCoordinatorResponse:
    if context.api_version < KEYS_VERSION_MIN:
        coordinator = _find(request.key, request.key_type, context)
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )
    return FindCoordinatorResponse(
        coordinators=[_find(key, request.key_type, context) async for key in context.turn.each(request.coordinator_keys)]
    )


def _find(key: str, key_type: int, context: Context) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        context.unserved(f"coordinator of kind {key_type}")
        return _none(key, ErrorCode.INVALID_REQUEST, "coordinators of this kind are not served")
    holder = context.groups.topic.holder(key) if key_type == GROUP else context.transactions.topic.holder(key)
    if holder is None:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator's partition has no lead at the moment")
    host, port = broker_address(holder, context)
    return Coordinator(key=key, node_id=holder.broker_id, host=host, port=port)


def _none(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, error_code=code, error_message=message, node_id=ID_UNKNOWN, host="", port=ID_UNKNOWN)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    is_group = request.key_type == GROUP
    resource, code = (Resource.GROUP, GROUP_REFUSED) if is_group else (Resource.TRANSACTIONAL_ID, TRANSACTION_REFUSED)
    if asked.context.api_version < 4:
        if asked.rights.may(Operation.DESCRIBE, resource, request.key):
            yield None
        else:
            yield made(FindCoordinatorResponse, error_code=code, node_id=-1, host="", port=-1)
        return
    refused = await asked.drop(request.coordinator_keys, lambda key: asked.rights.may(Operation.DESCRIBE, resource, key))
    response = yield None
    for key in refused:
        row = made(Coordinator, key=key, error_code=code, node_id=-1, host="", port=-1)
        response.coordinators.append(row)


API = Api(10, versions=(0, 6), flexible_from=3, request=FindCoordinatorRequest, handle=handle, rule=rule)
