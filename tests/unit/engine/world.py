"""Brokers that a test kills, over a medium that outlives them, and the list of acked records.

`Machine` is one disk or bucket. `Machine.start` begins an incarnation on it. `Machine.crash` ends one as SIGKILL does: from that
moment no write reaches the medium any more, not even one under way. `Machine.check` reads everything back and compares it with
the acked records: invariants 1 to 4 of the design.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

import pytest

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.control.leader import Leader
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.upkeep.chunk_fold import choose
from headgate.broker.engine.upkeep.retention import Sweeper, expired_offset, sweep_edits
from headgate.broker.engine.write.checkpoint import Checkpointer
from headgate.broker.engine.write.wal import Wal
from headgate.broker.log.batch import crc_matches, parse_header
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.node import Node
from headgate.broker.runtime.clock import Clock, ManualClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason
from headgate.broker.store.interface import Appender, AppendFile, Buffer, ObjectInfo, Ranges, Store
from headgate.broker.testing.faults import Fault, FaultStore
from tests.support import nodes
from tests.support.waiting import until_async

NOW_MS = 1_700_000_000_000
EVERYTHING = 1 << 30

_incarnations = itertools.count(1)


def settings(**changes: object) -> Settings:
    """Settings for tests: small chunks, listed at once. Some values are smaller than a user may choose."""
    values: dict[str, object] = {
        "wal_chunk_bytes": 64 << 10,
        "wal_checkpoint_interval_ms": 10,
        "wal_checkpoint_chunks": 1,
        "wal_flush_interval_ms": 1,
        "retention_check_interval_ms": 24 * 3600 * 1000,
        "num_partitions": 1,
        **changes,
    }
    return dataclasses.replace(Settings(), **values)  # type: ignore[arg-type]


class MortalStore:
    """One process's access to a medium. After `kill` the process cannot change the medium any more.

    Args:
        url: selects the engine's WAL: `memory:` the one on the loop, anything else the one with a thread.
    """

    def __init__(self, store: Store, url: str = "test:") -> None:
        self._store = store
        self._url = url
        self.dead = False
        self.calls = 0
        self.kill_at_call: int | None = None
        """The process dies when it makes this call, before the call takes effect."""
        self.refused: dict[str, Exception] = {}
        """By operation: the error that it raises, without an effect."""
        self.held: dict[str, threading.Event] = {}
        """By operation: the event that it awaits before it takes effect, as in a stopped process."""
        self._appender = None if store.appender is None else _MortalAppender(self, store.appender)

    def kill(self) -> None:
        self.dead = True
        for event in self.held.values():
            event.set()

    def check(self, operation: str) -> None:
        """Count a call. Raises FatalError if the process is dead, or the scripted error of the operation."""
        self.calls += 1
        if self.kill_at_call is not None and self.calls >= self.kill_at_call:
            self.dead = True
        if self.dead:
            raise FatalError(Reason.CLOSED, "this process is dead")
        if operation in self.refused:
            raise self.refused[operation]

    async def passed(self, operation: str) -> None:
        """Count a call as `check` does, and wait while the operation is held."""
        self.check(operation)
        if operation in self.held:
            await until_async(self.held[operation].is_set)
        self.check(operation)

    def passed_by_thread(self, operation: str) -> None:
        """Count a call as `check` does, and wait while the operation is held."""
        self.check(operation)
        if operation in self.held:
            self.held[operation].wait()
            self.check(operation)

    @property
    def url(self) -> str:
        return self._url

    @property
    def appender(self) -> Appender | None:
        return self._appender

    @property
    def read_unit_bytes(self) -> int:
        return self._store.read_unit_bytes

    async def put_if_absent(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        await self.passed("put_if_absent")
        return await self._store.put_if_absent(key, data)

    async def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        await self.passed("put")
        await self._store.put(key, data)

    async def get(self, key: str) -> bytes:
        await self.passed("get")
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self.passed("get_range")
        return await self._store.get_range(key, start, length)

    async def get_ranges(self, key: str, ranges: Ranges) -> Buffer:
        await self.passed("get_ranges")
        return await self._store.get_ranges(key, ranges)

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        await self.passed("list")
        return await self._store.list(prefix, start_after, limit)

    async def delete(self, key: str) -> None:
        await self.passed("delete")
        await self._store.delete(key)

    async def close(self) -> None:
        """Do nothing: the medium stays open."""


class _MortalAppender:
    def __init__(self, owner: MortalStore, appender: Appender) -> None:
        self._owner = owner
        self._appender = appender

    def create(self, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        self._owner.passed_by_thread("appender.create")
        return _MortalFile(self._owner, self._appender.create(key, size_bytes, filled=filled))

    def exists(self, key: str) -> bool:
        self._owner.passed_by_thread("appender.exists")
        return self._appender.exists(key)


class _MortalFile:
    def __init__(self, owner: MortalStore, file: AppendFile) -> None:
        self._owner = owner
        self._file = file

    @property
    def alignment_bytes(self) -> int:
        return self._file.alignment_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._owner.passed_by_thread("appender.write")
        self._file.write(position, buffers)

    def truncate(self, size_bytes: int) -> None:
        self._owner.passed_by_thread("appender.truncate")
        self._file.truncate(size_bytes)

    def close(self) -> None:
        self._file.close()


@dataclasses.dataclass(slots=True)
class Incarnation:
    """One run of a broker."""

    node: Node
    engine: Engine
    store: MortalStore
    faults: FaultStore
    """The fault injector between `store` and the medium."""
    failures: list[HeadgateError]

    @property
    def leader(self) -> Leader:
        """Its term, while it leads the cluster."""
        leader = self.node.participant.leader
        assert leader is not None
        return leader

    # The parts that work by timers. A test runs them at once, and counts their work.

    @property
    def sweeper(self) -> Sweeper:
        return self.engine.running.sweeper

    @property
    def checkpointer(self) -> Checkpointer:
        return self.engine.running.checkpointer

    @property
    def wal(self) -> Wal:
        return self.engine.running.wal

    def log(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        return self.engine.partition(self.engine.topic(topic), partition)


class Machine:
    """One disk or bucket, and the records that its brokers acked.

    Args:
        open_store: returns another store over the same medium at every call.
        inline: use the WAL that writes on the loop, if the medium has append.
    """

    def __init__(self, open_store: Callable[[], Store], clock: Clock | None = None, *, inline: bool = False) -> None:
        self._open_store = open_store
        self._url = "memory:" if inline else "test:"
        self.clock = clock if clock is not None else ManualClock(NOW_MS)
        self.acked: dict[tuple[str, int], dict[int, bytes]] = {}
        """By topic and partition: offset and value of every acked record."""
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        """Every value that was ever appended, in order; a value without an ack may be in the log or not."""
        self.unchecked: set[str] = set()
        """Topics that may have been deleted."""
        self._running: list[Incarnation] = []

    async def start(
        self,
        settings: Settings = settings(),  # noqa: B008
        *,
        kill_at_call: int | None = None,
        refused: Mapping[str, Exception] | None = None,
        random: Random | None = None,
        rates: Mapping[Fault, float] | None = None,
    ) -> Incarnation:
        """Begin an incarnation. Raises what `Node.start` raises.

        Args:
            kill_at_call, refused: see `MortalStore`. random, rates: see `FaultStore`.
        """
        medium = self._open_store()
        faults = FaultStore(medium, sleep=asyncio.sleep, random=random, rates=rates)
        store = MortalStore(faults, medium.url if medium.url.startswith("/") else self._url)
        store.kill_at_call = kill_at_call
        store.refused.update(refused or {})
        failures: list[HeadgateError] = []
        node = nodes.make(settings, store, self.clock, failures.append)
        broker = Incarnation(node, node.engine, store, faults, failures)
        self._running.append(broker)
        await node.start()
        return broker

    async def begin(
        self,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        settings: Settings = settings(),  # noqa: B008
    ) -> Incarnation:
        """Begin an incarnation, and create the topic `t`."""
        broker = await self.start(settings)
        await broker.engine.create_topic("t", partitions, config or {})
        return broker

    async def restart(self, broker: Incarnation, settings: Settings = settings()) -> Incarnation:  # noqa: B008
        """End an incarnation as SIGKILL does, and begin the next one."""
        await self.crash(broker)
        return await self.start(settings)

    async def crash(self, broker: Incarnation) -> None:
        """End it as SIGKILL does, and stop its threads."""
        broker.store.kill()
        await self._end(broker)

    async def stop(self, broker: Incarnation) -> None:
        """End it as SIGTERM does."""
        await nodes.end(broker.node)
        self._running.remove(broker)
        assert not broker.failures

    async def forget(self, broker: Incarnation) -> None:
        """End the rest of it: the test itself has closed its engine."""
        await self._end(broker)

    async def close(self) -> None:
        """Crash every broker that still runs."""
        for broker in list(self._running):
            await self.crash(broker)

    async def _end(self, broker: Incarnation) -> None:
        await nodes.bury(broker.node)
        self._running.remove(broker)

    def send(
        self,
        broker: Incarnation,
        values: Sequence[bytes],
        topic: str = "t",
        partition: int = 0,
        *,
        timestamp_ms: int = NOW_MS,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> asyncio.Future[int]:
        """Append a batch; the future has its first offset once it is durable. `producer`: id, epoch, sequence."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        producer_id, epoch, sequence = producer
        data = encode_batch(
            [Record(0, timestamp_ms, b"k", value) for value in values],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        log = broker.log(topic, partition)
        before = log.next_offset
        appended = broker.engine.append(log, memoryview(bytearray(data)))
        if log.next_offset != before:
            self.sent.setdefault((topic, partition), []).extend(values)

        def durable(error: HeadgateError | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
                return
            acked = self.acked.setdefault((topic, partition), {})
            for at, value in enumerate(values):
                assert acked.setdefault(appended.base_offset + at, value) == value, "two records were acked at one offset"
            done.set_result(appended.base_offset)

        broker.engine.on_durable(durable)
        return done

    def values(self, offset: int, count: int, topic: str = "t", partition: int = 0) -> list[bytes]:
        """The acked values."""
        return [self.acked[topic, partition][offset + at] for at in range(count)]

    async def check(self, broker: Incarnation, *, exact: bool = False) -> None:
        """Check that every acked record is there once, at its offset, and that the offsets have no gap.

        Args:
            exact: check that no other records are there.
        """
        for (topic, partition), acked in self.acked.items():
            if topic in self.unchecked:
                continue
            records = await read_all(broker, topic, partition)
            offsets = [record.offset for record in records]
            start = broker.log(topic, partition).log_start
            assert offsets == list(range(start, start + len(offsets))), f"offsets have gaps. topic=`{topic}`"
            there = {record.offset: record.value for record in records}
            lost = {offset: value for offset, value in acked.items() if offset >= start and there.get(offset) != value}
            assert not lost, f"acked records are not there. topic=`{topic}` partition=`{partition}` lost=`{lost}`"
            values = [record.value for record in records]
            assert len(set(values)) == len(values), f"records are there twice. topic=`{topic}`"
            sent = {value: at for at, value in enumerate(self.sent.get((topic, partition), []))}
            order = [sent[value] for value in values if value is not None]
            assert order == sorted(order), f"records changed their order. topic=`{topic}`"
            if exact:
                assert values == [acked[offset] for offset in sorted(acked) if offset >= start]
        for log in broker.engine.all_logs():
            log.check_invariants()
        broker.engine.manifest.check_invariants()


async def read_batches(broker: Incarnation, topic: str = "t", partition: int = 0, max_bytes: int = EVERYTHING) -> list[memoryview]:
    """Every batch from the log's start to the high watermark, through `Engine.read`."""
    log = broker.log(topic, partition)
    batches: list[memoryview] = []
    offset, end = log.log_start, log.high_watermark
    while offset < end:
        slices = await broker.engine.read(log, offset, max_bytes)
        assert slices, f"nothing is there. offset=`{offset}` end=`{end}`"
        for one in slices:
            position = 0
            while position < len(one):
                header = parse_header(one, position)
                batch = one[position : position + header.size_bytes]
                assert crc_matches(batch)
                assert header.next_offset > offset
                assert not batches or header.base_offset >= parse_header(batches[-1]).next_offset
                batches.append(batch)
                position += header.size_bytes
                offset = header.next_offset
    assert offset <= broker.log(topic, partition).high_watermark
    return batches


async def read_all(broker: Incarnation, topic: str = "t", partition: int = 0, max_bytes: int = EVERYTHING) -> list[Record]:
    """Every readable record."""
    start = broker.log(topic, partition).log_start
    batches = await read_batches(broker, topic, partition, max_bytes)
    return [record for batch in batches for record in iter_records(batch) if record.offset >= start]


async def read_values(broker: Incarnation, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in await read_all(broker, topic, partition)]


async def swept(broker: Incarnation) -> None:
    """Let the sweeper do all its pending work now."""
    engine = broker.engine

    def nothing_is_left() -> bool:
        engine.running.sweeper.wake()  # again: the round under way does not visit a chunk that was just listed
        return (
            all(expired_offset(log, engine.cutoff_ms) <= log.log_start for log in engine.all_logs())
            and not sweep_edits(engine.manifest, engine.incarnation_id)
            and choose(engine.manifest, engine.incarnation_id) is None
        )

    await until_async(nothing_is_left)


Commit = Callable[[], Awaitable[None]]


def at_next_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[Commit, Sequence[Edit]], Awaitable[None]]) -> None:
    """Call `act` in place of the next commit of any broker. It gets that commit, to make it when it likes, and the edits."""
    commit = RoutedCatalog.commit

    async def once(catalog: RoutedCatalog, *edits: Edit) -> None:
        monkeypatch.setattr(RoutedCatalog, "commit", commit)
        await act(lambda: commit(catalog, *edits), edits)

    monkeypatch.setattr(RoutedCatalog, "commit", once)


def fold_by(monkeypatch: pytest.MonkeyPatch, fanout: int) -> None:
    """Brokers fold as many neighbouring chunks into one from now on."""
    monkeypatch.setattr("headgate.broker.engine.upkeep.chunk_fold.FANOUT", fanout)
