"""Retries and counters around a store: which calls are repeated, for how long, the result of an ambiguous answer, and the
counts.

Time is a manual clock and faults are scripted, so every case is exact. A mismatch means calls that give up too early, go on for
ever, or take another writer's object for their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError
from headgate.broker.runtime.metrics import Metrics
from headgate.broker.store.interface import Store
from headgate.broker.store.memory import MemoryStore
from headgate.broker.store.wrappers import OPERATIONS, MeteredStore, RetryingStore
from headgate.broker.testing.faults import RIVAL_BYTES, Fault, FaultStore

REFUSED, AMBIGUOUS, LATE, LOST_RACE = Fault.REFUSED, Fault.AMBIGUOUS, Fault.LATE, Fault.LOST_RACE


class Bench:
    """A retrying store over a faulty one, with enough time for retries."""

    def __init__(self, random: float = 1.0, *, deadline_s: float = 20.0) -> None:
        self.clock = ManualClock()
        self.pauses_s: list[float] = []
        self.memory = MemoryStore()
        self.faults = FaultStore(self.memory, sleep=asyncio.sleep)
        self.store = RetryingStore(
            self.faults,
            clock=self.clock,
            sleep=self.sleep,
            random=lambda: random,
            pause_s_min=0.1,
            pause_s_max=1.0,
            deadline_s=deadline_s,
        )

    async def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.clock.advance(round(seconds * 1000))


async def test_what_succeeds_is_not_repeated() -> None:
    bench = Bench()
    assert await bench.store.put_if_absent("a", b"1")
    assert not await bench.store.put_if_absent("a", b"1")
    assert bench.pauses_s == [] and bench.store.retries == 0
    assert bench.store.url == "memory:"
    assert bench.store.appender is bench.faults.appender


async def test_pauses_double_up_to_a_ceiling() -> None:
    bench = Bench()
    bench.faults.script("get", *[REFUSED] * 7)
    await bench.memory.put("a", b"1")
    assert await bench.store.get("a") == b"1"
    assert bench.pauses_s == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert bench.store.retries == 7


@pytest.mark.parametrize("random", [0.0, 0.25, 0.999])
async def test_pauses_are_random_from_nothing_to_all(random: float) -> None:
    bench = Bench(random)
    bench.faults.script("put", *[REFUSED] * 3)
    await bench.store.put("a", b"1")
    assert bench.pauses_s == pytest.approx([random * 0.1, random * 0.2, random * 0.4])


async def test_after_the_deadline_the_last_error_comes_out() -> None:
    bench = Bench(deadline_s=2.0)
    bench.faults.script("get", *[REFUSED] * 100)
    with pytest.raises(RetryError, match="on purpose"):
        await bench.store.get("a")
    assert sum(bench.pauses_s) < 2.0
    assert len(bench.pauses_s) == 4  # 0.1 + 0.2 + 0.4 + 0.8; another second would pass the deadline


async def test_an_attempt_that_lasts_past_the_deadline_is_not_repeated() -> None:
    bench = Bench(deadline_s=2.0)
    bench.faults.script("get", REFUSED, REFUSED)

    async def slow(seconds: float) -> None:
        bench.clock.advance(5000)

    bench.store._sleep = slow
    with pytest.raises(RetryError):
        await bench.store.get("a")
    assert bench.store.retries == 1


@pytest.mark.parametrize(
    "error",
    [InvalidError(Reason.NOT_FOUND, "x"), FatalError(Reason.STORE_MISCONFIGURED, "x"), ValueError(), asyncio.CancelledError()],
)
async def test_other_errors_are_not_repeated(error: BaseException) -> None:
    bench = Bench()

    async def get(key: str) -> bytes:
        raise error

    bench.faults.get = get  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        await bench.store.get("a")
    assert bench.pauses_s == []


async def test_every_operation_is_repeated() -> None:
    bench = Bench()
    await bench.memory.put("a", b"0123")
    calls: dict[str, tuple[Callable[[], Coroutine[Any, Any, object]], object]] = {
        "put_if_absent": (lambda: bench.store.put_if_absent("new", b"1"), True),
        "put": (lambda: bench.store.put("b", b"1"), None),
        "get": (lambda: bench.store.get("a"), b"0123"),
        "get_range": (lambda: bench.store.get_range("a", 1, 2), b"12"),
        "get_ranges": (lambda: bench.store.get_ranges("a", [(0, 1), (2, 2)]), b"023"),
        "list": (lambda: bench.store.list("zz"), []),
        "delete": (lambda: bench.store.delete("b"), None),
    }
    # Only directories have files to open; only calls to buckets are repeated.
    assert set(calls) == set(OPERATIONS) - {"open_file"}
    for number, (operation, (call, answer)) in enumerate(calls.items(), 1):
        bench.faults.script(operation, REFUSED, REFUSED)
        assert await call() == answer
        assert bench.store.retries == 2 * number


AMBIGUOUS_CASES: list[tuple[list[Fault | None], bytes | None, bool]] = [
    ([AMBIGUOUS], None, True),
    ([REFUSED, AMBIGUOUS, REFUSED], None, True),
    ([AMBIGUOUS, AMBIGUOUS], None, True),
    ([REFUSED], b"another's", False),
    ([AMBIGUOUS], b"another's", False),
    ([REFUSED, LOST_RACE], None, False),
    ([LOST_RACE], None, False),
    # An equal object existed before. If the own attempt surely had no effect, the object is another writer's; in doubt it counts as
    # ours.
    ([], b"mine", False),
    ([REFUSED], b"mine", True),
]


@pytest.mark.parametrize(("faults", "there", "created"), AMBIGUOUS_CASES)
async def test_an_ambiguous_create_is_resolved_by_reading(faults: list[Fault | None], there: bytes | None, created: bool) -> None:
    bench = Bench()
    if there is not None:
        await bench.memory.put("a", there)
    bench.faults.script("put_if_absent", *faults)
    bench.faults.script("get", REFUSED)
    assert await bench.store.put_if_absent("a", [b"mi", b"ne"]) is created
    assert (await bench.memory.get("a") == b"mine") is (created or there == b"mine")
    assert await bench.memory.get("a") in (b"mine", b"another's", RIVAL_BYTES)


async def test_a_late_create_is_ours() -> None:
    """The first attempt times out and takes effect after the second began: in both orders there is one object and one True."""
    bench = Bench()
    bench.faults.script("put_if_absent", LATE)
    assert await bench.store.put_if_absent("a", b"mine") is True
    await bench.faults.land()
    assert await bench.memory.get("a") == b"mine"


async def test_an_object_that_was_deleted_while_it_was_created_is_created_again() -> None:
    bench = Bench()
    bench.faults.script("put_if_absent", AMBIGUOUS)
    real = bench.faults.get
    reads = 0

    async def get(key: str) -> bytes:
        nonlocal reads
        reads += 1
        await bench.memory.delete(key)
        return await real(key)

    bench.faults.get = get  # type: ignore[method-assign]
    assert await bench.store.put_if_absent("a", b"mine") is True
    assert reads == 1 and await bench.memory.get("a") == b"mine"


async def test_counters() -> None:
    clock = ManualClock()

    async def sleep(seconds: float) -> None:
        clock.advance(250)

    faults = FaultStore(MemoryStore(), sleep=sleep)
    store = MeteredStore(faults, clock)
    assert await store.put_if_absent("a", [b"12", memoryview(b"345")])
    assert not await store.put_if_absent("a", b"12345678")
    await store.put("b", b"1")
    assert await store.get("a") == b"12345"
    assert await store.get_range("a", 1, 3) == b"234"
    assert await store.get_ranges("a", [(0, 1), (3, 9)]) == b"145"
    with pytest.raises(InvalidError):
        await store.get("nothing")
    faults.script("get", REFUSED, Fault.DELAYED)
    with pytest.raises(RetryError):
        await store.get("a")
    assert await store.get("a") == b"12345"
    await store.list("")
    await store.delete("a")
    counted = {operation: (c.calls, c.errors, c.bytes, c.seconds) for operation, c in store.counts.items()}
    assert counted == {
        "put_if_absent": (2, 0, 5, 0.0),
        "put": (1, 0, 1, 0.0),
        "get": (4, 1, 10, 0.25),
        "get_range": (1, 0, 3, 0.0),
        "get_ranges": (1, 0, 3, 0.0),
        "open_file": (0, 0, 0, 0.0),
        "list": (1, 0, 0, 0.0),
        "delete": (1, 0, 0, 0.0),
    }
    metrics = Metrics()
    store.register(metrics)
    text = metrics.render().decode()
    assert 'headgate_store_requests_total{operation="get"} 4.0' in text
    assert 'headgate_store_errors_total{operation="get"} 1.0' in text
    assert 'headgate_store_bytes_total{operation="put_if_absent"} 5.0' in text
    assert 'headgate_store_seconds_total{operation="get"} 0.25' in text
    assert 'headgate_store_request_seconds_bucket{le="0.1",operation="get"} 3.0' in text
    assert 'headgate_store_request_seconds_bucket{le="0.25",operation="get"} 4.0' in text
    assert 'headgate_store_request_seconds_sum{operation="get"} 0.25' in text


async def test_a_counting_store_passes_all_else_through() -> None:
    inner: Store = MemoryStore()
    store = MeteredStore(inner, ManualClock())
    assert store.url == inner.url and (store.appender is None) == (inner.appender is None)
    assert store.read_unit_bytes == inner.read_unit_bytes


async def test_writes_of_the_log_are_measured_and_pass_through() -> None:
    clock = ManualClock()
    store = MeteredStore(MemoryStore(), clock)
    assert store.appender is not None
    file = store.appender.create("wal/1", 8)
    assert store.appender.exists("wal/1") and file.alignment_bytes == 1
    file.write(0, [b"abc", b"de"])
    file.truncate(5)
    file.close()
    assert await store.get("wal/1") == b"abcde"
    assert sum(store.seconds["append",].counts) == 1
