"""The network between processes: TCP as the control plane and clients see it, with delays, cuts and resets. Kafka's connections are
in `sockets.py`.

Per pair of places and direction messages arrive in order. A *cut* holds them back (as TCP does, which sends again) until it is
healed; a process that dies resets its connections, and its peers notice unless they are cut off from it. `Channel` stands for a
`grpc.aio.Channel`: the membership and the leader's service work on it as on the real one, with the real messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol

import grpc

from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.grpc.errors import REASON_KEY, STATUS, shown
from headgate.broker.testing.simulation.loop import PROCESS, WORLD, Process, VirtualLoop, start

CONNECT_TIMEOUT_S = 20.0
CLIENTS = "clients"
"""The place of all clients."""


class Door:
    """The ports of one process. `place`: the machine on which it runs."""

    def __init__(self, place: str, process: Process) -> None:
        self.place = place
        self.process = process
        self.open = False
        self.streams: dict[str, Callable[[Any], Awaitable[None]]] = {}
        """By path: handlers of streams."""
        self.calls: dict[str, Callable[[Any], Awaitable[Any]]] = {}
        """By path: handlers of unary calls, from request bytes to response bytes. (Requests that have no message of their own here
        are objects.)"""
        self.accept: Callable[[], asyncio.BufferedProtocol] | None = None
        """Makes the protocol of a connection to the Kafka port. None: the port is closed."""
        self.acked: Callable[[bytes, int, int, int], None] = lambda topic_id, partition, base_offset, count: None
        """Called at the moment of each ack, with (topic id, partition, first offset, records)."""


class Lane:
    """A sequence of messages that arrive in the order of sending."""

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s = 0.0


class _Link(Lane):
    """The messages from one place to another."""

    __slots__ = ("cut", "held")

    def __init__(self) -> None:
        super().__init__()
        self.cut = False
        self.held: list[Callable[[], object]] = []


class Endpoint(Protocol):
    """A connection of a client (`sockets.Socket`)."""

    place: str

    def reset(self) -> None:
        """Break the connection."""

    def process_died(self, process: Process) -> None: ...


class Network:
    """All places, the links between them, and the ports of the processes."""

    def __init__(self, loop_of: Callable[[], VirtualLoop], random: Random, delay_s: float) -> None:
        self._loop_of = loop_of
        self._random = random
        self._delay_s = delay_s
        self._links: dict[tuple[str, str], _Link] = {}
        self._connections: dict[Connection, None] = {}
        self.doors: dict[str, Door] = {}
        """By address, ``host:port``: the ports of the process there, also when they do not accept connections."""
        self.places: dict[Process, str] = {}
        self.sockets: dict[Endpoint, None] = {}
        """The connections of clients."""

    @property
    def loop(self) -> VirtualLoop:
        return self._loop_of()

    def link(self, source: str, target: str) -> _Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = _Link()
        return link

    def here(self) -> str:
        """The place of the process that runs a callback now."""
        process = PROCESS.get()
        return CLIENTS if process is None else self.places[process]

    def send(self, source: str, target: str, arrive: Callable[[], object], lane: Lane | None = None) -> None:
        """Call `arrive`, in the world's context, when a message from one place has come to another.

        Args:
            lane: messages of one lane keep their order; by default one lane per pair of places and direction.
        """
        link = self.link(source, target)
        if link.cut:
            link.held.append(arrive)
            return
        lane = lane or link
        lane.last_s = max(self.loop.time() + self._random.random() * self._delay_s, lane.last_s)
        self.loop.call_at(lane.last_s, arrive, context=WORLD)

    def cut(self, this: str, other: str, *, both: bool = True) -> None:
        self.link(this, other).cut = True
        if both:
            self.link(other, this).cut = True

    def heal(self) -> None:
        """End every cut; the messages that it held back arrive."""
        for (source, target), link in list(self._links.items()):
            if link.cut:
                link.cut = False
                held, link.held = link.held, []
                for arrive in held:
                    self.send(source, target, arrive)

    def reset(self, this: str, other: str) -> None:
        """Break every connection between two places."""
        for connection in list(self._connections):
            if {connection.source, connection.target} == {this, other}:
                connection.reset("connection reset")
        for socket in list(self.sockets):
            if {socket.place, CLIENTS} == {this, other}:
                socket.reset()

    def process_died(self, process: Process) -> None:
        for door in self.doors.values():
            if door.process is process:
                door.open, door.accept = False, None
        for connection in list(self._connections):
            connection.process_died(process)
        for socket in list(self.sockets):
            socket.process_died(process)

    def door(self, address: str) -> Door | None:
        """The process that listens at an address. None: no process listens, and the sender gets a refusal."""
        door = self.doors.get(address)
        return door if door is not None and door.open and not door.process.dead else None

    async def connect(self, host: str, port: int) -> None:
        """Stand for a TCP connect: return if a process listens. Raises ConnectionRefusedError, TimeoutError."""
        address = f"{host}:{port}"
        answer = self.loop.create_future()
        here, known = self.here(), self.doors.get(address)
        there = known.place if known is not None else here

        def back(listens: bool) -> None:
            if not answer.done():
                answer.set_result(listens)

        def knock() -> None:
            listens = self.door(address) is not None
            self.send(there, here, lambda: back(listens))

        self.send(here, there, knock)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                listens = await answer
        except TimeoutError as error:
            raise TimeoutError(f"no answer from {address}") from error
        if not listens:
            raise ConnectionRefusedError(f"nobody listens at {address}")

    async def call(self, path: str, address: str, data: Any, timeout_s: float | None) -> Any:
        """A unary call. Raises grpc.aio.AioRpcError."""
        connection = Connection(self, address)
        try:
            async with asyncio.timeout(timeout_s):
                await connection.open(lambda there: _serve_call(there, path, data))
                return await connection.near.read()
        except TimeoutError as error:
            raise _rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded") from error
        finally:
            connection.end_near()


class Connection:
    """One call or stream between two places, with an end at each."""

    def __init__(self, network: Network, address: str) -> None:
        self.network = network
        self.address = address
        self.source = network.here()
        self.target = ""
        self.owner = PROCESS.get()
        self.server: Process | None = None
        self.near = End(self, True)
        self.far = End(self, False)
        self._handler: asyncio.Task[Any] | None = None
        network._connections[self] = None

    async def open(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        """Reach the other side and start its handler. Raises AioRpcError(UNAVAILABLE) if no process listens."""
        network = self.network
        known = network.doors.get(self.address)
        self.target = known.place if known is not None else self.source
        answer = network.loop.create_future()

        def refuse() -> None:
            if not answer.done():
                answer.set_result(False)

        def arrive() -> None:
            door = network.door(self.address)
            if door is None:
                network.send(self.target, self.source, refuse)
                return
            self.server = door.process
            if self.near.ended:
                return

            async def run() -> None:
                await serve(self)

            self._handler = start(network.loop, door.process, run(), "grpc-call")
            if not answer.done():
                answer.set_result(True)

        network.send(self.source, self.target, arrive)
        if not await answer:
            self.near.fail(grpc.StatusCode.UNAVAILABLE, "connection refused")
            raise _rpc_error(grpc.StatusCode.UNAVAILABLE, "failed to connect: connection refused")

    def deliver(self, near_to_far: bool, give: Callable[[End], object]) -> None:
        """Send something to the other end, in order."""
        end = self.far if near_to_far else self.near
        source, target = (self.source, self.target) if near_to_far else (self.target, self.source)
        self.network.send(source, target, lambda: give(end))

    def end_near(self) -> None:
        """The caller cancels: the handler of the call is cancelled too."""
        self.network._connections.pop(self, None)
        if not self.near.ended:
            self.near.end()
            self.deliver(True, lambda far: self._cancel())

    def _cancel(self) -> None:
        self.far.fail(grpc.StatusCode.CANCELLED, "cancelled by the client")
        if self._handler is not None and not self._handler.done():
            handler = self._handler
            assert self.server is not None
            self.network.loop.call_soon(handler.cancel, context=self.server.context.copy())

    def reset(self, why: str) -> None:
        self.network._connections.pop(self, None)
        self.near.fail(grpc.StatusCode.UNAVAILABLE, why)
        self._cancel()

    def process_died(self, process: Process) -> None:
        if process is self.owner:
            self.network._connections.pop(self, None)
            self.deliver(True, lambda far: self._cancel())
        elif process is self.server:
            self.network._connections.pop(self, None)
            self.deliver(False, lambda near: near.fail(grpc.StatusCode.UNAVAILABLE, "connection reset by peer"))


class End:
    """One end of a call: the near one has the used part of `grpc.aio.StreamStreamCall`, the far one that of `ServicerContext`."""

    def __init__(self, connection: Connection, near: bool) -> None:
        self._connection = connection
        self._near = near
        self._inbox: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.ended = False
        self.eof = False
        self.status: tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]] | None = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def give(self, data: bytes) -> None:
        if self.status is None:
            self._inbox.append(data)
            self._wake()

    def fail(self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, str], ...] = ()) -> None:
        if self.status is None:
            self.status = (code, details, trailing)
            self._wake()

    def end(self) -> None:
        """Close this end: it reads and writes nothing any more."""
        self.ended = True
        self._wake()

    async def write(self, data: bytes) -> None:
        if self.status is not None or self.ended:
            raise asyncio.InvalidStateError("the call is over")
        self._connection.deliver(self._near, lambda end: end.give(data))

    async def read(self) -> Any:
        """The next message, or EOF when the call is over."""
        while not self._inbox:
            if self.status is not None or self.ended:
                if self._near and self.status is not None and self.status[0] is not grpc.StatusCode.OK:
                    raise _rpc_error(*self.status)
                return grpc.aio.EOF
            self._waiter = self._connection.network.loop.create_future()
            await self._waiter
        return self._inbox.popleft()

    def cancel(self) -> None:
        self._connection.end_near()

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED if self.status is None else self.status[0]

    async def details(self) -> str:
        return "" if self.status is None else self.status[1]

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(() if self.status is None else self.status[2]))


async def _serve_call(connection: Connection, path: str, data: Any) -> None:
    network = connection.network
    door = network.doors[connection.address]
    try:
        answer = await door.calls[path](data)
    except HeadgateError as error:
        _send_error(connection, error)
        return
    connection.deliver(False, lambda near: near.give(answer))


async def _serve_stream(connection: Connection, path: str) -> None:
    door = connection.network.doors[connection.address]
    try:
        await door.streams[path](connection.far)
    except HeadgateError as error:
        _send_error(connection, error)
        return
    connection.deliver(False, lambda near: near.fail(grpc.StatusCode.OK, ""))


def _send_error(connection: Connection, error: HeadgateError) -> None:
    code, text, trailing = STATUS[error.reason], shown(error), ((REASON_KEY, error.reason.value),)
    connection.far.fail(code, text, trailing)
    connection.deliver(False, lambda near: near.fail(code, text, trailing))


def _rpc_error(code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, str], ...] = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details)


class Channel:
    """Stands for a `grpc.aio.Channel`."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self._open: list[_Stream] = []

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Ready: the first write of a stream connects."""
        return grpc.ChannelConnectivity.READY

    def stream_stream(self, path: str) -> Callable[[], _Stream]:
        def call() -> _Stream:
            stream = _Stream(self._network, self._address, path)
            self._open.append(stream)
            return stream

        return call

    def unary_unary(self, path: str) -> Callable[..., Awaitable[bytes]]:
        async def call(data: bytes, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  # as grpc has it
            answer: bytes = await self._network.call(path, self._address, data, timeout)
            return answer

        return call

    async def close(self) -> None:
        for stream in self._open:
            stream.cancel()


class _Stream:
    """The caller's end of a stream. The first write opens the stream."""

    def __init__(self, network: Network, address: str, path: str) -> None:
        self._connection = Connection(network, address)
        self._path = path
        self._opened = False

    async def write(self, data: bytes) -> None:
        if not self._opened:
            self._opened = True
            await self._connection.open(lambda there: _serve_stream(there, self._path))
        await self._connection.near.write(data)

    async def read(self) -> Any:
        return await self._connection.near.read()

    def cancel(self) -> None:
        self._connection.end_near()

    async def code(self) -> grpc.StatusCode:
        return await self._connection.near.code()

    async def details(self) -> str:
        return await self._connection.near.details()

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return await self._connection.near.initial_metadata()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return await self._connection.near.trailing_metadata()
