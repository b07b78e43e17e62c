"""Kafka messages encoded and decoded by kio, which is generated from Kafka's own schema: the oracle for raw sockets.

A test gives a message as plain values, the superset of all versions. Fields that a version does not have are left out. Missing
fields get the schema's default, or zero. A decoded answer must consume all bytes.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
import uuid
from collections.abc import Mapping
from types import UnionType
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tests.support.wire import RawConnection

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 18, 19, 20, 21, 22
OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CONFIGS, ALTER_CONFIGS, DESCRIBE_LOG_DIRS = 23, 32, 33, 35
CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS, DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS = 37, 44, 60, 61
DESCRIBE_TOPIC_PARTITIONS = 75

# Besides SaslHandshake, only ApiVersions never has a flexible header in its answer: a client that does not know the broker must be
# able to read it (KIP-511).
_PLAIN_RESPONSE_HEADER = frozenset({API_VERSIONS})


def is_flexible(api_key: int, version: int) -> bool:
    return bool(load_request_schema(api_key, version).__flexible__)


def encode(api_key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Encode a request's body."""
    schema = load_request_schema(api_key, version)
    out = io.BytesIO()
    entity_writer(schema)(out, _entity(schema, values))
    return out.getvalue()


def decode(api_key: int, version: int, answer: bytes) -> Any:
    """Decode an answer (after its correlation id) to kio's dataclass. Fails if bytes remain."""
    schema = load_response_schema(api_key, version)
    start = 0
    if schema.__flexible__ and api_key not in _PLAIN_RESPONSE_HEADER:
        assert answer[0] == 0, "the answer's header has tagged fields"
        start = 1
    entity, size = entity_reader(schema)(answer, start)
    assert start + size == len(answer), f"bytes left over. api=`{api_key}` version=`{version}` bytes=`{len(answer) - start - size}`"
    return entity


def call(connection: RawConnection, api_key: int, version: int, values: Mapping[str, Any]) -> Any:
    """Send one request and return its decoded answer."""
    body = encode(api_key, version, values)
    return decode(api_key, version, connection.call(api_key, version, body, flexible=is_flexible(api_key, version)))


def _entity(schema: type[Any], values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(schema)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        if field.name in values:
            given[field.name] = _value(hints[field.name], values[field.name])
        elif field.default is dataclasses.MISSING:
            given[field.name] = _zero(hints[field.name])
    return schema(**given)


def _value(hint: Any, value: Any) -> Any:
    kind = _required(hint)
    if value is None:
        return None
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_value(item, one) for one in value)
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return _entity(kind, value)
    if issubclass(kind, datetime.timedelta):
        return datetime.timedelta(milliseconds=value)
    return value


def _zero(hint: Any) -> Any:
    if _required(hint) is not hint:
        return None
    if typing.get_origin(hint) is tuple:
        return ()
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return _entity(hint, {})
    if issubclass(hint, uuid.UUID):
        return uuid.UUID(int=0)
    for kind, zero in ((bool, False), (int, 0), (float, 0.0), (str, ""), (bytes, b""), (datetime.timedelta, datetime.timedelta())):
        if issubclass(hint, kind):
            return zero
    raise AssertionError(f"no zero value. type=`{hint}`")


def _required(hint: Any) -> Any:
    """`X` of `X | None`, or the hint itself."""
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        return next(one for one in typing.get_args(hint) if one is not type(None))
    return hint
