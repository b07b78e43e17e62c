"""A real broker process for tests: its own ports, its own store, ended by SIGKILL, its output kept and checked.

`BrokerProcess` keeps its ports and store over restarts, so that clients see one broker that comes and goes. Every output line of
every incarnation goes to one log file; `check_output` fails a test when a traceback is in it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support import forks, waiting, wire
from tests.support.children import children
from tests.support.ports import free_port
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
MAIN: tuple[str, ...] = ("headgate.broker.cli.main",)
FORKED = "tests.support.forked_broker"
FORKED_MODULES = (*MAIN, "tests.support.skewed_broker")
PATIENCE_S = waiting.PATIENCE_S

_BAD_OUTPUT = re.compile(
    r"Traceback \(most recent call last\)"
    r"|never retrieved"  # asyncio reports an exception that no code has read
    r"|was never awaited"
    r"|was destroyed but it is pending"
    r"|Fatal Python error"
    r"|Segmentation fault"
)


class BrokerDied(AssertionError):
    """The broker process ended by itself."""


class BrokerProcess:
    """One broker on 127.0.0.1 with free ports; start it, kill it, start it again.

    Args:
        store: directory or s3:// URL.
        log_path: file that gets the output of every incarnation.
        env: extra environment (settings as HEADGATE_*, S3 credentials).
        arguments: extra command-line arguments.
        checkout: directory of the code that runs.
    """

    forked = True
    """Whether the process is forked from one that has the modules of a broker (`forks.py`), which saves a second of a processor. If
    not, Python starts, as it does for another module and for another checkout."""

    def __init__(
        self,
        store: str | Path,
        log_path: Path,
        *,
        env: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        checkout: Path = ROOT,
    ) -> None:
        self.store = str(store)
        self.log_path = log_path
        self.kafka_port, self.grpc_port, self.http_port = free_port(), free_port(), free_port()
        self.env = dict(env or {})
        self.arguments = arguments
        self.checkout = checkout
        self.entry = MAIN
        """The module to run, and its first arguments."""
        self.starts = 0
        self.start_times_s: list[float] = []
        self._process: subprocess.Popen[bytes] | forks.Forked | None = None

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.kafka_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def command(self) -> list[str]:
        ports = ("--kafka-port", str(self.kafka_port), "--grpc-port", str(self.grpc_port), "--http-port", str(self.http_port))
        return [sys.executable, "-m", *self.entry, "broker", "--store", self.store, *ports, *self.arguments]

    def spawn(self) -> None:
        """Start the process and return at once; it does not serve yet."""
        assert not self.running, "the broker runs already"
        self.starts += 1
        environment = {**os.environ, "HEADGATE_STORE_CREATE": "true", **self.env}
        with self.log_path.open("ab") as log, open(os.devnull, "rb") as nothing:
            log.write(f"--- start {self.starts}\n".encode())
            log.flush()
            if self.forked and self.entry[0] in FORKED_MODULES and self.checkout == ROOT:
                streams = (nothing.fileno(), log.fileno(), log.fileno())
                self._process = forks.start(FORKED, self.command()[2:], environment, streams, own_session=True)
                return
            self._process = subprocess.Popen(
                self.command(),
                stdin=nothing,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.checkout,
                env=environment,
                start_new_session=True,
            )

    def wait_serving(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until ApiVersions and Metadata are answered. Raises BrokerDied with the log's end when the process ends first."""
        deadline = time.monotonic() + timeout_s
        while True:
            if not self.running:
                raise BrokerDied(f"the broker ended while starting. exit=`{self.exit_code()}`\n{self.log_tail()}")
            try:
                if wire.api_versions(HOST, self.kafka_port) and wire.metadata_answers(HOST, self.kafka_port):
                    return
            except (OSError, wire.ClosedByPeer):
                if time.monotonic() > deadline:
                    raise AssertionError(f"the broker does not serve. waited_s=`{timeout_s}`\n{self.log_tail()}") from None
                time.sleep(0.005)

    def start(self, timeout_s: float = PATIENCE_S) -> float:
        """Start and wait until all ports of the broker serve. Returns the seconds from spawn to the first answered Metadata."""
        began = time.monotonic()
        self.spawn()
        self.wait_serving(timeout_s)
        took_s = time.monotonic() - began
        self.wait_ready(timeout_s)
        self.start_times_s.append(took_s)
        return took_s

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until it says that it serves: all its ports are open then. Kafka's port opens before the others."""

        def ready() -> bool:
            self.check_alive()
            return " serves kafka=" in self.output().rpartition("--- start ")[2]

        until(ready, lambda: f"the broker is ready\n{self.log_tail()}", timeout_s, pause_s=0.01)

    def signal(self, number: int) -> None:
        assert self._process is not None, "the broker was not started"
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL and wait; does nothing if the process is not running."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    def terminate(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM and wait for the end. Returns the exit code."""
        assert self._process is not None, "the broker was not started"
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the broker ignores SIGTERM. waited_s=`{timeout_s}`\n{self.log_tail()}") from None

    def wait_exit(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until it ends by itself. Returns the exit code."""
        assert self._process is not None, "the broker was not started"
        return self._process.wait(timeout_s)

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def check_alive(self) -> None:
        """Raise BrokerDied when the process has ended by itself."""
        if not self.running:
            raise BrokerDied(f"the broker ended by itself. exit=`{self.exit_code()}`\n{self.log_tail()}")

    def resident_bytes(self) -> int:
        """Resident memory of the process now, from /proc."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise BrokerDied(f"no resident size: the process is gone. pid=`{self.pid}`")

    def children(self, module: str) -> list[int]:
        """The ids of the broker's child processes that run a module whose name ends like this."""
        return [pid for pid, command in children(self.pid).items() if any(word.endswith(module) for word in command.split())]

    def kill_children(self, module: str) -> None:
        """SIGKILL these child processes (`children`)."""
        for pid in self.children(module):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def open_files(self) -> int:
        """Number of file descriptors that the process holds now."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def output(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def check_output(self, *, allowed: str | None = None) -> None:
        """Fail if any incarnation printed a traceback or an unhandled asyncio error.

        Args:
            allowed: lines with this word are skipped.
        """
        lines = self.output().splitlines()
        found = _BAD_OUTPUT.search("\n".join(line for line in lines if allowed is None or allowed not in line))
        assert found is None, f"the broker's output shows a crash. found=`{found.group()}`\n{self.log_tail(80)}"


def broker_of_module(*, env: Mapping[str, str] | None = None, allowed: str | None = None) -> Any:
    """A fixture for `broker = broker_of_module()`: the module's tests share a broker, whose output is checked at the end.

    Args:
        env: as for `BrokerProcess`.
        allowed: as for `check_output`.
    """

    @pytest.fixture(scope="module")
    def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
        place = tmp_path_factory.mktemp("broker")
        with BrokerProcess(place / "store", place / "broker.log", env=env) as made:
            made.start()
            yield made
        made.check_output(allowed=allowed)

    return broker
