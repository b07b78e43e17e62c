"""A real engine over a store in memory, and calls of handlers through encoded requests and responses, as the listener makes
them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from typing import Any

import pytest
import pytest_asyncio

from headgate.broker.engine.base import keys
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.steps import finish
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.kafka.apis import APIS
from headgate.broker.server.kafka.context import Context
from headgate.broker.store.memory import MemoryStore
from tests.support import nodes

NOW_MS = 1_700_000_000_000


class Kafka:
    """A broker without sockets."""

    def __init__(self, settings: Settings, store: MemoryStore) -> None:
        self.settings = settings
        self.clock = ManualClock(NOW_MS)
        self.failures: list[HeadgateError] = []
        self.is_fenced = False
        self.node = nodes.make(settings, store, self.clock, self.failures.append)
        self.engine, self.groups = self.node.engine, self.node.groups

    async def open(self) -> None:
        await self.node.start()
        await self.groups.loaded()

    async def close(self) -> None:
        await nodes.end(self.node)

    def epoch(self, topic: str, partition: int = 0) -> int:
        """The leader epoch of a partition."""
        return self.engine.partition(self.engine.topic(topic), partition).leader_epoch

    async def call(self, request: Any, version: int) -> Any:
        """The response to `request`, both of them encoded and decoded in `version`."""
        api = APIS[request.API_KEY]
        assert api.serves(version)
        declared = api.load()
        message, _ = finish(declared.decode(request.encode(version), 0, version))
        context = Context(
            engine=self.engine,
            groups=self.groups,
            transaction_calls=self.node.transaction_calls,
            settings=self.settings,
            client_id="test",
            client_host="127.0.0.1",
            api_version=version,
            turn=Turns(self.clock.monotonic).begin(),
            host="broker.test",
            port=9092,
        )
        response = await declared.handle(message, context)
        data = response.encode(version)
        module = import_module(f"headgate.broker.wire.kafka.messages.{api.module}")
        answer, end = getattr(module, f"{api.name}Response").decode(data, 0, version)
        assert end == len(data)
        return answer

    async def append(self, topic: str, values: Sequence[bytes | None], *, partition: int = 0, **fields: Any) -> int:
        """Write a batch and wait for the store; returns its first offset."""
        from tests.support.batches import batch  # kafka-python warns when it is imported, and a conftest must not

        fields.setdefault("timestamp_ms", NOW_MS)
        log = self.engine.partition(self.engine.topic(topic), partition)
        appended = self.engine.append(log, memoryview(bytearray(batch(values, **fields))))
        await self.engine.durable(10_000)
        return appended.base_offset

    async def fence(self) -> None:
        """Another broker takes over from this one, which does not learn of it and holds no promise."""
        self.engine.proof.end()
        await self.engine.store.put(keys.fence(self.engine.incarnation_id), b"HGfence1")
        self.is_fenced = True


@pytest.fixture
def settings() -> Settings:
    return Settings.from_values({"broker_id": 7})


@pytest_asyncio.fixture
async def kafka(settings: Settings) -> AsyncIterator[Kafka]:
    broker = Kafka(settings, MemoryStore())
    await broker.open()
    yield broker
    await broker.close()
    assert bool(broker.failures) == broker.is_fenced
