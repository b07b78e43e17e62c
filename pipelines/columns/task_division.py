"""How the rows of a source are divided among tasks, so that each partition comes out in order of time. Pure.

Row groups that overlap in time form a *stretch* with all others that they overlap. Stretches follow one another: all records of one
are earlier than those of the next. A small stretch is the work of one task, which reads, sorts and writes it. A large one is
exchanged: some tasks read it and pass the rows on, and for each *bucket* (some partitions, or a part of one partition's time) one
task sorts and writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from headgate.pipelines.columns.layout import Piece

SORT_BYTES = 32 << 20
"""Raw bytes that a task sorts at once, if the rows can be divided so. A task sorts part after part and uses the same memory again,
because memory that is used for the first time costs more than sorting."""
CHUNK_BYTES = 32 << 20
"""Bytes of rows that are evaluated at once: enough to keep Arrow busy, few beside what a task sorts."""
LINES_BYTES = 16 << 20
"""Bytes of a file of lines that are parsed at once."""
TASK_BYTES_MIN = 8 << 20
"""Less than this is not worth a task of its own."""
TASKS_PER_SLOT = 2
"""So many tasks, at least, for each of Spark's slots, if there are bytes enough: the last one to end wastes less."""


MEMORY_BYTES = 1 << 30
"""Memory of the rows of a task, if the session does not say otherwise."""
MEMORY_BYTES_MIN = 16 << 20
MEMORY_BYTES_MAX = 8 << 30
"""Arrow's arrays of bytes hold 2 GiB, and a task sorts a sixth of its memory."""
PYTHON_BYTES = 256 << 20
"""Memory of a Python worker with all modules of a task, and without rows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The shares of a task's memory.

    A sort needs up to four times its rows: the batches, then the rows in one piece, the rows in order, and numbers for each row.
    Files in the making have a quarter, and rows that were just read the rest.
    """

    memory_bytes: int = MEMORY_BYTES

    @property
    def task_bytes(self) -> int:
        """Raw bytes of the work of one task, as far as the source can be divided: its start costs little beside it. Also the bytes
        of a row group that is read at once; a larger one is read in steps."""
        return self.memory_bytes // 8

    @property
    def sort_bytes(self) -> int:
        """Bytes of rows that are sorted in memory. Rows can be larger than those of the sample, and no cut divides rows of one
        time: more rows are sorted in files."""
        return self.memory_bytes // 6

    @property
    def files_bytes(self) -> int:
        """Bytes of the files that a task has not uploaded yet."""
        return self.memory_bytes // 4

    @property
    def lines_bytes(self) -> int:
        return min(LINES_BYTES, self.memory_bytes // 64)

    @property
    def chunk_bytes(self) -> int:
        return min(CHUNK_BYTES, self.memory_bytes // 32)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Row groups whose rows are earlier than those of the next stretch, or of the same time but in no other one.

    `runs`: the same of its row groups; those of one run overlap with each other only.
    """

    number: int
    runs: tuple[tuple[Piece, ...], ...]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(chain.from_iterable(self.runs))

    @property
    def raw_bytes(self) -> int:
        return sum(piece.raw_bytes for piece in self.pieces)

    def units(self, bytes_max: int) -> tuple[tuple[Piece, ...], ...]:
        """The runs, in order. Neighbours are joined up to `bytes_max`, because each unit opens its files."""
        found: list[tuple[Piece, ...]] = []
        size = 0
        for run in self.runs:
            more = sum(piece.raw_bytes for piece in run)
            if found and size + more <= bytes_max:
                found[-1] += run
                size += more
            else:
                found.append(run)
                size = more
        return tuple(found)


def task_bytes(total_bytes: int, slots: int, limits: Limits) -> int:
    """Raw bytes for one task of a source of `total_bytes`, when Spark runs `slots` tasks at a time."""
    # A single slot gains nothing from more tasks, which would only exchange rows.
    tasks = slots * TASKS_PER_SLOT if slots > 1 else 1
    return min(max(total_bytes // tasks, TASK_BYTES_MIN), limits.task_bytes)


def stretches(pieces: Iterable[Piece], bytes_max: int) -> list[Stretch]:
    """The pieces as stretches, by time. Neighbours that do not overlap share a stretch up to `bytes_max`."""
    found: list[list[tuple[Piece, ...]]] = []
    sizes: list[int] = []
    run: list[Piece] = []
    high_us = 0

    def close() -> None:
        size = sum(piece.raw_bytes for piece in run)
        if found and sizes[-1] + size <= bytes_max:
            found[-1].append(tuple(run))
            sizes[-1] += size
        else:
            found.append([tuple(run)])
            sizes.append(size)

    for piece in sorted(pieces, key=lambda piece: (piece.low_us, piece.high_us, piece.file.path, piece.group)):
        # At the same time the content decides the order: such pieces overlap.
        if run and piece.low_us > high_us:
            close()
            run.clear()
        high_us = max(high_us, piece.high_us) if run else piece.high_us
        run.append(piece)
    if run:
        close()
    return [Stretch(number, tuple(stretch)) for number, stretch in enumerate(found)]


def readings(stretch: Stretch, bytes_max: int) -> list[tuple[Piece, ...]]:
    """The pieces of a stretch as tasks that read it, by file."""
    tasks: list[list[Piece]] = []
    size = 0
    for piece in sorted(stretch.pieces, key=lambda piece: (piece.file.path, piece.group)):
        if not tasks or size + piece.raw_bytes > bytes_max:
            tasks.append([])
            size = 0
        tasks[-1].append(piece)
        size += piece.raw_bytes
    return [tuple(task) for task in tasks]


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows of some partitions, or of one part of a partition's time."""

    partitions: tuple[int, ...]
    raw_bytes: float


@dataclass(frozen=True, slots=True)
class Buckets:
    """Where the rows of a stretch go. `cuts`: for a partition with several buckets the times, ascending, at which the next
    one begins."""

    buckets: tuple[Bucket, ...]
    first: dict[int, int]
    """The number of each partition's first bucket."""
    cuts: dict[int, tuple[int, ...]]


def buckets(rows: Sequence[int], samples: Sequence[Sequence[int]], row_bytes: float, bytes_max: int) -> Buckets:
    """Divide the rows of a stretch into buckets of about `bytes_max`.

    Args:
        rows: of each partition.
        samples: some times of each partition, in microseconds.
        row_bytes: size of a row.
    """
    made: list[Bucket] = []
    first: dict[int, int] = {}
    cuts: dict[int, tuple[int, ...]] = {}
    shared: list[int] = []
    shared_bytes = 0.0

    def close() -> None:
        nonlocal shared_bytes
        if shared:
            first.update(dict.fromkeys(shared, len(made)))
            made.append(Bucket(tuple(shared), shared_bytes))
            shared.clear()
            shared_bytes = 0.0

    for partition, count in enumerate(rows):
        size = count * row_bytes
        if not count:
            continue
        if size <= bytes_max:
            if shared_bytes + size > bytes_max:
                close()
            shared.append(partition)
            shared_bytes += size
            continue
        times = sorted(samples[partition])
        parts = -int(-size // bytes_max)
        found = sorted({times[len(times) * part // parts] for part in range(1, parts)} - set(times[:1])) if times else []
        first[partition], cuts[partition] = len(made), tuple(found)
        made += [Bucket((partition,), size / (len(found) + 1))] * (len(found) + 1)
    close()
    return Buckets(tuple(made), first, cuts)


def writers(found: Sequence[Bucket], bytes_max: int) -> tuple[int, ...]:
    """The number of the task that writes each bucket: neighbours share a task of up to `bytes_max`."""
    numbers: list[int] = []
    size = 0.0
    for stretch in found:
        if not numbers:
            numbers.append(0)
        elif size + stretch.raw_bytes > bytes_max:
            numbers.append(numbers[-1] + 1)
            size = 0.0
        else:
            numbers.append(numbers[-1])
        size += stretch.raw_bytes
    return tuple(numbers)
