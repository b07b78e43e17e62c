"""SaslHandshake (17), versions 0-1: begins a login. Without SASL on the listener: ILLEGAL_SASL_STATE, as in Kafka.

It is served on every listener, so that a client that is configured to log in ends at once with a clear error.

Deviation: after version 0, Kafka expects the mechanism's messages outside its own protocol; version 0 is refused here. Every client
with SaslAuthenticate (Kafka 1.0, 2017) uses version 1.
"""

from __future__ import annotations

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, free
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


async def handle(request: SaslHandshakeRequest, context: Context) -> SaslHandshakeResponse:
    sasl = context.sasl
    if sasl is None or context.api_version == 0:
        context.unserved(f"SASL mechanism {request.mechanism[:100]}")
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    try:
        sasl.choose(request.mechanism)
    except InvalidError as error:
        sasl.failed = error.message
        unknown = error.reason is Reason.UNSUPPORTED
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM if unknown else ErrorCode.ILLEGAL_SASL_STATE
        return SaslHandshakeResponse(error_code=code, mechanisms=sasl.mechanisms)
    return SaslHandshakeResponse(mechanisms=sasl.mechanisms)


API = Api(17, versions=(0, 1), request=SaslHandshakeRequest, handle=handle, rule=free)
