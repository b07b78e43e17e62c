"""The manifest on a broker of a cluster. The broker's copy stays the same object while the writer of the manifest changes.

The engine holds a `RoutedCatalog`. It uses a `Backend`: the journal itself if this broker leads, else a call to the leader.
Each commit carries a number of this incarnation. If the answer to a commit is lost, the catalog sends the commit again to the
current leader, and the number makes sure that it takes effect only once.

One commit is under way at a time, because the leader takes a number below the last one for a repetition. Those that wait
meanwhile go together, as one commit, if they touch different things: where each of them takes seconds, the last one waits for
one commit, not for all earlier ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.broker.cluster.admission import touched
from headgate.broker.cluster.edits.brokers import Committed
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.patience import Patience
from headgate.broker.engine.base.catalog import DeposedError
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import outlast

COMMIT_TIMEOUT_S = 15.0
"""Longest time, in seconds, in which a commit looks for a leader, if commits take milliseconds. It includes the wait for earlier
commits, so all of them give up together."""
ANSWER_S = 12.0
"""Time, in seconds, for the leader's answer to one commit, if commits take milliseconds. Longer than the leader itself tries."""
RETRY_S = 0.05
TOGETHER_MAX = 100
"""Commits of this broker that are sent as one."""


class Backend(Protocol):
    """A connection to the journal. It ends when another broker leads."""

    async def commit(self, edits: Sequence[Edit]) -> None:
        """Commit edits. Returns once the edits are durable and this broker's copy has them.

        Raises DeposedError or RetryError if the connection has ended: the edits may be in effect. Other errors as
        `Catalog.commit`.
        """

    async def settle(self) -> None:
        """Wait for the running commits; see `Catalog.settle`."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A commit that a part of this broker asked for."""

    edits: tuple[Edit, ...]
    touches: frozenset[object] | None
    """What its edits touch. None: anything, so it goes alone."""
    is_over: bool = False
    """True: it was sent with another commit."""
    gave_up: bool = False
    """True: its caller has received an error, because its time was over."""
    error: HeadgateError | None = None


class RoutedCatalog:
    """The catalog of a broker in a cluster: sends commits to the current leader."""

    def __init__(self, incarnation_id: str) -> None:
        self.manifest = Manifest()
        self.version = 0
        """Version of `manifest`. Both are always set together, because a leader sends the edits after this version."""
        self.patience = Patience(ANSWER_S)
        """The limit for the answer to one commit. The limits for what waits for commits grow with it."""
        self._incarnation_id = incarnation_id
        self._backend: Backend | None = None
        self._over: HeadgateError | None = None
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._waiting: deque[_Asked] = deque()
        """The commits that wait for the lock, in the order in which they get it."""
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
        asked = _Asked(edits, touched(edits))
        # A commit waits for the one under way and for its own answer.
        deadline = asyncio.get_running_loop().time() + COMMIT_TIMEOUT_S + 2 * (self.patience.limit_s - ANSWER_S)
        self._waiting.append(asked)
        try:
            async with asyncio.timeout_at(deadline):
                await self._lock.acquire()
        except TimeoutError as error:
            self._forget(asked)
            asked.gave_up = True
            raise RetryError(Reason.NOT_READY, "earlier changes of this broker still wait for the leader") from error
        try:
            self._forget(asked)
            if not asked.is_over:
                await self._commit_joined(asked, deadline)
        finally:
            self._lock.release()
        if asked.error is not None:
            raise asked.error

    def _forget(self, asked: _Asked) -> None:
        if asked in self._waiting:
            self._waiting.remove(asked)

    async def _commit_joined(self, asked: _Asked, deadline: float) -> None:
        """Send a commit, and with it those that wait behind it and touch other things. Notes their errors."""
        joined = self._joined(asked)
        try:
            await self._commit_next([edit for request in (asked, *joined) for edit in request.edits], deadline)
        except InvalidError as error:
            if not joined:
                asked.error = error
                return
            # One of them does not fit, and the leader does not say which. They had no effect: each goes alone.
            joined = [request for request in joined if not request.gave_up]
            self._waiting.extendleft(reversed(joined))
            asked.touches = None
            for request in joined:
                request.is_over, request.touches = False, None
            await self._commit_joined(asked, deadline)
        except HeadgateError as error:
            for request in (asked, *joined):
                request.error = error

    def _joined(self, asked: _Asked) -> list[_Asked]:
        joined: list[_Asked] = []
        taken = asked.touches
        while taken is not None and self._waiting and len(joined) < TOGETHER_MAX:
            touches = self._waiting[0].touches
            if touches is None or taken & touches:
                break
            taken |= touches
            request = self._waiting.popleft()
            request.is_over = True
            joined.append(request)
        return joined

    async def _commit_next(self, edits: Sequence[Edit], deadline: float) -> None:
        self._number += 1
        numbered = [*edits, Committed(self._incarnation_id, self._number)]
        loop = asyncio.get_running_loop()
        while True:
            backend = await self._way(deadline)
            asked_s = loop.time()
            try:
                await backend.commit(numbered)
                self.patience.answered(loop.time() - asked_s)
                return
            except DeposedError:
                if self._backend is backend:
                    self.use(None)
            except RetryError:
                if self._backend is backend and loop.time() > deadline:
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
