"""A directory as a store. `local_files.py` has the file operations; this module runs them in threads, so that no disk stops the
loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from headgate.broker.runtime.errors import ClosedError, Reason
from headgate.broker.runtime.threads import Pool
from headgate.broker.store.interface import Appender, Buffer, ObjectInfo, Ranges
from headgate.broker.store.keys import check_key, check_listing, check_range, check_ranges, views
from headgate.broker.store.local_append import Fsync, LocalAppender
from headgate.broker.store.local_files import LocalFiles

THREADS = 4
"""Calls to the disk at a time. More calls would only wait at the disk."""
FSYNC_INTERVAL_MS = 100

_T = TypeVar("_T")


class LocalStore:
    """Objects are files below `root`, named by their keys. Opening blocks for some milliseconds and creates a missing directory.

    A cancelled call continues in its thread: it may still take effect, and it reads `data` until it ends.

    Args:
        root: the directory, absolute or relative to the current working directory.
        fsync: for the appender; `put` and `put_if_absent` are durable with every value.
        fsync_interval_ms: see LocalAppender.
        required_key: see LocalFiles.

    Raises:
        FatalError, RetryError: see LocalFiles; FatalError(OUT_OF_MEMORY) if threads do not start.
    """

    def __init__(
        self,
        root: str,
        *,
        fsync: Fsync = "always",
        fsync_interval_ms: int = FSYNC_INTERVAL_MS,
        required_key: str = "",
        threads: int = THREADS,
    ) -> None:
        self._files = LocalFiles(root, required_key)
        with ExitStack() as undo:
            undo.callback(self._files.close)
            self._appender = LocalAppender(self._files, fsync, fsync_interval_ms)
            undo.callback(self._appender.close)
            self._pool = Pool(threads, "store")
            undo.pop_all()
        self._closed = False

    @property
    def url(self) -> str:
        return self._files.root

    @property
    def appender(self) -> Appender | None:
        return self._appender

    @property
    def read_unit_bytes(self) -> int:
        return 0

    async def put_if_absent(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        check_key(key)
        return await self._run(lambda: self._files.put_if_absent(key, views(data)))

    async def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        check_key(key)
        await self._run(lambda: self._files.put(key, views(data)))

    async def get(self, key: str) -> bytes:
        check_key(key)
        return await self._run(lambda: self._files.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        return await self._run(lambda: self._files.get_range(key, start, length))

    async def get_ranges(self, key: str, ranges: Ranges) -> Buffer:
        check_key(key)
        check_ranges(ranges)
        return await self._run(lambda: self._files.get_ranges(key, ranges))

    async def open_file(self, key: str) -> int:
        """A descriptor of an object, for another process to read from. The caller closes it."""
        check_key(key)
        return await self._run(lambda: self._files.open_file(key))

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        check_listing(prefix, start_after, limit)
        return await self._run(lambda: self._files.listing(prefix, start_after, limit))

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._run(lambda: self._files.delete(key))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._shut_down)

    def _shut_down(self) -> None:
        self._pool.shutdown()
        self._appender.close()
        self._files.close()

    async def _run(self, call: Callable[[], _T]) -> _T:
        if self._closed:
            raise ClosedError(Reason.CLOSED, f"the store was closed. url=`{self.url}`")
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)
