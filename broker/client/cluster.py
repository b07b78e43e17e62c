"""The client's view of the cluster: one channel per broker, the lead of each partition, calls with retries."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import Message

from headgate.broker.client.address import Security, parse
from headgate.broker.client.backoff import Backoff
from headgate.broker.client.errors import from_call, from_message
from headgate.broker.client.types import DEFAULT_CLUSTER, OffsetAndTimestamp, Start, Timestamp, TopicPartition
from headgate.broker.cluster.patience import LONGEST_S, Patience
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import end_tasks, looked_at, outlast
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, log_pb2
from headgate.broker.wire.grpc.methods import Method, methods

ADMIN = methods(admin_pb2.DESCRIPTOR.services_by_name["Admin"])
LOG = methods(log_pb2.DESCRIPTOR.services_by_name["Log"])

RECEIVE_BYTES_MAX = 128 << 20
"""Largest message from a broker, in bytes: one batch of the largest size that a topic may allow (64 MiB), and its envelope."""
METADATA_AGE_S_MAX = 60.0
"""Age after which a topic's metadata are requested again, to learn of new partitions."""
ATTEMPT_S = 3.0
"""Wait for one of several near brokers before another one is asked: a hanging broker accepts calls and answers none. If none
answers, all may be far away, and the next waits are longer (`Patience`)."""
CHANGE_ATTEMPT_S = 10.0
"""The same for calls whose effect must become durable."""
LOOK_S = 2.0
"""Longest time for one search for more brokers, if they are near."""
CONNECT_MS = round(LONGEST_S * 1000)
"""Longest time for one attempt of gRPC to connect, in ms: also TCP's and TLS's round trips over a long way."""

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # Pauses between attempts to connect. A broker that restarts is back within seconds; gRPC's own pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # In spite of its name, this option limits the time of an attempt, not the pause.
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
    ("grpc.keepalive_time_ms", 20_000),
    # As long as the broker waits for the answer to its own ping: with 5 s of delay each way, an answer takes 10 s.
    ("grpc.keepalive_timeout_ms", 20_000),
    # This module retries by itself: only it knows which calls may be sent twice.
    ("grpc.enable_retries", 0),
    # Without this option, one client's failed attempts delay another client's.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]

_T = TypeVar("_T")

OnOutage: TypeAlias = Callable[[RetryError | None], None]
"""Called with the error when no broker answers any more, and with None when one answers again. It must not raise."""


def _as_it_is(response: Any) -> Any:
    return response


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic's metadata: the leads of its partitions by number, and the largest size of a batch.

    `leaders` are broker ids, -1 for a partition without a lead; `epochs` grow with every change of the lead.
    """

    id: uuid.UUID
    name: str
    leaders: tuple[int, ...]
    epochs: tuple[int, ...]
    batch_bytes_max: int
    seen_at_s: float


class Link:
    """One broker's channel. It connects at the first call.

    Args:
        security: None: without TLS.
    """

    def __init__(self, address: str, security: Security | None = None) -> None:
        self.address = address
        self._security = security
        self._files = None if security is None else security.state()
        self._failed = False
        """Whether the last call did not reach the broker."""
        self._channel = self._open()

    def _open(self) -> grpc.aio.Channel:
        if self._security is None:
            return grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(*self._security.files())
        return grpc.aio.secure_channel(self.address, credentials, options=_CHANNEL_OPTIONS)

    def _metadata(self) -> tuple[tuple[str, str], ...] | None:
        return None if self._security is None else self._security.metadata()

    async def _renew(self) -> None:
        """After a failed call, use certificates that have changed since the channel was made."""
        if self._failed and self._security is not None and (files := self._security.state()) != self._files:
            old, self._channel, self._files = self._channel, self._open(), files
            await old.close()
        self._failed = False

    async def connected(self, timeout_s: float) -> None:
        """Wait until there is a connection. Raises RetryError(NOT_READY)."""
        failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while (state := self._channel.get_state(try_to_connect=True)) not in (failed, grpc.ChannelConnectivity.READY):
                    await self._channel.wait_for_state_change(state)
                if state is not failed:
                    return
        raise RetryError(Reason.NOT_READY, f"broker cannot be reached. address=`{self.address}`")

    async def call(self, method: Method, request: Message, timeout_s: float) -> Any:
        """One attempt. Returns the response message. Raises HeadgateError."""
        await self._renew()
        attempt: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method.path)
        try:
            data = await attempt(request.SerializeToString(), timeout=timeout_s, metadata=self._metadata())
        except grpc.aio.AioRpcError as error:
            self._failed = error.code() is grpc.StatusCode.UNAVAILABLE
            raise from_call(error, self.address) from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise _closed() from error
        return method.response.FromString(data)

    def stream(self, method: Method) -> Stream:
        """Open a stream of raw messages."""
        return Stream(self._channel.stream_stream(method.path)(metadata=self._metadata()), self.address)

    async def close(self) -> None:
        await self._channel.close()


class Stream:
    """A bidirectional stream of raw messages to one broker. One task may read while another writes."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address

    async def read(self) -> bytes | None:
        """The next message; None when the broker ended the stream without an error. Raises HeadgateError."""
        data = await self._guarded(self._call.read())
        return None if data is grpc.aio.EOF else cast("bytes", data)

    async def write(self, message: bytes) -> None:
        """Send a message; waits while the broker accepts none. Raises HeadgateError."""
        await self._guarded(self._call.write(message))

    def cancel(self) -> None:
        """End the stream at once."""
        self._call.cancel()

    async def _guarded(self, operation: Awaitable[Any]) -> Any:
        try:
            return await operation
        except grpc.aio.AioRpcError as error:
            raise from_call(error, self._address) from error
        except asyncio.InvalidStateError as error:
            raise RetryError(Reason.CLOSED, f"stream is over. address=`{self._address}`") from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise RetryError(Reason.CLOSED, f"stream was cancelled. address=`{self._address}`") from error


class Cluster:
    """The cluster behind some addresses, for the event loop of the first call.

    Args:
        addresses: ``host:grpc_port``, several with commas between them.
        timeout_ms: longest wait for one call, with its retries.
        on_outage: called with the last error when no broker answered, and with None when one answers again.
    """

    def __init__(self, addresses: str, timeout_ms: int, on_outage: OnOutage | None = None) -> None:
        parsed = parse(addresses)
        parts, self.security = list(parsed.brokers), parsed.security
        self._given = parts
        self._timeout_s = timeout_ms / 1000
        self._first = parts[0]
        """The address that is asked first: the one that answered last."""
        self._links: dict[str, Link] = {}
        self._brokers: dict[int, str] = {}
        """Addresses of the live brokers, by id, from the last answer."""
        self._topics: dict[str, TopicView] = {}
        self._asking: dict[str, asyncio.Task[TopicView]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_outage = on_outage
        self._is_out = False
        self.patience = Patience(ATTEMPT_S)
        """The limit for the answer of one of several brokers."""
        self._closed = False

    async def close(self) -> None:
        """Close the connections. Later calls raise ClosedError."""
        self._closed = True
        await end_tasks(self._asking.values())
        for link in self._links.values():
            await link.close()
        self._links.clear()

    # -- calls that any broker answers

    async def call(
        self, method: Method, request: Message, *, retry: bool, extra_s: float = 0.0, read: Callable[[Any], Any] = _as_it_is
    ) -> Any:
        """The response of any broker: of the given addresses, and of those in earlier answers. For a call that only the cluster's
        leader takes, it is the leader's.

        Args:
            retry: the call may be made twice. Otherwise it is repeated only if no broker began it.
            extra_s: additional time for the answer.
            read: returns what the response says, or raises the HeadgateError in it.

        Raises HeadgateError; RetryError with the last attempt's message after the time limit.
        """
        attempt_s = ATTEMPT_S + extra_s if retry else None
        return (await self._call(method, request, attempt_s=attempt_s, extra_s=extra_s, read=read))[0]

    async def change(
        self, method: Method, request: Message, *, already: Reason | None, read: Callable[[Any], Any] = _as_it_is
    ) -> Any:
        """`call` for a change: repeated until the change is known to be done.

        Args:
            already: the broker's error when the change was made before. After an attempt whose answer was lost, it means
                success. None: the change may be made twice.

        Returns:
            The response; None when only `already` confirms the change. Raises as `call`.
        """
        return (await self._call(method, request, attempt_s=CHANGE_ATTEMPT_S, already=already, read=read))[0]

    async def once(self, method: Method, request: Message, read: Callable[[Any], Any]) -> Any:
        """One attempt, at the broker that answered last. Raises HeadgateError."""
        self.own_loop()
        return read(await self.any_broker().call(method, request, min(self._timeout_s, CHANGE_ATTEMPT_S)))

    async def _call(
        self,
        method: Method,
        request: Message,
        *,
        attempt_s: float | None,
        extra_s: float = 0.0,
        already: Reason | None = None,
        read: Callable[[Any], Any] = _as_it_is,
    ) -> tuple[Any, str]:
        """What the response says, and the address of its broker.

        Args:
            attempt_s: longest wait for one of several brokers; None: the call may be made only once.
        """
        loop = self.own_loop()
        deadline = loop.time() + self._timeout_s
        backoff = Backoff()
        failed: dict[str, Reason] = {}
        doubt = False
        while True:
            asked_s = loop.time()
            address, left_s = self._first, max(deadline - asked_s, 0.01)
            more_s = self.patience.limit_s - ATTEMPT_S
            link = self.link(address)
            alone = len(self._addresses()) == 1
            try:
                if attempt_s is None and not alone:
                    # A call that was sent cannot be sent to another broker.
                    await link.connected(min(left_s, self.patience.limit_s))
                limit_s = left_s + extra_s if alone or attempt_s is None else min(left_s, attempt_s + more_s)
                response = read(await link.call(method, request, limit_s))
            except HeadgateError as error:
                if doubt and error.reason is already:
                    return None, address
                if not isinstance(error, RetryError):
                    raise
                unseen = error.reason in (Reason.NOT_READY, Reason.NOT_LEADER)
                doubt = doubt or not unseen
                failed[address] = error.reason
                fresh = await self._fresh(failed)
                if not fresh:
                    failed.clear()
                    if error.reason is Reason.TIMED_OUT:
                        self.patience.ran_out()
                    self._note_outage(error)
                self._first = fresh[0] if fresh else self._behind(address)
                # Another broker, which may answer at once, is asked without a pause.
                pause_s = 0.0 if fresh else backoff.pause_s()
                if not (attempt_s is not None or unseen) or loop.time() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)
            else:
                self._first = address
                if attempt_s == ATTEMPT_S:  # other calls take time of their own
                    self.patience.answered(loop.time() - asked_s)
                self._note_outage(None)
                return response, address

    async def _fresh(self, failed: Mapping[str, Reason]) -> list[str]:
        """Addresses without a failed attempt. If there is none and a broker was not the leader, the brokers are asked for more."""
        if Reason.NOT_LEADER in failed.values() and failed.keys() >= set(self._addresses()):
            with suppress(RetryError, TimeoutError):
                async with asyncio.timeout(max(LOOK_S, self.patience.limit_s)):
                    await self.brokers()
        return [address for address in self._addresses() if address not in failed]

    def own_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop. Raises InvalidError when the connections belong to another loop: no answer would ever arrive there."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidError(Reason.INVALID_REQUEST, "the client belongs to another event loop: each loop needs its own client")
        return loop

    def _note_outage(self, error: RetryError | None) -> None:
        if self._is_out != (error is not None):
            self._is_out = error is not None
            if self._on_outage is not None:
                self._on_outage(error)

    def _behind(self, address: str) -> str:
        """The next address in turn."""
        addresses = self._addresses()
        return addresses[(addresses.index(address) + 1) % len(addresses)] if address in addresses else addresses[0]

    def _addresses(self) -> list[str]:
        """All known addresses: the given ones, then those of the last answer."""
        return list(dict.fromkeys((*self._given, *self._brokers.values())))

    def link(self, address: str) -> Link:
        """The channel to an address of a broker, or to one that `address_of` gave."""
        if self._closed:
            raise _closed()
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(address, self.security)
        return link

    # -- leads of partitions

    async def topic(self, name: str, *, refresh: bool = False) -> TopicView:
        """The metadata of a topic. Raises InvalidError(UNKNOWN_TOPIC), RetryError.

        Args:
            refresh: ask even if metadata are known.
        """
        known = self._topics.get(name)
        now = self.own_loop().time()
        if known is not None and not refresh:
            if now - known.seen_at_s > METADATA_AGE_S_MAX:
                # The known metadata still serve; new metadata arrive in the background.
                self._ask(name)
            return known
        try:
            return await outlast(self._ask(name))
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise _closed() from error

    def known_topic(self, name: str) -> TopicView | None:
        """The known metadata if they are recent, without asking."""
        known = self._topics.get(name)
        if known is None or self.own_loop().time() - known.seen_at_s > METADATA_AGE_S_MAX:
            return None
        return known

    def _ask(self, name: str) -> asyncio.Task[TopicView]:
        task = self._asking.get(name)
        if task is None:
            task = self._asking[name] = asyncio.create_task(self._describe(name), name=f"describe {name}")
            task.add_done_callback(lambda _: self._asking.pop(name, None))
            # No caller waits any more: the next caller that needs the answer asks again, and gets the error.
            task.add_done_callback(looked_at)
        return task

    async def brokers(self) -> list[str]:
        """Addresses of the live brokers, as one of them knows them without asking others. Raises RetryError."""
        response: admin_pb2.DescribeTopicsResponse
        request = admin_pb2.DescribeTopicsRequest(leads_only=True)
        response, address = await self._call(ADMIN["DescribeTopics"], request, attempt_s=ATTEMPT_S)
        self._learn(response, address)
        return list(self._brokers.values())

    def _learn(self, response: admin_pb2.DescribeTopicsResponse, address: str) -> None:
        brokers = {broker.id: self.address_of(broker) for broker in response.brokers}
        brokers[response.broker_id] = address
        self._brokers = brokers

    async def _describe(self, name: str) -> TopicView:
        request = admin_pb2.DescribeTopicsRequest(names=[name], leads_only=True)
        response: admin_pb2.DescribeTopicsResponse
        response, address = await self._call(ADMIN["DescribeTopics"], request, attempt_s=ATTEMPT_S)
        self._learn(response, address)
        row = response.topics[0]
        if row.HasField("error"):
            # That broker may not know a topic that was just created; the cluster's leader does.
            others = [self.link(other) for other in self._brokers.values() if other != address]
            answers = await asyncio.gather(*[self._row(link, request) for link in others])
            row = next((found for found in answers if found is not None), row)
        if row.HasField("error"):
            self._topics.pop(name, None)
            raise from_message(row.error)
        limits = [entry.value for entry in row.config if entry.name == "max.message.bytes"]
        view = TopicView(
            id=uuid.UUID(bytes=row.topic.id),
            name=name,
            leaders=tuple(partition.leader for partition in row.partitions),
            epochs=tuple(partition.leader_epoch for partition in row.partitions),
            batch_bytes_max=int(limits[0]),
            seen_at_s=asyncio.get_running_loop().time(),
        )
        view = self._topics[name] = newer(self._topics.get(name), view)
        return view

    async def _row(self, link: Link, request: admin_pb2.DescribeTopicsRequest) -> admin_pb2.TopicDescription | None:
        """One broker's metadata of the topic; None when it knows no such topic, or does not answer."""
        try:
            response: admin_pb2.DescribeTopicsResponse = await link.call(ADMIN["DescribeTopics"], request, self.patience.limit_s)
        except RetryError:
            return None
        return None if response.topics[0].HasField("error") else response.topics[0]

    def leader(self, view: TopicView, partition: int) -> Link:
        """The channel to the lead of a partition.

        Raises:
            InvalidError: UNKNOWN_TOPIC for an unknown partition. RetryError: NOT_LEADER when the partition has no lead now.
        """
        if not 0 <= partition < len(view.leaders):
            raise InvalidError(
                Reason.UNKNOWN_TOPIC,
                f"partition does not exist. topic=`{view.name}` partition=`{partition}` partitions=`{len(view.leaders)}`",
            )
        address = self._brokers.get(view.leaders[partition])
        if address is None:
            raise RetryError(Reason.NOT_LEADER, f"the partition's lead is not known. topic=`{view.name}` partition=`{partition}`")
        return self.link(address)

    def address_of(self, place: admin_pb2.Broker | log_pb2.Lane) -> str:
        """Where this client reaches a broker or a lane."""
        certified = self.security is not None and bool(self.security.certificate)
        return _address(place.host, place.grpc_mtls_port if certified and place.grpc_mtls_port else place.grpc_port)

    def any_broker(self) -> Link:
        """The channel to any broker that answers metadata requests."""
        return self.link(self._first)

    # -- offsets

    async def retry_until_timeout(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat an action until it succeeds, cannot succeed, or the time is over: parts of a response may fail as whole calls
        do."""
        loop = self.own_loop()
        deadline = loop.time() + self._timeout_s
        backoff = Backoff()
        while True:
            try:
                return await attempt()
            except RetryError:
                pause_s = backoff.pause_s()
                if loop.time() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)

    async def offsets(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Places as offsets, from the leads, even while these change. Raises HeadgateError for the first place without an
        offset."""
        loop = self.own_loop()
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
            found[partition] = OffsetAndTimestamp(row.offset, row.timestamp_ms if row.HasField("timestamp_ms") else None)
        return found


class ClusterClient:
    """The common part of all clients: the connection to a cluster, and its end. An async context manager.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them; with TLS see `client/address.py`.
        timeout_ms: longest wait for one call, with its retries.
        on_outage: see Cluster.
    """

    def __init__(self, cluster: str = DEFAULT_CLUSTER, *, timeout_ms: int = 30_000, on_outage: OnOutage | None = None) -> None:
        self._cluster = Cluster(cluster, timeout_ms, on_outage)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._cluster.close()


def position(start: Start) -> log_pb2.Position:
    """A place in the form of requests. Raises InvalidError(INVALID_REQUEST)."""
    match start:
        case Timestamp(int(ms)) if -(2**63) <= ms < 2**63:
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


def newer(known: TopicView | None, told: TopicView) -> TopicView:
    """A broker's metadata of a topic, merged with newer facts that this broker did not know yet: a replaced lead stays replaced."""
    if known is None or known.id != told.id or known.epochs == told.epochs:
        return told
    pairs = [
        (known.leaders[number], known.epochs[number])
        if number < len(known.epochs) and known.epochs[number] > epoch >= 0
        else (leader, epoch)
        for number, (leader, epoch) in enumerate(zip(told.leaders, told.epochs, strict=True))
    ]
    return replace(told, leaders=tuple(leader for leader, _ in pairs), epochs=tuple(epoch for _, epoch in pairs))


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _closed() -> ClosedError:
    return ClosedError(Reason.CLOSED, "the client is closed")


def _is_cancelled() -> bool:
    """True when our own task was cancelled: calls, streams and tasks of a closed client raise CancelledError too."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
