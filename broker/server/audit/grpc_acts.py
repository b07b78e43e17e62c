"""What the audit log says about gRPC calls: the names of what an administrative act is about, and what came of it.

The registry (`../access/grpc_rules.py`) says which methods are acts. Refusals of the others are noted all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Message = Any
PATHS_MAX = 3
"""Paths of files in the line of a filled gate: its digest stands for all of them."""


def names(*fields: str) -> Callable[[Message], list[str]]:
    """Takes the names out of these fields of a request."""
    return lambda request: [str(getattr(request, field)) for field in fields]


def rules(request: Message) -> list[str]:
    """The rules of a request, or its filter."""
    rows = request.acls if hasattr(request, "acls") else [request.filter]
    return [f"{row.permission or 'any'} {row.principal or '*'} {row.operation or 'any'} {row.resource or 'any'} {row.name or '*'}"
            for row in rows]  # fmt: skip


def quotas(request: Message) -> list[str]:
    """The entities whose quotas change."""
    found = []
    for row in (*request.set, *request.remove):
        entity = [(one.name.replace("_", "-"), value) for one, value in row.ListFields() if one.name != "values"]
        found.append(", ".join(f"{word} {name or '(default)'}" for word, name in entity))
    return found


def order(request: Message) -> list[str]:
    """A manual order, and its values."""
    kind = request.WhichOneof("order")
    if kind is None:
        return []
    return [kind, *(f"{field.name} {value}" for field, value in getattr(request, kind).ListFields())]


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
