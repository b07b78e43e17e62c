"""A versioned register kept as a log of edits with snapshots, built on `put_if_absent` alone.

Theory of operation::

    <prefix>/edit/<version>        the change from version - 1 to version; 20 digits, from 1
    <prefix>/snapshot/<version>    the whole state at a version

The state at version v is any snapshot at p <= v and the edits p+1 ... v. A writer appends by creating the edit behind the newest
one it knows: of any number of writers one wins. The others get LostRaceError, and load again if they may continue at all.

*Own or foreign.* Every edit carries a name that only one call of one writer has, so two writers with the same bytes can still be
told apart. When `put_if_absent` fails without a clear result, the edit may or may not be there; the same call, made again, finds
out by that name.

*Deletion.* A deleted edit can be created once more, by a writer that slept since before; it must not believe that it won.
Therefore an edit is deleted only when two snapshots at or above it exist, and at least the newest two snapshots are kept. A
process that finds two snapshots above v therefore knows nothing about v + 1 any more, and a process that finds fewer knows that
nothing above v was ever deleted. Both the writer that appended v + 1 and the reader that loaded the edits above v check this
afterwards; no clock is involved.

*Damage.* The edits since the second newest snapshot are kept. So a load that finds the newest snapshot damaged begins at the one
before it, or at the empty journal if there is none, and reports the damage. It fails if the edits from there do not reach the
damaged snapshot.

An object is one line of ASCII, for a person with `cat`, then the data::

    headgate-edit <format> <version> <name> <crc32 of the data, 8 hex digits> <length of the data in bytes>
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass

from headgate.broker.runtime.errors import CorruptError, FatalError, FencedError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import in_parallel
from headgate.broker.store.interface import Store
from headgate.broker.store.keys import check_key, number_of, numbered

logger = get_logger("journal")

FORMAT_VERSION = 1
"""Format of the line above the data. A newer one is refused."""
SNAPSHOT_BYTES_MIN = 64 << 10
"""A snapshot is not worth its put before the edits since the last one have this size together."""
SNAPSHOT_EDITS_MAX = 1000
"""Bound of edits that a load reads, each with a request of its own: about two seconds on S3."""
PARALLEL_REQUESTS_MAX = 16
LOAD_TRIES = 10
"""A load starts again when two snapshots were made while it ran; ten times in a row means a writer out of control."""

_LISTING_KEYS = 1000


class LostRaceError(FencedError):
    """Another writer wrote this version. A sole writer was replaced and stops; one of many loads, and decides again."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A journal at one version: the newest snapshot (None before the first), then the edits since, in order."""

    version: int
    snapshot: bytes | None
    edits: list[bytes]


@dataclass(frozen=True, slots=True)
class _Pending:
    version: int
    name: str
    data: bytes


class Journal:
    """One process's view of a journal. Its calls must not overlap, except that `snapshot` may run beside `append`.

    Args:
        prefix: of its keys, without a slash at the end.
        snapshots_kept: number of snapshots that stay when older ones are deleted; at least 2. All edits from the oldest of them
            to the present stay too.
        writer: a name without spaces, unique among all writers of this journal; by default random.
    """

    def __init__(self, store: Store, prefix: str, *, snapshots_kept: int = 2, writer: str | None = None) -> None:
        assert snapshots_kept >= 2, snapshots_kept
        check_key(numbered(f"{prefix}/snapshot/", 0))
        self._store = store
        self._edits = f"{prefix}/edit/"
        self._snapshots = f"{prefix}/snapshot/"
        self._snapshots_kept = snapshots_kept
        self._writer = writer if writer is not None else os.urandom(8).hex()
        assert self._writer and not set(self._writer) & set(" \n"), self._writer
        self._appended = 0
        self._pending: _Pending | None = None
        """An append with an unknown result."""
        self.version = 0
        """The newest version that this process knows; 0 is the empty journal."""
        self._snapshot_bytes = 0
        self._edits_bytes: list[int] = []
        """Sizes of the edits since the newest known snapshot, in order."""

    @property
    def in_doubt(self) -> bytes | None:
        """The data of an append that raised RetryError or was cancelled; the next append must have the same data."""
        return None if self._pending is None else self._pending.data

    @property
    def wants_snapshot(self) -> bool:
        """True if a snapshot now costs no more than the edits before it did, so that all writing stays within twice their bytes."""
        if len(self._edits_bytes) >= SNAPSHOT_EDITS_MAX:
            return True
        return sum(self._edits_bytes) > max(SNAPSHOT_BYTES_MIN, self._snapshot_bytes)

    async def load(self) -> Loaded:
        """Read the newest version; `append` continues from it.

        Raises:
            CorruptError: an edit, or each snapshot that a load may begin at, is damaged or missing. The message names the object.
            FatalError: a newer release wrote it.
            RetryError: the store does not answer, or was rewritten faster than it could be read.
        """
        for _ in range(LOAD_TRIES):
            loaded = await self._load()
            if loaded is not None:
                self._pending = None
                self.version = loaded.version
                self._snapshot_bytes = 0 if loaded.snapshot is None else len(loaded.snapshot)
                self._edits_bytes = [len(edit) for edit in loaded.edits]
                return loaded
        raise RetryError(Reason.STORE_UNAVAILABLE, f"the journal changes faster than it can be read. prefix=`{self._edits}`")

    async def append(self, data: bytes) -> int:
        """Write the next version, durably, and return its number.

        Raises:
            LostRaceError: another writer wrote this version; or so many versions were written meanwhile that its writer can no
                longer be determined. Load before anything else.
            RetryError: it is unknown whether the version was written, as after a cancellation. Call again with the same data, or
                load.
        """
        pending = self._pending
        if pending is None:
            self._appended += 1
            pending = _Pending(self.version + 1, f"{self._writer}-{self._appended}", data)
        elif pending.data != data:
            raise InvalidError(Reason.INTERNAL, "an earlier edit is in doubt: append the same again, or load first")
        self._pending = pending
        key = self._edit_key(pending.version)
        if not await self._store.put_if_absent(key, _encode("edit", pending.version, pending.name, data)):
            try:
                name, _ = _decode("edit", key, pending.version, await self._store.get(key))
            except InvalidError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
                name = ""  # it was there, and was deleted with other old edits
            if name != pending.name:
                self._pending = None
                raise LostRaceError(Reason.FENCED, f"another writer wrote this version. key=`{key}`")
        if await self._is_forgotten(pending.version):
            self._pending = None
            raise LostRaceError(Reason.FENCED, f"other writers went past this version long ago. key=`{key}`")
        self._pending = None
        self.version = pending.version
        self._edits_bytes.append(len(data))
        return pending.version

    async def snapshot(self, data: bytes) -> int:
        """Write the whole state of the version that is current at the call, and return it. Then delete old objects.

        All processes at one version have the same state, so it does not matter which one writes the snapshot.

        Raises:
            RetryError: the snapshot may or may not be there, or old objects remain; the next snapshot completes the work.
        """
        version = self.version
        covered = len(self._edits_bytes)
        key = self._snapshot_key(version)
        await self._store.put_if_absent(key, _encode("snapshot", version, self._writer, data))
        del self._edits_bytes[:covered]
        self._snapshot_bytes = len(data)
        await self._sweep()
        return version

    async def _load(self) -> Loaded | None:
        """One attempt; None if it has to start again."""
        snapshots = await self._versions(self._snapshots)
        base = snapshots[-1] if snapshots else 0
        damage: CorruptError | None = None
        try:
            snapshot = None
            if snapshots:
                try:
                    snapshot = await self._get_snapshot(base)
                except CorruptError as error:
                    damage = error
                    base = snapshots[-2] if len(snapshots) > 1 else 0
                    snapshot = await self._get_snapshot(base) if base else None
            versions = await self._versions(self._edits, self._edit_key(base))
            edits = await in_parallel(self._get_edit, versions, PARALLEL_REQUESTS_MAX)
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            if not await self._is_forgotten(base + 1):
                raise CorruptError(Reason.CORRUPT_STORE, f"the journal lacks an object. {error.message}") from error
            return None
        if await self._is_forgotten(base + 1):
            return None
        for expected, version in enumerate(versions, base + 1):
            if version != expected:
                await self._prove(expected)
                return None
        if damage is not None:
            if base + len(edits) < snapshots[-1]:
                raise damage
            logger.error("snapshot_damaged", error=damage.message, begun_at=base)
        return Loaded(base + len(edits), snapshot, edits)

    async def _prove(self, version: int) -> None:
        """An edit below the newest was not listed. It may exist, because a listing is no single instant. Otherwise raises
        CorruptError."""
        try:
            await self._get_edit(version)
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            if not await self._is_forgotten(version):
                raise CorruptError(Reason.CORRUPT_STORE, f"the journal lacks an edit. {error.message}") from error

    async def _get_snapshot(self, version: int) -> bytes:
        key = self._snapshot_key(version)
        return _decode("snapshot", key, version, await self._store.get(key))[1]

    async def _get_edit(self, version: int) -> bytes:
        key = self._edit_key(version)
        return _decode("edit", key, version, await self._store.get(key))[1]

    async def _is_forgotten(self, version: int) -> bool:
        """True if the edit of `version` may have been deleted already: two snapshots exist at it or above.

        Once true, this stays true. A listing of so few keys is one instant (one page of S3, one getdents(2) of a directory).
        """
        above = await self._store.list(self._snapshots, self._snapshot_key(version - 1), 2)
        return len(above) == 2

    async def _sweep(self) -> None:
        snapshots = await self._versions(self._snapshots)
        if len(snapshots) < self._snapshots_kept:
            return
        oldest = snapshots[-self._snapshots_kept]
        edits = await self._versions(self._edits, up_to=oldest)
        await in_parallel(lambda version: self._store.delete(self._edit_key(version)), edits, PARALLEL_REQUESTS_MAX)
        # Snapshots last: an old one without its edits is still right; edits without a snapshot to start from are rubbish.
        old = snapshots[: -self._snapshots_kept]
        await in_parallel(lambda version: self._store.delete(self._snapshot_key(version)), old, PARALLEL_REQUESTS_MAX)

    async def _versions(self, prefix: str, start_after: str = "", up_to: int | None = None) -> list[int]:
        """The version numbers below a prefix, rising, as far as `up_to`."""
        found: list[int] = []
        while True:
            page = await self._store.list(prefix, start_after, _LISTING_KEYS)
            for row in page:
                version = number_of(prefix, row.key)
                if version is None:
                    raise CorruptError(Reason.CORRUPT_STORE, f"a foreign object stands in the journal. key=`{row.key}`")
                if up_to is not None and version > up_to:
                    return found
                found.append(version)
            if len(page) < _LISTING_KEYS:
                return found
            start_after = page[-1].key

    def _edit_key(self, version: int) -> str:
        return numbered(self._edits, version)

    def _snapshot_key(self, version: int) -> str:
        return numbered(self._snapshots, version)


def _encode(kind: str, version: int, name: str, data: bytes) -> bytes:
    line = f"headgate-{kind} {FORMAT_VERSION} {version} {name} {zlib.crc32(data):08x} {len(data)}\n"
    return line.encode() + data


def _decode(kind: str, key: str, version: int, stored: bytes) -> tuple[str, bytes]:
    """(name, data). Raises CorruptError, FatalError."""
    line, newline, data = stored.partition(b"\n")
    fields = line.decode("ascii", "replace").split(" ")
    if fields[0] == f"headgate-{kind}" and len(fields) > 1 and fields[1].isdecimal() and int(fields[1]) > FORMAT_VERSION:
        message = f"the store was written by a newer release: upgrade this one. key=`{key}` format=`{fields[1]}`"
        raise FatalError(Reason.STORE_MISCONFIGURED, message)
    expected = [f"headgate-{kind}", str(FORMAT_VERSION), str(version), *fields[3:4], f"{zlib.crc32(data):08x}", str(len(data))]
    if not newline or fields != expected:
        raise CorruptError(Reason.CORRUPT_STORE, f"an object of the journal is not what was written. key=`{key}`")
    return fields[3], data
