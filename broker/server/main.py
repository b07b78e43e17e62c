"""One broker process, put together: the only place that knows all parts.

The order of a start is chosen so that a client that is already knocking is answered soonest, and so that a mistake is found before
anything is touched: ports are taken first (the kernel queues connections), then the loop and the Kafka listener start and answer
ApiVersions, then the engine opens the store and recovers, and only then the heavy doors (gRPC, HTTP) are imported and opened.

The order of an end is: no new connections, answers to what is under way, flush and seal the log, exit 0. A second signal ends the
process at once; that is safe at any moment, as SIGKILL is.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from headgate.broker.runtime import descriptors
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.modules import without_pandas
from headgate.broker.runtime.out_of_memory import OutOfMemory
from headgate.broker.runtime.scheduling import take_short_turns
from headgate.broker.server import ports

if TYPE_CHECKING:
    import asyncio

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_FENCED = 3
EXIT_SIGNAL = 128
"""Plus the signal's number: the end was asked for twice."""

SWITCH_INTERVAL_S = 0.0002
"""How long the WAL's thread waits for the interpreter after a write while the loop is busy, several times a group. Python's 5 ms
would be more than the write itself; with much less, switching costs more than it gives."""

WORK_THREADS = 4
"""Threads for calls that wait or compute beside the loop: imports, files of others, what judges references."""

SUPERVISED = "HEADGATE_SUPERVISED"
"""In the environment of a broker that is to end when its standard input does: its supervisor holds the other end, so a supervisor
that is killed never leaves brokers behind. Such a broker also writes an empty line to its standard output every second, as long as
its event loop turns."""
KAFKA_SOCKET = "HEADGATE_KAFKA_SOCKET"
"""In the environment of a broker whose supervisor listens for it: the descriptor of the listening socket of the Kafka port."""
BEAT_S = 1.0
"""Between two empty lines to a supervisor."""


def run(settings: Settings) -> int:
    """Run a broker until it is told to stop. Returns the exit code of the process; errors went to stderr, one line each."""
    gc.disable()  # the start only makes what stays; collecting in between is wasted
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    without_pandas()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_early)
    try:
        descriptors.allow(settings.connections_max)
        kept = os.environ.get(KAFKA_SOCKET)
        kafka = ports.adopt(int(kept)) if kept else ports.listen(settings.host, settings.kafka_port, "kafka_port")
        ports.check_free(settings.host, settings.grpc_port, "grpc_port")
        http = ports.listen(settings.host, settings.http_port, "http_port")
    except HeadgateError as error:
        return report(settings, error)

    import asyncio

    import uvloop

    from headgate.broker.runtime import logging

    logging.configure(settings.log_level, settings.log_format)
    out_of_memory = OutOfMemory(_name(settings))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_main(settings, kafka, http, out_of_memory))
    except MemoryError:
        out_of_memory.end()


async def _main(settings: Settings, kafka: socket.socket, http: socket.socket, out_of_memory: OutOfMemory) -> int:
    import asyncio

    from headgate.broker.runtime.threads import Pool
    from headgate.broker.runtime.watchdog import Watchdog
    from headgate.broker.server.process import Process

    loop = asyncio.get_running_loop()
    out_of_memory.install(loop)
    try:
        loop.set_default_executor(Pool(WORK_THREADS, "work"))
        watchdog = Watchdog(loop, settings.loop_timeout_ms, out_of_memory.end_still)
    except HeadgateError as failure:
        return report(settings, failure)
    process = Process(settings, kafka=kafka, http=http, out_of_memory=out_of_memory)

    def on_signal(number: int) -> None:
        if process.stopping:
            os._exit(EXIT_SIGNAL + number)
        process.stop()

    def on_input() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            process.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    if os.environ.get(SUPERVISED) == "1":
        loop.add_reader(0, on_input)
        os.set_blocking(1, False)
        _beat(loop)
    error = await process.run(on_ready=_ready)
    watchdog.close()
    if error is None:
        return EXIT_OK
    code = report(settings, error)
    if process.stuck:
        os._exit(code)
    return code


def _beat(loop: asyncio.AbstractEventLoop) -> None:
    """Tell the supervisor that the loop turns. One that does not read, or is gone, must not stop a broker."""
    with suppress(OSError):
        os.write(1, b"\n")
    loop.call_later(BEAT_S, _beat, loop)


def _ready(line: str) -> None:
    take_short_turns()
    gc.freeze()
    gc.enable()
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def report(settings: Settings, error: HeadgateError) -> int:
    """Say on one line of stderr why the broker ends. Returns the exit code."""
    sys.stderr.write(f"{_name(settings)}: {' '.join(error.message.split())}{_hint(settings, error)}\n")
    sys.stderr.flush()
    if isinstance(error, FencedError):
        return EXIT_FENCED
    wrong_setting = isinstance(error, InvalidError) and error.reason is Reason.INVALID_CONFIG
    return EXIT_USAGE if wrong_setting or _needs_create(settings, error) else EXIT_FAILED


def _needs_create(settings: Settings, error: HeadgateError) -> bool:
    """Whether the store is empty, and nothing says that a cluster is to be in it: starting again does not help then."""
    return error.reason is Reason.STORE_MISSING and not settings.cluster_id


def _name(settings: Settings) -> str:
    return f"headgate broker {settings.broker_id}"


def _hint(settings: Settings, error: HeadgateError) -> str:
    if _needs_create(settings, error):
        return " (for a new cluster: run `headgate init` once, or start this broker with --store-create)"
    if isinstance(error, FencedError):
        return " (its partitions are led by others now: start it again)"
    if error.reason is Reason.STORE_FULL:
        return " (free some space, then start again: nothing that was acked is lost)"
    if isinstance(error, RetryError):
        return " (start again when the store answers)"
    if error.reason is Reason.CORRUPT_STORE:
        return " (nothing was changed; restore the named object from a copy)"
    return ""


def _exit_early(number: int, frame: FrameType | None) -> None:
    """A signal before the loop runs: nothing was promised to anybody yet."""
    sys.exit(EXIT_OK)
