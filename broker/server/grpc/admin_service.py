"""`headgate.v1.Admin`: topics and the state of the cluster. Any broker answers, and asks the others for facts that only they
know."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from headgate.broker import __version__
from headgate.broker.cluster.objects import Incarnation, Topic
from headgate.broker.cluster.topic_config import KEYS
from headgate.broker.engine.base.live_settings import topic_defaults
from headgate.broker.engine.partition.log import PartitionLog, records_in
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.runtime.turns import Turn
from headgate.broker.server.grpc.bounds import ADMIN, NAMES_MAX, Bound, Bounds, find_bounds, own_bounds
from headgate.broker.server.grpc.callers import is_forwarded
from headgate.broker.server.grpc.errors import error_message
from headgate.broker.server.grpc.open_calls import Context
from headgate.broker.server.grpc.peers import CHANGE_TIMEOUT_S, TIMEOUT_S
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2

RATE_WINDOW_MS_MAX = 10_000
UNKNOWN_BOUND = Bound(-1, -1, -1, -1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses at which clients reach this broker."""

    host: str
    kafka_port: int
    grpc_port: int
    http_port: int
    grpc_mtls_port: int = 0


class AdminService:
    """Topics and status. `addresses` is set once the ports are known."""

    def __init__(self, server_state: ServerState, addresses: Addresses) -> None:
        self._server_state = server_state
        self._engine = server_state.engine
        self._clock = server_state.engine.clock
        self._started = self._clock.monotonic()
        self.addresses = addresses

    # -- status

    async def status(self, request: admin_pb2.StatusRequest, context: Context) -> admin_pb2.StatusResponse:
        window_ms = request.rate_window_ms
        if window_ms > RATE_WINDOW_MS_MAX:
            raise InvalidError(
                Reason.INVALID_REQUEST, f"rate window is too long. rate_window_ms=`{window_ms}` max=`{RATE_WINDOW_MS_MAX}`"
            )
        peers = self._server_state.peers
        others = [] if is_forwarded(context) else peers.others()
        asking = asyncio.create_task(
            peers.ask([(broker, request) for broker in others], ADMIN["Status"], TIMEOUT_S + window_ms / 1000)
        )
        try:
            response = await self._own_status(window_ms)
            for answer in await asking:
                if answer.error is not None:
                    response.brokers.append(_silent(answer.broker, answer.error))
                else:
                    _add_status(response, answer.response)
        finally:
            asking.cancel()
        response.brokers.sort(key=lambda broker: broker.id)
        return response

    async def _own_status(self, window_ms: int) -> admin_pb2.StatusResponse:
        """This broker, and its part of all topics."""
        before: dict[PartitionLog, tuple[int, int]] = {}
        seconds = 0.0
        if window_ms:
            started = self._clock.monotonic()
            before = await self._written()
            await asyncio.sleep(window_ms / 1000)
            seconds = self._clock.monotonic() - started
        each = self._engine.turns.begin().each
        response = admin_pb2.StatusResponse(cluster_id=self._engine.cluster_id, broker_id=self._engine.broker_id)
        response.brokers.append(self._broker())
        async for topic in each(sorted(self._engine.topics(), key=lambda topic: topic.name)):
            row = response.topics.add(name=topic.name, id=topic.id.bytes, partitions=topic.partitions)
            if seconds:
                row.records_in_per_second = row.bytes_in_per_second = 0.0
            async for partition in each(self._partitions(topic)):
                row.size_bytes += partition.size_bytes
                row.records += records_in(partition)
                if seconds:
                    # A segment that was opened within the window has no earlier numbers.
                    records, size = before.get(partition, (partition.high_watermark, partition.traffic.bytes_in))
                    row.records_in_per_second += (partition.high_watermark - records) / seconds
                    row.bytes_in_per_second += (partition.traffic.bytes_in - size) / seconds
        return response

    async def _written(self) -> dict[PartitionLog, tuple[int, int]]:
        """(offsets given out, bytes written since the segment was opened); both only grow."""
        each = self._engine.turns.begin().each
        return {log: (log.high_watermark, log.traffic.bytes_in) async for log in each(list(self._engine.all_logs()))}

    def _partitions(self, topic: Topic) -> list[PartitionLog]:
        """The partitions that this broker leads."""
        return [log for log in self._engine.logs_by_id.get(topic.id, []) if log is not None]

    def _broker(self) -> admin_pb2.Broker:
        addresses, trouble = self.addresses, self._engine.failed or self._engine.stalled
        return admin_pb2.Broker(
            id=self._engine.broker_id,
            host=addresses.host,
            kafka_port=addresses.kafka_port,
            grpc_port=addresses.grpc_port,
            http_port=addresses.http_port,
            grpc_mtls_port=addresses.grpc_mtls_port,
            version=__version__,
            incarnation_id=self._engine.incarnation_id,
            uptime_ms=int((self._clock.monotonic() - self._started) * 1000),
            memory_bytes=_memory_bytes(),
            trouble="" if trouble is None else trouble.message,
            clock_doubt=self._engine.clock.doubt or "",
            history_limit=str(self._engine.live_first),
        )

    # -- topics

    async def list_topics(self, request: admin_pb2.ListTopicsRequest, context: Context) -> admin_pb2.ListTopicsResponse:
        response = admin_pb2.ListTopicsResponse()
        async for topic in self._engine.turns.begin().each(sorted(self._engine.topics(), key=lambda topic: topic.name)):
            response.topics.append(_topic(topic))
        return response

    async def describe_topics(self, request: admin_pb2.DescribeTopicsRequest, context: Context) -> admin_pb2.DescribeTopicsResponse:
        if len(request.names) > NAMES_MAX:
            raise InvalidError(Reason.INVALID_REQUEST, f"too many names. names=`{len(request.names)}` max=`{NAMES_MAX}`")
        if len(set(request.names)) < len(request.names):
            raise InvalidError(Reason.INVALID_REQUEST, "a name is given twice")
        forwarded = is_forwarded(context)
        if request.leads_only or forwarded:
            bounds = await own_bounds(self._engine, request.names)
        else:
            bounds = await find_bounds(self._engine, self._server_state.peers, request.names)
        response = admin_pb2.DescribeTopicsResponse(
            brokers=[self._broker(), *(_row(broker) for broker in self._server_state.peers.others())],
            broker_id=self._engine.broker_id,
        )
        turn = self._engine.turns.begin()
        async for name in turn.each(request.names):
            await self._describe(response.topics.add(), name, bounds, turn, config=not forwarded)
        return response

    async def _describe(
        self, description: admin_pb2.TopicDescription, name: str, bounds: Bounds, turn: Turn, *, config: bool
    ) -> None:
        """Describe a topic in an empty message."""
        try:
            topic = self._engine.topic(name)
        except HeadgateError as error:
            description.topic.name = name
            description.error.CopyFrom(error_message(error))
            return
        description.topic.CopyFrom(_topic(topic))
        async for number in turn.each(range(topic.partitions)):
            lead = self._engine.lead(topic.id, number)
            bound = bounds.get((name, number), UNKNOWN_BOUND)
            description.partitions.add(
                partition=number,
                leader=-1 if lead is None else lead[0].broker_id,
                leader_epoch=-1 if lead is None else lead[1],
                log_start=bound.log_start,
                high_watermark=bound.high_watermark,
                size_bytes=bound.size_bytes,
                stable_end=bound.stable_end,
                records=None if bound is UNKNOWN_BOUND else bound.records,
                skipped=[
                    admin_pb2.Partition.Range(base_offset=low, end_offset=high)
                    for low, high in self._engine.manifest.readable.cuts_of(topic.id, number)
                ],
            )
        if config:
            description.config.extend(
                admin_pb2.ConfigEntry(
                    name=key.name,
                    value=topic.config.get(key.name, self._default(key.name)),
                    is_default=key.name not in topic.config,
                    documentation=key.documentation,
                )
                for key in KEYS.values()
            )

    def _default(self, name: str) -> str:
        return topic_defaults(self._engine.manifest, self._engine.settings).get(name, KEYS[name].default)

    async def check_records(self, request: admin_pb2.CheckRecordsRequest, context: Context) -> admin_pb2.CheckRecordsResponse:
        topic = self._engine.topic(request.topic)
        answer: admin_pb2.CheckRecordsResponse | None = await self._elsewhere("CheckRecords", topic, request, context)
        if answer is not None:
            return answer
        partition = self._server_state.partition(topic, request.partition)
        first = request.first_offset if request.HasField("first_offset") else partition.log_start
        last = request.last_offset if request.HasField("last_offset") else partition.high_watermark - 1
        if first > last and not request.HasField("last_offset"):
            return admin_pb2.CheckRecordsResponse(base_offset=-1, next_offset=first, end_offset=first)
        checked = await self._engine.find_unreadable(partition, first, last)
        return admin_pb2.CheckRecordsResponse(
            unreadable=[
                admin_pb2.CheckRecordsResponse.Unreadable(
                    base_offset=batch.base_offset, end_offset=batch.end_offset, size_bytes=batch.size_bytes, why=batch.why
                )
                for batch in checked.found
            ],
            base_offset=checked.base_offset,
            next_offset=checked.next_offset,
            batches=checked.batches,
            end_offset=last + 1,
        )

    async def skip_records(self, request: admin_pb2.SkipRecordsRequest, context: Context) -> admin_pb2.SkipRecordsResponse:
        topic = self._engine.topic(request.topic)
        answer: admin_pb2.SkipRecordsResponse | None = await self._elsewhere("SkipRecords", topic, request, context)
        if answer is not None:
            return answer
        partition = self._server_state.partition(topic, request.partition)
        base_offset, end_offset = await self._engine.skip_records(
            partition, request.first_offset, request.last_offset, validate_only=request.validate_only
        )
        return admin_pb2.SkipRecordsResponse(base_offset=base_offset, end_offset=end_offset)

    async def _elsewhere(
        self,
        method: str,
        topic: Topic,
        request: admin_pb2.CheckRecordsRequest | admin_pb2.SkipRecordsRequest,
        context: Context,
    ) -> Any:
        """The answer of the broker that leads the request's partition; None when this broker is to answer."""
        lead = self._engine.lead(topic.id, request.partition)
        if lead is None or lead[0].id == self._engine.incarnation_id or is_forwarded(context):
            return None
        return await self._server_state.peers.call(lead[0], ADMIN[method], request, CHANGE_TIMEOUT_S)


def _topic(topic: Topic) -> admin_pb2.Topic:
    return admin_pb2.Topic(name=topic.name, id=topic.id.bytes, partitions=topic.partitions, created_ms=topic.created_ms)


def _row(broker: Incarnation) -> admin_pb2.Broker:
    """Another broker, as described by the manifest."""
    return admin_pb2.Broker(
        id=broker.broker_id,
        host=broker.host,
        kafka_port=broker.kafka_port,
        grpc_port=broker.grpc_port,
        http_port=broker.http_port,
        grpc_mtls_port=broker.grpc_mtls_port,
        incarnation_id=broker.id,
    )


def _silent(broker: Incarnation, error: HeadgateError) -> admin_pb2.Broker:
    """A broker that did not answer."""
    row = _row(broker)
    row.trouble = error.message
    return row


def _add_status(response: admin_pb2.StatusResponse, other: admin_pb2.StatusResponse) -> None:
    """Add another broker's row and its part of the topics. A topic that only one of them knows is being created or deleted."""
    response.brokers.extend(other.brokers)
    rows = {row.id: row for row in response.topics}
    for part in other.topics:
        row = rows.get(part.id)
        if row is not None:
            row.size_bytes += part.size_bytes
            row.records += part.records
            if row.HasField("records_in_per_second"):
                row.records_in_per_second += part.records_in_per_second
                row.bytes_in_per_second += part.bytes_in_per_second


def _memory_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
