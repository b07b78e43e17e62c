"""One broker process, put together: the only module that knows all parts.

The order of a start has two aims: waiting clients are answered as early as possible, and a mistake is found before anything is
changed. The ports are bound first (the kernel queues connections). Then the loop and the Kafka listener start and answer
ApiVersions. Then the engine opens the store and recovers. Only then the slow modules (gRPC, HTTP) are imported and their ports
opened.

The order of an end is: no new connections, answers to requests in progress, flush and seal the log, exit 0. A second signal ends
the process at once. Like SIGKILL, that is safe at any moment.
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

from headgate.broker.runtime import descriptors, secret_files
from headgate.broker.runtime.children import KAFKA_SOCKETS, SUPERVISED
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.listeners import listeners
from headgate.broker.runtime.modules import without_pandas
from headgate.broker.runtime.out_of_memory import OutOfMemory
from headgate.broker.runtime.scheduling import take_short_turns
from headgate.broker.server.net import ports

if TYPE_CHECKING:
    import asyncio

    from headgate.broker.cluster.capacity import Desired
    from headgate.broker.server.process import Process

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_FENCED = 3
EXIT_SIGNAL = 128
"""Exit code of a process that was told twice to end, minus the signal's number."""

SWITCH_INTERVAL_S = 0.0002
"""Time that the WAL thread waits for the interpreter after a write while the loop is busy; it waits several times a group.
Python's 5 ms would be longer than the write itself. With a much shorter time, switching costs more than it gains."""

WORK_THREADS = 4
"""Threads for calls that wait or compute beside the loop: imports, foreign files, the verification of references."""

BEAT_S = 1.0
"""Pause between two lines to a supervisor."""
BEAT_TEXT_MAX = 300
"""Longest reason in such a line, in characters: the pipe takes a short line whole or not at all."""
DESIRED = "desired"
"""First word of a line with the desired number of brokers."""


def run(settings: Settings) -> int:
    """Run a broker until it is told to stop. Returns the exit code of the process. Errors go to stderr, one line each."""
    gc.disable()  # objects made during the start stay; collecting garbage meanwhile is wasted time
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    without_pandas()
    if _is_supervised() and settings.role == "lane":
        os.nice(settings.offline_niceness)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_early)
    try:
        descriptors.allow(settings.connections_max)
        secret_files.leave_no_core()
        kept = os.environ.get(KAFKA_SOCKETS, "")
        kafka = [ports.adopt(int(descriptor)) for descriptor in kept.split(",") if descriptor]
        for listener in listeners(settings)[len(kafka) :]:
            kafka.append(ports.listen(listener.host, listener.port, "kafka_listeners" if kafka else "kafka_port"))
        ports.check_free(settings.host, settings.grpc_port, "grpc_port")
        if settings.tls_certificate:
            ports.check_free(settings.host, settings.grpc_mtls_port, "grpc_mtls_port")
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


async def _main(settings: Settings, kafka: list[socket.socket], http: socket.socket, out_of_memory: OutOfMemory) -> int:
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
    try:
        process = Process(settings, kafka=kafka, http=http, out_of_memory=out_of_memory, ends_idle=_is_supervised())
    except HeadgateError as failure:  # the certificates cannot be used
        watchdog.close()
        return report(settings, failure)

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
    if _is_supervised():
        loop.add_reader(0, on_input)
        os.set_blocking(1, False)
        _beat(loop, process)
    error = await process.run(on_ready=_ready)
    watchdog.close()
    if error is None:
        return EXIT_OK
    code = report(settings, error)
    if process.stuck:
        os._exit(code)
    return code


def _beat(loop: asyncio.AbstractEventLoop, process: Process) -> None:
    """Tell the supervisor that the loop turns, and the desired number of brokers. A supervisor that does not read, or is gone, must
    not stop a broker.

    The supervisor needs no permission for that: it has the pipe, and no other process has it.
    """
    with suppress(OSError):
        os.write(1, beat(process.desired(), leads=process.leads()))
    loop.call_later(BEAT_S, _beat, loop, process)


def beat(desired: Desired | None, *, leads: bool) -> bytes:
    """One sign of life. `leads`: this broker leads the cluster, so no other one knows the number better."""
    if desired is None:
        return b"\n"
    why = " ".join(desired.reasons[0].split())[:BEAT_TEXT_MAX]
    return f"{DESIRED} {desired.brokers} {'leads' if leads else 'follows'} {why}\n".encode()


def _ready(line: str) -> None:
    take_short_turns()
    gc.freeze()
    gc.enable()
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def report(settings: Settings, error: HeadgateError) -> int:
    """Print the reason of the broker's end as one line on stderr. Returns the exit code."""
    sys.stderr.write(f"{_name(settings)}: {' '.join(error.message.split())}{_hint(settings, error)}\n")
    sys.stderr.flush()
    if isinstance(error, FencedError):
        return EXIT_FENCED
    wrong_setting = isinstance(error, InvalidError) and error.reason is Reason.INVALID_CONFIG
    return EXIT_USAGE if wrong_setting or _needs_create(settings, error) else EXIT_FAILED


def _needs_create(settings: Settings, error: HeadgateError) -> bool:
    """Whether the store is empty and the settings name no cluster id for it: then a restart does not help."""
    return error.reason is Reason.STORE_MISSING and not settings.cluster_id


def _is_supervised() -> bool:
    return os.environ.get(SUPERVISED) == "1"


def _name(settings: Settings) -> str:
    return f"headgate {settings.role} {settings.broker_id}"


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
    """Handle a signal before the loop runs: the process has promised nothing yet, and may end at once."""
    sys.exit(EXIT_OK)
