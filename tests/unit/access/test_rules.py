"""No API and no method can be forgotten: each has a rule.

Compared: the tables of rules with the tables of what is served. A mismatch means that a new API would be open to every client, or
would break.
"""

from __future__ import annotations

import pytest

from headgate.broker.cluster.access import Access
from headgate.broker.cluster.acl import Acl, Operation, Pattern, Permission, Resource
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.access import grpc_rules, kafka_rules
from headgate.broker.server.access.rights import Authority, Identity
from headgate.broker.server.kafka.apis import APIS
from headgate.broker.wire.grpc.headgate.v1 import (
    access_pb2,
    admin_pb2,
    capacity_pb2,
    control_pb2,
    externalscaler_pb2,
    gates_pb2,
    groups_pb2,
    log_pb2,
)
from headgate.broker.wire.grpc.methods import Method, methods

FILES = (access_pb2, admin_pb2, capacity_pb2, control_pb2, externalscaler_pb2, gates_pb2, groups_pb2, log_pb2)
METHODS: list[Method] = [
    method for file in FILES for service in file.DESCRIPTOR.services_by_name.values() for method in methods(service).values()
]
NO_RULE_OF_ITS_OWN = {"Admin/Status", "Admin/ListTopics", "Groups/ListGroups", "Gates/ListGates"}
"""Their answers are trimmed."""
JUDGED_LATER = {"Log/Publish", "Log/Subscribe"}
"""Each topic that they name is judged."""
EMPTY_IS_ALLOWED = {"Admin/DescribeTopics", "Groups/DescribeGroups"}
"""They name no topic or group here."""


def test_every_kafka_api_has_a_rule() -> None:
    assert set(kafka_rules.RULES) | kafka_rules.JUDGED_BY_CONNECTION == set(APIS)


def test_every_grpc_method_has_a_rule() -> None:
    assert set(grpc_rules.RULES) == {method.short for method in METHODS}
    assert set(grpc_rules.TRIMMED) <= set(grpc_rules.RULES)


def _wrong() -> Access:
    """Every operation on other names of every kind but the cluster, and on all names from another address."""
    return Access(
        acls=[
            Acl(resource=kind, name=name, pattern=Pattern.LITERAL, principal="User:nobody", host=host, operation=Operation.ALL,
                permission=Permission.ALLOW)
            for kind in Resource
            for name, host in (("other", "*"), ("*", "10.9.9.9"))
            if kind is not Resource.ANY and not (kind is Resource.CLUSTER and name == "other")
        ]
    )  # fmt: skip


@pytest.mark.parametrize("access", [Access(), _wrong()], ids=["no permission", "wrong permissions"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.short)
def test_a_client_without_permissions_is_refused(method: Method, access: Access) -> None:
    if method.short == "Log/InitProducer" and access.acls.all:
        return  # who may write to any topic may be an idempotent producer, as in Kafka
    authority = Authority(Settings(authorization="acl"), lambda: access)
    rights = authority.rights(Identity(principal="User:nobody", host="10.0.0.1"))
    assert rights is not None
    request = None if method.client_streaming else method.request()
    if method.short in NO_RULE_OF_ITS_OWN | JUDGED_LATER | EMPTY_IS_ALLOWED:
        grpc_rules.RULES[method.short](request, rights)
        assert method.short in grpc_rules.TRIMMED or method.short in JUDGED_LATER | EMPTY_IS_ALLOWED
        return
    with pytest.raises(InvalidError) as raised:
        grpc_rules.RULES[method.short](request, rights)
    assert raised.value.reason is Reason.NOT_AUTHORIZED
    broker = authority.rights(Identity(principal="User:broker", host="10.0.0.1", is_broker=True))
    assert broker is not None
    grpc_rules.RULES[method.short](request, broker)
