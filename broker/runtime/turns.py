"""One time budget for all requests on the event loop.

The loop runs one piece of code at a time. A request with more than `SLICE_S` of work therefore stops after each slice and
waits for its next turn. `Turns` gives one waiting request a turn in each iteration of the loop: new requests, acks, heartbeats
and timers run between two slices, however many long requests wait.

Work is cut into slices in two ways. A coroutine iterates with `async for item in turn.each(items)`. A pure function (a decoder,
an encoder) is a generator, `Steps`: it yields before each small step, and `Turn.run` runs it to its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from headgate.broker.runtime.steps import Steps

SLICE_S = 0.002
"""Longest time that one request runs before the loop serves others, in seconds. An ack crosses the loop two or three times, so a
broker under the worst requests answers others some 5 ms later. A shorter slice costs more iterations, of 50 microseconds each."""

T = TypeVar("T")


class Turns:
    """Gives waiting requests one turn after another, one in each iteration of the event loop.

    Args:
        now: a monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    def begin(self) -> Turn:
        """Begin the first slice of a request's work, now."""
        return Turn(self)

    async def next(self) -> None:
        """Wait for the next turn."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiting.append(waiter)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._give)
        await waiter

    def _give(self) -> None:
        waiting = self._waiting
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():  # a finished waiter belongs to a cancelled request
                waiter.set_result(None)
                break
        self._scheduled = bool(waiting)
        if waiting:
            asyncio.get_running_loop().call_soon(self._give)


class Turn:
    """The slice of one request: the time until which it may run."""

    __slots__ = ("_now", "_turns", "_until_s")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._now = turns.now
        self._until_s = self._now() + SLICE_S

    async def pause(self) -> None:
        """Return at once during the slice; after it, wait for the beginning of the next one."""
        if self._now() >= self._until_s:
            await self._turns.next()
            self._until_s = self._now() + SLICE_S

    def advance(self, steps: Steps[T]) -> T | None:
        """Run steps until the end of this slice, without waiting. Returns their result, or None if `run` must continue them."""
        try:
            while self._now() < self._until_s:
                next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        return None

    def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items in their order, with a pause before each. `items` must not change meanwhile: copy a collection that others
        may change."""
        return _Each(self, iter(items))

    async def run(self, steps: Steps[T]) -> T:
        """Run steps to their end, with a pause between two. Returns their result, and raises their exceptions."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if self._now() >= self._until_s:
                await self.pause()


class _Each(Generic[T]):
    __slots__ = ("_items", "_turn")

    def __init__(self, turn: Turn, items: Iterator[T]) -> None:
        self._turn = turn
        self._items = items

    def __aiter__(self) -> _Each[T]:
        return self

    async def __anext__(self) -> T:
        turn = self._turn
        if turn._now() >= turn._until_s:
            await turn.pause()
        for item in self._items:
            return item
        raise StopAsyncIteration
