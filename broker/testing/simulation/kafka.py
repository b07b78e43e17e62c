"""A Kafka client of simulated actors: requests as `Call`s, and connections that send them as bytes."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import headgate.broker.testing.messages.fetch as fetch
import headgate.broker.testing.messages.produce as produce

from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.testing.simulation.network import Door, Network
from headgate.broker.testing.simulation.sockets import Socket
from headgate.broker.wire.kafka.header import response_header
from headgate.broker.wire.kafka.messages import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
)

REQUEST_TIMEOUT_S = 2.0
TIMEOUT_MS = 30_000
"""Time that a broker may take for a change. Clients stop waiting earlier, as after a lost answer."""
LATEST = -1
TOPIC = 2
"""Type of a resource with settings."""
SET = 0
"""Operation of IncrementalAlterConfigs."""
GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""

RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Errors after which every client asks again."""
UNKNOWN_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

_T = TypeVar("_T")


class GoneError(Exception):
    """The broker does not answer, or does not run."""


class RefusedError(Exception):
    """The broker's answer is an error. `again`: clients then repeat the request, here or at another broker."""

    def __init__(self, code: int, message: str = "") -> None:
        self.code = ErrorCode(code)
        super().__init__(f"{self.code.name} {message}")
        # No fault of a run explains it, so it must not be repeated until it disappears.
        assert self.code is not ErrorCode.UNKNOWN_SERVER_ERROR, f"a broker answered with an unexpected error: {message}"

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE


def check(code: int, message: str | None = None) -> None:
    """Raise RefusedError for an error code."""
    if code:
        raise RefusedError(code, message or "")


@dataclass(frozen=True, slots=True)
class Call(Generic[_T]):
    """One request.

    Args:
        message: of `headgate.broker.wire.kafka.messages`.
        answer: the class of the response.
        read: returns the result from the response, or raises RefusedError.
        acked: called with the broker's door and the result at the moment the broker writes an answer without an error.
    """

    message: Any
    version: int
    answer: Any
    read: Callable[[Any], _T]
    acked: Callable[[Door, _T], None] | None = None

    @property
    def flexible(self) -> bool:
        return self.message.FLEXIBLE_FROM is not None and self.version >= self.message.FLEXIBLE_FROM

    def encode(self, correlation_id: int) -> bytes:
        """The request as a frame."""
        head: bytes = (
            self.message.API_KEY.to_bytes(2, "big")
            + self.version.to_bytes(2, "big")
            + correlation_id.to_bytes(4, "big")
            + (9).to_bytes(2, "big")
            + b"simulated"
            + (b"\0" if self.flexible else b"")
        )
        body: bytes = self.message.encode(self.version)
        return (len(head) + len(body)).to_bytes(4, "big") + head + body

    def decode(self, frame: bytes, correlation_id: int) -> _T:
        """The result in the frame of a response, without its length. Raises RefusedError."""
        head = response_header(self.message.API_KEY, correlation_id, self.flexible)
        assert frame.startswith(head), "responses come in the order of the requests"
        response, end = self.answer.decode(frame, len(head), self.version)
        assert end == len(frame), "a response has nothing behind it"
        return self.read(response)


class Frames:
    """Cuts received bytes into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> list[bytes]:
        """The frames that are whole now, without their lengths."""
        data = self._rest + data
        found: list[bytes] = []
        at = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            found.append(data[at + 4 : end])
            at = end
        self._rest = data[at:]
        return found


class Connection:
    """One client's connection to one address. Answers that arrive after `close` are dropped."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._sent = 0
        self._waiting: deque[tuple[int, Call[Any], asyncio.Future[Any]]] = deque()
        self._unwritten: deque[tuple[int, Call[Any]]] = deque()
        """Calls that the broker has not written an answer to."""
        self._received, self._written = Frames(), Frames()
        self.closed = False
        self._socket = Socket(network, address, received=self._on_bytes, lost=self.close, written=self._on_written)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._socket.close()
        waiting, self._waiting = self._waiting, deque()
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(GoneError("the connection is closed"))
                future.exception()

    def request(self, call: Call[_T]) -> asyncio.Future[_T]:
        """Send a request; the future gets the result, a RefusedError or a GoneError."""
        answer: asyncio.Future[_T] = self._network.loop.create_future()
        if self.closed:
            answer.set_exception(GoneError("the connection is closed"))
            return answer
        self._sent += 1
        self._waiting.append((self._sent, call, answer))
        self._unwritten.append((self._sent, call))
        self._socket.write(call.encode(self._sent))
        return answer

    async def ask(self, call: Call[_T], timeout_s: float = REQUEST_TIMEOUT_S) -> _T:
        """Send a request and await its answer. Raises RefusedError, GoneError."""
        future = self.request(call)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise GoneError("no answer in time") from error

    def _on_bytes(self, data: bytes) -> None:
        for frame in self._received.add(data):
            correlation_id, call, future = self._waiting.popleft()
            if future.done():
                continue
            try:
                future.set_result(call.decode(frame, correlation_id))
            except RefusedError as error:
                future.set_exception(error)
                future.exception()

    def _on_written(self, door: Door, data: bytes) -> None:
        for frame in self._written.add(data):
            correlation_id, call = self._unwritten.popleft()
            if call.acked is not None:
                try:
                    result = call.decode(frame, correlation_id)
                except RefusedError:
                    continue
                call.acked(door, result)


# -- requests


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in a Metadata answer. `leads`: by partition the address of its lead, or None."""

    id: bytes
    leads: list[str | None]


def topics() -> Call[dict[str, TopicRow]]:
    """All topics, by name."""

    def read(response: metadata.MetadataResponse) -> dict[str, TopicRow]:
        brokers = {row.node_id: f"{row.host}:{row.port}" for row in response.brokers}
        found: dict[str, TopicRow] = {}
        for topic in response.topics:
            assert topic.name is not None
            rows = sorted(topic.partitions, key=lambda row: row.partition_index)
            found[topic.name] = TopicRow(topic.topic_id.bytes, [brokers.get(row.leader_id) for row in rows])
        return found

    return Call(metadata.MetadataRequest(topics=None), 12, metadata.MetadataResponse, read)


def produce_batch(topic_id: bytes, partition: int, data: bytes, acked: Callable[[Door, int], None]) -> Call[int]:
    """Append one batch; the result is its first offset."""

    def read(response: produce.ProduceResponse) -> int:
        row = response.responses[0].partition_responses[0]
        check(row.error_code, row.error_message)
        base_offset: int = row.base_offset
        return base_offset

    rows = [produce.PartitionProduceData(index=partition, records=data)]
    topic = produce.TopicProduceData(topic_id=uuid.UUID(bytes=topic_id), partition_data=rows)
    request = produce.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[topic])
    return Call(request, 13, produce.ProduceResponse, read, acked)


@dataclass(frozen=True, slots=True)
class Fetched:
    """`batches`: whole batches behind each other. `preferred`: id of the broker that is to be asked instead; -1: this one."""

    preferred: int
    log_start: int
    high_watermark: int
    batches: bytes


def fetch_batches(topic_id: bytes, partition: int, offset: int, max_bytes: int, wait_ms: int) -> Call[Fetched]:
    """Read. `wait_ms`: longest wait for a first record."""

    def read(response: fetch.FetchResponse) -> Fetched:
        check(response.error_code)
        row = response.responses[0].partitions[0]
        check(row.error_code)
        return Fetched(row.preferred_read_replica, row.log_start_offset, row.high_watermark, bytes(row.records or b""))

    rows = [fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)]
    request = fetch.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic_id=uuid.UUID(bytes=topic_id), partitions=rows)],
    )
    return Call(request, 13, fetch.FetchResponse, read)


def end_offset(topic: str, partition: int) -> Call[int]:
    """The end of a partition."""

    def read(response: list_offsets.ListOffsetsResponse) -> int:
        row = response.topics[0].partitions[0]
        check(row.error_code)
        return row.offset

    rows = [list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=LATEST)]
    asked = [list_offsets.ListOffsetsTopic(name=topic, partitions=rows)]
    return Call(list_offsets.ListOffsetsRequest(replica_id=-1, topics=asked), 7, list_offsets.ListOffsetsResponse, read)


def epoch_end(topic: str, partition: int, epoch: int) -> Call[tuple[int, int]]:
    """(epoch, end) of the last leader epoch up to `epoch`; (-1, -1) if it is unknown."""

    def read(response: offset_for_leader_epoch.OffsetForLeaderEpochResponse) -> tuple[int, int]:
        row = response.topics[0].partitions[0]
        check(row.error_code)
        return row.leader_epoch, row.end_offset

    rows = [offset_for_leader_epoch.OffsetForLeaderPartition(partition=partition, leader_epoch=epoch)]
    asked = [offset_for_leader_epoch.OffsetForLeaderTopic(topic=topic, partitions=rows)]
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(replica_id=-1, topics=asked)
    return Call(request, 4, offset_for_leader_epoch.OffsetForLeaderEpochResponse, read)


def coordinator(key: str, kind: int = GROUP) -> Call[str]:
    """The address of the coordinator of a group, or of a transactional id."""

    def read(response: find_coordinator.FindCoordinatorResponse) -> str:
        row = response.coordinators[0]
        check(row.error_code, row.error_message)
        return f"{row.host}:{row.port}"

    request = find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    return Call(request, 4, find_coordinator.FindCoordinatorResponse, read)


def commit(group: str, topic: str, offset: int) -> Call[None]:
    """Commit a group's position of partition 0."""

    def read(response: offset_commit.OffsetCommitResponse) -> None:
        check(response.topics[0].partitions[0].error_code)

    rows = [offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")]
    request = offset_commit.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[offset_commit.OffsetCommitRequestTopic(name=topic, partitions=rows)],
    )
    return Call(request, 8, offset_commit.OffsetCommitResponse, read)


def position(group: str, topic: str) -> Call[int]:
    """A group's committed position of partition 0; -1: it has none."""

    def read(response: offset_fetch.OffsetFetchResponse) -> int:
        row = response.groups[0]
        check(row.error_code)
        check(row.topics[0].partitions[0].error_code)
        return row.topics[0].partitions[0].committed_offset

    asked = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=asked)]
    return Call(offset_fetch.OffsetFetchRequest(groups=groups), 8, offset_fetch.OffsetFetchResponse, read)


def create_topic(name: str, partitions: int, config: dict[str, str]) -> Call[bytes]:
    """The result is the topic's id."""

    def read(response: create_topics.CreateTopicsResponse) -> bytes:
        row = response.topics[0]
        check(row.error_code, row.error_message)
        return row.topic_id.bytes

    configs = [create_topics.CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
    topic = create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
    request = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
    return Call(request, 7, create_topics.CreateTopicsResponse, read)


def delete_topic(name: str) -> Call[None]:
    def read(response: delete_topics.DeleteTopicsResponse) -> None:
        check(response.responses[0].error_code, response.responses[0].error_message)

    request = delete_topics.DeleteTopicsRequest(topics=[delete_topics.DeleteTopicState(name=name)], timeout_ms=TIMEOUT_MS)
    return Call(request, 6, delete_topics.DeleteTopicsResponse, read)


def grow(name: str, partitions: int) -> Call[None]:
    """Add partitions to a topic, up to this number."""

    def read(response: create_partitions.CreatePartitionsResponse) -> None:
        check(response.results[0].error_code, response.results[0].error_message)

    topic = create_partitions.CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    request = create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
    return Call(request, 3, create_partitions.CreatePartitionsResponse, read)


def configure(name: str, config: dict[str, str]) -> Call[None]:
    """Change settings of a topic."""

    def read(response: incremental_alter_configs.IncrementalAlterConfigsResponse) -> None:
        check(response.responses[0].error_code, response.responses[0].error_message)

    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=SET, value=value) for key, value in config.items()
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    return Call(request, 1, incremental_alter_configs.IncrementalAlterConfigsResponse, read)


def remove_records(topic: str, partition: int, before: int) -> Call[None]:
    """Delete the records below an offset."""

    def read(response: delete_records.DeleteRecordsResponse) -> None:
        check(response.topics[0].partitions[0].error_code)

    rows = [delete_records.DeleteRecordsPartition(partition_index=partition, offset=before)]
    asked = [delete_records.DeleteRecordsTopic(name=topic, partitions=rows)]
    request = delete_records.DeleteRecordsRequest(topics=asked, timeout_ms=TIMEOUT_MS)
    return Call(request, 2, delete_records.DeleteRecordsResponse, read)


def producer_id() -> Call[int]:
    """A new id for an idempotent producer."""

    def read(response: init_producer_id.InitProducerIdResponse) -> int:
        check(response.error_code)
        return response.producer_id

    request = init_producer_id.InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1_000, producer_id=-1, producer_epoch=-1
    )
    return Call(request, 4, init_producer_id.InitProducerIdResponse, read)
