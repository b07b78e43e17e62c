"""The command line in processes that are forked from one that has its modules, instead of started: `run`.

Starting Python and importing the modules of a command takes most of a second of a processor, and the command itself a few
milliseconds. A forked process still has streams, an environment and an exit code of its own.
What a fork does not show is how Python begins and ends: the tests of `test_cli.py` with signals, terminals and closed streams, and
`test_process.py`, start processes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from functools import cache
from typing import NoReturn

import typer.main

from tests.support.broker_process import ROOT

REQUEST_BYTES_MAX = 1 << 20
"""Size of a request: a command's arguments and its environment."""
READY = b"ready"
CLIENTS = ("headgate.broker.client.consumer", "headgate.broker.client.producer")


def run(
    arguments: Sequence[str], environment: Mapping[str, str], *, stdin: bytes = b"", timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run ``headgate ARGUMENTS`` and wait for its end. Output is decoded as Python decodes arguments. Raises TimeoutError after the
    process was killed.

    Args:
        environment: all variables of the process.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                request = json.dumps([list(arguments), dict(environment)]).encode()
                socket.send_fds(_server(), [request], [stream.fileno() for stream in (given, out, err, theirs)])
            ours.settimeout(timeout_s)
            pid = b""
            try:
                pid = ours.recv(100, socket.MSG_WAITALL)
                status = ours.recv(100, socket.MSG_WAITALL)
            except TimeoutError:
                if pid:
                    os.kill(int(pid), signal.SIGKILL)
                raise
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(int(status))
        return subprocess.CompletedProcess(["headgate", *arguments], code, os.fsdecode(out.read()), os.fsdecode(err.read()))


@cache
def _server() -> socket.socket:
    """The connection to the process that forks, which ends with this one. Returns when that process has imported the commands."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.commands", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT, env=os.environ | {"GRPC_VERBOSITY": "NONE"},
        )  # fmt: skip

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    assert ours.recv(len(READY)) == READY, "the commands cannot be imported"
    return ours


def _serve(requests: socket.socket) -> int:
    """Fork a process for each request, until the tests end. Returns 0."""
    from headgate.broker.cli.main import main

    _import_commands()
    requests.send(READY)
    gc.freeze()  # otherwise a collection in a forked process copies all of this one's memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no forked process is waited for here
    while True:
        data, streams, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
        if not data:
            return 0
        arguments, environment = json.loads(data)
        if os.fork() == 0:
            requests.close()
            if _watched(socket.socket(fileno=streams[3])):
                _end(0)
            for number, stream in enumerate(streams[:3]):
                os.dup2(stream, number)
                os.close(stream)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["headgate", *arguments]
            _end(main())
        for stream in streams:
            os.close(stream)


def _watched(asking: socket.socket) -> bool:
    """Fork. Returns False in the new process; in this one True at its end, after the process that asked was told."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        asking.close()
        return False
    asking.sendall(b"%100d" % pid)
    asking.sendall(b"%100d" % os.waitpid(pid, 0)[1])
    return True


def _end(code: int) -> NoReturn:
    """End a forked process. Python would empty its modules first, which takes half a second of a processor."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv("/bin/sh", ["sh", "-c", f"exit {code}"])


def _import_commands() -> None:
    """Import what the commands import when they run, and make the tree of commands once for all forked processes."""
    package = importlib.import_module("headgate.broker.cli")
    for name in (*CLIENTS, *(f"headgate.broker.cli.{module.name}" for module in pkgutil.iter_modules(package.__path__))):
        importlib.import_module(name)
    from headgate.broker.cli import app

    with redirect_stderr(io.StringIO()):
        app.run(["topic", "list", "--cluster", "none"])  # Typer imports more at its first command
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(app.app)


if __name__ == "__main__":
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1]))))
