"""SaslAuthenticate (36), versions 0-2: the messages of a login. A failed login is answered late, and ends the connection."""

from __future__ import annotations

from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, free
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


async def handle(request: SaslAuthenticateRequest, context: Context) -> SaslAuthenticateResponse:
    sasl = context.sasl
    if sasl is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="SaslHandshake comes first, on a listener with SASL"
        )
    try:
        answer = await sasl.step(request.auth_bytes)
    except HeadgateError as error:
        sasl.failed = error.message
        if error.reason is Reason.INVALID_REQUEST:
            raise  # without a handshake the connection ends, as in Kafka
        # The client does not learn whether the user exists; the log has the reason.
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="Authentication failed")
    return SaslAuthenticateResponse(error_message=None, auth_bytes=answer, session_lifetime_ms=sasl.lifetime_ms)


API = Api(36, versions=(0, 2), flexible_from=2, request=SaslAuthenticateRequest, handle=handle, rule=free)
