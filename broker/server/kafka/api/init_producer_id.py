"""InitProducerId (22), versions 0-5: an id for an idempotent producer.

A producer that sends its old id and epoch (version 3, KIP-360) gets a new id, as in Kafka without a transactional id.

Deviation: transactions are not served. A transactional id is refused with the error of find_coordinator.py: a producer id for it
would promise atomic transactions.
"""

from __future__ import annotations

from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.wire.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def handle(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if request.transactional_id else ErrorCode.INVALID_REQUEST
        return _refused(code)
    if (request.producer_id == ID_UNKNOWN) != (request.producer_epoch == ID_UNKNOWN):
        return _refused(ErrorCode.INVALID_REQUEST)
    try:
        producer_id = await context.engine.allocate_producer_id()
    except HeadgateError as error:
        return _refused(error_code(error))
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=ID_UNKNOWN, producer_epoch=ID_UNKNOWN)
