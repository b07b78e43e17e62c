"""Python clients as separate processes, and their cost for the broker."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.bench.brokers import ROOT
from tests.bench.native import BenchError, Cores, cpu_seconds

TIMEOUT_S = 180.0
LIVE_RATE_PER_S = 1000
LIVE_BYTES = 1000


def client(module: str, *arguments: object, core: int | None = None) -> dict[str, Any]:
    """Runs `python -m tests.bench.<module>`, on one core if requested. Raises BenchError with its reason."""
    command = [*Cores.prefix(core), sys.executable, "-m", f"tests.bench.{module}", *map(str, arguments)]
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


class Live:
    """A producer of 1,000 records/s of 1 KB, linger 0, in a process of its own. Made by `live`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self) -> None:
        """Start the measurement."""
        assert self._process.stdin is not None
        self._process.stdin.write("begin\n")
        self._process.stdin.flush()

    def p99_ms(self) -> float:
        """As `end`, the p99 alone."""
        return self.end()["p99_ms"]

    def end(self) -> dict[str, float]:
        """End the producer. Returns `p50_ms`, `p99_ms` and others from produce() to the ack since `begin`. Raises BenchError."""
        try:
            out, errors = self._process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise BenchError("the live producer did not end") from error
        if self._process.returncode:
            raise BenchError(f"the live producer failed. message=`{errors.strip()[-300:]}`")
        answer: dict[str, float] = json.loads(out)
        return answer


@contextlib.contextmanager
def live(port: int, topic: str, core: int | None) -> Iterator[Live]:
    """A live producer to partition 0, on one core. It is killed at the end of the block."""
    command = [*Cores.prefix(core), sys.executable, "-m", "tests.bench.rdkafka", "live", str(port), topic, str(LIVE_RATE_PER_S)]
    process = subprocess.Popen(
        [*command, "0", str(LIVE_BYTES)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    with process:
        try:
            yield Live(process)
        finally:
            process.kill()
