"""Bytes of a connection to frames. It does no I/O and knows no event loop.

All connections read into one landing buffer, so an idle connection owns no memory. Whole frames are handled in the landing
buffer. A partial frame is carried over. A small one is carried as bytes. A large one gets its own buffer: the rest is received
directly into it, and the buffer can become a part of the partition's tail without a copy. The buffer grows with the bytes that
have arrived: the size that a frame claims takes no memory.

A client that must still log in may send small frames only. Their parts are carried, and `Inbox` bounds those of all such clients
together, so they take no room from the frames of users.

Admission is by bytes. `Inbox` counts the received bytes without an answer of all connections. A large frame that has no room
waits, and its connection reads nothing meanwhile.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headgate.broker.wire.kafka.primitives import DecodeError

LANDING_BYTES = 528 << 10
"""The one buffer into which every connection receives; its bytes are handled before the next read."""
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
STRANGER_BYTES_MAX = 64 << 10
"""Largest frame before the login: a token has some kilobytes."""
STRANGERS_BYTES_MAX = 16 << 20
"""Partial frames of all clients before their login. The connection whose bytes exceed it is closed."""
API_KEY_BYTES = 2
FRAME_BYTES_MIN = 8
"""Size of API key, version and correlation id."""

_API_KEY = struct.Struct(">h").unpack_from
_FRAME_SIZE = struct.Struct(">i").unpack_from

Handler = Callable[[memoryview, int, int, "bytearray | None"], None]
"""Handles one frame: (buffer, first position behind the length prefix, end, the frame's own buffer if it has one)."""
LargeCheck = Callable[[int, int], None]
"""Raises DecodeError if the client may not send a request of this API key and size. Asked before a large frame gets a buffer."""


class Memory(Protocol):
    """The pool of large buffers."""

    def take(self, size: int) -> bytearray: ...

    def give_back(self, buffer: bytearray) -> None: ...

    def has_free(self, size: int) -> bool: ...


class Inbox:
    """The landing buffer, and the bytes in flight of all connections.

    Args:
        frame_bytes_max: largest frame, bytes.
        bytes_max: bound of the bytes in flight. One frame may exceed it.
    """

    def __init__(self, frame_bytes_max: int, bytes_max: int) -> None:
        self.landing = memoryview(bytearray(LANDING_BYTES))
        self.frame_bytes_max = frame_bytes_max
        self.bytes_max = bytes_max
        self.memory: Memory | None = None
        """Set once the engine is open."""
        self.inflight_bytes = 0
        """Received and unanswered bytes of all connections."""
        self.strangers_bytes = 0
        """Partial frames of clients before their login; they do not count as in flight."""
        self.waiting_bytes = 0
        """Share of `inflight_bytes` that belongs to frames that wait to grow."""
        self.waiting_to_begin: deque[Frames] = deque()
        """Connections with a frame that `bytes_max` does not allow to begin yet; in order of arrival."""
        self.waiting_to_grow: deque[Frames] = deque()
        """Connections with a begun frame that may not grow yet. They come before `waiting_to_begin`."""
        self._exceeding: Frames | None = None
        """The only connection with a frame that may grow beyond `bytes_max`, until that frame is whole."""

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be received now. The only frame in flight may always begin."""
        return self.inflight_bytes == 0 or self.inflight_bytes + size <= self.bytes_max

    def may_grow(self, frames: Frames, size: int) -> bool:
        """Whether the begun frame of a connection may take `size` more bytes now.

        If all bytes in flight belong to frames that wait to grow, then one of these frames may exceed the limit until it is whole:
        otherwise none of them would ever be whole.
        """
        if self.inflight_bytes + size <= self.bytes_max:
            return True
        if self.inflight_bytes != self.waiting_bytes or self._exceeding not in (None, frames):
            return False
        self._exceeding = frames
        return True

    def wait_to_grow(self, frames: Frames, filled: int) -> None:
        """Let a connection's begun frame of `filled` bytes grow as soon as possible, which may be now."""
        self.waiting_bytes += filled
        if self._exceeding is frames:
            self.waiting_to_grow.appendleft(frames)
        else:
            self.waiting_to_grow.append(frames)
        self.room_came()

    def frame_ended(self, frames: Frames) -> None:
        """The frame of a connection is whole, or the connection has ended."""
        if self._exceeding is frames:
            self._exceeding = None

    def room_came(self) -> None:
        """Admit the frames that wait, in order, as far as there is room."""
        for waiting in (self.waiting_to_grow, self.waiting_to_begin):
            while waiting:
                if not waiting[0].admitted():
                    return
                waiting.popleft()


class Frames:
    """Splits the bytes of one connection into frames.

    Args:
        now: a monotonic clock, seconds.
        resume: called while `paused` when bytes were released or a waiting frame was admitted: the connection may read again.
        out_of_memory: called with the size of a frame for which there is no memory. Nothing of it was handled.
        check_large: judges a large frame by its beginning.
    """

    __slots__ = (
        "_behind_large",
        "_carry",
        "_check_large",
        "_filled",
        "_frame",
        "_handle",
        "_inbox",
        "_now",
        "_out_of_memory",
        "_resume",
        "_size",
        "_strange_bytes",
        "_view",
        "bytes_max",
        "ended",
        "inflight_bytes",
        "is_stranger",
        "is_waiting",
        "paused",
        "since",
    )

    def __init__(
        self,
        inbox: Inbox,
        now: Callable[[], float],
        handle: Handler,
        resume: Callable[[], None],
        out_of_memory: Callable[[int], None],
        check_large: LargeCheck = lambda api, size: None,
    ) -> None:
        self._inbox = inbox
        self._now = now
        self._handle = handle
        self._resume = resume
        self._out_of_memory = out_of_memory
        self._check_large = check_large
        self.bytes_max = inbox.frame_bytes_max
        """Largest frame of this client."""
        self.is_stranger = False
        """Whether the client must still log in."""
        self._strange_bytes = 0
        """This connection's share of `strangers_bytes`."""
        self._frame: bytearray | None = None
        self._view: memoryview | None = None
        """The allocated part of the frame that is being received."""
        self._size = 0
        """Total size of this frame, as the frame claims."""
        self._filled = 0
        self._carry = b""
        self._behind_large = False
        """Whether the last frame was a large one."""
        self.inflight_bytes = 0
        """This connection's share of the bytes in flight."""
        self.is_waiting = False
        """Whether a frame waits for room, at its start or to grow."""
        self.since: float | None = None
        """Arrival time of the first byte of the partial frame; None without a partial frame."""
        self.paused = False
        """Whether the connection reads nothing for now. Set by the session."""
        self.ended = False

    @property
    def is_receiving(self) -> bool:
        """Whether a large frame has begun."""
        return self._view is not None

    def buffer(self, sizehint: int = -1) -> memoryview:
        """Memory for the next bytes from the socket. The event loop's hint at their number does not matter."""
        if self._view is not None:
            return self._view[self._filled :]
        landing = self._inbox.landing
        carry = self._carry
        if carry:
            landing[: len(carry)] = carry
            return landing[len(carry) :]
        return landing[:BEGINNING_BYTES] if self._behind_large else landing

    def received(self, size: int, now_s: float) -> None:
        """Handle the whole frames after `size` bytes were written into `buffer()`. Raises DecodeError, and the errors of the
        handler."""
        if self._view is not None:
            self._filled += size
            if self._filled == len(self._view):
                if self._filled == self._size:
                    self._end()
                else:
                    self._grow()
            return
        inbox = self._inbox
        landing, handle = inbox.landing, self._handle
        end = len(self._carry) + size
        position = 0
        while end - position >= 4:
            (size,) = _FRAME_SIZE(landing, position)
            if not FRAME_BYTES_MIN <= size <= self.bytes_max:
                raise DecodeError(f"frame size is out of range. size=`{size}` max=`{self.bytes_max}`")
            start = position + 4
            if end - start < size:
                if size > CARRY_BYTES_MAX and end - start >= API_KEY_BYTES and not self.is_stranger:
                    self._check_large(_API_KEY(landing, start)[0], size)
                    if inbox.has_room(min(size, FRAME_BYTES_FIRST)):
                        try:
                            self._begin(landing[start:end], size, now_s)
                        except MemoryError:
                            self._out_of_memory(size)
                        return
                    self.is_waiting = True
                    inbox.waiting_to_begin.append(self)
                break
            position = start + size
            handle(landing, start, position, None)
        if position:
            self._behind_large = False
        if position == end:
            self._carry = b""
            self.since = None
        else:
            self._carry = bytes(landing[position:end])
            self.since = now_s
        if self.is_stranger:
            self._count_strange(len(self._carry))

    def meet_stranger(self) -> None:
        """The client must log in before it may send large frames."""
        self.is_stranger, self.bytes_max = True, STRANGER_BYTES_MAX

    def let_in(self) -> None:
        """The client has logged in."""
        if self.is_stranger:
            self._count_strange(0)
            self.is_stranger, self.bytes_max = False, self._inbox.frame_bytes_max

    def _count_strange(self, size: int) -> None:
        """Count the partial frame of a client before its login. Raises DecodeError if all such clients have sent too much."""
        inbox = self._inbox
        inbox.strangers_bytes += size - self._strange_bytes
        self._strange_bytes = size
        if size and inbox.strangers_bytes > STRANGERS_BYTES_MAX:
            raise DecodeError(f"clients before their login have sent too much. size_bytes_max=`{STRANGERS_BYTES_MAX}`")

    def close(self) -> None:
        """The connection is gone: give back its bytes in flight."""
        inbox = self._inbox
        inflight, self.inflight_bytes = self.inflight_bytes, 0
        inbox.inflight_bytes -= inflight
        self._count_strange(0)
        if self.is_waiting and self._frame is not None:
            inbox.waiting_bytes -= self._filled
        self._frame = self._view = None
        self.ended = True
        inbox.frame_ended(self)
        inbox.room_came()

    # -- admission

    def reserve(self, size: int) -> None:
        """Count bytes as in flight."""
        if not self.ended:
            self.inflight_bytes += size
            self._inbox.inflight_bytes += size

    def release(self, size: int) -> None:
        """Count bytes as answered."""
        if self.ended:
            return  # the bytes of this connection were given back when it was lost
        self.inflight_bytes -= size
        inbox = self._inbox
        inbox.inflight_bytes -= size
        if self.paused:
            self._resume()
        if inbox.waiting_to_begin or inbox.waiting_to_grow:
            inbox.room_came()

    def admitted(self) -> bool:
        """Admit the waiting frame if there is room for it now. Returns whether it waits no longer."""
        if self.ended:
            self.is_waiting = False
            return True
        inbox = self._inbox
        if self._frame is not None:
            if not inbox.may_grow(self, self._next_size() - self._filled):
                return False
            inbox.waiting_bytes -= self._filled
            try:
                self._extend()
            except MemoryError:
                self._out_of_memory(self._size)
        else:
            (size,) = _FRAME_SIZE(self._carry, 0)
            if not inbox.has_room(min(size, FRAME_BYTES_FIRST)):
                return False
            try:
                self._begin(memoryview(self._carry)[4:], size, self._now())
            except MemoryError:
                self._out_of_memory(size)
        self.is_waiting = False
        self.since = self._now()  # the client could not send while the frame waited
        if self.paused:
            self._resume()
        return True

    # -- large frames

    def _begin(self, received: memoryview, size: int, now_s: float) -> None:
        self._carry = b""
        inbox = self._inbox
        self._size = size
        first = min(size, FRAME_BYTES_FIRST)
        if first < size and inbox.memory is not None and inbox.memory.has_free(size) and inbox.has_room(size):
            first = size
        frame = self._buffer_of(first)
        view = memoryview(frame)[:first]
        self._frame, self._view = frame, view
        self._behind_large = size >= LARGE_FRAME_BYTES
        self._filled = len(received)
        view[: self._filled] = received
        self.since = now_s
        self.reserve(first)

    def _buffer_of(self, size: int) -> bytearray:
        """Memory for a frame, or for a part of one. Raises MemoryError."""
        memory = self._inbox.memory
        return bytearray(size) if memory is None else memory.take(size)

    def _next_size(self) -> int:
        return min(self._size, 2 * self._filled)

    def _grow(self) -> None:
        """Enlarge the buffer of a partial frame that has filled it."""
        inbox = self._inbox
        if inbox.has_room(self._next_size() - self._filled):
            try:
                self._extend()
            except MemoryError:
                self._out_of_memory(self._size)
            return
        self.is_waiting = True
        inbox.wait_to_grow(self, self._filled)

    def _extend(self) -> None:
        old, view = self._frame, self._view
        assert old is not None and view is not None
        size = self._next_size()
        frame = self._buffer_of(size)
        larger = memoryview(frame)[:size]
        larger[: self._filled] = view
        self._frame, self._view = frame, larger
        view.release()
        if self._inbox.memory is not None:
            self._inbox.memory.give_back(old)
        self.reserve(size - self._filled)

    def _end(self) -> None:
        frame, view = self._frame, self._view
        assert frame is not None and view is not None
        self._frame = self._view = None
        self.since = None
        size = len(view)
        self._inbox.frame_ended(self)
        self.release(size)
        self._handle(view, 0, size, frame)
        view.release()
        if self._inbox.memory is not None:
            self._inbox.memory.give_back(frame)
