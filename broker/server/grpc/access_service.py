"""`headgate.v1.Access`: users. Each change is one commit of the manifest."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headgate.broker.cluster.access import User, Verifier
from headgate.broker.cluster.edits.access import DeleteUser, PutUser
from headgate.broker.engine.engine import Engine
from headgate.broker.server.grpc.open_calls import Context
from headgate.broker.wire.grpc.headgate.v1 import access_pb2


class AccessService:
    """Changes users."""

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


def _verifiers(rows: Iterable[access_pb2.Verifier]) -> dict[str, Verifier]:
    return {
        row.mechanism: Verifier(iterations=row.iterations, salt=row.salt, stored_key=row.stored_key, server_key=row.server_key)
        for row in rows
    }
