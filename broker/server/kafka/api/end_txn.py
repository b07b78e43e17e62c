"""EndTxn (26), versions 0-5: commit or abort a transaction. Answered when the outcome is durable; the markers follow.

With version 5 each end of a transaction begins a new epoch (KIP-890), and the answer has it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.requests import fenced_code
from headgate.broker.server.kafka.rules import TRANSACTION_REFUSED, made
from headgate.broker.transactions.coordinator import asked
from headgate.broker.wire.kafka.messages.end_txn import EndTxnRequest, EndTxnResponse

FENCED_VERSION_MIN = 2
EPOCHS_VERSION_MIN = 5


async def handle(request: EndTxnRequest, context: Context) -> EndTxnResponse:
    coordinator = context.transactions
    version = 2 if context.api_version >= EPOCHS_VERSION_MIN else 0
    reply = await asked(
        lambda: coordinator.end(
            request.transactional_id, request.producer_id, request.producer_epoch, commit=request.committed, version=version
        )
    )
    code = fenced_code(reply.error, context.api_version >= FENCED_VERSION_MIN)
    if version < 2:
        return EndTxnResponse(error_code=code)
    return EndTxnResponse(error_code=code, producer_id=reply.producer_id, producer_epoch=reply.epoch)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.may_transact(request.transactional_id):
        yield None
    else:
        yield made(EndTxnResponse, error_code=TRANSACTION_REFUSED)


API = Api(26, versions=(0, 5), flexible_from=3, request=EndTxnRequest, handle=handle, rule=rule)
