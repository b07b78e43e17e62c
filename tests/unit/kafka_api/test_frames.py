"""Bytes to frames, without a socket and without an event loop.

Runs: `Frames` of one connection or several on one `Inbox`. Compared: the frames that were handled with the frames that were sent,
however the bytes are cut, and the counted bytes in flight. A mismatch means that a client's request is lost, cut or handled twice,
or that received bytes are not bounded.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.broker.log.buffers import BufferPool
from headgate.broker.server.kafka.frames import (
    CARRY_BYTES_MAX,
    FRAME_BYTES_FIRST,
    LANDING_BYTES,
    STRANGER_BYTES_MAX,
    STRANGERS_BYTES_MAX,
    Frames,
    Inbox,
)
from headgate.broker.wire.kafka.primitives import DecodeError

SIZES = st.one_of(
    st.integers(8, 100),
    st.sampled_from((CARRY_BYTES_MAX, CARRY_BYTES_MAX + 1, LANDING_BYTES, FRAME_BYTES_FIRST, 2 * FRAME_BYTES_FIRST + 9)),
)


class World:
    """Connections on one inbox."""

    def __init__(self, bytes_max: int = 1 << 30, *, pool: bool = True) -> None:
        self.inbox = Inbox(16 << 20, bytes_max)
        self.inbox.memory = BufferPool(32 << 20) if pool else None
        self.handled: list[tuple[str, bytes, bool]] = []
        self.resumed: list[str] = []
        self.failed: list[int] = []

    def connection(self, name: str) -> Frames:
        def handle(buffer: memoryview, start: int, end: int, own: bytearray | None) -> None:
            self.handled.append((name, bytes(buffer[start:end]), own is not None))

        return Frames(self.inbox, lambda: 5.0, handle, lambda: self.resumed.append(name), self.failed.append)


def feed(frames: Frames, data: bytes | memoryview, most: int) -> int:
    """Give at most `most` of the bytes, as one read of the socket does; returns their number."""
    buffer = frames.buffer()
    size = min(len(data), len(buffer), most)
    buffer[:size] = data[:size]
    frames.received(size, 1.0)
    return size


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no defect
@given(st.lists(SIZES, min_size=1, max_size=5), st.lists(st.integers(1, 1 << 20), min_size=1, max_size=5), st.booleans())
def test_every_frame_is_handled_once_however_the_bytes_are_cut(sizes: list[int], cuts: list[int], pool: bool) -> None:
    world = World(pool=pool)
    frames = world.connection("a")
    bodies = [bytes((number,)) * size for number, size in enumerate(sizes)]
    data = memoryview(b"".join(map(framed, bodies)))
    at = 0
    for number in itertools.count():
        cut = cuts[number % len(cuts)]
        # Short cuts of megabytes would take long.
        at += feed(frames, data[at:], cut if number < 20 else max(cut, 1 << 16))
        if at == len(data):
            break
    assert [body for _, body, _ in world.handled] == bodies
    assert frames.since is None
    assert not frames.is_receiving
    assert (frames.inflight_bytes, world.inbox.inflight_bytes) == (0, 0)


@pytest.mark.parametrize("size", [-1, 0, 7, (16 << 20) + 1, 0x7FFFFFFF])
def test_a_size_out_of_range_is_the_clients_error(size: int) -> None:
    with pytest.raises(DecodeError, match="frame size is out of range"):
        feed(World().connection("a"), size.to_bytes(4, "big", signed=True), 4)


def test_a_claimed_size_takes_no_memory() -> None:
    """Twice the bytes that have arrived, and FRAME_BYTES_FIRST at least."""
    world = World()
    frames = world.connection("a")
    left = (16 << 20).to_bytes(4, "big") + bytes(5 << 20)
    arrived = 0
    while left:
        arrived += (size := feed(frames, left, 1 << 16))
        left = left[size:]
        assert world.inbox.inflight_bytes <= max(FRAME_BYTES_FIRST, 2 * arrived)
    frames.close()
    assert world.inbox.inflight_bytes == 0


def test_frames_that_do_not_fit_together_wait_and_all_of_them_end() -> None:
    """Half-received frames never wait for each other, and at most one of them exceeds the bound."""
    bytes_max = 2 * FRAME_BYTES_FIRST + 1000
    world = World(bytes_max=bytes_max)
    size = 4 << 20
    frame = memoryview(framed(bytes(size)))
    names = [f"{number:02d}" for number in range(12)]
    left = {world.connection(name): frame for name in names}
    waited: set[Frames] = set()
    while any(left.values()):
        reading = [frames for frames, data in left.items() if data and not frames.is_waiting]
        assert reading, "every frame waits for another one"
        for frames in reading:
            if not frames.is_waiting:
                left[frames] = left[frames][feed(frames, left[frames], 1 << 16) :]
            waited |= {one for one in left if one.is_waiting}
            assert world.inbox.inflight_bytes <= bytes_max + size
    assert len(waited) > 1
    assert sorted((name, len(body)) for name, body, _ in world.handled) == [(name, size) for name in names]
    assert (world.inbox.inflight_bytes, world.inbox.waiting_bytes) == (0, 0)


def test_a_connection_that_ends_lets_the_next_one_in() -> None:
    world = World(bytes_max=FRAME_BYTES_FIRST)
    first, second = world.connection("first"), world.connection("second")
    frame = framed(bytes(3 << 20))
    feed(first, frame, 1 << 16)
    feed(second, frame, 1 << 16)
    assert second.is_waiting
    first.close()
    assert not second.is_waiting
    assert second.is_receiving


def test_a_frame_without_memory_ends_only_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    def fail(self: BufferPool, size: int) -> bytearray:
        raise MemoryError

    monkeypatch.setattr(BufferPool, "take", fail)
    feed(world.connection("a"), framed(bytes(3 << 20)), 1 << 16)
    assert world.failed == [3 << 20]
    assert not world.handled


def test_a_client_before_its_login_sends_64_kib_and_takes_no_room_from_others() -> None:
    world = World()
    frames = world.connection("stranger")
    frames.meet_stranger()
    with pytest.raises(DecodeError, match=f"max=`{STRANGER_BYTES_MAX}`"):
        feed(frames, (STRANGER_BYTES_MAX + 1).to_bytes(4, "big"), 4)
    body = bytes(STRANGER_BYTES_MAX)
    whole = framed(body)
    frames = world.connection("cut")
    frames.meet_stranger()
    for at in range(0, len(whole), 5000):
        assert world.inbox.inflight_bytes == 0
        feed(frames, whole[at:], 5000)
    assert world.handled == [("cut", body, False)] and world.inbox.strangers_bytes == 0
    half = whole[: len(whole) // 2]
    crowd = [world.connection(str(number)) for number in range(STRANGERS_BYTES_MAX // len(half))]
    for one in crowd:
        one.meet_stranger()
        feed(one, half, len(half))
    last = world.connection("one too many")
    last.meet_stranger()
    with pytest.raises(DecodeError, match="before their login"):
        feed(last, half, len(half))
    last.close()
    crowd[0].let_in()
    for one in crowd[1:]:
        one.close()
    assert world.inbox.strangers_bytes == 0
    feed(crowd[0], whole[len(half) :], len(whole))
    assert world.handled[-1] == ("0", body, False), "a login in the middle of a frame loses nothing"
    feed(crowd[0], framed(bytes(STRANGER_BYTES_MAX + 1)), 1 << 20)
    assert len(world.handled[-1][1]) == STRANGER_BYTES_MAX + 1, "after the login"


def test_a_large_frame_is_judged_by_its_api_before_it_gets_memory() -> None:
    world = World()
    asked: list[tuple[int, int]] = []

    def check(api: int, size: int) -> None:
        asked.append((api, size))
        raise DecodeError("too large")

    frames = Frames(world.inbox, lambda: 5.0, lambda *_: None, lambda: None, world.failed.append, check)
    frame = framed(b"\0\3" + bytes(4 << 20))
    feed(frames, frame, 5)
    assert not asked
    with pytest.raises(DecodeError):
        feed(frames, frame[5:], 1)
    assert asked == [(3, 2 + (4 << 20))] and world.inbox.inflight_bytes == 0
