"""Passwords against the verifiers in the manifest: off the loop, a bounded number at a time, and remembered while they are right.

Deriving the keys of a password takes milliseconds of a core. So a right password is remembered by a keyed hash, which only this
process can compute, until the user's verifier changes. Wrong passwords are answered late, and too many at once are refused before
any work.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import MECHANISMS, Access, Verifier
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError

AT_ONCE_MAX = 64
"""Passwords that wait to be checked. Each takes some milliseconds."""
REMEMBERED_MAX = 10_000
FAILED_S = 0.1
"""Time until a failed login is answered, as in Kafka (connection.failed.authentication.delay.ms)."""


class Passwords:
    """Checks passwords.

    Args:
        access: returns the users of the manifest, or None before it is known.
    """

    def __init__(self, access: Callable[[], Access | None]) -> None:
        self._access = access
        self.secret = secrets.token_bytes(32)
        """Known to this process only."""
        self._right: dict[bytes, Verifier] = {}
        self._one = asyncio.Semaphore(1)
        self._waiting = 0
        self.refused = 0
        """Failed logins since the start."""

    def look_up(self, name: str, mechanism: str) -> Verifier | None:
        access = self._access()
        user = None if access is None else access.users.get(name)
        return None if user is None else user.verifiers.get(mechanism)

    async def check(self, name: str, password: str) -> None:
        """Raises InvalidError(NOT_AUTHENTICATED) for a wrong name or password, RetryError(OVERLOADED)."""
        mechanism, known = next(((one, found) for one in MECHANISMS if (found := self.look_up(name, one))), (MECHANISMS[0], None))
        mark = hmac.digest(self.secret, hashlib.sha256(name.encode()).digest() + password.encode(), "sha256")
        if known is not None and self._right.get(mark) == known:
            return
        if self._waiting >= AT_ONCE_MAX:
            raise RetryError(Reason.OVERLOADED, "too many logins at once: try again")
        self._waiting += 1
        try:
            async with self._one:
                # An unknown user takes as long as a known one.
                judged = known or Verifier(iterations=scram.ITERATIONS, salt=self.secret, stored_key=b"", server_key=b"")
                is_right = await asyncio.to_thread(scram.matches, password, judged, mechanism)
        finally:
            self._waiting -= 1
        if known is None or not is_right:
            await self.fail(f"user or password is wrong. user=`{name[:100]}`")
        assert known is not None
        if len(self._right) >= REMEMBERED_MAX:
            self._right.clear()
        self._right[mark] = known

    async def fail(self, text: str) -> None:
        """Refuse a login, late. Raises InvalidError(NOT_AUTHENTICATED)."""
        self.refused += 1
        await asyncio.sleep(FAILED_S)
        raise InvalidError(Reason.NOT_AUTHENTICATED, text)
