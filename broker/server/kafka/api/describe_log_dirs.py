"""DescribeLogDirs (35), versions 1-4: how large partitions are.

Deviation: there is one "directory", the store itself. Its size and free space are not known (-1).
"""

from __future__ import annotations

from broker.server.kafka.context import Context
from broker.wire.kafka.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle(request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
    engine = context.engine
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for one in request.topics:
            wanted.setdefault(one.topic, set()).update(one.partitions)
    result = DescribeLogDirsResult(log_dir=engine.store.url)
    for topic in engine.topics():
        numbers = range(topic.partitions) if wanted is None else sorted(wanted.get(topic.name, ()))
        partitions = [
            DescribeLogDirsPartition(partition_index=log.number, partition_size=log.size_bytes)
            for log in (engine.logs_by_id[topic.id][number] for number in numbers if 0 <= number < topic.partitions)
            if log is not None
        ]
        if partitions:
            result.topics.append(DescribeLogDirsTopic(name=topic.name, partitions=partitions))
    return DescribeLogDirsResponse(results=[result])
