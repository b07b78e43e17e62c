"""The parts of requests about users and rules that clients and a broker's page make alike.

A password goes into salted verifiers here: no request, no log and no page has it.
"""

from __future__ import annotations

import asyncio
import secrets

from headgate.broker.cluster import scram
from headgate.broker.cluster.acl import Acl, Operation, Pattern, Permission, Resource
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.wire.grpc.headgate.v1 import access_pb2
from headgate.broker.wire.grpc.methods import methods
from headgate.broker.wire.kafka.carried import check
from headgate.broker.wire.kafka.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from headgate.broker.wire.kafka.messages.delete_acls import DeleteAclsMatchingAcl
from headgate.broker.wire.kafka.messages.describe_acls import AclDescription, DescribeAclsResource, DescribeAclsResponse

ACCESS = methods(access_pb2.DESCRIPTOR.services_by_name["Access"])
ABOUT = "resource=`cluster`"
"""What these requests are about, for their errors."""


async def verifiers(password: str) -> list[access_pb2.Verifier]:
    """The verifiers of a new password, one for each mechanism. Raises InvalidError."""
    if not password:
        raise InvalidError(Reason.INVALID_REQUEST, "a password must not be empty")
    made = await asyncio.to_thread(scram.verifiers, password, secrets.token_bytes)
    return [
        access_pb2.Verifier(
            mechanism=mechanism,
            iterations=verifier.iterations,
            salt=verifier.salt,
            stored_key=verifier.stored_key,
            server_key=verifier.server_key,
        )
        for mechanism, verifier in made.items()
    ]


def creations(rules: list[Acl]) -> CreateAclsRequest:
    """The request that adds rules."""
    rows = [
        AclCreation(
            resource_type=rule.resource,
            resource_name=rule.name,
            resource_pattern_type=rule.pattern,
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        for rule in rules
    ]
    return CreateAclsRequest(creations=rows)


def check_created(answer: CreateAclsResponse) -> None:
    """Raise the error of the first rule that was not added."""
    for row in answer.results:
        check(row.error_code, row.error_message, ABOUT)


def rule_of(resource: DescribeAclsResource | DeleteAclsMatchingAcl, row: AclDescription | DeleteAclsMatchingAcl) -> Acl:
    """A rule from an answer."""
    return Acl(
        resource=Resource(resource.resource_type),
        name=resource.resource_name,
        pattern=Pattern(resource.pattern_type),
        principal=row.principal,
        host=row.host,
        operation=Operation(row.operation),
        permission=Permission(row.permission_type),
    )


def described(answer: DescribeAclsResponse) -> list[Acl]:
    """The rules of an answer. Raises its error."""
    check(answer.error_code, answer.error_message, ABOUT)
    return [rule_of(resource, row) for resource in answer.resources for row in resource.acls]
