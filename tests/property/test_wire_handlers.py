"""Well-formed but senseless requests against the handlers, over a real engine in memory.

Runs: requests that Hypothesis builds from Kafka's schema, in every served version, with names that exist and names that do not,
and numbers at their edges. Compared: each must be answered with a response that the same version can carry. A mismatch means
that a client can break a connection, or more, with a request that any Kafka would answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.steps import finish
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.kafka.apis import APIS
from headgate.broker.server.kafka.context import Context
from headgate.broker.store.memory import MemoryStore
from headgate.broker.wire.kafka.schema import Field
from tests.support import nodes
from tests.support.batches import batch
from tests.support.examples import examples
from tests.support.messages import message_module, message_values, scalars

OF_GROUPS = {8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69}
"""The APIs that need a coordinator of groups: this test has none."""
KEYS = [api.key for api in APIS.values() if api.module is not None and api.key not in OF_GROUPS]

_NAMES = ("a", "b", "gone", "a b", "", "7", "x" * 300, "retention.ms", "cleanup.policy", "compact", "__consumer_offsets")


def senseless(field: Field) -> st.SearchStrategy[Any]:
    if field.kind == "string":
        return st.one_of(st.sampled_from(_NAMES), st.text(max_size=5))
    if field.kind.startswith("int"):
        return st.one_of(st.integers(-5, 5), scalars(field))
    return scalars(field)


class Broker:
    """An engine with its own event loop, because Hypothesis calls from outside of one."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.settings = Settings.from_values({"broker_id": 7, "partitions_per_topic_max": 100})
        self.failures: list[HeadgateError] = []
        self.runner.run(self.prepare())

    async def prepare(self) -> None:
        self.node = nodes.make(self.settings, MemoryStore(), ManualClock(), self.failures.append)
        self.engine = self.node.engine
        await self.node.start()

    async def answer(self, key: int, request: Any, version: int) -> bytes:
        engine = self.engine
        if "a" not in engine.logs:
            await engine.create_topic("a", 2, {})
            log = engine.partition(engine.topic("a"), 0)
            engine.append(log, memoryview(bytearray(batch([b"x"] * 3, timestamp_ms=engine.clock.now_ms()))))
            await engine.durable(10_000)
        declared = APIS[key].load()
        message, _ = finish(declared.decode(request.encode(version), 0, version))
        context = Context(
            engine=engine,
            groups=self.node.groups,
            transaction_calls=self.node.transaction_calls,
            settings=self.settings,
            client_id=None,
            client_host="127.0.0.1",
            api_version=version,
            turn=Turns(engine.clock.monotonic).begin(),
            host="broker.test",
            port=9092,
        )
        return (await declared.handle(message, context)).encode(version)

    def close(self) -> None:
        self.runner.run(nodes.end(self.node))
        self.runner.close()
        assert not self.failures


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    one = Broker()
    yield one
    one.close()


@pytest.mark.parametrize("key", KEYS, ids=lambda key: APIS[key].name)
def test_every_request_is_answered(broker: Broker, key: int) -> None:
    api = APIS[key]
    module = message_module(f"{api.name}Request")

    @settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.integers(api.min_version, api.max_version))
        request = data.draw(message_values(f"{api.name}Request", version, senseless))
        answer = broker.runner.run(broker.answer(key, request, version))
        _, end = getattr(module, f"{api.name}Response").decode(answer, 0, version)
        assert end == len(answer)

    check()
