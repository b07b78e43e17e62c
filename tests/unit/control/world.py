"""Whole brokers in one process and one event loop: engine, control plane, groups and gRPC server, over one medium in memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from headgate.broker.control.leader import Leader
from headgate.broker.control.proving import Prover
from headgate.broker.control.stream import connect
from headgate.broker.engine.identity import BROKERS, shared_key
from headgate.broker.node import Address, Node, assemble
from headgate.broker.runtime.clock import Clock, SteadyClock
from headgate.broker.runtime.config import ADMIN_PASSWORD, Settings
from headgate.broker.runtime.ending import Ending
from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason
from headgate.broker.runtime.listeners import knows_clients
from headgate.broker.server.access.security import Security
from headgate.broker.server.audit.audit import Audit
from headgate.broker.server.grpc.server import GrpcServer
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, capacity_pb2, control_pb2, groups_pb2, kafka_pb2, log_pb2
from headgate.broker.wire.grpc.methods import methods
from tests.support.ports import free_port
from tests.support.waiting import until_async
from tests.unit.engine.world import MortalStore

HOST = "127.0.0.1"
PASSWORD = "right"
"""Of the user `admin`, where clients log in."""
WAIT_S = 90.0
"""Ends a hang; no test judges by it."""

METHODS = {
    f"{service.name}.{name}": method
    for file in (admin_pb2, capacity_pb2, control_pb2, groups_pb2, kafka_pb2, log_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for name, method in methods(service).items()
}


class JumpyClock(Clock):
    """The machine's clocks, with a wall clock that is off by `jump_ms`."""

    def __init__(self) -> None:
        self.jump_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jump_ms


class Broker:
    """One broker: `start`, then `stop` as SIGTERM does or `crash` as SIGKILL does, and `start` again as a new incarnation."""

    def __init__(self, objects: MemoryObjects, number: int, values: dict[str, Any], *, append: bool = True) -> None:
        self.number = number
        self.append = append
        self.port = free_port()
        self.settings = Settings.from_values(
            {
                "broker_id": number,
                "grpc_port": self.port,
                "kafka_port": free_port(),
                # A dead broker is noticed at once by its closed connection; a busy machine must not make a living one count as
                # lost.
                "cluster_lease_ttl_ms": 10_000,
                "cluster_member_timeout_ms": 10_000,
                "wal_flush_interval_ms": 1,
                "offsets_topic_num_partitions": 6,
                "group_initial_rebalance_delay_ms": 0,
                **values,
            }
        )
        self.failures: list[HeadgateError] = []
        self.lines: list[dict[str, object]] = []
        """Of the audit log."""
        self.running = False
        self.security: Security | None = None
        self.clock = JumpyClock()
        self.objects = objects
        self._channel: grpc.aio.Channel | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def term(self) -> Leader:
        """Its term, while it leads the cluster."""
        leader = self.participant.leader
        assert leader is not None
        return leader

    async def start(self) -> None:
        self.failures = []
        self.store = MortalStore(MemoryStore(self.objects, append=self.append), "memory:")
        self.node = assemble(
            self.settings,
            self.store,
            SteadyClock(self.clock, self.settings.clock_difference_max_ms),
            self,
            fail=self.failures.append,
        )
        self.engine, self.participant, self.groups = self.node.engine, self.node.participant, self.node.groups
        async with asyncio.timeout(WAIT_S):
            await self.node.start()
        self.running = True

    # -- the node's network

    @property
    def advertised(self) -> Address:
        return Address(host=HOST, kafka_port=self.settings.kafka_port, grpc_port=self.port)

    def connections(self) -> int:
        return 0

    def connect(self, address: str) -> grpc.aio.Channel:
        if not knows_clients(self.settings):
            return connect(address)
        return Prover(self.number, lambda: shared_key(self.store, BROKERS, b"fresh")).connect(address)

    async def open(self, node: Node) -> None:
        self.security, audit = None, None
        if knows_clients(self.settings):
            clock = node.engine.clock
            audit = Audit(self.number, clock.now_ms, lambda row, _: self.lines.append(row))
            self.security = Security(self.settings, clock.monotonic, clock.now_ms, None, audit)
            await self.security.use(node.engine, {ADMIN_PASSWORD: PASSWORD})
        self.server = GrpcServer(node, self.settings, security=self.security, audit=audit, connect=self.connect)
        await self.server.start()

    # -- the end

    async def stop(self) -> None:
        """End as SIGTERM does. From then on a process reports the errors that its parts raise, and no others."""
        assert not self.failures
        self.running = False
        ending = Ending(None, WAIT_S)
        await self.node.drain(ending)
        await self.node.close(ending)
        await self.server.close(1)
        if ending.error is not None:
            raise ending.error

    async def crash(self) -> None:
        self.running = False
        # Closes its server first: no other broker hears of it any more.
        await self.server.close(0)
        self.store.kill()
        beside = (self.participant._task, self.participant._attending, self.participant._replicating)
        tasks = [task for task in beside if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.groups.stop()
        self.participant.abandon(FatalError(Reason.CLOSED, "this process is dead"))
        with suppress(BaseException):
            await self.engine.close()
        await self.groups.close()

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        if self.running:
            await self.crash()

    async def call(self, name: str, request: Message, **metadata: str) -> Any:
        """A unary call such as ``Admin.Status``. Raises AioRpcError."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        method = METHODS[name]
        call: Any = self._channel.unary_unary(method.path)
        return method.response.FromString(
            await call(request.SerializeToString(), timeout=WAIT_S, metadata=tuple(metadata.items()), wait_for_ready=True)
        )

    def leads(self) -> dict[str, list[int]]:
        """The partitions that it leads, by topic; not those that it hands over, whose new leader it may not know yet."""
        return {
            name: numbers
            for name, slots in self.engine.logs.items()
            if (numbers := [log.number for log in slots if log is not None and log.refusal is None])
        }


class World:
    """Brokers of one cluster, numbered from 1; the first one leads it. `append`: True if their store can append, which S3
    cannot."""

    def __init__(self, values: dict[str, Any], *, append: bool = True) -> None:
        self.append = append
        self.objects = MemoryObjects()
        self.brokers: list[Broker] = []
        self._values = values

    async def start(self, count: int) -> None:
        for number in range(1, count + 1):
            broker = Broker(self.objects, number, self._values, append=self.append)
            self.brokers.append(broker)
            await broker.start()
        await until_async(lambda: all(len(broker.engine.brokers()) == count for broker in self.brokers))

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def leader(self) -> Broker:
        return next(broker for broker in self.brokers if broker.running and broker.participant.leader is not None)

    def lead(self, topic: str, partition: int) -> Broker:
        """The broker that says of itself that it leads a partition."""
        return next(broker for broker in self.brokers if broker.running and partition in broker.leads().get(topic, ()))

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.close()
