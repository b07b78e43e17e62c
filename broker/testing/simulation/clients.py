"""Clients of a simulated cluster: idempotent producers that retry, consumers, and members of groups."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import grpc

from headgate.broker.control.wire import error_of
from headgate.broker.log.batch import CONTROL, parse_header
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.runtime.errors import HeadgateError, InvalidError
from headgate.broker.runtime.tasks import outlast
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.testing.simulation import kafka
from headgate.broker.testing.simulation.clock import START_MS
from headgate.broker.testing.simulation.kafka import REQUEST_TIMEOUT_S, UNKNOWN_TOPIC, Call, Connection, GoneError, RefusedError
from headgate.broker.testing.simulation.ledger import Ledger, Partition, Violation
from headgate.broker.testing.simulation.loop import VirtualLoop
from headgate.broker.testing.simulation.network import Door, Network
from headgate.broker.testing.simulation.process import LANE_ID, Broker, address_of
from headgate.broker.testing.simulation.trace import Trace

IN_FLIGHT_MAX = 5
PAUSE_S = 0.1
READ_PAUSE_S = 0.25
DOUBT_PAUSE_S = 0.5
STOPPED_S = 30.0
"""Longest wait for a stopped broker's answer, seconds. It is long, because the test needs answers to questions that were asked
while other brokers took over."""
WAITS_MS = (0, 0, 200)
"""Times that a fetch may wait for records, ms."""
CIRCLE_S = 2.0
"""A lead that sends a reader to a lane, and has it back at once, does not send it again within this time, in seconds."""
REFUSED_MAX = 200
"""Consecutive refusals, none of which asks for a retry, before the client fails the run."""


_T = TypeVar("_T")


class World:
    """State that all clients share."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: Network,
        brokers: dict[str, Broker],
        ledger: Ledger,
        random: Random,
        trace: Trace,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.loop = loop
        self.network = network
        self.brokers = brokers
        self.ledger = ledger
        self.random = random
        self.trace = trace
        self.fail = fail
        self.values = itertools.count()
        self.writing = True
        """True while producers make new records."""
        self.reading = True
        self.judges_ends = True
        """True if acked records are below the high watermark at once. With `ack=replicated` an acked record may be only on a
        follower yet."""
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  # every error of a client ends the run
                self.fail(error)

        return self.loop.create_task(guarded(), name=name)

    async def ask_any(self, call: Call[_T]) -> _T:
        """Ask random brokers until one answers. Raises RefusedError."""
        while True:
            addresses = sorted(self.brokers)
            if not addresses:
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                return await self.ask_one(self.random.choice(addresses), call)
            except RefusedError as error:
                if not error.retriable:
                    raise
            except GoneError:
                pass
            await asyncio.sleep(self.random.random() * PAUSE_S)

    async def ask_one(self, address: str, call: Call[_T], timeout_s: float = REQUEST_TIMEOUT_S) -> _T:
        """Ask one broker once. Raises RefusedError, GoneError."""
        connection = Connection(self.network, address)
        try:
            return await connection.ask(call, timeout_s)
        finally:
            connection.close()

    async def ask_leader(self, path: str, asked: Any) -> Any:
        """Ask every broker until the leader answers. Raises InvalidError."""
        while True:
            for address in sorted(self.brokers):
                try:
                    return await self.ask_control(address, path, asked)
                except InvalidError:
                    raise
                except HeadgateError:
                    await asyncio.sleep(0.02)

    async def ask_control(self, address: str, path: str, asked: Any) -> Any:
        """Ask one broker something that its gRPC port answers. Raises HeadgateError."""
        try:
            return await self.network.call(path, address, asked, REQUEST_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, address) from error

    async def leader_of(self, name: str, topic_id: bytes, partition: int) -> str | None:
        """The address of a partition's leader as one broker reports it; None if that broker knows no leader."""
        row = (await self.ask_any(kafka.topics())).get(name)
        if row is None or row.id != topic_id or partition >= len(row.leads):
            return None
        return row.leads[partition]


class Writer:
    """An idempotent producer of one partition."""

    def __init__(self, world: World, name: str, topic_id: bytes, partition: int, producer_id: int, pause_s: float) -> None:
        self._world = world
        self._name = name
        self._topic_id = topic_id
        self._partition = partition
        self._producer_id = producer_id
        self._pause_s = pause_s
        self._sequence = 0
        self._untold: deque[tuple[int, list[bytes], bytes]] = deque()
        self._new = asyncio.Event()
        self.over = False
        self.last_error = ""
        self._refused = 0
        self.key: Partition = (topic_id, partition)

    @property
    def idle(self) -> bool:
        """True if the broker has acked every record."""
        return self.over or not self._untold

    def _make(self) -> None:
        world = self._world
        values = [
            b"%d-%d-" % (self._producer_id, next(world.values)) + bytes(world.random.choice((0, 0, 10, 700)))
            for _ in range(world.random.randint(1, 3))
        ]
        data = encode_batch(
            [Record(0, START_MS + int(world.loop.time() * 1000), None, value) for value in values],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=self._sequence,
        )
        world.ledger.send(self.key, self._producer_id, values)
        self._untold.append((self._sequence, values, data))
        self._sequence += len(values)
        self._new.set()

    async def make(self) -> None:
        """Make new batches while there is room in the buffer."""
        world = self._world
        while world.writing and not self.over:
            if len(self._untold) < IN_FLIGHT_MAX:
                self._make()
            await asyncio.sleep(world.random.random() * 2 * self._pause_s)

    async def run(self) -> None:
        world = self._world
        while not self.over:
            if not self._untold:
                self._new.clear()
                await self._new.wait()
            address = await world.leader_of(self._name, self._topic_id, self._partition)
            if address is not None and address in world.brokers:
                connection = Connection(world.network, address)
                try:
                    await self._session(connection)
                except GoneError as error:
                    self.last_error = str(error)
                finally:
                    connection.close()
            elif self._topic_id in world.ledger.deleted:
                self.over = True
            else:
                self.last_error = "no leader is known"
            await asyncio.sleep(world.random.random() * PAUSE_S)

    async def _session(self, connection: Connection) -> None:
        """Send all batches in order, and continue as long as the leader acks."""
        world = self._world
        flying: deque[tuple[tuple[int, list[bytes], bytes], asyncio.Future[Any]]] = deque()
        while not self.over:
            for batch in list(self._untold)[len(flying) :]:
                flying.append(
                    (
                        batch,
                        connection.request(
                            kafka.produce_batch(self._topic_id, self._partition, batch[2], self._broker_acks(len(batch[1])))
                        ),
                    )
                )
            if not flying:
                self._new.clear()
                await self._new.wait()
                continue
            batch, future = flying[0]
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    base_offset = await outlast(future)
            except TimeoutError:
                self.last_error = "no ack in time"
                return
            except Exception as error:  # noqa: BLE001  # judged
                self._judge(error)
                return
            flying.popleft()
            assert self._untold.popleft() is batch
            self._refused = 0
            world.trace(f"writer-{self._producer_id}", "told", self._partition, base_offset, len(batch[1]))
            world.ledger.ack(self.key, base_offset, batch[1])

    def _broker_acks(self, count: int) -> Callable[[Door, int], None]:
        return lambda door, base_offset: door.acked(self._topic_id, self._partition, base_offset, count)

    def _judge(self, error: Exception) -> None:
        self.last_error = repr(error)
        if isinstance(error, GoneError) or (isinstance(error, RefusedError) and error.retriable):
            self._refused = 0
            return
        if not isinstance(error, RefusedError):
            raise error
        if error.code in UNKNOWN_TOPIC:
            return  # the topic was deleted, or this broker does not know it yet
        if error.code is ErrorCode.INVALID_TIMESTAMP:
            raise Violation("writes go on", f"a producer whose clock is right is refused: {error}")
        if error.code not in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
            raise error
        self._refused += 1
        if self._refused > REFUSED_MAX:
            raise Violation("retries never duplicate", f"a producer's retry is refused for ever: {error}")


class Reader:
    """A consumer of one partition, which reads from the beginning and never stops."""

    def __init__(self, world: World, name: str, topic_id: bytes, partition: int) -> None:
        self._world = world
        self._name = name
        self._key: Partition = (topic_id, partition)
        self.position = 0
        self._epoch = -1
        self._was_at_end = False
        """True once this connection had all records: it may pass a window that opens then (`engine/partition/windows.py`)."""
        self._judges_ends = world.judges_ends
        self._lane: Connection | None = None
        """The connection to the lane, while this reader is there. Then it stays connected to the lead, as clients do."""

    @property
    def has_all(self) -> bool:
        """True if it has read what was acked."""
        ledger = self._world.ledger
        return self._key[0] in ledger.deleted or self.position >= ledger.ends.get(self._key, 0)

    async def run(self) -> None:
        world = self._world
        topic_id, partition = self._key
        while world.reading and topic_id not in world.ledger.deleted:
            address = await world.leader_of(self._name, topic_id, partition)
            if address is not None and address in world.brokers:
                connection = Connection(world.network, address)
                try:
                    await self._session(connection)
                except GoneError:
                    pass
                except RefusedError as error:
                    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                        start = world.ledger.starts.get(self._key, 0)
                        if self.position >= start:
                            raise Violation(
                                "one record per offset",
                                f"offsets went back under a reader. position=`{self.position}` {error}",
                            ) from error
                        self.position, self._epoch = start, -1
                    elif not error.retriable and error.code not in UNKNOWN_TOPIC:
                        raise
                finally:
                    connection.close()
                    self._leave_lane()
            await asyncio.sleep(world.random.random() * READ_PAUSE_S)

    async def _session(self, connection: Connection) -> None:
        world = self._world
        topic_id, partition = self._key
        self._was_at_end = False
        if self._epoch >= 0:
            epoch, end = await connection.ask(kafka.epoch_end(self._name, partition, self._epoch))
            # (-1: this broker is behind; its epoch is older than the records that were read. And a topic that was deleted meanwhile
            # may be there again, with the same name.)
            if epoch == self._epoch and end < self.position and topic_id not in world.ledger.deleted:
                raise Violation(
                    "one record per offset",
                    f"an epoch's end lies below what was read. epoch=`{epoch}` end=`{end}` read=`{self.position}`",
                )
        sent_s = -CIRCLE_S
        for _ in range(world.random.randint(1, 8)):
            known = world.ledger.ends.get(self._key, 0)
            max_bytes, wait_ms = world.random.choice((1, 1000, 100_000)), world.random.choice(WAITS_MS)
            asked = kafka.fetch_batches(topic_id, partition, self.position, max_bytes, wait_ms)
            if self._lane is not None:
                await self._read_at_lane(self._lane, asked)
                continue
            fetched = await connection.ask(asked)
            if fetched.preferred == LANE_ID:
                if world.loop.time() - sent_s < CIRCLE_S:
                    raise Violation("readers are not sent in circles", f"{self._name}-{partition} position=`{self.position}`")
                sent_s = world.loop.time()
                self._lane = Connection(world.network, address_of(LANE_ID))
                continue
            if not fetched.batches and self._judges_ends:
                world.ledger.answered(f"the end of {topic_id.hex()[:6]}-{partition}", known, fetched.high_watermark)
            # Twice: a fetch may have waited at the end, or may have come there.
            self._was_at_end = self._was_at_end or self.position >= known
            self._take(fetched.batches)
            self._was_at_end = self._was_at_end or self.position >= known
            await asyncio.sleep(world.random.random() * READ_PAUSE_S)

    async def _read_at_lane(self, lane: Connection, asked: Call[kafka.Fetched]) -> None:
        try:
            fetched = await lane.ask(asked)
        except GoneError:
            self._leave_lane()
            return
        if fetched.preferred >= 0:
            self._leave_lane()
        self._take(fetched.batches)
        await asyncio.sleep(self._world.random.random() * READ_PAUSE_S)

    def _leave_lane(self) -> None:
        if self._lane is not None:
            self._lane.close()
            self._lane = None

    def _take(self, data: bytes) -> None:
        for header, offset, value in records_of(data):
            if offset < self.position:
                continue
            ledger = self._world.ledger
            if offset > self.position and offset > ledger.starts.get(self._key, 0):
                if not ledger.windows and self._key[0] not in ledger.thinned:
                    raise Violation(
                        "acked records are there", f"a reader finds a gap. position=`{self.position}` offset=`{offset}`"
                    )
                if not self._was_at_end:
                    ledger.skipped.append((self._key, max(self.position, ledger.starts.get(self._key, 0)), offset))
            self._epoch = header
            if value is None:
                # A range that has no records and gets none, or a window that opened when this reader had all records.
                if not self._was_at_end:
                    ledger.skipped.append((self._key, offset, offset + 1))
            else:
                ledger.see(self._key, offset, value, "a reader")
            self.position = offset + 1


def records_of(data: bytes) -> list[tuple[int, int, bytes | None]]:
    """(leader epoch, offset, value) of all records in some batches. None stands for an offset range that has no records and gets
    none."""
    found: list[tuple[int, int, bytes | None]] = []
    at = 0
    while at < len(data):
        header = parse_header(data, at)
        for record in iter_records(data[at : at + header.size_bytes]):
            assert record.value is not None
            found.append((header.leader_epoch, record.offset, record.value))
        if header.attributes & CONTROL or (found and found[-1][1] < header.next_offset - 1):
            found.append((header.leader_epoch, header.next_offset - 1, None))
        at += header.size_bytes
    return found


class Doubter:
    """Asks every broker the same question repeatedly, including stopped brokers and brokers that have lost a lead without
    noticing.

    Args:
        question: returns the request.
        about: label of the question in messages.
        known: the end or position that was acked up to now: the answer must not be older.
        over: returns True when the question makes no sense any more.
    """

    def __init__(
        self,
        world: World,
        question: Callable[[], Call[int]],
        about: Callable[[], str],
        known: Callable[[], int],
        over: Callable[[], bool],
    ) -> None:
        self._world = world
        self._question, self._about, self._known, self._over = question, about, known, over

    async def run(self) -> None:
        world = self._world
        while world.reading and not self._over():
            await asyncio.sleep(DOUBT_PAUSE_S)
            for address in sorted(world.brokers):
                world.spawn(self._ask(address), "doubt")

    async def _ask(self, address: str) -> None:
        world = self._world
        about, known = self._about(), self._known()
        try:
            answer = await world.ask_one(address, self._question(), STOPPED_S)
        except (RefusedError, GoneError):
            return
        if not self._over():  # a topic that was deleted meanwhile may be there again, with the same name
            world.ledger.answered(about, known, answer)


class Member:
    """Commits positions of a group, one after the other.

    A commit without an answer, or with an error, may take effect later and put an older position behind a newer one. Kafka leaves
    this to the client, so it is no violation. The committer switches to a new group after such a commit.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._groups = 0

    @property
    def group(self) -> str:
        """The group that gets the commits now."""
        return f"group-{self._groups}"

    async def run(self) -> None:
        world = self._world
        offset = 1
        while world.writing:
            await asyncio.sleep(world.random.random() * 2 * PAUSE_S)
            if not world.brokers:
                continue
            group = self.group
            try:
                address = await world.ask_one(world.random.choice(sorted(world.brokers)), kafka.coordinator(group))
            except (RefusedError, GoneError):
                continue
            try:
                await world.ask_one(address, kafka.commit(group, "t", offset))
            except (RefusedError, GoneError):
                self._groups += 1
            else:
                world.trace("member", "told", group, offset)
                world.ledger.positions[group] = offset
                offset += 1


async def add_writer(world: World, name: str, topic_id: bytes, partition: int, pause_s: float) -> None:
    """A new producer of one partition, with an id from a broker."""
    producer_id = await world.ask_any(kafka.producer_id())
    writer = Writer(world, name, topic_id, partition, producer_id, pause_s)
    world.writers.append(writer)
    world.spawn(writer.make(), f"make-{producer_id}")
    world.spawn(writer.run(), f"writer-{producer_id}")


def add_reader(world: World, name: str, topic_id: bytes, partition: int) -> None:
    reader = Reader(world, name, topic_id, partition)
    world.readers.append(reader)
    world.spawn(reader.run(), "reader")
    if world.judges_ends:
        key = (topic_id, partition)
        ends = Doubter(
            world,
            question=lambda: kafka.end_offset(name, partition),
            about=lambda: f"the end of {topic_id.hex()[:6]}-{partition}",
            known=lambda: world.ledger.ends.get(key, 0),
            over=lambda: topic_id in world.ledger.deleted,
        )
        world.spawn(ends.run(), "doubter")


def add_member(world: World) -> None:
    """A new group that commits positions."""
    member = Member(world)
    world.spawn(member.run(), "member")
    positions = Doubter(
        world,
        question=lambda: kafka.position(member.group, "t"),
        about=lambda: f"the position of {member.group}",
        known=lambda: world.ledger.positions.get(member.group, -1),
        over=lambda: False,
    )
    world.spawn(positions.run(), "doubter")
