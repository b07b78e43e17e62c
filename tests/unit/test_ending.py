"""The end of a broker takes a known time at most, also if no part of it ends, and every part is still told to end.

Runs: `Ending` in virtual time, with parts that hang as those of a broker whose store does not answer. Compared: the seconds of the
whole end with the bound that the table of settings states. A mismatch means that a supervisor kills the broker, or waits for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from headgate.broker.runtime.ending import Ending
from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.testing.simulation.loop import Process, VirtualLoop, start

GRACE_S = 10.0
BOUND_S = 2 * GRACE_S + 5
"""As the table of settings says."""
PARTS = 12
"""Those of a broker: see `Process._close` and `Node.close`."""


def run(work: Coroutine[Any, Any, None]) -> float:
    """Run `work` in virtual time. Returns the seconds that it took."""
    loop = VirtualLoop(lambda *_: asyncio.sleep(0))  # type: ignore[abstract]
    began = loop.time()
    ended: list[float] = []

    async def timed() -> None:
        await work
        ended.append(loop.time())

    start(loop, Process("broker"), timed(), "end")
    loop.run(began + 1000, lambda: bool(ended))
    return ended[0] - began


async def hang(told: list[str], name: str, *, is_deaf: bool) -> None:
    told.append(name)
    while True:
        with suppress(*([asyncio.CancelledError] if is_deaf else [])):
            await asyncio.sleep(1000)


def test_the_whole_end_has_one_deadline() -> None:
    for is_deaf in (False, True):
        told: list[str] = []

        async def end(told: list[str] = told, is_deaf: bool = is_deaf) -> None:
            ending = Ending(None, GRACE_S)
            await ending.close("drain", asyncio.sleep(ending.grace_s))
            assert not ending.stuck
            for number in range(PARTS):
                await ending.close(f"part {number}", hang(told, str(number), is_deaf=is_deaf))
            assert ending.stuck
            assert ending.error is not None
            assert (ending.error.reason, ending.error.message.split(",")[0]) == (Reason.TIMED_OUT, "part 0 did not close in time")

        assert run(end()) <= BOUND_S
        assert told == [str(number) for number in range(PARTS)]


def test_a_log_is_sealed_after_a_drain_that_took_all_its_time_and_errors_are_kept() -> None:
    done: list[str] = []

    async def seal() -> None:
        await asyncio.sleep(GRACE_S)
        done.append("sealed")

    async def fail(error: BaseException) -> None:
        raise error

    async def end() -> None:
        ending = Ending(None, GRACE_S)
        await ending.close("drain", asyncio.sleep(ending.grace_s))
        await ending.close("log", seal())
        assert ending.error is None
        await ending.close("cut", fail(asyncio.CancelledError()))
        assert ending.error is not None and ending.error.reason is Reason.INTERNAL, "a part that somebody cancels did not end"
        first = ending.error = FatalError(Reason.CLOSED, "first")
        await ending.close("groups", fail(ValueError("second")))
        assert (ending.error, ending.stuck) == (first, False)

    run(end())
    assert done == ["sealed"]
