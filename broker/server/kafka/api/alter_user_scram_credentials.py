"""AlterUserScramCredentials (51), version 0: creates users, changes their passwords, and takes credentials away.

A user who is created has no permissions. Deviation: a user without credentials stays a user, as `headgate user list` shows; Kafka
knows users only by their credentials. Taking the last credential of a user who is no superuser deletes the user.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

import msgspec

from headgate.broker.cluster.access import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, User
from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.edits.access import DeleteUser, PutUser
from headgate.broker.cluster.scram import verifier
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code, error_message
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, made
from headgate.broker.wire.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)

USERS_MAX = 1000
"""Users in one request; each is one commit."""


@dataclass(slots=True)
class _Changes:
    """The changes of one user, in the order of the request."""

    deletions: list[int] = field(default_factory=list)
    upsertions: list[ScramCredentialUpsertion] = field(default_factory=list)

    @property
    def are_repeated(self) -> bool:
        mechanisms = self.deletions + [upsertion.mechanism for upsertion in self.upsertions]
        return len(set(mechanisms)) < len(mechanisms)


async def handle(request: AlterUserScramCredentialsRequest, context: Context) -> AlterUserScramCredentialsResponse:
    each = context.turn.each
    changes: dict[str, _Changes] = {}
    async for deletion in each(request.deletions):
        changes.setdefault(deletion.name, _Changes()).deletions.append(deletion.mechanism)
    async for upsertion in each(request.upsertions):
        changes.setdefault(upsertion.name, _Changes()).upsertions.append(upsertion)
    response = AlterUserScramCredentialsResponse()
    async for name, asked in each(changes.items()):
        if len(changes) > USERS_MAX:
            result = _result(name, ErrorCode.INVALID_REQUEST, f"too many users. users=`{len(changes)}` max=`{USERS_MAX}`")
        elif asked.are_repeated:
            result = _result(name, ErrorCode.DUPLICATE_RESOURCE, "a credential is named more than once")
        else:
            result = await _alter(name, asked, context)
        response.results.append(result)
    return response


async def _alter(name: str, asked: _Changes, context: Context) -> AlterUserScramCredentialsResult:
    if not name:
        return _result(name, ErrorCode.UNACCEPTABLE_CREDENTIAL, "a user has a name")
    user = context.engine.manifest.access.users.get(name)
    verifiers = dict(user.verifiers) if user is not None else {}
    for number in asked.deletions:
        mechanism = _mechanism(number)
        if mechanism is None:
            return _result(name, ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanism is not known")
        if verifiers.pop(mechanism, None) is None:
            return _result(name, ErrorCode.RESOURCE_NOT_FOUND, "the user has no such credential")
    for upsertion in asked.upsertions:
        mechanism = _mechanism(upsertion.mechanism)
        if mechanism is None:
            return _result(name, ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanism is not known")
        wrong = _fault(upsertion, mechanism)
        if wrong:
            return _result(name, ErrorCode.UNACCEPTABLE_CREDENTIAL, wrong)
        verifiers[mechanism] = verifier(upsertion.salted_password, upsertion.salt, upsertion.iterations, mechanism)
    try:
        if not verifiers and user is not None and not user.superuser:
            await context.engine.change_access(DeleteUser(name))
        else:
            fresh = User(name=name, created_ms=context.engine.clock.now_ms()) if user is None else user
            await context.engine.change_access(PutUser(msgspec.structs.replace(fresh, verifiers=verifiers)))
    except HeadgateError as error:
        return _result(name, error_code(error), error_message(error))
    return _result(name, ErrorCode.NONE, None)


def _mechanism(number: int) -> str | None:
    return MECHANISMS[number - 1] if 1 <= number <= len(MECHANISMS) else None


def _fault(upsertion: ScramCredentialUpsertion, mechanism: str) -> str:
    if not ITERATIONS_MIN <= upsertion.iterations <= ITERATIONS_MAX:
        return f"iterations are from {ITERATIONS_MIN} to {ITERATIONS_MAX}"
    if not upsertion.salt or len(upsertion.salted_password) != (32 if mechanism.endswith("256") else 64):
        return "the salted password has a wrong length"
    return ""


def _result(name: str, code: ErrorCode, text: str | None) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=name, error_code=code, error_message=text)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER):
        yield None
        return
    names = dict.fromkeys(alteration.name for alteration in (*request.deletions, *request.upsertions))
    rows = [made(AlterUserScramCredentialsResult, user=name, error_code=CLUSTER_REFUSED) for name in names]
    yield made(AlterUserScramCredentialsResponse, results=rows)


def act(request: Message) -> Iterator[str]:
    yield from dict.fromkeys(alteration.name for alteration in (*request.deletions, *request.upsertions))


API = Api(51, versions=(0, 0), flexible_from=0, request=AlterUserScramCredentialsRequest, handle=handle, rule=rule, act=act)
