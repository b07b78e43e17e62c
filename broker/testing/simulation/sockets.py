"""TCP connections of clients to the brokers' Kafka ports. The broker's side is the real protocol (`server/kafka/transport.py`).

A broker's messages leave in the order of writing and arrive also after its death, as bytes that the kernel has taken. A cut holds
bytes back, and a reset loses them. What a stopped process has not read waits for it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from headgate.broker.testing.simulation.loop import Process
from headgate.broker.testing.simulation.network import CLIENTS, Door, Lane, Network

_ports = itertools.count(30_000)


class Listening:
    """Stands for a listening socket, and for the `asyncio.Server` that accepts its connections (`VirtualLoop.create_server`)."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def accept(self, make_protocol: Callable[[], asyncio.BufferedProtocol]) -> None:
        """Accept connections from now on."""
        self._door.accept = make_protocol

    def shutdown(self, how: int) -> None:
        """Refuse connections from now on."""
        self._door.accept = None

    def close(self) -> None:
        self._door.accept = None


class Socket:
    """A client's connection to the Kafka port of one address.

    Args:
        received: called with bytes of the broker when they arrive.
        lost: called once, when the connection has ended on this side for another reason than `close`.
        written: called with the door of the broker, and with bytes, at the moment the broker writes them.
    """

    def __init__(
        self,
        network: Network,
        address: str,
        *,
        received: Callable[[bytes], None],
        lost: Callable[[], None],
        written: Callable[[Door, bytes], None],
    ) -> None:
        self._network = network
        self._received, self._lost, self._written = received, lost, written
        self._out, self._back = Lane(), Lane()
        self._server: ServerTransport | None = None
        self._over = False
        known = network.doors.get(address)
        self.place = CLIENTS if known is None else known.place
        network.sockets[self] = None
        self._send(lambda: self._arrive(address))

    @property
    def process(self) -> Process | None:
        """The process that has accepted the connection."""
        return None if self._server is None else self._server.process

    def write(self, data: bytes) -> None:
        """Send bytes. They are lost if the connection ends first."""

        def arrive() -> None:
            if self._server is not None:
                self._server.feed(data)

        self._send(arrive)

    def close(self) -> None:
        """End the connection. The broker learns of it behind the bytes that were sent."""
        self._over = True
        self._network.sockets.pop(self, None)

        def arrive() -> None:
            if self._server is not None:
                self._server.lost()

        self._send(arrive)

    def reset(self) -> None:
        """Break the connection. Both sides learn of it at once."""
        server, self._server = self._server, None
        if server is not None:
            server.lost()
        self.end()

    def process_died(self, process: Process) -> None:
        """The kernel of the broker's machine ends the connection."""
        if process is self.process:
            self._server = None
            self.back(self.end)

    def end(self) -> None:
        """The connection has ended on the client's side."""
        self._network.sockets.pop(self, None)
        if not self._over:
            self._over = True
            self._lost()

    def back(self, arrive: Callable[[], object]) -> None:
        """Call `arrive` on the client's side, behind everything that the broker has sent."""
        self._network.send(self.place, CLIENTS, arrive, self._back)

    def wrote(self, door: Door, data: bytes) -> None:
        """The broker has written bytes."""
        self._written(door, data)

        def arrive() -> None:
            if not self._over:
                self._received(data)

        self.back(arrive)

    def _send(self, arrive: Callable[[], object]) -> None:
        self._network.send(CLIENTS, self.place, arrive, self._out)

    def _arrive(self, address: str) -> None:
        door = self._network.doors.get(address)
        if door is None or door.accept is None or door.process.dead:
            self.back(self.end)
            return
        self._server = ServerTransport(self._network, self, door)
        self._server.accept(door.accept)


class ServerTransport:
    """The broker's side of a `Socket`: the part of `asyncio.Transport` that the Kafka protocol uses. It never holds bytes back."""

    def __init__(self, network: Network, socket: Socket, door: Door) -> None:
        self.process = door.process
        self._network = network
        self._socket = socket
        self._door = door
        self._peer = (CLIENTS, next(_ports))
        self._protocol: asyncio.BufferedProtocol | None = None
        """None before the process has accepted the connection, and after its end."""
        self._inbox: deque[memoryview] = deque()
        self._paused = False
        self._closing = False

    def accept(self, make_protocol: Callable[[], asyncio.BufferedProtocol]) -> None:
        def made() -> None:
            self._protocol = make_protocol()
            self._protocol.connection_made(self)  # type: ignore[arg-type]

        self._soon(made)

    def feed(self, data: bytes) -> None:
        """Bytes of the client have arrived."""

        def arrived() -> None:
            self._inbox.append(memoryview(data))
            self._read()

        self._soon(arrived)

    def lost(self) -> None:
        """The connection has ended."""
        self._soon(self._end)

    def _soon(self, callback: Callable[[], object]) -> None:
        """Call back in the broker's process, in order."""
        self._network.loop.call_soon(callback, context=self.process.context.copy())

    def _end(self) -> None:
        self._closing = True
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(None)

    def _read(self) -> None:
        while self._inbox and not self._paused and not self._closing and self._protocol is not None:
            data = self._inbox.popleft()
            room = memoryview(self._protocol.get_buffer(-1))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            if size < len(data):
                self._inbox.appendleft(data[size:])
            self._protocol.buffer_updated(size)

    # -- the interface of the protocol's transport; runs in the broker's process

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            # A copy, as the kernel's: the broker may use the buffer again.
            self._socket.wrote(self._door, bytes(data))

    def writelines(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(buffers))

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._soon(self._read)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._socket.back(self._socket.end)
            self._soon(self._end)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._peer, "socket": self}.get(name, default)

    def fileno(self) -> int:
        """No descriptor: what the protocol writes to it directly fails, and it then writes here."""
        return -1
