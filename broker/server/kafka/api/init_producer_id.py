"""InitProducerId (22), versions 0-5: an id for an idempotent producer, or the id and the next epoch for a transactional id.

A producer without a transactional id that sends its old id and epoch (version 3, KIP-360) gets a new id, as in Kafka. With one, it
continues with the next epoch if it was not fenced. While an earlier transaction of the id ends, the answer is
CONCURRENT_TRANSACTIONS; an open one is aborted first. FenceProducers of Kafka's admin is this request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.server.kafka.requests import fenced_code
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, TRANSACTION_REFUSED, made
from headgate.broker.transactions.coordinator import asked, expected_of
from headgate.broker.wire.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

FENCED_VERSION_MIN = 4


async def handle(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
    if (request.producer_id == ID_UNKNOWN) != (request.producer_epoch == ID_UNKNOWN) or request.transactional_id == "":
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return await _transactional(request, request.transactional_id, context)
    try:
        producer_id = await context.engine.allocate_producer_id()
    except HeadgateError as error:
        return _refused(error_code(error))
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _transactional(request: InitProducerIdRequest, transactional_id: str, context: Context) -> InitProducerIdResponse:
    coordinator, expected = context.transactions, expected_of(request.producer_id, request.producer_epoch)
    reply = await asked(lambda: coordinator.init(transactional_id, request.transaction_timeout_ms, expected))
    if reply.error is not None:
        return _refused(fenced_code(reply.error, context.api_version >= FENCED_VERSION_MIN))
    return InitProducerIdResponse(producer_id=reply.producer_id, producer_epoch=reply.epoch)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=ID_UNKNOWN, producer_epoch=ID_UNKNOWN)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights, name = asked.rights, request.transactional_id
    if name is not None and not rights.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, name):
        yield made(InitProducerIdResponse, error_code=TRANSACTION_REFUSED, producer_id=-1, producer_epoch=-1)
    elif name is None and not (rights.on_cluster(Operation.IDEMPOTENT_WRITE) or rights.may(Operation.WRITE, Resource.TOPIC, None)):
        yield made(InitProducerIdResponse, error_code=CLUSTER_REFUSED, producer_id=-1, producer_epoch=-1)
    else:
        yield None


API = Api(22, versions=(0, 5), flexible_from=2, request=InitProducerIdRequest, handle=handle, rule=rule)
