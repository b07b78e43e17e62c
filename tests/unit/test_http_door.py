"""The HTTP server closes silent connections, and sends the right date.

Runs: the real server with a short timeout, on a real socket. A mismatch means that silent connections block all others for ever,
that any client can fill the log's disk, or that answers have an old date.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headgate.broker.cli import health
from headgate.broker.runtime import descriptors
from headgate.broker.server.http import server
from headgate.broker.server.net import tls_handshake
from tests.support.pki import Authority

HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def door(context: Callable[[], ssl.SSLContext] | None = None, app: Starlette | None = None) -> AsyncIterator[int]:
    """A server; yields its port."""
    listening = socket.create_server((HOST, 0))
    served = server.HttpServer(app or Starlette(), listening, context)
    served.start()
    try:
        yield listening.getsockname()[1]
    finally:
        await served.close()


async def test_silent_connections_go_and_one_too_many_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 1)
    monkeypatch.setattr(descriptors, "HTTP_MAX", 2)
    async with door() as port:
        silent = [await asyncio.open_connection(HOST, port) for _ in range(2)]
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await reader.read() == b""
        writer.close()
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.close()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_headgate_health_asks_with_tls_and_without(
    is_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the settings of the health check and of the broker differ: TLS may be set on the broker's command line only."""
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    authority = Authority(tmp_path)
    pem, key = authority.issue("broker", hosts=("elsewhere.example",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem, key)
    words: list[tuple[int, str]] = []

    async def probe(request: Request) -> Response:
        return PlainTextResponse(words[0][1], words[0][0])

    app = Starlette(routes=[Route("/readyz", probe), Route("/healthz", probe)])
    files = [f"--tls-certificate={pem}", f"--tls-key={key}", f"--tls-ca={authority.ca}"]
    async with door((lambda: context) if is_tls else None, app) as port:
        for more in ([], files, ["--host=0.0.0.0"], ["--live"]):
            words[:] = [(200, "ready\n")]
            assert await asyncio.to_thread(health.run_health, [f"--http-port={port}", *more]) == 0
            assert capsys.readouterr() == ("ready\n", "")
            words[:] = [(503, "not ready: the store does not answer\n")]
            assert await asyncio.to_thread(health.run_health, [f"--http-port={port}", *more]) == 1
            assert "not ready: the store does not answer. broker=`127.0.0.1:" in capsys.readouterr().err
    assert await asyncio.to_thread(health.run_health, [f"--http-port={port}", *files]) == 1
    assert "the broker does not answer: connection refused. broker=" in capsys.readouterr().err
    assert health.run_health(["--http-prot=1"]) == 1 and "http_prot" in capsys.readouterr().err


async def test_idle_connections_do_not_keep_a_handshake_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tls_handshake, "HANDSHAKES_MAX", 3)
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("broker"))
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    async with door(lambda: context) as port:
        silent = [await asyncio.open_connection(HOST, port) for _ in range(5)]
        reader, writer = await asyncio.open_connection(HOST, port, ssl=trusting, server_hostname="localhost")
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.close()
        assert await asyncio.wait_for(silent[0][0].read(), 30) == b"", "the oldest one was closed"
        for _, writer in silent:
            writer.close()


async def test_a_client_cannot_claim_another_address() -> None:
    async def address(request: Request) -> Response:
        assert request.client is not None
        return PlainTextResponse(f"{request.client.host} {request.url.scheme}")

    async with door(app=Starlette(routes=[Route("/", address)])) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.0.0.7\r\nX-Forwarded-Proto: https\r\nConnection: close\r\n\r\n"
        )
        assert (await reader.read()).endswith(b"\r\n127.0.0.1 http")
        writer.close()


async def test_peers_that_talk_nonsense_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with door() as port:
        for request in (
            b"\0\1\2nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(request)
            assert (await reader.readline()).startswith(b"HTTP/1.1 40")
            writer.close()
    assert not caplog.records


async def test_each_answer_has_the_date_of_its_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "DATE_S", 0.05)
    async with door() as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        dates = set()
        while len(dates) < 2:
            began_s = int(time.time())
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len("Not Found"))
            (date,) = [line.removeprefix(b"date: ") for line in head.split(b"\r\n") if line.startswith(b"date: ")]
            at_s = parsedate_to_datetime(date.decode()).timestamp()
            assert began_s - 30 <= at_s <= time.time()
            dates.add(date)
            await asyncio.sleep(0.05)
        writer.close()
