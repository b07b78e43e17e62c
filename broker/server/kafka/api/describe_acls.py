"""DescribeAcls (29), versions 1-3: the rules that a filter selects. Without authorization: SECURITY_DISABLED, as in Kafka."""

from __future__ import annotations

from headgate.broker.cluster.acl import Acl, Operation, Pattern, Resource
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.server.kafka.acls import SECURITY_DISABLED_TEXT, filter_of, is_off, shown
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import ErrorCode, error_message
from headgate.broker.server.kafka.rules import on_cluster
from headgate.broker.wire.kafka.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


async def handle(request: DescribeAclsRequest, context: Context) -> DescribeAclsResponse:
    if is_off(context):
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=SECURITY_DISABLED_TEXT)
    try:
        wanted = filter_of(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
    except InvalidError as error:
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=error_message(error))
    found: dict[tuple[Resource, str, Pattern], list[Acl]] = {}
    async for acl in context.turn.each(shown(context)):
        if wanted.selects(acl):
            found.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl)
    response = DescribeAclsResponse(error_message=None)
    async for (resource, name, pattern), acls in context.turn.each(found.items()):
        rows = [
            AclDescription(principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission)
            for acl in acls
        ]
        response.resources.append(DescribeAclsResource(resource_type=resource, resource_name=name, pattern_type=pattern, acls=rows))
    return response


API = Api(
    29,
    versions=(1, 3),
    flexible_from=2,
    request=DescribeAclsRequest,
    handle=handle,
    rule=on_cluster(Operation.DESCRIBE, DescribeAclsResponse),
)
