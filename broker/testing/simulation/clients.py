"""Clients of a simulated cluster: idempotent producers that retry, consumers, and administrators that change topics and
segments."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import grpc

from headgate.broker.cluster.gates import GateWindow, ParquetExtent
from headgate.broker.log.batch import CONTROL, parse_header
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.runtime.errors import ClosedError, FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import outlast
from headgate.broker.testing.simulation.clock import START_MS
from headgate.broker.testing.simulation.ledger import Ledger, Partition, Violation
from headgate.broker.testing.simulation.loop import Process, VirtualLoop
from headgate.broker.testing.simulation.network import CLIENTS, Lane, Network
from headgate.broker.testing.simulation.process import SERVICE, Broker
from headgate.broker.testing.simulation.trace import Trace
from headgate.broker.wire.grpc.headgate.v1 import control_pb2

REQUEST_TIMEOUT_S = 2.0
IN_FLIGHT_MAX = 5
PAUSE_S = 0.1
READ_PAUSE_S = 0.25
DOUBT_PAUSE_S = 0.5
STOPPED_S = 30.0
"""Longest wait for a stopped broker's answer, seconds. It is long, because the test needs answers to questions that were asked
while other brokers took over."""
REFUSED_MAX = 200
"""Consecutive refusals, none of which asks for a retry, before the client fails the run."""


class GoneError(Exception):
    """The broker does not answer, or does not run."""


class Connection:
    """One client's connection to one address. Messages keep their order; answers that arrive after `close` are dropped."""

    def __init__(self, network: Network, brokers: dict[str, Broker], address: str) -> None:
        self._network = network
        self._brokers = brokers
        self.address = address
        door = network.doors.get(address)
        self._place = CLIENTS if door is None else door.place
        self._process: Process | None = None if door is None else door.process
        self._out, self._back = Lane(), Lane()
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self.closed = False
        network.watchers[self._died] = None

    def _died(self, process: Process) -> None:
        if process is self._process:
            self._network.send(self._place, CLIENTS, self.close, self._back)

    def close(self) -> None:
        self.closed = True
        self._network.watchers.pop(self._died, None)
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_exception(GoneError("the connection is closed"))
                future.exception()

    def request(self, method: str, *args: Any) -> asyncio.Future[Any]:
        """Send a request; the future gets the answer, a HeadgateError or a GoneError."""
        network = self._network
        answer: asyncio.Future[Any] = network.loop.create_future()
        if self.closed:
            answer.set_exception(GoneError("the connection is closed"))
            return answer
        self._waiting[answer] = None

        def settle(result: Any) -> None:
            self._waiting.pop(answer, None)
            if answer.done():
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
                answer.exception()
            else:
                answer.set_result(result)

        def reply(result: Any) -> None:
            network.send(self._place, CLIENTS, lambda: settle(result), self._back)

        def arrive() -> None:
            broker = self._brokers.get(self.address)
            if broker is None or not broker.alive or broker.process is not self._process:
                reply(GoneError("connection refused"))
                return
            network.loop.call_soon(getattr(broker, method), reply, *args, context=broker.process.context.copy())

        network.send(CLIENTS, self._place, arrive, self._out)
        return answer

    async def ask(self, method: str, *args: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Send a request and await its answer, with a timeout."""
        future = self.request(method, *args)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise GoneError("no answer in time") from error


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

    async def ask_any(self, method: str, *args: Any) -> Any:
        """Ask random brokers until one answers. Raises InvalidError."""
        while True:
            addresses = sorted(self.brokers)
            if not addresses:
                await asyncio.sleep(PAUSE_S)
                continue
            connection = Connection(self.network, self.brokers, self.random.choice(addresses))
            try:
                return await connection.ask(method, *args)
            except InvalidError:
                raise
            except (HeadgateError, GoneError):
                await asyncio.sleep(self.random.random() * PAUSE_S)
            finally:
                connection.close()

    async def ask_one(self, address: str, method: str, *args: Any, lost: Any = None, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Ask one broker once. Returns None if it refuses, `lost` if it does not answer."""
        connection = Connection(self.network, self.brokers, address)
        try:
            return await connection.ask(method, *args, timeout_s=timeout_s)
        except HeadgateError:
            return None
        except GoneError:
            return lost
        finally:
            connection.close()

    async def leader_of(self, name: str, topic_id: bytes, partition: int) -> str | None:
        """The address of a partition's leader as one broker reports it; None if that broker knows no leader."""
        rows = await self.ask_any("metadata")
        row = rows.get(name)
        if row is None or row[0] != topic_id or partition >= len(row[1]):
            return None
        address: str | None = row[1][partition]
        return address


def _may_retry(error: Exception) -> bool:
    return isinstance(error, GoneError | RetryError | FencedError | ClosedError)


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
                connection = Connection(world.network, world.brokers, address)
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
                        connection.request("produce", self._topic_id, self._partition, batch[2], len(batch[1])),
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

    def _judge(self, error: Exception) -> None:
        self.last_error = repr(error)
        if _may_retry(error):
            self._refused = 0
            return
        if isinstance(error, InvalidError) and error.reason in (Reason.UNKNOWN_TOPIC, Reason.UNKNOWN_TOPIC_ID):
            return  # the topic was deleted, or this broker does not know it yet
        if isinstance(error, InvalidError) and error.reason is Reason.INVALID_TIMESTAMP:
            raise Violation("writes go on", f"a producer whose clock is right is refused: {error.message}")
        if not isinstance(error, InvalidError) or error.reason not in (Reason.OUT_OF_ORDER_SEQUENCE, Reason.UNKNOWN_PRODUCER_ID):
            raise error
        self._refused += 1
        if self._refused > REFUSED_MAX:
            raise Violation("retries never duplicate", f"a producer's retry is refused for ever: {error.message}")


class Reader:
    """A consumer of one partition, which reads from the beginning and never stops."""

    def __init__(self, world: World, name: str, topic_id: bytes, partition: int) -> None:
        self._world = world
        self._name = name
        self._key: Partition = (topic_id, partition)
        self.position = 0
        self._epoch = -1
        self._judges_ends = world.judges_ends

    async def run(self) -> None:
        world = self._world
        topic_id, partition = self._key
        while world.reading and topic_id not in world.ledger.deleted:
            address = await world.leader_of(self._name, topic_id, partition)
            if address is not None and address in world.brokers:
                connection = Connection(world.network, world.brokers, address)
                try:
                    await self._session(connection)
                except (GoneError, RetryError, FencedError, ClosedError):
                    pass
                except InvalidError as error:
                    if error.reason not in (Reason.UNKNOWN_TOPIC, Reason.UNKNOWN_TOPIC_ID, Reason.OFFSET_OUT_OF_RANGE):
                        raise
                    if error.reason is Reason.OFFSET_OUT_OF_RANGE:
                        start = world.ledger.starts.get(self._key, 0)
                        if self.position >= start:
                            raise Violation(
                                "one record per offset",
                                f"offsets went back under a reader. position=`{self.position}` {error.message}",
                            ) from error
                        self.position, self._epoch = start, -1
                finally:
                    connection.close()
            await asyncio.sleep(world.random.random() * READ_PAUSE_S)

    async def _session(self, connection: Connection) -> None:
        world = self._world
        topic_id, partition = self._key
        if self._epoch >= 0:
            epoch, end = await connection.ask("epoch_end", topic_id, partition, self._epoch)
            # (-1: this broker is behind; its epoch is older than the records that were read.)
            if epoch == self._epoch and end < self.position:
                raise Violation(
                    "one record per offset",
                    f"an epoch's end lies below what was read. epoch=`{epoch}` end=`{end}` read=`{self.position}`",
                )
        for _ in range(world.random.randint(1, 8)):
            known = world.ledger.ends.get(self._key, 0)
            _, end, slices = await connection.ask(
                "fetch", topic_id, partition, self.position, world.random.choice((1, 1000, 100_000))
            )
            if not slices and self._judges_ends:
                world.ledger.answered(f"the end of {topic_id.hex()[:6]}-{partition}", known, end)
            for data in slices:
                self._take(data, end)
            await asyncio.sleep(world.random.random() * READ_PAUSE_S)

    def _take(self, data: bytes, end: int) -> None:
        for header, offset, value in records_of(data):
            if offset < self.position:
                continue
            ledger = self._world.ledger
            if offset > self.position and offset > ledger.starts.get(self._key, 0):
                if not ledger.windows:
                    raise Violation(
                        "acked records are there", f"a reader finds a gap. position=`{self.position}` offset=`{offset}`"
                    )
                ledger.skipped.append((self._key, max(self.position, ledger.starts.get(self._key, 0)), offset))
            self._epoch = header
            if value is None:
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
        if header.attributes & CONTROL:
            found.append((header.leader_epoch, header.next_offset - 1, None))
        at += header.size_bytes
    return found


class Doubter:
    """Asks every broker the same question repeatedly, including stopped brokers and brokers that have lost a lead without
    noticing.

    Args:
        question: the broker's method and its arguments.
        about: label of the question in messages.
        known: the end or position that was acked up to now: the answer must not be older.
        over: returns True when the question makes no sense any more.
    """

    def __init__(
        self,
        world: World,
        question: Callable[[], tuple[Any, ...]],
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
        answer = await world.ask_one(address, *self._question(), timeout_s=STOPPED_S)
        if answer is not None:
            world.ledger.answered(about, known, answer)


class Member:
    """Commits positions of a group, one after the other.

    A commit without an answer may take effect later and put an older position behind a newer one. Kafka leaves this to the
    client, so it is no violation. The committer switches to a new group after such a commit.
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
            address = world.random.choice(sorted(world.brokers))
            done = await world.ask_one(address, "commit_position", group, offset, lost=False)
            if done:
                world.trace("member", "told", group, offset)
                world.ledger.positions[group] = offset
                offset += 1
            elif done is False:
                self._groups += 1


class Operator:
    """An administrator that splits, merges, moves, creates, grows and deletes."""

    def __init__(self, world: World, pause_s: float, writer_pauses_s: tuple[float, ...]) -> None:
        self._world = world
        self._pause_s = pause_s
        self.pauses_s = writer_pauses_s
        self._names = itertools.count()
        self._others: dict[str, bytes] = {}

    async def run(self) -> None:
        world, random = self._world, self._world.random
        while world.writing:
            await asyncio.sleep(random.random() * 2 * self._pause_s)
            what = random.choices(("reshard", "create", "grow", "delete", "records", "configure"), (10, 2, 2, 1, 1, 1))[0]
            try:
                if what == "reshard":
                    await self._reshard()
                elif what == "create":
                    name = f"extra-{next(self._names)}"
                    await self.create(name, random.randint(1, 3))
                elif what == "delete" and self._others:
                    name = random.choice(sorted(self._others))
                    world.ledger.deleted.add(self._others.pop(name))
                    await world.ask_any("change", "delete", name, 0)
                elif what == "grow":
                    await world.ask_any("change", "grow", "t", random.randint(2, 6))
                elif what == "configure":
                    await world.ask_any("change", "configure", "t", random.randint(1, 100))
                elif what == "records":
                    await self._delete_records()
            except InvalidError:
                pass  # the request does not fit the cluster's state (any more)

    async def create(self, name: str, partitions: int, writers: int = 1) -> None:
        """Create a topic, and writers and readers for it."""
        world = self._world
        try:
            topic_id = await world.ask_any("change", "create", name, partitions)
        except InvalidError as error:
            if error.reason is not Reason.TOPIC_EXISTS:
                raise
            # An earlier attempt created it, and its answer was lost.
            while True:
                rows = await world.ask_any("metadata")
                if name in rows:
                    topic_id = rows[name][0]
                    break
                await asyncio.sleep(PAUSE_S)
        if name != "t":
            self._others[name] = topic_id
        for partition in range(partitions):
            for _ in range(writers):
                await add_writer(world, name, topic_id, partition, world.random.choice(self.pauses_s))
            add_reader(world, name, topic_id, partition)

    async def _delete_records(self) -> None:
        world = self._world
        acked = sorted(key for key, records in world.ledger.acked.items() if records and key[0] not in world.ledger.deleted)
        if not acked:
            return
        key = world.random.choice(acked)
        before = world.random.randint(0, max(world.ledger.acked[key]))
        world.ledger.starts[key] = max(before, world.ledger.starts.get(key, 0))
        rows = await world.ask_any("metadata")
        for topic_id, leads in rows.values():
            if topic_id == key[0] and key[1] < len(leads) and leads[key[1]] in world.brokers:
                connection = Connection(world.network, world.brokers, leads[key[1]])
                try:
                    await connection.ask("delete_records", key[0], key[1], before)
                except (GoneError, HeadgateError):
                    pass
                finally:
                    connection.close()

    async def _reshard(self) -> None:
        """Send the request to the leader's `Control` service, as `headgate segment` does."""
        world, random = self._world, self._world.random
        for broker in [world.brokers[key] for key in sorted(world.brokers)]:
            if not broker.alive or not broker.serving or broker.participant.leader is None:
                continue
            segments = sorted(broker.engine.manifest.segments)
            if not segments:
                return
            segment_id = random.choice(segments)
            request = control_pb2.ReshardRequest()
            kind = random.choice(("split", "merge", "move", "move"))
            if kind == "split":
                request.split.segment_id = segment_id
            elif kind == "merge":
                request.merge.segment_id = segment_id
                request.merge.next_segment_id = random.choice(segments)
            else:
                request.move.segment_id = segment_id
            with suppress(grpc.aio.AioRpcError):
                await world.network.call(SERVICE + "Reshard", broker.address, request.SerializeToString(), 10.0)
            return


class Planner:
    """A flood job: reserves brokers, renews the reservation several times, and ends without releasing it."""

    def __init__(self, world: World, brokers: int) -> None:
        self._world = world
        self._brokers = brokers

    async def run(self) -> None:
        world, random = self._world, self._world.random
        await asyncio.sleep(random.random())
        ttl_ms = random.choice((1_000, 3_000))
        await self._ask(self._brokers, ttl_ms)
        world.trace("planner", "reserves", self._brokers, ttl_ms)
        for _ in range(random.randint(0, 4)):
            await asyncio.sleep(ttl_ms / 2000)
            if not world.writing:
                return
            try:
                await self._ask(0, ttl_ms)
            except InvalidError:
                return  # the renewal came after the reservation had expired

    async def _ask(self, brokers: int, ttl_ms: int) -> None:
        """Ask every broker until the leader answers. Raises InvalidError."""
        world = self._world
        while world.writing:
            for address in sorted(world.brokers):
                connection = Connection(world.network, world.brokers, address)
                try:
                    await connection.ask("reserve", "flood", brokers, ttl_ms)
                    return
                except InvalidError:
                    raise
                except (HeadgateError, GoneError):
                    await asyncio.sleep(0.01)
                finally:
                    connection.close()


class Historian:
    """A history job: opens gates, uploads files and fills; sometimes it gives up or dies half-way."""

    def __init__(self, world: World, put: Callable[[str, bytes], None]) -> None:
        self._world = world
        self._put = put

    async def run(self) -> None:
        world, random = self._world, self._world.random
        world.ledger.windows = True
        for number in range(random.randint(1, 3)):
            await asyncio.sleep(random.random())
            if not world.writing:
                return
            try:
                await self._gate(f"gate-{number}")
            except InvalidError as error:
                world.trace("historian", "refused", error.reason.value)

    async def _gate(self, gate_id: str) -> None:
        world, random = self._world, self._world.random
        topic_id, leads = (await world.ask_any("metadata"))["t"]
        rows = [random.choice((0, 1, 5)) for _ in leads]
        gate = await self._ask("open", "t", gate_id, "now", rows, random.choice((1_000, 3_000)))
        world.trace("historian", "opened", gate_id, [(one.partition, one.base_offset, one.end_offset) for one in gate.windows])
        end = random.choice(("fill", "fill", "fill", "release", "die"))
        if end == "release":
            await self._ask("release", "t", gate_id)
        if end != "fill":
            return
        files = [
            one
            for window in gate.windows
            if window.end_offset > window.base_offset
            for one in self._upload(topic_id, gate_id, window)
        ]
        await asyncio.sleep(random.random())
        for _ in range(random.randint(1, 2)):
            filled = await self._ask("fill", "t", gate_id, files)
            world.ledger.told_filled.add((topic_id, gate_id))
            world.trace("historian", "filled", gate_id, filled.rows)

    def _upload(self, topic_id: bytes, gate_id: str, window: GateWindow) -> list[ParquetExtent]:
        """The files of one partition, sometimes with fewer rows than the window has room for."""
        import pyarrow as pa

        from headgate.broker.log.parquet import write_extent_file

        world = self._world
        base = window.base_offset
        end = window.end_offset - world.random.choice((0, 0, 1))
        if end <= base:
            return []
        values = [b"history-%s-%d-%d" % (gate_id.encode(), window.partition, offset) for offset in range(base, end)]
        written = write_extent_file(
            pa.table(
                {
                    "timestamp": pa.array([1_500_000_000_000] * len(values), pa.int64()),
                    "key": pa.array([None] * len(values), pa.binary()),
                    "value": pa.array(values, pa.binary()),
                }
            )
        )
        path = f"topics/{topic_id.hex()}/data/partition={window.partition}/{gate_id}-{next(world.values)}.parquet"
        self._put(path, bytes(written.data))
        history = world.ledger.history.setdefault((topic_id, window.partition), {})
        history.update((offset, (gate_id, value)) for offset, value in enumerate(values, base))
        return [
            ParquetExtent(
                partition=window.partition,
                base_offset=base,
                end_offset=end,
                leader_epoch=-1,
                path=path,
                size_bytes=len(written.data),
                footer_crc32c=written.footer_crc32c,
                timestamp_min_ms=written.timestamp_min_ms,
                timestamp_max_ms=written.timestamp_max_ms,
            )
        ]

    async def _ask(self, *args: Any) -> Any:
        """Ask every broker until the leader answers. Raises InvalidError."""
        world = self._world
        while True:
            for address in sorted(world.brokers):
                connection = Connection(world.network, world.brokers, address)
                try:
                    return await connection.ask("gate", *args)
                except InvalidError:
                    raise
                except (HeadgateError, GoneError):
                    await asyncio.sleep(0.02)
                finally:
                    connection.close()


async def add_writer(world: World, name: str, topic_id: bytes, partition: int, pause_s: float) -> None:
    """A new producer of one partition, with an id from a broker."""
    producer_id = await world.ask_any("allocate")
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
            question=lambda: ("end_offset", *key),
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
        question=lambda: ("position", member.group),
        about=lambda: f"the position of {member.group}",
        known=lambda: world.ledger.positions.get(member.group, -1),
        over=lambda: False,
    )
    world.spawn(positions.run(), "doubter")
