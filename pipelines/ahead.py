"""Floods one after another in one Spark session: while one is committed and read back, Spark writes the next one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from headgate.pipelines.backfill import FloodRun
from headgate.pipelines.calls import Apart
from headgate.pipelines.certificate import Certificate
from headgate.pipelines.progress import Listener


class Ahead:
    """Runs floods in their order, each written by Spark while the one before is committed and verified. A context manager.

    A thread of its own writes, one flood at a time and at most one ahead; the caller's thread commits, so floods enter the topic
    in their order. The error of a write is raised when its flood's turn comes, and leaves the flood before it as it is. The end of
    the context cancels a write under way and waits some seconds for its end; a write that was given up opens no gate any more.

    Args:
        runs: each flood, and the listener of its progress, which is also called from the writing thread.
    """

    def __init__(self, runs: Sequence[tuple[FloodRun, Listener]]) -> None:
        self._runs = runs
        self._writes: dict[int, Apart[None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, write in self._writes.items():
            write.end(self._runs[number][0].jobs.give_up)

    def run(self, number: int) -> Certificate:
        """Run flood `number` of `runs` to its end; the floods before it have ended. Returns its certificate. Raises what
        `FloodRun.run` raises."""
        run, listener = self._runs[number]
        self._started(number).result()
        if number + 1 < len(self._runs):
            self._started(number + 1)
        return run.run(listener)

    def _started(self, number: int) -> Apart[None]:
        """The write of a flood, from now on at the latest."""
        if number not in self._writes:
            run, listener = self._runs[number]
            self._writes[number] = Apart(partial(run.write, listener))
            self._writes[number].start()
        return self._writes[number]
