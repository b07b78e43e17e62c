"""ACLs between Kafka's messages and `cluster/acl.py`. Headgate's own resource types stay out of messages of Kafka's clients. Its
own clients (`Context.is_carried`) know them, and set up rules before authorization is switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from headgate.broker.cluster.acl import KAFKA_RESOURCES, Acl, AclFilter, Operation, Pattern, Permission, Resource
from headgate.broker.runtime.errors import InvalidError, Reason

if TYPE_CHECKING:
    from headgate.broker.server.kafka.context import Context

SECURITY_DISABLED_TEXT = "No Authorizer is configured."
"""Kafka's own text: tools look for it."""

_Code = TypeVar("_Code", Resource, Pattern, Operation, Permission)


def filter_of(
    resource: int, name: str | None, pattern: int, principal: str | None, host: str | None, operation: int, permission: int
) -> AclFilter:
    """A filter from the codes of a request. Raises InvalidError for an unknown code."""
    return AclFilter(
        resource=_code(Resource, resource, "resource type"),
        name=name,
        pattern=_code(Pattern, pattern, "pattern type"),
        principal=principal,
        host=host,
        operation=_code(Operation, operation, "operation"),
        permission=_code(Permission, permission, "permission type"),
    )


def is_off(context: Context) -> bool:
    """Whether requests about rules are refused: no rule is in force."""
    return context.settings.authorization == "none" and not context.is_carried


def acl_of(
    resource: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int, *, is_carried: bool
) -> Acl:
    """A rule from the codes of a request. Raises InvalidError for an unknown code."""
    kind = _code(Resource, resource, "resource type")
    if kind not in KAFKA_RESOURCES and not is_carried:
        raise InvalidError(Reason.INVALID_REQUEST, f"resource type is not known. code=`{resource}`")
    return Acl(
        resource=kind,
        name=name,
        pattern=_code(Pattern, pattern, "pattern type"),
        principal=principal,
        host=host,
        operation=_code(Operation, operation, "operation"),
        permission=_code(Permission, permission, "permission type"),
    )


def shown(context: Context) -> list[Acl]:
    """The rules that the client can read."""
    acls = context.engine.manifest.access.acls.all
    return [acl for acl in acls if context.is_carried or acl.resource in KAFKA_RESOURCES]


def _code(kind: type[_Code], code: int, what: str) -> _Code:
    try:
        return kind(code)
    except ValueError as error:
        raise InvalidError(Reason.INVALID_REQUEST, f"{what} is not known. code=`{code}`") from error


def rule_text(row: Any, resource: int, name: str | None, principal: str | None) -> str:
    """A rule, or a filter of rules, in words for the audit log."""
    return (
        f"{_word(Permission, row.permission_type)} {principal or '*'} {_word(Operation, row.operation)} "
        f"{_word(Resource, resource)} {name or '*'}"
    )


def _word(kind: type[Permission] | type[Operation] | type[Resource], number: int) -> str:
    return kind(number).name.lower() if number in kind._value2member_map_ else str(number)
