"""Stores of every kind, each empty."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from headgate.broker.runtime.clock import Clock
from headgate.broker.store.interface import Store
from headgate.broker.store.local import LocalStore
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.store.s3 import open_s3
from headgate.broker.store.wrappers import MeteredStore, RetryingStore
from headgate.broker.testing.faults import FaultStore
from tests.support.s3_server import S3Server, s3_server

__all__ = ["s3_server"]

StoreFactory = Callable[[], Store]
"""Returns another store over the same medium at every call, as other processes would have it. All are closed at the end."""


@pytest_asyncio.fixture(params=["memory", "local", "s3", "wrapped"])
async def open_another(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreFactory]:
    kind: str = request.param
    opened: list[Store] = []
    objects = MemoryObjects()
    s3_url = ""
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        s3_url = server.url(server.bucket(), "some/prefix")

    def open_one() -> Store:
        store: Store
        if kind == "memory":
            store = MemoryStore(objects)
        elif kind == "local":
            store = LocalStore(str(tmp_path / "store"))
        elif kind == "s3":
            store = open_s3(s3_url)
        else:
            store = FaultStore(MemoryStore(objects), sleep=asyncio.sleep)
            store = RetryingStore(store, clock=Clock(), sleep=asyncio.sleep, random=lambda: 0.5)
            store = MeteredStore(store, Clock())
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
def store(open_another: StoreFactory) -> Store:
    return open_another()
