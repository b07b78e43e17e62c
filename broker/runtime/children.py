"""Processes of this package that work for this one, each at the other end of a socket.

All are started by `subprocess`, which uses vfork(2). asyncio's functions would let uvloop fork. gRPC's handlers of forks then run
in the child, beside other threads' calls, and one child of a hundred died there of SIGSEGV before it was the command.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from headgate.broker.runtime.modules import found_by

if TYPE_CHECKING:
    from subprocess import Popen

SUPERVISED = "HEADGATE_SUPERVISED"
"""Name of an environment variable. If it is set, the broker ends when its standard input ends. Its supervisor holds the other
end, so the brokers of a killed supervisor end too. Such a broker also writes a line to its standard output every second while its
event loop turns (`server/main.py`, `beat`)."""
KAFKA_SOCKETS = "HEADGATE_KAFKA_SOCKET"
"""Name of an environment variable, set by a supervisor that listens for the broker: descriptors of the listening sockets of the
first Kafka ports, separated by commas."""


KILLED_S = 2.0
"""Seconds that a process that was killed has to end. It needs a turn on the processor for that."""
POLL_S = 0.001
_ending: list[Popen[bytes]] = []
"""Killed processes for whose end nobody waits any more. One that gets no processor time ends late."""
MMAP_BYTES = 32 << 20
"""The most that glibc lets one set: larger pieces of memory come from the system, and go back to it."""


def keeping(memory_bytes: int) -> dict[str, str]:
    """The environment of a process that uses the memory that it has freed again, up to so many bytes: to touch new pages took two
    fifths of the time in which small rows become batches. For glibc and mimalloc; others take no notice."""
    return {
        "MALLOC_MMAP_THRESHOLD_": str(MMAP_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(memory_bytes),
        "MIMALLOC_PURGE_DELAY": "-1",
    }


def start(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> tuple[Popen[bytes], socket.socket]:
    """Start a process that runs `module`. Returns it and our end of its socket. Raises OSError.

    Args:
        arguments: behind the descriptor of its own end of the socket, which is the first one.
        environment: beside this process's, whose variables come first.
    """
    with ExitStack() as undo:
        ours, theirs = (undo.enter_context(end) for end in socket.socketpair())
        number = theirs.fileno()
        process = begin([module, str(number), *arguments], None, {**(environment or {}), **os.environ}, [number])
        theirs.close()
        undo.pop_all()
    return process, ours


def begin(arguments: Sequence[str], stdin: int | None, environment: Mapping[str, str], descriptors: Sequence[int]) -> Popen[bytes]:
    """Start a process of this Python. Raises OSError.

    Args:
        arguments: a module, and its arguments.
        stdin: its standard input; None: an empty one.
        environment: the whole one.
        descriptors: which the process gets, under the same numbers.
    """
    import subprocess  # slow to import, and not every broker has such a process

    return subprocess.Popen(
        [sys.executable, "-P", "-m", *arguments],
        stdin=subprocess.DEVNULL if stdin is None else stdin, stdout=subprocess.DEVNULL, pass_fds=descriptors,
        env=found_by(environment),
    )  # fmt: skip


def kill(process: Popen[bytes], patience_s: float = KILLED_S) -> str:
    """Kill a process if it still runs. Returns how it ended.

    Args:
        patience_s: how long to wait for the end. `collect` sees the end of a process that takes longer.
    """
    process.kill()
    end_s = time.monotonic() + patience_s
    while (code := process.poll()) is None:
        if time.monotonic() >= end_s:
            _ending.append(process)
            return "it was killed, and has not ended yet"
        time.sleep(POLL_S)
    return how_ended(code)


def collect() -> None:
    """Let the system forget all processes that ended after `kill` had given up."""
    for process in _ending.copy():
        if process.poll() is not None:
            with suppress(ValueError):  # another thread was sooner
                _ending.remove(process)


def how_ended(code: int) -> str:
    """How a process ended, in words. `code`: its exit code; negative for a signal."""
    return signal.strsignal(-code) or f"signal {-code}" if code < 0 else f"exit code {code}"
