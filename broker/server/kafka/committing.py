"""The rows of OffsetCommit and TxnOffsetCommit: positions that can be stored, and an answer for each row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headgate.broker.groups.entry import RowsReply
from headgate.broker.groups.positions import Position
from headgate.broker.runtime.errors import Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Message
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.requests import in_portions, unknown_topic_code


async def answer_rows(
    request: Message,
    response: Message,
    context: Context,
    kinds: tuple[Callable[..., Message], Callable[..., Message]],
    *,
    by_id: bool,
    commit: Callable[[list[Position]], Awaitable[RowsReply]],
    code: Callable[[Reason], ErrorCode],
) -> None:
    """Commit the positions of a request's rows, and fill the response.

    Args:
        kinds: of a topic and of a partition in the response.
        by_id: topics are named by their ids.
        commit: stores positions. It is also called for none of them: the member must learn that it is fenced or unknown, and its
            commit proves that it is alive.
    """
    positions: list[Position] = []
    results: list[Message] = []
    manifest, each = context.engine.manifest, context.turn.each
    async for asked in each(request.topics):
        topic = manifest.topics_by_id.get(asked.topic_id) if by_id else manifest.topics.get(asked.name)
        rows = kinds[0](name=asked.name, topic_id=asked.topic_id)
        response.topics.append(rows)
        async for row in each(asked.partitions):
            result = kinds[1](partition_index=row.partition_index)
            rows.partitions.append(result)
            if topic is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else unknown_topic_code(asked.name)
            elif not 0 <= row.partition_index < topic.partitions:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                results.append(result)
                positions.append(
                    Position(
                        topic=topic.name,
                        partition=row.partition_index,
                        offset=row.committed_offset,
                        leader_epoch=row.committed_leader_epoch,
                        metadata=row.committed_metadata,
                        topic_id=topic.id,
                        window_end=manifest.gates.window_end(topic.id, row.partition_index),
                    )
                )
    reply = await in_portions(context, positions, commit)
    if reply.error is not None:
        refused = code(reply.error)
        async for topic_rows in each(response.topics):
            async for result in each(topic_rows.partitions):
                result.error_code = refused
    else:
        async for result, reason in each(zip(results, reply.errors, strict=True)):
            if reason is not None:
                result.error_code = code(reason)
