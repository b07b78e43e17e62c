"""The lease in the store: reads and writes its versions. The rules are in `cluster/lease.py`."""

from __future__ import annotations

from headgate.broker.cluster.lease import UNREADABLE, Lease
from headgate.broker.engine.base import keys
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.store.interface import ObjectInfo, Store
from headgate.broker.store.keys import number_of, numbered

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


def _key(version: int) -> str:
    return numbered(keys.LEASE, version)
