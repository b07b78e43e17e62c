"""Two brokers over one store: the later one takes over, and the earlier one never acks again.

Runs: a second engine that starts beside the first at every moment of the first one's write, and many that start at once. To stop
a process, the test holds single operations of its store. Compared: the first one's acks with the second one's records; the end
of the first. A mismatch means that two brokers ack different records at one offset, or that an acked record is missing in the
log that goes on.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from headgate.broker.engine.base import keys
from headgate.broker.engine.upkeep.recovery import recover
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.testing.faults import Fault
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import Machine, MortalStore, read_values, settings

THREADED = ["memory", "aligned", "local"]


async def test_the_second_takes_over_and_the_first_ends(machine: Machine) -> None:
    first = await machine.begin()
    for number in range(5):
        await machine.send(first, [b"first-%d" % number])
    second = await machine.start()
    with pytest.raises(FencedError):
        await machine.send(first, [b"too late"])
    await until_async(lambda: bool(first.failures))
    with raises(RetryError, Reason.NOT_LEADER):
        machine.send(first, [b"later still"])
    await machine.check(second)
    assert (await read_values(second))[:5] == [b"first-%d" % number for number in range(5)]
    await machine.send(second, [b"second"])
    await machine.check(second)
    await first.engine.close()
    await machine.forget(first)
    await machine.check(second)
    await machine.crash(second)
    await machine.check(await machine.start())


async def test_one_that_was_replaced_does_not_say_that_the_log_ends(machine: Machine) -> None:
    """A reader that moved to the second broker and comes back must not get "out of range": it would restart, or skip records."""
    first = await machine.begin()
    await machine.send(first, [b"one"])
    with pytest.raises(InvalidError) as caught:
        await first.engine.read(first.log("t"), 2, 1000)
    assert caught.value.reason is Reason.OFFSET_OUT_OF_RANGE, "it leads, so it knows"
    second = await machine.start()
    await machine.send(second, [b"two"])
    await machine.send(second, [b"three"])
    with pytest.raises(RetryError) as again:
        await first.engine.read(first.log("t"), 2, 1000)
    assert again.value.reason is Reason.NOT_LEADER
    assert first.failures, "and it ends"


async def test_one_that_was_replaced_and_leads_again_does_not_fence_its_successor(machine: Machine) -> None:
    """Both have the same address, so the first one takes the second one for an earlier run of its own that must be recovered."""
    first = await machine.begin()
    second = await machine.start()
    with pytest.raises(FencedError):
        await first.engine.create_topic("too-late", 1, {})
    assert first.failures
    assert await machine.send(second, [b"one"]) == 0
    assert not second.failures
    await machine.crash(first)
    await machine.check(second, exact=True)


async def test_an_idle_first_one_ends_at_its_next_edit(machine: Machine) -> None:
    first = await machine.begin()
    second = await machine.start()
    with pytest.raises(FencedError):
        await first.engine.create_topic("new", 1, {})
    assert first.failures
    await first.engine.close()
    await machine.forget(first)
    await second.engine.create_topic("new", 1, {})
    await machine.send(second, [b"one"], "new")
    await machine.check(second, exact=True)


async def test_a_first_one_that_only_closes_changes_nothing(machine: Machine) -> None:
    first = await machine.begin()
    await machine.send(first, [b"one"])
    second = await machine.start()
    with suppress(FencedError):
        await first.engine.close()
    await machine.forget(first)
    await machine.check(second, exact=True)
    await machine.send(second, [b"two"])
    await machine.crash(second)
    await machine.check(await machine.start(), exact=True)


@pytest.mark.parametrize(
    ("medium", "operation"),
    [
        *((medium, operation) for medium in THREADED for operation in ("write", "exists", "truncate", "create")),
        ("put", "put_if_absent"),
        ("put", "put"),
    ],
)
async def test_a_process_that_was_stopped_while_it_wrote(make_machine: MakeMachine, medium: str, operation: str) -> None:
    """The stopped broker resumes in the middle of a write, after the next one has taken over."""
    machine = make_machine(medium)
    small = settings(wal_chunk_bytes=8_192)
    first = await machine.begin(settings=small)
    await machine.send(first, [b"acked"])
    stopped = threading.Event()
    first.store.held[operation if medium == "put" else f"appender.{operation}"] = stopped
    waiting = [machine.send(first, [b"in flight %d" % number + bytes(3_000)]) for number in range(10)]
    await asyncio.sleep(0.02)
    acked = dict(machine.acked["t", 0])
    second = await machine.start(small)
    assert await machine.send(second, [b"second"]) >= len(acked)
    stopped.set()
    await asyncio.wait(waiting, timeout=5)
    await until_async(lambda: bool(first.failures) or all(one.done() for one in waiting))
    # Every ack of the first one after it was stopped was true, or it sent none.
    await machine.check(second)
    with pytest.raises(HeadgateError):
        await machine.send(first, [b"too late"])
    await machine.check(second)
    await machine.crash(first)
    third = await machine.restart(second, small)
    await machine.check(third)
    assert [value for value in await read_values(third) if value == b"second"] == [b"second"]


@pytest.mark.parametrize("medium", ["memory", "put"])
async def test_stopped_processes_that_come_back_one_after_another(make_machine: MakeMachine, medium: str) -> None:
    machine = make_machine(medium)
    small = settings(wal_chunk_bytes=8_192)
    operation = "put_if_absent" if medium == "put" else "appender.write"
    brokers = []
    for number in range(4):
        broker = await machine.start(small)
        if number == 0:
            await broker.engine.create_topic("t", 1, {})
        await machine.send(broker, [b"acked-%d" % number])
        broker.store.held[operation] = threading.Event()
        machine.send(broker, [b"in flight-%d" % number])
        await asyncio.sleep(0.005)
        brokers.append(broker)
    last = await machine.start(small)
    for broker in reversed(brokers):
        broker.store.held[operation].set()
        await asyncio.sleep(0.005)
        await machine.check(last)
    for broker in brokers:
        await until_async(lambda broker=broker: bool(broker.failures))
        await machine.crash(broker)
    await machine.send(last, [b"last"])
    await machine.crash(last)
    await machine.check(await machine.start(small))


@pytest.mark.parametrize("operation", ["put_if_absent", "put"])
async def test_a_full_store_lets_nobody_take_over(make_machine: MakeMachine, operation: str) -> None:
    """Without a fence the first broker goes on. With a fence and no recovery it stops. Neither loses what it acked."""
    machine = make_machine("local")
    first = await machine.begin()
    await machine.send(first, [b"before"])
    full = MortalStore(first.faults, first.store.url)
    full.refused[operation] = RetryError(Reason.STORE_FULL, "no space is left")
    incarnation = first.engine.manifest.incarnations[first.engine.incarnation_id]
    with raises(RetryError, Reason.STORE_FULL):
        await recover(full, first.engine.manifest, [incarnation], keys.maker(9, "f" * 32))
    is_fenced = operation == "put"
    sending = machine.send(first, [b"meanwhile"])
    await until_async(lambda: sending.done() or bool(first.failures))
    assert bool(first.failures) is is_fenced
    second = await machine.start()
    await machine.check(second)
    assert (await read_values(second))[:1] == [b"before"]


async def test_the_first_may_still_be_writing_its_manifest(machine: Machine) -> None:
    first = await machine.begin(settings=settings(wal_chunk_bytes=8_192))
    for number in range(20):
        await machine.send(first, [bytes(3_000) + b"%d" % number])

    async def busy() -> None:
        with suppress(HeadgateError):
            for number in range(12):
                await first.engine.create_topic(f"busy-{number}", 1, {})

    editing = asyncio.create_task(busy())
    second = await machine.start()
    await editing
    with pytest.raises(FencedError):
        await first.engine.create_topic("too-late", 1, {})
    await machine.check(second, exact=True)
    assert set(first.engine.manifest.topics) <= set(second.engine.manifest.topics)


async def test_of_many_that_start_at_once_one_serves(machine: Machine) -> None:
    broker = await machine.begin()
    await machine.send(broker, [b"one"], producer=(5, 0, 0))
    await machine.crash(broker)
    outcomes = await asyncio.gather(*(machine.start() for _ in range(5)), return_exceptions=True)
    serving = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert all(isinstance(outcome, FencedError) for outcome in outcomes if isinstance(outcome, BaseException))
    last = max(serving, key=lambda broker: broker.engine.leader_epoch)
    assert len({broker.engine.leader_epoch for broker in serving}) == len(serving)
    await machine.send(last, [b"two"], producer=(5, 0, 1))
    await machine.check(last, exact=True)
    for broker in serving:
        if broker is not last:
            with pytest.raises(HeadgateError):
                await machine.send(broker, [b"three"])
    await machine.check(last, exact=True)


async def test_a_put_that_lands_after_its_broker_was_fenced(make_machine: MakeMachine) -> None:
    """The second broker finds chunk numbers behind the fence; they were not acked, and never become readable."""
    machine = make_machine("put")
    first = await machine.begin(settings=settings(wal_inflight_puts_max=8))
    await machine.send(first, [b"acked"])
    # Put 1 is late; 2 to 4 are stored, but cannot be acked before it.
    first.faults.script("put_if_absent", Fault.LATE, None, None, None)
    first.store.refused.clear()
    waiting = []
    for number in range(4):
        waiting.append(machine.send(first, [b"behind-%d" % number]))
        await asyncio.sleep(0.004)
    first.store.kill()
    second = await machine.start()
    await first.faults.land()
    await machine.check(second)
    assert set(machine.acked["t", 0].values()) <= set(await read_values(second))
    await machine.send(second, [b"second"])
    await machine.check(second)
    await machine.crash(first)
    third = await machine.restart(second)
    await machine.check(third)
    await machine.stop(third)


@pytest.mark.parametrize("fault", [Fault.AMBIGUOUS, Fault.LATE])
async def test_a_put_whose_answer_was_lost_is_acked_once(make_machine: MakeMachine, fault: Fault) -> None:
    machine = make_machine("put")
    broker = await machine.begin()
    for number in range(6):
        broker.faults.script("put_if_absent", *[fault] * (number % 3 + 1))
        await machine.send(broker, [b"%d" % number])
    assert broker.faults.injected[fault] == 12
    await broker.faults.land()
    await machine.check(broker, exact=True)
    await machine.crash(broker)
    await machine.check(await machine.start(), exact=True)


async def test_a_put_that_another_won_is_not_acked(make_machine: MakeMachine) -> None:
    machine = make_machine("put")
    broker = await machine.begin(settings=settings(wal_checkpoint_chunks=100, wal_checkpoint_interval_ms=3_600_000))
    await machine.send(broker, [b"one"])
    broker.faults.script("put_if_absent", Fault.LOST_RACE)
    with pytest.raises(FencedError):
        await machine.send(broker, [b"two"])
    assert broker.failures


async def test_a_deleted_topic_takes_no_records(machine: Machine) -> None:
    broker = await machine.start()
    topic = await broker.engine.create_topic("t", 1, {})
    log = broker.log()
    await machine.send(broker, [b"one"])
    await broker.engine.delete_topic(topic)
    with raises(InvalidError, Reason.UNKNOWN_TOPIC):
        broker.engine.append(log, memoryview(bytearray(100)))
