"""Runs the HTTP app on uvicorn inside the broker's own event loop, without uvicorn's signal handlers and access log."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from broker.runtime import descriptors

REQUEST_BYTES_MAX = 16 << 10
"""Of a request's head. Nothing here takes a body."""
IDLE_S = 60
"""A connection may be silent for so long, also before its first request."""
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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        descriptor = transport.get_extra_info("socket").fileno()
        if len(self.connections) > descriptors.share(descriptors.HTTP_MAX) or descriptors.scarce(descriptor):
            transport.abort()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(IDLE_S, self.timeout_keep_alive_handler)


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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process's signals belong to `server/main.py`."""
        yield
