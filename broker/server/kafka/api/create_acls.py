"""CreateAcls (30), versions 1-3: adds rules. A rule that is there already is no error. The rules of one request take effect
together, without those that are wrong."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from headgate.broker.cluster.acl import Acl, Operation, fault
from headgate.broker.cluster.edits.access import AddAcls
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.acls import SECURITY_DISABLED_TEXT, acl_of, is_off, rule_text
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code, error_message
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, made
from headgate.broker.wire.kafka.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


async def handle(request: CreateAclsRequest, context: Context) -> CreateAclsResponse:
    if is_off(context):
        refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=SECURITY_DISABLED_TEXT)
        return CreateAclsResponse(results=[refused] * len(request.creations))
    judged: list[Acl | HeadgateError] = []
    async for creation in context.turn.each(request.creations):
        judged.append(_judge(creation, context))
    acls = list(dict.fromkeys(result for result in judged if isinstance(result, Acl)))
    failed: HeadgateError | None = None
    if acls:
        try:
            await context.engine.change_access(AddAcls(acls))
        except HeadgateError as error:
            failed = error
    response = CreateAclsResponse()
    async for answer in context.turn.each(judged):
        wrong = answer if isinstance(answer, HeadgateError) else failed
        response.results.append(
            AclCreationResult(error_message=None)
            if wrong is None
            else AclCreationResult(error_code=error_code(wrong), error_message=error_message(wrong))
        )
    return response


def _judge(creation: AclCreation, context: Context) -> Acl | HeadgateError:
    try:
        acl = acl_of(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
            is_carried=context.is_carried,
        )
    except InvalidError as error:
        return error
    wrong = fault(acl)
    return acl if wrong is None else InvalidError(Reason.INVALID_REQUEST, wrong)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER):
        yield None
    else:
        row = made(AclCreationResult, error_code=CLUSTER_REFUSED)
        yield made(CreateAclsResponse, results=[row] * len(request.creations))


def act(request: Message) -> Iterator[str]:
    for creation in request.creations:
        yield rule_text(creation, creation.resource_type, creation.resource_name, creation.principal)


API = Api(30, versions=(1, 3), flexible_from=2, request=CreateAclsRequest, handle=handle, rule=rule, act=act)
