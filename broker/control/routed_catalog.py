"""The manifest on a broker of a cluster. The broker's copy stays the same object while the writer of the manifest changes.

The engine holds a `RoutedCatalog`. It uses a `Backend`: the journal itself if this broker leads, else a call to the leader.
Each commit carries a number of this incarnation. If the answer to a commit is lost, the catalog sends the commit again to the
current leader, and the number makes sure that it takes effect only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from headgate.broker.cluster.edits.brokers import Committed
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.engine.catalog import DeposedError
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.tasks import outlast

COMMIT_TIMEOUT_S = 15.0
"""Longest time, in seconds, in which a commit looks for a leader. It includes the wait for earlier commits, so all of them give
up together."""
RETRY_S = 0.05


class Backend(Protocol):
    """A connection to the journal. It ends when another broker leads."""

    async def commit(self, edits: Sequence[Edit]) -> None:
        """Commit edits. Returns once the edits are durable and this broker's copy has them.

        Raises DeposedError or RetryError if the connection has ended: the edits may be in effect. Other errors as
        `Catalog.commit`.
        """

    async def settle(self) -> None:
        """Wait for the running commits; see `Catalog.settle`."""


class RoutedCatalog:
    """The catalog of a broker in a cluster: sends commits to the current leader."""

    def __init__(self, incarnation_id: str) -> None:
        self.manifest = Manifest()
        self.version = 0
        """Version of `manifest`. Both are always set together, because a leader sends the edits after this version."""
        self._incarnation_id = incarnation_id
        self._backend: Backend | None = None
        self._over: HeadgateError | None = None
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._number = 0

    def use(self, backend: Backend | None) -> None:
        """Send commits to this backend from now on. None: no leader is known, so commits wait."""
        self._backend = backend
        if backend is not None:
            self._changed.set()
        else:
            self._changed.clear()

    def leave(self, backend: Backend) -> None:
        """Stop the use of a backend that has ended."""
        if self._backend is backend:
            self.use(None)

    def end(self, error: HeadgateError) -> None:
        """This broker has ended: fail all commits that wait for a leader, and all later ones."""
        self._over = error
        self._changed.set()

    async def commit(self, *edits: Edit) -> None:
        await outlast(asyncio.create_task(self._commit(edits), name="commit"))

    async def settle(self) -> None:
        async with self._lock:
            if self._backend is not None:
                await self._backend.settle()

    async def _commit(self, edits: tuple[Edit, ...]) -> None:
        deadline = asyncio.get_running_loop().time() + COMMIT_TIMEOUT_S
        try:
            async with asyncio.timeout_at(deadline):
                await self._lock.acquire()
        except TimeoutError as error:
            raise RetryError(Reason.NOT_READY, "earlier changes of this broker still wait for the leader") from error
        try:
            await self._commit_next(edits, deadline)
        finally:
            self._lock.release()

    async def _commit_next(self, edits: tuple[Edit, ...], deadline: float) -> None:
        self._number += 1
        numbered = [*edits, Committed(self._incarnation_id, self._number)]
        while True:
            backend = await self._way(deadline)
            try:
                await backend.commit(numbered)
                return
            except DeposedError:
                if self._backend is backend:
                    self.use(None)
            except RetryError:
                if self._backend is backend and asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)

    async def _way(self, deadline: float) -> Backend:
        while self._over is not None or self._backend is None:
            if self._over is not None:
                raise self._over
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError as error:
                raise RetryError(Reason.NOT_READY, "no broker leads the cluster at the moment") from error
        return self._backend
