"""No API and no method can be forgotten: each has a rule.

Compared: the tables of rules with the tables of what is served. A mismatch means that a new API would be open to every client, or
would break.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.broker.cluster.access import Access
from headgate.broker.cluster.acl import ANONYMOUS, Acl, Operation, Pattern, Permission, Resource
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.access import grpc_rules
from headgate.broker.server.access.rights import Authority, Identity, Rights
from headgate.broker.wire.grpc.headgate.v1 import (
    access_pb2,
    admin_pb2,
    capacity_pb2,
    control_pb2,
    externalscaler_pb2,
    gates_pb2,
    groups_pb2,
    kafka_pb2,
    log_pb2,
)
from headgate.broker.wire.grpc.methods import Method, methods

FILES = (access_pb2, admin_pb2, capacity_pb2, control_pb2, externalscaler_pb2, gates_pb2, groups_pb2, kafka_pb2, log_pb2)
METHODS: list[Method] = [
    method for file in FILES for service in file.DESCRIPTOR.services_by_name.values() for method in methods(service).values()
]
FREE = {
    "Admin/Status", "Admin/ListTopics", "Admin/DescribeTopics", "Groups/ListGroups", "Groups/DescribeGroups", "Gates/ListGates",
}  # fmt: skip
"""Every client with a login may call them. Their answers are trimmed."""
JUDGED_LATER = {"Log/Publish", "Log/Subscribe", "Kafka/Ask"}
"""Each topic that they name is judged; each request of Kafka's protocol by the rule of its API (`test_kafka_rules.py`)."""


def test_every_grpc_method_has_a_rule_and_bounds() -> None:
    assert set(grpc_rules.METHODS) == {method.short for method in METHODS}
    unbounded = {name for name, rule in grpc_rules.METHODS.items() if rule.bytes_max is None}
    assert unbounded == {"Log/Publish"} | {name for name in grpc_rules.METHODS if name.startswith("Control/")} - {
        "Control/Reshard",
        "Control/Describe",
    }, "only records, and what brokers send each other, may be as large as a frame"


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
    rule = grpc_rules.METHODS[method.short]
    request = None if method.client_streaming else method.request()

    def refuses(principal: str, ask: Callable[[Rights], None], *, is_broker: bool = False) -> bool:
        rights = authority.rights(Identity(principal=principal, host="10.0.0.1", is_broker=is_broker))
        assert rights is not None
        try:
            ask(rights)
        except InvalidError as error:
            assert error.reason is Reason.NOT_AUTHORIZED
            return True
        return False

    # Before the request is read: a stranger, and a user who may do such a thing to nothing.
    if not access.acls.all:
        assert refuses(ANONYMOUS, rule.ask_first)
        assert refuses("User:nobody", rule.ask_first) is (method.short not in FREE | {"Kafka/Ask"})
    assert refuses("User:nobody", lambda rights: rule.ask(request, rights)) is (method.short not in FREE | JUDGED_LATER)
    assert rule.trim is not None or method.short not in FREE
    for ask in (rule.ask_first, lambda rights: rule.ask(request, rights)):
        assert not refuses("User:broker", ask, is_broker=True)
