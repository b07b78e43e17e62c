"""Processes that are forked from one that has their modules, instead of started: `Forks`.

Starting Python and importing the modules of a broker or of a command takes a second of a processor, which a fork does not need. A
forked process still has streams, an environment, signals, an exit code and, if asked for, a session of its own.
A forked process has the command line of the one that forks.
What a fork does not show is how Python begins: the tests of `test_process.py` and `test_cli.py` with signals, supervisors,
terminals and closed streams start processes, and so do brokers with `BrokerProcess.forked` False.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX = 1 << 20
"""Size of a request: a program's arguments and its environment."""
READY = b"ready"
FIXED = {"tests.support.simulation": {"PYTHONHASHSEED": "0"}}
"""By program: variables that Python reads at its start, so that the process that forks must have them."""
_NUMBER_BYTES = 100
"""Length of a process id, and of a status, on the way from the process that forks."""


class Program(Protocol):
    """What a module with a program for `start` has."""

    def prepare(self) -> None:
        """Import what the program needs. Runs once, in the process that forks."""

    def main(self) -> int:
        """Run the program in a forked process, with `sys.argv` and `os.environ` of its own. Returns the exit code."""


class Forked:
    """A forked process, with the methods of `subprocess.Popen` that tests use. `pid`: its process id.

    Args:
        told: a socket that says the process id, and at the end the status.
    """

    def __init__(self, told: socket.socket, arguments: Sequence[str]) -> None:
        self.pid = int(told.recv(_NUMBER_BYTES, socket.MSG_WAITALL))
        self.returncode: int | None = None
        self._arguments = list(arguments)
        self._lock = threading.Lock()
        self._told = told.detach()
        os.set_blocking(self._told, False)

    def __del__(self) -> None:
        os.close(self._told)

    def poll(self) -> int | None:
        """The exit code, or None while it runs; minus the number of a signal that ended it."""
        with self._lock:
            if self.returncode is None:
                with suppress(BlockingIOError):
                    text = os.read(self._told, _NUMBER_BYTES)
                    assert text, "the process that forks has ended"
                    self.returncode = os.waitstatus_to_exitcode(int(text))
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Returns the exit code. Raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        told = select.poll()
        told.register(self._told, select.POLLIN)
        while (code := self.poll()) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
            # Another thread may take the status first, so this one looks now and then.
            told.poll(100 if left_s is None else min(100, 1000 * left_s))
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal; does nothing after its end."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start(
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
    *,
    own_session: bool = False,
) -> Forked:
    """Fork a process that runs a program. Returns when it has a process id.

    Args:
        program: name of a module like `Program`.
        environment: all variables of the process.
        streams: descriptors of its stdin, stdout and stderr.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        request = json.dumps([list(arguments), dict(environment), own_session]).encode()
        socket.send_fds(_server(program), [request], [*streams, theirs.fileno()])
    return Forked(ours, arguments)


_starting = threading.Lock()


def _server(program: str) -> socket.socket:
    """The connection to the process that forks, which ends with this one. Returns when that process has imported the program."""
    with _starting:
        return _started(program, os.getpid())


@cache
def _started(program: str, _owner: int) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks", program, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT,
            env=os.environ | {"GRPC_VERBOSITY": "NONE"} | FIXED.get(program, {}),
        )  # fmt: skip

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    assert ours.recv(len(READY)) == READY, f"the program cannot be imported. program=`{program}`"
    return ours


def _serve(program: Program, requests: socket.socket) -> int:
    """Fork a process for each request, until the tests end. Returns 0, and in a forked process its exit code."""
    program.prepare()
    requests.send(READY)
    gc.freeze()  # otherwise a collection in a forked process copies all of this one's memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no forked process is waited for here
    while True:
        data, streams, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
        if not data:
            return 0
        arguments, environment, own_session = json.loads(data)
        if os.fork() == 0:
            requests.close()
            _watch(streams)
            for number, stream in enumerate(streams[:3]):
                os.dup2(stream, number)
                os.close(stream)
            if own_session:
                os.setsid()
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["headgate", *arguments]
            return program.main()
        for stream in streams:
            os.close(stream)


def _watch(streams: Sequence[int]) -> None:
    """Fork. Returns in the new process; this one says its process id and its status to the last stream, and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    with socket.socket(fileno=streams[3]) as asking:
        if pid:
            for stream in streams[:3]:
                os.close(stream)
            with suppress(BrokenPipeError):  # the process that asked may end first
                asking.sendall(b"%*d" % (_NUMBER_BYTES, pid))
                asking.sendall(b"%*d" % (_NUMBER_BYTES, os.waitpid(pid, 0)[1]))
            os._exit(0)


if __name__ == "__main__":
    sys.exit(_serve(import_module(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))  # type: ignore[arg-type]
