"""The end of a broker: every acked record is listed or will be recovered, and no caller waits for ever.

Runs: engines that are closed cleanly, with a store that does not answer, with work under way, and twice. Compared: the next
engine's reads with the acked records. A mismatch means that a graceful shutdown loses records that a crash would not lose.
"""

from __future__ import annotations

import asyncio
import copy
from contextlib import suppress

import pytest

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import SealIncarnation
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.runtime.errors import ClosedError, FencedError, HeadgateError, Reason, RetryError
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import Machine, read_values, settings

FULL = RetryError(Reason.STORE_FULL, "no space left")


async def test_a_clean_end_leaves_nothing_to_recover(machine: Machine) -> None:
    broker = await machine.begin()
    waiting = [machine.send(broker, [b"%d" % number]) for number in range(50)]
    await machine.stop(broker)
    assert [await one for one in waiting] == list(range(50))
    manifest = broker.engine.manifest
    assert all(incarnation.sealed for incarnation in manifest.incarnations.values())
    broker = await machine.start()
    await machine.check(broker, exact=True)
    await machine.stop(broker)
    await machine.stop(await machine.start())


@pytest.mark.parametrize("medium", ["memory", "aligned", "put"])
async def test_a_store_that_refuses_the_last_records_keeps_those_that_were_acked(make_machine: MakeMachine, medium: str) -> None:
    machine = make_machine(medium)
    broker = await machine.begin()
    for number in range(5):
        await machine.send(broker, [b"acked-%d" % number])
    operation = "put_if_absent" if medium == "put" else "appender.write"
    broker.store.refused[operation] = FULL
    waiting = machine.send(broker, [b"not acked"])
    await until_async(lambda: broker.engine.stalled is not None)
    closing = asyncio.create_task(broker.engine.close())
    with pytest.raises(ClosedError):
        await waiting
    broker.store.refused.clear()
    await closing
    await machine.forget(broker)
    broker = await machine.start()
    await machine.check(broker)
    assert (await read_values(broker))[:5] == [b"acked-%d" % number for number in range(5)]


@pytest.mark.parametrize("machine", ["memory", "aligned", "put", "local"], indirect=True)
async def test_a_store_that_refuses_everything_at_the_end(machine: Machine) -> None:
    broker = await machine.begin()
    for number in range(5):
        await machine.send(broker, [b"acked-%d" % number])
    for operation in ("put", "put_if_absent", "appender.truncate", "delete", "list"):
        broker.store.refused[operation] = FULL
    with suppress(HeadgateError):
        await broker.engine.close()
    await machine.forget(broker)
    broker = await machine.start()
    await machine.check(broker, exact=True)


@pytest.mark.parametrize("machine", ["memory", "aligned", "put"], indirect=True)
async def test_a_seal_whose_answer_is_lost_keeps_what_it_lists(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker then learns that it is sealed. But its manifest is older, and lacks the chunks that the seal lists."""
    broker = await machine.begin(settings=settings(wal_checkpoint_chunks=1000, wal_checkpoint_interval_ms=3_600_000))
    for number in range(5):
        await machine.send(broker, [b"acked-%d" % number])
    before = copy.deepcopy(broker.engine.manifest)
    commit = RoutedCatalog.commit

    async def answer_is_lost(self: RoutedCatalog, *edits: Edit) -> None:
        await commit(self, *edits)
        if any(isinstance(edit, SealIncarnation) for edit in edits):
            self.manifest = before
            raise FencedError(Reason.FENCED, "another broker took over from this one")

    monkeypatch.setattr(RoutedCatalog, "commit", answer_is_lost)
    await broker.engine.close()
    monkeypatch.undo()
    await machine.forget(broker)
    broker = await machine.start()
    await machine.check(broker, exact=True)


async def test_what_is_appended_after_the_end_is_not_acked(machine: Machine) -> None:
    broker = await machine.begin()
    await machine.send(broker, [b"before"])
    closing = asyncio.create_task(broker.engine.close())
    waiting = []
    for number in range(200):
        with suppress(RetryError):  # the closing engine refuses further records
            waiting.append(machine.send(broker, [b"meanwhile-%d" % number]))
        await asyncio.sleep(0)
    await closing
    await machine.forget(broker)
    with raises(RetryError, Reason.NOT_LEADER):
        machine.send(broker, [b"after"])
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {int, ClosedError}
    broker = await machine.start()
    await machine.check(broker, exact=True)
