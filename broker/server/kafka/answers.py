"""The answers of one connection on their way to its client: in order, and as many as the client takes. No I/O: `Port` writes.

Records in an answer are slices of larger buffers: tails, or data read from the store. A slice that waits for its client keeps
the whole buffer in memory, even after the tail has dropped it. So a large answer is written straight to the socket, as far as
the socket accepts it. The transport gets copies only. Slices that still wait at the next sweep are copied (`own_answers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from headgate.broker.log.batch import Buffer
from headgate.broker.server.kafka.slot import Slot

if TYPE_CHECKING:
    from headgate.broker.server.kafka import fetch
    from headgate.broker.server.kafka.common import Common
    from headgate.broker.server.kafka.frames import Frames

WRITE_BUFFER_BYTES = 256 << 10
"""Answer bytes that a client has not read yet; above this the connection reads nothing more from the client."""
JOINED_BYTES_MAX = 32 << 10
"""An answer up to this size is copied into one buffer. A larger one is written from the buffers that hold its records."""


class Port(Protocol):
    """The effects of a session. `transport.py` executes them on an event loop; tests note them."""

    def flush(self) -> None:
        """Write the answers that are ready."""

    def flush_soon(self) -> None:
        """Write the answers that are ready in the next turn of the loop, together with others."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def unsent_bytes(self) -> int:
        """Bytes that were written and that the client has not taken yet."""

    def append_parked(self) -> None:
        """Append the parked produce requests in order, each as soon as possible."""

    def answer_in_turn(self) -> None:
        """Answer the requests in `others`, one after another."""

    def answer_alone(self, frame: bytes, slot: Slot) -> None:
        """Answer a large fetch. Requests behind it do not wait for it."""

    def answer_fetch(self, request: fetch.FetchRequest, correlation_id: int, slot: Slot) -> None:
        """Answer a fetch that must wait."""

    def wake(self, slot: Slot) -> None:
        """Continue the request that waits in `room_waiters` with this slot."""

    def unmute_at(self, at_s: float) -> None:
        """Call `Throttle.unmute` of the session at that time of the monotonic clock, instead of an earlier one."""

    def close(self) -> None:
        """Close the connection, after the answers that were written have left."""

    def abort(self, event: str, reason: str) -> None:
        """Close the connection at once."""


class Answers:
    """The slots of one connection, and the bytes in them that the client has not taken yet."""

    __slots__ = (
        "_common",
        "_counted",
        "_port",
        "_taken",
        "_written",
        "frames",
        "held",
        "is_closing",
        "is_over",
        "peer",
        "room_waiters",
        "slots",
        "taken_at",
        "will_flush",
        "writable",
    )

    def __init__(self, common: Common, port: Port) -> None:
        self._common = common
        self._port = port
        self.peer = ""
        self.frames: Frames
        """The connection's requests, whose bytes count until they are answered. `Session` makes them."""
        self.slots: deque[Slot] = deque()
        self.writable = True
        """False while the client has not read the answers that the transport holds."""
        self.will_flush = False
        """Whether the port will write without being called: in the next turn of the loop, or when the client has taken more of an
        answer. Ready answers then leave together."""
        self.held = 0
        """Bytes of answers that are ready, or being read from the store, and not yet given to the transport. Answers to produce
        requests do not count."""
        self._counted = 0
        """This connection's share of the common `outgoing_bytes`."""
        self.room_waiters: dict[Slot, None] = {}
        """Requests that wait until the client has taken earlier answers. One is woken at a time, and it wakes the next."""
        self._written = self._taken = 0
        self.taken_at = 0.0
        """Time when the client last took bytes of an answer, or had none to take."""
        self.is_closing = False
        """True once the connection is to end; it then reads nothing more."""
        self.is_over = False
        """True once the connection is gone."""

    # -- room for answers

    def answer_room(self, request: fetch.FetchRequest, slot: Slot) -> int | None:
        """Bytes that the answer may have now. 0: the broker holds too many bytes. None: this client must first take earlier
        answers.

        The answer that is next in turn never waits for the answers behind it.
        """
        return min(request.max_bytes, self._common.fetch_room()) if self.has_room(slot) else None

    def has_room(self, slot: Slot) -> bool:
        """Whether the client has taken enough of the answers ahead of this one."""
        return self.writable and bool(self.slots) and (self.held <= WRITE_BUFFER_BYTES or self.slots[0] is slot)

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count bytes as held for the client while they are read from the store."""
        self.held += size
        self.count_outgoing()
        try:
            yield
        finally:
            if not self.is_over:
                self.held -= size
                self.count_outgoing()

    def wake_next(self) -> None:
        """Wake one request that waits for room: the next one in turn if it waits, otherwise the one that has waited longest."""
        waiters = self.room_waiters
        if waiters:
            first = self.slots[0] if self.slots and self.slots[0] in waiters else next(iter(waiters))
            del waiters[first]
            self._port.wake(first)

    # -- answers

    def _open_slot(self, cost: int) -> Slot:
        slot = Slot(cost)
        self.slots.append(slot)
        if cost:
            self.frames.reserve(cost)
        return slot

    def fill(self, slot: Slot, data: list[Buffer]) -> None:
        slot.data = data
        if slot.cost:
            self.frames.release(slot.cost)
        slots = self.slots
        if self.will_flush or not slots or slots[0].data is None:
            return
        if len(slots) == 1:
            self._port.flush()
        else:
            # More answers may become ready in this turn of the loop: they leave together.
            self._port.flush_soon()

    def fill_counted(self, slot: Slot, data: list[Buffer]) -> None:
        """Fill a slot with an answer of any size. The answer counts as held until the transport has it."""
        if self.is_over:
            return
        slot.size = 4 + int.from_bytes(data[0][:4], "big")  # a frame begins with its size
        self.held += slot.size
        self.fill(slot, data)
        if self.held:  # otherwise the answer has left, and was counted then
            self.count_outgoing()

    def take(self) -> tuple[list[Buffer], Slot | None]:
        """Take the small answers that are ready.

        Returns:
            (these answers in order, the slot of a large answer that is ready behind them).
        """
        slots = self.slots
        buffers: list[Buffer] = []
        while slots:
            slot = slots[0]
            data = slot.data
            if data is None:
                break
            size = slot.size
            if size > JOINED_BYTES_MAX:
                return buffers, slot
            slots.popleft()
            if size:
                buffers.append(b"".join(data))
            else:
                buffers += data
            self.held -= size
            self._written += size or sum([len(part) for part in data])
        return buffers, None

    def take_part(self, slot: Slot, size: int) -> bytes:
        """A copy of the next bytes of a large answer, at most `size`; the slot goes with its last byte."""
        data = slot.data
        assert data is not None
        if size >= slot.size:
            part = b"".join(data)
            self.sent(slot, slot.size)
            return part
        part = b"".join(slot.cut(size))
        self.held -= size
        self._written += size
        return part

    def sent(self, slot: Slot, size: int) -> bool:
        """The first bytes of a large answer have left. Returns whether that was all of it."""
        self.held -= size
        self._written += size
        if size == slot.size:
            self.slots.popleft()
            return True
        if size:
            slot.cut(size)
        return False

    def own_answers(self, bytes_max: int) -> int:
        """Copy slices of waiting answers that are less than half of the buffer that they keep in memory.

        Returns:
            Bytes copied: at most `bytes_max` and one slice more.
        """
        copied = 0
        for slot in self.slots:
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

    def drop(self, event: str, reason: str) -> None:
        """End the connection: no answer would help, or the protocol has none."""
        if not self.is_over:
            self._common.ended(event, self.peer, reason)
            self._port.close()
            self.frames.paused = self.is_closing = True
            self.slots.clear()

    # -- counts

    def count_outgoing(self) -> None:
        """Add the bytes that are held for this client now to the common count."""
        now = self.held + self._port.unsent_bytes()
        self._common.outgoing_bytes += now - self._counted
        self._counted = now

    def not_durable_s(self, now: float) -> float:
        """Age of the oldest records that are not durable yet, in seconds."""
        for slot in self.slots:
            if slot.written_at is not None and slot.data is None:
                return now - slot.written_at
        return 0.0

    def look_for_stall(self, now: float) -> float:
        """Time since the client last took bytes of a waiting answer, in seconds. The listener calls this in every sweep."""
        left = self._port.unsent_bytes()
        taken = self._written - left
        if left == 0 or taken != self._taken:
            self._taken = taken
            self.taken_at = now
        return now - self.taken_at
