"""Bearer tokens: JSON Web Tokens, checked against the keys of their issuer (OAUTHBEARER, RFC 7628 and RFC 7519).

Keys come from a file or a URL (a JWK set). They are read in a thread: at the start, every `oauth_jwks_refresh_ms`, and when a
token names a key that is not known, but then at most once in UNKNOWN_KEY_S, whatever clients send. Old keys serve until new ones
have been read.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jwt

from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.logging import get_logger

logger = get_logger(__name__)

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures only. A shared secret (HS256) would let each broker forge tokens, and `none` is no signature."""
KEYS_BYTES_MAX = 1 << 20
FETCH_S = 5.0
UNKNOWN_KEY_S = 10.0
"""Least time between two readings of the keys for tokens with unknown keys."""
TOKEN_BYTES_MAX = 16 << 10
_CLIENT_FIRST = re.compile(
    rb"n,(?:a=([^,]*))?,\x01(?:[A-Za-z]+=[^\x01]*\x01)*?auth=[Bb]earer ([^\x01]+)\x01(?:[A-Za-z]+=[^\x01]*\x01)*\x01"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A checked token. `expires_at_s`: on the wall clock."""

    principal: str
    expires_at_s: float


class Tokens:
    """Checks tokens.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, settings: Settings, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._now_s = now_s
        self._keys: dict[str, Any] = {}
        self._read_at_s = -1e9
        self._reading: asyncio.Task[None] | None = None

    async def check(self, token: str) -> Token:
        """Raises InvalidError(NOT_AUTHENTICATED) with a reason that repeats nothing of the token."""
        settings = self._settings
        try:
            if len(token) > TOKEN_BYTES_MAX:
                raise jwt.InvalidTokenError("it is too long")
            head = jwt.get_unverified_header(token)
            key = await self._key(str(head.get("kid", "")))
            if key is None:
                raise jwt.InvalidTokenError("its key is not known")
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=settings.oauth_audience or None,
                issuer=settings.oauth_issuer or None,
                leeway=settings.oauth_clock_skew_ms / 1000,
                options={"require": ["exp"], "verify_aud": bool(settings.oauth_audience)},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise InvalidError(Reason.NOT_AUTHENTICATED, f"token is refused: {_why(error)}") from error
        name = claims.get(settings.oauth_principal_claim)
        if not isinstance(name, str) or not name:
            raise InvalidError(
                Reason.NOT_AUTHENTICATED, f"token is refused: it has no user. claim=`{settings.oauth_principal_claim}`"
            )
        return Token(f"User:{name}", float(claims["exp"]))

    async def _key(self, key_id: str) -> Any:
        age_s = self._now_s() - self._read_at_s
        unknown = key_id not in self._keys
        if self._reading is None and (age_s > self._settings.oauth_jwks_refresh_ms / 1000 or (unknown and age_s > UNKNOWN_KEY_S)):
            self._read_at_s = self._now_s()
            self._reading = asyncio.create_task(self._read(), name="token keys")
        if unknown and self._reading is not None:
            await asyncio.shield(self._reading)
        return self._keys.get(key_id)

    async def _read(self) -> None:
        try:
            data = await asyncio.to_thread(_content, self._settings.oauth_jwks)
            keys = jwt.PyJWKSet.from_json(data.decode()).keys
            self._keys = {key.key_id or "": key for key in keys}
        except (OSError, ValueError, jwt.PyJWTError) as error:
            logger.warning("token_keys_unread", reason=str(error)[:200], place=self._settings.oauth_jwks)
        finally:
            self._reading = None


def token_of(message: bytes) -> str:
    """The token in the first message of OAUTHBEARER. Raises InvalidError(NOT_AUTHENTICATED)."""
    found = _CLIENT_FIRST.fullmatch(message)
    if found is None:
        raise InvalidError(Reason.NOT_AUTHENTICATED, "the message of OAUTHBEARER is malformed")
    return found.group(2).decode("ascii", "replace")


def _content(place: str) -> bytes:
    if place.startswith(("https://", "http://")):
        with urllib.request.urlopen(place, timeout=FETCH_S) as answer:
            data: bytes = answer.read(KEYS_BYTES_MAX + 1)
    else:
        with open(place.removeprefix("file://"), "rb") as file:
            data = file.read(KEYS_BYTES_MAX + 1)
    if len(data) > KEYS_BYTES_MAX:
        raise ValueError(f"keys are too large. size_bytes_max=`{KEYS_BYTES_MAX}`")
    return data


def _why(error: Exception) -> str:
    match error:
        case jwt.ExpiredSignatureError():
            return "it has expired"
        case jwt.ImmatureSignatureError() | jwt.InvalidIssuedAtError():
            return "it is not valid yet"
        case jwt.InvalidAudienceError():
            return "it is for another audience"
        case jwt.InvalidIssuerError():
            return "it is from another issuer"
        case jwt.InvalidSignatureError():
            return "its signature is wrong"
        case jwt.InvalidAlgorithmError():
            return "its algorithm is not accepted"
        case jwt.MissingRequiredClaimError():
            return "a claim is missing"
        case jwt.DecodeError():
            return "it is malformed"
        case jwt.InvalidTokenError():
            return str(error) if str(error).startswith("it") else "it is not valid"
    return "it is malformed"
