"""Starts a broker for a measurement, and talks to it with minimal code."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench import frames
from tests.bench.native import BenchError, Cores, free_port

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker process. `store`: where its data is; a directory, or a URL."""

    pid: int
    kafka_port: int
    grpc_port: int
    http_port: int
    log: Path
    store: str = ""

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Creates a topic. Raises BenchError with Kafka's error code."""
        answer = roundtrip(self.kafka_port, frames.create_topic_request(name, partitions, dict(config or {})))
        code = frames.parse_create_topic_response(answer).error_code
        if code:
            raise BenchError(f"create topic failed. topic=`{name}` error_code=`{code}`")


def command(store: str, kafka_port: int, grpc_port: int, http_port: int) -> list[str]:
    """The command line of one broker process, as a fleet starts it."""
    ports = ["--kafka-port", str(kafka_port), "--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    return [sys.executable, "-m", "headgate.broker.cli.main", "broker", "--store", store, *ports]


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a broker with these settings, by their dotted names (`wal.fsync`), without the caller's own settings.

    One process is measured: lanes run only if a case asks for them.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADGATE_") and k != "PYTHONDONTWRITEBYTECODE"}
    return (
        inherited
        | {"HEADGATE_STORE_CREATE": "true", "HEADGATE_HISTORY_LANES": "0"}
        | {"HEADGATE_" + name.replace(".", "_").upper(): value for name, value in settings.items()}
    )


@contextlib.contextmanager
def broker(
    directory: Path, store: str, *, settings: Mapping[str, str] | None = None, core: int | None = None, keep_log: bool = False
) -> Iterator[Broker]:
    """Runs a broker on free ports until the block ends; then SIGTERM.

    Raises BenchError with the end of its log if it does not serve within START_TIMEOUT_S.
    """
    kafka_port, grpc_port, http_port = free_port(), free_port(), free_port()
    log = directory / f"broker.{kafka_port}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*Cores.prefix(core), *command(store, kafka_port, grpc_port, http_port)],
            stdout=sink,
            stderr=sink,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env=environment(settings or {}),
        )
    try:
        wait_for_answer(kafka_port, process, log)
        yield Broker(process.pid, kafka_port, grpc_port, http_port, log, store)
        if process.poll() is not None:
            raise BenchError(f"the broker died. code=`{process.returncode}` log=`{tail(log)}`")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if not keep_log:
            log.unlink(missing_ok=True)


def wait_for_answer(kafka_port: int, process: subprocess.Popen[bytes], log: Path | None, *, pause_s: float = 0.0005) -> None:
    """Returns once an ApiVersions request was answered. Raises BenchError if the process ends or START_TIMEOUT_S is over."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            roundtrip(kafka_port, frames.api_versions_request())
            return
        except OSError:
            if process.poll() is not None:
                raise BenchError(f"the broker did not start. code=`{process.returncode}` log=`{tail(log)}`") from None
            if time.monotonic() > deadline:
                raise BenchError(f"the broker does not answer. seconds=`{START_TIMEOUT_S:.0f}` log=`{tail(log)}`") from None
            time.sleep(pause_s)


def tail(log: Path | None, size: int = 200) -> str:
    """The end of a log."""
    return log.read_text(errors="replace")[-size:].strip() if log is not None and log.exists() else ""


def roundtrip(port: int, request: bytes, timeout_s: float = 30.0) -> bytes:
    """Sends one request on a connection of its own; the response after its length prefix. Raises OSError."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        return exchange(connection, request)


def exchange(connection: socket.socket, request: bytes) -> bytes:
    """One request and its response. Raises OSError, also if the peer hangs up."""
    connection.sendall(request)
    (length,) = struct.unpack(">i", receive(connection, 4))
    return receive(connection, length)


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes. Raises OSError, also if the peer hangs up."""
    out = bytearray()
    while len(out) < size:
        piece = connection.recv(min(size - len(out), 1 << 20))
        if not piece:
            raise ConnectionError("the peer hung up")
        out += piece
    return bytes(out)
