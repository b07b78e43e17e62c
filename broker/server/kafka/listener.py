"""The Kafka listener: its connections, their shared state, and the path from a frame to the handler of its API."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, cast

from headgate.broker.log.batch import Buffer
from headgate.broker.runtime import descriptors, memory
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.turns import Turn, Turns
from headgate.broker.server import ports
from headgate.broker.server.kafka import fetch
from headgate.broker.server.kafka.apis import API_VERSIONS, APIS, FETCH, LIST_OFFSETS, PRODUCE, Api, request_bytes_max
from headgate.broker.server.kafka.connection import Connection, Slot
from headgate.broker.server.kafka.context import Context
from headgate.broker.wire.kafka import produce
from headgate.broker.wire.kafka.header import read_key_version, read_request_header, response_header
from headgate.broker.wire.kafka.primitives import DecodeError, bounded, dispose

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.wire.kafka.messages.list_offsets import ListOffsetsResponse

log = get_logger("kafka")

LANDING_BYTES = 528 << 10
"""The one buffer into which every connection receives; its bytes are handled before the next read."""
SWEEP_S = 1.0
OWN_BYTES_MAX = 16 << 20
"""Bytes of waiting answers that one sweep copies; copying them takes the loop some milliseconds."""
TRIM_S = 5.0
"""Pause between two searches for pooled buffers that no burst has needed since the last one."""
FULL_PATIENCE_S = 1.0
"""Time that producers wait for a full store. Then their connection ends; their next attempt is answered with the reason."""
STALL_PATIENCE_S = 25.0
"""Time that producers wait for a store that does not answer; clients themselves give up after 30 s."""
ENDS_TOLD_MAX = 50
"""Log lines about ended connections between two sweeps; further ones are only counted. One client that repeatedly connects and
sends invalid requests would otherwise write gigabytes of log a day."""
CLOSE_S = 1.0
"""Time that clients have to take their last answers when the broker closes."""


class KafkaServer:
    """Serves Kafka clients. Requests other than ApiVersions wait until `serve` has been called.

    Args:
        advertised: (host, port) that the broker announces to clients.
    """

    def __init__(self, settings: Settings, clock: Clock, advertised: tuple[str, int]) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.engine: Engine | None = None
        self.groups: Coordinator | None = None
        self.landing = memoryview(bytearray(LANDING_BYTES))
        self.now = clock.monotonic
        self.now_ms = clock.now_ms
        self.turns = Turns(clock.monotonic)
        """Shared by the requests of all connections. Replaced by the engine's once the engine is open."""
        self.inflight_bytes = 0
        """Received and unanswered bytes of all connections."""
        self.outgoing_bytes = 0
        """Bytes held for clients: answers to fetches from the moment they are read, and all answers that clients have not taken
        yet."""
        self.waiting_to_begin: deque[Connection] = deque()
        """Connections with a frame that `inflight_bytes_max` does not allow to begin yet; in order of arrival."""
        self.waiting_to_grow: deque[Connection] = deque()
        """Connections with a begun frame that may not grow yet. They come before `waiting_to_begin`."""
        self.waiting_bytes = 0
        """Share of `inflight_bytes` that belongs to the frames of `waiting_to_grow`."""
        self.exceeding: Connection | None = None
        """The only connection with a frame that may grow beyond `inflight_bytes_max`, until that frame is whole."""
        self.connections: set[Connection] = set()
        self.requests: dict[str, int] = {"produce": 0, "fetch": 0, "other": 0}
        self.connections_refused = 0
        self._ends = 0
        """Connections that were ended since the last sweep."""
        self._out_of_descriptors = False
        """Whether a connection has been refused since the last sweep because file descriptors are scarce."""
        self._trimmed_at = clock.monotonic()
        self._advertised = advertised
        self._ready = asyncio.Event()
        self._all_gone = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        """Set while the server accepts connections."""
        self._sweep: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket."""
        self._listener = listener
        self._server = await self.loop.create_server(lambda: Connection(self), sock=listener, backlog=1024)
        self._sweep = self.loop.call_later(SWEEP_S, self._on_sweep)

    def serve(self, engine: Engine, groups: Coordinator) -> None:
        """Take the open engine, and answer all requests, including those that waited for it."""
        self.engine = engine
        self.turns = engine.turns
        self.groups = groups
        self._ready.set()

    async def opened(self) -> Engine:
        """Wait until the engine is open, and return it."""
        await self._ready.wait()
        assert self.engine is not None
        return self.engine

    async def stop_accepting(self) -> None:
        if self._server is not None and self._listener is not None:
            ports.refuse_more(self._listener)
            self._listener = None
            self._server.close()

    async def close(self) -> None:
        """End every connection. Call it after the engine was closed, so that records which became durable are answered."""
        await self.stop_accepting()
        if self._sweep is not None:
            self._sweep.cancel()
        self._all_gone.clear()
        for connection in list(self.connections):
            connection.drop("closing", "the broker is closing")
        if self.connections:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._all_gone.wait()
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort("closing", "answers were not taken before the broker closed")
                await self._all_gone.wait()
        self._tell_rest()

    # -- connections

    def admit(self, connection: Connection, descriptor: int) -> bool:
        scarce = descriptors.scarce(descriptor)
        if scarce and not self._out_of_descriptors:
            log.warning("out_of_file_descriptors", connections=len(self.connections), hint="raise ulimit -n")
        self._out_of_descriptors |= scarce
        if scarce or len(self.connections) >= self.settings.connections_max:
            self.connections_refused += 1
            return False
        self.connections.add(connection)
        return True

    def tell_end(self, event: str, peer: str, reason: str) -> None:
        """Log the reason why a connection ends, at most ENDS_TOLD_MAX times between two sweeps."""
        self._ends += 1
        if self._ends <= ENDS_TOLD_MAX:
            log.info(event, peer=peer, reason=reason)

    def _tell_rest(self) -> None:
        if self._ends > ENDS_TOLD_MAX:
            log.info("more_connections_ended", connections=self._ends - ENDS_TOLD_MAX)
        self._ends = 0

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.frame_ended(connection)
        self.room_came()
        if not self.connections:
            self._all_gone.set()

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be received now. The only frame in flight may always begin."""
        return self.inflight_bytes == 0 or self.inflight_bytes + size <= self.settings.inflight_bytes_max

    def may_grow(self, connection: Connection, size: int) -> bool:
        """Whether the begun frame of a connection may take `size` more bytes now.

        If all bytes in flight belong to frames that wait to grow, then one of these frames may exceed the limit until it is whole:
        otherwise none of them would ever be whole.
        """
        if self.inflight_bytes + size <= self.settings.inflight_bytes_max:
            return True
        if self.inflight_bytes != self.waiting_bytes or self.exceeding not in (None, connection):
            return False
        self.exceeding = connection
        return True

    def wait_to_grow(self, connection: Connection) -> None:
        """Let a connection's begun frame grow as soon as possible, which may be now."""
        if self.exceeding is connection:
            self.waiting_to_grow.appendleft(connection)
        else:
            self.waiting_to_grow.append(connection)
        self.room_came()

    def frame_ended(self, connection: Connection) -> None:
        """Called when a frame is whole, or its connection has ended."""
        if self.exceeding is connection:
            self.exceeding = None

    def room_came(self) -> None:
        for waiting in (self.waiting_to_grow, self.waiting_to_begin):
            while waiting:
                if not waiting[0].room_came():
                    return
                waiting.popleft()

    def fetch_room(self) -> int:
        """Bytes that one answer may have: none while clients have not read the bytes that the broker holds for them."""
        if self.outgoing_bytes > self.settings.inflight_bytes_max:
            return 0
        return self.settings.fetch_bytes_max

    def _on_sweep(self) -> None:
        self._sweep = self.loop.call_later(SWEEP_S, self._on_sweep)
        self._out_of_descriptors = False
        self._tell_rest()
        now = self.now()
        if self.engine is not None and now - self._trimmed_at >= TRIM_S:
            self._trimmed_at = now
            if self.engine.pool.trim():
                memory.give_back()
        idle_s = self.settings.connection_idle_ms / 1000
        frame_s = self.settings.frame_timeout_ms / 1000
        stalled = None if self.engine is None else self.engine.stalled
        patience_s = FULL_PATIENCE_S if stalled is not None and stalled.reason is Reason.STORE_FULL else STALL_PATIENCE_S
        own_bytes = OWN_BYTES_MAX
        for connection in list(self.connections):
            connection.count_outgoing()
            if own_bytes > 0:
                own_bytes -= connection.own_answers(own_bytes)
            if stalled is not None and connection.not_durable_s(now) > patience_s:
                connection.drop("not_durable", stalled.message)
                continue
            if connection.look_for_stall(now) > frame_s:
                connection.abort(
                    "answer_timeout", f"an answer was not taken in time. timeout_ms=`{self.settings.frame_timeout_ms}`"
                )
                continue
            since = connection.frame_since
            if since is not None and now - since > frame_s and connection.reading:
                connection.drop("frame_timeout", f"a request did not arrive in time. timeout_ms=`{self.settings.frame_timeout_ms}`")
            elif connection.idle and now - connection.active_at > idle_s:
                connection.drop("idle", f"no request in time. timeout_ms=`{self.settings.connection_idle_ms}`")

    # -- requests that are not on the hot path

    async def answer(self, frame: bytes, connection: Connection, slot: Slot) -> None:
        """Fill `slot` with the answer to a request. Raises DecodeError if there is no answer."""
        key, version, correlation_id = read_key_version(frame, 0)
        api = APIS.get(key)
        refusable = key == API_VERSIONS or (key == PRODUCE and 0 <= version < produce.VERSION_MIN)
        if api is None or not (api.serves(version) or refusable):
            raise DecodeError(f"request is not served here. api_key=`{key}` version=`{version}`")
        if key != PRODUCE and len(frame) > (bytes_max := request_bytes_max(key)):
            raise DecodeError(f"request is too large. api=`{api.name}` size=`{len(frame)}` max=`{bytes_max}`")
        if key == API_VERSIONS and not api.serves(version):
            from headgate.broker.server.kafka.api.api_versions import unsupported_version

            connection.fill(slot, _framed(response_header(key, correlation_id, False) + unsupported_version()))
            return
        if key != API_VERSIONS:
            await self.opened()
        turn = self.turns.begin()
        head, position = read_request_header(frame, 0, api.flexible(version))
        if key == PRODUCE:
            connection.fill(slot, [produce.refuse_version(memoryview(frame), position, version, correlation_id)])
        elif key == FETCH:
            assert self.engine is not None
            self.requests["fetch"] += 1
            request, portions = fetch.parse(self.engine, memoryview(frame), position, version)
            async for portion in turn.each(portions):
                request.portions.append(portion)
            await connection.fetch_later(request, correlation_id, slot, turn)
        else:
            self.requests["other"] += 1
            decode, handle = api.load()
            try:
                message, _ = await turn.run(bounded(decode(frame, position, version)))
            except DecodeError as error:
                raise DecodeError(f"{error.message} api=`{api.name}` version=`{version}`") from error
            context = self._context(api, version, head.client_id, connection.peer, connection.reader, turn)
            try:
                response = await handle(message, context)
            except HeadgateError as error:
                connection.drop("request_failed", f"{api.name}: {error.message}")
                return
            out = bytearray(4) + response_header(key, correlation_id, api.flexible(version))
            await turn.run(response.encoding(out, version))
            out[:4] = (len(out) - 4).to_bytes(4, "big")
            connection.fill_counted(slot, [bytes(out)])
            if key == LIST_OFFSETS:
                from headgate.broker.server.kafka.api.list_offsets import is_led_elsewhere

                connection.looked_up(elsewhere=await is_led_elsewhere(cast("ListOffsetsResponse", response), turn))
            await turn.run(dispose(message))
            await turn.run(dispose(response))

    def _context(self, api: Api, version: int, client_id: str | None, peer: str, reader: int, turn: Turn) -> Context:
        host, port = self._advertised
        # ApiVersions needs no engine, and is answered before the engine is open.
        return Context(
            engine=cast("Engine", self.engine),
            groups=cast("Coordinator", self.groups),
            settings=self.settings,
            client_id=client_id,
            client_host=peer.rpartition(":")[0],
            api_version=version,
            turn=turn,
            host=host,
            port=port,
            reader=reader,
        )


def _framed(body: bytes) -> list[Buffer]:
    return [len(body).to_bytes(4, "big"), body]
