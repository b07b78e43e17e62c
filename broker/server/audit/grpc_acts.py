"""What the audit log says about gRPC calls: the methods that are administrative acts, and the names in them.

`tests/unit/access/test_audit.py` proves that every method is an act or stands in `SILENT`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Message = Any
PATHS_MAX = 3
"""Paths of files in the line of a filled gate: its digest stands for all of them."""


def _of(*fields: str) -> Callable[[Message], list[str]]:
    return lambda request: [str(getattr(request, field)) for field in fields]


def _rules(request: Message) -> list[str]:
    rows = request.acls if hasattr(request, "acls") else [request.filter]
    return [f"{row.permission or 'any'} {row.principal or '*'} {row.operation or 'any'} {row.resource or 'any'} {row.name or '*'}"
            for row in rows]  # fmt: skip


def _quotas(request: Message) -> list[str]:
    found = []
    for row in (*request.set, *request.remove):
        names = [(one.name.replace("_", "-"), value) for one, value in row.ListFields() if one.name != "values"]
        found.append(", ".join(f"{word} {name or '(default)'}" for word, name in names))
    return found


def _order(request: Message) -> list[str]:
    kind = request.WhichOneof("order")
    if kind is None:
        return []
    order = getattr(request, kind)
    return [kind, *(f"{field.name} {value}" for field, value in order.ListFields())]


ACTS: dict[str, Callable[[Message], list[str]]] = {
    "Admin/CreateTopic": _of("name"),
    "Admin/AlterTopicConfig": _of("name"),
    "Admin/CreatePartitions": _of("name"),
    "Admin/DeleteTopic": _of("name"),
    "Admin/DeleteRecords": _of("topic"),
    "Admin/SkipRecords": _of("topic"),
    "Groups/AlterPositions": _of("group"),
    "Groups/DeleteGroup": _of("id"),
    "Capacity/OpenReservation": _of("id"),
    "Capacity/ReleaseReservation": _of("id"),
    "Control/Reshard": _order,
    "Gates/OpenGate": _of("topic", "gate_id"),
    "Gates/FillGate": _of("topic", "gate_id"),
    "Gates/ReleaseGate": _of("topic", "gate_id"),
    "Access/CreateUser": _of("name"),
    "Access/SetPassword": _of("name"),
    "Access/DeleteUser": _of("name"),
    "Access/AddAcls": _rules,
    "Access/RemoveAcls": _rules,
    "Access/AlterQuotas": _quotas,
}
"""By service and method."""
SILENT = frozenset(
    (
        "Admin/Status",
        "Admin/ListTopics",
        "Admin/DescribeTopics",
        "Admin/CheckRecords",
        "Log/InitProducer",
        "Log/Publish",
        "Log/Fetch",
        "Log/ListOffsets",
        "Log/Subscribe",
        "Groups/ListGroups",
        "Groups/DescribeGroups",
        "Capacity/RenewReservation",
        "Capacity/ListReservations",
        "Capacity/GetDesiredBrokers",
        "Capacity/WatchDesiredBrokers",
        "ExternalScaler/IsActive",
        "ExternalScaler/StreamIsActive",
        "ExternalScaler/GetMetricSpec",
        "ExternalScaler/GetMetrics",
        "Control/Join",
        "Control/Commit",
        "Control/Replicate",
        "Control/Surrender",
        "Control/AddToTransaction",
        "Control/WriteMarkers",
        "Control/View",
        "Control/Describe",
        "Gates/RenewGate",
        "Gates/ListGates",
        "Gates/DescribeGate",
        "Gates/Layout",
        "Gates/ReportFlood",
        "Access/ListUsers",
        "Access/ListAcls",
        "Access/ListQuotas",
    )
)
"""Reads, records, signs of life, and what brokers do among themselves. Their refusals are noted all the same."""


def details(response: Message | None) -> dict[str, object]:
    """What the line of an act also says. For a filled gate: its origin, its source, and the digest that certifies its content."""
    gate = getattr(response, "gate", None)
    if gate is None or not gate.digest:
        return {}
    return {
        "gate": gate.id,
        "origin": gate.owner,
        "source": gate.definition,
        "certificate": {"digest": gate.digest, "rows": gate.rows, "size_bytes": gate.size_bytes, "files": gate.files},
    }


def traits(request: Message) -> dict[str, object]:
    """What the line of an act says besides names: that a user may do everything."""
    return {"superuser": True} if getattr(request, "superuser", False) else {}


def sources(request: Message) -> dict[str, object]:
    """The places of the files that fill a gate."""
    files = getattr(request, "files", ())
    return {"paths": [one.path for one in files[:PATHS_MAX]]} if files else {}
