"""Folds, merges and compactions when the world does not help: full disks, other brokers, sweeps, clocks, settings without room.

Runs: each of these in the middle of the work. Compared: what consumers read before, meanwhile and after, and what is left in the
store. A mismatch means that work in the background loses records, or never comes to an end.
"""

from __future__ import annotations

import pytest

from headgate.broker.control import file_sweeper
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import FencedError, Reason, RetryError
from tests.unit.engine.conftest import machine_on
from tests.unit.engine.gate_world import files_for
from tests.unit.engine.test_compaction import COMPACT, compacted, found, put
from tests.unit.engine.test_offline import AT_ONCE, HOUR_MS, chunk_extents, files, filled, folded, seen
from tests.unit.engine.world import Incarnation, Machine, swept

machine = machine_on("memory")


async def work_due(broker: Incarnation) -> None:
    """A topic with live records to fold, and one with a flood to fold again."""
    await broker.engine.create_topic("t", 1, AT_ONCE)
    await broker.engine.create_topic("h", 1, AT_ONCE)
    gate = await broker.leader.gates.open("h", "flood", "now", [50], 60_000)
    await broker.leader.gates.fill("h", "flood", await files_for(broker.engine, gate, per_file=10))
    await filled(broker, 6)


async def test_a_disk_that_fills_during_a_fold_changes_nothing(machine: Machine) -> None:
    broker = await machine.start()
    await work_due(broker)
    before = [await seen(broker), await seen(broker, "h")]
    broker.store.refused["put"] = RetryError(Reason.STORE_FULL, "no room")
    for _ in range(4):
        with pytest.raises(RetryError, match="no room"):
            await broker.engine.running.offline.run_once()
    assert not files(broker) and [await seen(broker), await seen(broker, "h")] == before
    del broker.store.refused["put"]
    assert await folded(broker) == 2, "the same work is done when there is room again"
    assert [await seen(broker), await seen(broker, "h")] == before
    assert not chunk_extents(broker)


async def test_a_disk_that_fills_during_a_compaction_loses_no_value(machine: Machine) -> None:
    broker = await machine.begin(1, COMPACT)
    for number in range(5):
        await put(broker, (b"a", b"%d" % number), (b"b", b"%d" % number))
    before = await found(broker)
    broker.store.refused["put"] = RetryError(Reason.STORE_FULL, "no room")
    with pytest.raises(RetryError, match="no room"):
        await compacted(broker)
    assert await found(broker) == before
    del broker.store.refused["put"]
    assert await compacted(broker) == 1 and await found(broker) == before[-2:]


async def test_a_fold_of_a_broker_that_was_replaced_has_no_effect(machine: Machine) -> None:
    first = await machine.start()
    await work_due(first)
    before = [await seen(first), await seen(first, "h")]
    late = [fold async for fold in first.engine.running.offline.fold_each()]
    second = await machine.start()
    assert await folded(second) == 2
    with pytest.raises(FencedError):
        await first.engine.running.offline.commit(late)
    assert [await seen(second), await seen(second, "h")] == before
    # What the first broker wrote is left over, and the next leader sweeps it. Nothing that is named goes.
    await second.leader.tables.write_due()
    await second.leader.gates.files.sweep(-(10**13))
    assert [await seen(second), await seen(second, "h")] == before
    named = second.engine.manifest.named_files()
    assert {one.key for one in await second.store.list("topics/") if one.key.endswith(".parquet")} == named
    third = await machine.restart(second)
    assert [await seen(third), await seen(third, "h")] == before


async def test_a_sweep_during_a_fold_refuses_its_edit(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sweeper, "FOLD_MS_MAX", -(10**13))  # as if the fold had taken longer than that
    broker = await machine.start()
    await work_due(broker)
    before = [await seen(broker), await seen(broker, "h")]
    offline = broker.engine.running.offline
    late = [fold async for fold in offline.fold_each()]
    await broker.leader.tables.write_due()
    await broker.leader.gates.files.sweep(-(10**13))  # as if the fold had taken longer than the grace period
    # Until its object is gone, a file is condemned; afterwards, no file of this attempt is there any more.
    gone = {one.path for fold in late for one in fold.files}
    assert not gone & {one.key for one in await broker.store.list("topics/")}
    assert [await seen(broker), await seen(broker, "h")] == before
    assert await folded(broker) == 2
    assert [await seen(broker), await seen(broker, "h")] == before


async def test_a_clock_in_doubt_ages_nothing(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {"offline.after.ms": str(HOUR_MS)})
    await broker.engine.create_topic("c", 1, {**COMPACT, "delete.retention.ms": str(HOUR_MS)})
    await filled(broker, 3)
    clock.jump_wall(30 * 24 * HOUR_MS)
    broker.engine.clock.check()
    assert broker.engine.clock.doubt is not None
    assert await folded(broker) == 0 and not files(broker)
    clock.jump_wall(-30 * 24 * HOUR_MS)
    broker.engine.clock.check()
    clock.advance(2 * HOUR_MS)
    assert await folded(broker) == 1


async def test_retention_of_nothing_leaves_nothing_to_fold(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {**AT_ONCE, "retention.ms": "0"})
    await filled(broker, 3)
    assert await folded(broker) == 1
    clock.advance(1)
    await broker.sweeper.run_once()
    assert await seen(broker) == [] and broker.log().log_start == broker.log().high_watermark == 120
    await filled(broker, 3, start=3)
    clock.advance(1)
    await broker.sweeper.run_once()
    assert await folded(broker) == 0 and await seen(broker) == []
    await broker.leader.tables.write_due()
    await broker.leader.gates.files.sweep(0)
    assert not files(broker) and not [one for one in await broker.store.list("topics/") if one.key.endswith(".parquet")]
    await swept(broker)


async def test_a_missing_file_stops_its_merge_and_no_other(machine: Machine) -> None:
    broker = await machine.start()
    await work_due(broker)
    (gate,) = broker.engine.manifest.gates.by_topic[broker.engine.topic("h").id].values()
    lost = gate.extents[2].path
    data = await broker.store.get(lost)
    await broker.store.delete(lost)
    for _ in range(6):
        await folded(broker)
    assert files(broker) and not chunk_extents(broker), "the other topic goes on"
    paths = [one.path for one in broker.engine.manifest.gates.by_topic[broker.engine.topic("h").id]["flood"].extents]
    assert lost in paths, "its rows are not given up"
    await broker.store.put(lost, data)
    assert len(await seen(broker, "h")) == 50
