"""A real gRPC server over a real engine over a store in memory; and raw calls, to send requests that no client of ours sends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from headgate.broker.log.batch import parse_header, split
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.node import Node
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import ADMIN_PASSWORD, Settings, Value
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.runtime.listeners import knows_clients
from headgate.broker.server.access.security import Security
from headgate.broker.server.audit.audit import Audit
from headgate.broker.server.grpc.open_calls import OpenCall
from headgate.broker.server.grpc.server import GrpcServer
from headgate.broker.server.grpc.shares import Shares
from headgate.broker.server.net.tls import Certificates
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.wire.grpc.headgate.v1 import access_pb2, admin_pb2, gates_pb2, groups_pb2, kafka_pb2, log_pb2
from headgate.broker.wire.grpc.methods import methods
from tests.support import carried, nodes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for all tests here: grpc.aio has one poller, which complains about late events of a closed loop."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


METHODS = {
    f"{service.name}.{name}": method
    for file in (access_pb2, admin_pb2, gates_pb2, groups_pb2, kafka_pb2, log_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for name, method in methods(service).items()
}
PASSWORD = "right"
"""Of the user `admin`, where clients log in."""
WAIT_S = 90
"""Longest wait of a test for anything; real durations are milliseconds."""


class RawStream:
    """A bidirectional stream of messages."""

    def __init__(self, call: Any, response: type[Message]) -> None:
        self.call = call
        self._response = response

    async def write(self, message: Message | bytes) -> None:
        await self.call.write(message if isinstance(message, bytes) else message.SerializeToString())

    async def read(self) -> Any:
        """The next message; None at the end. Raises AioRpcError."""
        async with asyncio.timeout(WAIT_S):
            data = await self.call.read()
        return None if data is grpc.aio.EOF else self._response.FromString(data)

    async def rest(self) -> list[Any]:
        """Half-close, then everything up to the end."""
        await self.call.done_writing()
        found = []
        while (message := await self.read()) is not None:
            found.append(message)
        return found

    async def status(self) -> tuple[grpc.StatusCode, str, str]:
        """(code, reason, details) of the end; reads the remaining messages."""
        try:
            while await self.read() is not None:
                pass
        except grpc.aio.AioRpcError as error:
            return status_of(error)
        return await self.call.code(), "", ""


class Served(nodes.Offline):
    """One broker with a gRPC server. `stop` and `start` are a restart: its store outlives it."""

    def __init__(self, values: dict[str, Value]) -> None:
        self.settings = Settings.from_values({"grpc_port": 0, "wal_flush_interval_ms": 1, "num_partitions": 2, **values})
        self.objects = MemoryObjects()
        self.failures: list[HeadgateError] = []
        self.lines: list[dict[str, object]] = []
        """Of the audit log."""
        self.port = 0
        self.certificates: Certificates | None = None
        self._channel: grpc.aio.Channel | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def budget(self) -> Shares:
        return self.server._server_state.budget

    @property
    def calls(self) -> dict[OpenCall, None]:
        return self.server._callers.calls.calls

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=[("grpc.max_receive_message_length", -1)])
        return self._channel

    async def start(self) -> None:
        if self.port:
            self.settings = dataclasses.replace(self.settings, grpc_port=self.port)
        self.node = nodes.make(self.settings, MemoryStore(self.objects), Clock(), self.failures.append, self)
        self.engine, self.groups = self.node.engine, self.node.groups
        await self.node.start()
        await self.groups.loaded()

    async def open(self, node: Node) -> None:
        security: Security | None = None
        audit: Audit | None = None
        if self.settings.tls_certificate:
            self.certificates = Certificates(self.settings, lambda: node.engine.clock.now_ms() / 1000)
        if knows_clients(self.settings):
            audit = Audit(1, node.engine.clock.now_ms, lambda row, _: self.lines.append(row))
            security = Security(self.settings, node.engine.clock.monotonic, node.engine.clock.now_ms, self.certificates, audit)
            await security.use(node.engine, {ADMIN_PASSWORD: PASSWORD})
        self.server = GrpcServer(node, self.settings, security=security, certificates=self.certificates, audit=audit)
        self.port = await self.server.start()

    async def stop(self, grace_s: float = 5) -> None:
        await self.server.close(grace_s)
        await nodes.end(self.node)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        await self.stop()

    async def call(self, name: str, message: Message | bytes, *metadata: tuple[str, str]) -> Any:
        """A unary call such as ``Log.Fetch``. Raises AioRpcError."""
        method = METHODS[name]
        data = message if isinstance(message, bytes) else message.SerializeToString()
        call = self.channel.unary_unary(method.path)(data, timeout=WAIT_S, metadata=metadata)
        return method.response.FromString(await call)

    async def ask(self, request: Any, answer: Any, *metadata: tuple[str, str], **fields: Any) -> Any:
        """The answer to a Kafka request over gRPC. `fields`: of the envelope."""
        return carried.answer(answer, await self.call("Kafka.Ask", carried.asked(request, **fields), *metadata))

    def stream(self, name: str, *metadata: tuple[str, str]) -> RawStream:
        method = METHODS[name]
        return RawStream(self.channel.stream_stream(method.path)(metadata=metadata), method.response)

    async def create(self, name: str, partitions: int = 2, **config: str) -> None:
        await self.engine.create_topic(name, partitions, {key.replace("_", "."): value for key, value in config.items()})

    async def fill(self, topic: str, partition: int, *batches: bytes) -> None:
        """Write batches without gRPC."""
        log = self.engine.partition(self.engine.topic(topic), partition)
        for batch in batches:
            self.engine.append(log, memoryview(bytearray(batch)))
        await self.engine.durable()

    async def batches(self, topic: str, partition: int) -> list[memoryview]:
        """Every readable batch, without gRPC."""
        log = self.engine.partition(self.engine.topic(topic), partition)
        found: list[memoryview] = []
        offset = log.log_start
        while offset < log.high_watermark:
            for view in await self.engine.read(log, offset, 1 << 20):
                found += split(view)
            offset = parse_header(found[-1]).next_offset
        return found


class HeldWal:
    """Holds back the reports that batches are durable."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.callbacks: list[Any] = []
        monkeypatch.setattr(served.engine, "on_acked", self.callbacks.append)

    def release(self, error: Any = None) -> None:
        callbacks, self.callbacks[:] = list(self.callbacks), []
        for callback in callbacks:
            callback(error)


Start = Callable[..., Any]


@pytest_asyncio.fixture(loop_scope="session")
async def start() -> AsyncIterator[Start]:
    """``await start(setting=value)`` gives a serving broker; all end with the test, and none may have failed."""
    made: list[Served] = []

    async def make(**values: Value) -> Served:
        served = Served(values)
        await served.start()
        made.append(served)
        return served

    yield make
    for served in made:
        await served.close()
        assert served.failures == []


@pytest_asyncio.fixture(loop_scope="session")
async def served(start: Start) -> Served:
    broker: Served = await start()
    return broker


def batch(*values: bytes | None, timestamp_ms: int = 1_700_000_000_000, **producer: int) -> bytes:
    """A batch with one record per value."""
    return encode_batch([Record(0, timestamp_ms, None, value) for value in values], **producer)


async def reason_of(awaitable: Awaitable[object]) -> Reason:
    """The reason of the error that it raises."""
    with pytest.raises(HeadgateError) as caught:
        async with asyncio.timeout(WAIT_S):
            await awaitable
    return caught.value.reason


async def refused(call: Awaitable[object]) -> tuple[grpc.StatusCode, str, str]:
    """(code, reason, details) of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return status_of(caught.value)


def status_of(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str, str]:
    """(code, reason, details) of a failed call."""
    metadata = error.trailing_metadata()
    return error.code(), str(metadata.get("headgate-reason") or ""), error.details() or ""
