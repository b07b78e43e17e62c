"""`headgate.v1.Log`: Publish, Fetch, ListOffsets, Subscribe, InitProducer.

All reads are of committed records: none of an open or aborted transaction. So the end of a partition is its last stable offset.
"""

from __future__ import annotations

import asyncio

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.read.committed import stable
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.grpc.errors import error_message
from headgate.broker.server.grpc.handlers import Call
from headgate.broker.server.grpc.open_calls import Context
from headgate.broker.server.grpc.positions import resolve
from headgate.broker.server.grpc.publish import Publisher
from headgate.broker.server.grpc.quotas import CallQuota
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.server.grpc.subscribe import Subscriber, lane_message
from headgate.broker.wire.grpc import payload
from headgate.broker.wire.grpc.headgate.v1 import log_pb2

QUERIES_MAX = 10_000
BATCH_BYTES_MAX = 64 << 20
"""No topic allows a larger batch."""


class LogService:
    """The records' service: writing and reading."""

    def __init__(self, server_state: ServerState) -> None:
        self._server_state = server_state
        self._engine = server_state.engine

    async def init_producer(self, request: log_pb2.InitProducerRequest, context: Context) -> log_pb2.InitProducerResponse:
        return log_pb2.InitProducerResponse(producer_id=await self._engine.allocate_producer_id(), producer_epoch=0)

    async def publish(self, call: Call) -> None:
        await Publisher(self._server_state, call).run()

    async def subscribe(self, call: Call) -> None:
        await Subscriber(self._server_state, call).run()

    async def fetch(self, request: log_pb2.FetchRequest, context: Context) -> bytes:
        engine, settings, share = self._engine, self._server_state.settings, self._server_state.share()
        partition = self._server_state.readable(engine.topic(request.topic), request.partition)
        if engine.lane is None:
            await engine.check_range(partition, request.offset)
        max_bytes = min(request.max_bytes or settings.fetch_bytes_max, settings.fetch_bytes_max)
        wait_ms = min(request.max_wait_ms, settings.fetch_wait_max_ms)
        if wait_ms and engine.lane is None:
            await self._wait(partition, request.offset, min(max(request.min_bytes, 1), max_bytes), wait_ms)
        quota = CallQuota(engine.meters)
        await quota.fetch_room()
        await share.room()
        self._server_state.open(partition)
        batches = await self._server_state.read(partition, request.offset, max_bytes, share, follows_lanes=request.follows_lanes)
        end, start = self._server_state.ends(partition)
        head = log_pb2.FetchResponse(high_watermark=end, log_start=start)
        if isinstance(batches, Incarnation):
            head.lane.CopyFrom(lane_message(batches))
            return head.SerializeToString()
        if not batches:
            await self._server_state.confirm(partition)
        size = sum(map(len, batches))
        partition.traffic.fetched(size, requests=0)
        quota.fetched(size)
        share.take(size)  # until the answer has been sent
        context.add_done_callback(lambda _: share.give(size))  # type: ignore[arg-type]  # the stub asks for a class
        return payload.join(head, batches)

    async def _wait(self, partition: PartitionLog, offset: int, min_bytes: int, wait_ms: int) -> None:
        """Wait until `min_bytes` can be read from `offset`, the time is over, or the broker stops."""
        news = asyncio.Event()
        partition.waiters.add(news.set)
        self._server_state.on_stop(news.set)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while not self._server_state.stopping and partition.closed is None:
                    # A read stops before its limit. With `min_bytes` as the limit it might return less although more exists.
                    slices = self._engine.read_tail(partition, offset, min_bytes + BATCH_BYTES_MAX)
                    # None: the offset is older than the records in memory, so there is enough.
                    if slices is None or sum(map(len, stable(partition, slices))) >= min_bytes:
                        return
                    news.clear()
                    await news.wait()
        except TimeoutError:
            return
        finally:
            partition.waiters.remove(news.set)
            self._server_state.forget(news.set)

    async def list_offsets(self, request: log_pb2.ListOffsetsRequest, context: Context) -> log_pb2.ListOffsetsResponse:
        if len(request.queries) > QUERIES_MAX:
            raise InvalidError(Reason.INVALID_REQUEST, f"too many queries. queries=`{len(request.queries)}` max=`{QUERIES_MAX}`")
        topic = self._engine.topic(request.topic)
        response = log_pb2.ListOffsetsResponse()
        async for query in self._engine.turns.begin().each(request.queries):
            row = response.results.add(partition=query.partition, offset=-1, leader_epoch=-1)
            try:
                partition = self._server_state.partition(topic, query.partition)
                row.offset, timestamp_ms = await resolve(self._engine, partition, query.position)
                if timestamp_ms is not None:
                    row.timestamp_ms = timestamp_ms
                row.leader_epoch = partition.leader_epoch
            except HeadgateError as error:
                row.error.CopyFrom(error_message(error))
        return response
