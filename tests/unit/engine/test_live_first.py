"""How much history a lead serves beside live records.

Runs: `LiveFirst` on a time that the test moves, with acks whose time depends on the history that was served. Compared: the rate of
history with what the rules promise. A mismatch means that live records wait for history, or that history waits for nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from headgate.broker.engine.read.live_first import FREE_BYTES_PER_S, QUIET_AGE_S, RECENT_S, WAIT_S_MAX, WINDOW_S, LiveFirst
from headgate.broker.engine.read.places import Places
from tests.support.waiting import begun

MIB = 1 << 20
FLOOR = 16 * MIB
ANSWER = 8 * MIB
QUIET_S = 0.002


class Lead:
    """A lead with a producer of 1,000 records a second, from which history flows at 2 GB/s at most. `ack_s`: the time of an ack at
    a rate of history in bytes a second."""

    def __init__(self, ack_s: Callable[[float], float]) -> None:
        self.now_s = 100.0
        self.ack_s, self.acks_per_s, self.speed = ack_s, 1000.0, 2e9
        self.count, self.total_s = 0.0, 0.0
        self.rate = 0.0
        self.sent = 0
        self.longest_s = 0.0
        self.live = LiveFirst(lambda: self.now_s, FLOOR, self.sleep)
        self.live.acks = lambda: (int(self.count), self.total_s)

    async def sleep(self, seconds: float) -> None:
        self.longest_s = max(self.longest_s, seconds)
        self.move(seconds, 0)

    def move(self, seconds: float, served: int) -> None:
        self.now_s += seconds
        share = min(seconds / WINDOW_S, 1.0)
        self.rate = self.rate * (1 - share) + share * served / seconds
        self.count += self.acks_per_s * seconds
        self.total_s += self.acks_per_s * seconds * self.ack_s(self.rate)

    async def read(self, seconds: float) -> float:
        """One reader takes history for so long. Returns its rate in bytes a second."""
        end_s, sent = self.now_s + seconds, self.sent
        while self.now_s < end_s:
            async with self.live.turn(ANSWER) as room:
                assert 1 <= room <= ANSWER
                self.move(room / self.speed, room)
                self.live.served(room)
                self.sent += room
        return (self.sent - sent) / seconds


async def limited() -> Lead:
    """A lead whose acks are slow with any history: it limits reads."""
    lead = Lead(lambda rate: QUIET_S if rate == 0.0 else 1.0)
    lead.move(10.0, 0)
    await lead.read(5.0)
    return lead


async def test_history_is_free_while_acks_are_quick() -> None:
    lead = Lead(lambda rate: QUIET_S)
    lead.move(10.0, 0)
    assert await lead.read(30.0) > 1.9e9
    assert not lead.live.is_limited and str(lead.live) == "" and lead.live.waited_s == 0.0


async def test_history_gives_way_until_acks_are_quick() -> None:
    # Above 200 MB/s acks are six times slower.
    lead = Lead(lambda rate: QUIET_S if rate < 200e6 else 6 * QUIET_S)
    lead.move(10.0, 0)
    await lead.read(5.0)
    assert lead.live.is_limited and lead.live.waited_s > 0.0
    assert 60e6 < await lead.read(20.0) < 260e6
    assert "MiB/s" in str(lead.live) and "2.0 ms without history" in str(lead.live)


async def test_history_never_stops() -> None:
    lead = Lead(lambda rate: QUIET_S if rate == 0.0 else 1.0)
    lead.move(10.0, 0)
    await lead.read(20.0)
    assert lead.live.bytes_per_s == FLOOR
    assert 0.8 * FLOOR < await lead.read(30.0) <= 1.1 * FLOOR
    assert lead.longest_s < 1.0, "answers are small then"


async def test_the_limit_ends_with_the_producer() -> None:
    lead = await limited()
    assert lead.live.is_limited
    lead.acks_per_s = 15
    await lead.read(3.0)
    assert lead.live.bytes_per_s == math.inf


async def test_the_time_of_quiet_acks_is_measured_again() -> None:
    """History was read from the beginning, so how long acks take without it is found by a rest; later the disk becomes slower."""
    slow = 1.0
    lead = Lead(lambda rate: slow * QUIET_S)
    await lead.read(2.0)
    assert lead.live.quiet_s == pytest.approx(QUIET_S) and lead.live.waited_s <= 2 * WINDOW_S
    slow = 5.0
    await lead.read(2.0)
    assert lead.live.is_limited, "it may be history's fault"
    await lead.read(3 * QUIET_AGE_S)
    assert lead.live.quiet_s == pytest.approx(5 * QUIET_S) and lead.live.bytes_per_s > FREE_BYTES_PER_S / 2, "it was not"


async def test_a_limit_that_no_reader_feels_is_not_shown() -> None:
    lead = await limited()
    assert str(lead.live) and lead.live.shown_bytes_per_s == FLOOR
    lead.move(RECENT_S + 1, 0)
    assert str(lead.live) == "" and lead.live.shown_bytes_per_s == 0, "the reader went away"
    async with lead.live.turn(ANSWER, WAIT_S_MAX):
        assert lead.live.shown_bytes_per_s == lead.live.bytes_per_s


async def test_limited_reads_come_one_after_another() -> None:
    lead = await limited()
    running = most = 0

    async def one() -> None:
        nonlocal running, most
        async with lead.live.turn(ANSWER) as room:
            running += 1
            most = max(most, running)
            assert not lead.live.is_open
            lead.live.served(room)
            running -= 1

    await asyncio.gather(*[one() for _ in range(5)])
    assert most == 1


async def test_a_reader_that_goes_away_leaves_the_turn() -> None:
    lead = await limited()
    with pytest.raises(asyncio.CancelledError):
        async with lead.live.turn(ANSWER):
            raise asyncio.CancelledError
    async with asyncio.timeout(5):
        async with lead.live.turn(ANSWER) as room:
            assert room


async def test_a_fetch_waits_for_a_bounded_time() -> None:
    lead = await limited()
    lead.live.served(10 * FLOOR)
    began_s = lead.now_s
    async with lead.live.turn(ANSWER, WAIT_S_MAX) as room:
        assert room == 0 and lead.now_s == began_s + WAIT_S_MAX
    async with lead.live.turn(ANSWER, WAIT_S_MAX) as room:
        assert room == 0, "still in debt"
        async with lead.live.turn(ANSWER, 0.01) as other:
            assert other == 0, "one has the turn"
    async with lead.live.turn(ANSWER) as room:
        assert room > 0, "the debt is paid"


async def test_a_fetch_whose_wait_ended_keeps_its_place() -> None:
    """Otherwise readers that were served come before it each time, and it never has a record."""
    lead = await limited()
    order: list[int] = []

    async def fetch(reader: int) -> None:
        async with lead.live.turn(ANSWER, reader=reader) as room:
            assert room > 0
            order.append(reader)

    async with lead.live.turn(ANSWER, reader=1):
        async with lead.live.turn(ANSWER, 0.01, reader=2) as room:
            assert room == 0, "another reader has the turn"
        fetches = [await begun(fetch(reader)) for reader in (3, 4, 2)]
        gone = await begun(fetch(5))
        gone.cancel()
    await asyncio.gather(*fetches)
    assert order == [2, 3, 4]


@pytest.mark.parametrize("cancelled_first", [False, True])
async def test_a_turn_that_comes_together_with_a_cancellation_is_passed_on(cancelled_first: bool) -> None:
    places = Places()
    held = places.place(None)
    await places.take(held)
    numbers = [places.place(None) for _ in range(2)]
    first, second = [await begun(places.take(number)) for number in numbers]
    for act in (first.cancel, lambda: places.leave(held)) if cancelled_first else (lambda: places.leave(held), first.cancel):
        act()
    async with asyncio.timeout(5):
        await asyncio.wait((first, second))
    assert first.cancelled() and places.is_taken
    places.leave(numbers[1])
    assert not places.is_taken


async def test_a_read_that_hangs_keeps_its_turn_for_a_bounded_time() -> None:
    """The store does not answer one reader; what others read lies elsewhere."""
    lead = await limited()
    async with asyncio.timeout(30), lead.live.turn(ANSWER), lead.live.turn(ANSWER) as room:
        assert room > 0 and not lead.live.is_open
