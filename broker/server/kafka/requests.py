"""Work on the rows of a request: repeated keys, portions for a group, checks of names and of assigned replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

from headgate.broker.cluster.topic_config import validate_topic_name
from headgate.broker.groups.entry import RowsReply
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.errors import ErrorCode, error_code, reason_code

if TYPE_CHECKING:
    from collections.abc import Collection

    from headgate.broker.server.kafka.context import Context

ROWS_MAX = 250
"""Positions that a group handles in one turn of the loop; they take it about two milliseconds."""

_Key = TypeVar("_Key", bound=Hashable)
_Row = TypeVar("_Row")


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
        replies = [await act for act in acts]
    except HeadgateError as error:
        return RowsReply(error=error.reason)
    finally:
        for task in acts:
            task.cancel()
        await asyncio.gather(*acts, return_exceptions=True)
    refused = next((reply.error for reply in replies if reply.error is not None), None)
    return RowsReply(() if refused else tuple(error for reply in replies for error in reply.errors), refused)


def fenced_code(reason: Reason | None, knows_fenced: bool) -> ErrorCode:
    """The error of a request of a transactional producer. Versions that do not know PRODUCER_FENCED get the older code."""
    code = reason_code(reason)
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and not knows_fenced else code


def unknown_topic_code(name: str) -> ErrorCode:
    """The error for a topic that does not exist: unknown, or an invalid name."""
    try:
        validate_topic_name(name)
    except InvalidError as error:
        return error_code(error)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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
