"""The registry of gRPC methods: what each needs, how large its requests may be, and what the audit log calls it.

`callers.py` asks it about every call, in this order, and reads or decodes nothing before the first answer:

1. `ask_first`, with the client alone: whether the client may do such a thing to anything. A stranger's message is never read.
2. `bytes_max` and `elements_max`: bounds of a message, checked before and while it is decoded.
3. `ask`, with the request: whether the client may do it to what the request names. None for a stream of requests: Publish and
   Subscribe name topics later, and `publish.py` and `subscribe.py` ask for each one.
4. `trim`, with the answer: takes out the rows that the client may not see.

`tests/unit/access/test_rules.py` proves that no method is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import Message

from headgate.broker.cluster.acl import ANONYMOUS, CAPACITY_NAME, CLUSTER_NAME, KAFKA_RESOURCES, VALID, Operation, Resource
from headgate.broker.cluster.gates import FILES_MAX
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.access.rights import Rights
from headgate.broker.server.audit import grpc_acts

REQUEST_BYTES_MAX = 1 << 20
"""Largest request of a method without a limit of its own."""
KAFKA_BYTES_MAX = REQUEST_BYTES_MAX + (1 << 10)
"""Largest request of Kafka's protocol, and its envelope."""
ROWS_BYTES_MAX = 4 << 20
"""Largest request with a row for each partition."""
FILES_BYTES_MAX = 32 << 20
"""Largest request that fills a gate: FILES_MAX files of 160 bytes."""
ELEMENTS_MAX = 25_000
"""Most elements of all lists of a request, above the own limit of every method. An element of two bytes takes 100 in memory."""
FILES_ELEMENTS_MAX = FILES_MAX + 100_000
"""The same of a request that fills a gate: its files, and the rows of each partition."""
BROKERS_ELEMENTS_MAX = 1_000_000
"""The same of a message between brokers: its bytes are bounded by `frame_bytes_max` alone."""

Rule: TypeAlias = Callable[[Any, Rights], None]
First: TypeAlias = Callable[[Rights], None]
Trim: TypeAlias = Callable[[Any, Rights], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRule:
    """One row of the registry; the module's text says in which order it is asked.

    `bytes_max`: None: `frame_bytes_max`. `act`: returns the names of what an administrative act is about; None: no act.
    """

    ask_first: First
    ask: Rule
    trim: Trim | None = None
    bytes_max: int | None = REQUEST_BYTES_MAX
    elements_max: int = ELEMENTS_MAX
    act: Callable[[Message], list[str]] | None = None


def _need(rights: Rights, operation: Operation, resource: Resource, name: str) -> None:
    if not rights.may(operation, resource, name):
        raise InvalidError(
            Reason.NOT_AUTHORIZED,
            f"no permission. principal=`{rights.identity.principal}` operation=`{operation.name.lower()}` "
            f"{resource.name.lower()}=`{name[:250]}`",
        )


def _need_some(rights: Rights, operation: Operation, resource: Resource) -> None:
    """Raise unless the client may do the operation to any resource of the kind."""
    if not rights.may(operation, resource, None):
        raise InvalidError(
            Reason.NOT_AUTHORIZED,
            f"no permission. principal=`{rights.identity.principal}` operation=`{operation.name.lower()}` "
            f"resource=`{resource.name.lower()}`",
        )


def _known(operation: Operation, resource: Resource) -> First:
    """A client that has proved who it is, whatever it may do, or a stranger with such a permission. The answer is trimmed."""

    def ask(rights: Rights) -> None:
        if rights.identity.principal == ANONYMOUS and not rights.on_cluster(Operation.DESCRIBE):
            _need_some(rights, operation, resource)

    return ask


def _later(request: Any, rights: Rights) -> None:
    """The answer is trimmed, or each message is judged."""


def _some(operation: Operation, resource: Resource) -> First:
    return lambda rights: _need_some(rights, operation, resource)


def _all_of(first: First, **more: Any) -> MethodRule:
    """A method that needs the same whatever its request says."""
    return MethodRule(ask_first=first, ask=lambda request, rights: first(rights), **more)


def _ask_broker(rights: Rights) -> None:
    if not rights.identity.is_broker:
        _need(rights, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)


def _brokers_only() -> MethodRule:
    return _all_of(_ask_broker, bytes_max=None, elements_max=BROKERS_ELEMENTS_MAX)


def _cluster(operation: Operation, **more: Any) -> MethodRule:
    return _all_of(lambda rights: _need(rights, operation, Resource.CLUSTER, CLUSTER_NAME), **more)


def _capacity(operation: Operation, **more: Any) -> MethodRule:
    return _all_of(lambda rights: _need(rights, operation, Resource.CAPACITY, CAPACITY_NAME), **more)


def _on(resource: Resource, operation: Operation, field: str, **more: Any) -> MethodRule:
    """A method on the resource that a field of its request names."""

    def ask(request: Any, rights: Rights) -> None:
        _need(rights, operation, resource, getattr(request, field))

    return MethodRule(ask_first=_some(operation, resource), ask=ask, **more)


def _topic(operation: Operation, field: str = "topic", **more: Any) -> MethodRule:
    return _on(Resource.TOPIC, operation, field, **more)


def _gate(operation: Operation, **more: Any) -> MethodRule:
    return _on(Resource.GATE, operation, "topic", **more)


def _describe_topics(request: Any, rights: Rights) -> None:
    for name in request.names:
        _need(rights, Operation.DESCRIBE, Resource.TOPIC, name)


def _describe_groups(request: Any, rights: Rights) -> None:
    for name in request.ids:
        _need(rights, Operation.DESCRIBE, Resource.GROUP, name)


def _may_ask(rights: Rights) -> None:
    """The rule of its API judges each request, as on the Kafka port. Of strangers without any permission none is read."""
    if rights.identity.principal == ANONYMOUS and not any(
        rights.may(operation, kind, None) for kind in KAFKA_RESOURCES for operation in VALID[kind]
    ):
        _need(rights, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)


def _may_produce(rights: Rights) -> None:
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


def _may_alter_brokers(rights: Rights) -> None:
    _need_some(rights, Operation.ALTER, Resource.BROKER)


def _reshard(request: Any, rights: Rights) -> None:
    kind = request.WhichOneof("order")
    order = None if kind is None else getattr(request, kind)
    name = str(order.broker_id) if order is not None and hasattr(order, "broker_id") else ""
    _need(rights, Operation.ALTER, Resource.BROKER, name or "*")


def _keep(rows: Any, may: Callable[[Any], bool]) -> None:
    kept = [row for row in rows if may(row)]
    if len(kept) != len(rows):
        del rows[:]
        rows.extend(kept)


def _see_topic(rights: Rights, name: str) -> bool:
    return rights.on_topic(Operation.DESCRIBE, name)


def _trim_groups(answer: Any, rights: Rights) -> None:
    if not _sees_all_groups(rights):
        _keep(answer.groups, lambda row: rights.on_group(Operation.DESCRIBE, row.id))


def _sees_all_groups(rights: Rights) -> bool:
    return rights.identity.is_broker or rights.on_cluster(Operation.DESCRIBE)


def _trim_positions(answer: Any, rights: Rights) -> None:
    """Positions in topics that the client may not see, which Kafka leaves out, too."""
    for group in answer.groups:
        before = len(group.positions)
        _keep(group.positions, lambda row: _see_topic(rights, row.topic))
        if len(group.positions) < before:
            group.group.positions = sum(row.HasField("offset") for row in group.positions)


def _trim_topics(answer: Any, rights: Rights) -> None:
    _keep(answer.topics, lambda row: _see_topic(rights, row.name))


_FILES: dict[str, Any] = {"bytes_max": FILES_BYTES_MAX, "elements_max": FILES_ELEMENTS_MAX}
_of = grpc_acts.names
_see_some_topic = _known(Operation.DESCRIBE, Resource.TOPIC)

METHODS: dict[str, MethodRule] = {
    "Admin/Status": MethodRule(ask_first=_see_some_topic, ask=_later, trim=_trim_topics),
    "Admin/ListTopics": MethodRule(ask_first=_see_some_topic, ask=_later, trim=_trim_topics),
    "Admin/DescribeTopics": MethodRule(
        ask_first=_see_some_topic,
        ask=_describe_topics,
        trim=lambda answer, rights: _keep(answer.topics, lambda row: _see_topic(rights, row.topic.name)),
    ),
    "Admin/CheckRecords": _topic(Operation.READ),
    "Admin/SkipRecords": _topic(Operation.DELETE, act=_of("topic")),
    "Kafka/Ask": MethodRule(ask_first=_may_ask, ask=_later, bytes_max=KAFKA_BYTES_MAX),
    "Log/InitProducer": _all_of(_may_produce),
    "Log/Publish": MethodRule(ask_first=_some(Operation.WRITE, Resource.TOPIC), ask=_later, bytes_max=None),
    "Log/Fetch": _topic(Operation.READ),
    "Log/ListOffsets": _topic(Operation.DESCRIBE),
    "Log/Subscribe": MethodRule(ask_first=_some(Operation.READ, Resource.TOPIC), ask=_later, bytes_max=ROWS_BYTES_MAX),
    "Groups/ListGroups": MethodRule(ask_first=_known(Operation.DESCRIBE, Resource.GROUP), ask=_later, trim=_trim_groups),
    "Groups/DescribeGroups": MethodRule(
        ask_first=_known(Operation.DESCRIBE, Resource.GROUP), ask=_describe_groups, trim=_trim_positions
    ),
    "Capacity/OpenReservation": _capacity(Operation.CREATE, act=_of("id")),
    "Capacity/RenewReservation": _capacity(Operation.ALTER),
    "Capacity/ReleaseReservation": _capacity(Operation.DELETE, act=_of("id")),
    "Capacity/ListReservations": _capacity(Operation.DESCRIBE),
    "Capacity/GetDesiredBrokers": _capacity(Operation.DESCRIBE),
    "ExternalScaler/IsActive": _capacity(Operation.DESCRIBE),
    "ExternalScaler/GetMetricSpec": _capacity(Operation.DESCRIBE),
    "ExternalScaler/GetMetrics": _capacity(Operation.DESCRIBE),
    "Control/Join": _brokers_only(),
    "Control/Commit": _brokers_only(),
    "Control/Replicate": _brokers_only(),
    "Control/Surrender": _brokers_only(),
    "Control/AddToTransaction": _brokers_only(),
    "Control/WriteMarkers": _brokers_only(),
    "Control/View": _brokers_only(),
    "Control/Reshard": MethodRule(ask_first=_may_alter_brokers, ask=_reshard, act=grpc_acts.order),
    "Control/Describe": _cluster(Operation.DESCRIBE),
    "Gates/OpenGate": MethodRule(
        ask_first=_some(Operation.CREATE, Resource.GATE), ask=_open_gate, act=_of("topic", "gate_id"), **_FILES
    ),
    "Gates/FillGate": MethodRule(
        ask_first=_some(Operation.ALTER, Resource.GATE), ask=_fill_gate, act=_of("topic", "gate_id"), **_FILES
    ),
    "Gates/RenewGate": _gate(Operation.ALTER),
    "Gates/ReleaseGate": _gate(Operation.ALTER, act=_of("topic", "gate_id")),
    "Gates/ListGates": MethodRule(
        ask_first=_known(Operation.DESCRIBE, Resource.GATE),
        ask=_later,
        trim=lambda answer, rights: _keep(answer.gates, lambda row: rights.may(Operation.DESCRIBE, Resource.GATE, row.topic)),
    ),
    "Gates/DescribeGate": _gate(Operation.DESCRIBE),
    "Gates/Layout": _gate(Operation.DESCRIBE, bytes_max=ROWS_BYTES_MAX, elements_max=FILES_ELEMENTS_MAX),
    "Gates/ReportFlood": _gate(Operation.ALTER),
    "Access/CreateUser": _cluster(Operation.ALTER, act=_of("name")),
    "Access/SetPassword": _cluster(Operation.ALTER, act=_of("name")),
    "Access/DeleteUser": _cluster(Operation.ALTER, act=_of("name")),
    "Access/ListUsers": _cluster(Operation.DESCRIBE),
}
"""By service and method."""
