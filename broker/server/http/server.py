"""Runs the HTTP app on uvicorn inside the broker's own event loop, without uvicorn's signal handlers and access log.

A liveness probe must be answered however many clients hold connections here without a request. So a new connection is always
accepted. If there are too many, the server closes the connection that has been without a request for longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from headgate.broker.runtime import descriptors
from headgate.broker.server.net.tls_handshake import Handshakes

REQUEST_BYTES_MAX = 16 << 10
"""Longest head of a request. No request here has a body."""
IDLE_S = 60
"""Longest silence of a connection, also before its first request."""
HEAD_S = 10
"""Longest time from the first byte of a request to the end of its head."""
GRACE_S = 2
DATE_S = 1.0
"""Greatest age of the date in an answer."""


class HttpServer:
    """One listening socket. `start`, then `close`.

    Args:
        context: returns the context of TLS for a new connection; None: without TLS.
        failed: called with the address of each client whose handshake failed.
    """

    def __init__(
        self,
        app: Starlette,
        listening: socket.socket,
        context: Callable[[], ssl.SSLContext] | None = None,
        failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        config = _Config(
            context,
            failed,
            app,
            loop="none",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # the rest is about faults of clients; errors of answers are logged by `guard.py`
            access_log=False,
            server_header=False,
            proxy_headers=False,  # any process of this machine could claim any address; rules and the audit log go by it
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
        )
        self._server = _Server(config)
        self._listening = listening
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to serve."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._listening]), name="http")

    async def close(self) -> None:
        """Stop listening, give requests in progress two seconds, and close."""
        self._server.end()
        if self._task is not None:
            await self._task
        self._listening.close()


class _Connection(H11Protocol):
    """Counts from its first moment. uvicorn itself checks the number of connections, and their age, only when a request has
    arrived."""

    idle_since = 0.0
    """Time of the connection's start, or of its last answer."""
    head_since: float | None = None
    """Arrival time of the first byte of a partial head; None without a partial head."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        secure = transport.get_extra_info("ssl_object")
        if secure is not None:  # requests find the client's certificate in their state
            self.app_state = {**self.app_state, "certificate": secure.getpeercert(True)}
        self.idle_since = self.loop.time()
        descriptor = transport.get_extra_info("socket").fileno()
        full = len(self.connections) > descriptors.share(descriptors.HTTP_MAX) or descriptors.scarce(descriptor)
        if full and not self._close_oldest():
            transport.abort()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(IDLE_S, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        if self.idle and self.head_since is None:
            self.head_since = self.loop.time()
        super().data_received(data)
        if not self.idle:
            self.head_since = None

    def on_response_complete(self) -> None:
        self.idle_since, self.head_since = self.loop.time(), None
        super().on_response_complete()

    @property
    def idle(self) -> bool:
        """Whether the connection has no unanswered request."""
        return self.cycle is None or self.cycle.response_complete

    def _close_oldest(self) -> bool:
        """Close the connection that has been without a request for longest. False: all others have a request."""
        idle = [
            connection
            for connection in self.connections
            if isinstance(connection, _Connection) and connection is not self and connection.idle
        ]
        if not idle:
            return False
        oldest = min(idle, key=lambda connection: connection.idle_since)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True


class _Config(uvicorn.Config):
    """Puts the handshake of TLS in front of uvicorn's protocol."""

    def __init__(
        self, context: Callable[[], ssl.SSLContext] | None, failed: Callable[[str], None], app: Starlette, **options: Any
    ) -> None:
        super().__init__(app, **options)
        self._context = context
        self._failed = failed

    def load(self) -> None:
        super().load()
        context, protocol = self._context, self.http_protocol_class
        if context is None:
            return

        failed = self._failed
        # As with requests, faults of clients are counted and not logged.
        handshakes = Handshakes(context, lambda peer, reason: failed(peer.rpartition(":")[0]))

        def secure(**parts: Any) -> asyncio.BaseProtocol:
            return handshakes.before(lambda: protocol(**parts))

        self.http_protocol_class = secure  # type: ignore[assignment]  # uvicorn only calls it


class _Server(uvicorn.Server):
    """Replaces uvicorn's main loop, which checks ten times a second whether to end: half of all wake-ups of an idle broker."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Let `serve` return."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        # The tick number 0 also writes the date of the answers.
        while not await self.on_tick(0):
            self._close_late()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ending.wait()

    def _close_late(self) -> None:
        """Close connections that do not complete the head of their request in time."""
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            if isinstance(connection, _Connection) and connection.head_since is not None and now - connection.head_since > HEAD_S:
                connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals to `server/main.py`."""
        yield
