"""DescribeProducers (61), version 0: who writes to a partition with idempotence.

Deviation: transactions are not served, so no producer has a coordinator's epoch or a transaction's first offset (-1).
"""

from __future__ import annotations

from broker.runtime.errors import HeadgateError
from broker.server.kafka.context import Context
from broker.server.kafka.errors import error_code, error_message
from broker.server.kafka.shared import ID_UNKNOWN
from broker.wire.kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


async def handle(request: DescribeProducersRequest, context: Context) -> DescribeProducersResponse:
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=[
            TopicResponse(name=name, partitions=[_describe(name, number, context) for number in numbers])
            for name, numbers in wanted.items()
        ]
    )


def _describe(topic: str, number: int, context: Context) -> PartitionResponse:
    try:
        log = context.engine.partition(context.engine.topic(topic), number)
    except HeadgateError as error:
        return PartitionResponse(partition_index=number, error_code=error_code(error), error_message=error_message(error))
    return PartitionResponse(
        partition_index=number,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=ID_UNKNOWN,
                current_txn_start_offset=ID_UNKNOWN,
            )
            for producer in log.producers()
        ],
    )
