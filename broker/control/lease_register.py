"""The lease in the store: `LeaseRegister` reads and writes its versions, and `HeldLease` renews it during one term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from headgate.broker.cluster.lease import UNREADABLE, Lease
from headgate.broker.engine import keys
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.store.interface import ObjectInfo, Store
from headgate.broker.store.keys import number_of, numbered

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine

logger = get_logger("lease")

LISTING_KEYS = 1000
STORE_TIME_MS = 1000
"""S3 reports times of objects in whole seconds, so they may be this many ms too early."""


class LeaseRegister:
    """One process's view of ``cluster/lease/<version>``. The broker that writes a new version deletes the old ones."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._unreadable = 0
        """The last version that was logged as unreadable."""
        self.ahead_ms: int | None = None
        """Milliseconds by which this broker's clock was ahead of the store's at the last write. None: the store has no clock of
        its own."""

    async def read(self) -> tuple[int, Lease | None]:
        """The number of the newest version, and that version. (0, None) before the first one. Raises RetryError.

        A lease is only the current state, so a damaged version counts as `UNREADABLE`, and the next version repairs it.
        """
        versions = list(await self._rows())
        if not versions:
            return 0, None
        try:
            return versions[-1], Lease.decode(await self._store.get(_key(versions[-1])))
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            raise RetryError(Reason.STORE_UNAVAILABLE, "the lease changed while it was read") from error
        except CorruptError as error:
            if versions[-1] != self._unreadable:
                self._unreadable = versions[-1]
                logger.warning("lease_unreadable", error=error.message, key=_key(versions[-1]))
            return versions[-1], UNREADABLE

    async def write(self, version: int, lease: Lease) -> bool:
        """Write `version`. Returns True if that succeeded and no broker has written a newer one.

        Raises RetryError: the result is unknown; `read` shows it.
        """
        began_ms = self._clock.now_ms()
        if not await self._store.put_if_absent(_key(version), lease.encode()):
            return False
        # A broker that slept for long may have created a version again that was deleted as an old one.
        rows = await self._rows()
        versions = list(rows)
        if versions[-1] != version:
            await self._store.delete(_key(version))
            return False
        if self._store.appender is None:  # a store in a directory has the clock of this machine
            stored_ms, ended_ms = rows[version].modified_ms, self._clock.now_ms()
            # A time between the beginning and the end of the write shows no difference of the clocks.
            self.ahead_ms = max(began_ms - STORE_TIME_MS - stored_ms, 0) or min(ended_ms - stored_ms, 0)
        for old in versions[:-1]:
            await self._store.delete(_key(old))
        return True

    async def _rows(self) -> dict[int, ObjectInfo]:
        """The versions, oldest first, and their objects."""
        found = [(number_of(keys.LEASE, row.key), row) for row in await self._store.list(keys.LEASE, "", LISTING_KEYS)]
        # Objects with other names are not versions. Brokers ignore them.
        return {version: row for version, row in found if version is not None}


class HeldLease:
    """The lease during one term of this broker. Each renewal also extends this broker's own proof of lead (`engine/proof.py`).

    Args:
        current: the version that this broker has just written, and `version`, its number.
        written: called after each attempt to renew it: with True if the store has the new version, with False if the store did
            not answer.
        lost: called when another broker has written the next version.
    """

    def __init__(
        self,
        engine: Engine,
        register: LeaseRegister,
        current: Lease,
        version: int,
        *,
        written: Callable[[bool], None],
        lost: Callable[[], None],
    ) -> None:
        self.current = current
        self.is_given_back = False
        """True once this broker began to give it back. Then it is not renewed."""
        self.is_over = False
        """True once the term has ended. Then a renewal proves nothing any more."""
        self._engine = engine
        self._register = register
        self._version = version
        self._written = written
        self._lost = lost
        self._writing = asyncio.Lock()

    @property
    def clock_ahead_ms(self) -> int | None:
        """Milliseconds by which this broker's clock was ahead of the store's at the last write. None: unknown."""
        return self._register.ahead_ms

    async def renew(self) -> None:
        """Renew the lease. If the store does not answer, wait: no other broker can take the lease meanwhile. Never returns."""
        clock = self._engine.clock
        pause_s = self.current.ttl_ms / 2000
        while True:
            await asyncio.sleep(pause_s)
            began_s = clock.monotonic()
            await self.write()
            pause_s = max(self.current.ttl_ms / 2000 - (clock.monotonic() - began_s), 0.0)

    async def write(self, *, serving: bool = False) -> None:
        """Write the next version.

        Args:
            serving: note that this broker's gRPC port is open. From then on, a broker that finds the port closed knows that this
                broker is gone. False: leave that note unchanged.
        """
        async with self._writing:
            if self.is_given_back:
                return
            lease = structs.replace(
                self.current, renewal=self.current.renewal + 1, serving=serving or self.current.serving, at_ms=self._at_ms()
            )
            asked_s = self._engine.clock.monotonic()
            try:
                if await self._register.write(self._version + 1, lease):
                    self._version += 1
                    self.current = lease
                    if self._register.ahead_ms is not None:
                        self._engine.clock.note("store", self._register.ahead_ms)
                    self._written(True)
                    if not self.is_over:
                        self._engine.proof.extend(asked_s, lease.ttl_ms)
                    return
                version, found = await self._register.read()
                if found == lease:
                    # An earlier attempt may have written it, and its answer was lost. The time of that write is unknown, so it
                    # extends no promise.
                    self._version, self.current = version, lease
                    return
            except RetryError as error:
                logger.warning("lease_not_renewed", error=error.message)
                self._written(False)
                return
        self._lost()

    async def give_back(self) -> None:
        """Give the lease back. Any broker that sees this may take it at once. Raises RetryError."""
        async with self._writing:
            self.is_given_back = True
            self._engine.proof.lapse()
            lease = Lease(
                holder="",
                broker_id=self.current.broker_id,
                address=self.current.address,
                ttl_ms=self.current.ttl_ms,
                at_ms=self._at_ms(),
            )
            await self._register.write(self._version + 1, lease)

    def _at_ms(self) -> int:
        """The value for `Lease.at_ms`. Until this broker has noted the time in which no broker ran, it is the previous version's
        value."""
        return self._engine.clock.now_ms() if self._engine.started else self.current.at_ms


def _key(version: int) -> str:
    return numbered(keys.LEASE, version)
