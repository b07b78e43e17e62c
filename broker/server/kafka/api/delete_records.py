"""DeleteRecords (21), versions 0-2: move the start of partitions' logs forward; -1 = to the high watermark.

As in Kafka, a topic that is only compacted keeps its records (POLICY_VIOLATION), and so does an internal one
(INVALID_TOPIC_EXCEPTION).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.audited import rows
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import error_code
from headgate.broker.server.kafka.rules import on_partitions
from headgate.broker.wire.kafka.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from headgate.broker.engine.partition.log import PartitionLog


async def handle(request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    offsets: dict[PartitionLog, int] = {}
    accepted: list[tuple[DeleteRecordsPartitionResult, PartitionLog]] = []
    each = context.turn.each
    async for topic in each(request.topics):
        rows = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(rows)
        async for partition in each(topic.partitions):
            row = DeleteRecordsPartitionResult(partition_index=partition.partition_index, low_watermark=ID_UNKNOWN)
            rows.partitions.append(row)
            try:
                log = _log(topic.name, partition.partition_index, context)
                offsets[log] = max(context.engine.cut_offset(log, partition.offset), offsets.get(log, 0))
            except HeadgateError as error:
                row.error_code = error_code(error)
            else:
                accepted.append((row, log))
    code = 0
    try:
        await context.engine.delete_below(offsets)
    except HeadgateError as error:
        code = error_code(error)
    async for row, log in each(accepted):
        row.error_code, row.low_watermark = code, ID_UNKNOWN if code else log.log_start
    return response


def _log(name: str, number: int, context: Context) -> PartitionLog:
    """The partition, if its records may be deleted. Raises InvalidError, RetryError."""
    log = context.engine.partition(context.engine.topic(name), number)
    if is_internal(name):
        raise InvalidError(Reason.INVALID_TOPIC, f"records of an internal topic cannot be deleted. topic=`{name}`")
    if not log.config.delete:
        raise InvalidError(Reason.POLICY_VIOLATION, f"cleanup.policy of the topic does not allow deletion. topic=`{name}`")
    return log


API = Api(
    21,
    versions=(0, 2),
    flexible_from=2,
    request=DeleteRecordsRequest,
    handle=handle,
    rule=on_partitions(Operation.DELETE, DeleteRecordsTopicResult, DeleteRecordsPartitionResult, low_watermark=-1),
    act=rows("topics"),
)
