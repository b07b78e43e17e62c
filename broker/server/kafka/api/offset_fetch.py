"""OffsetFetch (9), versions 1-10: the positions of a group; of several groups from version 8.

Null for the topics asks for all positions (from version 2). A position that was never committed is offset -1, without an error,
and so is every position of a group that does not exist. A position belongs to the topic that existed at its commit: after the
topic was deleted and created again, the position is gone. A partition that occurs more than once in a request is answered once;
otherwise a small request could ask for an answer of any size. For a group that occurs twice, the last entry counts.
With `require_stable` (version 7), a partition whose position may change with an open transaction is UNSTABLE_OFFSET_COMMIT. From
version 9 on, a member of a consumer group (KIP-848) says who it is; a fenced one is refused. Version 10 names topics by their ids.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from uuid import UUID

from headgate.broker.cluster.acl import Operation
from headgate.broker.groups.records import OffsetValue
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code, reason_code
from headgate.broker.server.kafka.leads import find_group_doubt
from headgate.broker.server.kafka.rules import GROUP_REFUSED, TOPIC_REFUSED, made
from headgate.broker.wire.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headgate.broker.wire.kafka.primitives import ZERO_UUID

GROUPS_VERSION_MIN = 8
TOPIC_IDS_VERSION_MIN = 10
TOP_LEVEL_ERROR_VERSION_MIN = 2

_UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT

Rows = dict[str, list[tuple[int, OffsetValue | None]]]


async def handle(request: OffsetFetchRequest, context: Context) -> OffsetFetchResponse:
    each = context.turn.each
    doubt = await find_group_doubt(context)
    if context.api_version >= GROUPS_VERSION_MIN:
        last = {group.group_id: group async for group in each(request.groups)}
        return OffsetFetchResponse(
            groups=[await _group(context, group, doubt, request.require_stable) async for group in each(last.values())]
        )
    asked = None if request.topics is None else [(topic.name, topic.partition_indexes) async for topic in each(request.topics)]
    code = 0
    try:
        rows = await _rows(context, request.group_id, asked, doubt)
    except HeadgateError as error:
        code = error_code(error)
        rows = {name: [(partition, None) async for partition in each(partitions)] async for name, partitions in each(asked or ())}
    unstable = _unstable(context, request.group_id) if request.require_stable and not code else _never
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
                        error_code=_UNSTABLE if unstable(name, partition) else of_partition,
                    )
                    async for partition, value in each(partitions)
                ],
            )
            async for name, partitions in each(rows.items())
        ],
    )


def _never(topic: str, partition: int) -> bool:
    return False


def _unstable(context: Context, group_id: str) -> Callable[[str, int], bool]:
    """Whether a transaction without an outcome has a position of a group for a partition."""
    shard = context.groups.look(group_id)
    return _never if shard is None else partial(shard.is_unstable, group_id)


def _check_member(context: Context, group: OffsetFetchRequestGroup) -> Reason | None:
    shard = context.groups.look(group.group_id) if group.member_id else None
    return None if shard is None else shard.check_member(group.group_id, str(group.member_id), group.member_epoch)


async def _group(
    context: Context,
    group: OffsetFetchRequestGroup,
    doubt: HeadgateError | None,
    stable: bool,
) -> OffsetFetchResponseGroup:
    each = context.turn.each
    group_id = group.group_id
    by_id = context.api_version >= TOPIC_IDS_VERSION_MIN
    topics = context.engine.manifest.topics
    answer = OffsetFetchResponseGroup(group_id=group_id)
    asked = None if group.topics is None else await _asked(context, group.topics, answer, by_id)
    try:
        rows = await _rows(context, group_id, asked, doubt)
        refused = _check_member(context, group)
        unstable = _unstable(context, group_id) if stable else _never
    except HeadgateError as error:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=error_code(error))
    if refused is not None:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=reason_code(refused))
    answer.topics += [
        OffsetFetchResponseTopics(
            name=name,
            topic_id=topics[name].id if by_id else ZERO_UUID,
            partitions=[
                OffsetFetchResponsePartitions(
                    partition_index=partition,
                    committed_offset=ID_UNKNOWN if value is None else value.offset,
                    committed_leader_epoch=ID_UNKNOWN if value is None else value.leader_epoch,
                    metadata="" if value is None else value.metadata,
                    error_code=_UNSTABLE if unstable(name, partition) else 0,
                )
                async for partition, value in each(partitions)
            ],
        )
        async for name, partitions in each(rows.items())
        if not by_id or name in topics
    ]
    return answer


async def _asked(
    context: Context, asked: list[OffsetFetchRequestTopics], answer: OffsetFetchResponseGroup, by_id: bool
) -> list[tuple[str, list[int]]]:
    """The topics of a request by their names. Those with an unknown id get their answer here."""
    each = context.turn.each
    found: list[tuple[str, list[int]]] = []
    topics = context.engine.manifest.topics_by_id
    unknown: dict[UUID, dict[int, None]] = {}
    async for one in each(asked):
        topic = topics.get(one.topic_id) if by_id else None
        if by_id and topic is None:
            unknown.setdefault(one.topic_id, {}).update(dict.fromkeys(one.partition_indexes))
        else:
            found.append((one.name if topic is None else topic.name, one.partition_indexes))
    async for topic_id, numbers in each(unknown.items()):
        rows = [
            OffsetFetchResponsePartitions(
                partition_index=number,
                committed_offset=ID_UNKNOWN,
                committed_leader_epoch=ID_UNKNOWN,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
            )
            async for number in each(numbers)
        ]
        answer.topics.append(OffsetFetchResponseTopics(topic_id=topic_id, partitions=rows))
    return found


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


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    may_topic = asked.topic(Operation.DESCRIBE)
    if asked.context.api_version < 8:
        if not asked.rights.on_group(Operation.DESCRIBE, request.group_id):
            yield made(OffsetFetchResponse, error_code=GROUP_REFUSED)
            return
        refused = [] if request.topics is None else await asked.drop(request.topics, lambda row: may_topic(row.name))
        response = yield None
        await asked.drop(response.topics, lambda row: may_topic(row.name))
        response.topics += [_unread(row, OffsetFetchResponseTopic, OffsetFetchResponsePartition) for row in refused]
        return
    groups = await asked.drop(request.groups, lambda row: asked.rights.on_group(Operation.DESCRIBE, row.group_id))
    topics = {
        group.group_id: await asked.drop(group.topics, lambda topic: asked.on_named(Operation.DESCRIBE, topic))
        for group in request.groups
        if group.topics is not None
    }
    response = yield None
    for group in response.groups:
        await asked.drop(group.topics, lambda row: not row.name or may_topic(row.name))
        group.topics += [
            _unread(topic, OffsetFetchResponseTopics, OffsetFetchResponsePartitions) for topic in topics.get(group.group_id, ())
        ]
    for row in groups:
        response.groups.append(made(OffsetFetchResponseGroup, group_id=row.group_id, error_code=GROUP_REFUSED))


def _unread(topic: Message, kind: type[Message], row: type[Message]) -> Message:
    rows = [made(row, partition_index=index, committed_offset=-1, error_code=TOPIC_REFUSED) for index in topic.partition_indexes]
    names = {"name": topic.name, "topic_id": topic.topic_id} if kind is OffsetFetchResponseTopics else {"name": topic.name}
    return made(kind, **names, partitions=rows)


API = Api(9, versions=(1, 10), flexible_from=6, request=OffsetFetchRequest, handle=handle, rule=rule)
