"""Functions and constants that several handlers of Kafka APIs share."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

from headgate.broker.cluster.topic_config import validate_topic_name
from headgate.broker.groups.shard import RowsReply
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.errors import ErrorCode, error_code

if TYPE_CHECKING:
    from collections.abc import Collection

    from headgate.broker.cluster.manifest import Incarnation, Topic
    from headgate.broker.engine.partition.log import PartitionLog
    from headgate.broker.server.kafka.context import Context

NO_OPERATIONS = -(2**31)
"""Authorized operations if the client did not ask for them."""
TOPIC_OPERATIONS = 0b1101_1111_1000
"""Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs: Kafka's answer without an authorizer."""
GROUP_OPERATIONS = 0b1_0100_1000
"""Read, Delete, Describe."""
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
"""Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite."""

ID_UNKNOWN = -1
"""Kafka's "none" for offsets, timestamps, epochs, producers."""

ROWS_MAX = 250
"""Positions that a group handles in one turn of the loop; they take it about two milliseconds."""

_Key = TypeVar("_Key", bound=Hashable)
_Row = TypeVar("_Row")


def broker_address(broker: Incarnation, context: Context) -> tuple[str, int]:
    """(host, port) of a broker's Kafka port. For this broker it is the address that its listener announces."""
    if broker.id == context.engine.incarnation_id or not broker.host:
        return context.host, context.port
    return broker.host, broker.kafka_port


def lead_of(topic: Topic, number: int, context: Context) -> tuple[ErrorCode, int, int]:
    """The lead of a partition: error code, broker id, leader epoch. For a moment there may be no lead: clients then ask again."""
    lead = context.engine.lead(topic.id, number)
    if lead is None:
        return ErrorCode.LEADER_NOT_AVAILABLE, ID_UNKNOWN, ID_UNKNOWN
    return ErrorCode.NONE, lead[0].broker_id, lead[1]


async def repeated(context: Context, keys: Iterable[_Key]) -> set[_Key]:
    """The keys that occur more than once."""
    seen: set[_Key] = set()
    twice: set[_Key] = set()
    async for key in context.turn.each(keys):
        (twice if key in seen else seen).add(key)
    return twice


async def in_portions(context: Context, rows: list[_Row], act: Callable[[list[_Row]], Awaitable[RowsReply]]) -> RowsReply:
    """Have a group act on many rows, ROWS_MAX at a time, and wait for all. The reply is equal to that of one act on all rows.

    A group handles a portion in one turn of the loop. The portions are written one after another and become durable together. If
    a portion is refused, earlier portions may be done: the client gets the error, and sends all of them again.
    """
    acts: list[asyncio.Task[RowsReply]] = []
    try:
        if len(rows) <= ROWS_MAX:
            return await act(rows)
        async for at in context.turn.each(range(0, len(rows), ROWS_MAX)):
            acts.append(asyncio.ensure_future(act(rows[at : at + ROWS_MAX])))
            await asyncio.sleep(0)  # the group adds it to the log
        replies = [await one for one in acts]
    except HeadgateError as error:
        return RowsReply(error=error.reason)
    finally:
        for one in acts:
            one.cancel()
        await asyncio.gather(*acts, return_exceptions=True)
    refused = next((reply.error for reply in replies if reply.error is not None), None)
    return RowsReply(() if refused else tuple(error for reply in replies for error in reply.errors), refused)


def unknown_topic_code(name: str) -> ErrorCode:
    """The error for a topic that does not exist: unknown, or an invalid name."""
    try:
        validate_topic_name(name)
    except InvalidError as error:
        return error_code(error)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def find_doubt(context: Context) -> HeadgateError | None:
    """The error if another broker may lead this broker's partitions by now, or None. Check it before an answer reports an end of
    a partition."""
    try:
        await context.engine.confirm()
    except HeadgateError as error:
        return error
    return None


async def find_group_doubt(context: Context) -> HeadgateError | None:
    """The error if another broker may hold this broker's groups by now, or None. Check it before an answer reports the state of
    a group."""
    try:
        await context.groups.confirm()
    except HeadgateError as error:
        return error
    return None


def check_leader_epoch(log: PartitionLog, current_leader_epoch: int) -> None:
    """Compare the client's leader epoch (-1: it sent none) with the partition's (KIP-320).

    Raises:
        InvalidError: FENCED_LEADER_EPOCH if the client's epoch is older, UNKNOWN_LEADER_EPOCH if it is newer.
    """
    if current_leader_epoch in (ID_UNKNOWN, log.leader_epoch):
        return
    older = current_leader_epoch < log.leader_epoch
    raise InvalidError(
        Reason.FENCED_LEADER_EPOCH if older else Reason.UNKNOWN_LEADER_EPOCH,
        f"leader epoch is not the partition's. topic=`{log.topic.name}` partition=`{log.number}` epoch=`{current_leader_epoch}` "
        f"current=`{log.leader_epoch}`",
    )


def epoch_at(log: PartitionLog, offset: int) -> int:
    """The leader epoch in which the record at `offset` was written, or would be written next; -1 if it is unknown."""
    row = bisect_right(log.epochs, offset, key=lambda epoch: epoch[1]) - 1
    return log.epochs[row][0] if row >= 0 else ID_UNKNOWN


def check_assignment(brokers: Collection[int], replicas: list[int]) -> None:
    """Check the replicas that a client assigned to one partition. Raises InvalidError(INVALID_REPLICA_ASSIGNMENT).

    Args:
        brokers: ids of the existing brokers.
        replicas: broker ids; the first one would lead.
    """
    if not replicas:
        raise InvalidError(Reason.INVALID_REPLICA_ASSIGNMENT, "manual assignment has a partition without replicas")
    if len(set(replicas)) != len(replicas):
        raise InvalidError(Reason.INVALID_REPLICA_ASSIGNMENT, "manual assignment has a broker twice for one partition")
    for broker_id in replicas:
        if broker_id not in brokers:
            raise InvalidError(
                Reason.INVALID_REPLICA_ASSIGNMENT, f"manual assignment has an unknown broker. broker_id=`{broker_id}`"
            )
