"""DescribeUserScramCredentials (50), version 0: the mechanisms and iterations of users. Null or [] asks for all users."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.access import MECHANISMS, User
from headgate.broker.cluster.acl import Operation
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.requests import repeated
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, made
from headgate.broker.wire.kafka.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


async def handle(request: DescribeUserScramCredentialsRequest, context: Context) -> DescribeUserScramCredentialsResponse:
    users = context.engine.manifest.access.users
    response = DescribeUserScramCredentialsResponse(error_message=None)
    if not request.users:
        async for user in context.turn.each([user for user in users.values() if user.verifiers]):
            response.results.append(_row(user))
        return response
    names = [user.name for user in request.users]
    twice = await repeated(context, names)
    async for name in context.turn.each(dict.fromkeys(names)):
        known = users.get(name)
        if name in twice:
            response.results.append(_error(name, ErrorCode.DUPLICATE_RESOURCE, "the user is named more than once"))
        elif known is None or not known.verifiers:
            response.results.append(_error(name, ErrorCode.RESOURCE_NOT_FOUND, "the user has no SCRAM credentials"))
        else:
            response.results.append(_row(known))
    return response


def _row(user: User) -> DescribeUserScramCredentialsResult:
    infos = [
        CredentialInfo(mechanism=MECHANISMS.index(mechanism) + 1, iterations=verifier.iterations)
        for mechanism, verifier in sorted(user.verifiers.items())
    ]
    return DescribeUserScramCredentialsResult(user=user.name, error_message=None, credential_infos=infos)


def _error(name: str, code: ErrorCode, text: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=text)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.DESCRIBE):
        yield None
        return
    rows = [made(DescribeUserScramCredentialsResult, user=user.name, error_code=CLUSTER_REFUSED) for user in request.users or ()]
    yield made(DescribeUserScramCredentialsResponse, error_code=CLUSTER_REFUSED, results=rows)


API = Api(50, versions=(0, 0), flexible_from=0, request=DescribeUserScramCredentialsRequest, handle=handle, rule=rule)
