"""The store and the node of a broker process, and their metrics. `process.py` imports this module late: the Kafka port answers
already."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from headgate.broker.control.proving import Prover
from headgate.broker.control.stream import connect
from headgate.broker.engine.base import keys
from headgate.broker.engine.identity import BROKERS, SECRET_BYTES, shared_key
from headgate.broker.engine.read.encoding import Encoders
from headgate.broker.engine.upkeep.file_fold_process import ProcessWorker
from headgate.broker.node import Network, Node, assemble
from headgate.broker.runtime.clock import SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.listeners import knows_clients
from headgate.broker.server.kafka.listener import KafkaServer
from headgate.broker.server.observe import Observer
from headgate.broker.store.interface import Store
from headgate.broker.store.local_append import Fsync
from headgate.broker.store.open import PRIVATE_URLS, open_store
from headgate.broker.store.wrappers import MeteredStore

if TYPE_CHECKING:
    import grpc


class Backend:
    """What stands behind the ports of one process.

    Args:
        not_ready: returns the reason why the broker does not serve at the moment, or None.
    """

    def __init__(self, settings: Settings, clock: SteadyClock, kafka: KafkaServer, not_ready: Callable[[], str | None]) -> None:
        self.observer = Observer(settings.broker_id, not_ready, kafka)
        self.store: Store | None = None
        """Set once the store is open."""
        self.node: Node | None = None
        """Set once the store is open; it may still be starting."""
        self._settings = settings
        self._clock = clock
        self._prover = Prover(settings.broker_id, self._key)
        self._brokers_key = b""

    def connect(self, address: str) -> grpc.aio.Channel:
        """A channel to another broker, without TLS."""
        return self._prover.connect(address) if knows_clients(self._settings) else connect(address)

    async def _key(self) -> bytes:
        if not self._brokers_key:
            assert self.store is not None, "the node connects, which has the store"
            self._brokers_key = await shared_key(self.store, BROKERS, secrets.token_bytes(SECRET_BYTES))
        return self._brokers_key

    async def open(self, network: Network, fail: Callable[[HeadgateError], None]) -> None:
        """Open the store, and start the node. Raises the error that prevents it; what was opened must be closed also then."""
        settings = self._settings
        create = settings.store_create or settings.store in PRIVATE_URLS
        # Opening may import boto3, and may wait for a disk.
        store = await asyncio.to_thread(
            open_store,
            settings.store,
            fsync=cast("Fsync", settings.wal_fsync),
            fsync_interval_ms=settings.wal_fsync_interval_ms,
            required_key=keys.CLUSTER_ID if settings.cluster_id or not create else "",
        )
        self.store = metered = MeteredStore(store, self._clock)
        metered.register(self.observer.metrics)
        folds = None if settings.store in PRIVATE_URLS else ProcessWorker(settings.store, settings.offline_niceness)
        self.node = assemble(settings, metered, self._clock, network, fail=fail, encoders=Encoders(), folds=folds, create=create)
        await self.node.start()
