"""The command line in processes that are forked from one that has its modules (`forks.py`), instead of started: `run`.

Starting Python and importing the modules of a command takes most of a second of a processor, and the command itself a few
milliseconds.
"""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from tests.support import forks

OUTPUT_BYTES_MAX = 1 << 20
FLOODS = "tests.support.flood_commands"
"""The program for floods: the other commands do not need Arrow."""
CLIENTS = ("headgate.broker.client.consumer", "headgate.broker.client.producer")


def run(
    arguments: Sequence[str], environment: Mapping[str, str], *, stdin: bytes = b"", timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run ``headgate ARGUMENTS`` and wait for its end. Output is decoded as Python decodes arguments. Raises TimeoutExpired after
    the process was killed.

    Args:
        environment: all variables of the process.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        process = forks.start(_program(arguments), arguments, environment, [stream.fileno() for stream in (given, out, err)])
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["headgate", *arguments], code, os.fsdecode(out.read()), os.fsdecode(err.read()))


@dataclass(frozen=True, slots=True)
class Begun:
    """A command that runs."""

    process: forks.Forked
    _out: BinaryIO
    _err: BinaryIO

    def output(self) -> str:
        """What it printed to stdout so far."""
        return os.fsdecode(os.pread(self._out.fileno(), OUTPUT_BYTES_MAX, 0))

    def errors(self) -> str:
        """What it printed to stderr so far."""
        return os.fsdecode(os.pread(self._err.fileno(), OUTPUT_BYTES_MAX, 0))


@contextmanager
def begun(arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[Begun]:
    """Start ``headgate ARGUMENTS``, which takes signals as in a terminal. It is killed at the end."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = forks.start(_program(arguments), arguments, environment, [stream.fileno() for stream in (given, out, err)])
        try:
            yield Begun(process, out, err)
        finally:
            process.kill()


def _program(arguments: Sequence[str]) -> str:
    return FLOODS if arguments and arguments[0] == "flood" else __name__


def prepare() -> None:
    """Import what the commands import when they run, and make the tree of commands once for all forked processes."""
    package = importlib.import_module("headgate.broker.cli")
    for name in (*CLIENTS, *(f"headgate.broker.cli.{module.name}" for module in pkgutil.iter_modules(package.__path__))):
        importlib.import_module(name)
    from headgate.broker.cli import app

    with redirect_stderr(io.StringIO()):
        app.run(["topic", "list", "--cluster", "none"])  # Typer imports more at its first command
    for command in app.command().commands.values():
        getattr(command, "loaded", None)


def main() -> NoReturn:
    """Run a command and end the process at once. Python would empty its modules first, which takes half a second of a processor."""
    from headgate.broker.cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may ignore it, as in the background of a shell
    code = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv("/bin/sh", ["sh", "-c", f"exit {code}"])
