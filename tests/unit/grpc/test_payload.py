"""The split of a message and its big field, compared with protobuf: protobuf reads our joined bytes, and we split protobuf's
bytes."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.wire.grpc import payload
from headgate.broker.wire.grpc.headgate.v1 import log_pb2
from tests.support.examples import examples

REQUESTS = st.builds(
    log_pb2.PublishRequest,
    sequence=st.integers(0, 2**64 - 1),
    topic=st.text(max_size=20),
    partition=st.integers(0, 2**32 - 1),
    options=st.one_of(st.none(), st.builds(log_pb2.PublishOptions, ack_batches=st.integers(0, 2**32 - 1))),
)


@given(REQUESTS, st.lists(st.binary(max_size=300), max_size=4))
@settings(deadline=None)
def test_protobuf_reads_what_we_join(request: log_pb2.PublishRequest, parts: list[bytes]) -> None:
    expected = log_pb2.PublishRequest()
    expected.CopyFrom(request)
    expected.batch = b"".join(parts)
    assert log_pb2.PublishRequest.FromString(payload.join(request, parts)) == expected


@given(REQUESTS, st.binary(max_size=300))
@settings(deadline=None)
def test_we_split_what_protobuf_writes(request: log_pb2.PublishRequest, batch: bytes) -> None:
    whole = log_pb2.PublishRequest()
    whole.CopyFrom(request)
    whole.batch = batch
    rest, found = payload.split(whole.SerializeToString())
    assert bytes(found) == batch
    assert log_pb2.PublishRequest.FromString(rest) == request


def test_fields_behind_the_payload_and_a_payload_twice() -> None:
    first = log_pb2.PublishRequest(batch=b"first").SerializeToString()
    second = log_pb2.PublishRequest(batch=b"second").SerializeToString()
    number = log_pb2.PublishRequest(sequence=7).SerializeToString()
    data = first + number + second
    rest, found = payload.split(data)
    # The last field wins, as in protobuf.
    assert log_pb2.PublishRequest.FromString(data).batch == b"second" == bytes(found)
    assert rest == number


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 1 << 21])
def test_lengths_of_every_width(size: int) -> None:
    data = payload.join(log_pb2.FetchResponse(log_start=1), [bytes(size)])
    assert len(log_pb2.FetchResponse.FromString(data).batches) == size
    assert len(payload.split(data)[1]) == size


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=examples(200))
def test_any_bytes_are_split_or_refused(data: bytes) -> None:
    try:
        rest, found = payload.split(data)
    except InvalidError as error:
        assert error.reason is Reason.INVALID_REQUEST
        return
    try:
        expected = log_pb2.PublishRequest.FromString(data)
    except DecodeError:
        # Our code reads the outermost fields only; protobuf parses the inner ones too.
        with pytest.raises(DecodeError):
            log_pb2.PublishRequest.FromString(rest)
        return
    assert expected.batch == bytes(found)
