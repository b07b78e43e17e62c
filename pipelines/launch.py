"""The launch of Spark's JVM without a fork of this process: `launch()`.

PySpark starts the JVM with a `preexec_fn`, which makes it ignore Ctrl-C, and for that Python forks. A process with gRPC's threads,
such as that of a flood or of a Dagster step, cannot be forked safely: of 213 forks beside an open connection 17 children ended by
SIGABRT or SIGSEGV before they became the JVM, and PySpark then said that the JVM had ended, without a reason.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

IGNORING_CTRL_C = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""Runs the command that follows; a process that ignores a signal stays so under the next program."""


@contextmanager
def launch() -> Iterator[Callable[[], str]]:
    """While this context is open, PySpark starts the JVM without a fork of this process. Yields a function that tells how that JVM
    ended, as the end of a message: empty while the JVM runs, and when PySpark started none."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        options.pop("preexec_fn", None)
        started.append(subprocess.Popen([*IGNORING_CTRL_C, *command], **options))
        return started[-1]

    def ended() -> str:
        code = started[-1].poll() if started else None
        return "" if code is None else f" jvm=`{_how(code)}`"

    gateway: Any = import_module("pyspark.java_gateway")
    if os.name != "posix":
        yield ended
        return
    gateway.Popen = start
    try:
        yield ended
    finally:
        gateway.Popen = subprocess.Popen
        for process in started:
            if process.poll() is not None and process.stdin is not None:
                process.stdin.close()


def _how(code: int) -> str:
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"exit code {code}"
