"""Clusters of whole brokers in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.unit.control.world import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for all tests here: grpc.aio has one poller, which complains about late events of a closed loop."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


MakeWorld = Callable[..., Awaitable[World]]


@pytest_asyncio.fixture(loop_scope="session")
async def make_world() -> AsyncIterator[MakeWorld]:
    """``await make_world(3, setting=value)`` starts a cluster of brokers; all of them end with the test."""
    made: list[World] = []

    async def make(count: int = 3, *, append: bool = True, **values: Any) -> World:
        world = World(values, append=append)
        made.append(world)
        await world.start(count)
        return world

    yield make
    for world in made:
        await world.close()


@pytest_asyncio.fixture(loop_scope="session")
async def world(make_world: MakeWorld) -> World:
    return await make_world(3)
