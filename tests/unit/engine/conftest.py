"""Media of every kind, each empty, and machines over them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headgate.broker.runtime.clock import ManualClock
from headgate.broker.store.interface import Store
from headgate.broker.store.local import LocalStore
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.store.s3 import open_s3
from tests.support.s3_server import S3Server, s3_server
from tests.unit.engine.world import NOW_MS, Machine

__all__ = ["s3_server"]

MEDIA = ("inline", "memory", "aligned", "put", "local")
"""`inline`: memory, written on the loop. `memory`: written by a thread. `aligned`: with O_DIRECT's alignment. `put`: whole
objects."""

MakeMachine = Callable[[str], Machine]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between retries."""
    monkeypatch.setattr("headgate.broker.engine.write.checkpoint.RETRY_S", 0.001)
    monkeypatch.setattr("headgate.broker.engine.base.catalog.COMMIT_PAUSE_S", 0.001)
    monkeypatch.setattr("headgate.broker.control.routed_catalog.RETRY_S", 0.001)
    monkeypatch.setattr("headgate.broker.control.participant.LOOK_S", 0.001)
    monkeypatch.setattr("headgate.broker.engine.write.wal_group.RETRY_MS_MIN", 1)
    monkeypatch.setattr("headgate.broker.engine.write.wal_group.RETRY_MS_MAX", 4)
    monkeypatch.setattr("headgate.broker.engine.write.wal_put.RETRY_MS_MIN", 1)
    monkeypatch.setattr("headgate.broker.engine.write.wal_put.RETRY_MS_MAX", 4)


@pytest_asyncio.fixture
async def make_machine(tmp_path: Path, clock: ManualClock) -> AsyncIterator[MakeMachine]:
    """Machines by the name of their medium. Every broker that still runs on them at the end crashes."""
    made: list[Machine] = []
    stores: list[Store] = []

    def make(medium: str) -> Machine:
        objects = MemoryObjects(clock)

        def open_store() -> Store:
            store: Store
            match medium:
                case "inline" | "memory":
                    store = MemoryStore(objects)
                case "aligned":
                    store = MemoryStore(objects, alignment_bytes=4096)
                case "put":
                    store = MemoryStore(objects, append=False)
                case _:
                    store = LocalStore(str(tmp_path / "store"))
            stores.append(store)
            return store

        machine = Machine(open_store, clock, inline=medium == "inline")
        made.append(machine)
        return machine

    yield make
    for machine in made:
        await machine.close()
    for store in stores:
        await store.close()


def machine_on(medium: str) -> Any:
    """The fixture `machine` of a module whose tests need one medium alone."""

    @pytest.fixture
    def machine(make_machine: MakeMachine) -> Machine:
        return make_machine(medium)

    return machine


@pytest.fixture(params=MEDIA)
def machine(request: pytest.FixtureRequest, make_machine: MakeMachine) -> Machine:
    """A machine of every kind."""
    return make_machine(request.param)


@pytest_asyncio.fixture
async def s3_machine(s3_server: S3Server, clock: ManualClock) -> AsyncIterator[Machine]:
    """A machine with a bucket on a real S3 server."""
    url = s3_server.url(s3_server.bucket(), "some/prefix")
    stores: list[Store] = []

    def open_store() -> Store:
        store = open_s3(url)
        stores.append(store)
        return store

    machine = Machine(open_store, clock)
    yield machine
    await machine.close()
    for store in stores:
        await store.close()
