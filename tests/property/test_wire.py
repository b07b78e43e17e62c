"""The generated Kafka messages against two foreign implementations, and against hostile bytes.

For every message and version, Hypothesis builds values from Kafka's schema. Then:

- our bytes decode to the value again, at any position and with any bytes behind them;
- kio decodes our bytes to the same fields, and encodes the same bytes; kafka-python decodes them and encodes the same bytes.
  A mismatch means that Headgate and other implementations disagree about the protocol;
- every prefix of a message raises DecodeError; random bytes and messages with changed bytes decode or raise it. Any other result
  means that a client can crash a connection.
"""

from __future__ import annotations

import datetime
import io
from dataclasses import fields
from importlib import import_module
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.steps import finish
from headgate.broker.wire.kafka.primitives import ZERO_UUID, DecodeError
from headgate.broker.wire.kafka.schema import snake
from tests.support.examples import examples
from tests.support.messages import LOADED, message_module, message_values

EXAMPLES = settings(
    max_examples=examples(3), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], database=None
)
HOSTILE = settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
"""For each of the 110 messages, which share their primitives and one compiler: together 660 examples in a run of the suite."""
PREFIXES_MAX = 150
"""Prefixes of one message that are decoded: their number times their length is the work."""

NEWER = {
    (f"{api}{kind}", version) for api, version in (("ApiVersions", 5), ("TxnOffsetCommit", 6)) for kind in ("Request", "Response")
}
"""Messages of Kafka 4.4, which neither implementation knows; tests in `unit/kafka_api/` state their bytes."""
CASES = [(name, version) for name, (message, _) in LOADED.items() for version in message.versions]

# -- the foreign implementations


def kio_entity(name: str, version: int) -> Any | None:
    message, module = LOADED[name]
    if name.endswith("Header"):
        where, attribute = f"kio.schema.{snake(module)}.v{version}.header", name
    elif message.api_key is None:
        where, attribute = f"kio.schema.{snake(module)}.v{version}.data", name
    else:
        where, attribute = f"kio.schema.{snake(module)}.v{version}.{'request' if name.endswith('Request') else 'response'}", name
    try:
        return getattr(import_module(where), attribute)
    except ModuleNotFoundError:
        return None


def kafka_python_class(name: str) -> Any | None:
    for package in (kafka.protocol.admin, kafka.protocol.consumer, kafka.protocol.metadata, kafka.protocol.producer):
        if hasattr(package, name) and not name.startswith("ConsumerProtocol"):
            return getattr(package, name)
    return None


def _kafka_python_gives_up(value: Any) -> bool:
    """Its DeleteTopicsRequest cannot be encoded without a header; its ApiVersionsResponse decodes any error as one of version 0."""
    return type(value).__name__ == "DeleteTopicsRequest" or (
        type(value).__name__ == "ApiVersionsResponse" and value.error_code != 0
    )


def assert_same_fields(mine: Any, theirs: Any) -> None:
    """Every field of kio's message has the same value in ours. kio's types for times, ids and codes are converted to Kafka's."""
    if isinstance(theirs, tuple):
        assert len(mine) == len(theirs)
        for left, right in zip(mine, theirs, strict=True):
            assert_same_fields(left, right)
    elif hasattr(theirs, "__dataclass_fields__"):
        for field in fields(theirs):
            assert_same_fields(_our_field(mine, field.name), getattr(theirs, field.name))
    elif isinstance(theirs, datetime.timedelta):
        assert mine == theirs // datetime.timedelta(milliseconds=1)
    elif isinstance(theirs, datetime.datetime):
        assert mine == (theirs - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
    elif theirs is None:
        assert mine is None or mine == ZERO_UUID or mine == -1
    else:
        assert mine == theirs


def _our_field(mine: Any, name: str) -> Any:
    for candidate in (name, f"{name}_ms"):
        if hasattr(mine, candidate):
            return getattr(mine, candidate)
    raise AssertionError(f"kio has a field that {type(mine).__name__} has not: {name}")


# -- well-formed messages


@pytest.mark.parametrize(("name", "version"), CASES, ids=lambda x: str(x))
def test_round_trip_and_foreign_implementations(name: str, version: int) -> None:
    kind = getattr(message_module(name), name)
    entity = kio_entity(name, version)
    foreign = None if (name, version) in NEWER else kafka_python_class(name)
    assert entity is not None or foreign is not None or (name, version) in NEWER

    @EXAMPLES
    @given(message_values(name, version))
    def check(value: Any) -> None:
        data = value.encode(version)
        assert kind.decode(data, 0, version) == (value, len(data))
        padded = b"\xee" * 3 + data + b"\xee" * 5
        assert kind.decode(memoryview(padded), 3, version) == (value, len(data) + 3)
        out = bytearray(b"before")
        finish(value.encoding(out, version))
        assert out == b"before" + data
        if version == kind.CARRIED:  # the product's own code for Headgate's clients
            if name.endswith("Request"):
                assert value.encode_carried() == data
            else:
                assert kind.decode_carried(padded, 3) == value
        if entity is not None:
            theirs, size = entity_reader(entity)(data, 0)
            assert size == len(data)
            assert_same_fields(value, theirs)
            again = io.BytesIO()
            entity_writer(entity)(again, theirs)
            assert again.getvalue() == data
        if foreign is not None and not _kafka_python_gives_up(value):
            assert bytes(foreign.decode(data, version=version).encode()) == data

    check()


def test_kio_judges_all_versions_of_kafka_4_2() -> None:
    unjudged = [case for case in CASES if kio_entity(*case) is None]
    assert set(unjudged) <= NEWER | {("DescribeLogDirsRequest", 5), ("DescribeLogDirsResponse", 5)}, unjudged  # these are from 4.3


# -- hostile bytes


def _decode_or_refuse(kind: Any, data: bytes | memoryview, version: int) -> None:
    try:
        _, end = kind.decode(data, 0, version)
    except DecodeError as error:
        assert error.reason is Reason.INVALID_REQUEST
        assert len(error.message) < 300
    else:
        assert 0 <= end <= len(data)


@pytest.mark.parametrize("name", LOADED)
def test_every_prefix_is_refused(name: str) -> None:
    kind = getattr(message_module(name), name)

    @EXAMPLES
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(list(LOADED[name][0].versions)))
        whole = data.draw(message_values(name, version)).encode(version)
        step = len(whole) // PREFIXES_MAX + 1
        ends = range(data.draw(st.integers(0, step - 1)), len(whole), step)
        for number, end in enumerate(ends):  # of bytes and of a view in turn
            with pytest.raises(DecodeError):
                kind.decode((whole, memoryview(whole))[number % 2][:end], 0, version)

    check()


@pytest.mark.parametrize("name", LOADED)
def test_any_bytes_decode_or_are_refused(name: str) -> None:
    kind = getattr(message_module(name), name)

    @HOSTILE
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(list(LOADED[name][0].versions)))
        if data.draw(st.booleans()):
            hostile = bytearray(data.draw(st.binary(max_size=200)))
        else:
            hostile = bytearray(data.draw(message_values(name, version)).encode(version))
            for _ in range(data.draw(st.integers(1, 4))):
                if hostile:
                    hostile[data.draw(st.integers(0, len(hostile) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        _decode_or_refuse(kind, bytes(hostile), version)
        _decode_or_refuse(kind, memoryview(bytes(hostile)), version)

    check()


def test_decode_error_is_the_peers_fault() -> None:
    assert issubclass(DecodeError, InvalidError)
