"""Brokers as the client sees them: one channel each, who leads which partition, calls with retries."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message

from broker.client.backoff import Backoff
from broker.client.errors import from_call, from_message
from broker.client.types import OffsetAndTimestamp, Start, Timestamp, TopicPartition
from broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from broker.wire.grpc.headgate.v1 import admin_pb2, log_pb2
from broker.wire.grpc.methods import Method, methods

ADMIN = methods(admin_pb2.DESCRIPTOR.services_by_name["Admin"])
LOG = methods(log_pb2.DESCRIPTOR.services_by_name["Log"])

RECEIVE_BYTES_MAX = 128 << 20
"""Largest message from a broker: one batch of the largest size that a topic may allow (64 MiB), and what stands around it."""
METADATA_AGE_S_MAX = 60.0
"""After this long a topic is asked for again, to learn of new partitions."""

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # A broker that restarts is back within seconds; gRPC's own patience grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Retries are ours: only we know what may be sent twice.
    ("grpc.enable_retries", 0),
    # Otherwise one client's failed attempts delay another's.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]

_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, slots=True)
class TopicView:
    """What the client knows of a topic: the leads of its partitions by number, and how large a batch may be."""

    id: uuid.UUID
    name: str
    leaders: tuple[int, ...]
    batch_bytes_max: int
    seen_at_s: float


class Link:
    """One broker's channel. Connects by itself at the first call."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)

    async def call(self, method: Method, request: Message, timeout_s: float) -> Any:
        """One attempt. Returns the response message. Raises HeadgateError."""
        attempt: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method.path)
        try:
            data = await attempt(request.SerializeToString(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_call(error, self.address) from error
        return method.response.FromString(data)

    def stream(self, method: Method) -> Stream:
        """A new stream of raw messages."""
        return Stream(self._channel.stream_stream(method.path)(), self.address)

    async def close(self) -> None:
        await self._channel.close()


class Stream:
    """A bidirectional stream of raw messages to one broker. One task may read while another writes."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address

    async def read(self) -> bytes | None:
        """The next message; None where the broker ended the stream in peace. Raises HeadgateError."""
        data = await self._guarded(self._call.read())
        return None if data is grpc.aio.EOF else cast("bytes", data)

    async def write(self, message: bytes) -> None:
        """Send a message; waits while the broker does not take any. Raises HeadgateError."""
        await self._guarded(self._call.write(message))

    def cancel(self) -> None:
        """End the stream without further ado."""
        self._call.cancel()

    async def _guarded(self, operation: Awaitable[Any]) -> Any:
        try:
            return await operation
        except grpc.aio.AioRpcError as error:
            raise from_call(error, self._address) from error
        except asyncio.InvalidStateError as error:
            raise RetryError(Reason.CLOSED, f"stream is over. address=`{self._address}`") from error
        except asyncio.CancelledError as error:
            # grpc says CancelledError also where the stream, not our task, was cancelled.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RetryError(Reason.CLOSED, f"stream was cancelled. address=`{self._address}`") from error


class Cluster:
    """The cluster behind some addresses.

    Args:
        addresses: ``host:grpc_port``, several with commas between them.
        timeout_ms: longest wait for one call, with its retries.
    """

    def __init__(self, addresses: str, timeout_ms: int) -> None:
        parts = [part.strip() for part in addresses.split(",") if part.strip()]
        for part in parts:
            host, colon, port = part.rpartition(":")
            if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                raise InvalidError(Reason.INVALID_REQUEST, f"expected host:port of a broker's gRPC listener. address=`{part}`")
        if not parts:
            raise InvalidError(Reason.INVALID_REQUEST, "no address of a broker is given")
        self._addresses = parts
        self._timeout_s = timeout_ms / 1000
        self._first = 0
        """Which address is asked first: the one that answered last."""
        self._links: dict[str, Link] = {}
        self._brokers: dict[int, str] = {}
        """Addresses of the brokers that were seen, by id."""
        self._topics: dict[str, TopicView] = {}
        self._asking: dict[str, asyncio.Task[TopicView]] = {}

    async def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        for link in self._links.values():
            await link.close()
        self._links.clear()

    # -- calls that any broker answers

    async def call(self, method: Method, request: Message, *, retry: bool, extra_s: float = 0.0) -> Any:
        """A response of any broker.

        Args:
            retry: the call may be made twice. Otherwise it is repeated only where no broker can have seen it.
            extra_s: how much longer than usual the answer may take.

        Raises HeadgateError; RetryError with the last attempt's text once the time is over.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        backoff = Backoff()
        while True:
            address = self._addresses[self._first]
            try:
                return await self._link(address).call(method, request, max(deadline - loop.time(), 0.01) + extra_s)
            except RetryError as error:
                unseen = error.reason is Reason.NOT_READY
                self._first = (self._first + 1) % len(self._addresses)
                pause_s = backoff.pause_s()
                if not (retry or unseen) or loop.time() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)

    def _link(self, address: str) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(address)
        return link

    # -- who leads what

    async def topic(self, name: str, *, refresh: bool = False) -> TopicView:
        """What is known of a topic. Raises InvalidError(UNKNOWN_TOPIC), RetryError.

        Args:
            refresh: ask, even if something is known already.
        """
        known = self._topics.get(name)
        now = asyncio.get_running_loop().time()
        if known is not None and not refresh:
            if now - known.seen_at_s > METADATA_AGE_S_MAX:
                # What is known still serves; the answer comes beside it.
                self._ask(name)
            return known
        return await asyncio.shield(self._ask(name))

    def known_topic(self, name: str) -> TopicView | None:
        """What is known and fresh, without asking."""
        known = self._topics.get(name)
        if known is None or asyncio.get_running_loop().time() - known.seen_at_s > METADATA_AGE_S_MAX:
            return None
        return known

    def _ask(self, name: str) -> asyncio.Task[TopicView]:
        task = self._asking.get(name)
        if task is None:
            task = self._asking[name] = asyncio.create_task(self._describe(name), name=f"describe {name}")
            task.add_done_callback(lambda _: self._asking.pop(name, None))
            task.add_done_callback(_looked_at)
        return task

    async def _describe(self, name: str) -> TopicView:
        response: admin_pb2.DescribeTopicsResponse = await self.call(
            ADMIN["DescribeTopics"], admin_pb2.DescribeTopicsRequest(names=[name]), retry=True
        )
        self._brokers.update({broker.id: _address(broker.host, broker.grpc_port) for broker in response.brokers})
        self._brokers[response.broker_id] = self._addresses[self._first]
        row = response.topics[0]
        if row.HasField("error"):
            self._topics.pop(name, None)
            raise from_message(row.error)
        limits = [entry.value for entry in row.config if entry.name == "max.message.bytes"]
        view = TopicView(
            id=uuid.UUID(bytes=row.topic.id),
            name=name,
            leaders=tuple(partition.leader for partition in row.partitions),
            batch_bytes_max=int(limits[0]),
            seen_at_s=asyncio.get_running_loop().time(),
        )
        self._topics[name] = view
        return view

    def leader(self, view: TopicView, partition: int) -> Link:
        """The channel to the lead of a partition. Raises InvalidError(UNKNOWN_TOPIC) where there is no such partition."""
        if not 0 <= partition < len(view.leaders):
            raise InvalidError(
                Reason.UNKNOWN_TOPIC,
                f"partition does not exist. topic=`{view.name}` partition=`{partition}` partitions=`{len(view.leaders)}`",
            )
        address = self._brokers.get(view.leaders[partition])
        if address is None:
            raise RetryError(Reason.NOT_LEADER, f"the partition's lead is not known. topic=`{view.name}` partition=`{partition}`")
        return self._link(address)

    # -- offsets

    async def offsets(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Places as offsets, from the leads, even while they change. Raises HeadgateError for the first place that has none."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        backoff = Backoff()
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        refresh = False
        while True:
            try:
                for topic in sorted({partition.topic for partition in starts if partition not in found}):
                    view = await self.topic(topic, refresh=refresh)
                    missing = [partition for partition in starts if partition.topic == topic and partition not in found]
                    by_link: dict[Link, list[TopicPartition]] = {}
                    for partition in missing:
                        by_link.setdefault(self.leader(view, partition.partition), []).append(partition)
                    for link, partitions in by_link.items():
                        found.update(await self._offsets(link, topic, {partition: starts[partition] for partition in partitions}))
                return found
            except HeadgateError as error:
                pause_s = backoff.pause_s()
                stale = error.reason is Reason.UNKNOWN_TOPIC and not refresh
                if not (isinstance(error, RetryError) or stale) or loop.time() + pause_s >= deadline:
                    raise
                refresh = True
                await asyncio.sleep(pause_s)

    async def _offsets(
        self, link: Link, topic: str, starts: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        request = log_pb2.ListOffsetsRequest(
            topic=topic,
            queries=[
                log_pb2.ListOffsetsRequest.Query(partition=partition.partition, position=position(start))
                for partition, start in starts.items()
            ],
        )
        response: log_pb2.ListOffsetsResponse = await link.call(LOG["ListOffsets"], request, self._timeout_s)
        found = {}
        for partition, row in zip(starts, response.results, strict=True):
            if row.HasField("error"):
                raise from_message(row.error)
            found[partition] = OffsetAndTimestamp(row.offset, row.timestamp_ms)
        return found


def position(start: Start) -> log_pb2.Position:
    """A place as requests name it. Raises InvalidError(INVALID_REQUEST)."""
    match start:
        case Timestamp(ms):
            return log_pb2.Position(timestamp_ms=ms)
        case bool():
            pass
        case int() if -(2**63) <= start < 2**63:
            return log_pb2.Position(offset=start)
        case "earliest":
            return log_pb2.Position(earliest=True)
        case "latest":
            return log_pb2.Position(latest=True)
    raise InvalidError(Reason.INVALID_REQUEST, f"expected an offset, a Timestamp, earliest or latest. start=`{start}`")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _looked_at(task: asyncio.Task[TopicView]) -> None:
    """A question that nobody waits for any more may fail: whoever needs the answer asks again, and gets the error."""
    if not task.cancelled():
        task.exception()
