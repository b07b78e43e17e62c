"""SaslHandshake (17), versions 0-1: always ILLEGAL_SASL_STATE, as from a listener of Kafka without SASL.

It is served so that a client that is set up to log in ends at once and says why. Without it the client is never told, and takes the
broker for one that cannot be reached.
"""

from __future__ import annotations

from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


async def handle(request: SaslHandshakeRequest, context: Context) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
