"""One broker process of a simulation: a real node over a simulated store, clock and network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import TYPE_CHECKING, Any, cast

from headgate.broker.cluster.capacity import Reservation
from headgate.broker.control.leader_capacity import LeaderCapacity
from headgate.broker.control.participant import Participant
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.groups.coordinator import Coordinator
from headgate.broker.groups.positions import Position
from headgate.broker.groups.shard import Commit
from headgate.broker.node import Address, Node, assemble
from headgate.broker.runtime.clock import SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.ending import Ending
from headgate.broker.runtime.errors import ClosedError, HeadgateError, Reason, RetryError
from headgate.broker.server.grpc.control_service import ControlService
from headgate.broker.store.interface import Store
from headgate.broker.store.wrappers import RetryingStore
from headgate.broker.testing.simulation.clock import SimulatedClock, WallClock
from headgate.broker.testing.simulation.loop import Process, VirtualLoop, start
from headgate.broker.testing.simulation.network import Channel, Door, Network
from headgate.broker.testing.simulation.store import Medium, StoreView
from headgate.broker.testing.simulation.trace import Trace
from headgate.broker.wire.grpc.headgate.v1 import control_pb2

if TYPE_CHECKING:
    import grpc

SERVICE = "/headgate.v1.Control/"
GRACE_S = 10.0

Reply = Callable[[Any], None]


class _Ports:
    """The `Network` of a simulated node. `opened` is called when the node serves other brokers."""

    def __init__(self, network: Network, door: Door, address: str, opened: Callable[[], None]) -> None:
        host, _, port = address.rpartition(":")
        self.advertised = Address(host=host, kafka_port=int(port), grpc_port=int(port))
        self._network = network
        self._door = door
        self._opened = opened

    def connections(self) -> int:
        return 0

    def connect(self, address: str) -> grpc.aio.Channel:
        return cast("grpc.aio.Channel", Channel(self._network, address))

    async def open(self, node: Node) -> None:
        service = ControlService(node.participant)
        self._door.streams[SERVICE + "Join"] = service.join
        self._door.streams[SERVICE + "Replicate"] = service.replicate
        self._door.streams[SERVICE + "Surrender"] = service.surrender
        self._door.calls[SERVICE + "Commit"] = _unary(service.commit, control_pb2.CommitRequest)
        self._door.calls[SERVICE + "Reshard"] = _unary(service.reshard, control_pb2.ReshardRequest)
        self._door.open = True
        self._opened()


class Broker:
    """One incarnation of a broker.

    Args:
        address: ``host:port`` of its ports. place: the machine on which it runs.
        wall: the wall clock of the machine.
        ack: ack mode of topics that are created here; some changes of a topic's settings reset it.
        retention_ms: retention time of topics that are created or changed here.
        acked: called at the moment of each ack, with (incarnation, topic id, partition, first offset, records).
        served: called when the broker serves.
        exited: called when the process has ended by itself; `exit_error` is the reason, None after a request to end.
    """

    def __init__(
        self,
        *,
        loop: VirtualLoop,
        network: Network,
        medium: Medium,
        trace: Trace,
        random: Random,
        settings: Settings,
        name: str,
        place: str,
        address: str,
        wall: WallClock,
        append: bool,
        ack: str,
        retention_ms: int,
        acked: Callable[[str, bytes, int, int, int], None],
        served: Callable[[Broker], None],
        exited: Callable[[Broker], None],
    ) -> None:
        self.name = name
        self.address = address
        self.incarnation_id = ""
        """Empty until the process runs."""
        self.process = Process(name)
        self.clock = SimulatedClock(loop, random.random() * 1000, wall)
        self.view: StoreView = medium.view(self.process, append=append)
        self.serving = False
        self.door = Door(place, self.process)
        self.engine: Engine
        self.participant: Participant
        self.groups: Coordinator
        self.exit_error: HeadgateError | None = None
        self._loop = loop
        self._network = network
        self._trace = trace
        self._random = random
        self._settings = settings
        self._retrying = not append
        self._ack = ack
        self._retention_ms = retention_ms
        self._acked = acked
        self._served = served
        self._exited = exited
        self.slot = settings.broker_id - 1
        self._end: asyncio.Future[HeadgateError | None] = loop.create_future()
        network.doors[address] = self.door
        network.places[self.process] = place
        start(loop, self.process, self._main(), "main")

    @property
    def alive(self) -> bool:
        return not self.process.dead

    @property
    def ending(self) -> bool:
        """True once its end has begun: it was told to end, or cannot go on."""
        return self._end.done()

    def stop(self, error: HeadgateError | None = None) -> None:
        """End it as SIGTERM does; with an error, as a component that cannot go on does."""
        if not self._end.done():
            self._end.set_result(error)

    def kill(self) -> None:
        """End it as SIGKILL does."""
        self._loop.kill(self.process)
        self._network.process_died(self.process)

    async def _main(self) -> None:
        error: HeadgateError | None = None
        try:
            error = await self._life()
        except HeadgateError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001  # the run goes on, and is judged as failed
            self._loop.failures.append(f"{self.name}: {failure!r}")
        if error is not None and error.reason is Reason.INTERNAL:
            self._loop.failures.append(f"{self.name}: {error!r}")
        self._trace(self.name, "exits", "" if error is None else error.message)
        self.exit_error = error
        self.kill()
        self._exited(self)

    async def _life(self) -> HeadgateError | None:
        store: Store = self.view
        if self._retrying:
            store = RetryingStore(self.view, clock=self.clock, sleep=asyncio.sleep, random=self._random.random)
        node = assemble(
            self._settings,
            store,
            SteadyClock(self.clock, self._settings.clock_difference_max_ms),
            _Ports(self._network, self.door, self.address, self._is_open),
            fail=self.stop,
            # The loop does the work of threads at once: a simulated process that is killed could not end real threads.
            pools=lambda threads, name: Executor(),
        )
        self.engine, self.participant, self.groups = node.engine, node.participant, node.groups
        self.incarnation_id = node.engine.incarnation_id
        starting = asyncio.create_task(node.start())
        await asyncio.wait((starting, self._end), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
        failure = None if starting.cancelled() else starting.exception()
        if failure is not None and not isinstance(failure, HeadgateError):
            raise failure
        error = await self._end if failure is None else failure
        ending = Ending(error, GRACE_S)
        await node.drain(ending)
        await node.close(ending)
        return ending.error

    def _is_open(self) -> None:
        self.serving = True
        self._served(self)
        self._trace(self.name, "serves", self.incarnation_id)

    # -- requests of clients; each runs in the process and answers through `reply`

    def metadata(self, reply: Reply) -> None:
        """Answer by topic name: (topic id, per partition the leader's address or None)."""
        if not self.serving:
            reply(_not_ready())
            return
        engine = self.engine
        answer: dict[str, tuple[bytes, list[str | None]]] = {}
        for topic in engine.topics():
            leads: list[str | None] = []
            for number in range(topic.partitions):
                lead = engine.lead(topic.id, number)
                leads.append(None if lead is None else f"{lead[0].host}:{lead[0].kafka_port}")
            answer[topic.name] = (topic.id.bytes, leads)
        reply(answer)

    def produce(self, reply: Reply, topic_id: bytes, partition: int, data: bytes, count: int) -> None:
        """Append one batch; the answer is its first offset."""
        try:
            log = self._log(topic_id, partition)
            appended = self.engine.append(log, memoryview(bytearray(data)))
        except HeadgateError as error:
            reply(error)
            return

        def acked(error: HeadgateError | None) -> None:
            if error is not None:
                reply(error)
                return
            self._trace(self.name, "acks", topic_id.hex()[:6], partition, appended.base_offset, count)
            self._acked(self.incarnation_id, topic_id, partition, appended.base_offset, count)
            reply(appended.base_offset)

        self.engine.on_acked(acked)

    def fetch(self, reply: Reply, topic_id: bytes, partition: int, offset: int, max_bytes: int) -> None:
        """Read; the answer: (log start, high watermark, batches)."""

        async def read() -> None:
            try:
                log = self._log(topic_id, partition)
                end = log.high_watermark
                slices = await self.engine.read(log, offset, max_bytes)
                if not slices:
                    await self.engine.confirm(log)
                reply((log.log_start, end, [bytes(one) for one in slices]))
            except HeadgateError as error:
                reply(error)

        self._spawn(read())

    def end_offset(self, reply: Reply, topic_id: bytes, partition: int) -> None:
        """Answer the high watermark, as ListOffsets does."""

        async def work() -> None:
            try:
                log = self._log(topic_id, partition)
                await self.engine.confirm(log)
                reply(log.high_watermark)
            except HeadgateError as error:
                reply(error)

        self._spawn(work())

    def commit_position(self, reply: Reply, group: str, offset: int) -> None:
        """Commit a group's position of partition 0 of `t`. The answer: True, or False if the commit may take effect later."""

        async def work() -> None:
            try:
                groups = self._coordinator()
                rows = (Position(topic="t", partition=0, offset=offset),)
                done = await groups.commit(group, Commit(token=groups.token(), positions=rows))
                reply(done.error is None and done.errors == (None,))
            except HeadgateError as error:
                reply(error)

        self._spawn(work())

    def position(self, reply: Reply, group: str) -> None:
        """Answer the committed position, as OffsetFetch does; -1: the group has none."""

        async def work() -> None:
            try:
                groups = self._coordinator()
                await groups.confirm()
                value = groups.position(group, "t", 0)
                reply(-1 if value is None else value.offset)
            except HeadgateError as error:
                reply(error)

        self._spawn(work())

    def _coordinator(self) -> Coordinator:
        if not self.serving:
            raise _not_ready()
        return self.groups

    def epoch_end(self, reply: Reply, topic_id: bytes, partition: int, epoch: int) -> None:
        async def work() -> None:
            try:
                log = self._log(topic_id, partition)
                await self.engine.confirm()
                reply(self.engine.epoch_end(log, epoch))
            except HeadgateError as error:
                reply(error)

        self._spawn(work())

    def change(self, reply: Reply, what: str, name: str, number: int) -> None:
        """Create, delete or change a topic; the answer is its id."""

        async def work() -> None:
            try:
                if not self.serving:
                    raise _not_ready()
                engine = self.engine
                if what == "create":
                    topic = await engine.create_topic(name, number, {"ack": self._ack, "retention.ms": str(self._retention_ms)})
                elif what == "grow":
                    topic = await engine.create_partitions(engine.topic(name), number)
                elif what == "configure":
                    config = {"retention.ms": str(self._retention_ms + number), "ack": self._ack if number % 2 else "durable"}
                    topic = await engine.alter_topic_config(engine.topic(name), config)
                else:
                    topic = engine.topic(name)
                    await engine.delete_topic(topic)
                reply(topic.id.bytes)
            except HeadgateError as error:
                reply(error)

        self._spawn(work())

    def delete_records(self, reply: Reply, topic_id: bytes, partition: int, before: int) -> None:
        async def work() -> None:
            try:
                reply(await self.engine.delete_records(self._log(topic_id, partition), before))
            except HeadgateError as error:
                reply(error)

        self._spawn(work())

    def allocate(self, reply: Reply) -> None:
        async def work() -> None:
            try:
                if not self.serving:
                    raise _not_ready()
                reply(await self.engine.allocate_producer_id())
            except HeadgateError as error:
                reply(error)

        self._spawn(work())

    def desired(self, reply: Reply) -> None:
        """Answer the wanted number of brokers; only the leader knows it."""
        try:
            reply(self._capacity().desired().brokers)
        except HeadgateError as error:
            reply(error)

    def reserve(self, reply: Reply, reservation_id: str, brokers: int, ttl_ms: int) -> None:
        """Open a reservation; with 0 brokers renew it. Only the leader does this."""

        async def work() -> None:
            try:
                if brokers:
                    one = Reservation(id=reservation_id, owner="simulation", brokers=brokers, ttl_ms=ttl_ms)
                    await self._capacity().open(one)
                else:
                    await self._capacity().renew(reservation_id, ttl_ms)
                reply(None)
            except HeadgateError as error:
                reply(error)

        self._spawn(work())

    def gate(self, reply: Reply, what: str, topic: str, gate_id: str, *args: Any) -> None:
        """Open, fill or release a gate; only the leader does this. The answer is the gate."""

        async def work() -> None:
            try:
                if not self.serving:
                    raise _not_ready()
                if self.participant.leader is None:
                    raise RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster")
                reply(await getattr(self.participant.leader.gates, what)(topic, gate_id, *args))
            except HeadgateError as error:
                reply(error)

        self._spawn(work())

    def _capacity(self) -> LeaderCapacity:
        if not self.serving:
            raise _not_ready()
        if self.participant.leader is None:
            raise RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster")
        return self.participant.leader.capacity

    def _spawn(self, work: Any) -> None:
        self._loop.create_task(work, name="request")

    def _log(self, topic_id: bytes, partition: int) -> PartitionLog:
        if not self.serving:
            raise _not_ready()
        if self._end.done() and self._end.result() is not None:
            raise ClosedError(Reason.CLOSED, "the broker is closing")
        import uuid

        return self.engine.partition(self.engine.topic_by_id(uuid.UUID(bytes=topic_id)), partition)


def _not_ready() -> RetryError:
    return RetryError(Reason.NOT_READY, "the broker is starting")


def _unary(handler: Any, kind: Any) -> Callable[[Any], Any]:
    async def call(data: bytes) -> bytes:
        answer = await handler(kind.FromString(data), None)
        return bytes(answer.SerializeToString())

    return call
