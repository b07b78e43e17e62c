"""Attacks without a login, beside a user who notices nothing.

Runs one broker with TLS and logins, and without rules (`authorization=none`): the login is then the only protection. Strangers
send large frames, wrong passwords and nothing at all, as fast as they can; meanwhile a user logs in and asks for metadata. A
mismatch means that a client without a login takes memory, or keeps others out. HEADGATE_ATTACK_FIGURES=1 prints the costs.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from aiokafka.helpers import create_ssl_context

from tests.support import oracle
from tests.support.broker_process import HOST, PATIENCE_S
from tests.support.pki import Authority
from tests.support.secure import Secure
from tests.support.wire import ClosedByPeer, RawConnection, request_header

MIB = 1 << 20
PASSWORD = "right"
CROWD = 150
"""Connections of an attack, each with one wrong password after another."""
SILENT = 1200
"""More than the handshakes that a listener has at once (`HANDSHAKES_MAX`)."""


class World:
    def __init__(self, place: Path) -> None:
        self.authority = Authority(place)
        (place / "admin").write_text(PASSWORD)
        self.broker = Secure(place, self.authority, protocol="SASL_SSL", ADMIN_PASSWORD_FILE=str(place / "admin"))
        self.context: ssl.SSLContext = create_ssl_context(cafile=str(self.authority.ca))

    def connect(self) -> RawConnection:
        connection = RawConnection(HOST, self.broker.tls_port, timeout_s=PATIENCE_S)
        connection.socket = self.context.wrap_socket(connection.socket, server_hostname="localhost")
        return connection

    def log_in(self) -> float:
        """Log in by PLAIN, ask for metadata. Returns the seconds that it took. Raises if any of it fails."""
        began = time.monotonic()
        with self.connect() as connection:
            oracle.call(connection, 17, 1, {"mechanism": "PLAIN"})
            answer = oracle.call(connection, 36, 2, {"auth_bytes": f"\0admin\0{PASSWORD}".encode()})
            assert not answer.error_code, answer
            assert oracle.call(connection, 3, 12, {"topics": ()}).brokers
        return time.monotonic() - began

    def status(self, path: str) -> int:
        with (
            socket.create_connection((HOST, self.broker.http_port), PATIENCE_S) as plain,
            self.context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return int(secure.recv(4096).split()[1])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("strangers"))
    with made.broker as broker:
        broker.start()
        broker.wait_ready()
        yield made
        broker.check_output()


@contextmanager
def measured(world: World, name: str) -> Iterator[Callable[[Callable[[], float]], None]]:
    """Print the memory that an attack takes, and the longest time of what a user does meanwhile."""
    before, times, failed = world.broker.resident_bytes(), [0.0], [0]

    def meanwhile(act: Callable[[], float]) -> None:
        try:
            times.append(act())
        except Exception:
            failed[0] += 1
            raise

    try:
        yield meanwhile
    finally:
        if os.environ.get("HEADGATE_ATTACK_FIGURES"):
            grown = (world.broker.resident_bytes() - before) / MIB
            tried = len(times) - 1 + failed[0]
            sys.stderr.write(f"\n{name}: {grown:+.0f} MiB, user's longest {max(times):.2f} s, failed {failed[0]} of {tried}\n")


def test_every_door_asks_for_a_login(world: World) -> None:
    """One without it would let a stranger set the administrator's password."""
    assert world.status("/healthz") == world.status("/readyz") == 200
    assert world.status("/api/cluster") == world.status("/metrics") == world.status("/") == 401
    world.log_in()


@pytest.mark.parametrize("api_key", [oracle.PRODUCE, 36], ids=["Produce", "SaslAuthenticate"])
def test_large_frames_before_the_login_take_no_memory(world: World, api_key: int) -> None:
    before = world.broker.resident_bytes()
    header = (100 * MIB).to_bytes(4, "big") + request_header(api_key, 2, 1)
    with measured(world, "100 MiB frames before the login") as meanwhile, ExitStack() as stack:
        sent = 0
        for _ in range(4):
            connection = stack.enter_context(world.connect())
            with suppress(ClosedByPeer, OSError):
                connection.send(header)
                for _ in range(99):
                    connection.send(bytes(MIB))
                    sent += MIB
        meanwhile(world.log_in)
        assert world.broker.resident_bytes() - before < 64 * MIB
    assert sent < 100 * MIB, "the connections end at the size of their frame"


def test_a_handshake_takes_little_memory_whatever_is_sent(world: World) -> None:
    before = world.broker.resident_bytes()
    record = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xf0" + bytes(0x4000 - 4)  # a hello of which 64 KiB are announced
    with measured(world, "handshakes without an end") as meanwhile, ExitStack() as stack:
        for _ in range(100):
            one = stack.enter_context(socket.create_connection((HOST, world.broker.tls_port), PATIENCE_S))
            with suppress(OSError):
                one.sendall(record)
        meanwhile(world.log_in)
        assert world.broker.resident_bytes() - before < 64 * MIB


async def _wrong_passwords(world: World, busy: asyncio.Event, stop: asyncio.Event) -> None:
    """Wrong passwords over HTTP, each connection without a pause. `busy`: set when all connections have had answers."""
    header = "Basic " + base64.b64encode(b"admin:wrong").decode()
    request = f"GET /api/cluster HTTP/1.1\r\nHost: localhost\r\nAuthorization: {header}\r\n\r\n".encode()
    answered = 0

    async def attack() -> None:
        nonlocal answered
        while not stop.is_set():
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(
                    HOST, world.broker.http_port, ssl=world.context, server_hostname="localhost"
                )
                while not stop.is_set():
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    size = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
                    await reader.readexactly(size)
                    answered += 1
                    if answered > 2 * CROWD:
                        busy.set()
                writer.close()

    await asyncio.gather(*(attack() for _ in range(CROWD)))


def test_wrong_passwords_by_http_do_not_make_logins_by_kafka_fail(world: World) -> None:
    """New users, whose passwords the broker does not remember yet."""

    async def run() -> None:
        busy, stop = asyncio.Event(), asyncio.Event()
        crowd = asyncio.create_task(_wrong_passwords(world, busy, stop))
        try:
            await asyncio.wait_for(busy.wait(), PATIENCE_S)
            with measured(world, "wrong passwords by HTTP") as meanwhile:
                for number in range(5):
                    await asyncio.to_thread(meanwhile, partial(_first_login, world, f"user-{number}"))
        finally:
            stop.set()
            await crowd

    for number in range(5):
        _create(world, f"user-{number}")
    asyncio.run(run())


def _create(world: World, name: str) -> None:
    with world.connect() as connection:
        oracle.call(connection, 17, 1, {"mechanism": "PLAIN"})
        oracle.call(connection, 36, 2, {"auth_bytes": f"\0admin\0{PASSWORD}".encode()})
        salt = b"a salt of some bytes"
        salted = hashlib.pbkdf2_hmac("sha256", b"pw", salt, 4096)
        row = {"name": name, "mechanism": 1, "iterations": 4096, "salt": salt, "salted_password": salted}
        answer = oracle.call(connection, 51, 0, {"deletions": (), "upsertions": (row,)})
        assert not answer.results[0].error_code, answer


def _first_login(world: World, name: str) -> float:
    began = time.monotonic()
    with world.connect() as connection:
        oracle.call(connection, 17, 1, {"mechanism": "PLAIN"})
        answer = oracle.call(connection, 36, 2, {"auth_bytes": f"\0{name}\0pw".encode()})
        assert not answer.error_code, answer
    return time.monotonic() - began


@pytest.mark.parametrize("door", ["http", "kafka"])
def test_silent_connections_keep_no_probe_and_no_login_out(world: World, door: str) -> None:
    port = world.broker.http_port if door == "http" else world.broker.tls_port
    with measured(world, f"silent connections to {door}") as meanwhile, ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection((HOST, port), PATIENCE_S))
        for _ in range(3):
            assert world.status("/readyz") == 200
            meanwhile(world.log_in)


def test_an_answer_does_not_tell_which_users_exist(world: World) -> None:
    """`admin` was made by the broker, `kafka` by Kafka's admin API, with another salt and other iterations."""
    _create(world, "kafka")
    shapes = {}
    for name in ("admin", "kafka", *(f"nobody-{number}" for number in range(60))):
        with world.connect() as connection:
            oracle.call(connection, 17, 1, {"mechanism": "SCRAM-SHA-256"})
            answer = oracle.call(connection, 36, 2, {"auth_bytes": f"n,,n={name},r=abc".encode()})
            _, salt, iterations = bytes(answer.auth_bytes).decode().split(",")
            shapes[name] = len(base64.b64decode(salt[2:])), iterations
    assert {shapes[name] for name in ("admin", "kafka")} <= {shape for name, shape in shapes.items() if name.startswith("nobody")}
