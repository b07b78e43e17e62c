"""Passwords against the verifiers in the manifest: off the loop, one at a time, and remembered while they are right.

Deriving the keys of a password takes milliseconds of a core. So a right password is remembered by a keyed hash, which only this
process can compute, until the user's verifier changes. Wrong passwords are answered late. Passwords that wait take turns by their
source, a port and an address (`fair_queue.py`): wrong passwords that come without a pause delay the logins of others, and do not
make them fail. Too many of one source at once are refused before any work.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import MECHANISMS, Access, Verifier
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.server.access.fair_queue import FairQueue

SOURCE_MAX = 256
"""Passwords of one source that wait to be checked: more than the HTTP port has connections. Each takes some milliseconds."""
TOTAL_MAX = 4096
"""Passwords of all sources that wait."""
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
        self.decoy_secret = self.secret
        """The cluster's, once the store is open."""
        self._right: dict[bytes, Verifier] = {}
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(SOURCE_MAX, TOTAL_MAX)
        self._is_busy = False
        """Whether a password is being checked."""
        self.refused = 0
        """Failed logins since the start."""

    def look_up(self, name: str, mechanism: str) -> Verifier | None:
        access = self._access()
        user = None if access is None else access.users.get(name)
        return None if user is None else user.verifiers.get(mechanism)

    def decoy(self, name: str, mechanism: str) -> tuple[int, bytes]:
        """Iterations and salt that an unknown user seems to have."""
        access = self._access()
        return scram.decoy(name, {} if access is None else access.shapes[mechanism], self.decoy_secret)

    def _known(self, name: str) -> tuple[str, Verifier | None]:
        """A user's verifier and its mechanism."""
        return next(
            ((mechanism, found) for mechanism in MECHANISMS if (found := self.look_up(name, mechanism))), (MECHANISMS[0], None)
        )

    def _mark(self, name: str, password: str) -> bytes:
        return hmac.digest(self.secret, hashlib.sha256(name.encode()).digest() + password.encode(), "sha256")

    def remembers(self, name: str, password: str) -> bool:
        """Whether a password was found right before, and still is. Costs nothing."""
        known = self._known(name)[1]
        return known is not None and self._right.get(self._mark(name, password)) == known

    async def check(self, name: str, password: str, door: str, host: str) -> None:
        """Raises InvalidError(NOT_AUTHENTICATED) for a wrong name or password, RetryError(OVERLOADED).

        Args:
            door: the port by which the client came. host: its address.
        """
        if self.remembers(name, password):
            return
        async with self._turn((door, host), name):
            if self.remembers(name, password):  # clients of one user that start together
                return
            mechanism, known = self._known(name)
            # An unknown user takes as long as a known one.
            judged = known or self._unknown(name, mechanism)
            is_right = await asyncio.to_thread(scram.matches, password, judged, mechanism)
        if known is None or not is_right:
            await self.fail(f"user or password is wrong. user=`{name[:100]}`")
        assert known is not None
        if len(self._right) >= REMEMBERED_MAX:
            self._right.clear()
        self._right[self._mark(name, password)] = known

    def _unknown(self, name: str, mechanism: str) -> Verifier:
        iterations, salt = self.decoy(name, mechanism)
        return Verifier(iterations=iterations, salt=salt, stored_key=b"", server_key=b"")

    @asynccontextmanager
    async def _turn(self, source: tuple[str, str], name: str) -> AsyncIterator[None]:
        """Wait until a password may be checked. Raises RetryError(OVERLOADED)."""
        if self._is_busy:
            mine = asyncio.get_running_loop().create_future()
            left_out = self._waiting.add(source, name, mine)
            if left_out is not None and not left_out.done():
                left_out.set_exception(RetryError(Reason.OVERLOADED, "too many logins at once: try again"))
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():  # its turn came in the same moment
                    self._pass_on()
                raise
        self._is_busy = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while (waiting := self._waiting.next()) is not None:
            if not waiting.done():
                waiting.set_result(None)
                return
        self._is_busy = False

    async def fail(self, text: str) -> None:
        """Refuse a login, late. Raises InvalidError(NOT_AUTHENTICATED)."""
        self.refused += 1
        await asyncio.sleep(FAILED_S)
        raise InvalidError(Reason.NOT_AUTHENTICATED, text)
