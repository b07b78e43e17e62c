"""One broker without its ports: the engine, the control plane and the groups over one store, assembled in one place.

`assemble` serves the server, the simulation and the tests; they differ only in what they pass to it. Each part gets what it needs
from here, and no part makes another one. The life of a node::

    start    joins the cluster, opens the engine, loads the groups, and opens the network
    drain    hands over the partitions, if another broker takes them
    close    flushes and seals the log, then leaves the cluster
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headgate.broker.cluster.objects import LANE, Incarnation
from headgate.broker.control.participant import Participant
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.read.encoding import Encoders
from headgate.broker.engine.upkeep.file_fold_process import Worker
from headgate.broker.groups.coordinator import Coordinator
from headgate.broker.runtime.clock import SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.ending import Ending
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.threads import Pool, Pools
from headgate.broker.store.interface import Store
from headgate.broker.transactions.broker_calls import TransactionCalls
from headgate.broker.transactions.coordinator import TransactionCoordinator

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The host and the ports at which clients and other brokers reach a broker. A port of 0: not served."""

    host: str
    kafka_port: int
    grpc_port: int
    http_port: int = 0
    grpc_mtls_port: int = 0
    listeners: Mapping[str, str] = field(default_factory=dict)
    """``host:port`` of further Kafka ports by name."""


class Network(Protocol):
    """A node's connections to clients and to other brokers. The owner of the node ends them."""

    @property
    def advertised(self) -> Address:
        """The address that clients and other brokers use. Fixed before the node starts."""

    def connections(self) -> int:
        """The number of connected clients."""

    def connect(self, address: str) -> grpc.aio.Channel:
        """A channel to another broker, ``host:port``. Its first call opens the connection."""

    async def open(self, node: Node) -> None:
        """Serve clients and other brokers from now on. The engine is open."""


class Node:
    """The parts of one broker. Made by `assemble`."""

    def __init__(
        self,
        engine: Engine,
        participant: Participant,
        groups: Coordinator,
        transactions: TransactionCoordinator,
        transaction_calls: TransactionCalls,
        network: Network,
    ) -> None:
        self.engine = engine
        self.participant = participant
        self.groups = groups
        self.transactions = transactions
        self.transaction_calls = transaction_calls
        self._network = network
        self._joined = False

    @property
    def alone(self) -> bool:
        """True if no other broker could take over from this one: it is the only one, or it has not joined yet."""
        return not self._joined or len(self.engine.brokers()) <= 1

    async def start(self) -> None:
        """Join the cluster and serve. Raises the error that prevents it; `close` is due also then."""
        await self.participant.start()
        self._joined = True
        self.groups.start()
        self.transactions.start()
        await self._network.open(self)
        await self.participant.serving()

    async def drain(self, ending: Ending) -> None:
        """Hand over all partitions of this broker, unless it is alone. A broker that ends with an error hands over nothing, and its
        pending commits fail at once."""
        if ending.error is not None:
            self.participant.abandon(ending.error)
        elif not self.alone:
            await ending.close("cluster", self.participant.drain(ending.grace_s))

    async def close(self, ending: Ending) -> None:
        """Make all accepted records durable, seal the log and leave the cluster. Afterwards all waiting clients have an answer.
        `drain` must come first."""
        self.groups.stop()
        self.transactions.stop()
        await ending.close("log", self.engine.close())
        await ending.close("groups", self.groups.close())
        await ending.close("transactions", self.transactions.close())
        await ending.close("transaction_calls", self.transaction_calls.close())
        await ending.close("cluster", self.participant.close())


def assemble(
    settings: Settings,
    store: Store,
    clock: SteadyClock,
    network: Network,
    *,
    fail: Callable[[HeadgateError], None],
    encoders: Encoders | None = None,
    folds: Worker | None = None,
    create: bool = True,
    pools: Pools = Pool,
) -> Node:
    """Make the parts of one broker, a new incarnation. Must run inside the event loop; does no I/O.

    Args:
        store: stays open after the node's end.
        fail: called with the error that ends this broker. The broker may never ack again.
        encoders: encode history; closed with the node. None: threads of this process encode it.
        folds: folds records to files; closed with the node. None: the loop does it.
        create: makes a new cluster in an empty store.
        pools: makes the pools of threads.
    """
    incarnation_id = os.urandom(16).hex()
    catalog = RoutedCatalog(incarnation_id)
    engine = Engine(
        store=store,
        catalog=catalog,
        settings=settings,
        clock=clock,
        incarnation_id=incarnation_id,
        fail=fail,
        encoders=encoders,
        folds=folds,
        create=create,
        pools=pools,
    )
    address = network.advertised
    mine = Incarnation(
        id=incarnation_id,
        broker_id=settings.broker_id,
        leader_epoch=-1,
        opened_ms=clock.now_ms(),
        host=address.host,
        kafka_port=address.kafka_port,
        grpc_port=address.grpc_port,
        http_port=address.http_port,
        rack=settings.rack,
        grpc_mtls_port=address.grpc_mtls_port,
        listeners=tuple(sorted(address.listeners.items())),
        role=LANE if settings.role == LANE else "",
    )
    participant = Participant(engine, catalog, mine=mine, connect=network.connect, connections=network.connections)
    groups = Coordinator(engine, settings, clock)
    transaction_calls = TransactionCalls(engine, groups, network.connect)
    transactions = transaction_calls.coordinator = TransactionCoordinator(engine, settings, clock, transaction_calls)
    return Node(engine, participant, groups, transactions, transaction_calls, network)
