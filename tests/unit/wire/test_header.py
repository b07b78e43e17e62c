"""Request and response headers against the generated messages, including the exception of ApiVersions.

A mismatch means that requests are cut at the wrong byte, or that clients cannot match answers to requests.
"""

from __future__ import annotations

import pytest
from headgate.broker.testing.messages.request_header import RequestHeader
from headgate.broker.testing.messages.response_header import ResponseHeader

from headgate.broker.server.kafka.apis import APIS
from headgate.broker.wire.kafka.header import read_key_version, read_request_header, response_header
from headgate.broker.wire.kafka.primitives import DecodeError


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "ä" * 100])
@pytest.mark.parametrize("flexible", [False, True])
def test_request_header(client_id: str | None, flexible: bool) -> None:
    written = RequestHeader(request_api_key=3, request_api_version=12, correlation_id=-7, client_id=client_id)
    data = b"??" + written.encode(2 if flexible else 1) + b"body"
    head, pos = read_request_header(memoryview(data), 2, flexible)
    assert (head.api_key, head.api_version, head.correlation_id, head.client_id) == (3, 12, -7, client_id)
    assert data[pos:] == b"body"
    assert read_key_version(data, 2) == (3, 12, -7)


def test_tags_in_a_request_header_are_skipped() -> None:
    data = RequestHeader(client_id="a").encode(2)[:-1] + b"\x01\x00\x02hi" + b"body"
    assert data[read_request_header(data, 0, True)[1] :] == b"body"


@pytest.mark.parametrize("flexible", [False, True])
def test_every_prefix_of_a_request_header_is_refused(flexible: bool) -> None:
    data = RequestHeader(client_id="client").encode(2 if flexible else 1)
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            read_request_header(data[:end], 0, flexible)
    for end in range(8):
        with pytest.raises(DecodeError):
            read_key_version(data[:end], 0)


def test_a_client_id_that_is_not_text_is_refused() -> None:
    with pytest.raises(DecodeError):
        read_request_header(b"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x02\xff\xff", 0, False)


@pytest.mark.parametrize("key", APIS)
def test_response_header(key: int) -> None:
    api = APIS[key]
    for version in range(api.min_version, api.max_version + 1):
        flexible = api.flexible(version)
        expected = ResponseHeader(correlation_id=-9).encode(1 if flexible and key != 18 else 0)
        assert response_header(key, -9, flexible) == expected
