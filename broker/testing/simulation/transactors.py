"""Transactional producers of a simulated cluster, and consumers of committed records.

A producer writes each transaction to several partitions and commits a position with it. Its runs follow one another under one
transactional id. Some end with an open transaction, and some continue although they were replaced, as zombies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from headgate.broker.log.batch import CONTROL, TRANSACTIONAL, parse_header
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.log.transactions import is_commit
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.testing.simulation import kafka
from headgate.broker.testing.simulation import kafka_transactions as calls
from headgate.broker.testing.simulation.clients import PAUSE_S, READ_PAUSE_S, WAITS_MS, World, add_reader
from headgate.broker.testing.simulation.clock import START_MS
from headgate.broker.testing.simulation.kafka import UNKNOWN_TOPIC, Call, GoneError, RefusedError
from headgate.broker.testing.simulation.ledger import Partition, Violation
from headgate.broker.testing.simulation.transactions import HIDDEN, Book, Fate, Transaction

TOPIC = "payments"
VERSIONS = (1, 2, 2)
"""Versions of the protocol, see `kafka_transactions.py`."""
TIMEOUTS_MS = (1_000, 3_000, 20_000)
"""Time-outs of transactions, ms: some end before the faults are over."""
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
TRANSACTIONS_OF_RUN_MAX = 8
BYTES_MAX = 1 << 20

_T = TypeVar("_T")


class _FencedError(Exception):
    """A newer run has the transactional id, or the transaction's time was over."""


class Transactor:
    """All runs of the producer of one transactional id."""

    def __init__(self, world: World, book: Book, name: str, topic_id: bytes, partitions: int, number: int) -> None:
        self.world = world
        self.book = book
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.version = world.random.choice(VERSIONS)
        self.timeout_ms = world.random.choice(TIMEOUTS_MS)
        self._number = number
        self._run = 0
        self._active = 0
        self.last_error = ""

    @property
    def group(self) -> str:
        """The group whose positions the transactions commit."""
        return f"group-of-{self.name}"

    @property
    def idle(self) -> bool:
        """True if no run is active."""
        return not self._active

    def start(self) -> None:
        self._spawn(self._live(), self.name)

    def _spawn(self, work: Awaitable[None], name: str) -> None:
        async def counted() -> None:
            await work
            self._active -= 1

        self._active += 1
        self.world.spawn(counted(), name)

    async def _live(self) -> None:
        world = self.world
        while world.writing:
            self._run += 1
            run = _Run(self, self._run, -1_000 * self._number - self._run)
            await run.begin()
            self.book.replaced(self.name, self._run)
            world.trace(self.name, "begins", run.who)
            how = world.random.choice(("dies", "zombie", "zombie"))
            try:
                for _ in range(world.random.randint(1, TRANSACTIONS_OF_RUN_MAX)):
                    if not world.writing:
                        return
                    await run.transact(world.random.choices(("commit", "abort"), (3, 1))[0])
                if how == "zombie":
                    self._spawn(self._haunt(run), f"{self.name}-zombie")
                else:
                    await run.transact("leave")
            except _FencedError as error:
                world.trace(self.name, "is fenced", error)
            await asyncio.sleep(world.random.random() * 2 * PAUSE_S)

    async def _haunt(self, run: _Run) -> None:
        """Continue as if nothing had happened, until the producer is fenced."""
        try:
            while True:
                await run.transact("commit")
                await asyncio.sleep(self.world.random.random() * PAUSE_S)
                if not self.world.writing and self.book.runs[self.name] == run.number:
                    return  # no other run comes
        except _FencedError as error:
            self.world.trace(self.name, "zombie is fenced", error)

    # -- requests, repeated until they are answered

    async def ask_coordinator(self, key: str, kind: int, call: Call[_T]) -> _T:
        """Ask the coordinator of the transactional id or of the group. Raises _FencedError."""

        async def ask() -> _T:
            world = self.world
            address = await world.ask_any(kafka.coordinator(key, kind))
            return await world.ask_one(address, call)

        return await self._until_answered(ask)

    async def ask_lead(self, partition: int, call: Call[_T]) -> _T:
        """Ask the lead of a partition. Raises _FencedError."""

        async def ask() -> _T:
            address = await self.world.leader_of(TOPIC, self.topic_id, partition)
            if address is None:
                raise GoneError("no leader is known")
            return await self.world.ask_one(address, call)

        return await self._until_answered(ask)

    async def _until_answered(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            try:
                return await ask()
            except GoneError as error:
                self.last_error = str(error)
            except RefusedError as error:
                self.last_error = str(error)
                if error.code in FENCED:
                    raise _FencedError(str(error)) from error
                if not error.retriable and error.code not in UNKNOWN_TOPIC:
                    raise
            await asyncio.sleep(self.world.random.random() * PAUSE_S)


class _Run:
    """One run of a producer. `writer`: its number in the ledger."""

    def __init__(self, owner: Transactor, number: int, writer: int) -> None:
        self._owner = owner
        self._book = owner.book
        self.number = number
        self._writer = writer
        self.who = calls.Identity(owner.name, -1, -1)
        self._sequences: dict[int, int] = {}
        """By partition: the next sequence."""

    async def begin(self) -> None:
        """Get the first epoch, or the next one after an error (KIP-360)."""
        owner = self._owner
        self.who = await owner.ask_coordinator(owner.name, kafka.TRANSACTION, calls.begin_producer(self.who, owner.timeout_ms))
        self._sequences.clear()

    async def transact(self, end: str) -> None:
        """One transaction. `end`: commit, abort or leave. Raises _FencedError."""
        owner, random = self._owner, self._owner.world.random
        transaction = self._book.begin(owner.name, self.number)
        for _ in range(random.randint(1, 4)):
            await self._write(transaction, random.randrange(owner.partitions))
            await asyncio.sleep(random.random() * random.choice((0.0, 0.0, PAUSE_S)))
        if random.random() < 0.6:
            await self._commit_position(transaction)
        if end == "leave":
            return
        late = end == "abort" and random.random() < 0.5
        if late:
            batch = await self._prepare(transaction, random.randrange(owner.partitions))
            owner.world.spawn(self._send_late(*batch), "late-batch")
        newest = self._book.runs[owner.name]
        if end == "commit":
            transaction.fate = Fate.ASKED if transaction.fate is Fate.OPEN else transaction.fate
        ending = calls.end_transaction(self.who, owner.version, commit=end == "commit")
        next_one = await owner.ask_coordinator(owner.name, kafka.TRANSACTION, ending)
        owner.world.trace(owner.name, end, transaction.number, next_one)
        self._book.ended(transaction, newest, commit=end == "commit")
        if next_one != self.who:
            self.who = next_one
            self._sequences.clear()
        elif late:
            await self.begin()  # the next sequence is unknown

    async def _write(self, transaction: Transaction, partition: int) -> None:
        owner = self._owner
        partition, values, call = await self._prepare(transaction, partition)
        base_offset = await owner.ask_lead(partition, call)
        self._sequences[partition] = self._sequences.get(partition, 0) + len(values)
        for offset, value in enumerate(values, base_offset):
            owner.world.ledger.see((owner.topic_id, partition), offset, value, "an ack")

    async def _send_late(self, partition: int, values: list[bytes], call: Call[int]) -> None:
        """Send a batch that the network holds back, once, and ignore its answer. Its transaction aborts meanwhile."""
        world = self._owner.world
        address = await world.leader_of(TOPIC, self._owner.topic_id, partition)
        await asyncio.sleep(world.random.random() * PAUSE_S)
        if address is not None:
            with suppress(RefusedError, GoneError):
                await world.ask_one(address, call)

    async def _prepare(self, transaction: Transaction, partition: int) -> tuple[int, list[bytes], Call[int]]:
        """A batch of new records: (partition, values, request)."""
        owner, world = self._owner, self._owner.world
        values = [b"tx-%d-%d" % (transaction.number, next(world.values)) for _ in range(world.random.randint(1, 3))]
        self._book.write(transaction, values)
        world.ledger.send((owner.topic_id, partition), self._writer, values)
        if owner.version == 1:
            add = calls.add_partition(self.who, TOPIC, partition)
            await owner.ask_coordinator(owner.name, kafka.TRANSACTION, add)
        data = encode_batch(
            [Record(0, START_MS + int(world.loop.time() * 1000), None, value) for value in values],
            producer_id=self.who.producer_id,
            producer_epoch=self.who.epoch,
            base_sequence=self._sequences.get(partition, 0),
            transactional=True,
        )
        return partition, values, calls.produce_in_transaction(self.who, owner.version, TOPIC, partition, data)

    async def _commit_position(self, transaction: Transaction) -> None:
        owner = self._owner
        if owner.version == 1:
            await owner.ask_coordinator(owner.name, kafka.TRANSACTION, calls.add_group(self.who, owner.group))
        call = calls.commit_in_transaction(self.who, owner.version, owner.group, TOPIC, transaction.number)
        await owner.ask_coordinator(owner.group, kafka.GROUP, call)
        transaction.position = transaction.number


class CommittedReader:
    """A consumer of the committed records of one partition, from the beginning. Drops aborted records as the Java client does."""

    def __init__(self, world: World, book: Book, topic_id: bytes, partition: int) -> None:
        self._world = world
        self._book = book
        self._key: Partition = (topic_id, partition)
        self.partition = partition
        self.position = 0
        self.values: list[bytes] = []

    async def run(self) -> None:
        while self._world.reading:
            await self.step()
            await asyncio.sleep(self._world.random.random() * READ_PAUSE_S)

    async def step(self) -> bool:
        """One request. True if the reader has all records, and none is in an open transaction."""
        world = self._world
        topic_id, partition = self._key
        address = await world.leader_of(TOPIC, topic_id, partition)
        if address is None:
            return False
        max_bytes, wait_ms = world.random.choice((1, 1000, BYTES_MAX)), world.random.choice(WAITS_MS)
        try:
            fetched = await world.ask_one(address, calls.fetch_committed(topic_id, partition, self.position, max_bytes, wait_ms))
        except GoneError:
            return False
        except RefusedError as error:
            if not error.retriable and error.code not in UNKNOWN_TOPIC:
                raise
            return False
        if fetched.stable_end > fetched.high_watermark:
            raise Violation(HIDDEN, f"the last stable offset is behind the end. {fetched.stable_end} {fetched.high_watermark}")
        self._take(fetched)
        return self.position == fetched.stable_end == fetched.high_watermark

    def _take(self, fetched: calls.Committed) -> None:
        if fetched.aborted != sorted(fetched.aborted, key=lambda span: span[1]):
            raise Violation(HIDDEN, f"aborted transactions are not in the order of their offsets. {fetched.aborted}")
        coming, gone = deque(fetched.aborted), set[int]()
        data, at = fetched.batches, 0
        while at < len(data):
            header = parse_header(data, at)
            batch = memoryview(data)[at : at + header.size_bytes]
            at += header.size_bytes
            while coming and coming[0][1] < header.next_offset:
                gone.add(coming.popleft()[0])
            if header.attributes & CONTROL:
                if header.attributes & TRANSACTIONAL and not is_commit(batch):
                    gone.discard(header.producer_id)
            elif not (header.attributes & TRANSACTIONAL and header.producer_id in gone):
                self._see(batch)
            self.position = max(self.position, header.next_offset)

    def _see(self, batch: memoryview) -> None:
        for record in iter_records(batch):
            if record.offset >= self.position:
                assert record.value is not None
                self._book.see(record.value)
                self.values.append(record.value)


class Payments:
    """The transactional producers and consumers of a run: `start` them, and `judge` at the end."""

    def __init__(self, world: World, config: dict[str, str]) -> None:
        self._world = world
        self._config = config
        self._topic_id = b""
        self._partitions = world.random.randint(1, 3)
        self.book = Book()
        self.transactors: list[Transactor] = []
        self._readers: list[CommittedReader] = []
        self._last: list[CommittedReader] = []

    async def start(self) -> None:
        world = self._world
        try:
            self._topic_id = await world.ask_any(kafka.create_topic(TOPIC, self._partitions, self._config))
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            while not self._topic_id:  # an earlier attempt created it, and its answer was lost
                rows = await world.ask_any(kafka.topics())
                self._topic_id = rows[TOPIC].id if TOPIC in rows else b""
        if "offline.after.bytes" in self._config:
            world.ledger.thinned.add(self._topic_id)
        for number in range(1, world.random.randint(1, 2) + 1):
            transactor = Transactor(world, self.book, f"payer-{number}", self._topic_id, self._partitions, number)
            self.transactors.append(transactor)
            transactor.start()
        for partition in range(self._partitions):
            self._readers.append(CommittedReader(world, self.book, self._topic_id, partition))
            world.spawn(self._readers[-1].run(), "committed-reader")
            add_reader(world, TOPIC, self._topic_id, partition)

    @property
    def idle(self) -> bool:
        """True if no producer is active."""
        return all(transactor.idle for transactor in self.transactors)

    def stuck(self) -> str:
        """What producers wait for, and where consumers stand."""
        waits = [f"{transactor.name}: {transactor.last_error}" for transactor in self.transactors if not transactor.idle]
        return "; ".join(waits + [f"partition {position.partition}: read up to {position.position}" for position in self._last])

    async def judge(self) -> None:
        """Read everything again, and check it. Open transactions end meanwhile. Raises Violation."""
        world = self._world
        self._last = [CommittedReader(world, self.book, self._topic_id, reader.partition) for reader in self._readers]
        for reader in self._last:
            at_end = await reader.step()
            while not at_end:
                await asyncio.sleep(world.random.random() * PAUSE_S)
                at_end = await reader.step()
        for before, now in zip(self._readers, self._last, strict=True):
            if before.values != now.values[: len(before.values)]:
                raise Violation(HIDDEN, f"another consumer had other records. partition=`{now.partition}`")
        positions: dict[str, int] = {}
        for transactor in self.transactors:
            positions[transactor.name] = await transactor.ask_coordinator(
                transactor.group, kafka.GROUP, calls.stable_position(transactor.group, TOPIC)
            )
        self.book.judge([value for reader in self._last for value in reader.values], positions)
        world.trace("payments", "judged", len(self.book.transactions), positions)
