"""What the audit log says about requests of Kafka clients: the administrative APIs, the names in them, and how they ended.

`tests/unit/access/test_audit.py` proves that every API is an act or one of those that change nothing that an administrator decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from headgate.broker.cluster.acl import Operation, Permission, Resource
from headgate.broker.server.audit.audit import TARGETS_MAX
from headgate.broker.server.kafka.errors import ErrorCode

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


def _rows(field: str, name: str = "name") -> Callable[[Message], Iterator[str]]:
    return lambda request: (str(getattr(one, name)) for one in getattr(request, field))


def _deleted(request: Message) -> Iterator[str]:
    yield from request.topic_names
    for one in request.topics:
        yield one.name or str(one.topic_id)


def _acls(request: Message) -> Iterator[str]:
    for one in request.creations:
        yield _rule(one, one.resource_type, one.resource_name, one.principal)


def _filters(request: Message) -> Iterator[str]:
    for one in request.filters:
        yield _rule(one, one.resource_type_filter, one.resource_name_filter, one.principal_filter)


def _rule(one: Message, resource: int, name: str | None, principal: str | None) -> str:
    return (
        f"{_word(Permission, one.permission_type)} {principal or '*'} {_word(Operation, one.operation)} "
        f"{_word(Resource, resource)} {name or '*'}"
    )


def _word(kind: type[Permission] | type[Operation] | type[Resource], number: int) -> str:
    return kind(number).name.lower() if number in kind._value2member_map_ else str(number)


def _quotas(request: Message) -> Iterator[str]:
    for entry in request.entries:
        yield ", ".join(f"{one.entity_type} {one.entity_name or '(default)'}" for one in entry.entity)


def _users(request: Message) -> Iterator[str]:
    yield from dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))


def _elected(request: Message) -> Iterator[str]:
    if request.topic_partitions is None:
        yield "every topic"
    for one in request.topic_partitions or ():
        yield one.topic


def _markers(request: Message) -> Iterator[str]:
    for marker in request.markers:
        yield from (f"producer {marker.producer_id} in {topic.name}" for topic in marker.topics)


ACTS: dict[int, Callable[[Message], Iterator[str]]] = {
    19: _rows("topics"),
    20: _deleted,
    21: _rows("topics"),
    27: _markers,
    30: _acls,
    31: _filters,
    33: _rows("resources", "resource_name"),
    37: _rows("topics"),
    42: lambda request: iter(request.groups_names),
    43: _elected,
    44: _rows("resources", "resource_name"),
    45: _rows("topics"),
    47: lambda request: iter((request.group_id,)),
    49: _quotas,
    51: _users,
    57: _rows("feature_updates", "feature"),
}
"""By API key: the names of what an act is about."""


def targets(key: int, request: Message) -> list[str]:
    """The names in an administrative request, before its handler or its rule changes it."""
    return list(islice(ACTS[key](request), FOREIGN_NAMES_MAX))


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
                for one in value[-(ROWS_MAX if depth == 0 else 1) :]:
                    if hasattr(type(one), "__slots__"):
                        _search(one, names, codes, name, depth + 1)
