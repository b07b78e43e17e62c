"""Bugs that simulated clusters found (`headgate.broker.testing.simulate`), each alone and as small as possible.

Runs: one engine, or a manifest alone. Compared: the final manifest, and if the broker keeps running. A mismatch means that a
cluster may lose a partition's leader, or a broker, as it once did.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from headgate.broker.cluster.admission import check_together
from headgate.broker.cluster.edits.incarnations import SealIncarnation
from headgate.broker.runtime.errors import InvalidError
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import settings

HOUR_MS = 3_600_000


async def test_an_incarnation_is_sealed_with_all_that_it_leads(make_machine: MakeMachine) -> None:
    """This includes a segment that it received a moment before: otherwise no leader would be chosen for that segment."""
    broker = await make_machine("inline").start()
    await broker.engine.create_topic("t", 2, {})
    with pytest.raises(InvalidError, match="other segments by now"):
        check_together(broker.engine.manifest, [SealIncarnation(broker.engine.incarnation_id)])


async def test_handing_over_goes_on_when_who_asked_for_it_is_gone(make_machine: MakeMachine) -> None:
    """An unfinished hand-over would leave partitions to which no broker can write."""
    broker = await make_machine("put").start()
    await broker.engine.create_topic("t", 1, {})
    (segment,) = broker.engine.leads.segments()
    broker.store.held["put"] = threading.Event()
    asked = asyncio.create_task(broker.engine.resign([segment.id]))
    await until_async(lambda: broker.log().refusal is not None)
    asked.cancel()
    await asyncio.wait((asked,))
    broker.store.held["put"].set()
    await until_async(lambda: segment.id not in broker.engine.manifest.segments.open)


async def test_a_broker_that_has_ended_hears_of_it_without_harm(make_machine: MakeMachine) -> None:
    """The broker follows the cluster's leader until its process ends: the news that it is sealed must not count as a failure."""
    machine = make_machine("memory")
    broker = await machine.start()
    await machine.stop(broker)
    assert broker.engine.started and not broker.engine.ready
    broker.engine.replaced()
    assert not broker.failures


async def test_rows_below_the_start_of_the_log_are_cut_at_windows_too(make_machine: MakeMachine) -> None:
    """Unlisted rows are listed completely, even those below the log start; an extent never spans a window."""
    machine = make_machine("memory")
    broker = await machine.begin(settings=settings(wal_checkpoint_chunks=1_000, wal_checkpoint_interval_ms=HOUR_MS))
    engine = broker.engine
    await machine.send(broker, [b"before"])
    await broker.leader.gates.open("t", "g", "now", [10], HOUR_MS)
    await machine.send(broker, [b"behind"])
    await broker.leader.gates.release("t", "g")
    await engine.delete_records(broker.log(), -1)
    assert await machine.send(broker, [b"after"]) == 12
    await machine.stop(broker)
    (chunk,) = engine.manifest.chunks[engine.incarnation_id].values()
    assert [(extent.base_offset, extent.end_offset) for extent in chunk.extents] == [(0, 1), (11, 13)]
