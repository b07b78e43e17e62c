"""DescribeTransactions (65), version 0: the state of transactional ids, from their coordinator."""

from __future__ import annotations

from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import ErrorCode, error_code
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
        await context.transactions.confirm()
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
