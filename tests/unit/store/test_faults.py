"""The store that fails on purpose: each fault has its documented effect, a seed repeats a run, and every fault can be made.

A mismatch means that tests which rely on it prove nothing.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store.memory import MemoryStore
from headgate.broker.testing.faults import POSSIBLE, RIVAL_BYTES, Fault, FaultStore
from tests.support.errors import raises


def faulty(memory: MemoryStore | None = None, random: Random | None = None, rates: dict[Fault, float] | None = None) -> FaultStore:
    return FaultStore(memory or MemoryStore(), sleep=asyncio.sleep, random=random, rates=rates, delay_s_max=0.0)


async def test_without_a_script_nothing_fails() -> None:
    store = faulty()
    assert await store.put_if_absent("a", b"1")
    assert await store.get("a") == b"1"
    assert not store.injected


@pytest.mark.parametrize(
    ("fault", "reason", "there"),
    [
        (Fault.REFUSED, Reason.STORE_UNAVAILABLE, False),
        (Fault.FULL, Reason.STORE_FULL, False),
        (Fault.AMBIGUOUS, Reason.STORE_UNAVAILABLE, True),
        (Fault.LATE, Reason.STORE_UNAVAILABLE, False),
    ],
)
async def test_failing_writes(fault: Fault, reason: Reason, there: bool) -> None:
    memory = MemoryStore()
    store = faulty(memory)
    for operation in (store.put_if_absent, store.put):
        key = f"{operation.__name__}/a"
        store.script(operation.__name__, fault)
        data = bytearray(b"1")
        with raises(RetryError, reason):
            await operation(key, data)
        data[:] = b"2"  # a late operation must not see later changes of the caller's buffer
        assert bool(await memory.list(key)) is there
        await store.land()
        assert bool(await memory.list(key)) is (there or fault is Fault.LATE)
        if fault is Fault.LATE:
            assert await memory.get(key) == b"1"


async def test_a_late_write_happens_by_itself() -> None:
    memory = MemoryStore()
    store = faulty(memory)
    await memory.put("a", b"1")
    store.script("delete", Fault.LATE)
    with pytest.raises(RetryError):
        await store.delete("a")
    assert await store.get("a") == b"1"
    with pytest.raises(InvalidError):
        await store.get("a")


async def test_a_lost_race() -> None:
    store = faulty()
    store.script("put_if_absent", Fault.LOST_RACE)
    assert not await store.put_if_absent("a", b"mine")
    assert await store.get("a") == RIVAL_BYTES


async def test_reads() -> None:
    store = faulty()
    await store.put("a", b"1")
    store.script("get", None, Fault.TRUNCATED, Fault.DELAYED)
    assert await store.get("a") == b"1"
    with pytest.raises(RetryError):
        await store.get("a")
    assert await store.get("a") == b"1"
    assert store.injected == {Fault.TRUNCATED: 1, Fault.DELAYED: 1}


async def test_append_files() -> None:
    store = faulty(MemoryStore(alignment_bytes=4))
    appender = store.appender
    assert appender is not None
    store.script("appender.create", Fault.FULL)
    with pytest.raises(RetryError):
        appender.create("wal/1", 16)
    assert not appender.exists("wal/1")
    file = appender.create("wal/1", 16)
    assert file.alignment_bytes == 4
    for fault, content in (
        (Fault.REFUSED, bytes(16)),
        (Fault.TORN, b"1234" + bytes(12)),
        (Fault.AMBIGUOUS, b"1234567890ab" + bytes(4)),
    ):
        store.script("appender.write", fault)
        with pytest.raises(RetryError):
            file.write(0, [b"1234567890ab"])
        assert await store.get("wal/1") == content
    file.write(0, [b"done"])
    store.script("appender.exists", Fault.REFUSED)
    with pytest.raises(RetryError):
        appender.exists("wal/1")
    store.script("appender.truncate", Fault.REFUSED, Fault.AMBIGUOUS)
    for size in (16, 8):
        with pytest.raises(RetryError):
            file.truncate(8)
        assert len(await store.get("wal/1")) == size
    file.close()
    assert faulty(MemoryStore(append=False)).appender is None


def test_an_impossible_fault_is_refused() -> None:
    with pytest.raises(AssertionError):
        faulty().script("get", Fault.AMBIGUOUS)
    assert set().union(*POSSIBLE.values()) == set(Fault)


async def run(seed: int) -> tuple[list[str], dict[Fault, int]]:
    store = faulty(random=Random(seed), rates={Fault.REFUSED: 0.1, Fault.AMBIGUOUS: 0.1, Fault.LATE: 0.2, Fault.DELAYED: 0.1})
    story: list[str] = []
    for number in range(200):
        key = f"k/{number % 7}"
        call = (store.put(key, b"%d" % number), store.put_if_absent(key, b"x"), store.delete(key), store.get(key))
        for other in call[: number % 4] + call[number % 4 + 1 :]:
            other.close()
        try:
            story.append(repr(await call[number % 4]))
        except HeadgateError as error:
            story.append(error.message)
    return story, dict(store.injected)


async def test_a_seed_repeats_a_run() -> None:
    assert await run(1) == await run(1)
    assert await run(1) != await run(2)
    assert set((await run(1))[1]) == {Fault.REFUSED, Fault.AMBIGUOUS, Fault.LATE, Fault.DELAYED}
