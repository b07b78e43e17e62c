"""``headgate up``: a local cluster until Ctrl-C. Starts broker processes, restarts the ones that die, and ends them all.

Each broker is a child in a session of its own, so that Ctrl-C reaches only the supervisor, and holds the read end of a pipe whose
other end lives here: if the supervisor itself is killed, the pipe closes and the brokers end by themselves, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path

from broker.runtime.config import ENVIRONMENT_PREFIX, Settings, Value
from broker.runtime.errors import InvalidError, Reason
from broker.server.main import EXIT_FENCED, EXIT_SIGNAL, EXIT_USAGE, SUPERVISED

DEFAULTS: Mapping[str, Value] = {"log_level": "warning"}
"""A person looks at this terminal: only what is wrong is worth a line."""

BACKOFF_MS_MIN = 100
BACKOFF_MS_MAX = 10_000
STABLE_S = 10.0
"""A broker that served for this long starts with the shortest pause again."""
KILL_S = 5.0
"""A broker that outlives its own time limits by this is killed, which loses nothing that was acked."""
LINE_BYTES_MAX = 1 << 20

_PACKAGE_ROOT = Path(__file__).parents[2]


def up(settings: Settings, brokers: int = 1) -> int:
    """Run a local cluster until SIGINT or SIGTERM. Returns the exit code.

    Raises:
        InvalidError: more brokers than this version can run over one store.
    """
    if brokers != 1:
        raise InvalidError(
            Reason.UNSUPPORTED,
            f"one broker at a time may serve a store in this version: leave --brokers out, or give it 1. brokers=`{brokers}`",
        )
    return asyncio.run(Supervisor(settings).run())


class Child:
    """One broker process and what it said last. `line` is its ready line, None while it starts."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.line: str | None = None
        self.last_words = ""
        self.ready = asyncio.Event()
        """Set when `line` is there, or never will be."""
        self._pumps = (asyncio.create_task(self._pump_output()), asyncio.create_task(self._pump_errors()))

    @classmethod
    async def spawn(cls, settings: Settings) -> Child:
        """Start a broker with exactly these settings, whatever the environment says."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        paths = [str(_PACKAGE_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {SUPERVISED: "1", "PYTHONPATH": os.pathsep.join(paths)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "broker.cli.main", "broker", *settings.arguments(),
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True, limit=LINE_BYTES_MAX,
        )  # fmt: skip
        return cls(process)

    async def wait(self) -> int:
        """Until it has ended and all it said was passed on. Returns the exit code, negative for a signal."""
        code = await self.process.wait()
        await asyncio.wait(self._pumps, timeout=1)
        self.ready.set()
        return code

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended already."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def _pump_output(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if self.line is None:
                self.line = line.decode(errors="replace").strip()
                self.ready.set()

    async def _pump_errors(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.last_words = line.decode(errors="replace").strip()
            sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()


class Supervisor:
    """Keeps one broker running."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._child: Child | None = None
        self._stopping = asyncio.Event()
        self._announced = False

    async def run(self) -> int:
        """Until a signal: 0. Otherwise the exit code of a broker for which starting again cannot help."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        backoff_ms = BACKOFF_MS_MIN
        while not self._stopping.is_set():
            started = loop.time()
            child = self._child = await Child.spawn(self._settings)
            if self._stopping.is_set():
                self._on_signal()  # it came while the child was being made
            watching = asyncio.create_task(self._announce(child))
            code = await child.wait()
            await watching
            if self._stopping.is_set():
                return code if 0 < code < EXIT_SIGNAL else 0
            if not self._announced or code in (EXIT_USAGE, EXIT_FENCED):
                return code if code > 0 else 1
            if loop.time() - started > STABLE_S:
                backoff_ms = BACKOFF_MS_MIN
            reason = _exit_reason(code, child)
            _say(f"broker {self._settings.broker_id} ended: {reason}; it starts again in {backoff_ms / 1000:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff_ms / 1000)
            backoff_ms = min(backoff_ms * 2, BACKOFF_MS_MAX)
        return 0

    async def _announce(self, child: Child) -> None:
        await child.ready.wait()
        if child.line is None:
            return
        if self._announced:
            _say(f"broker {self._settings.broker_id} serves again")
            return
        self._announced = True
        where = child.line.partition(" serves ")[2]
        sys.stdout.write(f"headgate serves {where} (Ctrl-C ends it)\n")
        sys.stdout.flush()

    def _on_signal(self) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.signal(signal.SIGTERM)
            # Its own limits apply to the drain and to each part that is closed.
            patience_s = 2 * self._settings.shutdown_timeout_ms / 1000 + KILL_S
            asyncio.get_running_loop().call_later(patience_s, self._child.signal, signal.SIGKILL)


def _exit_reason(code: int, child: Child) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return child.last_words or f"exit code {code}"


def _say(text: str) -> None:
    sys.stderr.write(f"headgate up: {text}\n")
    sys.stderr.flush()
