"""DescribeTransactions (65), version 0: the state of transactional ids, from their coordinator."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.server.kafka.rules import TRANSACTION_REFUSED, made
from headgate.broker.transactions.records import by_topic
from headgate.broker.wire.kafka.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


async def handle(request: DescribeTransactionsRequest, context: Context) -> DescribeTransactionsResponse:
    doubt: HeadgateError | None = None
    try:
        await context.transactions.topic.confirm()
    except HeadgateError as error:
        doubt = error
    each = context.turn.each
    ids = {transactional_id: None async for transactional_id in each(request.transactional_ids)}
    return DescribeTransactionsResponse(
        transaction_states=[await _describe(transactional_id, context, doubt) async for transactional_id in each(ids)]
    )


async def _describe(transactional_id: str, context: Context, doubt: HeadgateError | None) -> TransactionState:
    try:
        if doubt is not None:
            raise doubt
        known = context.transactions.find(transactional_id) if transactional_id else None
    except HeadgateError as error:
        return _refused(transactional_id, error_code(error))
    if not transactional_id:
        return _refused(transactional_id, ErrorCode.INVALID_REQUEST)
    if known is None:
        return _refused(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=known.state.shown,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.start_ms,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        topics=[
            TopicData(topic=topic, partitions=numbers)
            async for topic, numbers in context.turn.each(by_topic(known.partitions).items())
        ],
    )


def _refused(transactional_id: str, code: ErrorCode) -> TransactionState:
    return TransactionState(error_code=code, transactional_id=transactional_id, producer_id=ID_UNKNOWN, producer_epoch=ID_UNKNOWN)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    refused = await asked.drop(request.transactional_ids, lambda row: _describes(asked, row))
    response = yield None
    for state in response.transaction_states:
        await asked.drop(state.topics, lambda topic: asked.rights.on_topic(Operation.DESCRIBE, topic.topic))
    for one in refused:
        row = made(TransactionState, transactional_id=one, error_code=TRANSACTION_REFUSED)
        response.transaction_states.append(row)


def _describes(asked: Asked, transactional_id: str) -> bool:
    return asked.rights.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id)


API = Api(65, versions=(0, 0), flexible_from=0, request=DescribeTransactionsRequest, handle=handle, rule=rule)
