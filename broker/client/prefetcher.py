"""The I/O under a consumer: one Subscribe stream per broker, and the received batches that the caller has not read yet.

A lead sends the reader of much history to a lane. The subscription continues there, and comes back to the lead as it does after an
error.

The client pays with credit: unread batches of a stream are bounded by its share of `prefetch_bytes` (and one response more).
Read bytes are paid back in portions. When a stream breaks, its batches stay valid; reading continues behind them, at the lead of
that moment.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass

from headgate.broker.client.backoff import Backoff
from headgate.broker.client.cluster import LOG, Cluster, Link, Stream
from headgate.broker.client.errors import from_message
from headgate.broker.client.lanes import LaneWays
from headgate.broker.client.types import TopicPartition
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.wire.grpc import payload
from headgate.broker.wire.grpc.headgate.v1 import log_pb2

RESPONSE_BYTES_MAX = 1 << 20
CREDIT_BYTES_MAX = 1 << 30
"""Largest value that a broker allows."""
SILENCE_S = 3.0
SILENCE_S_MAX = 60.0
"""Silence of a broker, in seconds, after which others are asked for the leads of its partitions: it may have nothing to send, or
hang. Pauses between such questions double, up to the second number, until the broker sends again."""
WATCH_S = 1.0


class Assigned:
    """A partition under reading.

    `fetch_offset` is the next offset to request, `position` the next one to return. `generation` grows with every seek, so that
    earlier answers are recognised. `topic_id`: the topic of the offsets; None while unknown.
    """

    __slots__ = (
        "failed",
        "feed",
        "fetch_offset",
        "generation",
        "high_watermark",
        "number",
        "partition",
        "paused",
        "position",
        "topic_id",
    )

    def __init__(self, partition: TopicPartition, number: int, offset: int) -> None:
        self.partition = partition
        self.number = number
        self.fetch_offset = offset
        self.position = offset
        self.generation = 0
        self.high_watermark = -1
        self.paused = False
        self.failed = False
        """The caller received an error; nothing more comes until a seek."""
        self.feed: BrokerFeed | None = None
        self.topic_id: uuid.UUID | None = None

    def move(self, offset: int) -> None:
        """Continue from `offset`; earlier batches are void."""
        self.generation += 1
        self.fetch_offset = self.position = offset
        self.failed = False

    @property
    def wanted(self) -> bool:
        return not self.paused and not self.failed


@dataclass(slots=True)
class Chunk:
    """Received, unread batches of one partition, or the error in their place."""

    assigned: Assigned
    generation: int
    feed: BrokerFeed
    batches: memoryview
    next_offset: int
    error: HeadgateError | None = None

    @property
    def valid(self) -> bool:
        return self.generation == self.assigned.generation and not self.assigned.paused

    def give_back(self) -> None:
        """Return the credit of these bytes."""
        self.feed.pay_back(len(self.batches))


class Prefetcher:
    """All streams of one consumer, and the queue of received batches.

    Args:
        prefetch_bytes: for all streams together.
    """

    def __init__(self, cluster: Cluster, prefetch_bytes: int) -> None:
        self.cluster = cluster
        self.prefetch_bytes = prefetch_bytes
        self.chunks: deque[Chunk] = deque()
        self.arrived = asyncio.Event()
        self.assigned: dict[TopicPartition, Assigned] = {}
        self.ways = LaneWays()
        """Which partitions, by `Assigned.number`, are read at lanes."""
        self._numbers = 0
        self._feeds: dict[Link, BrokerFeed] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await end_tasks(self._tasks)

    async def assign(self, offsets: dict[TopicPartition, int]) -> None:
        """Read these, and only these, from these offsets. After an error or a cancellation, no partition is assigned."""
        for assigned in self.assigned.values():
            assigned.move(assigned.position)
            self.ways.forget(assigned.number)
            if assigned.feed is not None:
                assigned.feed.remove(assigned)
        self.assigned = {}
        for partition, offset in offsets.items():
            self._numbers += 1
            self.assigned[partition] = Assigned(partition, self._numbers, offset)
        try:
            await self.cluster.retry_until_timeout(lambda: self.find_leads(list(self.assigned.values())))
        except (HeadgateError, asyncio.CancelledError):
            await self.assign({})
            raise

    def seek(self, assigned: Assigned, offset: int) -> None:
        assigned.move(offset)
        assigned.topic_id = None
        self._void(assigned)
        if assigned.feed is not None and assigned.wanted:
            assigned.feed.add(assigned)

    def pause(self, assigned: Assigned) -> None:
        if not assigned.paused:
            assigned.paused = True
            assigned.move(assigned.position)
            self._void(assigned)
            if assigned.feed is not None:
                assigned.feed.remove(assigned)

    def resume(self, assigned: Assigned) -> None:
        if assigned.paused:
            assigned.paused = False
            if assigned.feed is not None:
                assigned.feed.ensure(assigned)

    def give_up(self, assigned: Assigned) -> None:
        """The received data cannot be read: stop this partition until a seek."""
        self.seek(assigned, assigned.position)
        if assigned.feed is not None:
            assigned.feed.remove(assigned)
        assigned.failed = True

    def _void(self, assigned: Assigned) -> None:
        """Drop the received data of a partition from before a seek."""
        kept: deque[Chunk] = deque()
        for chunk in self.chunks:
            if chunk.assigned is assigned:
                chunk.give_back()
            else:
                kept.append(chunk)
        self.chunks = kept

    def put(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.arrived.set()

    def fail(self, assigned: Assigned, feed: BrokerFeed, error: HeadgateError) -> None:
        """Queue an error for the caller: a partition cannot be read."""
        if not assigned.failed:
            assigned.failed = True
            self.put(Chunk(assigned, assigned.generation, feed, memoryview(b""), assigned.fetch_offset, error))

    # -- where partitions are

    async def find_leads(self, moved: list[Assigned]) -> None:
        """Find the leads of these partitions and read them there. Raises InvalidError, RetryError; some partitions may be done
        by then."""
        for assigned in moved:
            self.ways.back(assigned.number, asyncio.get_running_loop().time())
        for topic in {assigned.partition.topic for assigned in moved}:
            view = await self.cluster.topic(topic, refresh=True)
            for assigned in moved:
                if assigned.partition.topic == topic and self.assigned.get(assigned.partition) is assigned:
                    feed = self._feed(self.cluster.leader(view, assigned.partition.partition))
                    if assigned.feed is not None and assigned.feed is not feed:
                        assigned.feed.remove(assigned)
                    assigned.feed = feed
                    assigned.topic_id = assigned.topic_id or view.id
                    if assigned.wanted:
                        feed.ensure(assigned)

    def go_to_lane(self, assigned: Assigned, lane: log_pb2.Lane) -> None:
        """Read a partition at a lane from now on."""
        address = self.cluster.address_of(lane)
        self.ways.go(assigned.number, address, asyncio.get_running_loop().time())
        assigned.feed = self._feed(self.cluster.link(address))
        assigned.feed.ensure(assigned)

    def _feed(self, link: Link) -> BrokerFeed:
        feed = self._feeds.get(link)
        if not self._feeds:
            self.spawn(self._watch(), "subscribe-watch")
        if feed is None:
            feed = self._feeds[link] = BrokerFeed(self, link)
            self.spawn(feed.run(), f"subscribe {link.address}")
        return feed

    async def _watch(self) -> None:
        """Check silent brokers: a hanging one may have been replaced."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_S)
            silent = [feed for feed in self._feeds.values() if feed.is_silent(loop.time())]
            try:
                await self.find_leads([assigned for feed in silent for assigned in feed.subscribed])
            except HeadgateError:
                continue  # no broker has newer metadata

    def share_bytes(self) -> int:
        """The credit of one stream. Brokers and lanes that are no longer read take none: lanes come and go."""
        used = sum(feed.is_used for feed in self._feeds.values())
        return min(max(self.prefetch_bytes // max(used, 1), 1), CREDIT_BYTES_MAX)

    def spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # A bug in this module: the reader gets the error instead of waiting for ever.
        failure = HeadgateError(Reason.INTERNAL, f"the consumer failed: {type(error).__name__}: {error}")
        for assigned in self.assigned.values():
            if assigned.feed is not None:
                self.fail(assigned, assigned.feed, failure)


class BrokerFeed:
    """The way to one broker, over any number of successive streams."""

    def __init__(self, prefetcher: Prefetcher, link: Link) -> None:
        self.link = link
        self._prefetcher = prefetcher
        self._backoff = Backoff()
        self._subscribed: dict[int, Assigned] = {}
        """The partitions that this feed reads, by number."""
        self._held_bytes = 0
        """Bytes received over this feed and not paid back."""
        self._granted_bytes = 0
        """Credit of the current stream: granted bytes less received bytes."""
        self._to_add: dict[int, Assigned] = {}
        self._to_remove: set[int] = set()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._patience_s = SILENCE_S

    @property
    def subscribed(self) -> list[Assigned]:
        """What is read here."""
        return list(self._subscribed.values())

    @property
    def is_used(self) -> bool:
        """True while partitions are read here, or batches from here are unread."""
        return bool(self._subscribed) or self._held_bytes > 0

    def is_silent(self, now_s: float) -> bool:
        """True when nothing arrived for long, since the last arrival or the last True."""
        if not self._subscribed or now_s - self._heard_s < self._patience_s:
            return False
        at_lane = any(self._prefetcher.ways.address(number) == self.link.address for number in self._subscribed)
        if at_lane and self._granted_bytes <= 0:
            return False  # a lane always has something to send: it waits for the reader
        self._heard_s = now_s
        self._patience_s = min(self._patience_s * 2, SILENCE_S_MAX)
        return True

    def ensure(self, assigned: Assigned) -> None:
        """Read a partition, unless it is read here already: requesting one generation twice would return its records twice."""
        if assigned.number not in self._subscribed:
            self.add(assigned)

    def add(self, assigned: Assigned) -> None:
        """Read a partition of a new generation from its `fetch_offset`."""
        if not self._subscribed:
            self._heard_s = self._loop.time()  # nothing was asked for until now
        self._subscribed[assigned.number] = assigned
        self._to_add[assigned.number] = assigned
        self._to_remove.discard(assigned.number)
        self._wake.set()

    def remove(self, assigned: Assigned) -> None:
        if self._subscribed.pop(assigned.number, None) is not None:
            self._to_add.pop(assigned.number, None)
            self._to_remove.add(assigned.number)
            self._wake.set()

    def pay_back(self, size: int) -> None:
        self._held_bytes -= size
        if size:
            self._wake.set()

    async def run(self) -> None:
        """Read the assigned partitions until cancelled."""
        while True:
            while not self._subscribed:
                self._wake.clear()
                await self._wake.wait()
            try:
                await self._serve()
            except HeadgateError:
                await asyncio.sleep(self._backoff.pause_s())
            await self._find_leads(list(self._subscribed.values()))

    async def _find_leads(self, moved: list[Assigned]) -> None:
        for assigned in moved:
            self.remove(assigned)
        while moved:
            try:
                await self._prefetcher.find_leads(moved)
                return
            except RetryError:
                await asyncio.sleep(self._backoff.pause_s())
            except InvalidError as error:
                # One topic is gone. Find the leads of the others again.
                gone = [assigned for assigned in moved if await self._is_gone(assigned)]
                for assigned in gone:
                    self._prefetcher.fail(assigned, self, error)
                moved = [assigned for assigned in moved if assigned not in gone]
                await asyncio.sleep(self._backoff.pause_s())

    async def _is_gone(self, assigned: Assigned) -> bool:
        try:
            view = await self._prefetcher.cluster.topic(assigned.partition.topic)
        except InvalidError:
            return True
        except RetryError:
            return False
        return assigned.partition.partition >= len(view.leaders)

    async def _serve(self) -> None:
        """Run one stream until it breaks. Raises HeadgateError."""
        stream = self.link.stream(LOG["Subscribe"])
        self._to_add = dict(self._subscribed)
        self._to_remove.clear()
        self._granted_bytes = 0
        listening = asyncio.create_task(self._listen(stream), name=f"read {self.link.address}")
        listening.add_done_callback(lambda _: self._wake.set())
        try:
            first = True
            while True:
                if listening.done():
                    await listening
                request = self._request(first)
                if request is not None:
                    await stream.write(request.SerializeToString())
                    first = False
                    continue
                self._wake.clear()
                await self._wake.wait()
        finally:
            stream.cancel()
            await end_tasks((listening,))

    def _request(self, first: bool) -> log_pb2.SubscribeRequest | None:
        """The next request to the broker, or None."""
        share = self._prefetcher.share_bytes()
        credit = share - self._held_bytes - self._granted_bytes
        # Credit is returned in portions, but at once when the broker may be waiting for it.
        if credit < share // 4:
            credit = 0
        if not (self._to_add or self._to_remove or credit > 0):
            return None
        request = log_pb2.SubscribeRequest(remove=sorted(self._to_remove), credit_bytes=max(credit, 0))
        if first:
            request.max_bytes = max(min(RESPONSE_BYTES_MAX, share // 4), 1)
        for assigned in self._to_add.values():
            request.add.add(
                subscription=assigned.number,
                generation=assigned.generation & 0xFFFFFFFF,
                topic=assigned.partition.topic,
                partition=assigned.partition.partition,
                position=log_pb2.Position(offset=assigned.fetch_offset),
                topic_id=b"" if assigned.topic_id is None else assigned.topic_id.bytes,
                follows_lanes=self._prefetcher.ways.may_go(assigned.number, self._loop.time()),
            )
        self._to_add.clear()
        self._to_remove.clear()
        self._granted_bytes += max(credit, 0)
        return request

    async def _listen(self, stream: Stream) -> None:
        while (data := await stream.read()) is not None:
            self._on_response(data)
            self._backoff.reset()
        raise RetryError(Reason.CLOSED, f"broker ended the stream. address=`{self.link.address}`")

    def _on_response(self, data: bytes) -> None:
        self._heard_s, self._patience_s = self._loop.time(), SILENCE_S
        rest, batches = payload.split(data)
        response = log_pb2.SubscribeResponse.FromString(rest)
        size = len(batches)
        self._granted_bytes -= size
        assigned = self._subscribed.get(response.subscription)
        if assigned is None or response.generation != assigned.generation & 0xFFFFFFFF:
            self._wake.set()
            return
        if response.HasField("error"):
            error = from_message(response.error)
            if isinstance(error, RetryError):
                self.remove(assigned)
                self._prefetcher.spawn(self._again(assigned), "subscribe-again")
            else:
                self._subscribed.pop(assigned.number)
                self._prefetcher.fail(assigned, self, error)
            return
        if response.HasField("lane"):
            del self._subscribed[assigned.number]  # the broker has ended it
            self._prefetcher.go_to_lane(assigned, response.lane)
            return
        if response.high_watermark >= 0:
            assigned.high_watermark = response.high_watermark
        if size:
            self._prefetcher.ways.served(assigned.number)
            self._held_bytes += size
            assigned.fetch_offset = response.next_offset
            self._prefetcher.put(Chunk(assigned, assigned.generation, self, batches, response.next_offset))
        else:
            self._prefetcher.arrived.set()

    async def _again(self, assigned: Assigned) -> None:
        await asyncio.sleep(self._backoff.pause_s())
        await self._find_leads([assigned])
