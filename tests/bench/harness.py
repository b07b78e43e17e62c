"""The interface of a case (`Case`), its tools (`Bench`), and the runs that several cases share."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Generic, TypeVar

from tests.bench import brokers
from tests.bench.brokers import Broker
from tests.bench.native import NO_COMPILER, BenchError, Cores, Load, Native, Shape, busy_seconds, cpu_seconds, others_seconds
from tests.bench.report import Goal, Row

NULL = "null"
MEMORY = "memory"
LOCAL_NEVER = "never"
LOCAL_ALWAYS = "always"
BACKENDS = {
    NULL: "store null:, nothing behind the log",
    MEMORY: "store memory:",
    LOCAL_NEVER: "local store, wal.fsync=never",
    LOCAL_ALWAYS: "local store, wal.fsync=always",
}
"""The stores of a broker, and their names for the reader."""

DISTURBED_CORES = 0.15
"""Share of the machine's cores. A row is marked if other processes took more than this during its measurement."""
ATTEMPTS_MAX = 2
LONG_ATTEMPTS_MAX = 2
"""Attempts of one measurement of many seconds."""
LONG_DISTURBED_CORES = 0.3
"""As DISTURBED_CORES, for a measurement of many seconds. The benchmark may run with a higher priority than all others."""
QUIET_PROBE_S = 0.05
KERNEL_TICK_S = 0.01


@dataclass(kw_only=True)
class Bench:
    """The machine, and the length of measurements. `directory` is on the disk of the durability measurement."""

    native: Native | None
    directory: Path
    cores: Cores
    quick: bool
    _stores: int = field(default=0, repr=False)
    _patience_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._patience_s = 20.0 if self.quick else 60.0

    @property
    def pairs(self) -> int:
        """Adjacent (ceiling, broker) pairs of one case."""
        return 5 if self.quick else 9

    @property
    def sample_s(self) -> float:
        """Length of one measurement, seconds."""
        return 0.2 if self.quick else 0.4

    def pick(self, quick: int, full: int) -> int:
        return quick if self.quick else full

    def fresh_directory(self, name: str) -> Path:
        """An empty directory on the measured disk."""
        self._stores += 1
        path = self.directory / f"{name}.{self._stores}"
        path.mkdir()
        return path

    def wait_quiet(self) -> None:
        """Wait until other processes leave the machine idle. All such waits of a run have one common time limit."""
        while self._patience_s > 0:
            start, busy = time.monotonic(), busy_seconds()
            time.sleep(QUIET_PROBE_S)
            spent = time.monotonic() - start
            if busy_seconds() - busy <= max(spent * DISTURBED_CORES, KERNEL_TICK_S):
                return
            self._patience_s -= spent

    @contextlib.contextmanager
    def broker(self, backend: str, *, pinned: bool = False, settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
        """A broker on an empty store of that backend; the store is removed afterwards."""
        directory = self.fresh_directory("store")
        store = {NULL: "null:", MEMORY: "memory:"}.get(backend, str(directory))
        chosen = {**({"wal.fsync": backend} if backend in (LOCAL_NEVER, LOCAL_ALWAYS) else {}), **(settings or {})}
        try:
            core = self.cores.server if pinned else None
            with brokers.broker(self.directory, store, settings=chosen, core=core) as running:
                yield running
        finally:
            remove_tree(directory)


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement. `run` yields rows; BenchError and OSError end it and become a row."""

    group: str
    name: str
    run: Callable[[Bench], Iterable[Row]]
    needs_compiler: bool = False
    goal: float | None = None
    side: Goal = Goal.AT_LEAST
    unit: str = "%"

    def matches(self, pattern: str) -> bool:
        """Whether `--only PATTERN` selects it: a glob or a part of `group/name`."""
        full = f"{self.group}/{self.name}"
        return pattern in full or fnmatch(full, pattern)

    def rows(self, bench: Bench) -> list[Row]:
        """Its rows, or a row with the reason why it failed."""
        if self.needs_compiler and bench.native is None:
            return [self._unmeasured(NO_COMPILER)]
        out: list[Row] = []
        try:
            out.extend(self.run(bench))
        except (BenchError, OSError) as error:
            out.append(self._unmeasured(str(error)))
        return out

    def _unmeasured(self, why: str) -> Row:
        return Row(group=self.group, case=self.name, goal=self.goal, side=self.side, unit=self.unit, note=why)


def remove_tree(path: Path) -> None:
    """Removes a directory and its contents."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of the load client, its cost for the server, and the cores that all other processes took meanwhile."""

    load: Load
    server_cpu_s: float
    others_cores: float


def sample(
    bench: Bench,
    port: int,
    pid: int,
    shape: Shape,
    *,
    bytes_max: int | None = None,
    pinned: bool = True,
    seconds: float | None = None,
) -> Sample:
    """One measurement of a running server.

    Args:
        bytes_max: stop early after this many bytes of requests, so that a broker that keeps all data in memory stays small.
    """
    assert bench.native is not None
    warmup = max(shape.window * shape.connections * 2, 16)
    requests_max = None if bytes_max is None else max(bytes_max // shape.frame_bytes, 64)
    before, busy, start = cpu_seconds(pid), busy_seconds(), time.monotonic()
    load = bench.native.loadgen(
        port, shape, seconds=bench.sample_s if seconds is None else seconds, requests_max=requests_max, warmup=warmup, pinned=pinned
    )
    spent = cpu_seconds(pid) - before
    others = busy_seconds() - busy - spent - load.client_cpu_s
    return Sample(load, spent, max(others / (time.monotonic() - start), 0.0))


T = TypeVar("T")


def quietly(measure: Callable[[], T]) -> tuple[T, bool]:
    """A measurement of many seconds, and whether other processes disturbed it.

    It is repeated while they do, LONG_ATTEMPTS_MAX times at most. The quietest attempt counts, whatever its result.
    """
    taken: list[tuple[float, T]] = []
    while len(taken) < LONG_ATTEMPTS_MAX and (not taken or taken[-1][0] > LONG_DISTURBED_CORES):
        began, others = time.monotonic(), others_seconds(os.getpid())
        answer = measure()
        taken.append(((others_seconds(os.getpid()) - others) / (time.monotonic() - began), answer))
    others, answer = min(taken, key=lambda one: one[0])
    return answer, others > LONG_DISTURBED_CORES


class Pairs(Generic[T]):
    """Adjacent measurements of a ceiling and of the broker.

    While other processes use the machine, more pairs than wanted are measured, and the quietest are kept: the choice depends on
    the other processes' load, never on the result.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._taken: list[tuple[T, Sample, float]] = []

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def enough(self) -> bool:
        """True with the wanted number of quiet pairs, or ATTEMPTS_MAX times that number of any pairs."""
        quiet = sum(others <= DISTURBED_CORES for _, _, others in self._taken)
        return quiet >= self._wanted or len(self._taken) >= self._wanted * ATTEMPTS_MAX

    def add(self, ceiling: T, ours: Sample) -> None:
        """One pair, in the order of the run."""
        others = max(ours.others_cores, ceiling.others_cores if isinstance(ceiling, Sample) else 0.0)
        self._taken.append((ceiling, ours, others))

    def quietest(self) -> tuple[list[Sample], list[T]]:
        """(broker's, ceiling's) samples, the wanted number of pairs, in the order of the run."""
        order = sorted(range(len(self._taken)), key=lambda i: self._taken[i][2])[: self._wanted]
        kept = [self._taken[i] for i in sorted(order)]
        return [ours for _, ours, _ in kept], [ceiling for ceiling, _, _ in kept]


def others_cores(samples: list[Sample]) -> float:
    """Cores that other processes took in the typical sample."""
    return statistics.median(sample.others_cores for sample in samples)


def cpu_note(broker: list[Sample], ceiling: list[Sample], *, received: bool) -> str:
    """Server CPU of both sides, per gigabyte and per request."""
    parts = []
    for name, samples in (("broker", broker), ("ceiling", ceiling)):
        cpu = sum(s.server_cpu_s for s in samples)
        requests = sum(s.load.answered for s in samples)
        moved = sum((s.load.bytes_in if received else s.load.bytes_out) * s.load.answered / s.load.requests for s in samples)
        parts.append(f"{name} {cpu / moved * 1e9:.2f} s/GB {cpu / requests * 1e6:.1f} µs/req")
    others = others_cores(broker + ceiling)
    return "CPU " + ", ".join(parts) + (f"; others took {others:.1f} cores" if others > DISTURBED_CORES else "")
