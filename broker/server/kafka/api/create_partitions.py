"""CreatePartitions (37), versions 0-3: more partitions for a topic.

Deviations: a manual assignment is checked and then not kept, as in CreateTopics. The number of partitions of an internal topic
cannot be changed (POLICY_VIOLATION): clients would look for groups in the wrong partitions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.audited import rows
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import error_code, error_message
from headgate.broker.server.kafka.requests import check_assignment, repeated
from headgate.broker.server.kafka.rules import TOPIC_REFUSED, made
from headgate.broker.wire.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(request: CreatePartitionsRequest, context: Context) -> CreatePartitionsResponse:
    response = CreatePartitionsResponse()
    each = context.turn.each
    twice = await repeated(context, (topic.name for topic in request.topics))
    topics = {topic.name: topic async for topic in each(request.topics)}
    async for name, row in each(topics.items()):
        result = CreatePartitionsTopicResult(name=name)
        response.results.append(result)
        try:
            if name in twice:
                raise InvalidError(Reason.INVALID_REQUEST, f"topic is in the request more than once. topic=`{name}`")
            await _create(row, request.validate_only, context)
        except HeadgateError as error:
            result.error_code = error_code(error)
            result.error_message = error_message(error)
    return response


async def _create(row: CreatePartitionsTopic, validate_only: bool, context: Context) -> None:
    engine = context.engine
    topic = engine.topic(row.name)
    if is_internal(topic.name):
        raise InvalidError(Reason.POLICY_VIOLATION, f"partitions of an internal topic cannot be changed. topic=`{topic.name}`")
    if row.assignments is not None and row.count > topic.partitions:
        added = row.count - topic.partitions
        if len(row.assignments) != added:
            raise InvalidError(
                Reason.INVALID_REPLICA_ASSIGNMENT,
                f"manual assignment does not fit. new_partitions=`{added}` assigned=`{len(row.assignments)}`",
            )
        brokers = {broker.broker_id for broker in engine.brokers()}
        async for assignment in context.turn.each(row.assignments):
            check_assignment(brokers, assignment.broker_ids)
    await engine.create_partitions(topic, row.count, validate_only=validate_only)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    refused = await asked.drop(request.topics, lambda row: asked.rights.on_topic(Operation.ALTER, row.name))
    response = yield None
    for row in refused:
        response.results.append(made(CreatePartitionsTopicResult, name=row.name, error_code=TOPIC_REFUSED))


API = Api(37, versions=(0, 3), flexible_from=2, request=CreatePartitionsRequest, handle=handle, rule=rule, act=rows("topics"))
