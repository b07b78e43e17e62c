r"""One Publish stream: batches in, cumulative acks out.

A batch goes through::

    read -> appended (offsets known) -> safe -> decided -> acked
         \-> refused --------------------------/

Batches become `decided` strictly in the order of the stream, so that one number acks all earlier batches, too. A refused batch
waits there for the batches before it. Bytes that were read and are not acked yet count against the budgets of the stream and the
broker. While either budget is overdrawn, the stream is not read. So a client that does not read its acks, or a store that does
not answer, stops its own stream only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

import grpc

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.engine.partition.log import ADOPT_BYTES_MIN, Appended, PartitionLog
from headgate.broker.log.batch import parse
from headgate.broker.log.check import SenderTrust
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.server.grpc.callers import check_topic, claim_of_call
from headgate.broker.server.grpc.errors import error_message
from headgate.broker.server.grpc.handlers import Call, decode
from headgate.broker.server.grpc.quotas import CallQuota
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.server.grpc.shares import MOST_PART, Share, Shares
from headgate.broker.wire.grpc import payload
from headgate.broker.wire.grpc.headgate.v1 import log_pb2

ACK_INTERVAL_MS_MAX = 10_000
ACK_BATCHES_MAX = 10_000
"""Batches that are acked although the client would wait for more: each one takes memory until then."""
OVERHEAD_BYTES = 256
"""Memory of a batch in addition to its bytes."""
KNOWN_PARTITIONS_MAX = 10_000
"""Partitions that a stream remembers; above it the stream forgets all of them, and looks them up again."""


class _Batch:
    """One batch of the stream that is not acked yet."""

    __slots__ = ("append_time_ms", "base_offset", "cost_bytes", "error", "is_safe", "sequence", "shared_bytes")

    def __init__(self, sequence: int, cost_bytes: int) -> None:
        self.sequence = sequence
        self.cost_bytes = self.shared_bytes = cost_bytes
        """Its share of the stream's budget, and of the broker's; the broker counts only the overhead once the batch's own bytes
        are freed."""
        self.base_offset = -1
        self.append_time_ms = -1
        self.error: HeadgateError | None = None
        self.is_safe = False
        """Whether the batch is durable, or replicated if its topic acks replicated records."""


class Publisher:
    """One stream."""

    def __init__(self, server_state: ServerState, call: Call) -> None:
        self._server_state = server_state
        self._engine = server_state.engine
        self._call = call
        # The stream is the only client of this budget, and may take one part in MOST_PART of it.
        self._budget = Share(Shares(MOST_PART * server_state.settings.connection_inflight_bytes_max), "stream")
        self._share = server_state.share()
        self._quota = CallQuota(self._engine.meters)
        self._trust = SenderTrust()
        self._claim = claim_of_call(self._engine.claims)
        self._sequence = 0
        self._undecided: deque[_Batch] = deque()
        self._decided: deque[_Batch] = deque()
        self._known: dict[tuple[str, int], PartitionLog] = {}
        self._topic = ""
        self._scratch = memoryview(bytearray())
        """Buffer in which small batches are stamped before the log copies them."""
        self._ack_batches = 1
        self._ack_interval_s = ACK_INTERVAL_MS_MAX / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._no_more = False
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Serve the stream until the client ends it. Raises HeadgateError if the broker ends it; decided batches are acked
        first."""
        reading = asyncio.create_task(self._read(), name="publish-read")
        writing = asyncio.create_task(self._write(), name="publish-write")
        stopping = asyncio.create_task(self._stop.wait(), name="publish-stop")
        tasks = (reading, writing, stopping)
        self._server_state.on_stop(self._stop.set)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error: BaseException | None = None
            if reading.done():
                error = reading.exception()
                if error is not None and not isinstance(error, HeadgateError):
                    # A programmer's error: its batch is never decided, and no other task must wait for it.
                    raise error
            elif not writing.done():
                reading.cancel()
                error = ClosedError(Reason.CLOSED, "the broker is closing")
            self._no_more = True
            self._wake.set()
            await writing
            if error is not None:
                raise error
        finally:
            self._server_state.forget(self._stop.set)
            if self._timer is not None:
                self._timer.cancel()
            await end_tasks(tasks)
            for batch in (*self._undecided, *self._decided):
                self._share.give(batch.shared_bytes)
            self._undecided.clear()
            self._decided.clear()

    async def _read(self) -> None:
        while True:
            await self._budget.room()
            await self._share.room()
            await self._quota.produce_room()
            data = await self._call.read()
            if data is grpc.aio.EOF:
                return
            self._quota.produced(len(data))
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        rest, batch = payload.split(data)
        request = decode(log_pb2.PublishRequest, rest)
        if request.sequence != self._sequence + 1:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"batches of a stream are numbered 1, 2, 3... sequence=`{request.sequence}` expected=`{self._sequence + 1}`",
            )
        if self._sequence == 0 and request.HasField("options"):
            self._set_options(request.options)
        self._sequence += 1
        if request.topic:
            self._topic = request.topic
        entry = _Batch(self._sequence, len(data) + OVERHEAD_BYTES)
        self._budget.take(entry.cost_bytes)
        self._share.take(entry.cost_bytes)
        self._undecided.append(entry)
        self._call.is_in_use = True
        try:
            partition = self._partition(self._topic, request.partition)
            try:
                appended = self._append(partition, batch)
            except RetryError as error:
                raise self._server_state.moved(error, partition.topic, partition.number) from error
        except HeadgateError as error:
            entry.error = error
            self._decide()
            return
        entry.base_offset, entry.append_time_ms = appended.base_offset, appended.timestamp_ms
        self._engine.on_acked(partial(self._on_safe, entry))

    def _append(self, partition: PartitionLog, batch: memoryview) -> Appended:
        """Append a batch, if its producer id is the client's."""
        if self._claim is None:
            return self._append_copy(partition, batch)
        header = parse(batch, 0, len(batch))
        self._claim.check(header)
        appended = self._append_copy(partition, batch)
        self._claim.use(header)
        return appended

    def _append_copy(self, partition: PartitionLog, batch: memoryview) -> Appended:
        """gRPC's bytes are read-only, but a batch must be stamped. A large batch is copied to a buffer that the log may keep, a
        small one to ours."""
        size = len(batch)
        if size >= ADOPT_BYTES_MIN:
            copy = bytearray(batch)
            return self._engine.append(partition, memoryview(copy), adopt=copy, trust=self._trust.sent(1))
        if size > len(self._scratch):
            self._scratch = memoryview(bytearray(size))
        scratch = self._scratch[:size]
        scratch[:] = batch
        return self._engine.append(partition, scratch, trust=self._trust.sent(1))

    def _set_options(self, options: log_pb2.PublishOptions) -> None:
        if options.ack_interval_ms > ACK_INTERVAL_MS_MAX:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"ack interval is too long. ack_interval_ms=`{options.ack_interval_ms}` max=`{ACK_INTERVAL_MS_MAX}`",
            )
        self._ack_batches = min(max(options.ack_batches, 1), ACK_BATCHES_MAX)
        self._ack_interval_s = (options.ack_interval_ms or ACK_INTERVAL_MS_MAX) / 1000

    def _partition(self, topic: str, number: int) -> PartitionLog:
        check_topic(Operation.WRITE, topic, "Log/Publish")  # for each batch: a right may end
        partition = self._known.get((topic, number))
        if partition is None or partition.closed is not None:
            if is_internal(topic):
                raise InvalidError(Reason.INVALID_TOPIC, f"topic is the cluster's own and cannot be written to. topic=`{topic}`")
            partition = self._server_state.partition(self._engine.topic(topic), number)
            if len(self._known) >= KNOWN_PARTITIONS_MAX:
                self._known.clear()
            self._known[topic, number] = partition
        return partition

    def _on_safe(self, entry: _Batch, error: HeadgateError | None) -> None:
        entry.is_safe = True
        if entry.error is None:
            entry.error = error
        self._decide()

    def _decide(self) -> None:
        undecided, decided = self._undecided, self._decided
        while undecided and (undecided[0].is_safe or undecided[0].error is not None):
            batch = undecided.popleft()
            decided.append(batch)
            self._share.give(batch.shared_bytes - OVERHEAD_BYTES)
            batch.shared_bytes = OVERHEAD_BYTES
        if not decided:
            return
        if self._ack_is_due():
            self._wake.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._ack_interval_s, self._on_timer)

    def _ack_is_due(self) -> bool:
        # An overdrawn budget stops the reading: the batches that an ack waits for would never come.
        return self._due or self._no_more or len(self._decided) >= self._ack_batches or self._budget.is_full

    def _on_timer(self) -> None:
        self._timer = None
        self._due = True
        self._wake.set()

    async def _write(self) -> None:
        while not (self._no_more and not self._undecided and not self._decided):
            await self._wake.wait()
            self._wake.clear()
            if self._decided and self._ack_is_due():
                await self._ack()

    async def _ack(self) -> None:
        batches = list(self._decided)
        self._decided.clear()
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            response = log_pb2.PublishResponse(
                acked_sequence=batches[-1].sequence,
                base_offsets=[-1 if batch.error is not None else batch.base_offset for batch in batches],
                failures=[
                    log_pb2.PublishResponse.Failure(sequence=batch.sequence, error=error_message(batch.error))
                    for batch in batches
                    if batch.error is not None
                ],
            )
            if any(batch.append_time_ms >= 0 and batch.error is None for batch in batches):
                response.append_times_ms.extend(-1 if batch.error is not None else batch.append_time_ms for batch in batches)
            await self._call.write(response.SerializeToString())
        finally:
            for batch in batches:
                self._budget.give(batch.cost_bytes)
                self._share.give(batch.shared_bytes)
            self._call.is_in_use = bool(self._undecided or self._decided)
