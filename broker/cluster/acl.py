"""The rules of authorization: Kafka's ACLs, and Headgate's own powers in the same form. No I/O.

An ACL says that a principal may, or may not, do an operation on resources, from a host. The rules are those of Kafka's
StandardAuthorizer:

1. A super user may do everything.
2. A matching DENY wins over every ALLOW.
3. Without a match nothing is allowed.
4. `All` as operation matches every operation. ALLOW of Read, Write, Delete or Alter implies Describe, and AlterConfigs implies
   DescribeConfigs; DENY implies nothing.
5. A resource pattern is literal, or a prefix; the literal name `*` matches every name.
6. The host is `*`, an address, or a network in CIDR form (KIP-1115). The principal `User:*` is everyone.

Headgate's own resource types stand beside Kafka's. Kafka's tools do not know them, so they are never shown to Kafka clients.

- `gate`, by topic: Create opens gates, Alter fills, renews and releases them, Describe shows them.
- `file`, by URL: Read lets gates refer to files outside the topic's own prefix. The setting `gate_allowed_prefixes` bounds all.
- `capacity`, one resource named `cluster`: Create, Alter and Delete of reservations, Describe.
- `broker`, by number: Alter splits, merges, moves and drains.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar

import msgspec

from headgate.broker.runtime.addresses import decoded, is_in
from headgate.broker.runtime.errors import InvalidError, Reason

ANYONE = "User:*"
ANONYMOUS = "User:ANONYMOUS"
"""A client without a login, as in Kafka."""
WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type Cluster, as in Kafka."""
CAPACITY_NAME = "cluster"


class Operation(IntEnum):
    """Kafka's codes (org.apache.kafka.common.acl.AclOperation)."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Resource(IntEnum):
    """Kafka's codes (org.apache.kafka.common.resource.ResourceType), and from 100 on Headgate's own."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    GATE = 100
    FILE = 101
    CAPACITY = 102
    BROKER = 103


KAFKA_RESOURCES = frozenset((Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID))


class Pattern(IntEnum):
    """Kafka's codes (org.apache.kafka.common.resource.PatternType). ANY and MATCH occur in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's codes (org.apache.kafka.common.acl.AclPermissionType). ANY occurs in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_Word = TypeVar("_Word", Resource, Pattern, Operation, Permission)

VALID: dict[Resource, frozenset[Operation]] = {
    Resource.TOPIC: frozenset(
        (
            Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        )
    ),
    Resource.GROUP: frozenset(
        (Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    ),
    Resource.CLUSTER: frozenset(
        (
            Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
        )
    ),
    Resource.TRANSACTIONAL_ID: frozenset((Operation.WRITE, Operation.DESCRIBE)),
    Resource.GATE: frozenset((Operation.CREATE, Operation.ALTER, Operation.DESCRIBE)),
    Resource.FILE: frozenset((Operation.READ,)),
    Resource.CAPACITY: frozenset((Operation.CREATE, Operation.ALTER, Operation.DELETE, Operation.DESCRIBE)),
    Resource.BROKER: frozenset((Operation.ALTER, Operation.DESCRIBE)),
}  # fmt: skip
"""The operations that a resource type has, besides All."""

_IMPLYING = {
    Operation.DESCRIBE: frozenset((Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)),
}


class Acl(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One rule. The numbers are Kafka's codes."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def covers(self, name: str) -> bool:
        """Whether the rule is about a resource of this name."""
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects ACLs as Kafka's AclBindingFilter does. None and ANY select all; MATCH selects every pattern that covers `name`."""

    resource: Resource = Resource.ANY
    name: str | None = None
    pattern: Pattern = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def selects(self, acl: Acl) -> bool:
        if self.resource not in (Resource.ANY, acl.resource) or self.operation not in (Operation.ANY, acl.operation):
            return False
        if self.permission not in (Permission.ANY, acl.permission) or self.principal not in (None, acl.principal):
            return False
        if self.host not in (None, acl.host) or self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        return acl.covers(self.name) if self.pattern is Pattern.MATCH else acl.name == self.name


def fault(acl: Acl) -> str | None:
    """What is wrong with a rule, or None."""
    valid = VALID.get(acl.resource)
    if valid is None:
        return f"ACLs are about topics, groups, the cluster and transactional ids. resource=`{acl.resource.name.lower()}`"
    if acl.operation is not Operation.ALL and acl.operation not in valid:
        return (
            f"the resource has no such operation. resource=`{acl.resource.name.lower()}` operation=`{acl.operation.name.lower()}`"
        )
    if acl.pattern not in (Pattern.LITERAL, Pattern.PREFIXED) or acl.permission not in (Permission.ALLOW, Permission.DENY):
        return "a rule is literal or prefixed, and allows or denies"
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        return f"a principal is written TYPE:NAME, such as User:alice. principal=`{acl.principal[:100]}`"
    if not acl.name or (acl.resource is Resource.CLUSTER and acl.name not in (CLUSTER_NAME, WILDCARD)):
        return f"the resource has no such name. name=`{acl.name[:100]}`"
    if acl.host != WILDCARD:
        try:
            ipaddress.ip_network(acl.host, strict=False)
        except ValueError:
            return f"a host is *, an address, or a network such as 10.0.0.0/8. host=`{acl.host[:100]}`"
    return None


def word(kind: type[_Word], text: str) -> _Word:
    """The code of a word for a rule. Raises InvalidError(INVALID_REQUEST)."""
    try:
        return kind[text.strip().upper().replace("-", "_")]
    except KeyError as error:
        known = ", ".join(member.name.lower() for member in kind)
        raise InvalidError(Reason.INVALID_REQUEST, f"unknown word for a rule. word=`{text[:50]}` known=`{known}`") from error


def spelled(resource: str, name: str) -> tuple[str, str]:
    """The name and the pattern that a person means: ``clicks*`` is a prefix, and the cluster has one name in Kafka."""
    if name.endswith(WILDCARD) and len(name) > 1:
        return name.removesuffix(WILDCARD), "prefixed"
    return CLUSTER_NAME if resource.lower() == "cluster" and name == "cluster" else name, "literal"


def from_words(*, resource: str, name: str, pattern: str, principal: str, host: str, operation: str, permission: str) -> Acl:
    """A rule from words. Raises InvalidError(INVALID_REQUEST) for one that is wrong."""
    acl = Acl(
        resource=word(Resource, resource),
        name=name,
        pattern=word(Pattern, pattern or "literal"),
        principal=principal,
        host=host or WILDCARD,
        operation=word(Operation, operation),
        permission=word(Permission, permission or "allow"),
    )
    if wrong := fault(acl):
        raise InvalidError(Reason.INVALID_REQUEST, wrong)
    return acl


class Acls:
    """All rules, arranged for questions: by resource type, the literal ones by name, the prefixed ones by prefix.

    `questions` look at the rules of one name, of `*`, and of each prefix of the name, so they cost the same with many rules.
    """

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self.all: dict[Acl, None] = {}
        self._literal: dict[tuple[Resource, str], dict[Acl, None]] = {}
        self._prefixed: dict[tuple[Resource, str], dict[Acl, None]] = {}
        self._by_principal: dict[tuple[Resource, str], dict[Acl, None]] = {}
        for acl in acls:
            self.add(acl)

    def add(self, acl: Acl) -> None:
        if acl in self.all:
            return
        self.all[acl] = None
        self._of(acl).setdefault((acl.resource, _indexed(acl.resource, acl.name)), {})[acl] = None
        self._by_principal.setdefault((acl.resource, acl.principal), {})[acl] = None

    def remove(self, acl: Acl) -> None:
        if acl not in self.all:
            return
        del self.all[acl]
        for table, key in ((self._of(acl), _indexed(acl.resource, acl.name)), (self._by_principal, acl.principal)):
            rows = table[acl.resource, key]
            del rows[acl]
            if not rows:
                del table[acl.resource, key]

    def _of(self, acl: Acl) -> dict[tuple[Resource, str], dict[Acl, None]]:
        return self._prefixed if acl.pattern is Pattern.PREFIXED else self._literal

    def about(self, resource: Resource, name: str) -> list[Acl]:
        """The rules about a resource."""
        name = _indexed(resource, name)
        found = list(self._literal.get((resource, name), ()))
        if name != WILDCARD:
            found += self._literal.get((resource, WILDCARD), ())
        if self._prefixed:
            for end in range(1, len(name) + 1):
                found += self._prefixed.get((resource, name[:end]), ())
        return found

    def allows(self, principals: Iterable[str], host: str, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the rules allow an operation.

        Args:
            principals: of the client. `User:*` is added here.
            host: the client's address.
        """
        who = {*principals, ANYONE}
        implying = _IMPLYING.get(operation, frozenset((operation,)))
        allowed = False
        for acl in self.about(resource, name):
            if acl.principal not in who or not _from(acl.host, host):
                continue
            if acl.permission is Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            elif acl.operation is Operation.ALL or acl.operation in implying:
                allowed = True
        return allowed

    def allows_some(self, principals: Iterable[str], host: str, operation: Operation, resource: Resource) -> bool:
        """Whether the operation is allowed on any resource of a type, also on one that does not exist yet (Kafka's
        authorizeByResourceType)."""
        who = {*principals, ANYONE}
        rows = [acl for principal in who for acl in self._by_principal.get((resource, principal), ()) if _from(acl.host, host)]
        implying = _IMPLYING.get(operation, frozenset((operation,)))
        denied = [acl for acl in rows if acl.permission is Permission.DENY and acl.operation in (operation, Operation.ALL)]
        if any(acl.name == WILDCARD and acl.pattern is Pattern.LITERAL for acl in denied):
            return False
        names = {rule.name for rule in denied if rule.pattern is Pattern.LITERAL}
        prefixes = tuple(rule.name for rule in denied if rule.pattern is Pattern.PREFIXED)
        return any(
            acl.permission is Permission.ALLOW
            and (acl.operation is Operation.ALL or acl.operation in implying)
            and not acl.name.startswith(prefixes)
            and not (acl.pattern is Pattern.LITERAL and acl.name in names)
            for acl in rows
        )


def _from(rule: str, host: str) -> bool:
    return rule == WILDCARD or is_in(host, rule)


def _indexed(resource: Resource, name: str) -> str:
    """The name under which rules are looked up. A file is opened by its decoded URL, so that is what rules are about: `%73ecret` is
    `secret`."""
    return decoded(name) if resource is Resource.FILE else name
