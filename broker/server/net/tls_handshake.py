"""TLS in front of a protocol of asyncio: the handshake on an accepted connection, then the protocol over it.

The listening socket is a plain one. So each connection uses the newest certificates (`tls.py`).

`start_tls` on the accepted connection would lose its first bytes now and then: uvloop reads from the socket right after
`connection_made`, even if that paused reading, and before `start_tls` has put TLS between them. So the socket is taken from the
plain connection before it reads, and given to `connect_accepted_socket`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from headgate.broker.runtime.addresses import plain

HANDSHAKE_S = 10.0
"""Longest time of a handshake."""
SHUTDOWN_S = 2.0
"""Longest wait for the client's closing message."""
HANDSHAKES_MAX = 1000
"""Handshakes in progress of one listener. For a further one, the oldest of the address with the most is closed, so silent
connections keep no client out."""


class Handshakes:
    """The handshakes of one listener.

    Args:
        context: returns the context for a new connection.
        failed: called with the address of the client and the reason.
        admits: returns whether a client of that address may have a connection now.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        failed: Callable[[str, str], None],
        admits: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._context = context
        self._failed = failed
        self._admits = admits
        self._open: dict[str, dict[asyncio.Task[None], socket.socket]] = {}
        """Handshakes in progress by address, the oldest first, with their sockets."""
        self._count = 0

    def before(self, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """The protocol of an accepted connection. `make` makes the protocol behind TLS; it is connected after the handshake."""
        return _Accepted(lambda accepted, peer: self._begin(accepted, peer, make))

    def _begin(self, accepted: socket.socket, peer: str, make: Callable[[], asyncio.BaseProtocol]) -> None:
        if not self._admits(peer):
            accepted.close()
            return
        if self._count >= HANDSHAKES_MAX:
            self._end_oldest()
        task = asyncio.get_running_loop().create_task(self._run(accepted, peer, make), name="tls handshake")
        host = peer.rpartition(":")[0]
        self._open.setdefault(host, {})[task] = accepted
        self._count += 1
        task.add_done_callback(lambda ended: self._ended(host, ended))

    def _end_oldest(self) -> None:
        """End the oldest handshake of the address with the most."""
        host = max(self._open, key=lambda address: len(self._open[address]))
        task, accepted = next(iter(self._open[host].items()))
        self._ended(host, task)
        with suppress(OSError):  # the client may be gone
            accepted.shutdown(socket.SHUT_RDWR)  # the event loop holds the descriptor: `close` alone would not end the handshake

    def _ended(self, host: str, task: asyncio.Task[None]) -> None:
        tasks = self._open.get(host, {})
        if task in tasks:
            del tasks[task]
            self._count -= 1
            if not tasks:
                del self._open[host]

    async def _run(self, accepted: socket.socket, peer: str, make: Callable[[], asyncio.BaseProtocol]) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make, accepted, ssl=self._context(), ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=SHUTDOWN_S
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            accepted.close()
            self._failed(peer, str(getattr(error, "reason", None) or error or type(error).__name__).lower().replace("_", " "))


class _Accepted(asyncio.Protocol):
    """Takes the socket of an accepted connection before anything is read from it."""

    def __init__(self, begin: Callable[[socket.socket, str], None]) -> None:
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        taken = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        taken.setblocking(False)
        peer = peer_of(transport)
        transport.abort()  # type: ignore[attr-defined]  # a transport of a stream
        self._begin(taken, peer)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """``host:port`` of the other side."""
    peer = transport.get_extra_info("peername")
    return f"{plain(peer[0])}:{peer[1]}" if peer else "?"
