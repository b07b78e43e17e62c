"""ListTransactions (66), versions 0-2: the transactional ids that this broker coordinates.

Filters: states, producer ids, the age of the transaction (version 1), and a regular expression for the id (version 2, KIP-1152),
which must match the whole id.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.transactions.records import State, Transaction
from headgate.broker.wire.kafka.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

PATTERN_CHARS_MAX = 249
"""Longest pattern. Python's expressions may take exponential time, and ids are short, so patterns with nested repetition are
refused."""
_NESTED = re.compile(r"[*+}]\)?[*+{]|\)[*+{]")


async def handle(request: ListTransactionsRequest, context: Context) -> ListTransactionsResponse:
    names = {state.shown: state for state in State}
    unknown: list[str] = []
    wanted: set[State] = set()
    each = context.turn.each
    async for name in each(request.state_filters):
        if name in names:
            wanted.add(names[name])
        else:
            unknown.append(name)
    producers = {producer_id async for producer_id in each(request.producer_id_filters)}
    try:
        pattern = _pattern(request.transactional_id_pattern)
        await context.transactions.topic.confirm()
        rows = context.transactions.list_all()
        states = [
            TransactionState(
                transactional_id=transactional_id,
                producer_id=known.producer_id,
                transaction_state=known.state.shown,
            )
            async for transactional_id, known in each(rows)
            if _matches(request, wanted, producers, known, context) and (pattern is None or pattern.fullmatch(transactional_id))
        ]
    except re.error:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    except HeadgateError as error:
        return ListTransactionsResponse(error_code=error_code(error))
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=states)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    """Raises re.error."""
    if not text:
        return None
    if len(text) > PATTERN_CHARS_MAX or _NESTED.search(text):
        raise re.error("pattern is too long, or has nested repetition", text[:PATTERN_CHARS_MAX])
    return re.compile(text)


def _matches(
    request: ListTransactionsRequest, wanted: set[State], producers: set[int], known: Transaction, context: Context
) -> bool:
    if request.state_filters and known.state not in wanted:
        return False
    if producers and known.producer_id not in producers:
        return False
    if request.duration_filter < 0:
        return True
    return known.start_ms >= 0 and context.engine.clock.now_ms() - known.start_ms > request.duration_filter


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    response = yield None
    await asked.drop(response.transaction_states, lambda state: _describes(asked, state.transactional_id))


def _describes(asked: Asked, transactional_id: str) -> bool:
    return asked.rights.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id)


API = Api(66, versions=(0, 2), flexible_from=0, request=ListTransactionsRequest, handle=handle, rule=rule)
