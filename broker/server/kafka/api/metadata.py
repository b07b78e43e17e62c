"""Metadata (3), versions 0-13: brokers, topics and the lead of every partition.

- Null asks for all topics, and in version 0 an empty array does. From version 1 an empty array means no topics.
- A topic that does not exist is created if both the client (from version 4; before it always) and `auto_create_topics` allow it.
  It is answered at once with its partitions; Kafka first answers with an error.
- Topics may be asked for by id from version 12. An id never creates a topic.

Deviations: the store makes the copies, so all replicas that a partition shows are in sync (see `Replicas`). Behind them stand the
lanes, if the topic has history, because clients go only to brokers among the replicas. DescribeTopicPartitions, which tools ask,
does not show lanes there. The answer names the cluster's leader as the controller, but every broker accepts every request for a
controller. All operations are authorized, as in a Kafka without an authorizer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.cluster.topics import NewTopic
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.constants import CLUSTER_OPERATIONS, NO_OPERATIONS, TOPIC_OPERATIONS
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.server.kafka.leads import Replicas, broker_address, lead_of
from headgate.broker.server.kafka.requests import unknown_topic_code
from headgate.broker.server.kafka.rules import TOPIC_REFUSED, limit, limit_cluster, made, may_see_id
from headgate.broker.wire.kafka.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headgate.broker.wire.kafka.primitives import ZERO_UUID

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Incarnation, Topic

ALL_IS_EMPTY_VERSION = 0
IDS_VERSION_MIN = 12


async def handle(request: MetadataRequest, context: Context) -> MetadataResponse:
    engine = context.engine
    brokers = engine.brokers()
    lanes = engine.lanes()
    replicas = Replicas((broker.broker_id for broker in brokers), [lane.broker_id for lane in lanes])
    response = MetadataResponse(
        brokers=[_broker(broker, context) for broker in [*brokers, *lanes]],
        cluster_id=engine.cluster_id,
        controller_id=engine.controller_id,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NO_OPERATIONS
    each = context.turn.each
    asked = request.topics
    if asked is None or (not asked and context.api_version == ALL_IS_EMPTY_VERSION):
        response.topics = [await _describe(topic, replicas, context, operations) async for topic in each(engine.topics())]
        return response
    if context.api_version < IDS_VERSION_MIN and any(row.name is None or row.topic_id != ZERO_UUID for row in asked):
        response.topics = [
            MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=row.name or "", topic_id=row.topic_id)
            async for row in each(asked)
        ]
        return response
    ids = {row.topic_id: None async for row in each(asked) if row.topic_id != ZERO_UUID}
    if ids:
        async for topic_id in each(ids):
            try:
                response.topics.append(await _describe(engine.topic_by_id(topic_id), replicas, context, operations))
            except InvalidError as error:
                response.topics.append(MetadataResponseTopic(error_code=error_code(error), name=None, topic_id=topic_id))
        return response
    names = {row.name or "": None async for row in each(asked)}
    refused: dict[str, HeadgateError] = {}
    if request.allow_auto_topic_creation and context.settings.auto_create_topics:
        refused = await _create([name async for name in each(names) if name not in engine.manifest.topics], context)
    async for name in each(names):
        topic = engine.manifest.topics.get(name)
        if topic is None:
            response.topics.append(MetadataResponseTopic(error_code=_code(name, refused.get(name)), name=name))
        else:
            response.topics.append(await _describe(topic, replicas, context, operations))
    return response


def _broker(broker: Incarnation, context: Context) -> MetadataResponseBroker:
    host, port = broker_address(broker, context)
    return MetadataResponseBroker(node_id=broker.broker_id, host=host, port=port, rack=broker.rack or None)


async def _create(names: list[str], context: Context) -> dict[str, HeadgateError]:
    """Create topics. Returns the errors by name, including those of topics that another client has created meanwhile."""
    created = await context.engine.create_topics([NewTopic(name) for name in names]) if names else []
    made = context.turn.each(zip(names, created, strict=True))
    return {name: error async for name, error in made if isinstance(error, HeadgateError)}


def _code(name: str, error: HeadgateError | None) -> ErrorCode:
    if error is None or error.reason is Reason.POLICY_VIOLATION:  # as in Kafka: clients give up on an unknown topic
        return unknown_topic_code(name)
    # Clients ask again after a pause if a topic has no leader yet.
    again = error.reason is Reason.TOPIC_EXISTS or not isinstance(error, InvalidError)
    return ErrorCode.LEADER_NOT_AVAILABLE if again else error_code(error)


async def _describe(topic: Topic, replicas: Replicas, context: Context, operations: int) -> MetadataResponseTopic:
    has_history = bool(replicas.lanes) and context.engine.manifest.has_files(topic.id)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=[
            _partition(topic, number, replicas, context, has_history=has_history)
            async for number in context.turn.each(range(topic.partitions))
        ],
        topic_authorized_operations=operations,
    )


def _partition(topic: Topic, number: int, replicas: Replicas, context: Context, *, has_history: bool) -> MetadataResponsePartition:
    code, broker_id, epoch = lead_of(topic, number, context)
    shown = [] if code else replicas.of(broker_id, topic.replication_factor)
    if shown and has_history:
        shown = [*shown, *replicas.lanes]
    return MetadataResponsePartition(
        error_code=code,
        partition_index=number,
        leader_id=broker_id,
        leader_epoch=epoch,
        replica_nodes=shown,
        isr_nodes=shown,
    )


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights, engine = asked.rights, asked.context.engine
    everything = request.topics is None or (not request.topics and asked.context.api_version == 0)
    refused: list[Message] = []
    hidden: list[Message] = []
    if not everything:
        by_id = [topic for topic in request.topics if topic.topic_id != ZERO_UUID]
        request.topics = [topic for topic in request.topics if topic.topic_id == ZERO_UUID]
        refused = await asked.drop(request.topics, lambda row: rights.on_topic(Operation.DESCRIBE, row.name or ""))
        if (
            request.allow_auto_topic_creation
            and asked.context.settings.auto_create_topics
            and not rights.on_cluster(Operation.CREATE)
        ):
            refused += await asked.drop(
                request.topics,
                lambda row: row.name in engine.manifest.topics or rights.on_topic(Operation.CREATE, row.name or ""),
            )
        hidden = await asked.drop(by_id, lambda row: may_see_id(asked, row.topic_id))
        request.topics += by_id
        if not request.topics and asked.context.api_version == 0:
            request.topics = [type(refused[0])(name="")]  # an empty list would ask for all topics
    response = yield None
    if everything:
        await asked.drop(response.topics, lambda row: rights.on_topic(Operation.DESCRIBE, row.name))
    elif refused and asked.context.api_version == 0:
        await asked.drop(response.topics, lambda row: bool(row.name))
    for row in refused:
        response.topics.append(made(MetadataResponseTopic, error_code=TOPIC_REFUSED, name=row.name))
    for row in hidden:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        response.topics.append(made(MetadataResponseTopic, error_code=unknown, name=None, topic_id=row.topic_id))
    limit_cluster(response, asked)
    await limit(response.topics, asked, "topic_authorized_operations", Resource.TOPIC, lambda row: row.name or "")


API = Api(3, versions=(0, 13), flexible_from=9, request=MetadataRequest, handle=handle, rule=rule)
