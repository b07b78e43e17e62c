"""ListPartitionReassignments (46), version 0: partitions whose lead is on its way to the broker that a client chose.

`replicas` are those of both lists, the chosen ones first, as in Kafka. A reassignment takes about a second, so the answer is mostly
empty; see AlterPartitionReassignments. Topics and partitions that do not exist are left out.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.objects import Topic
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.leads import Replicas
from headgate.broker.server.kafka.rules import on_cluster
from headgate.broker.wire.kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


async def handle(request: ListPartitionReassignmentsRequest, context: Context) -> ListPartitionReassignmentsResponse:
    manifest, each = context.engine.manifest, context.turn.each
    replicas = Replicas(broker.broker_id for broker in context.engine.brokers())
    asked: dict[str, set[int] | None] = {}
    if request.topics is None:
        asked = dict.fromkeys(manifest.topics_by_id[topic_id].name for topic_id in manifest.reassigning)
    else:
        async for row in each(request.topics):
            asked[row.name] = {number async for number in each(row.partition_indexes)}
    response = ListPartitionReassignmentsResponse(error_message=None)
    async for name, numbers in each(asked.items()):
        topic = manifest.topics.get(name)
        if topic is None:
            continue
        rows = [
            _row(topic, number, target, replicas, context)
            async for number, target in each(sorted(topic.targets.items()))
            if numbers is None or number in numbers
        ]
        if rows:
            response.topics.append(OngoingTopicReassignment(name=name, partitions=rows))
    return response


def _row(topic: Topic, number: int, target: list[int], replicas: Replicas, context: Context) -> OngoingPartitionReassignment:
    lead = context.engine.manifest.lead_id(topic.id, number)
    present = topic.replicas.get(number, []) if lead is None else replicas.shown(topic, number, lead)
    removing = [broker_id for broker_id in present if broker_id not in target]
    return OngoingPartitionReassignment(
        partition_index=number,
        replicas=[*target, *removing],
        adding_replicas=[broker_id for broker_id in target if broker_id not in present],
        removing_replicas=removing,
    )


API = Api(
    46,
    versions=(0, 0),
    flexible_from=0,
    request=ListPartitionReassignmentsRequest,
    handle=handle,
    rule=on_cluster(Operation.DESCRIBE, ListPartitionReassignmentsResponse),
)
