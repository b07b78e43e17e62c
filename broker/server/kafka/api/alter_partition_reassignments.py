"""AlterPartitionReassignments (45), versions 0-1: choose the replicas of partitions (KIP-455).

The store makes the copies, so a reassignment moves the lead to the first broker of the list, within about a second and without a
copy of records. The list is kept, and shown. Until the broker leads, ListPartitionReassignments shows the reassignment, and a null
list gives it up: the lead stays where it is then.

As in Kafka: a broker that does not exist, an empty list, and a broker that occurs twice are INVALID_REPLICA_ASSIGNMENT; nothing to
give up is NO_REASSIGNMENT_IN_PROGRESS; and if the request does not allow it, another number of replicas is
INVALID_REPLICATION_FACTOR. A new reassignment replaces the one in progress.

Deviation: a broker that is drained, or lost at the moment, is waited for without an end. A list has at most 10 brokers.
"""

from __future__ import annotations

from uuid import UUID

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.objects import Topic
from headgate.broker.cluster.reassignment import REPLICAS_MAX
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.audited import rows
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import ErrorCode, error_code, error_message
from headgate.broker.server.kafka.requests import check_assignment, unknown_topic_code
from headgate.broker.server.kafka.rules import on_cluster
from headgate.broker.wire.kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

UNKNOWN = "This server does not host this topic-partition."


async def handle(request: AlterPartitionReassignmentsRequest, context: Context) -> AlterPartitionReassignmentsResponse:
    allowed = request.allow_replication_factor_change
    response = AlterPartitionReassignmentsResponse(allow_replication_factor_change=allowed, error_message=None)
    brokers = frozenset(broker.broker_id for broker in context.engine.brokers())
    chosen: dict[UUID, dict[int, list[int]]] = {}
    rows: dict[UUID, list[ReassignablePartitionResponse]] = {}
    each = context.turn.each
    async for one in each(request.topics):
        topic = context.engine.manifest.topics.get(one.name)
        answers: list[ReassignablePartitionResponse] = []
        async for asked in each(one.partitions):
            answer = ReassignablePartitionResponse(partition_index=asked.partition_index, error_message=None)
            answers.append(answer)
            if topic is None or not 0 <= asked.partition_index < topic.partitions:
                answer.error_code = unknown_topic_code(one.name) if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answer.error_message = UNKNOWN
                continue
            try:
                _check(topic, asked, brokers, can_change_factor=allowed)
            except InvalidError as error:
                answer.error_code, answer.error_message = error_code(error), error_message(error)
            else:
                chosen.setdefault(topic.id, {})[asked.partition_index] = list(asked.replicas or ())
                rows.setdefault(topic.id, []).append(answer)
        response.responses.append(ReassignableTopicResponse(name=one.name, partitions=answers))
    for topic_id, refusal in (await context.engine.reassign(chosen)).items():
        _refuse(rows[topic_id], refusal)
    return response


def _check(topic: Topic, asked: ReassignablePartition, brokers: frozenset[int], *, can_change_factor: bool) -> None:
    number, replicas = asked.partition_index, asked.replicas
    if replicas is None:
        if number not in topic.targets:
            raise InvalidError(
                Reason.NO_REASSIGNMENT_IN_PROGRESS, f"no reassignment to give up. topic=`{topic.name}` partition=`{number}`"
            )
        return
    check_assignment(brokers, replicas)
    if len(replicas) > REPLICAS_MAX:
        raise InvalidError(Reason.INVALID_REPLICA_ASSIGNMENT, f"too many replicas. partition=`{number}` max=`{REPLICAS_MAX}`")
    present = len(topic.replicas.get(number, ())) or topic.replication_factor
    if not can_change_factor and len(replicas) != present:
        raise InvalidError(
            Reason.INVALID_REPLICATION_FACTOR,
            f"the request does not allow another replication factor. topic=`{topic.name}` partition=`{number}` has=`{present}` "
            f"asked=`{len(replicas)}`",
        )


def _refuse(rows: list[ReassignablePartitionResponse], error: HeadgateError) -> None:
    for row in rows:
        row.error_code, row.error_message = error_code(error), error_message(error)


API = Api(
    45,
    versions=(0, 1),
    flexible_from=0,
    request=AlterPartitionReassignmentsRequest,
    handle=handle,
    rule=on_cluster(Operation.ALTER, AlterPartitionReassignmentsResponse),
    act=rows("topics"),
)
