"""What each gRPC method needs: one rule for every method. `tests/unit/access/test_rules.py` proves that none is missing.

A rule gets the request, or None for a stream of requests, and raises InvalidError(NOT_AUTHORIZED). Publish and Subscribe name
topics later: `publish.py` and `subscribe.py` ask for each one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from headgate.broker.cluster.acl import CAPACITY_NAME, CLUSTER_NAME, Operation, Resource
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.access.rights import Rights

Rule: TypeAlias = Callable[[Any, Rights], None]
Trim: TypeAlias = Callable[[Any, Rights], None]


def _need(rights: Rights, operation: Operation, resource: Resource, name: str) -> None:
    if not rights.may(operation, resource, name):
        raise InvalidError(
            Reason.NOT_AUTHORIZED,
            f"no permission. principal=`{rights.identity.principal}` operation=`{operation.name.lower()}` "
            f"{resource.name.lower()}=`{name[:250]}`",
        )


def _free(request: Any, rights: Rights) -> None:
    """Every client may; the answer is trimmed, or each message is judged."""


def _brokers_only(request: Any, rights: Rights) -> None:
    if not rights.identity.is_broker:
        _need(rights, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)


def _cluster(operation: Operation) -> Rule:
    return lambda request, rights: _need(rights, operation, Resource.CLUSTER, CLUSTER_NAME)


def _capacity(operation: Operation) -> Rule:
    return lambda request, rights: _need(rights, operation, Resource.CAPACITY, CAPACITY_NAME)


def _topic(operation: Operation, field: str = "topic") -> Rule:
    return lambda request, rights: _need(rights, operation, Resource.TOPIC, getattr(request, field))


def _group(operation: Operation, field: str) -> Rule:
    return lambda request, rights: _need(rights, operation, Resource.GROUP, getattr(request, field))


def _gate(operation: Operation) -> Rule:
    return lambda request, rights: _need(rights, operation, Resource.GATE, request.topic)


def _create_topic(request: Any, rights: Rights) -> None:
    if not rights.on_cluster(Operation.CREATE):
        _need(rights, Operation.CREATE, Resource.TOPIC, request.name)


def _describe_topics(request: Any, rights: Rights) -> None:
    for name in request.names:
        _need(rights, Operation.DESCRIBE, Resource.TOPIC, name)


def _describe_groups(request: Any, rights: Rights) -> None:
    for name in request.ids:
        _need(rights, Operation.DESCRIBE, Resource.GROUP, name)


def _init_producer(request: Any, rights: Rights) -> None:
    if not rights.may(Operation.WRITE, Resource.TOPIC, None):
        _need(rights, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME)


def _open_gate(request: Any, rights: Rights) -> None:
    _need(rights, Operation.CREATE, Resource.GATE, request.topic)
    if request.files:  # opened and filled at once
        _fill_gate(request, rights)


def _fill_gate(request: Any, rights: Rights) -> None:
    _need(rights, Operation.ALTER, Resource.GATE, request.topic)
    for file in request.files:
        if "://" in file.path:  # not a key under the topic's own prefix
            _need(rights, Operation.READ, Resource.FILE, file.path)


def _reshard(request: Any, rights: Rights) -> None:
    kind = request.WhichOneof("order")
    order = None if kind is None else getattr(request, kind)
    name = str(order.broker_id) if order is not None and hasattr(order, "broker_id") else ""
    _need(rights, Operation.ALTER, Resource.BROKER, name or "*")


RULES: dict[str, Rule] = {
    "Admin/Status": _free,
    "Admin/ListTopics": _free,
    "Admin/DescribeTopics": _describe_topics,
    "Admin/CreateTopic": _create_topic,
    "Admin/AlterTopicConfig": _topic(Operation.ALTER_CONFIGS, "name"),
    "Admin/CreatePartitions": _topic(Operation.ALTER, "name"),
    "Admin/DeleteTopic": _topic(Operation.DELETE, "name"),
    "Admin/DeleteRecords": _topic(Operation.DELETE, "topic"),
    "Admin/CheckRecords": _topic(Operation.READ, "topic"),
    "Admin/SkipRecords": _topic(Operation.DELETE, "topic"),
    "Log/InitProducer": _init_producer,
    "Log/Publish": _free,
    "Log/Fetch": _topic(Operation.READ),
    "Log/ListOffsets": _topic(Operation.DESCRIBE),
    "Log/Subscribe": _free,
    "Groups/ListGroups": _free,
    "Groups/DescribeGroups": _describe_groups,
    "Groups/AlterPositions": _group(Operation.READ, "group"),
    "Groups/DeleteGroup": _group(Operation.DELETE, "id"),
    "Capacity/OpenReservation": _capacity(Operation.CREATE),
    "Capacity/RenewReservation": _capacity(Operation.ALTER),
    "Capacity/ReleaseReservation": _capacity(Operation.DELETE),
    "Capacity/ListReservations": _capacity(Operation.DESCRIBE),
    "Capacity/GetDesiredBrokers": _capacity(Operation.DESCRIBE),
    "Capacity/WatchDesiredBrokers": _capacity(Operation.DESCRIBE),
    "ExternalScaler/IsActive": _capacity(Operation.DESCRIBE),
    "ExternalScaler/StreamIsActive": _capacity(Operation.DESCRIBE),
    "ExternalScaler/GetMetricSpec": _capacity(Operation.DESCRIBE),
    "ExternalScaler/GetMetrics": _capacity(Operation.DESCRIBE),
    "Control/Join": _brokers_only,
    "Control/Commit": _brokers_only,
    "Control/Replicate": _brokers_only,
    "Control/Surrender": _brokers_only,
    "Control/AddToTransaction": _brokers_only,
    "Control/WriteMarkers": _brokers_only,
    "Control/View": _brokers_only,
    "Control/Reshard": _reshard,
    "Control/Describe": _cluster(Operation.DESCRIBE),
    "Gates/OpenGate": _open_gate,
    "Gates/FillGate": _fill_gate,
    "Gates/RenewGate": _gate(Operation.ALTER),
    "Gates/ReleaseGate": _gate(Operation.ALTER),
    "Gates/ListGates": _free,
    "Gates/DescribeGate": _gate(Operation.DESCRIBE),
    "Gates/Layout": _gate(Operation.DESCRIBE),
    "Gates/ReportFlood": _gate(Operation.ALTER),
    "Access/CreateUser": _cluster(Operation.ALTER),
    "Access/SetPassword": _cluster(Operation.ALTER),
    "Access/DeleteUser": _cluster(Operation.ALTER),
    "Access/ListUsers": _cluster(Operation.DESCRIBE),
    "Access/AddAcls": _cluster(Operation.ALTER),
    "Access/RemoveAcls": _cluster(Operation.ALTER),
    "Access/ListAcls": _cluster(Operation.DESCRIBE),
    "Access/AlterQuotas": _cluster(Operation.ALTER_CONFIGS),
    "Access/ListQuotas": _cluster(Operation.DESCRIBE_CONFIGS),
}
"""By service and method."""


def _keep(rows: Any, may: Callable[[Any], bool]) -> None:
    kept = [row for row in rows if may(row)]
    if len(kept) != len(rows):
        del rows[:]
        rows.extend(kept)


def _see_topic(rights: Rights, name: str) -> bool:
    return rights.on_topic(Operation.DESCRIBE, name)


TRIMMED: dict[str, Trim] = {
    "Admin/Status": lambda answer, rights: _keep(answer.topics, lambda row: _see_topic(rights, row.name)),
    "Admin/ListTopics": lambda answer, rights: _keep(answer.topics, lambda row: _see_topic(rights, row.name)),
    "Admin/DescribeTopics": lambda answer, rights: _keep(answer.topics, lambda row: _see_topic(rights, row.topic.name)),
    "Groups/ListGroups": lambda answer, rights: (
        None
        if rights.identity.is_broker or rights.on_cluster(Operation.DESCRIBE)
        else _keep(answer.groups, lambda row: rights.on_group(Operation.DESCRIBE, row.id))
    ),
    "Gates/ListGates": lambda answer, rights: _keep(
        answer.gates, lambda row: rights.may(Operation.DESCRIBE, Resource.GATE, row.topic)
    ),
}
"""Answers with rows that the client may not see."""
