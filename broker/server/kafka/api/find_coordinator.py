"""FindCoordinator (10), versions 0-6: which broker holds a group. Several keys at once from version 4.

A broker alone holds every group. It also stands in for the coordinator of transactions, so that a transactional producer comes as
far as InitProducerId and is told there that transactions are not served. Share groups (version 6) are INVALID_REQUEST.
"""

from __future__ import annotations

from broker.server.kafka.context import Context
from broker.server.kafka.errors import ErrorCode
from broker.server.kafka.shared import ID_UNKNOWN
from broker.wire.kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

KEYS_VERSION_MIN = 4
GROUP, TRANSACTION = 0, 1


async def handle(request: FindCoordinatorRequest, context: Context) -> FindCoordinatorResponse:
    known = request.key_type in (GROUP, TRANSACTION)
    code = ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    message = None if known else "coordinators of this kind are not served"
    node_id = context.engine.broker_id if known else ID_UNKNOWN
    host, port = (context.host, context.port) if known else ("", ID_UNKNOWN)
    if context.api_version < KEYS_VERSION_MIN:
        return FindCoordinatorResponse(error_code=code, error_message=message, node_id=node_id, host=host, port=port)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, error_code=code, error_message=message, node_id=node_id, host=host, port=port)
            for key in request.coordinator_keys
        ]
    )
