"""No request holds a broker's event loop for long: the checks of `turns_kafka.py`, `turns_grpc.py` and `turns_http.py`, in
a process of their own.

Runs: a second pytest over those files. Their broker lives in the test's process, whose heap, threads and log handlers would be
those of all tests before; beside them one turn took ten times as long. A failure prints the request, its turns and the limit.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.broker_process import ROOT

CHECKS_S = 900.0
"""Bound of all checks; the short form takes about a minute on a quiet machine."""


def run(checks: str, marks: str) -> None:
    """Run the checks with these marks. Raises AssertionError with pytest's output when one fails."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "300", "-m", marks, f"tests/e2e/{checks}.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=CHECKS_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("checks", ["turns_kafka", "turns_grpc", "turns_http"])
def test_the_costliest_requests(checks: str) -> None:
    run(checks, "not slow")


@pytest.mark.slow
@pytest.mark.timeout(4000)
def test_the_costliest_requests_of_each_version() -> None:
    run("turns_kafka", "slow")
