"""AddPartitionsToTxn (24), versions 0-5: partitions join a transaction, which begins with its first one.

Versions 0-3 come from producers, and name one transaction. Versions 4 and 5 come from brokers, and may only ask (`verify_only`).
If a topic of a transaction is unknown, none of its partitions is added: the others are OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.requests import fenced_code, unknown_topic_code
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, TOPIC_REFUSED, TRANSACTION_REFUSED, made
from headgate.broker.transactions.coordinator import asked
from headgate.broker.wire.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

BATCHED_VERSION_MIN = 4
FENCED_VERSION_MIN = 2


async def handle(request: AddPartitionsToTxnRequest, context: Context) -> AddPartitionsToTxnResponse:
    if context.api_version < BATCHED_VERSION_MIN:
        row = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _add(row, context))
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=await _add(transaction, context))
            async for transaction in context.turn.each(request.transactions)
        ]
    )


async def _add(transaction: AddPartitionsToTxnTransaction, context: Context) -> list[AddPartitionsToTxnTopicResult]:
    topics = context.engine.manifest.topics
    each = context.turn.each
    partitions: set[tuple[str, int]] = set()
    unknown: dict[tuple[str, int], ErrorCode] = {}
    async for asked_topic in each(transaction.topics):
        topic = topics.get(asked_topic.name)
        async for number in each(asked_topic.partitions):
            if topic is None:
                unknown[asked_topic.name, number] = unknown_topic_code(asked_topic.name)
            elif not 0 <= number < topic.partitions:
                unknown[asked_topic.name, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                partitions.add((asked_topic.name, number))
    if unknown:
        return [await _result(row, ErrorCode.OPERATION_NOT_ATTEMPTED, unknown, context) async for row in each(transaction.topics)]
    coordinator, wanted = context.transactions, frozenset(partitions)
    args = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, wanted
    if transaction.verify_only:
        reply = await asked(lambda: coordinator.verify_partitions(*args))
    else:
        version = 2 if context.api_version >= BATCHED_VERSION_MIN else 0
        reply = await asked(lambda: coordinator.add(*args, version=version))
    code = fenced_code(reply.error, context.api_version >= FENCED_VERSION_MIN)
    return [await _result(row, code, unknown, context) async for row in each(transaction.topics)]


async def _result(
    row: AddPartitionsToTxnTopic, code: ErrorCode, unknown: dict[tuple[str, int], ErrorCode], context: Context
) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=row.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=unknown.get((row.name, number), code))
            async for number in context.turn.each(row.partitions)
        ],
    )


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    if asked.context.api_version >= BATCHED_VERSION_MIN:
        if rights.on_cluster(Operation.CLUSTER_ACTION):
            yield None
        else:
            yield made(AddPartitionsToTxnResponse, error_code=CLUSTER_REFUSED)
        return
    topics = request.v3_and_below_topics
    if not rights.may_transact(request.v3_and_below_transactional_id):
        rows = [_refused_topic(topic, TRANSACTION_REFUSED) for topic in topics]
        yield made(AddPartitionsToTxnResponse, results_by_topic_v3_and_below=rows)
        return
    hidden = {topic.name for topic in topics if not rights.may_write(topic.name)}
    if hidden:  # none is added if one is refused
        not_tried = ErrorCode.OPERATION_NOT_ATTEMPTED
        rows = [_refused_topic(topic, TOPIC_REFUSED if topic.name in hidden else not_tried) for topic in topics]
        yield made(AddPartitionsToTxnResponse, results_by_topic_v3_and_below=rows)
        return
    yield None


def _refused_topic(topic: Message, code: ErrorCode) -> Message:
    rows = [
        made(AddPartitionsToTxnPartitionResult, partition_index=number, partition_error_code=code) for number in topic.partitions
    ]
    return made(AddPartitionsToTxnTopicResult, name=topic.name, results_by_partition=rows)


API = Api(24, versions=(0, 5), flexible_from=3, request=AddPartitionsToTxnRequest, handle=handle, rule=rule)
