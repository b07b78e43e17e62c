"""`headgate.v1.Access`: users, rules and quotas. Each change is one commit of the manifest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from headgate.broker.cluster.access import User, Verifier
from headgate.broker.cluster.acl import Acl, AclFilter, Operation, Pattern, Permission, Resource
from headgate.broker.cluster.edits.access import AddAcls, DeleteUser, PutUser, RemoveAcls
from headgate.broker.cluster.edits.quotas import AlterQuotas
from headgate.broker.cluster.quotas import Entity
from headgate.broker.engine.engine import Engine
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.grpc.open_calls import Context
from headgate.broker.wire.grpc.headgate.v1 import access_pb2
from headgate.broker.wire.grpc.optional import given

_Word = TypeVar("_Word", Resource, Pattern, Operation, Permission)


class AccessService:
    """Changes users, rules and quotas."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create_user(self, request: access_pb2.CreateUserRequest, context: Context) -> access_pb2.CreateUserResponse:
        user = User(
            name=request.name,
            superuser=request.superuser,
            verifiers=_verifiers(request.verifiers),
            created_ms=self._engine.clock.now_ms(),
        )
        await self._engine.change_access(PutUser(user, new=True))
        return access_pb2.CreateUserResponse()

    async def set_password(self, request: access_pb2.SetPasswordRequest, context: Context) -> access_pb2.SetPasswordResponse:
        user = self._engine.manifest.access.user(request.name)
        await self._engine.change_access(PutUser(msgspec.structs.replace(user, verifiers=_verifiers(request.verifiers))))
        return access_pb2.SetPasswordResponse()

    async def delete_user(self, request: access_pb2.DeleteUserRequest, context: Context) -> access_pb2.DeleteUserResponse:
        await self._engine.change_access(DeleteUser(request.name))
        return access_pb2.DeleteUserResponse()

    async def list_users(self, request: access_pb2.ListUsersRequest, context: Context) -> access_pb2.ListUsersResponse:
        response = access_pb2.ListUsersResponse()
        users = sorted(self._engine.manifest.access.users.values(), key=lambda user: user.name)
        async for user in self._engine.turns.begin().each(users):
            response.users.add(
                name=user.name, superuser=user.superuser, mechanisms=sorted(user.verifiers), created_ms=user.created_ms
            )
        return response

    async def add_acls(self, request: access_pb2.AddAclsRequest, context: Context) -> access_pb2.AddAclsResponse:
        await self._engine.change_access(AddAcls([_acl(one) for one in request.acls]))
        return access_pb2.AddAclsResponse()

    async def remove_acls(self, request: access_pb2.RemoveAclsRequest, context: Context) -> access_pb2.RemoveAclsResponse:
        found = await self._selected(request.filter)
        if found:
            await self._engine.change_access(RemoveAcls(found))
        return access_pb2.RemoveAclsResponse(acls=map(_row, found))

    async def list_acls(self, request: access_pb2.ListAclsRequest, context: Context) -> access_pb2.ListAclsResponse:
        return access_pb2.ListAclsResponse(acls=map(_row, await self._selected(request.filter)))

    async def alter_quotas(self, request: access_pb2.AlterQuotasRequest, context: Context) -> access_pb2.AlterQuotasResponse:
        edits = [AlterQuotas(_entity(row), dict(row.values)) for row in request.set]
        edits += [AlterQuotas(_entity(row), dict.fromkeys(row.values)) for row in request.remove]
        for edit in edits:
            edit.check(self._engine.manifest)
        if edits:
            await self._engine.change_access(*edits)
        return access_pb2.AlterQuotasResponse()

    async def list_quotas(self, request: access_pb2.ListQuotasRequest, context: Context) -> access_pb2.ListQuotasResponse:
        response = access_pb2.ListQuotasResponse()
        rows = sorted(self._engine.manifest.quotas.rows(), key=lambda row: str(row.entity))
        async for row in self._engine.turns.begin().each(rows):
            entity = row.entity
            response.entities.add(user=entity.user, client_id=entity.client_id, ip=entity.ip, values=row.values)
        return response

    async def _selected(self, wanted: access_pb2.Acl) -> list[Acl]:
        chosen = AclFilter(
            resource=_word(Resource, wanted.resource or "any"),
            name=wanted.name or None,
            pattern=_word(Pattern, wanted.pattern or "any"),
            principal=wanted.principal or None,
            host=wanted.host or None,
            operation=_word(Operation, wanted.operation or "any"),
            permission=_word(Permission, wanted.permission or "any"),
        )
        acls = self._engine.turns.begin().each(list(self._engine.manifest.access.acls.all))
        return sorted([acl async for acl in acls if chosen.selects(acl)])


def _verifiers(rows: Iterable[access_pb2.Verifier]) -> dict[str, Verifier]:
    return {
        row.mechanism: Verifier(iterations=row.iterations, salt=row.salt, stored_key=row.stored_key, server_key=row.server_key)
        for row in rows
    }


def _entity(row: access_pb2.QuotaEntity) -> Entity:
    return Entity(**given(row, "user", "client_id", "ip"))


def _acl(row: access_pb2.Acl) -> Acl:
    return Acl(
        resource=_word(Resource, row.resource),
        name=row.name,
        pattern=_word(Pattern, row.pattern or "literal"),
        principal=row.principal,
        host=row.host or "*",
        operation=_word(Operation, row.operation),
        permission=_word(Permission, row.permission or "allow"),
    )


def _row(acl: Acl) -> access_pb2.Acl:
    return access_pb2.Acl(
        resource=acl.resource.name.lower(),
        name=acl.name,
        pattern=acl.pattern.name.lower(),
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation.name.lower(),
        permission=acl.permission.name.lower(),
    )


def _word(kind: type[_Word], text: str) -> _Word:
    try:
        return kind[text.upper().replace("-", "_")]
    except KeyError as error:
        known = ", ".join(one.name.lower() for one in kind)
        raise InvalidError(Reason.INVALID_REQUEST, f"unknown word for a rule. word=`{text[:50]}` known=`{known}`") from error
