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
    return {"paths": [file.path for file in files[:PATHS_MAX]]} if files else {}
