"""ListPartitionReassignments (46), version 0: always none.

For clients a partition has one replica, its lead. A move only changes the lead, within milliseconds and without a copy. So no
reassignment is ever in progress, and tools that ask first (kafka-reassign-partitions --list and --verify, sarama) get Kafka's
answer for that case.
"""

from __future__ import annotations

from headgate.broker.server.kafka.context import Context
from headgate.broker.wire.kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(request: ListPartitionReassignmentsRequest, context: Context) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
