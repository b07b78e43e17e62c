"""The C programs of the benchmark: compiled if the machine has a compiler, and run as separate processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("ceiling", "loadgen", "rawdisk")
NO_COMPILER = "no C compiler: not measured"
_RUN_TIMEOUT_S = 120.0


class BenchError(Exception):
    """A part of the benchmark did not run. The message names it; the rest of the benchmark continues."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of the server and the client; None on a machine with a single core, where neither is pinned."""

    server: int | None
    client: int | None

    @classmethod
    def of_machine(cls) -> Cores:
        usable = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
        return cls(usable[0], usable[1]) if len(usable) > 1 else cls(None, None)

    @staticmethod
    def prefix(core: int | None) -> list[str]:
        """The prefix of a command that pins it to `core`."""
        return ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []


@dataclass(frozen=True, slots=True)
class Load:
    """The measurements of loadgen. `requests` counts those after the warm-up, all answered and without error."""

    requests: int
    answered: int
    seconds: float
    requests_per_s: float
    bytes_out: int
    bytes_in: int
    p50_us: float
    p99_us: float
    p999_us: float
    response_min: int
    response_max: int
    client_cpu_s: float

    @property
    def out_bytes_per_s(self) -> float:
        return self.bytes_out / self.seconds

    @property
    def in_bytes_per_s(self) -> float:
        return self.bytes_in / self.seconds


@dataclass(frozen=True, slots=True)
class Disk:
    """The measurements of rawdisk: a stream of writes, each durable on return. `direct`: O_DIRECT was available."""

    direct: int
    writes: int
    seconds: float
    bytes_per_s: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One traffic shape: `frames` are whole requests of one length, sent round robin (or one per connection)."""

    frames: Sequence[bytes]
    window: int
    connections: int = 1
    error_at: int = 0
    per_connection: bool = False
    burst: bool = False

    @property
    def frame_bytes(self) -> int:
        return len(self.frames[0])


def free_port() -> int:
    """A TCP port of the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Native:
    """The compiled programs in `directory`. Make one with `build`."""

    def __init__(self, directory: Path, cores: Cores) -> None:
        self._directory = directory
        self._cores = cores
        self._files = 0

    @classmethod
    def build(cls, directory: Path, cores: Cores) -> Native | None:
        """Compiles into `directory`. None without a compiler; BenchError if it refuses our sources."""
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None or sys.platform != "linux":
            return None
        sources = Path(__file__).parent
        for name in PROGRAMS:
            command = [compiler, "-O2", "-pthread", "-w", "-o", str(directory / name), str(sources / f"{name}.c")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BenchError(f"the C compiler failed. program=`{name}` message=`{done.stderr.strip()[-400:]}`")
        return cls(directory, cores)

    def write(self, data: bytes) -> Path:
        """Write a file with these bytes for a program to read."""
        self._files += 1
        path = self._directory / f"data.{self._files}"
        path.write_bytes(data)
        return path

    def loadgen(
        self, port: int, shape: Shape, *, seconds: float, requests_max: int | None = None, warmup: int = 0, pinned: bool = True
    ) -> Load:
        """Runs the client once. Raises BenchError with its reason if an answer was wrong or the server ended."""
        if len({len(frame) for frame in shape.frames}) != 1:
            raise BenchError("frames of one shape must have one length")
        frames = self.write(b"".join(shape.frames))
        command = [
            *self._pin(self._cores.client, pinned),
            str(self._directory / "loadgen"),
            str(port),
            str(frames),
            str(shape.frame_bytes),
        ]
        command += ["--connections", str(shape.connections), "--window", str(shape.window), "--seconds", f"{seconds:.3f}"]
        command += ["--warmup", str(warmup), "--error-at", str(shape.error_at)]
        if requests_max is not None:
            command += ["--requests", str(requests_max)]
        if shape.per_connection:
            command.append("--per-connection")
        if shape.burst:
            command.append("--burst")
        try:
            return Load(**json.loads(self._run(command, "loadgen")))
        finally:
            frames.unlink()

    def rawdisk(
        self,
        directory: Path,
        block_bytes: int,
        *,
        seconds: float,
        file_bytes: int = 256 << 20,
        pause_us: int = 0,
        filled: bool = True,
    ) -> Disk:
        """Streams durable writes of `block_bytes` (a multiple of 4096) into `directory`, with a pause before each.

        Args:
            filled: rewrite a file of zeros; else write once into space that was only allocated, until `file_bytes` are written.
        """
        arguments = [str(directory), str(block_bytes), str(file_bytes), f"{seconds:.3f}", str(pause_us), str(int(filled))]
        return Disk(**json.loads(self._run([str(self._directory / "rawdisk"), *arguments], "rawdisk")))

    @contextlib.contextmanager
    def ceiling(
        self,
        *,
        produce: bytes | None = None,
        fetch: bytes | None = None,
        fetch_copies: int = 1,
        rest_us: int = 0,
        pinned: bool = True,
    ) -> Iterator[Peer]:
        """Runs the bare peer with these canned responses.

        Args:
            rest_us: time for which it leaves a connection alone after it sent small answers, so that requests gather.
        """
        port = free_port()
        produce_path, fetch_path = (str(self.write(data)) if data is not None else "-" for data in (produce, fetch))
        command = [*self._pin(self._cores.server, pinned), str(self._directory / "ceiling"), str(port)]
        command += [produce_path, fetch_path, str(fetch_copies), str(rest_us)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise BenchError("the ceiling did not start")
            yield Peer(port, process.pid)
        finally:
            process.kill()
            process.communicate()

    @staticmethod
    def _pin(core: int | None, pinned: bool) -> list[str]:
        return Cores.prefix(core) if pinned else []

    @staticmethod
    def _run(command: list[str], name: str) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{name} did not end. seconds=`{_RUN_TIMEOUT_S:.0f}`") from error
        if done.returncode:
            raise BenchError(f"{name} failed. message=`{done.stderr.strip()[-300:]}`")
        return done.stdout


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server: its address and its process."""

    port: int
    pid: int


CPUCLOCK_SCHED = 2
"""The clock type bits with which Linux builds the id of a process's clock."""
KERNEL_PID = 2
"""The parent of the kernel's threads."""


def cpu_seconds(pid: int) -> float:
    """User and system time so far of a process and of its running descendants, by clocks of clock_getcpuclockid(3)."""
    began: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may have ended since it was listed; its children belong to another thread then.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            began += (task / "children").read_text().split()
    return sum(time.clock_gettime(~process << 3 | CPUCLOCK_SCHED) for process in (pid, *map(int, began)))


def busy_seconds() -> float:
    """CPU time that all processes of the machine, and its interrupts, have used so far."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def others_seconds(pid: int) -> float:
    """CPU time so far of all processes but `pid`, its descendants, and the kernel's threads. A process that has ended counts with
    its parent."""
    return _seconds(lambda line: not {pid, KERNEL_PID} & line)


def tree_seconds(pid: int) -> float:
    """CPU time so far of a process and all its descendants. A process that has ended counts with its parent."""
    return _seconds(lambda line: pid in line)


def _seconds(counts: Callable[[set[int]], bool]) -> float:
    """CPU time so far of the processes that count. `counts` gets the ids of a process and its ancestors."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = place.read_text().rsplit(")", 1)[1].split()
            one = int(place.parent.name)
            parents[one], ticks[one] = int(fields[1]), sum(map(int, fields[11:15]))
    return sum(ticks[one] for one in ticks if counts(_line(one, parents))) / os.sysconf("SC_CLK_TCK")


def _line(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and its ancestors."""
    line: set[int] = set()
    while pid in parents and pid not in line:
        line.add(pid)
        pid = parents[pid]
    return line


def resident_bytes(pid: int) -> int:
    """The resident set of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
