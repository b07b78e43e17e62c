"""The proof that a broker still leads (`engine/base/proof.py`), alone, over a store whose answers the test gives.

Compared: which requests are answered, and the number of reads of the fence marker. A mismatch means that an answer may be older
than another broker's ack, or that every request costs a read of the store.
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from headgate.broker.cluster import patience
from headgate.broker.engine.base import proof
from headgate.broker.engine.base.proof import SAFE_SHARE, LeadProof
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store.interface import Store
from tests.support.waiting import begun, until_async

ABSENT = InvalidError(Reason.NOT_FOUND, "no such object")
AWAY = RetryError(Reason.STORE_UNAVAILABLE, "the store is away")


class Marker:
    """A store of one key; its reads wait until the test answers them."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[bytes]] = []

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        assert key.endswith("/fence")
        self.reads.append(asyncio.get_running_loop().create_future())
        return await self.reads[-1]

    def answer(self, number: int, answer: bytes | HeadgateError) -> None:
        if isinstance(answer, bytes):
            self.reads[number].set_result(answer)
        else:
            self.reads[number].set_exception(answer)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.marker = Marker()
        self.fenced = 0
        self.proof = LeadProof(
            cast(Store, self.marker), self.clock, "00" * 16, fenced=self._note, fail=lambda error: pytest.fail(error.message)
        )

    def _note(self) -> None:
        self.fenced += 1

    async def ask(self) -> asyncio.Task[None]:
        """A request comes, and waits for the proof."""
        task = await begun(self.proof.confirm())
        await self.looks_begin()
        return task

    async def looks_begin(self) -> None:
        await until_async(lambda: len(self.marker.reads) == self.proof.looks)


async def test_a_promise_costs_no_read_and_ends_before_it_was_given_to_end() -> None:
    world = World()
    asked_s = world.clock.monotonic()
    world.clock.advance(500)  # the answer is late: the span counts from before the read
    world.proof.extend(asked_s, 2000)
    world.clock.advance(int(2000 * SAFE_SHARE) - 501)
    assert (await world.ask()).done() and not world.marker.reads
    world.clock.advance(1)
    late = await world.ask()
    assert not late.done() and len(world.marker.reads) == 1
    world.marker.answer(0, ABSENT)
    await late
    assert not world.proof.holds, "a read proves nothing about later requests"


async def test_an_old_promise_does_not_shorten_a_newer_one() -> None:
    world = World()
    world.proof.extend(world.clock.monotonic(), 2000)
    world.proof.extend(world.clock.monotonic() - 10, 2000)
    world.proof.extend(world.clock.monotonic(), 0)
    world.clock.advance(1799)
    assert world.proof.holds


async def test_a_promise_lapses_at_once_and_comes_back_but_not_after_the_end() -> None:
    world = World()
    world.proof.extend(world.clock.monotonic(), 2000)
    world.proof.lapse()
    assert not world.proof.holds
    world.proof.extend(world.clock.monotonic(), 2000)
    assert world.proof.holds
    world.proof.end()
    world.proof.extend(world.clock.monotonic(), 2000)
    assert not world.proof.holds


async def test_requests_share_a_read_that_begins_after_all_of_them_came() -> None:
    world = World()
    first = await world.ask()
    others = [await world.ask() for _ in range(100)]
    assert len(world.marker.reads) == 1, "one read at a time"
    world.marker.answer(0, ABSENT)
    await first
    await world.looks_begin()
    assert len(world.marker.reads) == 2 and not any(task.done() for task in others), "the first read began before they came"
    latest = await world.ask()
    world.marker.answer(1, ABSENT)
    await asyncio.gather(*others)
    await world.looks_begin()
    assert not latest.done() and len(world.marker.reads) == 3
    world.marker.answer(2, ABSENT)
    await latest
    assert world.proof.looks == 3


@pytest.mark.parametrize(("answer", "fenced"), [(b"H", 1), (b"", 1), (AWAY, 0)])
async def test_a_marker_or_no_answer_refuses_the_request(answer: bytes | HeadgateError, fenced: int) -> None:
    world = World()
    asked = await world.ask()
    world.marker.answer(0, answer)
    with pytest.raises(RetryError) as caught:
        await asked
    assert caught.value.reason is Reason.NOT_LEADER and world.fenced == fenced


async def test_a_store_that_hangs_refuses_requests_and_gets_no_second_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "LOOK_TIMEOUT_S", 0.01)
    monkeypatch.setattr(patience, "GROWTH", 1e9)  # the request that is answered has all the time that it needs
    world = World()
    refused = await asyncio.gather(*(world.proof.confirm() for _ in range(3)), return_exceptions=True)
    assert all(isinstance(one, RetryError) and "does not answer" in one.message for one in refused)
    assert len(world.marker.reads) == 1
    waits = await world.ask()
    world.marker.answer(0, ABSENT)  # late, and before the last request came
    await until_async(lambda: len(world.marker.reads) == 2)
    world.marker.answer(1, ABSENT)
    await waits
    await world.proof.close()


async def test_who_waits_may_go_away_and_the_end_cancels_the_read() -> None:
    world = World()
    gone, stays = await world.ask(), await world.ask()
    gone.cancel()
    await asyncio.wait((gone,))
    await world.proof.close()
    assert world.marker.reads[0].cancelled() and len(world.marker.reads) == 1
    stays.cancel()
    await asyncio.wait((stays,))
