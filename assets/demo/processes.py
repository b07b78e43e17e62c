"""The processes of the demo: brokers, Dagster, producer, consumers. Each runs in a process group of its own, and all end with the
demo."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from headgate.broker.runtime.errors import FatalError, Reason, RetryError
from headgate.broker.runtime.modules import found_by

STOP_S = 20.0
LOOK_S = 0.5
"""Time in seconds over which the processors are watched before the demo starts anything."""
IDLE_MIN = 0.5
"""Part of the processors' time that is idle on a machine that is not busy."""


def free_port() -> int:
    """A free port below the range that the kernel assigns to clients: it must stay free until its server listens."""
    for port in random.sample(range(10_000, 30_000), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise FatalError(Reason.UNSUPPORTED, "no port is free")


class Processes:
    """Starts processes and ends them all, the last one first. Keeps their output in files. Enter it on the main thread.

    Args:
        directory: for the files.
        environment: added to that of this process.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = found_by({**os.environ, **environment})
        self.running: list[tuple[str, subprocess.Popen[str], IO[str]]] = []

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell that starts the demo in the background makes it ignore SIGINT. Dagster would inherit that, and SIGINT is the
            # signal that ends it. (Not by a `preexec_fn`: Python would have to fork for it, and a fork beside gRPC's threads
            # sometimes crashes.)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A second signal (`timeout` after make, another Ctrl-C) must not interrupt the ending of processes; STOP_S bounds that.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for name, _, _ in reversed(list(self.running)):
                self.stop(name)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def start(self, name: str, module: str, *arguments: str, talk: bool = False, gives_way: bool = False) -> subprocess.Popen[str]:
        """Start a Python module.

        Args:
            talk: its standard input and output are pipes; otherwise its output is in its file.
            gives_way: `give_way` may follow.
        """
        return self.launch(name, ("-m", module, *arguments), talk=talk, gives_way=gives_way)

    def launch(self, name: str, arguments: Sequence[str], *, talk: bool = False, gives_way: bool = False) -> subprocess.Popen[str]:
        """Start Python with these arguments. The rest is as for `start`."""
        log = self.log(name).open("w")
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talk else log,
            stderr=log,
            env=self._environment,
            cwd=self._directory,
            text=True,
            # Where the kernel shares time by session (sched(7), autogroup), a session with many busy threads may keep another one
            # off the processors for a second. So only those that give way have sessions of their own.
            **({"start_new_session": True} if gives_way else {"process_group": 0}),
        )
        self.running.append((name, process, log))
        return process

    def give_way(self, name: str, nice: int) -> None:
        """Lower the priority of a process that was started to give way, and of its present and future children. On Linux."""
        leader = next(process.pid for known, process, _ in self.running if known == name)
        for thread in Path("/proc").glob("[0-9]*/task/[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(thread.name)) == leader:
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
        with contextlib.suppress(OSError):
            # Niceness counts inside one session only; a session has its own.
            Path(f"/proc/{leader}/autogroup").write_text(str(nice))

    def log(self, name: str) -> Path:
        """The file of a process's output."""
        return self._directory / f"{name}.log"

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a process's output."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        return ""

    def check(self) -> None:
        """Raise FatalError when a process ended unexpectedly."""
        for name, process, _ in self.running:
            if process.poll() not in (None, 0):
                raise FatalError(Reason.INTERNAL, f"{name} ended by itself. exit_code=`{process.poll()}`\n{self.tail(name)}")

    def stop(self, name: str, patience_s: float = STOP_S) -> int:
        """End a process and its children; kill it when it has not ended within the patience. Returns its exit code."""
        found = next((process for process in self.running if process[0] == name), None)
        if found is None:
            return 0
        self.running.remove(found)
        _, process, log = found
        for number, wait_s in ((signal.SIGINT if name == "dagster" else signal.SIGTERM, patience_s), (signal.SIGKILL, STOP_S)):
            if process.poll() is not None:
                break
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
        _kill_group(process.pid)
        for pipe in (process.stdin, process.stdout, log):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return process.wait()


def wait_for(what: str, ready: Callable[[], bool], until_s: float, check: Callable[[], None]) -> None:
    """Wait until a callable returns True; its RetryError means "not yet". Raises FatalError after the time limit."""
    deadline = time.monotonic() + until_s
    while True:
        why = ""
        try:
            if ready():
                return
        except RetryError as error:
            why = f" last_answer=`{error.message}`"
        check()
        if time.monotonic() > deadline:
            raise FatalError(Reason.TIMED_OUT, f"{what} did not come in time. waited_s=`{until_s:g}`{why}")
        time.sleep(0.2)


def machine_is_busy() -> bool:
    """Whether other processes take the processors: they are idle for less than half of a moment in which this process sleeps."""
    before = _idle_and_all()
    if before is None:  # not on Linux
        return os.getloadavg()[0] > (os.cpu_count() or 1)
    time.sleep(LOOK_S)
    after = _idle_and_all() or before
    return after[0] - before[0] < IDLE_MIN * (after[1] - before[1])


def _idle_and_all() -> tuple[int, int] | None:
    """Ticks in which the processors were idle, and all their ticks, since the start of the machine (proc(5), /proc/stat)."""
    try:
        ticks = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return None
    return ticks[3] + ticks[4], sum(ticks)


def _kill_group(leader: int) -> None:
    """End the processes that are left in a process's group (a Spark whose driver was killed, code servers)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
