"""OffsetCommit (8), versions 2-10: keep positions of a group, as durably as records. Answered when they are durable.

A commit of a consumer that does not use groups has no member and generation -1. It creates the group, and is refused while the
group has members. Versions 2-4 may ask for an expiry of their own. A member of a group that does not exist gets
ILLEGAL_GENERATION before version 9, then GROUP_ID_NOT_FOUND. Positions of topics and partitions that do not exist are refused
one by one. Version 10 names topics by their ids. A member of a consumer group (KIP-848) commits with its epoch, from version 9 on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterator

from headgate.broker.cluster.acl import Operation
from headgate.broker.groups.entry import RowsReply
from headgate.broker.groups.positions import Position
from headgate.broker.groups.shard import Commit
from headgate.broker.runtime.errors import Reason
from headgate.broker.server.kafka.committing import answer_rows
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, reason_code
from headgate.broker.server.kafka.rules import GROUP_REFUSED, TOPIC_REFUSED, made
from headgate.broker.wire.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

GROUP_NOT_FOUND_VERSION_MIN = EPOCHS_VERSION_MIN = 9
TOPIC_IDS_VERSION_MIN = 10


async def handle(request: OffsetCommitRequest, context: Context) -> OffsetCommitResponse:
    def commit(portion: list[Position]) -> Awaitable[RowsReply]:
        event = Commit(
            token=context.groups.token(),
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            positions=tuple(portion),
            retention_ms=request.retention_time_ms,
            unknown_group=_unknown_group(context.api_version),
        )
        return context.groups.commit(request.group_id, event)

    response = OffsetCommitResponse()
    await answer_rows(
        request,
        response,
        context,
        (OffsetCommitResponseTopic, OffsetCommitResponsePartition),
        by_id=context.api_version >= TOPIC_IDS_VERSION_MIN,
        commit=commit,
        code=lambda reason: _code(reason, context.api_version),
    )
    return response


def _unknown_group(version: int) -> Reason:
    return Reason.GROUP_ID_NOT_FOUND if version >= GROUP_NOT_FOUND_VERSION_MIN else Reason.ILLEGAL_GENERATION


def _code(reason: Reason, version: int) -> ErrorCode:
    if reason is Reason.STALE_MEMBER_EPOCH and version < EPOCHS_VERSION_MIN:
        return ErrorCode.UNSUPPORTED_VERSION  # it has a generation, and no epoch
    # Kafka's answer to a commit that is larger than a record may be.
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if reason is Reason.MESSAGE_TOO_LARGE else reason_code(reason)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    in_group = asked.rights.on_group(Operation.READ, request.group_id)
    refused = await asked.drop(request.topics, lambda row: in_group and asked.on_named(Operation.READ, row))
    code = TOPIC_REFUSED if in_group else GROUP_REFUSED
    rows = [
        made(
            OffsetCommitResponseTopic,
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                made(OffsetCommitResponsePartition, partition_index=partition.partition_index, error_code=code)
                for partition in topic.partitions
            ],
        )
        for topic in refused
    ]
    if not in_group:
        yield made(OffsetCommitResponse, topics=rows)
        return
    response = yield None
    response.topics += rows


def _reset(request: Message) -> Iterator[str]:
    yield request.group_id
    yield from (topic.name for topic in request.topics)


API = Api(8, versions=(2, 10), flexible_from=8, request=OffsetCommitRequest, handle=handle, rule=rule, act_carried=_reset)
