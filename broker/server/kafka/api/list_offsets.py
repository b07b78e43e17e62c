"""ListOffsets (2), versions 1-11: offsets by time and by name.

- A timestamp >= 0: the first record at or after it. -1 latest (the high watermark), -2 earliest (the log's start), -3 the record
  with the greatest timestamp (version 7), -4 earliest local (8), -5 latest tiered (9), -6 earliest pending upload (11). A name
  that the version does not have is UNSUPPORTED_VERSION, as in Kafka.
- A partition that occurs twice in the request is INVALID_REQUEST at each place.

Deviations: no records are local or tiered here, so -4 is the log's start, and -5 and -6 are unknown (-1). A Kafka without tiered
storage answers the same. With isolation level read_committed, latest is the last stable offset, and searches end there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headgate.broker.cluster.acl import Operation
from headgate.broker.engine.read import view
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.server.kafka.leads import check_leader_epoch, epoch_at, find_doubt
from headgate.broker.server.kafka.requests import repeated
from headgate.broker.server.kafka.rules import on_partitions
from headgate.broker.wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from headgate.broker.engine.partition.log import PartitionLog

READ_COMMITTED = 1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_VERSION_MIN = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
EPOCHS_VERSION_MIN = 4

LOOKUPS_MAX = 16
"""Partitions of one request that are searched at the same time."""


async def handle(request: ListOffsetsRequest, context: Context) -> ListOffsetsResponse:
    each = context.turn.each
    twice = await repeated(
        context, ((topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions)
    )
    doubt = await find_doubt(context)
    searches: list[tuple[str, ListOffsetsPartition, ListOffsetsPartitionResponse]] = []
    response = ListOffsetsResponse()
    committed = request.isolation_level == READ_COMMITTED
    async for topic in each(request.topics):
        answers = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answers)
        async for partition in each(topic.partitions):
            answer = ListOffsetsPartitionResponse(partition_index=partition.partition_index)
            answers.partitions.append(answer)
            if (topic.name, partition.partition_index) in twice:
                answer.error_code = ErrorCode.INVALID_REQUEST
            elif partition.timestamp < 0 and context.api_version < _VERSION_MIN.get(partition.timestamp, 1 << 15):
                answer.error_code = ErrorCode.UNSUPPORTED_VERSION
            elif partition.timestamp >= 0 or partition.timestamp == MAX_TIMESTAMP:
                searches.append((topic.name, partition, answer))
            else:
                _name(topic.name, partition, answer, context, doubt, committed=committed)
    left = iter(searches)
    await asyncio.gather(*(_search_all(left, context, doubt, committed=committed) for _ in range(min(len(searches), LOOKUPS_MAX))))
    return response


def _find(topic: str, row: ListOffsetsPartition, context: Context, doubt: HeadgateError | None) -> PartitionLog:
    """The partition, if this broker certainly leads it. Raises HeadgateError."""
    log = context.engine.partition(context.engine.topic(topic), row.partition_index)
    check_leader_epoch(log, row.current_leader_epoch)
    if doubt is not None:
        raise doubt
    if log.refusal is not None:
        raise log.refusal
    return log


def _name(
    topic: str,
    row: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
    context: Context,
    doubt: HeadgateError | None,
    *,
    committed: bool,
) -> None:
    """Answer a named offset, which needs no search."""
    try:
        log = _find(topic, row, context, doubt)
    except HeadgateError as error:
        answer.error_code = error_code(error)
        return
    if row.timestamp == LATEST:
        answer.offset = log.stable_end if committed else log.high_watermark
        log.readers.asked_end(context.reader, answer.offset)
        _set_epoch(answer, log, context)
    elif row.timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = log.log_start
        log.readers.asked_start(context.reader)
        _set_epoch(answer, log, context)


async def _search_all(
    left: Iterator[tuple[str, ListOffsetsPartition, ListOffsetsPartitionResponse]],
    context: Context,
    doubt: HeadgateError | None,
    *,
    committed: bool,
) -> None:
    """Answer the remaining searches, one after another."""
    async for topic, row, answer in context.turn.each(left):
        await _search(topic, row, answer, context, doubt, committed=committed)


async def _search(
    topic: str,
    row: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
    context: Context,
    doubt: HeadgateError | None,
    *,
    committed: bool,
) -> None:
    """Answer a request for an offset that must be searched in records."""
    engine = context.engine
    try:
        log = _find(topic, row, context, doubt)
        if row.timestamp == MAX_TIMESTAMP:
            found = await engine.max_timestamp(log)
        else:
            found = await engine.offset_for_timestamp(log, row.timestamp)
    except HeadgateError as error:
        answer.error_code = error_code(error)
        return
    if found is not None and not (committed and found[1] >= log.stable_end):
        answer.timestamp, answer.offset = found
        view.seek(log, context.reader, answer.offset)
        _set_epoch(answer, log, context)


def _set_epoch(answer: ListOffsetsPartitionResponse, log: PartitionLog, context: Context) -> None:
    if context.api_version >= EPOCHS_VERSION_MIN:
        answer.leader_epoch = epoch_at(log, answer.offset)


API = Api(
    2,
    versions=(1, 11),
    flexible_from=6,
    request=ListOffsetsRequest,
    handle=handle,
    rule=on_partitions(Operation.DESCRIBE, ListOffsetsTopicResponse, ListOffsetsPartitionResponse),
)
