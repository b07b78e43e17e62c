"""SCRAM (RFC 5802, RFC 7677): the server's side of one login, and the keys of a password. It does no I/O.

Theory of operation::

    client-first  n,,n=USER,r=NONCE          ->  server-first  r=NONCE+OURS,s=SALT,i=ITERATIONS
    client-final  c=biws,r=NONCE+OURS,p=PROOF ->  server-final  v=SIGNATURE, or the login fails

An unknown user gets a salt and iterations that depend on the name and a secret of the cluster, and fails at the proof. They look
like those of real users, as often as these occur (`decoy`): an answer does not tell which users exist.
Our part of the nonce is fresh for each login, so a recorded login cannot be played again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
from collections.abc import Callable, Mapping

from headgate.broker.cluster.access import Shape, Verifier

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MESSAGE_BYTES_MAX = 4096
SALT_BYTES = 24
ITERATIONS = 8192
"""Of new verifiers: some 5 ms of a core for one guess at the password, by a login with PLAIN or by whoever has the verifier."""
_FIRST = re.compile(r"(n|y|p=[^,]*),(?:a=([^,]*))?,(?:m=[^,]*,)?n=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,(.*))?", re.DOTALL)
_FINAL = re.compile(r"(c=([^,]*),r=([^,]*)(?:,[^,]*)*?),p=([^,]*)", re.DOTALL)


class ScramError(Exception):
    """The login failed. The text is for the log; the client is told nothing but that."""


def salted(password: str, salt: bytes, iterations: int, mechanism: str) -> bytes:
    """The salted password: takes milliseconds, on purpose."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def verifier(salted_password: bytes, salt: bytes, iterations: int, mechanism: str) -> Verifier:
    """What is stored for a salted password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return Verifier(
        iterations=iterations,
        salt=salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", name),
    )


def verifiers(password: str, random_bytes: Callable[[int], bytes]) -> dict[str, Verifier]:
    """Fresh verifiers of a password, for all mechanisms. `random_bytes` must be unguessable."""
    made = {}
    for mechanism in HASHES:
        salt = random_bytes(SALT_BYTES)
        made[mechanism] = verifier(salted(password, salt, ITERATIONS, mechanism), salt, ITERATIONS, mechanism)
    return made


def matches(password: str, known: Verifier, mechanism: str) -> bool:
    """Whether a password is the one of a verifier. Takes milliseconds."""
    found = verifier(salted(password, known.salt, known.iterations, mechanism), known.salt, known.iterations, mechanism)
    return hmac.compare_digest(found.stored_key, known.stored_key)


def decoy(name: str, shapes: Mapping[Shape, int], secret: bytes) -> tuple[int, bytes]:
    """Iterations and salt that an unknown user seems to have: always the same, while real users keep theirs.

    A name draws its shape with the weights of the real ones, by the smallest of one exponential variable for each shape. So a new
    user changes the shape of few names.

    Args:
        shapes: shapes of the real users' verifiers, and how many have each.
        secret: of the cluster: all brokers must give the same answer, also after a restart.
    """

    def drawn(shape: Shape) -> float:
        digest = hmac.digest(secret, f"{shape}{name}".encode("utf-8", "surrogatepass"), "sha256")
        return -math.log((int.from_bytes(digest[:8], "big") + 1) / 2**64) / shapes[shape]

    iterations, length = min(shapes, key=drawn) if shapes else (ITERATIONS, SALT_BYTES)
    return iterations, hashlib.shake_256(secret + name.encode("utf-8", "surrogatepass")).digest(length)


class Exchange:
    """One login. `user` is the name that the client gave, once known; it is proven when `step` has returned for the second time.

    Args:
        look_up: returns a user's verifier, or None.
        nonce: our part of the nonce; fresh and unguessable.
        decoy: returns iterations and salt of an unknown user.
    """

    def __init__(
        self,
        mechanism: str,
        look_up: Callable[[str], Verifier | None],
        nonce: str,
        decoy: Callable[[str], tuple[int, bytes]],
    ) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._look_up = look_up
        self._nonce = nonce
        self._decoy = decoy
        self._known: Verifier | None = None
        self._first = ""
        """What both sides sign of the first two messages; "" before the first message."""
        self._header = b""
        self.user = ""
        self.is_done = False

    def step(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises ScramError."""
        if len(message) > MESSAGE_BYTES_MAX or self.is_done:
            raise ScramError("a message is too long, or one too many")
        try:
            text = message.decode()
        except UnicodeDecodeError as error:
            raise ScramError("a message is no text") from error
        return self._final(text) if self._first else self._begin(text)

    def _begin(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise ScramError("the first message is malformed")
        binding, identity, name, nonce, _ = found.groups()
        if binding.startswith("p="):
            raise ScramError("channel binding is not supported")
        user = name.replace("=2C", ",").replace("=3D", "=")
        if identity and identity not in (name, user):
            raise ScramError("a user cannot act for another one")
        self.user, self._nonce = user, nonce + self._nonce
        self._known = known = self._look_up(user)
        if known is None:
            iterations, salt = self._decoy(user)
        else:
            iterations, salt = known.iterations, known.salt
        answer = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        self._header = text[: text.index("n=", len(binding) + 1)].encode()
        self._first = f"{text[len(self._header) :]},{answer}"
        return answer.encode()

    def _final(self, text: str) -> bytes:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise ScramError("the last message is malformed")
        signed, binding, nonce, proof_text = found.groups()
        try:
            header, proof = base64.b64decode(binding, validate=True), base64.b64decode(proof_text, validate=True)
        except ValueError as error:
            raise ScramError("the last message is malformed") from error
        if nonce != self._nonce or header != self._header:
            raise ScramError("the last message belongs to another login")
        self.is_done = True
        known = self._known
        if known is None:
            raise ScramError("user is not known")
        message = f"{self._first},{signed}".encode()
        signature = hmac.digest(known.stored_key, message, self._hash)
        if len(proof) != len(signature):
            raise ScramError("password is wrong")
        client_key = bytes(left ^ other for left, other in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), known.stored_key):
            raise ScramError("password is wrong")
        return b"v=" + base64.b64encode(hmac.digest(known.server_key, message, self._hash))
