"""The state that all gRPC calls of one server share: the budget of bytes, the leads, and the notice that the server stops."""

from __future__ import annotations

from collections.abc import Callable

from headgate.broker.cluster.objects import Incarnation, Topic
from headgate.broker.control.stream import Connect, connect
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.windows import NOBODY
from headgate.broker.engine.read import view
from headgate.broker.engine.read.committed import visible
from headgate.broker.engine.read.view import Reach
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.server.grpc.callers import budget_of_call
from headgate.broker.server.grpc.errors import MovedError
from headgate.broker.server.grpc.peers import Peers, address_of
from headgate.broker.server.grpc.shares import Share, Shares
from headgate.broker.server.redirect import lane_for


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

    def readable(self, topic: Topic, number: int) -> PartitionLog:
        """A partition whose records this broker reads: one that it leads, or any on a lane. Raises as `partition`."""
        slots = [] if self.engine.lane is None else self.engine.lane.by_id.get(topic.id, [])
        log = slots[number] if number < len(slots) else None
        return log or self.partition(topic, number)

    async def read(
        self, partition: PartitionLog, offset: int, max_bytes: int, share: Share, reader: int = NOBODY, *, follows_lanes: bool
    ) -> list[memoryview] | Incarnation:
        """Committed records as `Engine.read` gives them, or the lane that has them.

        Args:
            share: has the bytes of the read while the read lasts, and none while it waits for its turn.
            follows_lanes: the client goes to the lane. Otherwise this broker reads.

        Raises:
            InvalidError: OFFSET_OUT_OF_RANGE. RetryError: the store does not answer. MovedError: this is a lane, and does not have
                these records.
        """
        engine = self.engine
        if engine.lane is not None:
            reached = engine.lane.place(partition, offset)
            if reached is None:
                raise self._at_lead(partition)
            try:
                with share.holding(max_bytes):
                    slices = await engine.read(partition, offset, max_bytes, reader, reached)
            except HeadgateError as error:
                raise self._at_lead(partition) from error  # the lead may reach the store, or else tells the error
            engine.history_out_bytes += sum(map(len, slices))
            return slices
        await engine.check_range(partition, offset)
        seen, reached = view.see(partition, offset, max_bytes, reader)
        if seen is None:
            if follows_lanes and (lane := lane_for(engine, partition, reached)) is not None:
                engine.sent_to_lanes += 1
                return lane
            if reached[2] is None:
                with share.holding(max_bytes):
                    seen = await engine.read(partition, offset, max_bytes, reader, reached)
            else:
                seen = await self._history(partition, offset, max_bytes, share, reader, reached)
        return visible(partition, offset, seen)

    async def _history(
        self, partition: PartitionLog, offset: int, max_bytes: int, share: Share, reader: int, reached: Reach
    ) -> list[memoryview]:
        """Records from a file at a lead, when live records and the client's other calls leave room for them."""
        live_first = self.engine.live_first
        while True:
            await share.room()
            async with live_first.turn(max_bytes, reader=reader or None) as room:
                if share.is_full:
                    continue  # the client's other calls took it meanwhile; their answers may wait for the client
                with share.holding(room):
                    slices = await self.engine.read(partition, offset, room, reader, reached)
                size = sum(map(len, slices))
                live_first.served(size)
                self.engine.history_out_bytes += size
                return slices

    def ends(self, partition: PartitionLog) -> tuple[int, int]:
        """(end of the records that can be read, first offset) for an answer."""
        lane = self.engine.lane
        return (partition.stable_end if lane is None else lane.shown_ends(partition)[1]), partition.log_start

    def _at_lead(self, partition: PartitionLog) -> HeadgateError:
        """What a lane answers for records that it does not have."""
        error = RetryError(
            Reason.NOT_LEADER,
            "the partition's lead has these records, this lane does not. "
            f"topic=`{partition.topic.name}` partition=`{partition.number}`",
        )
        return self.moved(error, partition.topic, partition.number)

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
