"""Progress lines in a run's log: at each change of the work, and often enough that a person sees it move."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from headgate.pipelines.progress import Progress

SAY_S = 5.0
"""Pause between two lines about one piece of work, in seconds."""
END_S = 5.0
"""Longest wait for the last lines of a step, in seconds: an interrupt may have left Dagster's log locked."""


class Follower:
    """Says how a step goes on: each new piece of work at once, and the current one every `every_s` seconds. A context manager.

    A thread of its own says the lines, so that a call that blocks (the start of Spark, a count) is followed too. No other thread
    does: an interrupt in the middle of a line of the main thread would leave Dagster's log locked for all others, and the threads
    of a load would never end.

    Args:
        say: receives the lines, from that thread.
        move: receives the lines about the current piece of work every `every_s` seconds. Default: `say`.
    """

    def __init__(self, say: Callable[[str], None], every_s: float = SAY_S, move: Callable[[str], None] | None = None) -> None:
        self._out = say
        self._move = say if move is None else move
        self._every_s = every_s
        self._lock = threading.Lock()
        self._doing = ""
        self._text: Callable[[float], str] | None = None
        self._began = self._said = time.monotonic()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """What is to be said; None: nothing follows."""
        self._thread = threading.Thread(target=self._run, name="headgate-follower", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lines.put(None)
        self._thread.join(END_S)

    @property
    def doing(self) -> str:
        """The current piece of work, such as ``writing``."""
        return self._doing

    def line(self, seconds: float) -> str:
        """The line about the current piece of work, so many seconds after its begin."""
        return f"{self._doing}: {seconds:.0f} s so far" if self._text is None else self._text(seconds)

    def say(self, text: str) -> None:
        """Say a line, without waiting for it. From any thread."""
        self._lines.put(text)

    def at(self, doing: str, text: Callable[[float], str] | None = None, *, at_once: bool = True) -> None:
        """Name the current piece of work.

        Args:
            text: the line about it, from the seconds since it began. Default: its name and these seconds.
            at_once: say a new piece of work now, not only with the next line that is due.
        """
        with self._lock:
            now = time.monotonic()
            changed = doing != self._doing
            self._text = text
            if changed:
                self._doing, self._began = doing, now
            if at_once and changed:
                self._said = now
        if at_once and changed:
            self.say(doing if text is None else text(0.0))

    @contextmanager
    def meanwhile(self, doing: str) -> Iterator[None]:
        """Name a piece of work in the middle of the current one, which goes on afterwards. From any thread."""
        before = self._doing, self._text
        self.at(doing)
        try:
            yield
        finally:
            if self._doing == doing:
                self.at(*before)

    def _run(self) -> None:
        while True:
            with suppress(queue.Empty):
                text = self._lines.get(timeout=min(1.0, self._every_s))
                if text is None:
                    return
                self._out(text)
            with self._lock:
                now = time.monotonic()
                if not self._doing or now - self._said < self._every_s:
                    continue
                self._said = now
                seconds = now - self._began
            self._move(self.line(seconds))


@dataclass
class Load:
    """The rows of a load of several partitions, of which one may be written while another is read back.

    `planned`: rows of each partition, by key in the order of the load. A partition's count by Spark replaces its plan.
    """

    planned: Mapping[str, int]
    _seen: dict[str, Progress] = field(default_factory=dict)
    _totals: dict[str, int] = field(default_factory=dict)
    _since: float | None = None
    """When the first partition began to move rows."""
    _finished: set[str] = field(default_factory=set)

    def see(self, key: str, seen: Progress, now: float) -> None:
        """Take note of the progress of a partition. `now`: seconds of any clock that only goes forward."""
        self._seen[key] = seen
        if seen.rows_total:
            self._totals[key] = seen.rows_total
        if seen.phase in ("shuffling", "writing") and self._since is None:
            self._since = now

    def finish(self, key: str) -> None:
        """A partition is loaded, and read back."""
        self._finished.add(key)

    def doing(self) -> str:
        """The work under way, as a subject: ``writing 2013-06-11 and verifying 2013-06-10``."""
        return " and ".join(f"{self._seen[key].phase} {key}" for key in self._active())

    def text(self, now: float, seconds: float) -> str:
        """The line about it, with rows written of planned, rate and time left; before the first row, with the seconds since this
        work began."""
        active = "; ".join(self._one(key) for key in self._active())
        return f"{active}; {self.written_text(now)}" if self.written() else f"{active}: {seconds:.0f} s so far"

    def written(self) -> int:
        """Rows in files so far."""
        return sum(self._written(key) for key in self._seen)

    def total(self) -> int:
        """Rows to write, as far as they are known."""
        return sum(self._totals.get(key, rows) for key, rows in self.planned.items())

    def written_text(self, now: float) -> str:
        """Rows written of planned, rate and time left."""
        written, total = self.written(), self.total()
        text = f"{written:,} of {total:,} rows written"
        if total:
            text += f" ({min(written / total, 1.0):.0%})"
        if written and self._since is not None and now > self._since:
            rate = written / (now - self._since)
            text += f", {rate:,.0f} rows/s"
            if written < total:
                text += f", about {(total - written) / rate:.0f} s left"
        return text

    def _written(self, key: str) -> int:
        seen = self._seen[key]
        if seen.phase == "writing":
            return seen.rows_done
        return self._totals.get(key, 0) if seen.phase in ("committing", "verifying", "done") else 0

    def _active(self) -> Sequence[str]:
        """The partitions under way, the one that is furthest back first."""
        active = [key for key in reversed(self._seen) if key not in self._finished and self._seen[key].phase != "done"]
        return active or list(self._seen)[-1:]

    def _one(self, key: str) -> str:
        seen, number = self._seen[key], list(self.planned).index(key) + 1
        text = f"{seen.phase} {key} ({number} of {len(self.planned)})"
        if seen.phase in ("shuffling", "verifying") and seen.rows_total:
            text += f", {seen.rows_done:,} of {seen.rows_total:,} rows"
        return text
