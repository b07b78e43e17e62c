"""The manifest for the engine: a current copy, and a way to change it.

Any broker changes the manifest through its `Catalog`. The leader's is `LocalCatalog`, which writes the journal in the store;
other brokers' catalogs (control/) send their edits to it. The last writer of the journal leads: a broker that loses a race for a
version has been replaced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeAlias, TypeVar

from headgate.broker.cluster.admission import check, check_together, touched
from headgate.broker.cluster.edits.brokers import Committed
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import decode_edits, decode_snapshot, encode_edits, encode_snapshot
from headgate.broker.engine.base import keys
from headgate.broker.runtime.errors import CorruptError, FatalError, FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import outlast
from headgate.broker.store.interface import Store
from headgate.broker.store.journal import Journal, Loaded

COMMIT_PAUSE_S = 0.2
COMMIT_TRIES = 50
"""Bound of retries against a failing store: about ten seconds; then the caller receives the store's error."""

RECENT_BYTES_MAX = 4 << 20
"""Remembered commits, for brokers that were away for a moment; a snapshot may be much larger."""

Applied: TypeAlias = Callable[[Sequence[Edit]], None]
"""Called with edits that the manifest has just applied."""
Complete: TypeAlias = Callable[[Manifest, list[Edit]], list[Edit]]
"""From edits that are about to be committed to the edits that belong into the same commit."""


TOGETHER_MAX = 100
"""Commits that one version of the journal takes along."""

_T = TypeVar("_T")

CHANGE_TRIES = 100
CHANGE_PAUSE_S = 0.02
"""Pause, in seconds, before another attempt to change what another broker has just changed: about two seconds of tries."""


class DeposedError(FencedError):
    """Another broker wrote the journal: this one does not lead any more. The commit had no effect."""


class Catalog(Protocol):
    """`manifest` is this broker's copy: a past or present state of the cluster, and the newest that this broker knows. `version` is
    its version in the journal."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def version(self) -> int: ...

    async def commit(self, *edits: Edit) -> None:
        """Make edits durable, then visible here, all at once or not at all.

        The cancellation of a caller (its client went away) does not cancel the commit.

        Raises:
            FencedError: this broker was replaced and must stop.
            InvalidError: the edits do not fit the state; nothing was changed.
            RetryError: the store or the leader does not answer. The edits may or may not be in effect.
        """

    async def settle(self) -> None:
        """Wait for the running commits, including those whose caller was cancelled. Afterwards the next edit applies to
        `manifest` as it is now.

        Raises the errors of `commit`.
        """


async def change(catalog: Catalog, attempt: Callable[[], Awaitable[_T]], what: str) -> _T:
    """A change that depends on the manifest: `attempt` reads it and commits, and is repeated when another broker was first.

    Raises RetryError(NOT_READY) if others change it all the time; the errors of `attempt` and of `Catalog.settle`.
    """
    for _ in range(CHANGE_TRIES):
        await catalog.settle()
        try:
            return await attempt()
        except InvalidError as error:
            if error.reason is not Reason.CHANGED_MEANWHILE:
                raise
        await asyncio.sleep(CHANGE_PAUSE_S)  # another broker's change has not reached this broker yet
    raise RetryError(Reason.NOT_READY, f"{what} change faster than this broker hears of it")


@dataclass(slots=True, eq=False)
class _Asked:
    """A commit that a broker asked for."""

    incarnation_id: str
    make: Callable[[Manifest], Sequence[Edit]]
    touches: frozenset[object] | None
    """What its edits touch. None: anything."""
    is_over: bool = False
    """True: another commit took it along."""
    error: HeadgateError | None = None


class LocalCatalog:
    """The leader's catalog. After every commit that returned, its manifest describes everything in the store.

    Args:
        incarnation_id: the broker for which `commit` works.
        applied: called with every commit's edits once `manifest` has them, in order. State that must agree with the manifest is
            changed here, not after `commit`: the caller of a commit may be cancelled, or may have received an error of the
            store.
        complete: adds the edits that a commit needs besides its own.
        fail: called with an error after which no commit can ever succeed (fenced, store gone, store damaged), for any caller.
    """

    def __init__(
        self,
        store: Store,
        incarnation_id: str,
        *,
        applied: Applied | None = None,
        complete: Complete | None = None,
        fail: Callable[[HeadgateError], None] | None = None,
    ) -> None:
        self._journal = Journal(store, keys.MANIFEST)
        self._incarnation_id = incarnation_id
        self._lock = asyncio.Lock()
        self._waiting: deque[_Asked] = deque()
        """The commits that wait for the lock, in the order in which they get it."""
        self._applied = applied
        self._complete = complete
        self._fail = fail
        self._manifest = Manifest()
        self._recent: deque[bytes] = deque()
        """The newest commits, in the journal's form; the last one made `version`."""
        self._recent_bytes = 0
        self._retired = False

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    def retire(self) -> None:
        """Called when this writer was replaced. From now on `manifest` follows the next leader, so this catalog applies nothing
        to it.

        If a commit of this writer succeeded before, the next leader reports it.
        """
        self._retired = True

    def since(self, version: int) -> list[tuple[int, bytes]] | None:
        """The commits after a version, each with the version that it made, in order; None when they are no longer remembered."""
        count = self.version - version
        if not 0 <= count <= len(self._recent):
            return None
        return list(enumerate(islice(self._recent, len(self._recent) - count, None), version + 1))

    def _remember(self, data: bytes) -> None:
        self._recent.append(data)
        self._recent_bytes += len(data)
        while self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= len(self._recent.popleft())

    @property
    def version(self) -> int:
        """The version of `manifest`."""
        return self._journal.version

    async def load(self) -> None:
        """Read the newest manifest. Raises CorruptError, RetryError."""
        loaded = await self._journal.load()
        self._manifest = manifest_of(loaded)
        self._recent.clear()
        self._recent_bytes = 0
        for data in loaded.edits:
            self._remember(data)

    async def commit(self, *edits: Edit) -> None:
        await self.commit_for(self._incarnation_id, edits)

    async def commit_for(self, incarnation_id: str, edits: Sequence[Edit]) -> None:
        """`commit` for another broker. Errors about the edits are its errors, not this broker's."""
        await self._uncancelled(self._commit(_Asked(incarnation_id, lambda _: edits, touched(edits))))

    async def commit_made(self, make: Callable[[Manifest], Sequence[Edit]]) -> None:
        """Commit edits that `make` makes from the manifest to which they will be applied."""
        await self._uncancelled(self._commit(_Asked(self._incarnation_id, make, None)))

    async def settle(self) -> None:
        """Wait for the running commits, including those whose caller was cancelled. Afterwards the next edit applies to
        `manifest` as it is now.

        Raises the errors of `commit`.
        """
        await self._uncancelled(self._commit(_Asked(self._incarnation_id, lambda _: (), None)))

    @staticmethod
    async def _uncancelled(committing: Coroutine[object, object, None]) -> None:
        # Half of a commit would block all later ones.
        await outlast(asyncio.create_task(committing, name="commit"))

    async def _commit(self, asked: _Asked) -> None:
        self._waiting.append(asked)
        async with self._lock:
            if asked.is_over:
                if asked.error is not None:
                    raise asked.error
                return
            self._waiting.remove(asked)
            self._check_retired()
            try:
                if (data := self._journal.in_doubt) is not None:
                    # An earlier commit gave up on a store that did not answer. Its outcome must be known before another commit
                    # starts.
                    await self._append(data)
                    self._check_retired()
                    self._remember(data)
                    self._apply(decode_edits(data))
            except (FencedError, FatalError, CorruptError) as error:
                self._failed(error)
                raise
            edits = self._checked(asked)
            if not edits:
                return
            others = self._joined(asked, edits)
            try:
                await self._write(edits)
            except HeadgateError as error:
                for other in others:
                    other.error = error
                raise
            if self._journal.wants_snapshot:
                await self._snapshot()

    def _joined(self, asked: _Asked, edits: list[Edit]) -> list[_Asked]:
        """Take the commits that wait behind this one, and that go into the same version. Adds their edits to `edits`.

        If the store is far away, a commit waits for the one under way, and not for one of each broker.
        """
        joined: list[_Asked] = []
        taken = asked.touches
        while taken is not None and self._waiting and len(joined) < TOGETHER_MAX:
            request = self._waiting[0]
            touches = request.touches
            if touches is None or taken & touches:
                break
            try:
                edits += self._checked(request)
            except HeadgateError:
                break  # it is refused when its turn comes
            self._waiting.popleft()
            taken |= touches
            request.is_over = True
            joined.append(request)
        return joined

    def _checked(self, asked: _Asked) -> list[Edit]:
        """The edits of a commit, if they fit the state; [] if they are in effect already. Raises as `commit`."""
        edits = list(asked.make(self._manifest))
        if not edits or self._is_done(edits):
            return []
        for edit in edits:
            check(self._manifest, edit, asked.incarnation_id)
        check_together(self._manifest, edits)
        return edits

    async def _write(self, edits: list[Edit]) -> None:
        """Write edits and those that complete them as the next version, and apply them."""
        if self._complete is not None:
            edits += self._complete(self._manifest, edits)
        data = encode_edits(edits)
        try:
            await self._append(data)
        except (FencedError, FatalError, CorruptError) as error:
            self._failed(error)
            raise
        self._check_retired()
        self._remember(data)
        self._apply(edits)

    def _check_retired(self) -> None:
        if self._retired:
            raise DeposedError(Reason.FENCED, "this broker does not lead the cluster any more")

    def _is_done(self, edits: Sequence[Edit]) -> bool:
        """True for a commit that was sent again because its answer was lost."""
        for edit in edits:
            if isinstance(edit, Committed):
                return self._manifest.commits.get(edit.incarnation_id, -1) >= edit.number
        return False

    def _apply(self, edits: list[Edit]) -> None:
        self._manifest.apply(edits)
        if self._applied is not None:
            self._applied(edits)

    def _failed(self, error: HeadgateError) -> None:
        if self._fail is not None:
            self._fail(error)

    async def _append(self, data: bytes) -> None:
        for attempt in range(COMMIT_TRIES):
            try:
                await self._journal.append(data)
                return
            except RetryError:
                if attempt == COMMIT_TRIES - 1:
                    raise
                await asyncio.sleep(COMMIT_PAUSE_S)
            except FencedError as error:
                raise DeposedError(Reason.FENCED, "another broker took over this store: it wrote the manifest") from error

    async def _snapshot(self) -> None:
        try:
            await self._journal.snapshot(encode_snapshot(self._manifest))
        except HeadgateError:
            # The edits are durable. A snapshot only makes the next start faster, and the next commit tries it again.
            return


async def read_manifest(store: Store) -> Manifest:
    """The manifest as it stands in the store. Raises CorruptError, RetryError."""
    return manifest_of(await Journal(store, keys.MANIFEST).load())


def manifest_of(loaded: Loaded) -> Manifest:
    """The manifest at a version of its journal. Raises CorruptError."""
    manifest = Manifest() if loaded.snapshot is None else decode_snapshot(loaded.snapshot)
    for data in loaded.edits:
        manifest.apply(decode_edits(data))
    return manifest
