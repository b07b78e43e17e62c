"""DeleteRecords (21), versions 0-2: move the start of partitions' logs forward; -1 = to the high watermark.

As in Kafka, a topic that is only compacted keeps its records (POLICY_VIOLATION), and so does an internal one
(INVALID_TOPIC_EXCEPTION).
"""

from __future__ import annotations

from broker.cluster.topic_config import is_internal
from broker.runtime.errors import HeadgateError, InvalidError, Reason
from broker.server.kafka.context import Context
from broker.server.kafka.errors import error_code
from broker.server.kafka.shared import ID_UNKNOWN
from broker.wire.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


async def handle(request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(result)
        for one in topic.partitions:
            result.partitions.append(await _delete(topic.name, one, context))
    return response


async def _delete(name: str, one: DeleteRecordsPartition, context: Context) -> DeleteRecordsPartitionResult:
    engine = context.engine
    try:
        log = engine.partition(engine.topic(name), one.partition_index)
        if is_internal(name):
            raise InvalidError(Reason.INVALID_TOPIC, f"records of an internal topic cannot be deleted. topic=`{name}`")
        if not log.config.delete:
            raise InvalidError(Reason.POLICY_VIOLATION, f"cleanup.policy of the topic does not allow deletion. topic=`{name}`")
        low_watermark = await engine.delete_records(log, one.offset)
    except HeadgateError as error:
        return DeleteRecordsPartitionResult(
            partition_index=one.partition_index, low_watermark=ID_UNKNOWN, error_code=error_code(error)
        )
    return DeleteRecordsPartitionResult(partition_index=one.partition_index, low_watermark=low_watermark)
