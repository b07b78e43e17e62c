"""Floods by Spark in the middle of which a fault occurs. Afterwards a foreign client reads each one back, whole and once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from headgate.broker.client import GateAdmin
from headgate.broker.runtime.errors import HeadgateError
from tests.support.broker_process import HOST, ROOT
from tests.support.clients.all import CLIENTS
from tests.support.cluster import Brokers
from tests.support.flood_sources import events, expected, write

ROWS, PARTITIONS = 20_000, 3
SPARK_S = 600.0
"""Ends a hang. On a starved machine Spark takes minutes to start."""
ATTEMPTS_MAX = 4
"""Runs of one flood: faults may end the first one, but nothing disturbs the others."""


class Floods:
    """`headgate flood run`, once for each fault, into a topic of its own.

    Args:
        directory: place of the sources.
    """

    def __init__(self, brokers: Brokers, directory: Path, draw: random.Random) -> None:
        self._brokers, self._directory, self._draw = brokers, directory, draw
        self._number = 0
        self._process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start a flood, and wait until its gate is open: from then on Spark shuffles, writes and commits."""
        self._number += 1
        self._topic = f"flood-{self._number}"
        self._rows = events(ROWS, seed=self._draw.randrange(1 << 30))
        self._source = write(self._directory / self._topic, self._rows)
        self._process = process = self._start()
        deadline = time.monotonic() + SPARK_S
        while not asyncio.run(self._has_gate()):
            assert process.poll() is None, f"a flood ended before its gate was open\n{process.communicate()[0][-3000:]}"
            assert time.monotonic() < deadline, f"a flood opens no gate. topic=`{self._topic}`"
            time.sleep(0.1)
        time.sleep(self._draw.uniform(0, 3))

    def kill(self) -> str:
        """SIGKILL Spark: its Java process, or that and its driver."""
        assert self._process is not None
        if self._draw.random() < 0.5:
            os.killpg(self._process.pid, signal.SIGKILL)
            return "Spark and its driver"
        found = subprocess.run(
            ["pgrep", "-g", str(self._process.pid), "-f", "SparkSubmit"], capture_output=True, text=True, check=False
        )
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        return "Spark's Java process"

    def end(self) -> str:
        """Run the flood until it is whole, and read it back. Returns a description for the round's line."""
        assert self._process is not None
        runs = 1
        while (output := self._finish(self._process)) is not None:
            assert runs < ATTEMPTS_MAX, f"a flood does not succeed. topic=`{self._topic}` runs=`{runs}`\n{output[-3000:]}"
            self._process = self._start()
            runs += 1
        self._process = None
        found = CLIENTS["confluent"].consume(self._brokers.bootstrap, self._topic, range(PARTITIONS))
        read = {number: [(row.timestamp_ms, row.key, row.value) for row in rows] for number, rows in found.items()}
        wanted = expected(self._rows, PARTITIONS)
        counts = {number: (len(read[number]), len(rows)) for number, rows in wanted.items()}
        assert read == wanted, f"a flood is not as its source. topic=`{self._topic}` (read, wanted)=`{counts}`"
        return f"its flood is whole after {runs} runs"

    def stop(self) -> None:
        """End a flood that still runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "headgate.broker.cli.main", "flood", "run", "--topic", self._topic]
        command += ["--source", str(self._source), "--key", "user", "--value", "payload", "--event-time", "at"]
        command += ["--partitions", str(PARTITIONS), "--file-size", "64KiB", "--verify"]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "HEADGATE_CLUSTER": self._addresses()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _finish(self, process: subprocess.Popen[str]) -> str | None:
        """Wait for the end of a run. Returns the output of a run that failed, and None for a success."""
        output, _ = process.communicate(timeout=SPARK_S)
        return output if process.returncode else None

    def _addresses(self) -> str:
        return ",".join(f"{HOST}:{broker.grpc_port}" for broker in self._brokers.all)

    async def _has_gate(self) -> bool:
        with suppress(HeadgateError):
            async with GateAdmin(self._addresses()) as gates:
                return bool(await gates.list(self._topic))
        return False
