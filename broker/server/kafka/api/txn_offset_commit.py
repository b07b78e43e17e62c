"""TxnOffsetCommit (28), versions 0-6: positions of a group that count once their transaction is committed.

Answered when they are durable. Until the outcome, OffsetFetch with `require_stable` answers UNSTABLE_OFFSET_COMMIT for them. From
version 3 the request names the member, which is checked as in OffsetCommit. From version 5 the group joins the transaction with
this request; before, the broker checks that AddOffsetsToTxn came first. Version 6 names topics by their ids (KIP-1319), and tells
a member of an unknown group and one with an old epoch apart from one with an old generation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable

from headgate.broker.cluster.acl import Operation
from headgate.broker.groups.entry import RowsReply
from headgate.broker.groups.positions import Position
from headgate.broker.groups.shard import Commit
from headgate.broker.runtime.errors import Reason
from headgate.broker.server.kafka.committing import answer_rows
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, reason_code
from headgate.broker.server.kafka.rules import GROUP_REFUSED, TOPIC_REFUSED, TRANSACTION_REFUSED, made
from headgate.broker.wire.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ADDS_VERSION_MIN = 5
ABORTABLE_VERSION_MIN = 4
TOPIC_IDS_VERSION_MIN = EPOCHS_VERSION_MIN = 6


async def handle(request: TxnOffsetCommitRequest, context: Context) -> TxnOffsetCommitResponse:
    add = context.api_version >= ADDS_VERSION_MIN

    async def consent(partition: tuple[str, int]) -> Reason | None:
        reply = await context.transaction_calls.ask(
            request.transactional_id, request.producer_id, request.producer_epoch, frozenset([partition]), add=add
        )
        return reply.error

    def commit(portion: list[Position]) -> Awaitable[RowsReply]:
        event = Commit(
            token=context.groups.token(),
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            positions=tuple(portion),
            any_member=True,
            unknown_group=Reason.GROUP_ID_NOT_FOUND if context.api_version >= EPOCHS_VERSION_MIN else Reason.ILLEGAL_GENERATION,
        )
        return context.groups.commit_pending(request.group_id, event, request.producer_id, request.producer_epoch, consent)

    response = TxnOffsetCommitResponse()
    await answer_rows(
        request,
        response,
        context,
        (TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition),
        by_id=context.api_version >= TOPIC_IDS_VERSION_MIN,
        commit=commit,
        code=lambda reason: _code(reason, context.api_version),
    )
    return response


def _code(reason: Reason, version: int) -> ErrorCode:
    match reason:
        case Reason.MESSAGE_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case Reason.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case Reason.STALE_MEMBER_EPOCH if version < EPOCHS_VERSION_MIN:
            return ErrorCode.ILLEGAL_GENERATION
        case Reason.INVALID_TRANSACTION_STATE if version >= ABORTABLE_VERSION_MIN:
            return ErrorCode.TRANSACTION_ABORTABLE
        case Reason.CONCURRENT_TRANSACTIONS if version < ADDS_VERSION_MIN:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # retriable for every client, unlike the exact error
        case _:
            return reason_code(reason)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    code = 0
    if not rights.may_transact(request.transactional_id):
        code = TRANSACTION_REFUSED
    elif not rights.on_group(Operation.READ, request.group_id):
        code = GROUP_REFUSED
    if code:
        yield made(TxnOffsetCommitResponse, topics=[_uncommitted(topic, code) for topic in request.topics])
        return
    refused = await asked.drop(request.topics, lambda topic: asked.on_named(Operation.READ, topic))
    response = yield None
    response.topics += [_uncommitted(topic, TOPIC_REFUSED) for topic in refused]


def _uncommitted(topic: Message, code: int) -> Message:
    rows = [
        made(TxnOffsetCommitResponsePartition, partition_index=partition.partition_index, error_code=code)
        for partition in topic.partitions
    ]
    return made(TxnOffsetCommitResponseTopic, name=topic.name, topic_id=topic.topic_id, partitions=rows)


API = Api(28, versions=(0, 6), flexible_from=3, request=TxnOffsetCommitRequest, handle=handle, rule=rule)
