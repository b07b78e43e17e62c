"""ListPartitionReassignments (46), version 0: always none.

As clients see it a partition has one replica, its lead, and what moves is the lead alone, within milliseconds and without a
copy. So nothing is ever under way, and tools that ask first (kafka-reassign-partitions --list and --verify, sarama) get Kafka's
answer for that.
"""

from __future__ import annotations

from headgate.broker.server.kafka.context import Context
from headgate.broker.wire.kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(request: ListPartitionReassignmentsRequest, context: Context) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse()
