"""How brokers without certificates prove to each other that they share a store. No I/O, and no clock.

Theory of operation::

    caller → callee    a call with an empty proof
    callee → caller    refuses the call, with its challenge: random, of this run of the callee
    caller → callee    each call with the caller's broker id, the challenge, a number used once, and an HMAC of all these
                       and of the method's path

The key of the HMAC is derived from the cluster's secret in the store, and is never sent. A proof is worth nothing at another broker
or at a later run of the same one, because the challenge is another. It works once, because the callee remembers the numbers. A
client that reads the network can therefore use no proof that it sees; one that can change what is sent can change calls, too, as
always without TLS.
"""

from __future__ import annotations

import hmac
import secrets

from headgate.broker.runtime.errors import InvalidError, Reason

BROKER_KEY = "headgate-broker"
"""Metadata of a call by a broker: its proof; empty: it asks for the challenge."""
CHALLENGE_KEY = "headgate-challenge"
"""Trailing metadata of a refused call: the callee's challenge."""
PROOFS_MAX = 10_000
"""Proofs that a broker remembers, about 1.5 MB. Then it takes another challenge, which makes all earlier proofs worthless, and
forgets them."""
NUMBER_BYTES = 16
"""Size of challenges and of numbers used once: none is ever made twice."""


class ChallengeError(InvalidError):
    """The caller must prove with this challenge that it is a broker."""

    def __init__(self, challenge: str) -> None:
        super().__init__(Reason.NOT_AUTHENTICATED, "a broker must prove that it is one")
        self.challenge = challenge


def proof(key: bytes, broker_id: int, challenge: str, path: str) -> str:
    """A proof for one call.

    Args:
        key: all brokers of the cluster have it.
        broker_id: the caller's.
        challenge: the callee's.
        path: the method's.
    """
    claim = f"{broker_id}.{challenge}.{secrets.token_hex(NUMBER_BYTES)}"
    return f"{claim}.{_code(key, claim, path)}"


class Proofs:
    """The callee's side.

    Args:
        key: all brokers of the cluster have it.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._challenge = ""
        self._used: set[str] = set()
        self._begin()

    def check(self, text: str, path: str) -> int:
        """The id of the broker that makes a call with this proof, which works once.

        Raises ChallengeError, InvalidError(NOT_AUTHENTICATED): it is no proof of a broker of this cluster.
        """
        claim, _, code = text.rpartition(".")
        broker_id, _, rest = claim.partition(".")
        challenge, _, number = rest.partition(".")
        if challenge != self._challenge:
            raise ChallengeError(self._challenge)
        if not hmac.compare_digest(code.encode(), _code(self._key, claim, path).encode()) or not broker_id.isdecimal():
            raise InvalidError(Reason.NOT_AUTHENTICATED, "the proof is not that of a broker which shares the store")
        if number in self._used:
            raise InvalidError(Reason.NOT_AUTHENTICATED, "the proof was used before")
        self._used.add(number)
        if len(self._used) >= PROOFS_MAX:
            self._begin()
        return int(broker_id)

    def _begin(self) -> None:
        self._challenge = secrets.token_hex(NUMBER_BYTES)
        self._used.clear()


def _code(key: bytes, claim: str, path: str) -> str:
    return hmac.digest(key, f"{path} {claim}".encode(), "sha256").hex()
