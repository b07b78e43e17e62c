"""AddOffsetsToTxn (25), versions 0-4: the positions of a group join a transaction. It adds the group's partition of
`__consumer_offsets`, as AddPartitionsToTxn would.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.server.kafka.requests import fenced_code
from headgate.broker.server.kafka.rules import GROUP_REFUSED, TRANSACTION_REFUSED, made
from headgate.broker.transactions.coordinator import asked
from headgate.broker.wire.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FENCED_VERSION_MIN = 2


async def handle(request: AddOffsetsToTxnRequest, context: Context) -> AddOffsetsToTxnResponse:
    if not request.group_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        partition = await context.groups.partition_of(request.group_id)
    except HeadgateError as error:
        return AddOffsetsToTxnResponse(error_code=error_code(error))
    coordinator = context.transactions
    reply = await asked(
        lambda: coordinator.add(
            request.transactional_id, request.producer_id, request.producer_epoch, frozenset([partition]), version=0
        )
    )
    return AddOffsetsToTxnResponse(error_code=fenced_code(reply.error, context.api_version >= FENCED_VERSION_MIN))


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if not asked.rights.may_transact(request.transactional_id):
        yield made(AddOffsetsToTxnResponse, error_code=TRANSACTION_REFUSED)
    elif not asked.rights.on_group(Operation.READ, request.group_id):
        yield made(AddOffsetsToTxnResponse, error_code=GROUP_REFUSED)
    else:
        yield None


API = Api(25, versions=(0, 4), flexible_from=3, request=AddOffsetsToTxnRequest, handle=handle, rule=rule)
