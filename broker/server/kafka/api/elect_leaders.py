"""ElectLeaders (43), versions 0-2: nothing to elect, because the lead of a partition is the preferred one.

The leader places leads by their load, so no list of replicas says who should lead. A partition with a lead is ELECTION_NOT_NEEDED,
which tools show as success. One without is PREFERRED_LEADER_NOT_AVAILABLE, or for an unclean election
ELIGIBLE_LEADERS_NOT_AVAILABLE: its failover is under way and needs no request. As in Kafka, a request for all partitions lists only
those with an election, so none.
"""

from __future__ import annotations

from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.requests import unknown_topic_code
from headgate.broker.wire.kafka.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PREFERRED, UNCLEAN = 0, 1
_ABSENT = {PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


async def handle(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
    if request.election_type not in _ABSENT:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST if context.api_version else 0)
    each = context.turn.each
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=one.topic,
                partition_result=[
                    _result(one.topic, number, request.election_type, context)
                    async for number in each(dict.fromkeys(one.partitions))
                ],
            )
            async for one in each(request.topic_partitions or ())
        ]
    )


def _result(name: str, number: int, election_type: int, context: Context) -> PartitionResult:
    engine = context.engine
    topic = engine.manifest.topics.get(name)
    if topic is None:
        return PartitionResult(partition_id=number, error_code=unknown_topic_code(name), error_message="the topic does not exist")
    if not 0 <= number < topic.partitions:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return PartitionResult(partition_id=number, error_code=code, error_message="the partition does not exist")
    if engine.lead(topic.id, number) is None:
        message = "the partition has no lead at the moment; it gets one without an election"
        return PartitionResult(partition_id=number, error_code=_ABSENT[election_type], error_message=message)
    message = "the partition is led by the broker that the placement chose"
    return PartitionResult(partition_id=number, error_code=ErrorCode.ELECTION_NOT_NEEDED, error_message=message)
