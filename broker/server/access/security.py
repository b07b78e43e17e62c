"""The broker's side of every login: passwords, tokens and certificates, and what their owners may do. All ports share it."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import Access, User
from headgate.broker.cluster.acl import ANONYMOUS, Operation
from headgate.broker.cluster.edits.access import PutUser
from headgate.broker.control.broker_proof import Proofs
from headgate.broker.engine.identity import BROKERS, DECOYS, SECRET_BYTES, shared_key
from headgate.broker.runtime import secret_files
from headgate.broker.runtime.config import ADMIN_PASSWORD, Settings
from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError
from headgate.broker.runtime.listeners import asks_for_login
from headgate.broker.runtime.logging import get_logger
from headgate.broker.server.access.failures import Failures
from headgate.broker.server.access.passwords import Passwords
from headgate.broker.server.access.principals import PrincipalRules
from headgate.broker.server.access.rights import Authority, Identity, Rights
from headgate.broker.server.access.sasl import Logins, Sasl
from headgate.broker.server.access.tokens import Tokens
from headgate.broker.server.audit.audit import Audit, Caller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headgate.broker.engine.engine import Engine
    from headgate.broker.server.net.tls import Certificates

logger = get_logger(__name__)

PASSWORD_BYTES_MAX = 4096


class Security:
    """Who clients are, and what they may do.

    Args:
        now_s: a monotonic clock. now_ms: the wall clock.
        certificates: None without TLS.
        audit: notes refusals.
    """

    def __init__(
        self,
        settings: Settings,
        now_s: Callable[[], float],
        now_ms: Callable[[], int],
        certificates: Certificates | None,
        audit: Audit,
    ) -> None:
        self._settings = settings
        self._asks_for_login = asks_for_login(settings)
        self.now_s, self._now_ms = now_s, now_ms
        self._certificates = certificates
        self._engine: Engine | None = None
        self._proofs: Proofs | None = None
        self._audit = audit
        self.authority = Authority(settings, self.access, self._refused_records)
        self.failures = Failures(settings.failed_logins_per_s, now_s)
        """Failed logins and TLS handshakes of all ports."""
        self.passwords = Passwords(self.access)
        self._tokens = Tokens(settings, now_s)
        self._logins = Logins(settings, self.passwords, self._tokens, now_s, now_ms)
        try:
            self._rules = PrincipalRules(settings.tls_principal_rules)
        except InvalidError as error:
            raise FatalError(Reason.INVALID_CONFIG, error.message) from error
        self._brokers = {principal.strip() for principal in settings.broker_principals.split(";") if principal.strip()}

    def access(self) -> Access | None:
        """The users and rules, as this broker knows them; None before it has joined its cluster."""
        return None if self._engine is None else self._engine.manifest.access

    async def use(self, engine: Engine, environment: Mapping[str, str]) -> None:
        """Take the open engine, and create the first administrator in a cluster without users. Raises FatalError."""
        self._engine = engine
        fresh = secrets.token_bytes(SECRET_BYTES)
        self.passwords.decoy_secret = await shared_key(engine.store, DECOYS, fresh)
        self._proofs = Proofs(await shared_key(engine.store, BROKERS, fresh))
        password = _first_password(self._settings, environment)
        if not password or engine.manifest.access.users:
            return
        user = User(
            name=self._settings.admin_user,
            superuser=True,
            verifiers=scram.verifiers(password, secrets.token_bytes),
            created_ms=self._now_ms(),
        )
        try:
            await engine.change_access(PutUser(user, new=True))
        except InvalidError as error:
            if error.reason is not Reason.USER_EXISTS:  # another broker was faster
                raise
            return
        logger.info("administrator_created", user=user.name)
        caller = Caller(who="", host="", door="start")
        self._audit.did("first administrator", caller, [user.name], details={"superuser": True})

    def refused(self, what: str, door: str, host: str, reason: str, principal: str = "") -> None:
        """Note a refusal in the audit log. `principal`: "" if it is not known who the client is."""
        self._audit.refused(what, Caller(who=principal, host=host, door=door), [], reason)

    def _refused_records(self, identity: Identity, operation: Operation, name: str) -> None:
        """Note that a Kafka client may not write to, or read, something."""
        act = {Operation.WRITE: "Produce", Operation.READ: "Fetch"}.get(operation, operation.name)
        caller = Caller(who=identity.principal, host=identity.host, door="kafka")
        self._audit.refused(act, caller, [name], "no permission")

    # -- who a client is

    def anonymous(self, host: str) -> Identity:
        return Identity(principal=ANONYMOUS, host=host)

    def without_proof(self, host: str) -> Identity:
        """A client of gRPC or HTTP that sent neither a certificate nor an Authorization header: `User:ANONYMOUS`.

        Raises InvalidError(NOT_AUTHENTICATED) where a login is configured (`runtime.listeners.asks_for_login`).
        """
        if self._asks_for_login:
            raise InvalidError(Reason.NOT_AUTHENTICATED, "the client must log in")
        return self.anonymous(host)

    def by_certificate(self, data: bytes, host: str) -> Identity:
        """The owner of a client certificate in DER or PEM, whose chain TLS has checked. Raises InvalidError(NOT_AUTHENTICATED)."""
        certificates = self._certificates
        assert certificates is not None, "there is TLS"
        certificates.check_client(data)
        certificate = self._rules.certificate(data)
        principal = self._rules.principal(certificate)
        own = self._rules.principal(certificates.current.certificate)
        return Identity(principal=principal, host=host, is_broker=principal == own or principal in self._brokers, mechanism="TLS")

    def by_proof(self, text: str, path: str, host: str) -> Identity:
        """The broker that makes a call with a proof (`control/broker_proof.py`). Raises ChallengeError,
        InvalidError(NOT_AUTHENTICATED)."""
        assert self._proofs is not None, "the engine is open"
        return Identity(principal=f"Broker:{self._proofs.check(text, path)}", host=host, is_broker=True, mechanism="STORE")

    def still_holds(self, identity: Identity) -> None:
        """Raise InvalidError(NOT_AUTHENTICATED) if the user who logged in was deleted."""
        access = self.access()
        if identity.mechanism == "PLAIN" and access is not None and identity.principal.partition(":")[2] not in access.users:
            raise InvalidError(Reason.NOT_AUTHENTICATED, "the user was deleted")

    async def by_header(self, header: str, host: str, door: str = "grpc") -> Identity:
        """The owner of an Authorization header: Basic, or Bearer.

        A right password that is remembered is always let in: each call of gRPC and HTTP is a login.

        Raises InvalidError(NOT_AUTHENTICATED), RetryError: too many logins at once, or too many of the address have failed.
        """
        scheme, _, value = header.partition(" ")
        name, colon, password = _basic(value) if scheme.lower() == "basic" else ("", "", "")
        if not (colon and self.passwords.remembers(name, password)):
            if not self.failures.admits(host):
                raise RetryError(Reason.OVERLOADED, "too many logins of the address have failed: try again later")
            with self.failures.counted(host):
                if scheme.lower() == "bearer":
                    return await self._by_token(value.strip(), host)
                if not colon:
                    await self.passwords.fail("the Authorization header is malformed")
                await self.passwords.check(name, password, door, host)
        return Identity(principal=f"User:{name}", host=host, mechanism="PLAIN")

    async def _by_token(self, text: str, host: str) -> Identity:
        try:
            token = await self._tokens.check(text)
        except InvalidError as error:
            await self.passwords.fail(error.message)
            raise
        expires_s = self.now_s() + token.expires_at_s - self._now_ms() / 1000
        return Identity(principal=token.principal, host=host, expires_s=expires_s, mechanism="OAUTHBEARER")

    def sasl(self, host: str, *, is_tls: bool, on_login: Callable[[Identity], None]) -> Sasl:
        """The logins of one Kafka connection."""
        return Sasl(self._logins, host, self.failures, is_tls=is_tls, on_login=on_login)

    def rights(self, identity: Identity) -> Rights | None:
        """What a client may do; None: everything."""
        return self.authority.rights(identity)


def _basic(value: str) -> tuple[str, str, str]:
    """(name, ":", password); empty ones for a malformed value."""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        return "", "", ""


def _first_password(settings: Settings, environment: Mapping[str, str]) -> str:
    path = settings.admin_password_file
    if not path:
        return environment.get(ADMIN_PASSWORD, "")
    try:
        secret_files.check(path)
    except InvalidError as error:
        raise FatalError(error.reason, error.message) from error
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(PASSWORD_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FatalError(Reason.INVALID_CONFIG, f"the administrator's password cannot be read. path=`{path}`") from error
