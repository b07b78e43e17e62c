"""DescribeLogDirs (35), versions 1-4: the sizes of partitions.

Deviation: there is one "directory", the store itself. Its size and free space are not known (-1). A broker that cannot prove that
it still leads its partitions names none of them, as one that does not lead them.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.leads import find_doubt
from headgate.broker.server.kafka.rules import on_cluster
from headgate.broker.wire.kafka.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle(request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
    engine = context.engine
    each = context.turn.each
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        async for row in each(request.topics):
            numbers = wanted.setdefault(row.topic, set())
            async for number in each(row.partitions):
                numbers.add(number)
    result = DescribeLogDirsResult(log_dir=engine.store.url)
    if await find_doubt(context) is not None:
        return DescribeLogDirsResponse(results=[result])
    async for topic in each(engine.topics()):
        logs = [
            log
            for number, log in enumerate(engine.logs_by_id.get(topic.id, ()))
            if log is not None and log.refusal is None and (wanted is None or number in wanted.get(topic.name, ()))
        ]
        partitions = [
            DescribeLogDirsPartition(partition_index=log.number, partition_size=log.size_bytes) async for log in each(logs)
        ]
        if partitions:
            result.topics.append(DescribeLogDirsTopic(name=topic.name, partitions=partitions))
    return DescribeLogDirsResponse(results=[result])


API = Api(
    35,
    versions=(1, 4),
    flexible_from=2,
    request=DescribeLogDirsRequest,
    handle=handle,
    rule=on_cluster(Operation.DESCRIBE, DescribeLogDirsResponse),
)
