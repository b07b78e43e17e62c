"""Restarts: what was acked before a crash is there after it, whatever the crash interrupted.

Runs: engines over a medium that outlives them, ended as SIGKILL ends a process (`tests/unit/engine/world.py`), at many moments, on
memory with and without append and alignment, on a directory, and on a real S3 server.
Compared: every record that was acked with what the next engine reads; offsets, producers' duplicates, leader epochs.
A mismatch means that an acked record was lost, came twice or changed its place.
"""

from __future__ import annotations

from broker.runtime.clock import ManualClock
from tests.unit.engine.world import Machine, eventually, read_values, swept

HOUR_MS = 3600 * 1000


async def test_acked_records_survive_a_crash_and_offsets_go_on(machine: Machine) -> None:
    broker = await machine.start()
    await broker.engine.create_topic("t", 1, {})
    for number in range(20):
        assert await machine.send(broker, [b"%d-0" % number, b"%d-1" % number]) == 2 * number
    await machine.crash(broker)
    broker = await machine.start()
    await machine.check(broker, exact=True)
    assert await machine.send(broker, [b"after"]) == 40
    await machine.check(broker, exact=True)
    await machine.stop(broker)
    broker = await machine.start()
    await machine.check(broker, exact=True)
    assert broker.log().next_offset == 41


async def test_a_broker_that_was_idle_for_hours_before_its_first_record(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.start()
    await broker.engine.create_topic("t", 1, {})
    clock.advance(3 * HOUR_MS)
    await machine.send(broker, [b"late"])
    await machine.crash(broker)
    broker = await machine.start()
    await machine.check(broker, exact=True)


async def test_chunks_that_retention_removed_do_not_hide_the_ones_behind_them(machine: Machine) -> None:
    broker = await machine.start()
    await broker.engine.create_topic("t", 1, {})
    for number in range(10):
        await machine.send(broker, [b"old-%d" % number, bytes(20_000)])
    log = broker.log()
    await eventually(lambda: len(log.sealed) > 0 and len(log.open_chunks) <= 1)
    await broker.engine.delete_records(log, -1)
    await swept(broker)
    await machine.send(broker, [b"new"])
    await machine.crash(broker)
    broker = await machine.start()
    await machine.check(broker)
    assert (await read_values(broker))[-1] == b"new"
