"""DescribeTopicPartitions (75), version 0: topics page by page (KIP-966).

Topics are answered in the order of their names. A page ends with a cursor once it has `response_partition_limit` partitions (1
to 2000, as in Kafka). Topics that do not exist are answered with their error and do not count.

Deviation: all replicas that a partition shows (see `Replicas`) are in sync, so the lists of eligible replicas are empty.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.server.kafka.constants import TOPIC_OPERATIONS
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.leads import Replicas, lead_of
from headgate.broker.server.kafka.requests import unknown_topic_code
from headgate.broker.server.kafka.rules import TOPIC_REFUSED, limit, made
from headgate.broker.wire.kafka.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Topic

PARTITIONS_MAX = 2000


async def handle(request: DescribeTopicPartitionsRequest, context: Context) -> DescribeTopicPartitionsResponse:
    engine = context.engine
    cursor = request.cursor
    each = context.turn.each
    asked = {topic.name async for topic in each(request.topics)}
    names = sorted(asked or {topic.name async for topic in each(engine.topics())})
    response = DescribeTopicPartitionsResponse()
    if cursor is not None and cursor.partition_index < 0:
        response.topics = [
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=name) async for name in each(names)
        ]
        return response
    replicas = Replicas(broker.broker_id for broker in engine.brokers())
    room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    async for name in each(names):
        first = 0
        if cursor is not None:
            if name < cursor.topic_name:
                continue
            first = cursor.partition_index if name == cursor.topic_name else 0
        try:
            topic = engine.topic(name)
        except InvalidError:
            response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=unknown_topic_code(name), name=name))
            continue
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        end = min(topic.partitions, first + room)
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.id,
                is_internal=is_internal(name),
                partitions=[_partition(topic, number, replicas, context) async for number in each(range(first, end))],
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        room -= max(0, end - first)
        if end < topic.partitions:
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    return response


def _partition(topic: Topic, number: int, replicas: Replicas, context: Context) -> DescribeTopicPartitionsResponsePartition:
    code, broker_id, epoch = lead_of(topic, number, context)
    shown = [] if code else replicas.of(broker_id, topic.replication_factor)
    return DescribeTopicPartitionsResponsePartition(
        error_code=code,
        partition_index=number,
        leader_id=broker_id,
        leader_epoch=epoch,
        replica_nodes=shown,
        isr_nodes=shown,
        eligible_leader_replicas=[],
        last_known_elr=[],
    )


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    everything = not request.topics
    refused = await asked.drop(request.topics, lambda row: rights.on_topic(Operation.DESCRIBE, row.name))
    nothing_left = bool(refused) and not request.topics
    if nothing_left:
        yield made(DescribeTopicPartitionsResponse, topics=[_hidden_topic(row) for row in refused])
        return
    response = yield None
    if everything:
        await asked.drop(response.topics, lambda row: rights.on_topic(Operation.DESCRIBE, row.name))
    response.topics += [_hidden_topic(row) for row in refused]
    await limit(response.topics, asked, "topic_authorized_operations", Resource.TOPIC, lambda row: row.name or "")


def _hidden_topic(row: Message) -> Message:
    return made(DescribeTopicPartitionsResponseTopic, error_code=TOPIC_REFUSED, name=row.name)


API = Api(75, versions=(0, 0), flexible_from=0, request=DescribeTopicPartitionsRequest, handle=handle, rule=rule)
