"""Sorting more rows than a task may hold: sorted runs in files, merged by columns.

A run is a file of small sorted batches, its *chunks*. A merge holds the next chunk of each run, and loads the chunk whose first row
comes first. All loaded rows up to the first row of the chunks that are not loaded yet are in their final place, so they are sorted
together and leave. Each run has at most one loaded chunk with rows behind that place: chunks bound the memory. If there are too
many runs for one merge, groups of them become longer runs first.
"""

from __future__ import annotations

import errno
import heapq
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.runtime.errors import Reason, RetryError
from headgate.pipelines.columns.batches import joined, parts

CHUNK_BYTES_MIN = 32 << 10
"""Bytes of a chunk at least: each one costs a read, and a place in the heap."""
CHUNKS_PER_RUN = 256
"""Chunks of a run that fills its task's memory."""
RUNS_MAX = 64
"""Runs that one merge reads at once. Each is an open file."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of rows. `rows`: the numbers of a batch's rows in order. `place`: the place of one row, to be compared with those
    of other batches."""

    rows: Callable[[pa.RecordBatch], npt.NDArray[np.int64]]
    place: Callable[[pa.RecordBatch, int], tuple[Any, ...]]

    def sorted(self, batches: list[pa.RecordBatch], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows in order, with these columns. Empties the list, so that they are not in memory twice while they are copied in
        order."""
        rows = joined(batches)
        batches.clear()
        order: Any = self.rows(rows)
        return (rows if columns is None else rows.select(list(columns))).take(order)


@dataclass(frozen=True, slots=True)
class Run:
    """A file of sorted chunks. `chunk_bytes`: size of the largest one."""

    path: str
    chunk_bytes: int

    def chunks(self) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(self.path, "rb") as file:
            yield from pa.ipc.open_stream(file)


def sorted_rows(
    batches: Iterable[pa.RecordBatch], order: Order, bytes_max: int, columns: Sequence[str], place: str | None
) -> Iterator[pa.RecordBatch]:
    """All rows in order, with these columns, in batches that follow one another.

    Args:
        bytes_max: most bytes of rows that are sorted at once. Memory for three to four times as many is needed.
        place: directory for the runs of rows that are more than that. None: the system's directory for temporary files.

    Raises:
        RetryError(STORE_FULL): the disk is full.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    with temporary(place) as directory:
        runs: list[Run] = []
        for whole in batches:
            for batch in parts(whole, bytes_max):
                if held and size + batch.nbytes > bytes_max:
                    runs.append(_run(directory(), [order.sorted(held)], bytes_max))
                    size = 0
                held.append(batch)
                size += batch.nbytes
            del whole
        if not runs:
            if held:
                yield order.sorted(held, columns)
            return
        runs.append(_run(directory(), [order.sorted(held)], bytes_max))
        while len(group := _mergeable(runs, bytes_max)) < len(runs):
            runs = [*runs[len(group) :], _run(directory(), _merged(group, order, bytes_max), bytes_max)]
            for run in group:
                os.unlink(run.path)
        for rows in _merged(runs, order, bytes_max):
            yield rows.select(list(columns))


def _mergeable(runs: list[Run], bytes_max: int) -> list[Run]:
    """The first runs, as many as one merge may read: their chunks take a quarter of the memory, or there are two."""
    size = 0
    for number, run in enumerate(runs[:RUNS_MAX]):
        size += run.chunk_bytes
        if number >= 2 and size > bytes_max // 4:
            return runs[:number]
    return runs[:RUNS_MAX]


def _run(directory: str, batches: Iterable[pa.RecordBatch], bytes_max: int) -> Run:
    """Write sorted batches that follow one another as a run."""
    largest = 0
    most = max(bytes_max // CHUNKS_PER_RUN, CHUNK_BYTES_MIN)
    with disk_is_there(directory):
        handle, path = tempfile.mkstemp(dir=directory)
        os.close(handle)
        writer = None
        # Append mode: ext4 flushes a truncated file to the disk at close (auto_da_alloc), and acks wait for that disk.
        with pa.OSFile(path, "ab") as file:
            for batch in batches:
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                for chunk in parts(batch, most):
                    writer.write_batch(chunk)
                    largest = max(largest, chunk.nbytes)
            if writer is not None:
                writer.close()
    return Run(path, largest)


_Next: TypeAlias = tuple[tuple[Any, ...], int, pa.RecordBatch, Iterator[pa.RecordBatch]]


def _merged(runs: list[Run], order: Order, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """All rows of the runs in order."""
    waiting: list[_Next] = []
    for number, run in enumerate(runs):
        rest = run.chunks()
        first = next(rest)
        waiting.append((order.place(first, 0), number, first, rest))
    heapq.heapify(waiting)
    held: list[pa.RecordBatch] = []
    while waiting:
        # Each turn sorts the held rows again, so it loads at least as many.
        enough = max(sum(batch.nbytes for batch in held), bytes_max // 8, 1)
        loaded = 0
        while waiting and loaded < enough:
            _, number, chunk, rest = waiting[0]
            held.append(chunk)
            loaded += chunk.nbytes
            if (following := next(rest, None)) is None:
                heapq.heappop(waiting)
            else:
                heapq.heapreplace(waiting, (order.place(following, 0), number, following, rest))
        rows = order.sorted(held)
        end = rows.num_rows
        if waiting:
            end = bisect_right(range(end), waiting[0][0], key=lambda row: order.place(rows, row))
        if end:
            yield rows.slice(0, end)
        if end < rows.num_rows:
            held = [rows.slice(end)]


@contextmanager
def temporary(place: str | None) -> Iterator[Callable[[], str]]:
    """Yields a function that makes a directory at its first call. The directory is removed at the end."""
    made: list[tempfile.TemporaryDirectory[str]] = []

    def make() -> str:
        if not made:
            with disk_is_there(place or tempfile.gettempdir()):
                made.append(tempfile.TemporaryDirectory(prefix="headgate-runs-", dir=place))
        return made[0].name

    try:
        yield make
    finally:
        for directory in made:
            directory.cleanup()


@contextmanager
def disk_is_there(directory: str) -> Iterator[None]:
    """Translates the error of a full disk. Raises RetryError(STORE_FULL), which names the directory."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RetryError(
            Reason.STORE_FULL,
            "the disk for rows on their way between tasks is full: make room, or name another directory in spark.local.dir. "
            f"directory=`{directory}`",
        ) from error
