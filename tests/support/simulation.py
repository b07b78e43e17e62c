"""Runs of the simulated cluster, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys


def simulate(*arguments: str, timeout_s: float = 600.0) -> tuple[int, str]:
    """(exit status, output)."""
    done = subprocess.run(
        [sys.executable, "-m", "headgate.broker.testing.simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout
