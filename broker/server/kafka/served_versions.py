"""The APIs and versions that this broker serves, as a client is told."""

from __future__ import annotations

from headgate.broker.server.kafka.apis import APIS
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages.api_versions import ApiVersion, ApiVersionsResponse


def served() -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api.key, min_version=api.advertised_min_version, max_version=api.max_version) for api in APIS.values()
    ]


def unsupported_version() -> bytes:
    """The body, in version 0, for an unsupported version of ApiVersions."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=served()).encode(0)
