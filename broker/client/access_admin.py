"""Users, rules and quotas of a cluster. Passwords stay here: the cluster gets salted verifiers. Rules and quotas are Kafka's own
requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headgate.broker.access_requests import ABOUT, ACCESS, check_created, creations, described, rule_of, verifiers
from headgate.broker.client import kafka
from headgate.broker.client.cluster import ClusterClient
from headgate.broker.cluster import acl as acl_codes
from headgate.broker.cluster.acl import Operation, Pattern, Permission, Resource
from headgate.broker.cluster.quotas import PARTS
from headgate.broker.runtime.errors import Reason
from headgate.broker.wire.grpc.headgate.v1 import access_pb2
from headgate.broker.wire.kafka.messages import alter_client_quotas
from headgate.broker.wire.kafka.messages.create_acls import CreateAclsResponse
from headgate.broker.wire.kafka.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headgate.broker.wire.kafka.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from headgate.broker.wire.kafka.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse


@dataclass(frozen=True, slots=True)
class User:
    """A user. `mechanisms`: the logins that its password allows."""

    name: str
    superuser: bool
    mechanisms: tuple[str, ...]
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """A rule, or a filter for rules: then "" selects all. The words are those of `headgate acl`."""

    resource: str = ""
    name: str = ""
    pattern: str = ""
    principal: str = ""
    host: str = ""
    operation: str = ""
    permission: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quotas of one entity by Kafka's names. A name that is None: not limited to such a name; "": every name without a quota of its
    own."""

    user: str | None = None
    client_id: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)


class AccessAdmin(ClusterClient):
    """Manages users, rules and quotas. An async context manager. Methods raise HeadgateError."""

    async def create_user(self, name: str, password: str, *, superuser: bool = False) -> None:
        """Create a user. Raises InvalidError(USER_EXISTS)."""
        request = access_pb2.CreateUserRequest(name=name, verifiers=await verifiers(password), superuser=superuser)
        await self._cluster.change(ACCESS["CreateUser"], request, already=Reason.USER_EXISTS)

    async def set_password(self, name: str, password: str) -> None:
        """Change a password. Connections that exist stay logged in. Raises InvalidError(UNKNOWN_USER)."""
        request = access_pb2.SetPasswordRequest(name=name, verifiers=await verifiers(password))
        await self._cluster.call(ACCESS["SetPassword"], request, retry=True)

    async def delete_user(self, name: str) -> None:
        """Delete a user. Its rules stay. Raises InvalidError(UNKNOWN_USER, POLICY_VIOLATION)."""
        await self._cluster.change(ACCESS["DeleteUser"], access_pb2.DeleteUserRequest(name=name), already=Reason.UNKNOWN_USER)

    async def users(self) -> list[User]:
        """All users, by name."""
        response: access_pb2.ListUsersResponse = await self._cluster.call(
            ACCESS["ListUsers"], access_pb2.ListUsersRequest(), retry=True
        )
        return [User(row.name, row.superuser, tuple(row.mechanisms), row.created_ms) for row in response.users]

    async def add_acls(self, acls: list[Acl]) -> None:
        """Add rules, all or none; a rule that is there already is no error. Raises InvalidError for the first one that is wrong."""
        rules = [acl_codes.from_words(**asdict(acl)) for acl in acls]
        await kafka.change(self._cluster, creations(rules), CreateAclsResponse, check_created)

    async def remove_acls(self, chosen: Acl) -> list[Acl]:
        """Remove the rules that a filter selects. Returns them."""
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter(chosen))])

        result = await kafka.change(self._cluster, request, DeleteAclsResponse, kafka.first("filter_results", ABOUT))
        assert result is not None, "nothing but the answer confirms a removal"
        return _sorted([rule_of(row, row) for row in result.matching_acls])

    async def acls(self, chosen: Acl | None = None) -> list[Acl]:
        """The rules that a filter selects; all without one."""
        request = DescribeAclsRequest(**_filter(chosen or Acl()))
        return _sorted(await kafka.ask(self._cluster, request, DescribeAclsResponse, described))

    async def set_quotas(self, quota: Quota) -> None:
        """Set quotas of an entity; its others stay. Raises InvalidError for a wrong name or value."""
        await self._alter_quotas(quota, remove=False)

    async def remove_quotas(self, quota: Quota) -> None:
        """Remove quotas of an entity; their values do not matter."""
        await self._alter_quotas(quota, remove=True)

    async def _alter_quotas(self, quota: Quota, *, remove: bool) -> None:
        names = zip(PARTS, (quota.user, quota.client_id), strict=True)
        entry = alter_client_quotas.EntryData(
            entity=[
                alter_client_quotas.EntityData(entity_type=word, entity_name=name or None)
                for word, name in names
                if name is not None
            ],
            ops=[alter_client_quotas.OpData(key=key, value=value, remove=remove) for key, value in quota.values.items()],
        )

        request = alter_client_quotas.AlterClientQuotasRequest(entries=[entry])
        read = kafka.first("entries", ABOUT)
        await kafka.change(self._cluster, request, alter_client_quotas.AlterClientQuotasResponse, read)

    async def quotas(self) -> list[Quota]:
        """All quotas."""

        def read(answer: DescribeClientQuotasResponse) -> list[Quota]:
            kafka.check(answer.error_code, answer.error_message, ABOUT)
            found = []
            for row in answer.entries or ():
                names = {part.entity_type.replace("-", "_"): part.entity_name or "" for part in row.entity}
                found.append(Quota(**names, values={value.key: value.value for value in row.values}))
            return sorted(found, key=str)

        return await kafka.ask(self._cluster, DescribeClientQuotasRequest(components=[]), DescribeClientQuotasResponse, read)


def _filter(acl: Acl) -> dict[str, Any]:
    """The fields of a filter."""
    return {
        "resource_type_filter": acl_codes.word(Resource, acl.resource or "any"),
        "resource_name_filter": acl.name or None,
        "pattern_type_filter": acl_codes.word(Pattern, acl.pattern or "any"),
        "principal_filter": acl.principal or None,
        "host_filter": acl.host or None,
        "operation": acl_codes.word(Operation, acl.operation or "any"),
        "permission_type": acl_codes.word(Permission, acl.permission or "any"),
    }


def _sorted(acls: list[acl_codes.Acl]) -> list[Acl]:
    return [
        Acl(
            resource=acl.resource.name.lower(),
            name=acl.name,
            pattern=acl.pattern.name.lower(),
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation.name.lower(),
            permission=acl.permission.name.lower(),
        )
        for acl in sorted(acls)
    ]
