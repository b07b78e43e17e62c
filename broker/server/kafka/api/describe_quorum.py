"""DescribeQuorum (55), versions 0-2: the broker that writes the cluster's journal, as a quorum of one.

Headgate has no KRaft: the journal is in the store, and one broker, the leader, writes it. So the answer for `__cluster_metadata`
names the leader as the only voter, with the epoch of its term and the version of the journal, as this broker knows it. No other
broker keeps a replica of the journal, so there are no observers. Any other topic is UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.leads import broker_address
from headgate.broker.server.kafka.rules import on_cluster
from headgate.broker.wire.kafka.messages.describe_quorum import (
    DescribedPartition,
    DescribedTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
)

TOPIC = "__cluster_metadata"
NODES_VERSION_MIN = 2


async def handle(request: DescribeQuorumRequest, context: Context) -> DescribeQuorumResponse:
    response = DescribeQuorumResponse(error_message=None)
    each = context.turn.each
    async for topic in each(request.topics):
        rows = [_partition(topic.topic_name, partition.partition_index, context) async for partition in each(topic.partitions)]
        response.topics.append(DescribedTopic(topic_name=topic.topic_name, partitions=rows))
    leader = context.engine.manifest.incarnations.get(context.engine.manifest.leader)
    if leader is not None and context.api_version >= NODES_VERSION_MIN:
        host, port = broker_address(leader, context)
        response.nodes.append(Node(node_id=leader.broker_id, listeners=[Listener(name=context.listener, host=host, port=port)]))
    return response


def _partition(topic: str, number: int, context: Context) -> DescribedPartition:
    engine = context.engine
    if (topic, number) != (TOPIC, 0):
        return DescribedPartition(
            partition_index=number, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=None, leader_id=-1
        )
    version = engine.journal_version
    leader = ReplicaState(
        replica_id=engine.controller_id,
        log_end_offset=version,
        last_caught_up_timestamp=engine.clock.now_ms(),
    )
    return DescribedPartition(
        partition_index=number,
        error_message=None,
        leader_id=engine.controller_id,
        leader_epoch=engine.manifest.term_epoch,
        high_watermark=version,
        current_voters=[leader],
    )


API = Api(
    55,
    versions=(0, 2),
    flexible_from=0,
    request=DescribeQuorumRequest,
    handle=handle,
    rule=on_cluster(Operation.DESCRIBE, DescribeQuorumResponse),
)
