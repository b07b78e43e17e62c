"""A directory as a store. `local_files.py` has the file operations; this module runs them in threads, so that no disk stops the
loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from headgate.broker.runtime.errors import ClosedError, Reason
from headgate.broker.runtime.threads import Pool
from headgate.broker.store.interface import Appender, Buffer, ObjectInfo, Ranges
from headgate.broker.store.keys import check_key, check_listing, check_range, check_ranges, views
from headgate.broker.store.local_append import Fsync, LocalAppender
from headgate.broker.store.local_files import LocalFiles
from headgate.broker.store.readable import descriptor_of

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
        self._waiting: dict[str, list[_Call]] = {}
        """Calls of `get_ranges` in this turn of the loop, by key."""

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
        self._check_open()
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(key)
        if waiting is None:
            # Other readers may want parts of the same object in this turn of the loop.
            waiting = self._waiting[key] = []
            loop.call_soon(self._read_waiting, key)
        call = _Call(ranges, loop.create_future())
        waiting.append(call)
        return await call.answer

    def _read_waiting(self, key: str) -> None:
        """Read an object for all that wait for it."""
        calls = [call for call in self._waiting.pop(key) if not call.answer.done()]
        if self._closed:
            for call in calls:
                call.answer.set_exception(self._closed_error())
        elif calls:
            wanted = [call.ranges for call in calls]
            reading = asyncio.get_running_loop().run_in_executor(self._pool, self._files.get_ranges, key, wanted)
            reading.add_done_callback(partial(_answer, calls))

    async def open_file(self, key: str) -> int:
        """A descriptor of an object, for another process to read from. The caller closes it."""
        check_key(key)
        self._check_open()
        return await descriptor_of(asyncio.get_running_loop().run_in_executor(self._pool, self._files.open_file, key))

    async def keep(self, key: str, source: str, *, copy: bool) -> bool:
        check_key(key)
        return await self._run(lambda: self._files.keep(key, source, copy=copy))

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
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> ClosedError:
        return ClosedError(Reason.CLOSED, f"the store was closed. url=`{self.url}`")


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of `get_ranges` that waits for its answer."""

    ranges: Ranges
    answer: asyncio.Future[memoryview]


def _answer(calls: list[_Call], reading: asyncio.Future[list[memoryview]]) -> None:
    """Answer the calls, one in each turn of the loop: what their readers then do takes part of a millisecond each."""
    call, *others = calls
    if not call.answer.done():
        error = reading.exception()
        if error is None:
            call.answer.set_result(reading.result()[-len(calls)])
        else:
            call.answer.set_exception(error)
    if others:
        asyncio.get_running_loop().call_soon(_answer, others, reading)
