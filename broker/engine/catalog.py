"""The manifest on the store: one writer at a time, and whoever loses a race knows that it was replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable

from broker.cluster.manifest import Edit, Manifest, decode_edits, encode_edits
from broker.engine import keys
from broker.runtime.errors import CorruptError, FatalError, FencedError, HeadgateError, Reason, RetryError
from broker.store.interface import Store
from broker.store.journal import Journal

COMMIT_PAUSE_S = 0.2
COMMIT_TRIES = 50
"""About ten seconds of a store that says no; then the caller gets the store's answer."""


class Catalog:
    """`manifest` is what the store holds, after every commit that returned.

    Args:
        fail: told of an error after which no commit can ever succeed (fenced, store gone, store damaged), whoever asked for it.
        follow: given the edits that `manifest` has just taken, in order. They may be of a commit whose caller has gone, or was told
            that the store does not answer: what must agree with the manifest is changed here, not behind `commit`.
    """

    def __init__(
        self,
        store: Store,
        fail: Callable[[HeadgateError], None] | None = None,
        follow: Callable[[Iterable[Edit]], None] | None = None,
    ) -> None:
        self._journal = Journal(store, keys.MANIFEST)
        self._lock = asyncio.Lock()
        self._fail = fail
        self._follow = follow
        self.manifest = Manifest()

    async def load(self) -> None:
        """Read the newest manifest. Raises CorruptError, RetryError."""
        loaded = await self._journal.load()
        manifest = Manifest() if loaded.snapshot is None else Manifest.decode(loaded.snapshot)
        for data in loaded.edits:
            manifest.apply(decode_edits(data))
        self.manifest = manifest

    async def commit(self, *edits: Edit) -> None:
        """Make edits durable, then visible here, all at once.

        A caller that is cancelled (its client went away) does not cancel the commit: half of one would block all that follow.

        Raises:
            FencedError: another broker wrote the manifest: this one was replaced and must stop.
            RetryError: the store does not answer. The edits may or may not be in; calling again is safe.
        """
        await self._uncancelled(self._commit(edits))

    async def settle(self) -> None:
        """Wait for the commits that are under way, also for one that gave up. Then `manifest` is what the next edit will change.

        Raises as `commit`.
        """
        await self._uncancelled(self._commit(()))

    @staticmethod
    async def _uncancelled(committing: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(committing, name="commit")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to look at it
        await asyncio.shield(task)

    async def _commit(self, edits: tuple[Edit, ...]) -> None:
        async with self._lock:
            try:
                if (data := self._journal.in_doubt) is not None:
                    # An earlier commit gave up on a store that did not answer. Only when it is decided can there be another one.
                    await self._append(data)
                    self._apply(decode_edits(data))
                if not edits:
                    return
                await self._append(encode_edits(list(edits)))
            except (FencedError, FatalError, CorruptError) as error:
                if self._fail is not None:
                    self._fail(error)
                raise
            self._apply(edits)
            if self._journal.wants_snapshot:
                await self._snapshot()

    def _apply(self, edits: Iterable[Edit]) -> None:
        self.manifest.apply(edits)
        if self._follow is not None:
            self._follow(edits)

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
                raise FencedError(Reason.FENCED, "another broker took over this store: it wrote the manifest") from error

    async def _snapshot(self) -> None:
        try:
            await self._journal.snapshot(self.manifest.encode())
        except HeadgateError:
            # The edits are durable: a snapshot only makes the next start faster, and the next commit tries again.
            return
