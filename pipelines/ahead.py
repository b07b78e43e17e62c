"""Floods one after another in one Spark session: while one is committed and read back, Spark writes the next one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

from headgate.pipelines.backfill import FloodRun
from headgate.pipelines.calls import SIGNAL_S
from headgate.pipelines.certificate import Certificate
from headgate.pipelines.progress import Listener

CANCEL_S = 0.2
"""Pause between two attempts to cancel a write that is not wanted any more: Spark only cancels jobs that have started."""


class Ahead:
    """Runs floods in their order, each written by Spark while the one before is committed and verified. A context manager.

    One thread of its own writes, one flood at a time and at most one ahead; the caller's thread commits, so floods enter the topic
    in their order. The error of a write is raised when its flood's turn comes, and leaves the flood before it as it is. The end of
    the context cancels a write under way and waits for its end, so that the gates can be released afterwards.

    Args:
        runs: each flood, and the listener of its progress, which is also called from the writing thread.
    """

    def __init__(self, runs: Sequence[tuple[FloodRun, Listener]]) -> None:
        self._runs = runs
        self._pool = ThreadPoolExecutor(1, "headgate-ahead")
        self._writes: dict[int, Future[None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for number, write in self._writes.items():
            while not write.done():
                self._runs[number][0].cancel()
                wait([write], timeout=CANCEL_S)

    def run(self, number: int) -> Certificate:
        """Run flood `number` of `runs` to its end; the floods before it have ended. Returns its certificate. Raises what
        `FloodRun.run` raises."""
        run, listener = self._runs[number]
        write = self._started(number)
        while not write.done():
            wait([write], timeout=SIGNAL_S)
        write.result()
        if number + 1 < len(self._runs):
            self._started(number + 1)
        return run.run(listener)

    def _started(self, number: int) -> Future[None]:
        """The write of a flood, from now on at the latest."""
        if number not in self._writes:
            self._writes[number] = self._pool.submit(self._runs[number][0].write, self._runs[number][1])
        return self._writes[number]
