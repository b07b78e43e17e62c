"""DescribeProducers (61), version 0: the idempotent producers of a partition, with the first offset of an open transaction.

Deviation: the epoch of the coordinator is not kept (-1); admins that abort a transaction then send -1 as well.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import error_code, error_message
from headgate.broker.server.kafka.leads import find_doubt
from headgate.broker.server.kafka.rules import on_partitions
from headgate.broker.wire.kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


async def handle(request: DescribeProducersRequest, context: Context) -> DescribeProducersResponse:
    wanted: dict[str, dict[int, None]] = {}
    each = context.turn.each
    async for topic in each(request.topics):
        rows = wanted.setdefault(topic.name, {})
        async for number in each(topic.partition_indexes):
            rows[number] = None
    doubt = await find_doubt(context)
    return DescribeProducersResponse(
        topics=[
            TopicResponse(name=name, partitions=[await _describe(name, number, context, doubt) async for number in each(numbers)])
            async for name, numbers in each(wanted.items())
        ]
    )


async def _describe(topic: str, number: int, context: Context, doubt: HeadgateError | None) -> PartitionResponse:
    try:
        log = context.engine.partition(context.engine.topic(topic), number)
        if doubt is not None:
            raise doubt
        if log.refusal is not None:
            raise log.refusal
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
                current_txn_start_offset=producer.transaction_start,
            )
            async for producer in context.turn.each(list(log.producers_state.infos()))
        ],
    )


API = Api(
    61,
    versions=(0, 0),
    flexible_from=0,
    request=DescribeProducersRequest,
    handle=handle,
    rule=on_partitions(Operation.READ, TopicResponse, PartitionResponse),
)
