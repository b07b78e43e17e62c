"""DeleteAcls (31), versions 1-3: removes the rules that filters select, and names them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from headgate.broker.cluster.acl import Acl, Operation
from headgate.broker.cluster.edits.access import RemoveAcls
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.acls import SECURITY_DISABLED_TEXT, filter_of, is_off, rule_text, shown
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code, error_message
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, made
from headgate.broker.wire.kafka.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


async def handle(request: DeleteAclsRequest, context: Context) -> DeleteAclsResponse:
    if is_off(context):
        refused = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=SECURITY_DISABLED_TEXT)
        return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
    return DeleteAclsResponse(filter_results=[await _delete(filter_, context) for filter_ in request.filters])


async def _delete(filter_: DeleteAclsFilter, context: Context) -> DeleteAclsFilterResult:
    try:
        wanted = filter_of(
            filter_.resource_type_filter,
            filter_.resource_name_filter,
            filter_.pattern_type_filter,
            filter_.principal_filter,
            filter_.host_filter,
            filter_.operation,
            filter_.permission_type,
        )
        rules = context.turn.each(shown(context))
        found = [acl async for acl in rules if wanted.selects(acl)]
        if found:
            await context.engine.change_access(RemoveAcls(found))
    except HeadgateError as error:
        return DeleteAclsFilterResult(error_code=error_code(error), error_message=error_message(error))
    return DeleteAclsFilterResult(error_message=None, matching_acls=[_row(acl) for acl in found])


def _row(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER):
        yield None
    else:
        row = made(DeleteAclsFilterResult, error_code=CLUSTER_REFUSED)
        yield made(DeleteAclsResponse, filter_results=[row] * len(request.filters))


def act(request: Message) -> Iterator[str]:
    for filter_ in request.filters:
        yield rule_text(filter_, filter_.resource_type_filter, filter_.resource_name_filter, filter_.principal_filter)


API = Api(31, versions=(1, 3), flexible_from=2, request=DeleteAclsRequest, handle=handle, rule=rule, act=act)
