"""Requests of Kafka clients in the audit log: a line for each administrative act, and for each request that was refused.

The file of an API says whether it is an act, and which names it is about (`declared.Api.act`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from headgate.broker.cluster.acl import ANONYMOUS
from headgate.broker.server.audit.audit import TARGETS_MAX, Audit, Caller
from headgate.broker.server.kafka.api_names import API_NAMES
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Act, Api, authorized
from headgate.broker.server.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from headgate.broker.server.access.rights import Identity

Message = Any
"""A generated message: each row knows its own."""

REFUSALS = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
ROWS_MAX = 8
"""Rows at the end of each list of an answer that are searched for refusals, which stand there: an answer may have very many."""
NAMES = ("name", "topic", "resource_name", "group_id", "user", "key", "transactional_id")
"""Fields that name what a row is about."""
FOREIGN_NAMES_MAX = TARGETS_MAX + 1_000
"""Names that are taken out of one request."""


def rows(field: str, name: str = "name") -> Callable[[Message], Iterator[str]]:
    """An act that is about the names in the rows of a field."""
    return lambda request: (str(getattr(item, name)) for item in getattr(request, field))


async def answered(api: Api, message: Message, context: Context, identity: Identity | None) -> Message:
    """The handler's answer, as far as the client may have it, noted in the audit log."""
    audit, rights = context.audit, context.rights
    names = begin(audit, api.act or (api.act_carried if context.is_carried else None), message)
    if rights is None:
        answer: Message = await api.handle(message, context)
    else:
        answer = await authorized(api, message, context, rights)
    if audit is not None and (names is not None or rights is not None):
        end(audit, api.key, names, caller(identity, context), answer)
    return answer


def begin(audit: Audit | None, act: Act | None, request: Message) -> list[str] | None:
    """The names in an administrative request, before it is handled; None for other requests, and for those that only try."""
    if audit is None or act is None or getattr(request, "validate_only", False):
        return None
    return targets(act, request)


def targets(act: Act, request: Message) -> list[str]:
    """The names in an administrative request, before its handler or its rule changes it."""
    return list(islice(act(request), FOREIGN_NAMES_MAX))


def caller(identity: Identity | None, context: Context) -> Caller:
    who = ANONYMOUS if identity is None else identity.principal
    return Caller(who=who, host=context.client_host, door=context.door, client_id=context.client_id or "")


def end(audit: Audit, key: int, names: list[str] | None, caller: Caller, answer: Message) -> None:
    """Note how a request ended."""
    failed, codes = errors(answer)
    is_refused = bool(codes & REFUSALS)
    if names is None:
        if is_refused:
            audit.refused(API_NAMES[key], caller, failed, ", ".join(sorted(code.name.lower() for code in codes)))
        return
    reason = ", ".join(sorted(code.name.lower() for code in codes))
    audit.did(API_NAMES[key], caller, names, error=reason, refused=is_refused)


def errors(response: Message) -> tuple[list[str], set[ErrorCode]]:
    """The names and codes of an answer's errors, as far as they stand at the end of its lists."""
    names: list[str] = []
    codes: set[ErrorCode] = set()
    _search(response, names, codes, "", 0)
    return names, codes


def _search(row: Message, names: list[str], codes: set[ErrorCode], name: str, depth: int) -> None:
    code = getattr(row, "error_code", 0)
    name = next((found for field in NAMES if isinstance(found := getattr(row, field, None), str) and found), name)
    if code:
        codes.add(ErrorCode(code))
        if name:
            names.append(name)
        return
    if depth < 3:
        for field in type(row).__slots__:
            value = getattr(row, field)
            if isinstance(value, list):
                for item in value[-(ROWS_MAX if depth == 0 else 1) :]:
                    if hasattr(type(item), "__slots__"):
                        _search(item, names, codes, name, depth + 1)
