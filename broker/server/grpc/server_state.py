"""The state that all gRPC calls of one server share: the budget of bytes, the leads, and the notice that the server stops."""

from __future__ import annotations

from collections.abc import Callable

from headgate.broker.cluster.objects import Topic
from headgate.broker.control.stream import Connect, connect
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.server.grpc.callers import budget_of_call
from headgate.broker.server.grpc.errors import MovedError
from headgate.broker.server.grpc.peers import Peers, address_of
from headgate.broker.server.grpc.shares import Share, Shares


class ServerState:
    """State of all calls of one server."""

    def __init__(self, engine: Engine, settings: Settings, connect: Connect = connect) -> None:
        self.engine = engine
        self.settings = settings
        self.budget = Shares(settings.inflight_bytes_max)
        self.peers = Peers(engine, connect)
        self.stopping = False
        self._on_stop: set[Callable[[], None]] = set()

    def share(self) -> Share:
        """What the current call's client has in flight."""
        return Share(self.budget, budget_of_call())

    def partition(self, topic: Topic, number: int) -> PartitionLog:
        """A partition that this broker leads. Raises InvalidError(UNKNOWN_TOPIC), MovedError."""
        try:
            return self.engine.partition(topic, number)
        except RetryError as error:
            raise self.moved(error, topic, number) from error

    def open(self, partition: PartitionLog) -> PartitionLog:
        """The partition, if this broker still leads it. Raises the errors of `partition`."""
        if partition.closed is not None:
            raise self.moved(partition.closed, partition.topic, partition.number)
        return partition

    async def confirm(self, partition: PartitionLog) -> None:
        """Confirm with `Engine.confirm` that this broker still leads. Raises MovedError if another broker may lead the
        partition."""
        try:
            await self.engine.confirm(partition)
        except RetryError as error:
            raise self.moved(error, partition.topic, partition.number) from error

    def moved(self, error: HeadgateError, topic: Topic, number: int) -> HeadgateError:
        """The error for the client; for a partition led elsewhere, an error that names the current lead."""
        if error.reason is not Reason.NOT_LEADER or isinstance(error, MovedError):
            return error
        lead = self.engine.lead(topic.id, number)
        elsewhere = lead is not None and lead[0].id != self.engine.incarnation_id
        return MovedError(error.message, address_of(lead[0]) if lead is not None and elsewhere else "")

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call back when the server stops; at once if it has stopped."""
        self._on_stop.add(callback)
        if self.stopping:
            callback()

    def forget(self, callback: Callable[[], None]) -> None:
        self._on_stop.discard(callback)

    def stop(self) -> None:
        """Tell every call that waits to end itself."""
        self.stopping = True
        for callback in list(self._on_stop):
            callback()
