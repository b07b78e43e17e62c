"""Python clients as separate processes, and their cost for the broker."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.bench.brokers import ROOT
from tests.bench.native import BenchError, cpu_seconds

TIMEOUT_S = 60.0


def client(module: str, *arguments: object) -> dict[str, Any]:
    """Runs `python -m tests.bench.<module>`. Raises BenchError with its reason."""
    command = [sys.executable, "-m", f"tests.bench.{module}", *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the client did not end. module=`{module}`") from error
    if done.returncode:
        raise BenchError(f"the client failed. message=`{done.stderr.strip()[-300:]}`")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def costed(pid: int, module: str, *arguments: object) -> tuple[dict[str, Any], float]:
    """The client's answer, and the CPU-seconds that the process `pid` spent meanwhile."""
    before = cpu_seconds(pid)
    answer = client(module, *arguments)
    return answer, cpu_seconds(pid) - before
