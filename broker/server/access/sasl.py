"""SASL on one Kafka connection: the handshake, the messages of a mechanism, and logging in again (KIP-43, KIP-152, KIP-368).

    new -> chosen (SaslHandshake) -> [first answer of SCRAM] -> logged in -> chosen ... (to log in again)

Until the first login a connection may ask for ApiVersions, SaslHandshake and SaslAuthenticate only. Who logs in again must use the
same mechanism and be the same principal. Version 0 of the handshake, with messages outside the protocol, is not served.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from headgate.broker.cluster.access import MECHANISMS
from headgate.broker.cluster.scram import Exchange, ScramError
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.access.failures import Failures
from headgate.broker.server.access.passwords import Passwords
from headgate.broker.server.access.rights import Identity
from headgate.broker.server.access.tokens import Tokens, token_of

AGAIN_GRACE_S = 1.0
"""Time for a login that a client began before the end of its last one: the client's machine, or the broker, may be late. A token
ends at its own end."""


@dataclass(frozen=True, slots=True)
class Logins:
    """What all logins share. `now_s`: a monotonic clock; `now_ms`: the wall clock."""

    settings: Settings
    passwords: Passwords
    tokens: Tokens
    now_s: Callable[[], float]
    now_ms: Callable[[], int]

    def mechanisms(self, *, is_tls: bool) -> list[str]:
        """The mechanisms of a listener. A password or token that is sent as it is needs TLS, unless the operator allows that."""
        settings = self.settings
        known = [mechanism.strip().upper() for mechanism in settings.sasl_mechanisms.split(",") if mechanism.strip()]
        open_ones = is_tls or settings.sasl_plain_without_tls
        return [
            mechanism
            for mechanism in known
            if mechanism in MECHANISMS or (open_ones and (mechanism == "PLAIN" or bool(settings.oauth_jwks)))
        ]


class Sasl:
    """The logins of one connection.

    Args:
        failures: counts the failed logins of the client's address.
        on_login: called with the client after every login.
    """

    def __init__(
        self, logins: Logins, host: str, failures: Failures, *, is_tls: bool, on_login: Callable[[Identity], None]
    ) -> None:
        self._failures = failures
        self._on_login = on_login
        self._logins = logins
        self._host = host
        self._is_tls = is_tls
        self._mechanism = ""
        """The mechanism of the login in progress, or ""."""
        self._exchange: Exchange | None = None
        self.identity: Identity | None = None
        self._again_s = math.inf
        """When the client must log in again, as it is told."""
        self.failed = ""
        """Why the connection must end, or ""."""

    @property
    def mechanisms(self) -> list[str]:
        return self._logins.mechanisms(is_tls=self._is_tls)

    def choose(self, mechanism: str) -> None:
        """Begin a login. Raises InvalidError: UNSUPPORTED for an unknown mechanism, NOT_AUTHENTICATED for another than before."""
        if mechanism not in self.mechanisms:
            raise InvalidError(Reason.UNSUPPORTED, f"mechanism is not offered. mechanism=`{mechanism[:50]}`")
        if self.identity is not None and self.identity.mechanism != mechanism:
            raise InvalidError(Reason.NOT_AUTHENTICATED, "the mechanism cannot change within a connection")
        self._mechanism, self._exchange = mechanism, None

    async def step(self, message: bytes) -> bytes:
        """The answer to the next message. `identity` is set, or renewed, with the last one. Raises InvalidError(INVALID_REQUEST)
        without a handshake, InvalidError(NOT_AUTHENTICATED), RetryError."""
        mechanism = self._mechanism
        if not mechanism:
            raise InvalidError(Reason.INVALID_REQUEST, "SaslHandshake comes first")
        with self._failures.counted(self._host):
            return await self._step(mechanism, message)

    async def _step(self, mechanism: str, message: bytes) -> bytes:
        if mechanism == "PLAIN":
            name = await self._plain(message)
            return self._done(f"User:{name}", math.inf)
        if mechanism == "OAUTHBEARER":
            try:
                token = await self._logins.tokens.check(token_of(message))
            except InvalidError as error:
                await self._logins.passwords.fail(error.message)
                raise
            left_s = token.expires_at_s - self._logins.now_ms() / 1000
            return self._done(token.principal, self._logins.now_s() + left_s)
        return await self._scram(message)

    async def _plain(self, message: bytes) -> str:
        parts = message.decode("utf-8", "replace").split("\0")
        if len(parts) != 3 or parts[0] not in ("", parts[1]) or not parts[1]:
            await self._logins.passwords.fail("the message of PLAIN is malformed")
        await self._logins.passwords.check(parts[1], parts[2], "kafka", self._host)
        return parts[1]

    async def _scram(self, message: bytes) -> bytes:
        passwords, mechanism = self._logins.passwords, self._mechanism
        if self._exchange is None:
            self._exchange = Exchange(
                mechanism,
                lambda name: passwords.look_up(name, mechanism),
                secrets.token_urlsafe(18),
                lambda name: passwords.decoy(name, mechanism),
            )
        exchange = self._exchange
        try:
            answer = exchange.step(message)
        except ScramError as error:
            self._mechanism = ""
            await passwords.fail(f"{error}. user=`{exchange.user[:100]}`")
            raise
        return self._done(f"User:{exchange.user}", math.inf, answer) if exchange.is_done else answer

    def _done(self, principal: str, expires_s: float, answer: bytes = b"") -> bytes:
        before, mechanism = self.identity, self._mechanism
        self._mechanism, self._exchange = "", None
        if before is not None and before.principal != principal:
            raise InvalidError(Reason.NOT_AUTHENTICATED, "the user cannot change within a connection")
        self._again_s, longest_s = expires_s, self._logins.settings.connection_reauthenticate_ms / 1000
        if longest_s:
            again_s = self._logins.now_s() + longest_s
            self._again_s, expires_s = min(expires_s, again_s), min(expires_s, again_s + AGAIN_GRACE_S)
        self.identity = Identity(principal=principal, host=self._host, expires_s=expires_s, mechanism=mechanism)
        self._on_login(self.identity)
        return answer

    @property
    def lifetime_ms(self) -> int:
        """Time until the client must log in again; 0: never, or a login is under way.

        An answer within a login says nothing of the login before it: librdkafka would begin the next one and crash.
        """
        if self._mechanism or self._again_s == math.inf:
            return 0
        return max(1, int((self._again_s - self._logins.now_s()) * 1000))
