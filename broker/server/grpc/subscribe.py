"""One Subscribe stream: any number of partitions, read for ever, within the client's credit.

A subscription is in one of three states::

    starting   its position is not known yet; then it is announced to the client, which costs no credit
    runnable   there may be something to read; it waits for its turn (round robin) and for credit
    idle       nothing above `offset` is readable; the partition's high watermark wakes it

A seek puts it back to `starting` with a new generation. Reads in progress for the old generation are dropped before they are
written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

import grpc

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.windows import new_reader
from headgate.broker.engine.read import view
from headgate.broker.log.batch import parse_header, split
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason
from headgate.broker.runtime.tasks import end_tasks, looked_at
from headgate.broker.runtime.turns import Turn
from headgate.broker.server.grpc.callers import check_topic
from headgate.broker.server.grpc.errors import error_message
from headgate.broker.server.grpc.handlers import Call
from headgate.broker.server.grpc.open_calls import StalledError
from headgate.broker.server.grpc.positions import resolve
from headgate.broker.server.grpc.quotas import CallQuota
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.wire.grpc import payload
from headgate.broker.wire.grpc.bounded import decoding
from headgate.broker.wire.grpc.headgate.v1 import log_pb2

SUBSCRIPTIONS_MAX = 10_000
ELEMENTS_MAX = 2 * SUBSCRIPTIONS_MAX
"""Most elements of one request: every subscription removed and added."""
CREDIT_BYTES_MAX = 1 << 30
RESPONSE_BYTES_DEFAULT = 1 << 20


class _Subscription:
    __slots__ = ("generation", "number", "offset", "partition", "queued", "reader", "request", "stream")

    def __init__(self, stream: Subscriber, request: log_pb2.Subscription) -> None:
        self.stream = stream
        self.number: int = request.subscription
        self.generation: int = request.generation
        self.request = request
        self.partition: PartitionLog | None = None
        self.offset = -1
        self.reader = new_reader()
        self.queued = False

    def wake(self) -> None:
        """Mark the subscription runnable: there may be something to read."""
        if not self.queued:
            self.queued = True
            self.stream.runnable.append(self)
            self.stream.wake.set()


class Subscriber:
    """One stream."""

    def __init__(self, server_state: ServerState, call: Call) -> None:
        self._server_state = server_state
        self._engine = server_state.engine
        self._call = call
        self._share = server_state.share()
        self._quota = CallQuota(self._engine.meters)
        self._credit_bytes = 0
        self._response_bytes = min(RESPONSE_BYTES_DEFAULT, server_state.settings.fetch_bytes_max)
        self._subscriptions: dict[int, _Subscription] = {}
        self._starting: deque[_Subscription] = deque()
        self.runnable: deque[_Subscription] = deque()
        self.wake = asyncio.Event()
        self._ahead: tuple[_Subscription, asyncio.Task[list[memoryview] | Incarnation]] | None = None
        """A read of history that waits for live records, beside this stream's other partitions. One at a time bounds memory."""
        self._behind: deque[_Subscription] = deque()
        """Subscriptions that read history after it."""

    async def run(self) -> None:
        """Serve the stream until the client ends it. Raises HeadgateError if the broker ends it."""
        reading = asyncio.create_task(self._read(), name="subscribe-read")
        sending = asyncio.create_task(self._send(), name="subscribe-send")
        self._server_state.on_stop(self.wake.set)
        try:
            done, _ = await asyncio.wait((reading, sending), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._server_state.forget(self.wake.set)
            await end_tasks((reading, sending))
            for subscription in list(self._subscriptions.values()):
                self._remove(subscription)

    # -- requests of the client

    async def _read(self) -> None:
        while (data := await self._call.read()) is not grpc.aio.EOF:
            turn = self._engine.turns.begin()
            await self._change(await turn.run(decoding(log_pb2.SubscribeRequest, data, ELEMENTS_MAX)), turn)
            self._call.is_in_use = bool(self._subscriptions)

    async def _change(self, request: log_pb2.SubscribeRequest, turn: Turn) -> None:
        async for number in turn.each(request.remove):
            known = self._subscriptions.get(number)
            if known is not None:
                self._remove(known)
        async for wanted in turn.each(request.add):
            check_topic(Operation.READ, wanted.topic, "Log/Subscribe")
            known = self._subscriptions.get(wanted.subscription)
            if known is not None:
                self._remove(known)
            if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
                raise InvalidError(Reason.INVALID_REQUEST, f"too many subscriptions on one stream. max=`{SUBSCRIPTIONS_MAX}`")
            subscription = _Subscription(self, wanted)
            self._subscriptions[wanted.subscription] = subscription
            self._starting.append(subscription)
        if request.max_bytes:
            self._response_bytes = min(request.max_bytes, self._server_state.settings.fetch_bytes_max)
        self._credit_bytes += request.credit_bytes
        if self._credit_bytes > CREDIT_BYTES_MAX:
            raise InvalidError(Reason.INVALID_REQUEST, f"too much credit. bytes=`{self._credit_bytes}` max=`{CREDIT_BYTES_MAX}`")
        self.wake.set()

    def _remove(self, subscription: _Subscription) -> None:
        if self._current(subscription):
            del self._subscriptions[subscription.number]
            self._call.is_in_use = bool(self._subscriptions)
        if subscription.partition is not None:
            subscription.partition.waiters.remove(subscription.wake)
        if self._ahead is not None and self._ahead[0] is subscription:
            self._end_ahead().cancel()

    def _current(self, subscription: _Subscription) -> bool:
        return self._subscriptions.get(subscription.number) is subscription

    # -- answers to the client

    async def _send(self) -> None:
        while True:
            if self._server_state.stopping:
                raise ClosedError(Reason.CLOSED, "the broker is closing")
            if self._starting:
                await self._turn(self._starting.popleft())
            elif self.runnable and self._credit_bytes > 0:
                subscription = self.runnable.popleft()
                subscription.queued = False
                await self._turn(subscription)
            else:
                self.wake.clear()
                await self.wake.wait()

    async def _turn(self, subscription: _Subscription) -> None:
        if not self._current(subscription):
            return
        try:
            if subscription.partition is None:
                await self._start(subscription)
            else:
                await self._give(subscription, subscription.partition)
        except HeadgateError as error:
            if isinstance(error, StalledError):
                raise
            if self._current(subscription):
                self._remove(subscription)
                response = self._response(subscription)
                response.error.CopyFrom(error_message(error))
                await self._write(response, [])

    async def _start(self, subscription: _Subscription) -> None:
        request = subscription.request
        topic = self._engine.topic(request.topic)
        if request.topic_id and request.topic_id != topic.id.bytes:
            raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic was deleted, and another one has its name. topic=`{topic.name}`")
        at = request.position.WhichOneof("at")
        if self._engine.lane is not None and at == "offset":
            partition, offset = self._server_state.readable(topic, request.partition), request.position.offset
        else:
            partition = self._server_state.partition(topic, request.partition)
            offset, _ = await resolve(self._engine, partition, request.position)
        if not self._current(subscription):
            return
        subscription.offset = offset
        subscription.partition = partition
        if at == "latest":
            partition.readers.asked_end(subscription.reader, offset)
        partition.waiters.add(subscription.wake)
        await self._write(self._response(subscription), [])
        subscription.wake()

    async def _give(self, subscription: _Subscription, partition: PartitionLog) -> None:
        self._server_state.open(partition)
        check_topic(Operation.READ, partition.topic.name, "Log/Subscribe")  # for each answer: a right may end
        await self._share.room()
        await self._quota.fetch_room()
        # A subscription that waits at a window hears of windows only. Records that arrive during the read must wake it, too.
        partition.waiters.add(subscription.wake)
        slices = await self._records(subscription, partition)
        if slices is None:
            return
        if isinstance(slices, Incarnation):
            if self._current(subscription):
                self._remove(subscription)
                response = self._response(subscription)
                response.lane.CopyFrom(lane_message(slices))
                await self._write(response, [])
            return
        if not slices and subscription.offset == partition.high_watermark:
            partition.readers.at_end(subscription.reader, subscription.offset, self._engine.clock.monotonic())
        partition.waiters.remove(subscription.wake)
        if self._current(subscription):
            waits = not slices and view.is_waiting(partition, subscription.offset, subscription.reader)
            partition.waiters.add(subscription.wake, at_window=waits)
        if not slices or not self._current(subscription):
            return
        last = parse_header(split(slices[-1])[-1])
        subscription.offset = last.next_offset
        size = sum(map(len, slices))
        self._credit_bytes -= size
        partition.traffic.fetched(size, requests=0)
        self._quota.fetched(size)
        self._share.take(size)
        try:
            await self._write(self._response(subscription), slices)
        except BaseException:
            self._call.at_end(partial(self._share.give, size))  # gRPC holds the message until then
            raise
        self._share.give(size)
        subscription.wake()

    async def _records(self, subscription: _Subscription, partition: PartitionLog) -> list[memoryview] | Incarnation | None:
        """What `ServerState.read` gives. None: history has to wait for live records, and wakes the subscription when it is read.
        The stream's other partitions do not wait with it."""
        if self._ahead is not None and self._ahead[0] is subscription:
            return self._end_ahead().result() if self._ahead[1].done() else None
        offset, reader = subscription.offset, subscription.reader
        reading = self._server_state.read(
            partition, offset, self._response_bytes, self._share, reader, follows_lanes=subscription.request.follows_lanes
        )
        if self._engine.live_first.is_open:
            return await reading
        if self._engine.read_tail(partition, offset, 1, reader) is not None:
            return await reading
        if self._ahead is not None:
            reading.close()
            self._behind.append(subscription)
            return None
        task = asyncio.create_task(reading, name="subscribe-history")
        task.add_done_callback(looked_at)
        task.add_done_callback(lambda _: subscription.wake())
        self._ahead = subscription, task
        return None

    def _end_ahead(self) -> asyncio.Task[list[memoryview] | Incarnation]:
        """Take the read of history that waited, and let the next one begin."""
        assert self._ahead is not None
        task, self._ahead = self._ahead[1], None
        while self._behind:
            subscription = self._behind.popleft()
            if self._current(subscription):
                subscription.wake()
                break
        return task

    def _response(self, subscription: _Subscription) -> log_pb2.SubscribeResponse:
        response = log_pb2.SubscribeResponse(
            subscription=subscription.number, generation=subscription.generation, next_offset=subscription.offset
        )
        if subscription.partition is not None:
            response.high_watermark, response.log_start = self._server_state.ends(subscription.partition)
        return response

    async def _write(self, response: log_pb2.SubscribeResponse, batches: list[memoryview]) -> None:
        await self._call.write(payload.join(response, batches))


def lane_message(lane: Incarnation) -> log_pb2.Lane:
    """Where a client of gRPC finds a lane."""
    return log_pb2.Lane(host=lane.host, grpc_port=lane.grpc_port, grpc_mtls_port=lane.grpc_mtls_port)
