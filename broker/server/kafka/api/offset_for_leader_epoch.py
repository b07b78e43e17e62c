"""OffsetForLeaderEpoch (23), versions 2-4: the end offset of a leader epoch (KIP-320).

Clients use it to find out that a log was cut while they were away. An unknown epoch is answered with epoch -1 and offset -1,
which is not an error.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import error_code
from headgate.broker.server.kafka.leads import check_leader_epoch, find_doubt
from headgate.broker.server.kafka.rules import on_partitions
from headgate.broker.wire.kafka.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


async def handle(request: OffsetForLeaderEpochRequest, context: Context) -> OffsetForLeaderEpochResponse:
    each = context.turn.each
    refusal = await find_doubt(context)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end(topic.topic, partition, context, refusal) async for partition in each(topic.partitions)],
            )
            async for topic in each(request.topics)
        ]
    )


def _end(topic: str, row: OffsetForLeaderPartition, context: Context, refusal: HeadgateError | None) -> EpochEndOffset:
    engine = context.engine
    try:
        log = engine.partition(engine.topic(topic), row.partition)
        check_leader_epoch(log, row.current_leader_epoch)
        if refusal is not None:
            raise refusal
    except HeadgateError as error:
        return EpochEndOffset(partition=row.partition, error_code=error_code(error))
    epoch, end_offset = engine.epoch_end(log, row.leader_epoch)
    return EpochEndOffset(partition=row.partition, leader_epoch=epoch, end_offset=end_offset)


API = Api(
    23,
    versions=(2, 4),
    flexible_from=4,
    request=OffsetForLeaderEpochRequest,
    handle=handle,
    rule=on_partitions(Operation.DESCRIBE, OffsetForLeaderTopicResult, EpochEndOffset, name="topic", number="partition"),
)
