"""A WAL on a store that refuses operations for a while: no record is acked before it is stored, and the WAL continues with the
store.

Runs: engines over stores that refuse single operations and allow them again (`world.MortalStore.refused`). Compared: the
acked records with those that a restart reads; that the broker accepts records again by itself. A mismatch means that a full disk
or a slow bucket loses records, or leaves a broker that must be restarted by hand.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from headgate.broker.runtime.errors import Reason, RetryError
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import Machine, settings

FULL = RetryError(Reason.STORE_FULL, "no space left")
THREADED = ["memory", "aligned", "local"]


@pytest.mark.parametrize("machine", THREADED, indirect=True)
async def test_a_disk_that_was_full_at_the_start(machine: Machine) -> None:
    broker = await machine.begin()
    await machine.crash(broker)
    broker = await machine.start(refused={"appender.create": FULL})
    await until_async(lambda: broker.engine.stalled is not None)
    with pytest.raises(RetryError) as caught:
        machine.send(broker, [b"refused"])
    assert caught.value.reason is Reason.STORE_FULL
    broker.store.refused.clear()
    await until_async(lambda: broker.engine.stalled is None)
    await machine.send(broker, [b"taken"])
    broker = await machine.restart(broker)
    await machine.check(broker, exact=True)


@pytest.mark.parametrize("chunk_bytes", [10_000, 65_537, 100_000])
@pytest.mark.parametrize("machine", THREADED, indirect=True)
async def test_any_chunk_size_will_do(machine: Machine, chunk_bytes: int) -> None:
    broker = await machine.begin(settings=settings(wal_chunk_bytes=chunk_bytes))
    for number in range(20):
        await machine.send(broker, [b"%d" % number, bytes([number]) * 9_000])
    broker = await machine.restart(broker)
    await machine.check(broker, exact=True)


@pytest.mark.parametrize(
    ("medium", "operation"),
    [
        *((medium, operation) for medium in THREADED for operation in ("write", "exists", "truncate", "create")),
        ("put", ""),
    ],
)
async def test_every_operation_may_fail_for_a_while(make_machine: MakeMachine, medium: str, operation: str) -> None:
    machine = make_machine(medium)
    # With fsync "always" chunks are preallocated; their unused space is freed beside the writes, which continue if that fails.
    fsync = "never" if operation == "truncate" else "always"
    broker = await machine.begin(2, settings=settings(wal_chunk_bytes=8_192, wal_fsync=fsync))
    await machine.send(broker, [b"before"])
    name = f"appender.{operation}" if operation else "put_if_absent"
    broker.store.refused[name] = RetryError(Reason.STORE_UNAVAILABLE, "not now")
    waiting: list[asyncio.Future[int]] = []
    number = 0
    while broker.engine.stalled is None and number < 1000:
        waiting.append(machine.send(broker, [b"%d" % number, bytes(1_000) + b"%d" % number], partition=number % 2))
        number += 1
        await asyncio.sleep(0.0005)
    assert broker.engine.stalled is not None
    assert not waiting[-1].done()
    await asyncio.sleep(0.01)
    broker.store.refused.clear()
    await asyncio.gather(*waiting)
    assert broker.engine.stalled is None
    await machine.check(broker, exact=True)
    broker = await machine.restart(broker)
    await machine.check(broker, exact=True)


async def test_new_records_are_refused_when_a_stall_lasts(make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.broker.engine.write.path.STALL_GRACE_S", 0.05)
    machine = make_machine("memory")
    broker = await machine.begin()
    broker.store.refused["appender.write"] = RetryError(Reason.STORE_UNAVAILABLE, "not now")
    waiting = [machine.send(broker, [b"first"])]
    await until_async(lambda: broker.engine.stalled is not None)
    with pytest.raises(RetryError) as caught:
        for number in range(10_000):
            waiting.append(machine.send(broker, [b"%d" % number]))
            await asyncio.sleep(0.001)
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    broker.store.refused.clear()
    await asyncio.gather(*waiting)
    await machine.send(broker, [b"last"])
    await machine.check(broker, exact=True)


@pytest.mark.parametrize(("medium", "operation"), [("memory", "appender.write"), ("put", "put_if_absent")])
async def test_a_store_that_hangs_is_noticed(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, medium: str, operation: str
) -> None:
    """A frozen disk raises no error: without this check no log line would say why records wait."""
    monkeypatch.setattr("headgate.broker.engine.write.wal_watch.LOOK_S", 0.01)
    monkeypatch.setattr("headgate.broker.engine.write.path.STALL_GRACE_S", 0.0)
    machine = make_machine(medium)
    broker = await machine.begin()
    broker.store.held[operation] = threading.Event()
    waiting = machine.send(broker, [b"first"])
    await until_async(lambda: broker.engine.stalled is not None)
    with pytest.raises(RetryError, match="the store hangs"):
        machine.send(broker, [b"refused"])
    broker.store.held[operation].set()
    assert await waiting == 0
    await until_async(lambda: broker.engine.stalled is None)
    await machine.send(broker, [b"second"])
    await machine.check(broker, exact=True)


async def test_waiting_for_the_store_can_end_early(machine: Machine) -> None:
    broker = await machine.begin()
    await broker.engine.durable(10_000)
    await machine.send(broker, [b"one"])
    await broker.engine.durable()


async def test_a_store_that_does_not_answer_in_time(make_machine: MakeMachine) -> None:
    machine = make_machine("memory")
    broker = await machine.begin()
    broker.store.refused["appender.write"] = FULL
    waiting = machine.send(broker, [b"one"])
    with pytest.raises(RetryError) as caught:
        await broker.engine.durable(5)
    assert caught.value.reason is Reason.TIMED_OUT
    broker.store.refused.clear()
    assert await waiting == 0
