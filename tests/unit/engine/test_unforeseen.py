"""Unexpected errors in tasks that no caller awaits: a bug, or a library that raises undocumented errors.

Runs: engines over stores that raise errors outside of their contract. Compared: the errors that the process gets (`failures`),
and the answers to waiting callers. A mismatch means a broker that looks well while its clients wait for ever.
"""

from __future__ import annotations

import pytest

from headgate.broker.runtime.errors import FatalError, Reason
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import Incarnation, Machine

UNFORESEEN = KeyError("unforeseen")


async def ends(broker: Incarnation, part: str) -> None:
    await until_async(lambda: broker.failures)
    (failure,) = broker.failures
    assert isinstance(failure, FatalError) and failure.reason is Reason.INTERNAL
    assert part in failure.message and "unforeseen" in failure.message


async def test_of_a_put_of_the_wal(make_machine: MakeMachine) -> None:
    machine = make_machine("put")
    broker = await machine.begin()
    broker.store.refused["put_if_absent"] = UNFORESEEN
    with pytest.raises(FatalError):
        await machine.send(broker, [b"never acked"])
    await ends(broker, "WAL")


async def test_of_the_checkpointer(machine: Machine) -> None:
    broker = await machine.begin()
    broker.store.refused["put"] = UNFORESEEN
    await machine.send(broker, [b"x"])
    await broker.wal.roll()
    await ends(broker, "checkpointer")


async def test_of_the_opening_of_segments(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await machine.begin()
    await machine.send(broker, [b"x"])
    await machine.crash(broker)

    async def unforeseen(*arguments: object) -> None:
        raise UNFORESEEN

    monkeypatch.setattr("headgate.broker.engine.partition.openings.load_producers", unforeseen)
    await ends(await machine.start(), "opening of segments")


async def test_of_retention_which_looks_again(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    broker = await machine.start()

    async def make_and_delete(name: str) -> None:
        topic = await broker.engine.create_topic(name, 1, {})
        machine.unchecked.add(name)
        await machine.send(broker, [b"x"], topic=name)
        await broker.wal.roll()
        await until_async(lambda: len(broker.log(name).sealed))
        await broker.engine.delete_topic(topic)

    broker.store.refused["delete"] = UNFORESEEN
    await make_and_delete("t")
    await until_async(lambda: "retention_failed" in caplog.text)
    del broker.store.refused["delete"]
    await make_and_delete("u")
    await until_async(lambda: not broker.engine.manifest.chunks[broker.engine.incarnation_id])
    assert not broker.failures
