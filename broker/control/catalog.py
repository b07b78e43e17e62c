"""The manifest on a broker of a cluster: its copy stays, while who writes it changes.

`ClusterCatalog` is what the engine holds. Behind it stands a `Backend`: the journal itself where this broker leads, else a call to
the leader. Each commit carries a number of this incarnation, so that one whose answer was lost is sent again, to whoever leads by
then, and is done once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from headgate.broker.cluster.manifest import Committed, Edit, Manifest
from headgate.broker.engine.catalog import DeposedError
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.tasks import outlast

COMMIT_TIMEOUT_S = 15.0
"""How long a commit looks for a leader that takes it, its wait for those before it included: all of them give up together."""
RETRY_S = 0.05


class Backend(Protocol):
    """A way to the journal. It ends when another broker leads."""

    async def commit(self, edits: Sequence[Edit]) -> None:
        """Returns once the edits are durable and this broker's copy has them.

        Raises DeposedError or RetryError where the way has ended: the edits may be in. Else as `Catalog.commit`.
        """

    async def settle(self) -> None:
        """As `Catalog.settle`."""


class ClusterCatalog:
    """See the module's text."""

    def __init__(self, incarnation_id: str) -> None:
        self.manifest = Manifest()
        self.version = 0
        """Of `manifest`; always set together with it: from it a leader counts what is missing."""
        self._incarnation_id = incarnation_id
        self._backend: Backend | None = None
        self._over: HeadgateError | None = None
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._number = 0

    def use(self, backend: Backend | None) -> None:
        """From now on commits go this way; None: nobody is known to lead, so they wait."""
        self._backend = backend
        if backend is not None:
            self._changed.set()
        else:
            self._changed.clear()

    def leave(self, backend: Backend) -> None:
        """This way has ended."""
        if self._backend is backend:
            self.use(None)

    def end(self, error: HeadgateError) -> None:
        """This broker is over: whoever waits for a leader, or will, is told so at once."""
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
