"""A client and a bare peer with TLS or SASL, each in a process of its own: ``python -m tests.bench.secure COMMAND ARGUMENTS...``.

The client is one blocking connection with a window of requests in flight. The bare peer is the cheapest server of that traffic
in Python: it reads frames and answers with canned bytes. With OpenSSL on both sides, nearly all of its time is TLS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.bench import frames

HOST = "127.0.0.1"
ATTACKER = "127.0.0.2"
"""The address of attackers, so that the broker can tell them from others."""
SIZE = struct.Struct(">i")
WINDOW = 8
"""Requests in flight."""
RECEIVE_BYTES = 1 << 20
TIMEOUT_S = 60.0
HANDSHAKE, AUTHENTICATE = 17, 36
TOPIC = "bench"


def connect(port: int, ca: str, source: str = "") -> socket.socket:
    """A connection, with TLS if `ca` is not empty. `source`: the own address."""
    plain = socket.create_connection((HOST, port), TIMEOUT_S, (source, 0) if source else None)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not ca:
        return plain
    return _context(ca).wrap_socket(plain, server_hostname="localhost")


@cache
def _context(ca: str) -> ssl.SSLContext:
    """Made once: making one costs more than a handshake, and attackers share their core with the client that is measured."""
    return ssl.create_default_context(cafile=ca)


def receive(connection: socket.socket, buffer: memoryview, size: int) -> None:
    """Exactly `size` bytes into `buffer`."""
    at = 0
    while at < size:
        got = connection.recv_into(buffer[at:size])
        if not got:
            raise ConnectionError("the peer hung up")
        at += got


def receive_frame(connection: socket.socket, buffer: memoryview) -> int:
    """One frame into `buffer`. Returns its size."""
    receive(connection, buffer, 4)
    (size,) = SIZE.unpack_from(buffer)
    receive(connection, buffer[4:], size)
    return 4 + int(size)


def _exchange(connection: socket.socket, request: bytes, answer_bytes_max: int = 4 << 20) -> bytes:
    connection.sendall(request)
    buffer = memoryview(bytearray(answer_bytes_max))
    return bytes(buffer[4 : receive_frame(connection, buffer)])


def login(connection: socket.socket, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
    """Log in. Returns whether it worked."""
    _exchange(connection, frames.frame(HANDSHAKE, 1, len(mechanism).to_bytes(2, "big") + mechanism.encode(), flexible=False))

    def step(message: bytes) -> tuple[int, bytes]:
        answer = _exchange(connection, frames.frame(AUTHENTICATE, 0, SIZE.pack(len(message)) + message, flexible=False))
        code = int.from_bytes(answer[4:6], "big")
        text = int.from_bytes(answer[6:8], "big", signed=True)
        return code, answer[8 + max(text, 0) + 4 :]

    if mechanism == "PLAIN":
        return not step(f"\0{user}\0{password}".encode())[0]
    first = f"n={user},r=nonce"
    code, challenge = step(b"n,," + first.encode())
    if code:
        return False
    parts = dict(one.split("=", 1) for one in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c=biws,r={parts['r']}"
    signed = f"{first},{challenge.decode()},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(one ^ other for one, other in zip(client_key, signature, strict=True))).decode()
    return not step(f"{without_proof},p={proof}".encode())[0]


def _request(mode: str, batch_bytes: int) -> bytes:
    if mode == "produce":
        return frames.produce_request(TOPIC, 0, frames.batch(batch_bytes))
    return frames.fetch_request(TOPIC, 0, 0, bytes_max=batch_bytes + 1000, wait_ms=0)


def flow(port: str, ca: str, mode: str, batch_bytes: str, seconds: str, user: str = "", password: str = "") -> dict[str, Any]:
    """Produce or fetch batches for some time, with a window of requests. Returns requests, bytes and seconds."""
    connection = connect(int(port), ca)
    if user and not login(connection, user, password):
        raise SystemExit("the login failed")
    request = _request(mode, int(batch_bytes))
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    requests = moved = 0
    for _ in range(WINDOW):
        connection.sendall(request)
    began = time.perf_counter()
    while time.perf_counter() - began < float(seconds):
        size = receive_frame(connection, buffer)
        moved += len(request) if mode == "produce" else size
        requests += 1
        connection.sendall(request)
    took = time.perf_counter() - began
    for _ in range(WINDOW):
        receive_frame(connection, buffer)
    if mode == "produce" and int.from_bytes(buffer[frames.produce_error_at(TOPIC) :][:2], "big"):
        raise SystemExit("a batch was refused")
    connection.close()
    return {"requests": requests, "bytes": moved, "seconds": took}


def knock(port: str, ca: str, what: str, seconds: str, rate_per_s: str = "0", user: str = "", password: str = "") -> dict[str, Any]:
    """Open connections one after another, and count them.

    Args:
        what: ``handshake``, ``login``, ``bad handshake`` or ``bad password``.
    """
    count = 0
    began = time.perf_counter()
    pause_s = 1 / float(rate_per_s) if float(rate_per_s) else 0.0
    while (spent := time.perf_counter() - began) < float(seconds):
        try:
            _knock(int(port), ca, what, user, password)
        except OSError:
            if not what.startswith("bad"):
                raise
        count += 1
        if pause_s:
            time.sleep(max(count * pause_s - spent, 0.0))
    return {"count": count, "seconds": time.perf_counter() - began}


def _knock(port: int, ca: str, what: str, user: str, password: str) -> None:
    if what == "bad handshake":
        with socket.create_connection((HOST, port), TIMEOUT_S, (ATTACKER, 0)) as plain:
            plain.sendall(b"\x16\x03\x01\x00\x20" + bytes(32))
            plain.recv(100)
        return
    with connect(port, ca, ATTACKER if what == "bad password" else "") as connection:
        if what == "bad password":
            # No wait for the answer, which comes late on purpose: the next one tries at once, as an attacker would.
            text = b"PLAIN"
            connection.sendall(frames.frame(HANDSHAKE, 1, len(text).to_bytes(2, "big") + text, flexible=False))
            message = f"\0{user}\0wrong-{time.perf_counter()}".encode()
            connection.sendall(frames.frame(AUTHENTICATE, 0, SIZE.pack(len(message)) + message, flexible=False))
            connection.recv(100)
        elif what == "login" and not login(connection, user, password):
            raise SystemExit("the login failed")


def peer(certificate: str, key: str, mode: str, batch_bytes: str) -> None:
    """The bare peer: prints its port, and serves until it is killed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    size = int(batch_bytes)
    records = frames.batch(size)
    answer = (
        frames.produce_response(TOPIC, 0) if mode == "produce" else frames.fetch_response(TOPIC, 0, records, high_watermark=1 << 40)
    )
    with socket.create_server((HOST, 0)) as listening:
        print(listening.getsockname()[1], flush=True)  # noqa: T201
        while True:
            accepted, _ = listening.accept()
            threading.Thread(target=_serve, args=(accepted, context, answer), daemon=True).start()


def _serve(accepted: socket.socket, context: ssl.SSLContext, answer: bytes) -> None:
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    try:
        with context.wrap_socket(accepted, server_side=True) as connection:
            while True:
                receive_frame(connection, buffer)
                connection.sendall(answer)
    except OSError:
        return


COMMANDS: dict[str, Callable[..., Any]] = {"flow": flow, "knock": knock, "peer": peer}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))  # noqa: T201
