"""ElectLeaders (43), versions 0-2: give partitions back to their preferred leads.

The leader places leads by their load, so most partitions have no preferred lead: each is ELECTION_NOT_NEEDED, which tools show as
success. If a client chose a partition's replicas (AlterPartitionReassignments), the first of them is preferred, and an election
moves the lead to it. The answer waits for the move, up to the request's time-out (REQUEST_TIMED_OUT: it goes on).

A preferred broker that is not alive is PREFERRED_LEADER_NOT_AVAILABLE. A partition without a lead needs no unclean election,
because its failover is under way: PREFERRED_LEADER_NOT_AVAILABLE, or ELIGIBLE_LEADERS_NOT_AVAILABLE for an unclean one. As in
Kafka, a request for all partitions lists only those with an election.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from uuid import UUID

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.objects import Topic
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code, error_message
from headgate.broker.server.kafka.requests import unknown_topic_code
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, made
from headgate.broker.wire.kafka.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

PREFERRED, UNCLEAN = 0, 1
WAIT_MS_MAX = 30_000
"""Longest wait for the moves, whatever the client allows. Later requests of the connection wait as well."""
_ABSENT = {PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


async def handle(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
    if request.election_type not in _ABSENT:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST if context.api_version else 0)
    each, manifest = context.turn.each, context.engine.manifest
    everything = request.topic_partitions is None
    if request.topic_partitions is None:
        placed = [manifest.topics_by_id[topic_id] for topic_id in manifest.placed]
        asked = [TopicPartitions(topic=topic.name, partitions=sorted(topic.replicas)) for topic in placed]
    else:
        asked = request.topic_partitions
    alive = frozenset(broker.broker_id for broker in context.engine.brokers())
    moved: dict[UUID, dict[int, PartitionResult]] = {}
    response = ElectLeadersResponse()
    async for one in each(asked):
        rows: list[PartitionResult] = []
        topic = manifest.topics.get(one.topic)
        async for number in each(dict.fromkeys(one.partitions)):
            row = _result(one.topic, number, request.election_type, alive, context)
            if everything and row.error_code == ErrorCode.ELECTION_NOT_NEEDED:
                continue
            rows.append(row)
            if topic is not None and not row.error_code:
                moved.setdefault(topic.id, {})[number] = row
        if rows or not everything:
            response.replica_election_results.append(ReplicaElectionResult(topic=one.topic, partition_result=rows))
    await _move(moved, min(max(request.timeout_ms, 0), WAIT_MS_MAX) / 1000, context)
    return response


async def _move(moved: dict[UUID, dict[int, PartitionResult]], timeout_s: float, context: Context) -> None:
    """Give the partitions to their preferred leads, and wait. Errors go into the rows."""
    engine = context.engine
    topics = {topic_id: engine.topic_by_id(topic_id) for topic_id in moved}
    errors = await engine.reassign({key: {number: topics[key].replicas[number] for number in rows} for key, rows in moved.items()})
    waiting = {(key, number): row for key, rows in moved.items() if key not in errors for number, row in rows.items()}
    for topic_id, error in errors.items():
        for row in moved[topic_id].values():
            row.error_code, row.error_message = error_code(error), error_message(error)
    try:
        async with asyncio.timeout(timeout_s):
            while waiting:
                change = engine.leads.next_change()
                waiting = {key: row for key, row in waiting.items() if _is_moving(context, *key)}
                if waiting:
                    await change.wait()
    except TimeoutError:
        for row in waiting.values():
            row.error_code = ErrorCode.REQUEST_TIMED_OUT
            row.error_message = "the lead is still being moved"


def _is_moving(context: Context, topic_id: UUID, number: int) -> bool:
    topic = context.engine.manifest.topics_by_id.get(topic_id)
    return topic is not None and number in topic.targets


def _result(name: str, number: int, election_type: int, alive: frozenset[int], context: Context) -> PartitionResult:
    """The answer for a partition. Without an error code, it needs an election."""
    manifest = context.engine.manifest
    topic = manifest.topics.get(name)
    if topic is None:
        return PartitionResult(partition_id=number, error_code=unknown_topic_code(name), error_message="the topic does not exist")
    if not 0 <= number < topic.partitions:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return PartitionResult(partition_id=number, error_code=code, error_message="the partition does not exist")
    lead = manifest.lead_id(topic.id, number)
    if lead is None:
        message = "the partition has no lead at the moment; it gets one without an election"
        return PartitionResult(partition_id=number, error_code=_ABSENT[election_type], error_message=message)
    preferred = _preferred(topic, number, lead)
    if preferred == lead or election_type == UNCLEAN:
        message = "the partition is led by its preferred broker, or has a lead"
        return PartitionResult(partition_id=number, error_code=ErrorCode.ELECTION_NOT_NEEDED, error_message=message)
    if preferred not in alive:
        message = f"the preferred broker {preferred} is not alive"
        return PartitionResult(partition_id=number, error_code=_ABSENT[PREFERRED], error_message=message)
    return PartitionResult(partition_id=number, error_message=None)


def _preferred(topic: Topic, number: int, lead: int) -> int:
    """The broker that should lead: the one that a client chose, or else the one that the placement chose."""
    chosen = topic.replicas.get(number)
    return lead if chosen is None else chosen[0]


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER):
        yield None
        return
    topics = []
    async for partition in asked.context.turn.each(request.topic_partitions or ()):
        rows = [made(PartitionResult, partition_id=number, error_code=CLUSTER_REFUSED) for number in partition.partitions]
        topics.append(made(ReplicaElectionResult, topic=partition.topic, partition_result=rows))
    code = CLUSTER_REFUSED if asked.context.api_version else 0
    yield made(ElectLeadersResponse, error_code=code, replica_election_results=topics)


def act(request: Message) -> Iterator[str]:
    if request.topic_partitions is None:
        yield "every topic"
    for partition in request.topic_partitions or ():
        yield partition.topic


API = Api(43, versions=(0, 2), flexible_from=2, request=ElectLeadersRequest, handle=handle, rule=rule, act=act)
