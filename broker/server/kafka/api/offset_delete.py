"""OffsetDelete (47), version 0: delete positions of topics that no member of the group reads."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, reason_code
from headgate.broker.server.kafka.requests import in_portions
from headgate.broker.server.kafka.rules import GROUP_REFUSED, TOPIC_REFUSED, made
from headgate.broker.wire.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(request: OffsetDeleteRequest, context: Context) -> OffsetDeleteResponse:
    response = OffsetDeleteResponse()
    rows: list[tuple[str, int]] = []
    results: list[OffsetDeleteResponsePartition] = []
    topics = context.engine.manifest.topics
    each = context.turn.each
    async for asked in each(request.topics):
        topic = topics.get(asked.name)
        answer = OffsetDeleteResponseTopic(name=asked.name)
        response.topics.append(answer)
        async for partition in each(asked.partitions):
            result = OffsetDeleteResponsePartition(partition_index=partition.partition_index)
            answer.partitions.append(result)
            if topic is None or not 0 <= partition.partition_index < topic.partitions:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                rows.append((asked.name, partition.partition_index))
                results.append(result)
    reply = await in_portions(context, rows, lambda portion: context.groups.delete_positions(request.group_id, portion))
    if reply.error is not None:
        return OffsetDeleteResponse(error_code=reason_code(reply.error))
    async for result, reason in each(zip(results, reply.errors, strict=True)):
        result.error_code = reason_code(reason)
    return response


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if not asked.rights.on_group(Operation.DELETE, request.group_id):
        yield made(OffsetDeleteResponse, error_code=GROUP_REFUSED)
        return
    refused = await asked.drop(request.topics, lambda row: asked.rights.on_topic(Operation.READ, row.name))
    response = yield None
    for topic in refused:
        rows = [
            made(OffsetDeleteResponsePartition, partition_index=partition.partition_index, error_code=TOPIC_REFUSED)
            for partition in topic.partitions
        ]
        response.topics.append(made(OffsetDeleteResponseTopic, name=topic.name, partitions=rows))


API = Api(47, versions=(0, 0), request=OffsetDeleteRequest, handle=handle, rule=rule, act=lambda request: iter((request.group_id,)))
