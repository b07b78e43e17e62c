"""One client's socket: asyncio's callbacks on one side, a `Session` on the other. The session decides; this file acts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Protocol, cast

from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.out_of_memory import left_half_done
from headgate.broker.server.kafka.answers import WRITE_BUFFER_BYTES
from headgate.broker.server.kafka.pending_requests import PendingRequests
from headgate.broker.server.kafka.session import PIECE_BYTES, Session
from headgate.broker.server.kafka.slot import Slot
from headgate.broker.server.net.tls_handshake import peer_of

if TYPE_CHECKING:
    from headgate.broker.log.batch import Buffer
    from headgate.broker.server.kafka import fetch
    from headgate.broker.server.kafka.common import AdvertisedListener, Common

logger = get_logger("kafka")

REST_BYTES = WRITE_BUFFER_BYTES + (64 << 10)
"""Most bytes of an unsent answer that are copied for the transport at a time; the transport sends them and then calls back."""
BUFFERS_MAX = 1000
"""Buffers in one write to a socket: IOV_MAX is 1,024."""


class Listener(Protocol):
    """The listener of a connection."""

    def admit(self, connection: Connection, descriptor: int) -> bool:
        """Whether there is room for one more connection."""

    def greet(self, connection: Connection, certificate: bytes | None) -> None:
        """Find out who a new client is, or let it log in. Raises HeadgateError for a client that is not let in."""

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection; the port of its session."""

    __slots__ = (
        "_common",
        "_descriptor",
        "_is_cut",
        "_is_scheduled",
        "_listener",
        "_loop",
        "_pending",
        "_tasks",
        "_transport",
        "_unmuting",
        "buffer_updated",
        "get_buffer",
        "session",
    )

    def __init__(self, common: Common, listener: Listener, advertised: AdvertisedListener | None = None) -> None:
        self._common = common
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._is_cut = False
        """Whether the first answer has been written in part."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_scheduled = False
        """Whether `flush` is called in the next turn of the loop."""
        self._unmuting: asyncio.TimerHandle | None = None
        self.session = session = Session(common, self, advertised)
        # The loop calls these two for every read: methods that pass the calls on would cost each small request two calls more.
        self.get_buffer = session.frames.buffer  # type: ignore[method-assign]
        self.buffer_updated = session.received  # type: ignore[method-assign]
        self._pending = PendingRequests(common, session)

    # -- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's protocol classes do not derive from asyncio's
        self._transport = transport
        self.session.peer = peer_of(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=0)
        self._descriptor = transport.get_extra_info("socket").fileno()
        if not self._listener.admit(self, self._descriptor):
            transport.abort()
            return
        try:
            self._listener.greet(self, self._certificate(transport))
        except HeadgateError as error:
            self.abort("login_failed", error.message)

    def _certificate(self, transport: asyncio.Transport) -> bytes | None:
        """The client's certificate, in DER."""
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.session.lost()
        self._listener.forget(self)
        if self._unmuting is not None:
            self._unmuting.cancel()
        for task in self._tasks:
            task.cancel()

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.writable = True
        if self._is_cut and not self._is_scheduled:
            self.flush()
        self.session.resume_writing()

    def eof_received(self) -> bool:
        return False

    # -- the port of the session

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def append_parked(self) -> None:
        self._spawn(self._pending.append_parked(), is_fetch=False)

    def answer_in_turn(self) -> None:
        self._spawn(self._pending.answer_in_turn(), is_fetch=False)

    def answer_alone(self, frame: bytes, slot: Slot) -> None:
        self._spawn(self._pending.answer_alone(frame, slot), is_fetch=True)

    def answer_fetch(self, request: fetch.FetchRequest, correlation_id: int, slot: Slot) -> None:
        turn = self._common.turns.begin()
        self._spawn(self._pending.answer_fetch(request, correlation_id, slot, turn), is_fetch=True)

    def wake(self, slot: Slot) -> None:
        self._pending.wake(slot)

    def unmute_at(self, at_s: float) -> None:
        if self._unmuting is not None:
            self._unmuting.cancel()
        throttle = self.session.throttle
        if throttle is not None:
            self._unmuting = self._loop.call_later(max(at_s - self._common.now(), 0.0), throttle.unmute)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def abort(self, event: str, reason: str) -> None:
        """End the connection without waiting for the client to take the remaining answers."""
        if self._transport is not None:
            self._common.ended(event, self.session.peer, reason)
            self.session.is_closing = True
            self._transport.abort()

    # -- tasks

    def _spawn(self, work: Coroutine[object, object, None], *, is_fetch: bool) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._fetch_ended if is_fetch else self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, MemoryError):
            left_half_done(self._loop, error)
        self._fetch_ended(task)

    def _fetch_ended(self, task: asyncio.Task[None]) -> None:
        """Done callback of a request's task. An unexpected error ends the connection: without an answer the client would wait
        for ever.

        A MemoryError of a fetch ends the connection, too, and nothing else: a fetch changes nothing.
        """
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, MemoryError):
            self.session.drop("out_of_memory", "there is no memory for an answer")
        elif error is not None:
            logger.exception("request_broke", error, peer=self.session.peer)
            self.session.drop("request_broke", str(error))

    # -- writing

    def flush_soon(self) -> None:
        self.session.will_flush = self._is_scheduled = True
        self._loop.call_soon(self.flush)

    def flush(self) -> None:
        session = self.session
        session.will_flush = self._is_scheduled = False
        transport = self._transport
        if transport is None:
            return
        if self._is_cut:
            # A thread that wakes up on the core of a loop that never rests may have to wait for that core: here the WAL thread.
            os.sched_yield()
            self._is_cut = False
        while True:
            buffers, slot = session.take()
            if buffers:
                transport.writelines(buffers)
            if slot is None:
                break
            if slot.in_pieces and slot.size > PIECE_BYTES:
                if not self._write(transport, session, slot, slot.first(PIECE_BYTES)):
                    transport.write(session.take_part(slot, PIECE_BYTES))
                self._is_cut = True
                break
            if not self._send(transport, session, slot):
                self._is_cut = True
                break
        session.flushed(transport.get_write_buffer_size())
        if self._is_cut:
            session.will_flush = True
            if session.writable:
                self.flush_soon()

    def _send(self, transport: asyncio.Transport, session: Session, slot: Slot) -> bool:
        """Write an answer to the socket, as far as the socket accepts it, and a copy of the rest to the transport.

        Returns:
            Whether the whole answer was written. If not, the transport calls back.
        """
        assert slot.data is not None
        size = slot.size
        if self._write(transport, session, slot, slot.data) == size:
            return True
        if not session.writable:
            return False
        size = slot.size
        transport.write(session.take_part(slot, REST_BYTES))
        return size <= REST_BYTES

    def _write(self, transport: asyncio.Transport, session: Session, slot: Slot, data: list[Buffer]) -> int:
        """Write the first bytes of an answer to the socket, without a copy. Returns the bytes that the socket took; 0 also if the
        transport still has earlier ones."""
        if transport.get_write_buffer_size() or transport.is_closing():
            return 0
        try:
            sent = os.writev(self._descriptor, data[:BUFFERS_MAX])
        except OSError:
            return 0  # the socket is full, or broken: then the transport reports it
        session.sent(slot, sent)
        return sent


class SecureConnection(Connection):
    """A connection over TLS. All bytes pass through the transport, which encrypts them."""

    __slots__ = ()

    def _certificate(self, transport: asyncio.Transport) -> bytes | None:
        certificate: bytes | None = transport.get_extra_info("ssl_object").getpeercert(True)
        return certificate

    def _write(self, transport: asyncio.Transport, session: Session, slot: Slot, data: list[Buffer]) -> int:
        return 0
