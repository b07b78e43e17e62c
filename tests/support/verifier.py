"""The verifier (`broker/verify/`) beside a test: a separate process, which works until the test ends it, and then judges."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.broker_process import PATIENCE_S, ROOT

_PROGRESS = re.compile(r"\+\d+ s: .* \d+ of \d+ partitions acknowledge(?: \(without ([-0-9, ]+)\))?,")


def silent(line: str) -> set[int] | None:
    """The partitions that have not acknowledged by a line of progress. None: it is no line of progress."""
    found = _PROGRESS.search(line)
    if found is None:
        return None
    spans = [part.partition("-") for part in (found[1] or "").split(", ") if part]
    return {number for first, _, last in spans for number in range(int(first), int(last or first) + 1)}


def still_silent(lines: Sequence[set[int]]) -> set[int]:
    """The partitions that have acknowledged in none of the lines of progress. -1 stands for all, before the first line."""
    return set.intersection(*lines) if lines else {-1}


class Verifier:
    """Runs the verifier. Use it as a context manager. `end` makes it judge; leaving the block without `end` kills it.

    Args:
        options: further options of the command.
    """

    def __init__(self, bootstrap: str, history: Path, *options: str) -> None:
        self._command = [sys.executable, "-m", "headgate.broker.verify", "--bootstrap", bootstrap, "--history", str(history)]
        self._command += ["--duration", "1d", "--interval", "500ms", "--json", *options]
        self._lines: list[str] = []
        self._silent: list[set[int]] = []
        """By line of progress: the partitions that did not acknowledge."""
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found = silent(line)
            with self._changed:
                self._lines.append(line.rstrip())
                if found is not None:
                    self._silent.append(found)
                self._changed.notify_all()

    def tail(self) -> str:
        return "\n".join(self._lines[-12:])

    def check(self) -> None:
        """Raise if the process has ended by itself."""
        assert self._process.poll() is None, f"the verifier ended by itself. exit=`{self._process.poll()}`\n{self.tail()}"

    def acknowledges(self, timeout_s: float = PATIENCE_S, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until each partition has acknowledged since this call, not all of them within one line of progress: where each
        call of the store takes seconds, a partition acknowledges less often than a line is printed."""
        with self._changed:
            # The next line may still cover a time before the call.
            since = len(self._silent) + 1
            deadline = time.monotonic() + timeout_s
            while left := still_silent(self._silent[since:]):
                self.check()
                meanwhile()
                assert time.monotonic() < deadline, (
                    f"not every partition acknowledges. waited_s=`{timeout_s}` silent=`{sorted(left)}`\n{self.tail()}"
                )
                self._changed.wait(0.2)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It writes and asks nothing meanwhile, and makes up for no more than half a second of records afterwards."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def end(self, timeout_s: float = 2 * PATIENCE_S) -> tuple[int, dict[str, Any]]:
        """Stop writing and let it judge. Returns the exit code and the page."""
        self._process.send_signal(signal.SIGINT)
        assert self._process.stdout is not None
        page = self._process.stdout.read()
        code = self._process.wait(timeout_s)
        assert page, f"the verifier printed no page. exit=`{code}`\n{self.tail()}"
        data: dict[str, Any] = json.loads(page)
        assert not any("was not deleted" in line for line in self._lines), f"its topics were not deleted\n{self.tail()}"
        return code, data
