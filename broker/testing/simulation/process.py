"""One broker process of a simulation: a real node over a simulated store, clock and network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import TYPE_CHECKING, Any, cast

from headgate.broker.cluster.capacity import Reservation
from headgate.broker.cluster.gates import Gate
from headgate.broker.control.leader import Leader
from headgate.broker.control.participant import Participant
from headgate.broker.engine.engine import Engine
from headgate.broker.groups.coordinator import Coordinator
from headgate.broker.node import Address, Node, assemble
from headgate.broker.runtime.clock import SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.ending import Ending
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.server.grpc.control_service import ControlService
from headgate.broker.server.kafka.listener import KafkaServer
from headgate.broker.server.view.leader_view import LeaderViews
from headgate.broker.store.interface import Store
from headgate.broker.store.wrappers import RetryingStore
from headgate.broker.testing.simulation.clock import SimulatedClock, WallClock
from headgate.broker.testing.simulation.loop import Process, VirtualLoop, start
from headgate.broker.testing.simulation.network import Channel, Door, Network
from headgate.broker.testing.simulation.sockets import Listening
from headgate.broker.testing.simulation.store import Medium, StoreView
from headgate.broker.testing.simulation.trace import Trace
from headgate.broker.transactions.broker_calls import ASK, MARK
from headgate.broker.wire.grpc.headgate.v1 import control_pb2

if TYPE_CHECKING:
    import socket

    import grpc

SERVICE = "/headgate.v1.Control/"
LANE_ID = 1001
"""The only lane of a run."""
GRACE_S = 10.0

DESIRED, RESERVE, GATE = "desired", "reserve", "gate"
"""Paths of the questions to the leader."""


def place_of(broker_id: int) -> str:
    """The machine of a broker, or of a lane."""
    return f"host{broker_id}"


def address_of(broker_id: int) -> str:
    """``host:port``."""
    return f"{place_of(broker_id)}:{9000 + broker_id}"


class _Ports:
    """The `Network` of a simulated node. `opened` is called when the node serves clients and other brokers."""

    def __init__(self, network: Network, door: Door, address: Address, kafka: KafkaServer, opened: Callable[[], None]) -> None:
        self.advertised = address
        self._kafka = kafka
        self._network = network
        self._door = door
        self._opened = opened

    def connections(self) -> int:
        return len(self._kafka.connections)

    def connect(self, address: str) -> grpc.aio.Channel:
        return cast("grpc.aio.Channel", Channel(self._network, address))

    async def open(self, node: Node) -> None:
        self._kafka.serve(node.engine, node.groups, node.transaction_calls)
        service = ControlService(node.participant, LeaderViews(node.engine), node.transaction_calls)
        self._door.streams[SERVICE + "Join"] = service.join
        self._door.streams[SERVICE + "Replicate"] = service.replicate
        self._door.streams[SERVICE + "Surrender"] = service.surrender
        self._door.calls[SERVICE + "Commit"] = _unary(service.commit, control_pb2.CommitRequest)
        self._door.calls[SERVICE + "Reshard"] = _unary(service.reshard, control_pb2.ReshardRequest)
        self._door.calls[ASK.path] = _unary(service.add_to_transaction, ASK.request)
        self._door.calls[MARK.path] = _unary(service.write_markers, MARK.request)
        self._door.open = True
        self._opened()


class Broker:
    """One incarnation of a broker.

    Args:
        address: ``host:port`` of its ports. place: the machine on which it runs.
        wall: the wall clock of the machine.
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
        self.door.acked = self._on_ack
        self.door.calls.update({DESIRED: self._desired, RESERVE: self._reserve, GATE: self._gate})
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
        clock = SteadyClock(self.clock, self._settings.clock_difference_max_ms)
        host, _, port = self.address.rpartition(":")
        kafka = KafkaServer(self._settings, clock, (host, int(port)))
        # As in production (`server/process.py`): the Kafka port is open first, and its requests wait for the engine.
        await kafka.start(cast("socket.socket", Listening(self.door)))
        node = assemble(
            self._settings,
            store,
            clock,
            _Ports(
                self._network,
                self.door,
                Address(host=host, kafka_port=int(port), grpc_port=int(port)),
                kafka,
                self._is_open,
            ),
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
        await kafka.stop_accepting()
        await node.drain(ending)
        await node.close(ending)
        await ending.close("kafka", kafka.close())
        return ending.error

    def _is_open(self) -> None:
        self.serving = True
        self._served(self)
        self._trace(self.name, "serves", self.incarnation_id)

    def _on_ack(self, topic_id: bytes, partition: int, base_offset: int, count: int) -> None:
        self._trace(self.name, "acks", topic_id.hex()[:6], partition, base_offset, count)
        self._acked(self.incarnation_id, topic_id, partition, base_offset, count)

    # -- questions to the cluster's leader. They stand for the gRPC services of capacity and gates.

    async def _desired(self, _: object) -> int:
        """The wanted number of brokers."""
        return self._leader().capacity.desired().brokers

    async def _reserve(self, asked: tuple[str, int, int]) -> None:
        """Open a reservation (id, brokers, time-to-live in ms); with 0 brokers renew it."""
        reservation_id, brokers, ttl_ms = asked
        capacity = self._leader().capacity
        if brokers:
            await capacity.open(Reservation(id=reservation_id, owner="simulation", brokers=brokers, ttl_ms=ttl_ms))
        else:
            await capacity.renew(reservation_id, ttl_ms)

    async def _gate(self, asked: tuple[Any, ...]) -> Gate:
        """Open, fill or release a gate: (method, its arguments). The answer is the gate."""
        what, *args = asked
        gate: Gate = await getattr(self._leader().gates, what)(*args)
        return gate

    def _leader(self) -> Leader:
        if not self.serving:
            raise RetryError(Reason.NOT_READY, "the broker is starting")
        if self.participant.leader is None:
            raise RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster")
        return self.participant.leader


def _unary(handler: Any, kind: Any) -> Callable[[Any], Any]:
    async def call(data: bytes) -> bytes:
        answer = await handler(kind.FromString(data), None)
        return bytes(answer.SerializeToString())

    return call
