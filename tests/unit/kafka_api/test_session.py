"""The rules of one connection, without a socket, without an engine and without an event loop.

Runs: a `Session` whose port notes every effect. Compared: the order of answers, the parked requests, the limits, and the effects.
A mismatch means that a client gets answers in another order than that of its requests, or that memory is not bounded.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.broker.log.batch import Buffer
from headgate.broker.runtime.config import MIB, Settings
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.kafka.answers import JOINED_BYTES_MAX, WRITE_BUFFER_BYTES
from headgate.broker.server.kafka.common import ROOM_BYTES_MIN, AdvertisedListener, Common
from headgate.broker.server.kafka.pending_requests import PendingRequests
from headgate.broker.server.kafka.session import ASTRAY_MAX, PIECE_BYTES, SLOTS_MAX, Session
from headgate.broker.server.kafka.slot import Slot

METADATA, PRODUCE = 3, 0


class Port:
    """Notes the effects of a session."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.woken: list[Slot] = []
        self.unsent = 0

    def unsent_bytes(self) -> int:
        return self.unsent

    def wake(self, slot: Slot) -> None:
        self.woken.append(slot)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.effects.append(name)


class World:
    def __init__(self, **settings: int) -> None:
        self.now_s = 10.0
        self.ended: list[str] = []
        self.unserved: list[str] = []

        async def opened() -> Any:
            raise AssertionError

        self.common = Common(
            Settings(**settings),  # type: ignore[arg-type]  # all settings of these tests are numbers
            AdvertisedListener(name="PLAINTEXT", protocol="PLAINTEXT", host="host", port=1),
            now=lambda: self.now_s,
            now_ms=lambda: 0,
            turns=Turns(lambda: self.now_s),
            opened=opened,
            ended=lambda event, peer, reason: self.ended.append(event),
            unserved=lambda host, reason: self.unserved.append(reason),
        )
        self.port = Port()
        self.session = Session(self.common, cast(Any, self.port))

    def receive(self, *requests: bytes) -> None:
        data = b"".join(len(one).to_bytes(4, "big") + one for one in requests)
        buffer = self.session.frames.buffer()
        buffer[: len(data)] = data
        self.session.received(len(data))

    def written(self) -> bytes:
        """Write as a transport does whose socket accepts everything, or at every second piece nothing."""
        out = b""
        session = self.session
        accepts = False
        while True:
            buffers, slot = session.take()
            out += b"".join(buffers)
            if slot is None:
                break
            if slot.in_pieces and slot.size > PIECE_BYTES:
                accepts = not accepts
                if accepts:
                    out += b"".join(slot.first(PIECE_BYTES))
                    assert not session.sent(slot, PIECE_BYTES)
                else:
                    out += session.take_part(slot, PIECE_BYTES)
            else:
                out += b"".join(slot.data or [])
                assert session.sent(slot, slot.size)
        session.flushed(self.port.unsent)
        return out


def test_writers_are_noticed_until_a_sweep_finds_no_batch() -> None:
    common = World().common
    assert common.has_writers, "unknown before the first sweeps"
    seen = []
    for count in (0, 0, 3, 3, 3, 4, 5):
        common.note_batches(count)
        seen.append(common.has_writers)
    assert seen == [True, False, True, False, False, True, True]


def request(key: int, *, size: int = 0, version: int = 9) -> bytes:
    return key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff" + bytes(1 + size)


def answer(number: int, size: int) -> list[Buffer]:
    """An answer with its length prefix, in several buffers."""
    body = bytes((number,)) * size
    return [size.to_bytes(4, "big"), body[: size // 2], body[size // 2 :]]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no defect
@given(
    st.lists(st.sampled_from((8, 100, JOINED_BYTES_MAX, JOINED_BYTES_MAX + 1, PIECE_BYTES + 1, 3 * PIECE_BYTES)), max_size=8),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_answers_leave_in_the_order_of_requests(sizes: list[int], random: Any, in_pieces: bool) -> None:
    world = World()
    session = world.session
    world.receive(*[request(METADATA)] * len(sizes))
    slots = list(session.slots)
    assert world.port.effects == ["answer_in_turn"] * bool(sizes), "one task answers all of them"
    order = list(range(len(sizes)))
    random.shuffle(order)
    out = b""
    for number in order:
        slots[number].in_pieces = in_pieces
        session.fill_counted(slots[number], answer(number, sizes[number]))
        out += world.written()
    assert out == b"".join(b"".join(bytes(part) for part in answer(number, size)) for number, size in enumerate(sizes))
    assert not session.slots
    assert (session.held, world.common.outgoing_bytes, world.common.inbox.inflight_bytes) == (0, 0, 0)


def test_produce_requests_before_the_engine_are_parked_in_order() -> None:
    world = World()
    world.receive(request(PRODUCE), request(METADATA), request(PRODUCE, size=1))
    assert world.port.effects == ["append_parked", "answer_in_turn"], "one task appends all of them"
    assert [bytes(parked) for parked, _ in world.session.parked] == [request(PRODUCE), request(PRODUCE, size=1)]
    assert len(world.session.slots) == 3


@pytest.mark.parametrize("bad", [b"\0\x03\0", request(PRODUCE)[:9], b"\xff" * 12])
def test_bytes_that_are_no_request_end_the_connection(bad: bytes) -> None:
    world = World()
    world.common.engine = cast(Any, SimpleNamespace())
    world.receive(bad)
    if world.session.others:
        return  # the header is whole; its API is judged by the task
    assert world.ended == ["malformed_request"]
    assert world.port.effects == ["close"]
    assert world.session.frames.paused


@pytest.mark.parametrize(("key", "version", "name"), [(999, 0, "unknown"), (78, 1, "ShareFetch"), (METADATA, 99, "Metadata")])
async def test_an_unserved_request_names_the_api_and_the_client(key: int, version: int, name: str) -> None:
    world = World()
    frame = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\x00\x04mine"
    await PendingRequests(world.common, world.session).answer(frame, cast(Any, None))
    asked = f"asked=`Kafka API {name} ({key}), version {version}` client_id=`mine`"
    assert world.unserved == [f"a client asked for something that is not served. {asked}"]
    assert (world.ended, world.port.effects) == (["not_served"], ["close"])


def test_requests_beyond_a_limit_stay_in_the_socket() -> None:
    world = World(connection_inflight_bytes_max=1000)
    world.receive(request(METADATA, size=2000))
    assert world.port.effects == ["answer_in_turn", "pause_reading"]
    (slot,) = world.session.slots
    world.session.fill_counted(slot, answer(1, 8))
    assert world.port.effects[2:] == ["resume_reading", "flush"]
    assert world.written()


def test_many_small_requests_stay_in_the_socket_too() -> None:
    world = World()
    world.receive(*[request(METADATA)] * (SLOTS_MAX + 1))
    assert world.port.effects[-1] == "pause_reading"


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    world = World()
    world.receive(request(METADATA), request(METADATA))
    first, second = world.session.slots
    world.session.pause_writing()
    assert world.port.effects[-1] == "pause_reading"
    assert not world.session.has_room(first)
    world.session.resume_writing()
    assert world.port.effects[-1] == "resume_reading"
    world.session.fill_counted(second, answer(2, WRITE_BUFFER_BYTES + 1))
    assert world.session.has_room(first), "the answer that is next in turn never waits for the answers behind it"
    assert not world.session.has_room(second)


def test_one_waiter_is_woken_at_a_time_and_the_next_in_turn_first() -> None:
    world = World()
    world.receive(*[request(METADATA)] * 3)
    first, second, third = world.session.slots
    world.session.room_waiters.update({third: None, first: None, second: None})
    for _ in range(4):
        world.session.wake_next()
    assert world.port.woken == [first, third, second]


def test_a_wait_for_the_store_counts_and_is_given_back() -> None:
    world = World()
    with world.session.holding(500):
        assert world.common.outgoing_bytes == 500
    assert world.common.outgoing_bytes == 0
    with world.session.holding(500):
        world.session.lost()
    assert world.common.outgoing_bytes == 0


def test_an_answer_has_the_room_that_is_left() -> None:
    """Otherwise one answer takes 55 MiB more than the limit."""
    world = World(inflight_bytes_max=16 * MIB, frame_bytes_max=MIB, fetch_bytes_max=10 * MIB)
    held_bytes, room = (0, 6 * MIB, 9 * MIB, 16 * MIB, 16 * MIB + 1), []
    for size in held_bytes:
        with world.session.holding(size):
            room.append(world.common.fetch_room())
    assert room == [10 * MIB, 10 * MIB, 7 * MIB, ROOM_BYTES_MIN, 0]


def test_a_client_that_never_looks_for_the_lead_loses_its_connection() -> None:
    world = World()
    for elsewhere in (*[True] * (ASTRAY_MAX - 1), False, *[True] * (ASTRAY_MAX - 1)):
        world.session.looked_up(elsewhere=elsewhere)
    assert not world.ended
    world.session.looked_up(elsewhere=True)
    assert world.ended == ["astray"]


def test_an_answer_that_waits_pins_only_what_it_counts() -> None:
    world = World()
    world.receive(request(METADATA), request(METADATA))
    first, second = world.session.slots
    segment = bytearray(4 << 20)
    part = memoryview(segment)[: 100 << 10]
    world.session.fill_counted(second, [(len(part)).to_bytes(4, "big"), part])
    assert world.session.own_answers(1 << 20) == len(part)
    assert second.data is not None
    assert bytes(second.data[1]) == bytes(part)
    assert isinstance(second.data[1], bytes)
    assert first.data is None


def test_a_stall_is_time_without_a_byte_taken() -> None:
    world = World()
    world.receive(request(METADATA))
    (slot,) = world.session.slots
    world.session.fill_counted(slot, answer(1, 100))
    world.written()
    world.port.unsent = 104
    assert world.session.look_for_stall(20.0) == 20.0, "it has taken nothing since it came"
    world.port.unsent = 50
    assert world.session.look_for_stall(30.0) == 0.0
    assert world.session.look_for_stall(37.0) == 7.0


def test_a_lost_connection_gives_back_what_it_counted() -> None:
    world = World()
    world.receive(request(METADATA, size=1000))
    (slot,) = world.session.slots
    assert world.common.inbox.inflight_bytes
    world.session.lost()
    assert world.common.inbox.inflight_bytes == 0
    world.session.fill_counted(slot, answer(1, 100))
    world.session.drop("closing", "late")
    assert not world.ended
    assert world.common.outgoing_bytes == 0
