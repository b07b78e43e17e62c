"""The writer of the manifest during one term: commits edits of this broker and of the members.

The engine's `RoutedCatalog` uses it as its `Backend`. The term adds to each commit the edits that complete it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headgate.broker.cluster.commit_times import CommitTimes
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.term import Term
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.engine.base.catalog import DeposedError, LocalCatalog
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine


class LeaderJournal:
    """The manifest and its journal, during one term.

    Args:
        mine: this broker's incarnation id.
        catalog: of this broker's engine.
        applied: called with the edits of a commit once the manifest has them, in order.
        failed: called with an error after which no commit can succeed. DeposedError: another broker leads.
    """

    def __init__(
        self,
        engine: Engine,
        mine: str,
        term: Term,
        catalog: RoutedCatalog,
        *,
        applied: Callable[[Sequence[Edit]], None],
        failed: Callable[[HeadgateError], None],
    ) -> None:
        self.is_over = False
        """True once the term has ended."""
        self._catalog = catalog
        self._times = CommitTimes()
        self._engine = engine
        self._term = term
        self._notify = applied
        self._local = LocalCatalog(engine.store, mine, applied=self._applied, complete=term.complete, fail=failed)

    @property
    def manifest(self) -> Manifest:
        return self._local.manifest

    @property
    def version(self) -> int:
        """The version of `manifest`."""
        return self._local.version

    @property
    def commit_s(self) -> float:
        """Seconds that a commit takes at the moment."""
        return self._times.longest_s(self._engine.clock.monotonic())

    # -- the term's beginning and end

    async def load(self) -> None:
        """Read the newest manifest. Raises CorruptError, RetryError."""
        await self._local.load()

    async def commit_first(self, make: Callable[[Manifest], Sequence[Edit]]) -> None:
        """Make the first commit of the term. Raises as `LocalCatalog.commit_made`; DeposedError: the previous leader wrote once
        more."""
        await self._local.commit_made(make)

    def publish(self) -> None:
        """Make this manifest the copy of this broker's engine. From now on the engine's commits come here."""
        self._catalog.manifest, self._catalog.version = self._local.manifest, self.version
        self._catalog.use(self)

    def end(self) -> None:
        """The term has ended: the engine's manifest follows the next leader."""
        self.is_over = True
        self._catalog.leave(self)
        self._local.retire()

    # -- commits

    async def commit(self, edits: Sequence[Edit]) -> None:
        """Commit this broker's own edits, as a `Backend`."""
        with self._timed():
            await self._local.commit(*edits)

    async def settle(self) -> None:
        await self._local.settle()

    async def confirm(self) -> None:
        """Prove that this broker still leads, and open a segment for every partition without a lead. Raises as `commit`."""
        with self._timed():
            await self._local.commit(self._term.confirmation)

    async def commit_made(self, make: Callable[[Manifest], Sequence[Edit]]) -> None:
        """Commit edits that `make` makes from the current manifest. Raises as `LocalCatalog.commit_made`, and
        RetryError(NOT_LEADER) if this broker does not lead any more."""
        try:
            with self._timed():
                await self._local.commit_made(make)
        except DeposedError as error:
            raise not_leader() from error

    async def commit_of(self, incarnation_id: str, edits: Sequence[Edit]) -> int:
        """Commit a member's edits. Returns the version of the manifest that contains them. Raises as `Catalog.commit`."""
        self._term.check_condemned(incarnation_id)
        try:
            with self._timed():
                await self._local.commit_for(incarnation_id, edits)
        except DeposedError as error:
            raise not_leader() from error
        return self.version

    def since(self, version: int) -> list[tuple[int, bytes]] | None:
        """The commits after a version; see `LocalCatalog.since`."""
        return self._local.since(version)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        number = self._times.began(self._engine.clock.monotonic())
        try:
            yield
        finally:
            self._times.ended(number, self._engine.clock.monotonic())

    def _applied(self, edits: Sequence[Edit]) -> None:
        if self._catalog.manifest is self._local.manifest:
            self._catalog.version = self.version
            self._engine.applied(edits)
        self._notify(edits)


def not_leader() -> RetryError:
    """The error for clients and members: only this broker was replaced, not they."""
    return RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster any more")
