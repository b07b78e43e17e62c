"""One client's connection: frames in, responses out in the order of the requests.

Theory of operation. All connections read into one landing buffer, so an idle connection owns no memory. Whole frames are handled
in the landing buffer. A partial frame is carried over. A small one is carried as bytes. A large one gets its own buffer: the
rest is received directly into it, and the buffer can become a part of the partition's tail without a copy. The buffer grows with
the bytes that have arrived: the size that a frame claims takes no memory.

Every request that has an answer takes a *slot* in `_slots`. A slot is written after all slots before it. Produce requests of one
read share one slot: their responses are known at once, and are kept back together until the engine reports them durable. A fetch
that must wait, and every other API, is a task that fills its slot later. The other APIs run one after another, as in Kafka.
Produce and Fetch do not wait for them.

A produce request for very many partitions is *parked*: a task appends it in steps, and later produce requests wait for it. A
produce request for partitions in a hand-over is parked until the hand-over ends, and later produce requests are parked behind
it, because their answers would have to wait anyway. Reason: a refused client retries after a tenth of a second at best, and then
often too early. Produce requests that arrive before the engine is open are parked too, so that they keep their place before
later requests.

A small fetch is answered in one turn of the loop. Other requests, and large fetches, work in slices of `runtime/turns.py`.

An answer from the store leaves in pieces, one turn of the loop each: a reader that catches up takes megabytes at a time, and
acks would wait for it.

Records in an answer are slices of larger buffers: tails, or data read from the store. A slice that waits for its client keeps
the whole buffer in memory, even after the tail has dropped it. So a large answer is written straight to the socket, as far as
the socket accepts it. The transport gets copies only. Slices that still wait at the next sweep are copied (`own_answers`).

Admission is by bytes: received bytes without an answer count, for this connection and for the whole broker. Beyond the limit the
broker stops reading from this connection until a request has been answered. The broker also stops reading from a client that
does not read its answers.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from headgate.broker.engine.partition.windows import new_reader
from headgate.broker.log.batch import Buffer
from headgate.broker.log.check import Source
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.out_of_memory import left_half_done
from headgate.broker.runtime.steps import Steps, finish
from headgate.broker.server.kafka import fetch, produce
from headgate.broker.server.kafka.produce import Answer, produce_again
from headgate.broker.wire.kafka import fetch as fetch_wire
from headgate.broker.wire.kafka import produce as produce_wire
from headgate.broker.wire.kafka.primitives import PARSE_ERRORS as WIRE_ERRORS
from headgate.broker.wire.kafka.primitives import DecodeError, skip_tags

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.runtime.turns import Turn
    from headgate.broker.server.kafka.listener import KafkaServer

log = get_logger("kafka")

CARRY_BYTES_MAX = 32 << 10
"""A partial frame up to this size is carried as bytes; a larger one gets its own buffer."""
FRAME_BYTES_FIRST = 2 << 20
"""First buffer of a frame that is larger than this. A full buffer is copied into one of twice the size, until the frame is whole. A
frame with one batch of the default size limit (1 MiB) is never copied."""
LARGE_FRAME_BYTES = 256 << 10
"""Behind a frame of this size the connection expects another large one and reads only its beginning into the landing buffer:
bytes in the landing buffer have to be copied."""
BEGINNING_BYTES = 4 << 10
"""Size of that beginning: enough to hold a frame's size, and little to copy."""
SLOTS_MAX = 2000
"""Unanswered requests of one connection; further requests stay in the socket."""
WRITE_BUFFER_BYTES = 256 << 10
"""Answer bytes that a client has not read yet; above this the connection reads nothing more from the client."""
JOINED_BYTES_MAX = 32 << 10
"""An answer up to this size is copied into one buffer. A larger one is written from the buffers that hold its records."""
REST_BYTES = WRITE_BUFFER_BYTES + (64 << 10)
"""Most bytes of an unsent answer that are copied for the transport at a time; the transport sends them and then calls back."""
BUFFERS_MAX = 1000
"""Buffers in one write to a socket: IOV_MAX is 1,024."""
PIECE_BYTES = 64 << 10
"""Bytes of an answer from the store that are written in one turn of the loop. With 128 KB acks wait a tenth longer; with 32 KB
readers are a tenth slower."""
SMALL_FETCH_BYTES = 4 << 10
"""A fetch request up to this size is answered in one turn of the loop if possible: it has 250 partitions at most, or 1,300 empty
topics. A larger one is answered in slices."""
ROOM_RETRY_S = 0.1
"""Pause before a fetch without room for its answer checks for room again."""
PARK_S = 2.0
"""Longest wait for a hand-over. After it the broker refuses the produce request, and the client retries."""
ASTRAY_MAX = 5
"""Consecutive ListOffsets requests for partitions that this broker does not lead before the connection is closed."""

PRODUCE, FETCH = 0, 1

_FRAME_SIZE = struct.Struct(">i").unpack_from
_REQUEST = struct.Struct(">hhih").unpack_from
KEY_AT_BYTES = 8
"""Position behind API key, version and correlation id."""
REQUEST_HEADER_BYTES = 10
FRAME_BYTES_MIN = 8
"""Size of API key, version and correlation id."""

PARSE_ERRORS = (DecodeError, *WIRE_ERRORS)


class Slot:
    """The place of one answer. `data` is None until the answer is ready; `cost` is its share of the bytes in flight.

    `size` is the number of bytes that the connection counts as held for its client: the size of the answer, or 0 for an
    answer to a produce request, which is small. `in_pieces`: the answer may be written in several turns of the loop.
    `written_at` is the arrival time of a produce request's records; None for other requests.
    """

    __slots__ = ("cost", "data", "in_pieces", "size", "written_at")

    def __init__(self, cost: int) -> None:
        self.data: list[Buffer] | None = None
        self.cost = cost
        self.size = 0
        self.in_pieces = False
        self.written_at: float | None = None

    def cut(self, size: int) -> list[Buffer]:
        """Take the first `size` bytes of the answer; the answer must be longer."""
        assert size < self.size
        data = self.data
        assert data is not None
        self.size -= size
        at = 0
        while len(data[at]) <= size:
            size -= len(data[at])
            at += 1
        part = memoryview(data[at])
        self.data = [part[size:], *data[at + 1 :]]
        return [*data[:at], part[:size]]


class Connection(asyncio.BufferedProtocol):
    """One client's connection; the module's text describes its rules."""

    __slots__ = (
        "_appended",
        "_astray",
        "_behind_large",
        "_carry",
        "_cold",
        "_cold_task",
        "_counted",
        "_cut",
        "_descriptor",
        "_filled",
        "_flush_scheduled",
        "_frame",
        "_frame_size",
        "_frame_view",
        "_held",
        "_inflight",
        "_now_ms",
        "_parked",
        "_produced",
        "_reading",
        "_room_waiters",
        "_sampled",
        "_server",
        "_shape",
        "_slots",
        "_source",
        "_taken",
        "_tasks",
        "_transport",
        "_unanswered",
        "_waiting",
        "_writable",
        "_written",
        "active_at",
        "frame_since",
        "peer",
        "reader",
        "taken_at",
    )

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self.reader = new_reader()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._frame: bytearray | None = None
        self._frame_view: memoryview | None = None
        """The allocated part of the frame that is being received."""
        self._frame_size = 0
        """Total size of this frame, as the frame claims."""
        self._filled = 0
        self._carry = b""
        self._behind_large = False
        """Whether the last frame was a large one."""
        self._slots: deque[Slot] = deque()
        self._produced: list[bytes] = []
        self._unanswered = 0
        self._appended = False
        """Whether a produce request since the last slot has appended something."""
        self._shape: produce.LogShape | None = None
        """The shape of the last produce request, if that request was for one partition."""
        self._source = Source()
        self._sampled: Source | None = self._source
        """Set while a sample of this client's batches is due."""
        self._now_ms = 0
        self._parked: deque[tuple[bytearray, Slot]] = deque()
        """Parked produce requests. The first one waits for the engine, for a hand-over or for its own steps; the others wait for
        the first."""
        self._astray = 0
        """Consecutive ListOffsets requests, up to the last one, for a partition that another broker leads."""
        self._cold: deque[tuple[bytes, Slot]] = deque()
        self._cold_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._inflight = 0
        self._waiting = False
        """Whether a frame waits for room, at its start or to grow."""
        self._reading = True
        self._writable = True
        self._flush_scheduled = False
        self._cut = False
        """Whether the first answer has been written in part."""
        self._held = 0
        """Bytes of answers that are ready, or being read from the store, and not yet given to the transport. Answers to produce
        requests do not count."""
        self._counted = 0
        """This connection's share of the server's `outgoing_bytes`."""
        self._room_waiters: dict[Slot, asyncio.Future[None]] = {}
        """Requests that wait until the client has taken earlier answers. One is woken at a time, and it wakes the next."""
        self._written = self._taken = 0
        self.active_at = 0.0
        self.taken_at = 0.0
        """Time when the client last took bytes of an answer, or had none to take."""
        self.frame_since: float | None = None
        """Arrival time of the first byte of the partial frame; None without a partial frame."""
        self.peer = ""

    # -- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's protocol classes do not derive from asyncio's
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=0)
        self.active_at = self._server.now()
        self._descriptor = transport.get_extra_info("socket").fileno()
        if not self._server.admit(self, self._descriptor):
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        inflight, self._inflight = self._inflight, 0
        self._server.inflight_bytes -= inflight
        if self._waiting and self._frame is not None:
            self._server.waiting_bytes -= self._filled
        self._frame = self._frame_view = None
        self._server.forget(self)
        for task in self._tasks:
            task.cancel()
        if self._cold_task is not None:
            self._cold_task.cancel()
        self._slots.clear()
        self._parked.clear()
        self._held = 0
        self.count_outgoing()

    def pause_writing(self) -> None:
        self._writable = False
        self._pause()

    def resume_writing(self) -> None:
        self._writable = True
        if self._cut and not self._flush_scheduled:
            self._flush()
        self.count_outgoing()
        self._wake_next()
        self._resume()

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame_view is not None:
            return self._frame_view[self._filled :]
        landing = self._server.landing
        carry = self._carry
        if carry:
            landing[: len(carry)] = carry
            return landing[len(carry) :]
        return landing[:BEGINNING_BYTES] if self._behind_large else landing

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at = self._server.now()
        self._now_ms = self._server.now_ms()
        try:
            if self._frame_view is not None:
                self._filled += nbytes
                if self._filled == len(self._frame_view):
                    if self._filled == self._frame_size:
                        self._end_frame()
                    else:
                        self._grow_frame()
            else:
                self._split(len(self._carry) + nbytes)
        except PARSE_ERRORS as error:
            self.drop("malformed_request", str(error))
            return
        self._end_of_produce()
        if self._over_limit():
            self._pause()

    def _split(self, end: int) -> None:
        landing = self._server.landing
        frame_bytes_max = self._server.settings.frame_bytes_max
        position = 0
        while end - position >= 4:
            (size,) = _FRAME_SIZE(landing, position)
            if not FRAME_BYTES_MIN <= size <= frame_bytes_max:
                raise DecodeError(f"frame size is out of range. size=`{size}` max=`{frame_bytes_max}`")
            start = position + 4
            if end - start < size:
                if size > CARRY_BYTES_MAX:
                    if self._server.has_room(min(size, FRAME_BYTES_FIRST)):
                        try:
                            self._begin_frame(landing[start:end], size)
                        except MemoryError:
                            self._drop_frame(size)
                        return
                    self._waiting = True
                    self._server.waiting_to_begin.append(self)
                break
            position = start + size
            self._handle(landing, start, position, None)
        if position:
            self._behind_large = False
        if position == end:
            self._carry = b""
            self.frame_since = None
        else:
            self._carry = bytes(landing[position:end])
            self.frame_since = self.active_at

    def room_came(self) -> bool:
        """Admit the waiting frame if there is room for it now. Returns whether it was admitted."""
        if self._transport is None:
            self._waiting = False
            return True
        if self._frame is not None:
            more = self._next_size() - self._filled
            if not self._server.may_grow(self, more):
                return False
            self._server.waiting_bytes -= self._filled
            try:
                self._extend_frame()
            except MemoryError:
                self._drop_frame(self._frame_size)
        else:
            (size,) = _FRAME_SIZE(self._carry, 0)
            if not self._server.has_room(min(size, FRAME_BYTES_FIRST)):
                return False
            try:
                self._begin_frame(memoryview(self._carry)[4:], size)
            except MemoryError:
                self._drop_frame(size)
        self._waiting = False
        self.frame_since = self._server.now()  # the client could not send while the frame waited
        self._resume()
        return True

    def _begin_frame(self, received: memoryview, size: int) -> None:
        self._carry = b""
        engine = self._server.engine
        self._frame_size = size
        first = min(size, FRAME_BYTES_FIRST)
        if first < size and engine is not None and engine.pool.has_free(size) and self._server.has_room(size):
            first = size
        frame = self._frame_buffer(first)
        view = memoryview(frame)[:first]
        self._frame, self._frame_view = frame, view
        self._behind_large = size >= LARGE_FRAME_BYTES
        self._filled = len(received)
        self._frame_view[: self._filled] = received
        self.frame_since = self.active_at
        self._reserve(first)

    def _frame_buffer(self, size: int) -> bytearray:
        """Memory for a frame, or for a part of one. Raises MemoryError."""
        engine = self._server.engine
        return bytearray(size) if engine is None else engine.pool.take(size)

    def _drop_frame(self, size: int) -> None:
        """There is no memory for a frame: the connection ends. Nothing else needs to end, because no part of the frame has been
        processed yet."""
        self.drop("out_of_memory", f"there is no memory for a request. size=`{size}`")

    def _next_size(self) -> int:
        return min(self._frame_size, 2 * self._filled)

    def _grow_frame(self) -> None:
        """Enlarge the buffer of a partial frame that has filled it."""
        server = self._server
        if server.has_room(self._next_size() - self._filled):
            try:
                self._extend_frame()
            except MemoryError:
                self._drop_frame(self._frame_size)
            return
        self._waiting = True
        server.waiting_bytes += self._filled
        server.wait_to_grow(self)

    def _extend_frame(self) -> None:
        old, view = self._frame, self._frame_view
        assert old is not None and view is not None
        engine = self._server.engine
        size = self._next_size()
        frame = self._frame_buffer(size)
        larger = memoryview(frame)[:size]
        larger[: self._filled] = view
        self._frame, self._frame_view = frame, larger
        view.release()
        if engine is not None:
            engine.pool.give_back(old)
        self._reserve(size - self._filled)

    def _end_frame(self) -> None:
        frame, view = self._frame, self._frame_view
        assert frame is not None and view is not None
        self._frame = self._frame_view = None
        self.frame_since = None
        size = len(view)
        self._server.frame_ended(self)
        self._release(size)
        self._handle(view, 0, size, frame)
        view.release()
        if self._server.engine is not None:
            self._server.engine.pool.give_back(frame)

    # -- requests

    def _handle(self, buffer: memoryview, start: int, end: int, own: bytearray | None) -> None:
        shape = self._shape
        engine = self._server.engine
        if shape is not None:
            assert engine is not None
            answer = produce_again(engine, shape, buffer, start, end, self._now_ms, own, self._sampled)
            if type(answer) is bytes:
                # A copy of `_produce_done`: calling it would cost the hot path 1.5 % more instructions.
                self._unanswered += end - start
                self._appended = True
                if shape.acks:
                    self._produced.append(answer)
                return
            if answer is not None:
                self._produce_done(buffer, start, end, shape.acks, answer)
                return
        api, version, correlation_id, client_size = _REQUEST(buffer, start)
        if api == PRODUCE and produce_wire.VERSION_MIN <= version <= produce_wire.VERSION_MAX:
            if engine is None or self._parked:
                self._park(buffer[start:end])
                return
            frame = buffer[:end]
            position = self._skip_header(frame, start, client_size, version >= produce_wire.FLEXIBLE)
            if produce_wire.is_large(frame, position, version):
                self._park(buffer[start:end])
                return
            acks, answer, self._shape = produce.produce(
                engine, frame, start + KEY_AT_BYTES, position, version, correlation_id, self._now_ms, self._sampled, own
            )
            self._produce_done(buffer, start, end, acks, answer)
            return
        self._end_of_produce()
        if api == FETCH and fetch_wire.VERSION_MIN <= version <= fetch_wire.VERSION_MAX and engine is not None:
            if end - start > SMALL_FETCH_BYTES:
                work = self._answer_alone(bytes(buffer[start:end]), self._open_slot(end - start))
                self._spawn(work, ended=self._fetch_ended)
                return
            frame = buffer[:end]
            position = self._skip_header(frame, start, client_size, version >= fetch_wire.FLEXIBLE)
            request, portions = fetch.parse(engine, frame, position, version)
            request.portions += portions
            self._fetch(request, correlation_id)
            return
        slot = self._open_slot(end - start)
        self._cold.append((bytes(buffer[start:end]), slot))
        if self._cold_task is None:
            self._cold_task = self._server.loop.create_task(self._serve_cold())
            self._cold_task.add_done_callback(self._task_ended)

    def _produce_done(self, buffer: memoryview, start: int, end: int, acks: int, answer: bytes | Answer) -> None:
        if isinstance(answer, Answer):
            engine = self._server.engine
            assert engine is not None
            if finish(answer.is_on_its_way(engine)):
                self._park(buffer[start:end])
                return
            response = finish(self._refusal(engine, acks, answer))
            self._appended = self._appended or answer.appended
        else:
            response = answer
            self._appended = True
        self._unanswered += end - start
        if acks != 0:
            self._produced.append(response)

    @staticmethod
    def _refusal(engine: Engine, acks: int, answer: Answer) -> Steps[bytes]:
        """The answer to a request with errors. Raises DecodeError if the protocol has no answer (acks=0)."""
        if acks == 0:
            raise DecodeError("a batch sent with acks=0 was refused: closing the connection is all that tells the client")
        return (yield from answer.encode(engine))

    def _park(self, request: memoryview) -> None:
        self._end_of_produce()
        self._shape = None
        self._parked.append((bytearray(request), self._open_slot(len(request))))
        if len(self._parked) == 1:
            self._spawn(self._produce_parked())

    async def _produce_parked(self) -> None:
        """Append the parked requests in order, each as soon as possible. A hand-over is waited for until PARK_S has passed; then
        the answer carries the error."""
        server = self._server
        engine = await server.opened()
        turn = server.turns.begin()
        deadline = server.now() + PARK_S
        while self._parked:
            request, slot = self._parked[0]
            frame = memoryview(request)
            change = engine.leads.next_change()
            try:
                _, version, correlation_id, client_size = _REQUEST(frame, 0)
                position = self._skip_header(frame, 0, client_size, version >= produce_wire.FLEXIBLE)
                is_large = produce_wire.is_large(frame, position, version)
                appending = produce.produce_large(
                    engine, frame, position, version, correlation_id, server.now_ms(), self._source.sent(1)
                )
                acks, answer = await turn.run(appending) if is_large else finish(appending)
                appended = True
                if isinstance(answer, Answer):
                    left = deadline - server.now()
                    if left > 0 and await turn.run(answer.is_on_its_way(engine)):
                        with suppress(TimeoutError):
                            async with asyncio.timeout(left):
                                await change.wait()
                        continue
                    appended = answer.appended
                    answer = await turn.run(self._refusal(engine, acks, answer))
            except PARSE_ERRORS as error:
                self.drop("malformed_request", str(error))
                return
            self._parked.popleft()
            server.requests["produce"] += 1
            self._fill_when_acked(slot, [answer] if acks else [], appended=appended, in_steps=is_large)

    @staticmethod
    def _skip_header(frame: memoryview, start: int, client_size: int, flexible: bool) -> int:
        position = start + REQUEST_HEADER_BYTES + (client_size if client_size > 0 else 0)
        if position > len(frame):
            raise DecodeError("client id is cut off")
        return skip_tags(frame, position) if flexible else position

    def _end_of_produce(self) -> None:
        """Give the produce requests since the last call one slot, which is filled when they are acked."""
        cost = self._unanswered
        if not cost:
            return
        produced, self._produced, self._unanswered = self._produced, [], 0
        self._sampled = self._source.sent(max(len(produced), 1))  # batches without an answer (acks=0) count as one
        appended, self._appended = self._appended, False
        self._server.requests["produce"] += len(produced)
        self._fill_when_acked(self._open_slot(cost), produced, appended=appended)

    def _fill_when_acked(self, slot: Slot, produced: list[bytes], *, appended: bool, in_steps: bool = False) -> None:
        """Fill a slot with answers to produce requests once their batches are acked.

        Args:
            in_steps: the batches were appended in several turns of the loop. Batches of other clients may lie between them, so
                the follower's confirmation is not enough (`Engine.on_acked`).
        """
        if not appended:
            # Errors do not wait: earlier requests may never become durable, and the error may be about that.
            self.fill(slot, [b"".join(produced)])
            return
        slot.written_at = self.active_at

        def acked(error: HeadgateError | None) -> None:
            if error is None:
                self.fill(slot, [b"".join(produced)])
            else:
                self.drop("not_durable", error.message)

        engine = self._server.engine
        assert engine is not None
        (engine.on_durable if in_steps else engine.on_acked)(acked)

    def _fetch(self, request: fetch.FetchRequest, correlation_id: int) -> None:
        server = self._server
        engine = server.engine
        assert engine is not None
        server.requests["fetch"] += 1
        slot = self._open_slot(0)
        max_bytes = self._answer_room(request, slot)
        # The time of reading counts: if the process was stopped while the request waited in the socket, the proof has expired.
        if self.active_at < engine.proof.valid_until_s and max_bytes is not None and (max_bytes > 0 or request.max_bytes <= 0):
            total, failed, left = 0, False, False
            try:
                for portion in request.portions:
                    total, bad, cold = fetch.collect(engine, request.version, portion, total, max_bytes, self.reader)
                    failed = failed or bad
                    left = left or bool(cold)
            except MemoryError:
                self.drop("out_of_memory", "there is no memory for an answer")
                return
            if not left and (failed or request.error or total >= request.min_bytes or request.max_wait_ms <= 0):
                self.fill_counted(slot, finish(fetch.respond(engine, request, correlation_id)))
                return
        self._spawn(self.fetch_later(request, correlation_id, slot, server.turns.begin()), ended=self._fetch_ended)

    async def fetch_later(self, request: fetch.FetchRequest, correlation_id: int, slot: Slot, turn: Turn) -> None:
        """Answer a fetch that is large, or must wait."""
        server = self._server
        engine = server.engine
        assert engine is not None
        deadline = server.now() + min(request.max_wait_ms, server.settings.fetch_wait_max_ms) / 1000
        request.unproven = await self._is_unproven(engine)
        poll: fetch.Poll | None = None
        try:
            while True:
                max_bytes = self._answer_room(request, slot)
                if max_bytes is None:
                    await self._wait_for_room(slot)
                    continue
                paused = False
                if max_bytes > 0 or request.max_bytes <= 0:
                    enough, paused = await self._collect(request, slot, turn, max_bytes)
                    if enough:
                        break
                left = deadline - server.now()
                if left <= 0:
                    break
                self._wake_next()
                if poll is None:
                    poll = fetch.Poll(self.reader, server.loop)
                    now_s = engine.clock.monotonic()
                    for portion in request.portions:
                        if portion is not request.portions[0]:
                            await turn.pause()
                        fetch.note_waiting(portion, self.reader, now_s)
                        poll.subscribe(portion)
                    if paused:
                        # New records may have arrived between the look at a partition and the subscription to it. A partition
                        # that moves from now on ends the wait.
                        continue
                await poll.wait(left if max_bytes > 0 else min(left, ROOM_RETRY_S))
                poll.end()
                poll = None
        finally:
            if poll is not None:
                poll.end()
        self.fill_counted(slot, await turn.run(fetch.respond(engine, request, correlation_id)))
        self._wake_next()

    async def _collect(self, request: fetch.FetchRequest, slot: Slot, turn: Turn, max_bytes: int) -> tuple[bool, bool]:
        """Collect the records that a fetch can have now.

        Returns:
            (whether to answer now, whether the loop may have run others meanwhile).
        """
        engine = self._server.engine
        assert engine is not None
        total, failed, early = 0, bool(request.error), False
        cold: list[fetch.Wanted] = []
        for portion in request.portions:
            if portion is not request.portions[0]:
                await turn.pause()
            total, bad, portion_cold = fetch.collect(engine, request.version, portion, total, max_bytes, self.reader)
            failed = failed or bad
            early = early or fetch.ends_early(portion)
            cold += portion_cold
        if cold:
            early = True
            slot.in_pieces = True
            total, bad = await self._collect_cold(turn, cold, total, max_bytes)
            failed = failed or bad
        enough = failed or request.unproven or total >= request.min_bytes or (total > 0 and early)
        return enough, bool(cold) or len(request.portions) > 1

    @staticmethod
    async def _is_unproven(engine: Engine) -> bool:
        """Whether another broker may lead the partitions by now. A fetch then reports no end of a partition."""
        try:
            await engine.confirm()
        except HeadgateError:
            return True
        return False

    async def _collect_cold(self, turn: Turn, cold: list[fetch.Wanted], total: int, max_bytes: int) -> tuple[int, bool]:
        """Read from the store. The expected bytes are counted in advance, because other connections read meanwhile."""
        engine = self._server.engine
        assert engine is not None
        reserved = max(0, min(max_bytes - total, sum([wanted.max_bytes for wanted in cold])))
        self._held += reserved
        self.count_outgoing()
        try:
            return await fetch.collect_cold(engine, turn, cold, total, max_bytes, self.reader)
        finally:
            if self._transport is not None:
                self._held -= reserved
                self.count_outgoing()

    def _answer_room(self, request: fetch.FetchRequest, slot: Slot) -> int | None:
        """Bytes that the answer may have now. 0: the broker holds too many bytes. None: this client must first take earlier
        answers.

        The answer that is next in turn never waits for the answers behind it.
        """
        return min(request.max_bytes, self._server.fetch_room()) if self._has_room(slot) else None

    def _has_room(self, slot: Slot) -> bool:
        return self._writable and bool(self._slots) and (self._held <= WRITE_BUFFER_BYTES or self._slots[0] is slot)

    async def _wait_for_room(self, slot: Slot) -> None:
        waiter = self._room_waiters[slot] = self._server.loop.create_future()
        await waiter

    def fill_counted(self, slot: Slot, data: list[Buffer]) -> None:
        """Fill a slot with an answer of any size. The answer counts as held until the transport has it."""
        if self._transport is None:
            return
        slot.size = 4 + int.from_bytes(data[0][:4], "big")  # a frame begins with its size
        self._held += slot.size
        self.fill(slot, data)
        if self._held:  # otherwise the answer has left, and was counted then
            self.count_outgoing()

    def _wake_next(self) -> None:
        """Wake one request that waits for room: the next one in turn if it waits, otherwise the one that has waited longest."""
        waiters = self._room_waiters
        if waiters:
            first = self._slots[0] if self._slots and self._slots[0] in waiters else next(iter(waiters))
            waiter = waiters.pop(first)
            if not waiter.done():
                waiter.set_result(None)

    async def _serve_cold(self) -> None:
        """Answer the requests that are not Produce or Fetch, one after another.

        Each request waits until the client has taken the answers ahead of it. Other connections have a turn of the loop
        between two requests.
        """
        try:
            while self._cold:
                frame, slot = self._cold.popleft()
                while not self._has_room(slot):
                    await self._wait_for_room(slot)
                self._wake_next()
                try:
                    await self._server.answer(frame, self, slot)
                except PARSE_ERRORS as error:
                    self.drop("malformed_request", str(error))
                    return
                if self._cold:
                    await asyncio.sleep(0)
        finally:
            self._cold_task = None

    async def _answer_alone(self, frame: bytes, slot: Slot) -> None:
        """Answer a large fetch. Requests behind it do not wait for it."""
        try:
            await self._server.answer(frame, self, slot)
        except PARSE_ERRORS as error:
            self.drop("malformed_request", str(error))

    def _spawn(self, work: Coroutine[object, object, None], *, ended: Callable[[asyncio.Task[None]], None] | None = None) -> None:
        task = self._server.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended or self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, MemoryError):
            left_half_done(self._server.loop, error)
        self._fetch_ended(task)

    def _fetch_ended(self, task: asyncio.Task[None]) -> None:
        """Done callback of a request's task. An unexpected error ends the connection: without an answer the client would wait
        for ever.

        A MemoryError of a fetch ends the connection, too, and nothing else: a fetch changes nothing.
        """
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, MemoryError):
            self.drop("out_of_memory", "there is no memory for an answer")
        elif error is not None:
            log.exception("request_broke", error, peer=self.peer)
            self.drop("request_broke", str(error))

    # -- answers

    def _open_slot(self, cost: int) -> Slot:
        slot = Slot(cost)
        self._slots.append(slot)
        if cost:
            self._reserve(cost)
        return slot

    def fill(self, slot: Slot, data: list[Buffer]) -> None:
        slot.data = data
        if slot.cost:
            self._release(slot.cost)
        if self._flush_scheduled or self._cut or not self._slots or self._slots[0].data is None:
            return
        if len(self._slots) == 1:
            self._flush()
        else:
            # More answers may become ready in this turn of the loop: they leave together.
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._flush_scheduled = True
        self._server.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        transport = self._transport
        if transport is None:
            return
        slots = self._slots
        buffers: list[Buffer] = []
        if self._cut:
            # A thread that wakes up on the core of a loop that never rests may have to wait for that core: here the WAL thread.
            os.sched_yield()
            self._cut = False
        while slots:
            slot = slots[0]
            data = slot.data
            if data is None:
                break
            size = slot.size
            if size > PIECE_BYTES and slot.in_pieces:
                self._cut = True
                buffers.append(b"".join(slot.cut(PIECE_BYTES)))
                self._held -= PIECE_BYTES
                self._written += PIECE_BYTES
                break
            if size > JOINED_BYTES_MAX:
                if buffers:
                    transport.writelines(buffers)
                    buffers = []
                if not self._send(transport, slot):
                    self._cut = True
                    break
                slots.popleft()
                continue
            slots.popleft()
            if size:
                buffers.append(b"".join(data))
            else:
                buffers += data
            self._held -= size
            self._written += size or sum([len(part) for part in data])
        if buffers:
            transport.writelines(buffers)
        self.count_outgoing()
        self._wake_next()
        if self._cut and self._writable:
            self._flush_soon()
        if not self._reading:
            self._resume()

    def _send(self, transport: asyncio.Transport, slot: Slot) -> bool:
        """Write an answer to the socket, as far as the socket accepts it, and a copy of the rest to the transport.

        Returns:
            Whether the whole answer was written. If not, the transport calls back.
        """
        assert slot.data is not None
        if not transport.get_write_buffer_size() and not transport.is_closing():
            try:
                sent = os.writev(self._descriptor, slot.data[:BUFFERS_MAX])
            except OSError:
                sent = 0  # the socket is full, or broken: then the transport reports it
            self._held -= sent
            self._written += sent
            if sent == slot.size:
                return True
            if sent:
                slot.cut(sent)
        if not self._writable:
            return False
        size = min(slot.size, REST_BYTES)
        is_all = size == slot.size
        transport.write(b"".join(slot.data if is_all else slot.cut(size)))
        self._held -= size
        self._written += size
        return is_all

    def own_answers(self, bytes_max: int) -> int:
        """Copy slices of waiting answers that are less than half of the buffer that they keep in memory.

        Returns:
            Bytes copied: at most `bytes_max` and one slice more.
        """
        copied = 0
        for slot in self._slots:
            data = slot.data
            if data is None or slot.size <= JOINED_BYTES_MAX:
                continue
            for number, part in enumerate(data):
                if isinstance(part, memoryview) and memoryview(part.obj).nbytes > 2 * part.nbytes:
                    data[number] = bytes(part)
                    copied += part.nbytes
                    if copied >= bytes_max:
                        return copied
        return copied

    def looked_up(self, *, elsewhere: bool) -> None:
        """Note that a ListOffsets request was answered. `elsewhere`: another broker leads one of its partitions.

        A client should then look for the lead. Some clients, like aiokafka 0.14, do that only when a connection ends;
        otherwise they repeat the request here for minutes. So this connection ends after ASTRAY_MAX such requests, once
        it has no other request.
        """
        self._astray = self._astray + 1 if elsewhere else 0
        if self._astray >= ASTRAY_MAX and not self._slots:
            self.drop("astray", f"the client does not look for the partition's lead. times=`{self._astray}`")

    def drop(self, event: str, reason: str) -> None:
        """End the connection: no answer would help, or the protocol has none."""
        if self._transport is not None:
            self._server.tell_end(event, self.peer, reason)
            self._transport.close()
            self._reading = False
            self._slots.clear()

    def abort(self, event: str, reason: str) -> None:
        """End the connection without waiting for the client to take the remaining answers."""
        if self._transport is not None:
            self._server.tell_end(event, self.peer, reason)
            self._transport.abort()

    @property
    def idle(self) -> bool:
        """Whether the connection has no unanswered request and no partial frame."""
        return not self._slots and self.frame_since is None

    @property
    def reading(self) -> bool:
        return self._reading

    # -- admission

    def count_outgoing(self) -> None:
        """Tell the server the number of bytes held for this client now."""
        now = self._held + (0 if self._transport is None else self._transport.get_write_buffer_size())
        self._server.outgoing_bytes += now - self._counted
        self._counted = now

    def not_durable_s(self, now: float) -> float:
        """Age of the oldest records that are not durable yet, in seconds."""
        for slot in self._slots:
            if slot.written_at is not None and slot.data is None:
                return now - slot.written_at
        return 0.0

    def look_for_stall(self, now: float) -> float:
        """Time since the client last took bytes of a waiting answer, in seconds. The server calls this in every sweep."""
        left = 0 if self._transport is None else self._transport.get_write_buffer_size()
        taken = self._written - left
        if left == 0 or taken != self._taken:
            self._taken = taken
            self.taken_at = now
        return now - self.taken_at

    def _reserve(self, cost: int) -> None:
        if self._transport is None:
            return
        self._inflight += cost
        self._server.inflight_bytes += cost

    def _release(self, cost: int) -> None:
        if self._transport is None:
            return  # the bytes of this connection were given back when it was lost
        self._inflight -= cost
        self._server.inflight_bytes -= cost
        if not self._reading:
            self._resume()
        if self._server.waiting_to_begin or self._server.waiting_to_grow:
            self._server.room_came()

    def _over_limit(self) -> bool:
        server = self._server
        if not self._writable or self._waiting:
            return True
        if self._frame_view is not None:
            # A begun frame is received whole: two connections with half a frame each would otherwise wait for each other for ever.
            return False
        return (
            self._inflight > server.settings.connection_inflight_bytes_max
            or len(self._slots) > SLOTS_MAX
            or (server.inflight_bytes > server.settings.inflight_bytes_max and self._inflight > 0)
        )

    def _pause(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def _resume(self) -> None:
        if not self._reading and self._transport is not None and not self._transport.is_closing() and not self._over_limit():
            self._reading = True
            self._transport.resume_reading()
