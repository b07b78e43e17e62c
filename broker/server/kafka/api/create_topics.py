"""CreateTopics (19), versions 2-7.

- -1 partitions means the broker's `num_partitions`. A topic that occurs twice in the request is INVALID_REQUEST, once for both.
- A manual assignment must name partitions from 0 on and existing brokers, and leaves both counts at -1, as in Kafka.
- POLICY_VIOLATION: the cluster would have more than `partitions_max` partitions.

Deviations: the store makes the copies, so a replication factor of 1 to 10 is accepted with any number of brokers; -1 means 1. The
topic keeps the number only for clients, see `Replicas`. A manual assignment is checked, and only the number of its replicas is
kept: the cluster chooses the leads.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.topics import NewTopic
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.audited import rows
from headgate.broker.server.kafka.configs import topic_entries
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import error_code, error_message
from headgate.broker.server.kafka.requests import check_assignment, repeated
from headgate.broker.server.kafka.rules import TOPIC_REFUSED, made
from headgate.broker.wire.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headgate.broker.wire.kafka.primitives import ZERO_UUID

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Topic

DEFAULT = -1
REPLICATION_FACTOR_MAX = 10
"""Largest replication factor. Each answer about a partition names that many brokers, twice. Kafka's limit is the number of
brokers, and 3 is usual."""


async def handle(request: CreateTopicsRequest, context: Context) -> CreateTopicsResponse:
    each = context.turn.each
    twice = await repeated(context, (topic.name for topic in request.topics))
    results: dict[str, Topic | HeadgateError | None] = {}
    asked: dict[str, NewTopic] = {}
    async for topic in each(request.topics):
        results[topic.name] = None
        try:
            if topic.name in twice:
                raise InvalidError(Reason.INVALID_REQUEST, f"topic is in the request more than once. topic=`{topic.name}`")
            asked[topic.name] = await _asked(topic, context)
        except InvalidError as error:
            results[topic.name] = error
    created = await context.engine.create_topics(list(asked.values()), validate_only=request.validate_only)
    results.update(zip(asked, created, strict=True))
    response = CreateTopicsResponse()
    async for name, outcome in each(results.items()):
        if isinstance(outcome, HeadgateError):
            result = CreatableTopicResult(name=name, error_code=error_code(outcome), error_message=error_message(outcome))
        else:
            assert outcome is not None, "each was created or refused"
            result = _created(outcome, request.validate_only, context)
        response.topics.append(result)
    return response


async def _asked(row: CreatableTopic, context: Context) -> NewTopic:
    partitions: int | None = row.num_partitions
    replication_factor = max(row.replication_factor, 1)
    if row.assignments:
        partitions = await _assigned(row, context)
        replication_factor = len(row.assignments[0].broker_ids)
    elif row.replication_factor < 1 and row.replication_factor != DEFAULT:
        raise InvalidError(
            Reason.INVALID_REPLICATION_FACTOR,
            f"replication factor must be -1 or at least 1. replication_factor=`{row.replication_factor}`",
        )
    elif partitions == DEFAULT:
        partitions = None
    if replication_factor > REPLICATION_FACTOR_MAX:
        raise InvalidError(
            Reason.INVALID_REPLICATION_FACTOR,
            f"replication factor is too large. replication_factor=`{replication_factor}` max=`{REPLICATION_FACTOR_MAX}`",
        )
    config: dict[str, str] = {}
    async for entry in context.turn.each(row.configs):
        if entry.value is None:
            raise InvalidError(Reason.INVALID_CONFIG, f"config of a new topic has no value. key=`{entry.name[:100]}`")
        config[entry.name] = entry.value
    return NewTopic(row.name, partitions, config, replication_factor)


async def _assigned(row: CreatableTopic, context: Context) -> int:
    """The number of partitions in a manual assignment."""
    if row.replication_factor != DEFAULT or row.num_partitions != DEFAULT:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "a manual assignment leaves replication factor and number of partitions at -1. "
            f"replication_factor=`{row.replication_factor}` partitions=`{row.num_partitions}`",
        )
    numbers = sorted(assignment.partition_index for assignment in row.assignments)
    if numbers != list(range(len(numbers))):
        raise InvalidError(Reason.INVALID_REPLICA_ASSIGNMENT, "manual assignment does not have each partition from 0 on once")
    brokers = {broker.broker_id for broker in context.engine.brokers()}
    async for assignment in context.turn.each(row.assignments):
        check_assignment(brokers, assignment.broker_ids)
    return len(numbers)


def _created(topic: Topic, validate_only: bool, context: Context) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        error_message=None,
        topic_id=ZERO_UUID if validate_only else topic.id,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[
            CreatableTopicConfigs(name=entry.name, value=entry.value, config_source=entry.source)
            for entry in topic_entries(topic, context)
        ],
    )


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    refused = await asked.drop(
        request.topics, lambda row: rights.on_cluster(Operation.CREATE) or rights.on_topic(Operation.CREATE, row.name)
    )
    response = yield None
    async for topic in asked.context.turn.each(response.topics):
        if not topic.error_code and not rights.on_topic(Operation.DESCRIBE_CONFIGS, topic.name):
            topic.topic_config_error_code, topic.configs = TOPIC_REFUSED, None
            topic.num_partitions = topic.replication_factor = -1
    for row in refused:
        response.topics.append(made(CreatableTopicResult, name=row.name, error_code=TOPIC_REFUSED))


API = Api(19, versions=(2, 7), flexible_from=5, request=CreateTopicsRequest, handle=handle, rule=rule, act=rows("topics"))
