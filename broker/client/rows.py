"""Dataclasses from the messages of brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from google.protobuf.message import Message

_T = TypeVar("_T")


def from_row(kind: Callable[..., _T], row: Message, **others: Any) -> _T:
    """A dataclass whose fields have the names of the message's. A field that may be None is None if the message does not have it.

    Args:
        others: the values of fields that the message does not have under that name and in that form.
    """
    for name, may_be_none in _fields(kind):
        if name not in others:
            others[name] = None if may_be_none and not row.HasField(name) else getattr(row, name)
    return kind(**others)


def from_rows(kind: Callable[..., _T], rows: Iterable[Message]) -> tuple[_T, ...]:
    """`from_row` of each message."""
    return tuple(from_row(kind, row) for row in rows)


@cache
def _fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    return tuple((field.name, field.type.endswith("| None")) for field in fields(kind))
