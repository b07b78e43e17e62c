"""ConsumerGroupHeartbeat (68), versions 0-1: membership in a consumer group (KIP-848): joins, ends and all between.

From version 1 on, clients make their member ids and may name a pattern of topics. The rules are in `groups/consumer_group.py`.
A pattern matches only topics that the client may describe, as in Kafka.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.groups.assignors import ASSIGNORS, Partition
from headgate.broker.groups.consumer_events import ConsumerHeartbeat, ConsumerHeartbeatReply, Viewer
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.server.access.rights import Rights
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import reason_code
from headgate.broker.server.kafka.rules import GROUP_REFUSED, TOPIC_REFUSED, made
from headgate.broker.wire.kafka.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

OWN_IDS_VERSION_MIN = 1
EPOCH_MIN = -2
CHARS_MAX = 1_000
"""Length of a member's id, its instance id and its rack."""


async def handle(request: ConsumerGroupHeartbeatRequest, context: Context) -> ConsumerGroupHeartbeatResponse:
    wrong = _wrong(request, context.api_version)
    if wrong is not None:
        reason, message = wrong
        return _response(ConsumerHeartbeatReply(error=reason, message=message))
    event = ConsumerHeartbeat(
        token=context.groups.token(),
        member_id=request.member_id,
        fresh_member_id=str(uuid.uuid4()),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if request.subscribed_topic_names is None else frozenset(request.subscribed_topic_names),
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else await _owned(request.topic_partitions, context),
        viewer=None if context.rights is None else _viewer(context.rights),
    )
    try:
        reply = await context.groups.consumer_heartbeat(request.group_id, event)
    except HeadgateError as error:
        reply = ConsumerHeartbeatReply(error=error.reason, message=error.message)
    return _response(reply)


def _wrong(request: ConsumerGroupHeartbeatRequest, version: int) -> tuple[Reason, str] | None:
    """The error of a request that no group can accept."""
    if version >= OWN_IDS_VERSION_MIN and not request.member_id:
        return Reason.INVALID_REQUEST, "MemberId is empty: clients make it from version 1 on"
    if request.member_epoch < EPOCH_MIN:
        return Reason.INVALID_REQUEST, f"MemberEpoch is invalid. epoch=`{request.member_epoch}`"
    if any(len(text or "") > CHARS_MAX for text in (request.member_id, request.instance_id, request.rack_id)):
        return Reason.INVALID_REQUEST, f"an id is too long. characters_max=`{CHARS_MAX}`"
    if request.instance_id == "":
        return Reason.INVALID_REQUEST, "InstanceId is empty"
    if request.member_epoch != 0:
        if not request.member_id:
            return Reason.INVALID_REQUEST, "MemberId is empty"
        if request.member_epoch == EPOCH_MIN and request.instance_id is None:
            return Reason.INVALID_REQUEST, "only a static member leaves for now, and this one has no InstanceId"
    else:
        if request.rebalance_timeout_ms <= 0:
            return Reason.INVALID_REQUEST, f"RebalanceTimeoutMs is invalid. ms=`{request.rebalance_timeout_ms}`"
        if request.topic_partitions:
            return Reason.INVALID_REQUEST, "a member that joins owns no partitions"
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            return Reason.INVALID_REQUEST, "a member that joins names its topics, or a pattern of them"
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        return Reason.UNSUPPORTED_ASSIGNOR, f"assignor is unknown. assignor=`{request.server_assignor}` known=`{known}`"
    return None


def _viewer(rights: Rights) -> Viewer:
    identity = rights.identity
    return Viewer(f"{identity.principal} {identity.host}", rights.lasting(Operation.DESCRIBE, Resource.TOPIC))


async def _owned(topics: list[TopicPartitions], context: Context) -> frozenset[Partition]:
    return frozenset([(topic.topic_id, number) async for topic in context.turn.each(topics) for number in topic.partitions])


def _response(reply: ConsumerHeartbeatReply) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=reason_code(reply.error),
        error_message=reply.message,
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=None
        if reply.assignment is None
        else Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic, partitions=numbers) for topic, numbers in by_topic(reply.assignment).items()
            ]
        ),
    )


def by_topic(partitions: Iterable[Partition]) -> dict[uuid.UUID, list[int]]:
    """The numbers of partitions by topic id, in order."""
    topics: dict[uuid.UUID, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        topics[topic].append(number)
    return topics


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    if not rights.on_group(Operation.READ, request.group_id):
        yield made(ConsumerGroupHeartbeatResponse, error_code=GROUP_REFUSED)
    elif await asked.drop(list(request.subscribed_topic_names or ()), asked.topic(Operation.DESCRIBE)):
        yield made(ConsumerGroupHeartbeatResponse, error_code=TOPIC_REFUSED)
    else:
        yield None


API = Api(68, versions=(0, 1), flexible_from=0, request=ConsumerGroupHeartbeatRequest, handle=handle, rule=rule)
