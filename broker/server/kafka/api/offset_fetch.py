"""OffsetFetch (9), versions 1-9: the positions of a group; of several groups from version 8.

Null for the topics asks for all positions (from version 2). A position that was never committed is offset -1, without an error,
and so is every position of a group that does not exist. A position belongs to the topic that existed at its commit: after the
topic was deleted and created again, the position is gone. A partition that occurs more than once in a request is answered once;
otherwise a small request could ask for an answer of any size. For a group that occurs twice, the last entry counts.
With `require_stable` (version 7), a partition whose position may change with an open transaction is UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.broker.groups.records import OffsetValue
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.server.kafka.leads import find_group_doubt
from headgate.broker.wire.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

GROUPS_VERSION_MIN = 8
TOP_LEVEL_ERROR_VERSION_MIN = 2

_UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT

Rows = dict[str, list[tuple[int, OffsetValue | None]]]


async def handle(request: OffsetFetchRequest, context: Context) -> OffsetFetchResponse:
    each = context.turn.each
    doubt = await find_group_doubt(context)
    if context.api_version >= GROUPS_VERSION_MIN:
        return OffsetFetchResponse(
            groups=[
                await _group(
                    context,
                    group.group_id,
                    None if group.topics is None else [(topic.name, topic.partition_indexes) async for topic in each(group.topics)],
                    doubt,
                    context.groups.is_unstable if request.require_stable else _never,
                )
                async for group in each({group.group_id: group async for group in each(request.groups)}.values())
            ]
        )
    asked = None if request.topics is None else [(topic.name, topic.partition_indexes) async for topic in each(request.topics)]
    code = 0
    try:
        rows = await _rows(context, request.group_id, asked, doubt)
    except HeadgateError as error:
        code = error_code(error)
        rows = {name: [(partition, None) async for partition in each(partitions)] async for name, partitions in each(asked or ())}
    unstable = context.groups.is_unstable if request.require_stable and not code else _never
    of_partition = code if context.api_version < TOP_LEVEL_ERROR_VERSION_MIN else 0
    return OffsetFetchResponse(
        error_code=code,
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition,
                        committed_offset=ID_UNKNOWN if value is None else value.offset,
                        committed_leader_epoch=ID_UNKNOWN if value is None else value.leader_epoch,
                        metadata="" if value is None else value.metadata,
                        error_code=_UNSTABLE if unstable(request.group_id, name, partition) else of_partition,
                    )
                    async for partition, value in each(partitions)
                ],
            )
            async for name, partitions in each(rows.items())
        ],
    )


def _never(group_id: str, topic: str, partition: int) -> bool:
    return False


async def _group(
    context: Context,
    group_id: str,
    asked: list[tuple[str, list[int]]] | None,
    doubt: HeadgateError | None,
    unstable: Callable[[str, str, int], bool],
) -> OffsetFetchResponseGroup:
    each = context.turn.each
    try:
        rows = await _rows(context, group_id, asked, doubt)
    except HeadgateError as error:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=error_code(error))
    return OffsetFetchResponseGroup(
        group_id=group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=partition,
                        committed_offset=ID_UNKNOWN if value is None else value.offset,
                        committed_leader_epoch=ID_UNKNOWN if value is None else value.leader_epoch,
                        metadata="" if value is None else value.metadata,
                        error_code=_UNSTABLE if unstable(group_id, name, partition) else 0,
                    )
                    async for partition, value in each(partitions)
                ],
            )
            async for name, partitions in each(rows.items())
        ],
    )


async def _rows(context: Context, group_id: str, asked: list[tuple[str, list[int]]] | None, doubt: HeadgateError | None) -> Rows:
    if doubt is not None:
        raise doubt
    each = context.turn.each
    if asked is None:
        rows: Rows = {}
        async for topic, partition, value in each(context.groups.positions(group_id)):
            rows.setdefault(topic, []).append((partition, value))
        return rows
    wanted: dict[str, dict[int, None]] = {}
    async for name, partitions in each(asked):
        numbers = wanted.setdefault(name, {})
        async for number in each(partitions):
            numbers[number] = None
    position = context.groups.position
    return {
        name: [(number, position(group_id, name, number)) async for number in each(numbers)]
        async for name, numbers in each(wanted.items())
    }
