"""A system clock that jumps: no record is removed before its time, retries stay duplicates, and writes are accepted.

Runs: engines on a machine with a clock that the test moves; the sweeper runs when the test calls it. Compared: the readable
records and the answer to a retry, before and after the jump, in one run of the broker and across a restart. A mismatch means
that a wrong clock deletes or doubles records.
"""

from __future__ import annotations

import asyncio

import pytest

from headgate.broker.cluster.downtime import cutoff_ms, is_clock_right
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.errors import raises
from tests.unit.engine.conftest import machine_on
from tests.unit.engine.world import Incarnation, Machine, read_values, settings

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JUMPS_MS = [HOUR_MS, 2 * DAY_MS, 30 * DAY_MS, -HOUR_MS, -30 * DAY_MS]


machine = machine_on("memory")


async def looked(broker: Incarnation) -> None:
    """Retention runs twice: the first run completes and lists chunks, and the second one may remove them."""
    for _ in range(2):
        await broker.sweeper.run_once()


async def sent(machine: Machine, broker: Incarnation, value: bytes, timestamp_ms: int, sequence: int) -> int:
    return await machine.send(broker, [value], timestamp_ms=timestamp_ms, producer=(1000, 0, sequence))


async def restarted(machine: Machine, broker: Incarnation, kind: str) -> Incarnation:
    match kind:
        case "crash":
            await machine.crash(broker)
        case "stop":
            await machine.stop(broker)
        case _:
            return broker
    return await machine.start()


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
@pytest.mark.parametrize("kind", ["", "crash", "stop"])
async def test_a_jump_deletes_nothing_doubles_nothing_and_refuses_nothing(
    machine: Machine, clock: ManualClock, jump_ms: int, kind: str
) -> None:
    broker = await machine.begin(1, {"retention.ms": str(2 * HOUR_MS)})
    await machine.send(broker, [b"old"], timestamp_ms=clock.now_ms())
    await broker.wal.roll()
    clock.advance(HOUR_MS)
    true_ms = clock.now_ms()
    assert await sent(machine, broker, b"a", true_ms, 0) == 1
    clock.jump_wall(jump_ms)
    broker = await restarted(machine, broker, kind)
    await looked(broker)
    assert await sent(machine, broker, b"a", true_ms, 0) == 1, "the retry of an acked batch is a duplicate"
    assert await sent(machine, broker, b"b", true_ms + 1, 1) == 2, "a producer whose clock is right may write"
    await looked(broker)
    assert await read_values(broker) == [b"old", b"a", b"b"]
    broker = await restarted(machine, broker, kind)
    await looked(broker)
    assert await sent(machine, broker, b"b", true_ms + 1, 1) == 2
    assert await read_values(broker) == [b"old", b"a", b"b"]
    await machine.check(broker)


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
@pytest.mark.parametrize("kind", ["", "crash"])
async def test_a_jump_and_its_correction_delete_nothing(machine: Machine, clock: ManualClock, jump_ms: int, kind: str) -> None:
    broker = await machine.begin(1, {"retention.ms": str(2 * HOUR_MS)})
    true_ms = clock.now_ms()
    await sent(machine, broker, b"before", true_ms, 0)
    clock.jump_wall(jump_ms)
    broker = await restarted(machine, broker, kind)
    await sent(machine, broker, b"meanwhile", true_ms, 1)
    await looked(broker)
    clock.advance(60_000)
    clock.jump_wall(-jump_ms)
    broker = await restarted(machine, broker, kind)
    await sent(machine, broker, b"after", true_ms, 2)
    await looked(broker)
    assert await sent(machine, broker, b"after", true_ms, 2) == 2
    assert await read_values(broker) == [b"before", b"meanwhile", b"after"]


async def test_what_is_old_goes_although_the_clock_jumped_and_was_corrected(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {"retention.ms": str(2 * HOUR_MS)})
    await machine.send(broker, [b"old"], timestamp_ms=clock.now_ms())
    clock.jump_wall(DAY_MS)
    await looked(broker)
    clock.advance(HOUR_MS)
    clock.jump_wall(-DAY_MS)
    await looked(broker)
    assert await read_values(broker) == [b"old"]
    clock.advance(HOUR_MS + 1)
    await looked(broker)
    assert await read_values(broker) == [], "elapsed time counts"


async def test_time_in_which_no_broker_ran_does_not_count(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {"retention.ms": str(2 * HOUR_MS)})
    await machine.send(broker, [b"old"], timestamp_ms=clock.now_ms())
    await machine.stop(broker)
    clock.advance(30 * DAY_MS)
    broker = await machine.start()
    ((since_ms, until_ms),) = broker.engine.manifest.downtimes
    assert until_ms - since_ms == 30 * DAY_MS
    clock.advance(HOUR_MS)
    await looked(broker)
    assert await read_values(broker) == [b"old"]
    clock.advance(HOUR_MS + 1)
    await looked(broker)
    assert await read_values(broker) == []


async def test_who_trusts_the_clock_has_downtime_counted(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {"retention.ms": str(2 * HOUR_MS)})
    await machine.send(broker, [b"old"], timestamp_ms=clock.now_ms())
    await machine.stop(broker)
    clock.advance(30 * DAY_MS)
    broker = await machine.start(settings(clock_trusted=True))
    assert broker.engine.manifest.downtimes == []
    await looked(broker)
    assert await read_values(broker) == []


async def test_append_times_never_go_back(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {"message.timestamp.type": "LogAppendTime"})
    times = []
    for jump_ms in (-30 * DAY_MS, 0, 31 * DAY_MS):
        for kind in ("", "crash"):
            clock.jump_wall(jump_ms if kind else 0)
            broker = await restarted(machine, broker, kind)
            clock.advance(1000)
            await machine.send(broker, [b"%d %s" % (jump_ms, kind.encode())])
            times.append(broker.log().open.rows.timestamps[-1])
    assert times == sorted(times)
    assert await broker.engine.max_timestamp(broker.log()) == (times[-1], len(times) - 1)


async def test_while_the_clock_is_in_doubt_producers_are_believed(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin()
    with raises(InvalidError, Reason.INVALID_TIMESTAMP):
        await machine.send(broker, [b"a"], timestamp_ms=clock.now_ms() + 2 * HOUR_MS)
    await machine.send(broker, [b"a"], timestamp_ms=clock.now_ms())
    await machine.stop(broker)
    clock.advance(DAY_MS)
    clock.jump_wall(-30 * DAY_MS)
    broker = await machine.start()
    assert broker.engine.clock.doubt is not None
    await machine.send(broker, [b"b"], timestamp_ms=clock.now_ms() + 30 * DAY_MS)
    assert await read_values(broker) == [b"a", b"b"]


async def test_retention_by_size_goes_on_while_the_clock_is_in_doubt(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(
        1, {"retention.bytes": "20000", "retention.ms": str(HOUR_MS)}, settings=settings(wal_chunk_bytes=16_384)
    )
    clock.jump_wall(2 * DAY_MS)
    for number in range(40):
        await machine.send(broker, [bytes(3_000) + b"%d" % number], timestamp_ms=clock.now_ms() - 2 * DAY_MS)
    await asyncio.sleep(0.1)
    await looked(broker)
    assert 0 < broker.log().log_start < 39
    assert broker.engine.clock.doubt is not None


@pytest.mark.parametrize(
    ("downtimes", "expected"),
    [
        ([], 900),
        ([(0, 100)], 900),
        ([(950, 980)], 870),
        ([(850, 890), (950, 980)], 830),
        ([(850, 860), (950, 980)], 870 - 0),
        ([(880, 890), (950, 980)], 860),
        ([(870, 2000)], -230),
    ],
)
def test_cutoff(downtimes: list[tuple[int, int]], expected: int) -> None:
    assert cutoff_ms(1000, 100, downtimes) == expected


@pytest.mark.parametrize(
    ("ahead_ms", "expected"), [(None, False), (0, True), (60_000, True), (-60_000, True), (60_001, False), (-60_001, False)]
)
def test_the_stores_clock_confirms_the_clock_of_a_starting_broker(ahead_ms: int | None, expected: bool) -> None:
    """A store without a clock of its own confirms nothing."""
    assert is_clock_right(ahead_ms, 60_000) is expected
