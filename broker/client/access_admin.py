"""Users, rules and quotas of a cluster. Passwords stay here: the cluster gets salted verifiers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.broker.client.cluster import ClusterClient
from headgate.broker.cluster import scram
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.wire.grpc.headgate.v1 import access_pb2
from headgate.broker.wire.grpc.methods import methods
from headgate.broker.wire.grpc.optional import given

ACCESS = methods(access_pb2.DESCRIPTOR.services_by_name["Access"])


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
    ip: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)


class AccessAdmin(ClusterClient):
    """Manages users, rules and quotas. An async context manager. Methods raise HeadgateError."""

    async def create_user(self, name: str, password: str, *, superuser: bool = False) -> None:
        """Create a user. Raises InvalidError(USER_EXISTS)."""
        request = access_pb2.CreateUserRequest(name=name, verifiers=await _verifiers(password), superuser=superuser)
        await self._cluster.change(ACCESS["CreateUser"], request, already=Reason.USER_EXISTS)

    async def set_password(self, name: str, password: str) -> None:
        """Change a password. Connections that exist stay logged in. Raises InvalidError(UNKNOWN_USER)."""
        request = access_pb2.SetPasswordRequest(name=name, verifiers=await _verifiers(password))
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
        """Add rules, all or none."""
        await self._cluster.call(ACCESS["AddAcls"], access_pb2.AddAclsRequest(acls=map(_message, acls)), retry=True)

    async def remove_acls(self, chosen: Acl) -> list[Acl]:
        """Remove the rules that a filter selects. Returns them."""
        request = access_pb2.RemoveAclsRequest(filter=_message(chosen))
        response: access_pb2.RemoveAclsResponse = await self._cluster.call(ACCESS["RemoveAcls"], request, retry=True)
        return [_acl(row) for row in response.acls]

    async def acls(self, chosen: Acl | None = None) -> list[Acl]:
        """The rules that a filter selects; all without one."""
        request = access_pb2.ListAclsRequest(filter=_message(chosen or Acl()))
        response: access_pb2.ListAclsResponse = await self._cluster.call(ACCESS["ListAcls"], request, retry=True)
        return [_acl(row) for row in response.acls]

    async def set_quotas(self, quota: Quota) -> None:
        """Set quotas of an entity; its others stay. Raises InvalidError for a wrong name or value."""
        request = access_pb2.AlterQuotasRequest(set=[_quota(quota)])
        await self._cluster.call(ACCESS["AlterQuotas"], request, retry=True)

    async def remove_quotas(self, quota: Quota) -> None:
        """Remove quotas of an entity; their values do not matter."""
        request = access_pb2.AlterQuotasRequest(remove=[_quota(quota)])
        await self._cluster.call(ACCESS["AlterQuotas"], request, retry=True)

    async def quotas(self) -> list[Quota]:
        """All quotas."""
        response: access_pb2.ListQuotasResponse = await self._cluster.call(
            ACCESS["ListQuotas"], access_pb2.ListQuotasRequest(), retry=True
        )
        return [Quota(**given(row, "user", "client_id", "ip"), values=dict(row.values)) for row in response.entities]


def _quota(quota: Quota) -> access_pb2.QuotaEntity:
    return access_pb2.QuotaEntity(user=quota.user, client_id=quota.client_id, ip=quota.ip, values=quota.values)


async def _verifiers(password: str) -> list[access_pb2.Verifier]:
    if not password:
        raise InvalidError(Reason.INVALID_REQUEST, "a password must not be empty")
    made = await asyncio.to_thread(scram.verifiers, password, secrets.token_bytes)
    return [
        access_pb2.Verifier(
            mechanism=mechanism,
            iterations=one.iterations,
            salt=one.salt,
            stored_key=one.stored_key,
            server_key=one.server_key,
        )
        for mechanism, one in made.items()
    ]


def _message(acl: Acl) -> access_pb2.Acl:
    return access_pb2.Acl(
        resource=acl.resource,
        name=acl.name,
        pattern=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
    )


def _acl(row: access_pb2.Acl) -> Acl:
    return Acl(
        resource=row.resource,
        name=row.name,
        pattern=row.pattern,
        principal=row.principal,
        host=row.host,
        operation=row.operation,
        permission=row.permission,
    )
