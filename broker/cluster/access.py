"""Users and permissions as a part of the manifest: the state, and what may become of it. No I/O.

A user is known by salted verifiers (RFC 5802), never by a password. A reader of the store can try passwords against the verifiers,
but cannot log in with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from headgate.broker.cluster.acl import Acl, Acls, fault
from headgate.broker.runtime.errors import InvalidError, Reason

USERS_MAX = 100_000
ACLS_MAX = 100_000
ACLS_PER_EDIT_MAX = 10_000
NAME_CHARS_MAX = 200
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
"""Kafka's bounds: fewer are too cheap to try, more let one login hold a core for too long."""


class Verifier(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker knows of a password, for one mechanism."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


Shape = tuple[int, int]
"""Iterations and length of the salt of a verifier: all that a client sees of it besides the salt."""


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user. `verifiers`: by mechanism. `superuser`: may do everything."""

    name: str
    superuser: bool = False
    verifiers: dict[str, Verifier] = {}
    created_ms: int = 0

    @property
    def principal(self) -> str:
        return f"User:{self.name}"


class Access:
    """All users and rules. `version` grows with every change of this object."""

    def __init__(self, users: list[User] | None = None, acls: list[Acl] | None = None) -> None:
        self.users: dict[str, User] = {user.name: user for user in users or ()}
        self.acls = Acls(acls or ())
        self.version = 0
        self.shapes: dict[str, Counter[Shape]] = {mechanism: Counter() for mechanism in MECHANISMS}
        """By mechanism: the shapes of all verifiers, and how many have each."""
        for user in self.users.values():
            self._count(user, 1)

    def _count(self, user: User | None, by: int) -> None:
        for mechanism, verifier in (user.verifiers if user is not None else {}).items():
            shapes, shape = self.shapes[mechanism], (verifier.iterations, len(verifier.salt))
            shapes[shape] += by
            if not shapes[shape]:
                del shapes[shape]

    def put(self, user: User) -> None:
        """A user from now on, in place of the one of that name."""
        self.version += 1
        self._count(self.users.get(user.name), -1)
        self._count(user, 1)
        self.users[user.name] = user

    def delete(self, name: str) -> None:
        """Forget a user, if there is one of that name."""
        self.version += 1
        self._count(self.users.pop(name, None), -1)

    def add(self, acls: Iterable[Acl]) -> None:
        self.version += 1
        for acl in acls:
            self.acls.add(acl)

    def remove(self, acls: Iterable[Acl]) -> None:
        self.version += 1
        for acl in acls:
            self.acls.remove(acl)

    def check_deletion(self, name: str) -> None:
        """Check that a user may be deleted. Raises InvalidError."""
        user = self.user(name)
        if user.superuser and (self._is_last(user) or self._has_last_password(user)):
            raise InvalidError(
                Reason.POLICY_VIOLATION, f"the last administrator cannot be deleted: make another one first. user=`{name}`"
            )

    def user(self, name: str) -> User:
        """A user. Raises InvalidError(UNKNOWN_USER)."""
        user = self.users.get(name)
        if user is None:
            raise InvalidError(Reason.UNKNOWN_USER, f"user does not exist. user=`{name[:NAME_CHARS_MAX]}`")
        return user

    def _is_last(self, user: User) -> bool:
        """Whether there is no other superuser."""
        return not any(known.superuser for known in self.users.values() if known.name != user.name)

    def _has_last_password(self, user: User) -> bool:
        """Whether no other superuser can log in by a password. Superusers that only certificates or tokens name may not exist."""
        others = (known for known in self.users.values() if known.name != user.name)
        return bool(user.verifiers) and not any(other.superuser and other.verifiers for other in others)

    def check_user(self, user: User, *, new: bool) -> None:
        """Check that a user may be put. `new`: there must be none of that name. Raises InvalidError."""
        before = self.users.get(user.name)
        if before is not None and new:
            raise InvalidError(Reason.USER_EXISTS, f"user exists already. user=`{user.name}`")
        if not user.name or len(user.name) > NAME_CHARS_MAX or not user.name.isprintable():
            raise InvalidError(Reason.INVALID_REQUEST, f"a user has a name of 1 to {NAME_CHARS_MAX} printable characters")
        if before is None and len(self.users) >= USERS_MAX:
            raise InvalidError(Reason.POLICY_VIOLATION, f"too many users. max=`{USERS_MAX}`")
        if before is not None and before.superuser and not user.superuser and self._is_last(before):
            raise InvalidError(Reason.POLICY_VIOLATION, f"the last administrator must stay one. user=`{user.name}`")
        if before is not None and before.superuser and before.verifiers and not user.verifiers and self._has_last_password(before):
            raise InvalidError(Reason.POLICY_VIOLATION, f"the last administrator with a password must keep it. user=`{user.name}`")
        for mechanism, verifier in user.verifiers.items():
            if mechanism not in MECHANISMS:
                raise InvalidError(Reason.INVALID_REQUEST, f"mechanism is not known. mechanism=`{mechanism[:50]}`")
            if not ITERATIONS_MIN <= verifier.iterations <= ITERATIONS_MAX:
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    f"iterations are out of range. iterations=`{verifier.iterations}` min=`{ITERATIONS_MIN}` "
                    f"max=`{ITERATIONS_MAX}`",
                )
            length = 32 if mechanism.endswith("256") else 64
            if not verifier.salt or len(verifier.salt) > 256 or {len(verifier.stored_key), len(verifier.server_key)} != {length}:
                raise InvalidError(Reason.INVALID_REQUEST, f"a verifier has a wrong length. mechanism=`{mechanism}`")

    def check_acls(self, acls: list[Acl]) -> None:
        """Check that rules may be added. Raises InvalidError."""
        if len(acls) > ACLS_PER_EDIT_MAX or len(self.acls.all) + len(acls) > ACLS_MAX:
            raise InvalidError(Reason.POLICY_VIOLATION, f"too many rules. max=`{ACLS_MAX}` max_at_once=`{ACLS_PER_EDIT_MAX}`")
        for acl in acls:
            if (wrong := fault(acl)) is not None:
                raise InvalidError(Reason.INVALID_REQUEST, wrong)
