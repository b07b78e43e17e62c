"""SaslHandshake (17), versions 0-1: always ILLEGAL_SASL_STATE, like from a listener of Kafka without SASL.

It is served so that a client that is configured to log in ends at once with a clear error. Without it the client would get no
answer, and would take the broker for unreachable.
"""

from __future__ import annotations

from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


async def handle(request: SaslHandshakeRequest, context: Context) -> SaslHandshakeResponse:
    context.unserved(f"SASL mechanism {request.mechanism[:100]}")
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
