"""Room in memory for the row groups that are read and encoded, beside the cache of history. No I/O.

A store that does not answer keeps a request for as long as its own limit, 25 s and more. If such requests held the room, a few of
them would stop all history, also that of other files. So the place of a slow read goes to another row group until the read ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from headgate.broker.runtime.tasks import end_tasks

SLOW_S = 1.0
"""Seconds after which a read is slow. Most reads of a row group take a tenth of that."""
SLOW_MAX = 8
"""Slow reads without a place: half of the connections of an S3 store. The WAL needs the rest. A further one keeps its place."""

_T = TypeVar("_T")


class Room:
    """Room for a number of row groups, and for SLOW_MAX others whose bytes come late."""

    def __init__(self, places: int, slow_s: float = SLOW_S) -> None:
        self.slow_s = slow_s
        self._places = asyncio.Semaphore(places)
        self._slow = 0

    @property
    def is_full(self) -> bool:
        """True if a row group would have to wait for its place."""
        return self._places.locked()

    def place(self) -> Place:
        return Place(self)

    async def take(self) -> None:
        await self._places.acquire()

    def leave(self) -> None:
        self._places.release()

    def begin_slow(self) -> bool:
        """True if a slow read may give its place to others. The caller then calls `end_slow`."""
        if self._slow == SLOW_MAX:
            return False
        self._slow += 1
        return True

    def end_slow(self) -> None:
        self._slow -= 1


class Place:
    """The place of one row group, within `async with`, which waits for it."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._is_taken = False

    async def __aenter__(self) -> Self:
        await self._take()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    async def read(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of a read of the store. Others have the place while the read is slow. It is taken again before the return."""
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait((task,), timeout=self._room.slow_s)
            if not task.done() and self._room.begin_slow():
                try:
                    self._leave()
                    await asyncio.wait((task,))
                    await self._take()
                finally:
                    self._room.end_slow()
            return await task
        finally:
            await end_tasks((task,))

    async def _take(self) -> None:
        await self._room.take()
        self._is_taken = True

    def _leave(self) -> None:
        # After a cancellation during a slow read there is no place to give back.
        if self._is_taken:
            self._is_taken = False
            self._room.leave()
