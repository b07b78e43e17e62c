"""The processes of the demo: brokers, Dagster, producer, consumers. Each in a session of its own, all ended with the demo."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from broker.runtime.errors import FatalError, Reason
from broker.runtime.modules import found_by

STOP_S = 20.0


def free_port() -> int:
    """A free port below the range from which the kernel takes ports for clients: it must stay free until its server is up."""
    for port in random.sample(range(10_000, 30_000), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise FatalError(Reason.UNSUPPORTED, "no port is free")


class Processes:
    """Starts processes, and ends them all, the last one first. Their output is kept in files. Enter it on the main thread.

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
            # A shell has started us in the background. Dagster would inherit that, and it is SIGINT that ends it. (Not by a
            # `preexec_fn`: Python would have to fork for it, and a fork beside gRPC's threads crashes now and then.)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Who asks again (`timeout` after make, another Ctrl-C) must not end what ends them; STOP_S bounds the wait.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for name, _, _ in reversed(list(self.running)):
                self.stop(name)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def start(self, name: str, module: str, *arguments: str, talk: bool = False) -> subprocess.Popen[str]:
        """Start a Python module.

        Args:
            talk: its standard input and output are pipes; otherwise its output is in its file.
        """
        log = self.log(name).open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talk else log,
            stderr=log,
            env=self._environment,
            cwd=self._directory,
            text=True,
            start_new_session=True,
        )
        self.running.append((name, process, log))
        return process

    def give_way(self, name: str, nice: int) -> None:
        """From now on a process, and what it started and will start, gives way to others. On Linux."""
        leader = next(process.pid for known, process, _ in self.running if known == name)
        for thread in Path("/proc").glob("[0-9]*/task/[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(thread.name)) == leader:
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
        with contextlib.suppress(OSError):
            # Where the kernel shares out time by session (sched(7), autogroup), niceness counts within one; a session has its own.
            Path(f"/proc/{leader}/autogroup").write_text(str(nice))

    def log(self, name: str) -> Path:
        """Where a process's output is."""
        return self._directory / f"{name}.log"

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of its output."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        return ""

    def check(self) -> None:
        """Raise FatalError where a process ended that should not have."""
        for name, process, _ in self.running:
            if process.poll() not in (None, 0):
                raise FatalError(Reason.INTERNAL, f"{name} ended by itself. exit_code=`{process.poll()}`\n{self.tail(name)}")

    def stop(self, name: str) -> int:
        """End a process and those that it started. Returns its exit code."""
        found = next((one for one in self.running if one[0] == name), None)
        if found is None:
            return 0
        self.running.remove(found)
        _, process, log = found
        for number, patience_s in ((signal.SIGINT if name == "dagster" else signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            if process.poll() is not None:
                break
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
        _kill_session(process.pid)
        for pipe in (process.stdin, process.stdout, log):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return process.wait()


def wait_for(what: str, ready: Callable[[], bool], until_s: float, check: Callable[[], None]) -> None:
    """Until a callable says yes. Raises FatalError when that takes too long."""
    deadline = time.monotonic() + until_s
    while not ready():
        check()
        if time.monotonic() > deadline:
            raise FatalError(Reason.TIMED_OUT, f"{what} did not come in time. waited_s=`{until_s:g}`")
        time.sleep(0.2)


def _kill_session(leader: int) -> None:
    """End whatever a process left behind in its session (a Spark whose driver was killed, code servers)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
