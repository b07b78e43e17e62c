"""A broker's membership: its stream to the leader, and the backend for its commits."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from headgate.broker.cluster.capacity import Desired
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.liveness import LEADER_REPORT_S, MEMBER_REPORT_S, Attention, Heard, stretched
from headgate.broker.cluster.manifest_format import decode_edits, decode_snapshot, encode_edits
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.patience import Patience
from headgate.broker.control.load import LoadMeter
from headgate.broker.control.quota_wire import shares_of, use_message
from headgate.broker.control.routed_catalog import ANSWER_S, RoutedCatalog
from headgate.broker.control.stream import Connect, Stream, connected
from headgate.broker.control.wire import error_of, member_message
from headgate.broker.engine.engine import Engine
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from headgate.broker.wire.grpc.methods import methods

logger = get_logger("member")

METHODS = methods(control_pb2.DESCRIPTOR.services_by_name["Control"])
REPORTS_MAX = 64
"""Reports that are remembered until the leader answers them: those of half a minute. A leader of an older release answers none."""
JOIN_TIMEOUT_S = 15.0
"""Time, in seconds, for the answer to a join, if commits take milliseconds. The leader commits before it answers."""
CALL_TIMEOUT_S = 5.0
"""Time, in seconds, in which an open connection must take the first message."""


class Membership:
    """One stream to the leader. Call `join`, then `run` until it ends.

    Args:
        address: the leader's, ``host:port``.
        connect: makes a channel to another broker.
        silence_ms: silence of the leader, in ms, after which it is lost, on a quiet machine.
        attention: of this process.
        draining: set when this broker must lose its segments and get no new ones. Then it reports that at once.
        connections: returns the number of connected clients.
        serves: returns True if this broker's gRPC port is open.
        patience: the limit for a connection, which lives longer than one membership.
    """

    def __init__(
        self,
        address: str,
        *,
        connect: Connect,
        engine: Engine,
        catalog: RoutedCatalog,
        mine: Incarnation,
        silence_ms: int,
        attention: Attention,
        draining: asyncio.Event,
        connections: Callable[[], int],
        serves: Callable[[], bool],
        patience: Patience,
    ) -> None:
        self.address = address
        self.round_trip_s = 0.0
        """Seconds from the last report that was answered until its answer; at first, those in which the connection opened."""
        self.leader_broker_id = -1
        self.desired: Desired | None = None
        """The desired number of brokers, from the leader; None: it has not told it."""
        self.takers: int | None = None
        """Brokers that do not drain, from the leader's last sign of life; None: it has not told it."""
        self._draining = draining
        self._engine = engine
        self._catalog = catalog
        self._mine = mine
        self._silence_s = silence_ms / 1000
        self._attention = attention
        self._meter = LoadMeter(engine)
        self._connections = connections
        self._serves = serves
        self._patience = patience
        self._leader = Heard(LEADER_REPORT_S, 0.0)
        self._channel = connect(address)
        self._stream: Stream | None = None
        self._moved: asyncio.Event = asyncio.Event()
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._reports = itertools.count(1)
        self._reported: deque[tuple[int, float]] = deque(maxlen=REPORTS_MAX)
        """Reports that the leader has not answered: (number, monotonic time in seconds before it was sent)."""

    async def join(self) -> None:
        """Become a member. Afterwards the catalog has the leader's manifest, or its old copy and the missing edits follow.
        Commits go to the leader.

        Raises:
            RetryError: no leader is there, or it does not answer. FencedError: this broker was replaced. InvalidError: the
                leader refuses this broker.
        """
        self.round_trip_s = await connected(self._channel, self.address, self._patience, self._engine.clock)
        self._stream = Stream(self._channel, METHODS["Join"].path, self.address)
        hello = control_pb2.Hello(
            incarnation_id=self._mine.id,
            member=member_message(self._mine),
            version=self.version,
            cluster_id=self._engine.cluster_id,
            round_trip_ms=round(self.round_trip_s * 1000),
        )
        await self._send(control_pb2.JoinRequest(hello=hello), CALL_TIMEOUT_S)
        welcome = (await self._welcomed()).welcome
        self.leader_broker_id = welcome.leader_broker_id
        self._engine.heard_s = self._engine.clock.monotonic()
        self._take_time(welcome.clock_ms)
        if welcome.snapshot:
            self._catalog.manifest, self._catalog.version = decode_snapshot(welcome.snapshot), welcome.version
        elif welcome.version != self.version:
            raise RetryError(Reason.NOT_LEADER, f"the leader goes on from another version. address=`{self.address}`")
        known = self._catalog.manifest.incarnations.get(self._mine.id)
        if known is not None and known.role != self._mine.role:
            raise InvalidError(
                Reason.UNSUPPORTED, f"the leader runs an older version, which knows no lanes. address=`{self.address}`"
            )
        self._catalog.use(self)

    async def _welcomed(self) -> control_pb2.JoinResponse:
        patience = self._catalog.patience
        try:
            return await self._read(JOIN_TIMEOUT_S + self.round_trip_s + patience.limit_s - ANSWER_S)
        except RetryError as error:
            if error.reason is Reason.TIMED_OUT:
                patience.ran_out()
            raise

    def _take_time(self, leader_ms: int) -> None:
        """Compare this broker's clock with the leader's. A broker that is starting takes the leader's time if the difference is
        too large."""
        clock = self._engine.clock
        if not leader_ms:
            return
        if not self._engine.started and abs(clock.now_ms() - leader_ms) > clock.difference_max_ms:
            clock.adopt(leader_ms)
        clock.note("leader", clock.now_ms() - leader_ms)

    @property
    def version(self) -> int:
        """The version of this broker's copy of the manifest."""
        return self._catalog.version

    async def run(self) -> None:
        """Follow the leader. Never returns. Raises the error that ended the stream, as `join`."""
        clock = self._engine.clock
        now_s = clock.monotonic()
        self._leader.at_s = self._attention.at(now_s)
        self._meter = LoadMeter(self._engine)
        reporting = asyncio.create_task(self._report(), name="report")
        try:
            while True:
                message = await self._read(None)
                now_s = clock.monotonic()
                self._leader.spoke(self._attention.at(now_s), now_s)
                self._engine.heard_s = now_s
                kind = message.WhichOneof("message")
                if kind == "edits":
                    self._apply(message.edits)
                elif kind == "resign":
                    self._spawn(self._resign(message.resign))
                elif kind == "hold":
                    self._hold(message.hold)
                elif kind == "promise":
                    self._promised(message.promise)
                elif kind == "drain":
                    self._draining.set()
                elif kind == "quotas":
                    self._engine.meters.divided(shares_of(message.quotas))
                elif kind == "alive":
                    self._take_time(message.alive.clock_ms)
                    self.takers = message.alive.takers if message.alive.HasField("takers") else None
                    if message.alive.desired_brokers:
                        self.desired = Desired(brokers=message.alive.desired_brokers, reasons=(message.alive.desired_why,))
                    if message.alive.store_ms:
                        self._engine.clock.note("store", self._engine.clock.now_ms() - message.alive.store_ms)
        finally:
            self._engine.proof.lapse()
            reporting.cancel()
            await asyncio.wait((reporting,))

    async def close(self) -> None:
        """End the stream. Waiting commits fail."""
        self._ended = True
        self._moved.set()
        for task in self._tasks:
            task.cancel()
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()

    # -- the stream

    async def _send(self, message: control_pb2.JoinRequest, timeout_s: float | None = None) -> None:
        assert self._stream is not None
        await self._stream.write(message.SerializeToString(), timeout_s)

    async def _read(self, timeout_s: float | None) -> control_pb2.JoinResponse:
        assert self._stream is not None
        return control_pb2.JoinResponse.FromString(await self._stream.read(timeout_s))

    def _apply(self, message: control_pb2.Edits) -> None:
        edits = decode_edits(message.edits)
        self._catalog.manifest.apply(edits)
        self._catalog.version = message.version
        self._engine.applied(edits)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _promised(self, promise: control_pb2.Promise) -> None:
        """Called when the leader has answered a report, and thereby all earlier ones.

        The leader takes a broker with a closed port for dead, also during a promise. So a broker with a port that is not open yet
        relies on none.
        """
        while self._reported and self._reported[0][0] <= promise.number:
            number, asked_s = self._reported.popleft()
            if number != promise.number:
                continue
            self.round_trip_s = self._engine.clock.monotonic() - asked_s
            if self._serves():
                self._engine.proof.extend(asked_s, promise.span_ms)

    async def _report(self) -> None:
        """Send reports to the leader. End the stream if the leader is silent for too long."""
        while not self._leader_is_lost():
            is_draining = self._draining.is_set()
            try:
                await self._tell()
            except RetryError:
                return  # the reader of the stream gets the reason
            try:
                async with asyncio.timeout(MEMBER_REPORT_S):
                    await (asyncio.sleep(MEMBER_REPORT_S) if is_draining else self._draining.wait())
            except TimeoutError:
                pass

    async def _tell(self) -> None:
        """Send a report. Raises RetryError if the stream has ended."""
        self._meter.draining = self._draining.is_set()
        self._engine.clock.check()
        report = self._meter.report(self.version, self._connections())
        report.clock_ms = self._engine.clock.system_ms()
        report.late_ms = round(self._attention.late_s(self._engine.clock.monotonic()) * 1000)
        report.round_trip_ms = round(self.round_trip_s * 1000)
        report.serving = self._serves()
        del report.quotas[:]
        report.quotas.extend(map(use_message, self._engine.meters.report()))
        report.number = next(self._reports)
        self._reported.append((report.number, self._engine.clock.monotonic()))
        await self._send(control_pb2.JoinRequest(report=report))

    async def _tell_door(self) -> None:
        with suppress(RetryError):
            await self._tell()

    def opened(self) -> None:
        """Called when this broker's gRPC port is open. Reports that to the leader at once."""
        self._spawn(self._tell_door())

    def _leader_is_lost(self) -> bool:
        """True if the leader was silent for too long. Then this ends the stream."""
        assert self._stream is not None
        now_s = self._engine.clock.monotonic()
        silent_s = self._leader.silent_s(self._attention.at(now_s))
        late_s = max(self._attention.late_s(now_s), self._leader.late.peak_s(now_s))
        is_lost = silent_s > stretched(self._silence_s, late_s)
        if is_lost:
            self._stream.give_up(f"the leader is silent. seconds=`{silent_s:.1f}` late_s=`{late_s:.1f}`")
        return is_lost

    # -- orders

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name="order")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resign(self, order: control_pb2.ResignOrder) -> None:
        result = control_pb2.OrderResult(order_id=order.order_id)
        try:
            await self._engine.resign(order.segment_ids)
        except HeadgateError as error:
            logger.warning("resign_failed", error=error.message)
            result.error = error.message
        await self._answer(result)

    def _hold(self, order: control_pb2.HoldOrder) -> None:
        """Reserve offsets at once, in order with the edits: the next edit may already contain these offsets."""
        topic_id = uuid.UUID(bytes=order.topic_id)
        if order.drop:
            self._engine.drop_holds(topic_id, order.gate_id)
            return
        result = control_pb2.OrderResult(order_id=order.order_id)
        try:
            rows = dict(zip(order.partitions, order.rows, strict=True))
            for held in self._engine.hold(topic_id, order.gate_id, rows, order.term_epoch):
                result.windows.add(
                    partition=held.partition,
                    base_offset=held.base_offset,
                    segment_id=held.segment_id,
                    leader_epoch=held.leader_epoch,
                    live=held.live,
                )
        except HeadgateError as error:
            result.error = error.message
        self._spawn(self._answer(result))

    async def _answer(self, result: control_pb2.OrderResult) -> None:
        try:
            await self._send(control_pb2.JoinRequest(result=result))
        except HeadgateError as error:
            logger.info("result_not_sent", error=error.message)

    # -- commits

    async def commit(self, edits: Sequence[Edit]) -> None:
        """Commit edits through the leader; see `Backend.commit`."""
        number = next(edit.number for edit in reversed(edits) if hasattr(edit, "number"))
        request = control_pb2.CommitRequest(incarnation_id=self._mine.id, number=number, edits=encode_edits(list(edits)))
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(METHODS["Commit"].path)
        try:
            data = await call(request.SerializeToString(), timeout=self._catalog.patience.limit_s + self.round_trip_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._catalog.patience.ran_out()
            raise error_of(error, self.address) from error
        except asyncio.CancelledError:
            if not self._ended:
                raise
            raise RetryError(Reason.NOT_LEADER, "the stream to the leader ended") from None
        version = control_pb2.CommitResponse.FromString(data).version
        while self.version < version:
            if self._ended:
                raise RetryError(Reason.NOT_LEADER, "the stream to the leader ended")
            await self._moved.wait()

    async def settle(self) -> None:
        """Do nothing. No commit is ever undecided here: it returns when this broker's copy has it, or it is sent again."""
