"""Hypothesis strategies for Kafka messages, made from Kafka's schema as the generator reads it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import kio.schema.errors
from hypothesis import strategies as st

import headgate.broker.testing.messages  # noqa: F401  (both directions of all messages)
from headgate.broker.wire.kafka.generate import IN_MEMORY, MESSAGES
from headgate.broker.wire.kafka.primitives import ZERO_UUID
from headgate.broker.wire.kafka.schema import Field, Struct, load, snake

Scalars: TypeAlias = Callable[[Field], st.SearchStrategy[Any]]

LOADED = {name: (load(name), module) for module, names in MESSAGES.items() for name in names}
"""Every message, with the name of the schema's module."""

_ERROR_CODES = sorted(int(code) for code in kio.schema.errors.ErrorCode)
_INTS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def message_module(name: str) -> Any:
    """The generated module that has the message."""
    module = LOADED[name][1]
    package = "testing" if module in IN_MEMORY else "wire.kafka"
    return import_module(f"headgate.broker.{package}.messages.{snake(module)}")


def scalars(field: Field) -> st.SearchStrategy[Any]:
    """Any value of the type, with frequent edge cases."""
    if field.kind == "bool":
        return st.booleans()
    if field.name.endswith("error_code"):
        return st.sampled_from(_ERROR_CODES)  # kio supports no others
    if field.kind in _INTS:
        limit = 2 ** _INTS[field.kind]
        if field.kind == "int64" and ("timestamp" in field.name or field.name.endswith("_ms")):
            # kio makes datetimes of these, and has none for a transaction that has not begun.
            return st.integers(0 if field.name == "transaction_start_time_ms" else -1, 2**40)
        return st.one_of(st.sampled_from([0, -1, 1, limit - 1, -limit]), st.integers(-limit, limit - 1))
    if field.kind == "float64":
        return st.floats(allow_nan=False)
    if field.kind == "uint16":
        return st.one_of(st.sampled_from([0, 1, 2**16 - 1]), st.integers(0, 2**16 - 1))
    if field.kind == "string":
        return st.one_of(st.text(max_size=5), st.just("x" * 200))
    if field.kind == "uuid":
        return st.one_of(st.just(ZERO_UUID), st.uuids())
    return st.one_of(st.binary(max_size=8), st.just(b"y" * 200))


def _values(module: Any, struct: Struct, version: int, scalars: Scalars) -> st.SearchStrategy[Any]:
    parts = {}
    for field in struct.fields:
        if version not in field.versions:
            continue
        one = _values(module, field.struct, version, scalars) if field.struct is not None else scalars(field)
        if field.array:
            one = st.lists(one, max_size=3)
        if version in field.nullable:
            one = st.one_of(st.none(), one)
        if field.tag is not None:
            one = st.one_of(st.just(_default(module, struct, field)), one)
        parts[field.name] = one
    return st.builds(getattr(module, struct.name), **parts)


def _default(module: Any, struct: Struct, field: Field) -> Any:
    return getattr(getattr(module, struct.name)(), field.name)


def message_values(name: str, version: int, scalars: Scalars = scalars) -> st.SearchStrategy[Any]:
    """Instances of a generated message that `version` can carry. `scalars` gives the values of a field that is no struct."""
    return _values(message_module(name), LOADED[name][0].root, version, scalars)
