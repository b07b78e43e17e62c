"""The lease in the store: reading it, and writing its next version."""

from __future__ import annotations

from broker.cluster.lease import UNREADABLE, Lease
from broker.engine import keys
from broker.runtime.errors import CorruptError, InvalidError, Reason, RetryError
from broker.runtime.logging import get_logger
from broker.store.interface import Store
from broker.store.keys import number_of, numbered

log = get_logger("lease")

LISTING_KEYS = 1000


class LeaseRegister:
    """One process's view of ``cluster/lease/<version>``. Old versions are deleted by whoever writes a new one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unreadable = 0
        """The version of which that was said last."""

    async def read(self) -> tuple[int, Lease | None]:
        """The newest version and its number; (0, None) before the first. Raises RetryError.

        A lease is no history: one that is damaged is `UNREADABLE`, and the next version mends it.
        """
        versions = await self._versions()
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
                log.warning("lease_unreadable", error=error.message, key=_key(versions[-1]))
            return versions[-1], UNREADABLE

    async def write(self, version: int, lease: Lease) -> bool:
        """Write `version`; True if that succeeded and nobody has written a newer one.

        Raises RetryError: not known; `read` tells.
        """
        if not await self._store.put_if_absent(_key(version), lease.encode()):
            return False
        # Whoever slept for long may have created a version again that was deleted as an old one.
        versions = await self._versions()
        if versions[-1] != version:
            await self._store.delete(_key(version))
            return False
        for old in versions[:-1]:
            await self._store.delete(_key(old))
        return True

    async def _versions(self) -> list[int]:
        found = [number_of(keys.LEASE, row.key) for row in await self._store.list(keys.LEASE, "", LISTING_KEYS)]
        # What somebody else has put there is no version: brokers neither end for it nor touch it.
        return [version for version in found if version is not None]


def _key(version: int) -> str:
    return numbered(keys.LEASE, version)
