"""What the APIs of transactions need, as in Kafka 4 (KafkaApis); see `kafka_rules.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.server.access.asking import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    Asked,
    Message,
    Rule,
    made,
)
from headgate.broker.server.kafka.errors import ErrorCode

BATCHED_VERSION_MIN = 4
"""From this version on, brokers send AddPartitionsToTxn."""


def _describes(asked: Asked, transactional_id: str) -> bool:
    return asked.rights.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id)


async def _add_partitions(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    if asked.context.api_version >= BATCHED_VERSION_MIN:
        if rights.on_cluster(Operation.CLUSTER_ACTION):
            yield None
        else:
            yield made("add_partitions_to_txn", "AddPartitionsToTxnResponse", error_code=CLUSTER_REFUSED)
        return
    topics = request.v3_and_below_topics
    if not rights.may_transact(request.v3_and_below_transactional_id):
        rows = [_refused_topic(topic, TRANSACTION_REFUSED) for topic in topics]
        yield made("add_partitions_to_txn", "AddPartitionsToTxnResponse", results_by_topic_v3_and_below=rows)
        return
    hidden = {topic.name for topic in topics if not rights.may_write(topic.name)}
    if hidden:  # none is added if one is refused
        not_tried = ErrorCode.OPERATION_NOT_ATTEMPTED
        rows = [_refused_topic(topic, TOPIC_REFUSED if topic.name in hidden else not_tried) for topic in topics]
        yield made("add_partitions_to_txn", "AddPartitionsToTxnResponse", results_by_topic_v3_and_below=rows)
        return
    yield None


def _refused_topic(topic: Message, code: ErrorCode) -> Message:
    module = "add_partitions_to_txn"
    rows = [
        made(module, "AddPartitionsToTxnPartitionResult", partition_index=number, partition_error_code=code)
        for number in topic.partitions
    ]
    return made(module, "AddPartitionsToTxnTopicResult", name=topic.name, results_by_partition=rows)


async def _add_offsets(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if not asked.rights.may_transact(request.transactional_id):
        yield made("add_offsets_to_txn", "AddOffsetsToTxnResponse", error_code=TRANSACTION_REFUSED)
    elif not asked.rights.on_group(Operation.READ, request.group_id):
        yield made("add_offsets_to_txn", "AddOffsetsToTxnResponse", error_code=GROUP_REFUSED)
    else:
        yield None


async def _end(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.may_transact(request.transactional_id):
        yield None
    else:
        yield made("end_txn", "EndTxnResponse", error_code=TRANSACTION_REFUSED)


async def _write_markers(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights, module = asked.rights, "write_txn_markers"
    if rights.on_cluster(Operation.CLUSTER_ACTION) or rights.on_cluster(Operation.ALTER):
        yield None
        return
    markers = [
        made(
            module,
            "WritableTxnMarkerResult",
            producer_id=marker.producer_id,
            topics=[
                made(
                    module,
                    "WritableTxnMarkerTopicResult",
                    name=topic.name,
                    partitions=[
                        made(module, "WritableTxnMarkerPartitionResult", partition_index=number, error_code=CLUSTER_REFUSED)
                        for number in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ],
        )
        for marker in request.markers
    ]
    yield made(module, "WriteTxnMarkersResponse", markers=markers)


async def _commit_offsets(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    code = 0
    if not rights.may_transact(request.transactional_id):
        code = TRANSACTION_REFUSED
    elif not rights.on_group(Operation.READ, request.group_id):
        code = GROUP_REFUSED
    if code:
        yield made("txn_offset_commit", "TxnOffsetCommitResponse", topics=[_uncommitted(topic, code) for topic in request.topics])
        return
    refused = await asked.drop(request.topics, lambda topic: asked.on_named(Operation.READ, topic))
    response = yield None
    response.topics += [_uncommitted(topic, TOPIC_REFUSED) for topic in refused]


def _uncommitted(topic: Message, code: int) -> Message:
    module = "txn_offset_commit"
    rows = [
        made(module, "TxnOffsetCommitResponsePartition", partition_index=one.partition_index, error_code=code)
        for one in topic.partitions
    ]
    return made(module, "TxnOffsetCommitResponseTopic", name=topic.name, topic_id=topic.topic_id, partitions=rows)


async def _describe(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    refused = await asked.drop(request.transactional_ids, lambda one: _describes(asked, one))
    response = yield None
    for state in response.transaction_states:
        await asked.drop(state.topics, lambda topic: asked.rights.on_topic(Operation.DESCRIBE, topic.topic))
    for one in refused:
        row = made("describe_transactions", "TransactionState", transactional_id=one, error_code=TRANSACTION_REFUSED)
        response.transaction_states.append(row)


async def _list(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    response = yield None
    await asked.drop(response.transaction_states, lambda state: _describes(asked, state.transactional_id))


TRANSACTION_RULES: dict[int, Rule] = {
    24: _add_partitions,
    25: _add_offsets,
    26: _end,
    27: _write_markers,
    28: _commit_offsets,
    65: _describe,
    66: _list,
}
"""By API key."""
