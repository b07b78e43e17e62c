"""Runs the HTTP app on uvicorn inside the broker's own event loop, without uvicorn's signal handlers and access log.

A liveness probe must be answered however many clients hold connections here without a request. So a new connection is always
taken; where there are too many, the one that has been without a request for longest is closed for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from headgate.broker.runtime import descriptors

REQUEST_BYTES_MAX = 16 << 10
"""Of a request's head. Nothing here takes a body."""
IDLE_S = 60
"""A connection may be silent for so long, also before its first request."""
HEAD_S = 10
"""Longest time from the first byte of a request to the end of its head."""
GRACE_S = 2
DATE_S = 1.0
"""Age of the date in an answer, at the most."""


class HttpServer:
    """One listening socket. `start`, then `close`."""

    def __init__(self, app: Starlette, listening: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # its warnings are what peers do wrong, a line or two for each request, without saying who
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
        )
        self._server = _Server(config)
        self._listening = listening
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve from now on."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._listening]), name="http")

    async def close(self) -> None:
        """Stop listening, give requests under way two seconds, and close."""
        self._server.end()
        if self._task is not None:
            await self._task
        self._listening.close()


class _Connection(H11Protocol):
    """Counts from its first moment: uvicorn itself looks at how many there are, and for how long, when a request is there."""

    idle_since = 0.0
    """When it was made, or its last request was answered."""
    head_since: float | None = None
    """When the first byte of a request came whose head is not whole yet; None where there is none."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
        """No whole request is here that is not answered."""
        return self.cycle is None or self.cycle.response_complete

    def _close_oldest(self) -> bool:
        """Close the connection that has been without a request for longest. False: all others have one."""
        idle = [one for one in self.connections if isinstance(one, _Connection) and one is not self and one.idle]
        if not idle:
            return False
        oldest = min(idle, key=lambda one: one.idle_since)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True


class _Server(uvicorn.Server):
    """uvicorn looks ten times a second whether it is to end, which would be half of what wakes a broker that rests."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Let `serve` return."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        # The look at number 0 also writes the date that answers have.
        while not await self.on_tick(0):
            self._close_late()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ending.wait()

    def _close_late(self) -> None:
        """Close connections whose request does not come to the end of its head."""
        now = asyncio.get_running_loop().time()
        for one in list(self.server_state.connections):
            if isinstance(one, _Connection) and one.head_since is not None and now - one.head_since > HEAD_S:
                one.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process's signals belong to `server/main.py`."""
        yield
