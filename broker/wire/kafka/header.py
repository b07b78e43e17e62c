"""Request and response headers: the version of a request's header, and reading and writing of headers.

A request header is version 2 (with tagged fields) if the request's own version is flexible, otherwise 1. Version 0, without a
client id, belongs to ControlledShutdown alone. Response headers are version 1 if flexible, otherwise 0. ApiVersions always
answers with header version 0, because a client that asks for versions does not know the broker's versions yet (KIP-511).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from headgate.broker.wire.kafka.primitives import PARSE_ERRORS, Buffer, malformed, read_nullable_string, skip_tags

API_VERSIONS_KEY = 18

_KEY_VERSION_CORRELATION = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">i")


@dataclass(slots=True, kw_only=True)
class RequestHead:
    """The beginning of every request. `correlation_id` is the client's; the response carries it back."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def read_key_version(buf: Buffer, pos: int) -> tuple[int, int, int]:
    """API key, API version and correlation id: all fields that may be read before it is known whether the API is served.

    Raises DecodeError.
    """
    try:
        key, version, correlation_id = _KEY_VERSION_CORRELATION.unpack_from(buf, pos)
    except PARSE_ERRORS as error:
        raise malformed("RequestHeader", 0, error) from error
    return key, version, correlation_id


def read_request_header(buf: Buffer, pos: int, flexible: bool) -> tuple[RequestHead, int]:
    """The header of a request and the position of its body. Raises DecodeError.

    Args:
        flexible: whether this version of this API is flexible (`Api.flexible`).
    """
    try:
        key, version, correlation_id = _KEY_VERSION_CORRELATION.unpack_from(buf, pos)
        client_id, pos = read_nullable_string(buf, pos + 8)
        if flexible:
            pos = skip_tags(buf, pos)
    except PARSE_ERRORS as error:
        raise malformed("RequestHeader", 2 if flexible else 1, error) from error
    return RequestHead(api_key=key, api_version=version, correlation_id=correlation_id, client_id=client_id), pos


def request_header(api_key: int, version: int, flexible: bool) -> bytes:
    """The header of a request of a Headgate client: without a client id, and with correlation id 0."""
    return _KEY_VERSION_CORRELATION.pack(api_key, version, 0) + b"\xff\xff" + (b"\x00" if flexible else b"")


def response_header(api_key: int, correlation_id: int, flexible: bool) -> bytes:
    """The header of a response.

    Args:
        flexible: whether the request's version of this API is flexible.
    """
    if flexible and api_key != API_VERSIONS_KEY:
        return _CORRELATION.pack(correlation_id) + b"\x00"
    return _CORRELATION.pack(correlation_id)
