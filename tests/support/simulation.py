"""Runs of the simulated cluster, in processes of their own: `simulate`. It is a program of `forks.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import import_module

from tests.support import forks


def simulate(*arguments: str, timeout_s: float = 600.0, forked: bool = True) -> tuple[int, str]:
    """(exit status, output). `forked`: without the start of Python, which costs as much as three seeds."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if not forked:
        command = [sys.executable, "-m", "headgate.broker.testing.simulate", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout
    with open(os.devnull, "rb") as nothing, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = forks.start(__name__, arguments, environment, [stream.fileno() for stream in (nothing, out, errors)])
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        for stream in (out, errors):
            stream.seek(0)
        assert not (said := errors.read()), said
        return code, out.read()


def prepare() -> None:
    """Import the simulation."""
    for name in ("simulate", "simulation.scenario", "simulation.canaries"):
        import_module(f"headgate.broker.testing.{name}")


def main() -> int:
    """Run seeds. Returns the exit code."""
    code: int = import_module("headgate.broker.testing.simulate").main()
    return code
