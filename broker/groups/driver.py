"""The driver of a coordinator: shards whose state is the fold of the partitions of an internal topic. Groups and transactions
use it.

The ids of one partition are one shard, a pure state machine. The driver passes requests and the time to it, appends the rows
that it returns, and reports when they are durable. The broker that leads a partition is the coordinator of its ids. When it
gains the lead, it replays the partition, and answers COORDINATOR_LOADING until the replay is complete. When it loses the lead,
it answers all waiting clients with NOT_COORDINATOR, and they look for the new coordinator.

The first id creates the topic. Until then, the leader of the cluster answers for all ids: none exists. A member does not answer,
because it hears of the topic later than the leader. Meanwhile the topic's lead may have acked a change.

The driver keeps the log of a partition short. When the log has many more rows than live keys, the driver appends the live rows
again and cuts off all rows before them.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from headgate.broker.groups.effects import ROWS_PER_APPEND_MAX, Answer, Append, Budget, Now, Row, shard_of
from headgate.broker.log.batch import split
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import (
    ClosedError,
    CorruptError,
    FencedError,
    HeadgateError,
    InvalidError,
    Reason,
    RetryError,
)
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import watch

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Incarnation, Topic
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog

logger = get_logger(__name__)

TICK_S = 0.5
"""Longest pause, in seconds, between two checks of deadlines."""
STALL_S = 1.5
"""If no check happened for this many seconds, this process did not run: see `PatientClock`."""
READ_BYTES = 1 << 20
SLICE_ROWS = 500
"""Rows that the coordinator replays or writes again before it yields to other work."""
SNAPSHOT_ROWS_MIN = 2_000
"""Fewest rows of a partition for which a snapshot is worth its cost. 50 partitions of this length replay in about a second."""
LOADS_MAX = 16
"""Partitions that are read at the same time. From S3, each read takes some tens of milliseconds."""
DAMAGED_RETRY_S = 10.0
"""Pause, in seconds, before a partition with unreadable records is loaded again. An operator may restore the records."""
LOAD_RETRY_S = 0.5
"""Pause, in seconds, before groups are loaded again after the store did not answer."""
CUT_INTERVAL_S = 10.0
"""Pause, in seconds, between two manifest edits that cut off rows that snapshots have replaced."""


class PatientClock:
    """The clock of the group deadlines: monotonic ms without the time in which this process did not run.

    After a pause (SIGSTOP, a migrated machine, a blocked loop), sockets hold requests that were sent in time. With an ordinary
    clock, the coordinator would expel every member before it reads the member's heartbeat.
    """

    __slots__ = ("_clock", "_seen_s", "stalled_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_s = clock.monotonic()
        self.stalled_s = 0.0

    def now(self) -> Now:
        """Both times. The caller must ask at least every TICK_S."""
        at_s = self._clock.monotonic()
        gap_s = at_s - self._seen_s
        if gap_s > STALL_S:
            self.stalled_s += gap_s - TICK_S
            logger.warning("coordinator_stalled", seconds=round(gap_s, 3))
        self._seen_s = at_s
        return Now(int((at_s - self.stalled_s) * 1000), self._clock.now_ms())


class AnyShard(Protocol):
    """The fold of one partition. `groups/shard.py` describes the order of the calls."""

    rows_appended: int

    @property
    def next_deadline_ms(self) -> int | None: ...

    def replay(self, key_bytes: bytes, value_bytes: bytes | None) -> None: ...

    def loaded(self, now: Now) -> list[Any]: ...

    def unload(self, reason: Reason) -> list[Any]: ...

    def tick(self, now: Now) -> list[Any]: ...

    def stored(self, number: int, error: Reason | None, now: Now) -> list[Any]: ...

    def snapshot(self) -> Iterator[list[Row]]: ...

    def live_count(self) -> int: ...


_Shard = TypeVar("_Shard", bound=AnyShard)


class Slot(Generic[_Shard]):
    """A shard and its partition, for as long as this broker leads the partition."""

    __slots__ = ("loaded", "loading", "log", "settled", "shard", "snapshot_rows", "snapshotting")

    def __init__(self, shard: _Shard, partition: PartitionLog) -> None:
        self.shard = shard
        self.log = partition
        self.loaded = False
        self.loading: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()
        """Set once loading has succeeded, has ended, or waits for an operator."""
        self.snapshotting: asyncio.Task[None] | None = None
        self.snapshot_rows = SNAPSHOT_ROWS_MIN
        """Number of rows in the log from which the coordinator considers a snapshot."""


class Driver(Generic[_Shard]):
    """The shards of one internal topic on this broker.

    Methods raise RetryError(COORDINATOR_LOADING | NOT_COORDINATOR | ...) if a request cannot be served now. All other results
    are replies, which hold the reason of a refusal.

    Args:
        partitions: of the topic at its creation.
        ids_max: ids that all shards of this broker may hold.
    """

    name: ClassVar[str]
    """Of the ids, in logs."""
    record_name: ClassVar[str]
    topic_name: ClassVar[str]
    topic_config: ClassVar[dict[str, str]]

    def __init__(self, engine: Engine, settings: Settings, clock: Clock, *, partitions: int, ids_max: int) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = PatientClock(clock)
        self._loop = asyncio.get_running_loop()
        self._partitions = partitions
        self._budget = Budget(ids_max)
        self._nothing = self.make_shard(Budget(0))
        """Used by the leader until the topic exists: knows no id, and creates none."""
        self._slots: dict[int, Slot[_Shard]] = {}
        """The slots of the partitions that this broker leads, by number."""
        self._loaded = False
        self._closed = False
        self._creating = asyncio.Lock()
        self._room = asyncio.Semaphore(LOADS_MAX)
        self._loading: asyncio.Task[None] | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._cutting: asyncio.Task[None] | None = None
        self._cuts: dict[PartitionLog, int] = {}
        self._cut_at_s = 0.0
        self._clean_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._wake_ms = 0

    @abstractmethod
    def make_shard(self, budget: Budget) -> _Shard:
        """An empty shard."""

    @abstractmethod
    async def _clean(self) -> None:
        """Forget expired state. Called from time to time."""

    # -- life

    def start(self) -> None:
        """Begin to load the shards. The engine must be open."""
        self._loading = self._spawn(self._load(), f"{self.name}-load")

    async def loaded(self) -> None:
        """Wait until loading has ended, with or without success."""
        assert self._loading is not None
        await asyncio.wait((self._loading,))

    def stop(self) -> None:
        """Refuse all further requests and stop all time-outs. The engine is about to close, so no change could be stored."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks():
            task.cancel()

    async def close(self) -> None:
        """Answer all waiting clients. The engine is closed. It has reported all durable records, and their requests have been
        answered."""
        self.stop()
        tasks = list(self._tasks())
        if tasks:
            await asyncio.wait(tasks)
        for slot in self._slots.values():
            self._execute(slot, slot.shard.unload(Reason.NOT_COORDINATOR))

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        # If a task of a coordinator fails, its state no longer changes. Then the broker must end; otherwise clients would wait for
        # ever without an error.
        watch(task, f"coordinator of {self.name}", self._engine.fail)
        return task

    def _tasks(self) -> Iterator[asyncio.Task[None]]:
        for task in (self._loading, self._cleaning, self._cutting):
            if task is not None:
                yield task
        for slot in self._slots.values():
            for task in (slot.loading, slot.snapshotting):
                if task is not None:
                    yield task

    async def _load(self) -> None:
        started_s = self._loop.time()
        self._engine.leads.watch(self._on_lead)
        topic = self._engine.manifest.topics.get(self.topic_name)
        if topic is not None:
            try:
                await self._protect(topic)
            except RetryError as error:
                # The cluster's leader does not answer. `_clean` tries again.
                logger.warning(f"{self.name}_topic_not_protected", error=error.message)
            for partition in list(self._engine.all_logs()):
                if partition.topic.name == self.topic_name and partition.number not in self._slots:
                    self._gain(partition)
            for slot in list(self._slots.values()):
                if slot.loading is not None:
                    await slot.settled.wait()
        self._loaded = True
        self._clean_at_s = self._loop.time() + self._settings.offsets_retention_check_interval_ms / 1000
        self._wake()
        seconds = round(self._loop.time() - started_s, 3)
        logger.info(f"{self.name}_loaded", **{self.name: self._budget.groups}, partitions=len(self._slots), seconds=seconds)

    def _on_lead(self, partition: PartitionLog) -> None:
        """Called when this broker gains or loses the lead of a partition."""
        if partition.topic.name != self.topic_name or self._closed:
            return
        if partition.closed is None:
            self._gain(partition)
        else:
            self._lose(partition)

    def _gain(self, partition: PartitionLog) -> None:
        slot = self._slots[partition.number] = Slot(self.make_shard(self._budget), partition)
        if partition.log_start == partition.high_watermark:
            self._begin(slot)
        else:
            slot.loading = self._spawn(self._load_slot(slot), f"{self.name}-load-partition")

    async def _load_slot(self, slot: Slot[_Shard]) -> None:
        """Replay a partition until that succeeds or until this broker loses the lead."""
        try:
            await self._load_until_done(slot)
        finally:
            slot.settled.set()

    async def _load_until_done(self, slot: Slot[_Shard]) -> None:
        reported = ""
        while slot.log.closed is None:
            slot.shard = self.make_shard(self._budget)
            try:
                rows = await self._replay(slot)
            except RetryError as error:
                logger.warning(f"{self.name}_load_waits", partition=slot.log.number, error=error.message)
                slot.shard.unload(Reason.NOT_COORDINATOR)
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            except (CorruptError, InvalidError) as error:
                # The ids of this partition wait for an operator. Without the damaged records they would lose state.
                if error.message != reported:
                    reported = error.message
                    logger.error(f"{self.name}_damaged", topic=self.topic_name, partition=slot.log.number, error=error.message)
                slot.shard.unload(Reason.NOT_COORDINATOR)
                slot.settled.set()
                await asyncio.sleep(DAMAGED_RETRY_S)
                continue
            slot.loading = None
            self._begin(slot)
            logger.debug(f"{self.name}_partition_loaded", partition=slot.log.number, records=rows)
            return

    def _begin(self, slot: Slot[_Shard]) -> None:
        effects = slot.shard.loaded(self._clock.now())
        slot.loaded = True
        self._execute(slot, effects)
        self._wake_for(slot)

    def _lose(self, partition: PartitionLog) -> None:
        slot = self._slots.get(partition.number)
        if slot is None or slot.log is not partition:
            return
        del self._slots[partition.number]
        self._cuts.pop(partition, None)
        for task in (slot.loading, slot.snapshotting):
            if task is not None:
                task.cancel()
        self._execute(slot, slot.shard.unload(Reason.NOT_COORDINATOR))

    def _live(self) -> list[Slot[_Shard]]:
        """The slots with replayed partitions."""
        return [slot for slot in self._slots.values() if slot.loaded]

    async def _replay(self, slot: Slot[_Shard]) -> int:
        """Rebuild a shard from its partition. Returns the number of records read."""
        partition = slot.log
        offset, rows = partition.log_start, 0
        while offset < partition.high_watermark:
            async with self._room:
                views = await self._engine.read(partition, offset, READ_BYTES)
            if not views:
                break
            for view in views:
                # A copy, because the memory of a read may be reused while other work runs.
                for batch in split(memoryview(bytes(view))):
                    for record in iter_records(batch):
                        if record.offset >= offset:
                            self._replay_record(slot, record)
                            offset = record.offset + 1
                            rows += 1
                            if rows % SLICE_ROWS == 0:
                                await asyncio.sleep(0)
        return rows

    def _replay_record(self, slot: Slot[_Shard], record: Record) -> None:
        try:
            if record.key is not None:
                slot.shard.replay(record.key, record.value)
        except CorruptError as error:
            # A coordinator did not write this record. Skipping it loses no state of the broker. A failure would make all ids of
            # the partition unavailable.
            logger.warning(f"{self.record_name}_skipped", partition=slot.log.number, offset=record.offset, error=error.message)

    def token(self) -> asyncio.Future[object]:
        """A token for an event. The coordinator sets the answer as its result."""
        return self._loop.create_future()

    async def _ask(self, key: str, act: Callable[[_Shard, Now], list[Any]], token: object, creates: bool = False) -> object:
        self._check()
        if creates and key:
            await self._ensure_topic()
            self._check()
        slot = self._slot(key)
        if slot is None:
            for effect in act(self._nothing, self._clock.now()):
                assert isinstance(effect, Answer)
                self._answer(effect)
        else:
            self._execute(slot, act(slot.shard, self._clock.now()))
            self._wake_for(slot)
        return await cast(Awaitable[object], token)

    async def confirm(self) -> None:
        """Make sure that no other broker had taken over this one's shards when the request arrived; see `Engine.confirm`.

        Until the topic exists, this broker's own fence marker proves nothing, because the topic may exist under another
        leader. Then only a promise counts.

        Raises RetryError(NOT_COORDINATOR).
        """
        try:
            await self._engine.confirm()
        except RetryError as error:
            raise RetryError(Reason.NOT_COORDINATOR, error.message) from error
        proof = self._engine.proof
        if self.topic_name not in self._engine.manifest.topics and proof.promised and not proof.holds:
            raise RetryError(Reason.NOT_COORDINATOR, "this broker does not reach the leader, and knows none yet")

    def _check(self) -> None:
        if self._closed:
            raise RetryError(Reason.NOT_COORDINATOR, "this broker is closing")
        if not self._loaded:
            raise RetryError(Reason.COORDINATOR_LOADING, f"{self.name} are being loaded")

    def holder(self, key: str) -> Incarnation | None:
        """The broker that is the coordinator of an id; None while its partition has no lead."""
        manifest = self._engine.manifest
        topic = manifest.topics.get(self.topic_name)
        if topic is None:
            return manifest.incarnations.get(manifest.leader)
        lead = self._engine.lead(topic.id, shard_of(key, topic.partitions))
        return None if lead is None else lead[0]

    def _slot(self, key: str) -> Slot[_Shard] | None:
        """The slot of an id; None if the topic does not exist yet and this broker is the leader. Raises RetryError if another
        broker is its coordinator, or while it is loaded."""
        manifest = self._engine.manifest
        topic = manifest.topics.get(self.topic_name)
        if topic is None:
            # A promise of the leader proves nothing here: it concerns only the partitions that this broker leads.
            if manifest.leader != self._engine.incarnation_id:
                raise RetryError(
                    Reason.NOT_COORDINATOR, f"only the leader answers before the topic exists. topic=`{self.topic_name}` id=`{key}`"
                )
            return None
        slot = self._slots.get(shard_of(key, topic.partitions))
        if slot is None:
            raise RetryError(Reason.NOT_COORDINATOR, f"another broker is the coordinator. id=`{key}`")
        if not slot.loaded:
            raise RetryError(Reason.COORDINATOR_LOADING, f"{self.name} are being loaded")
        return slot

    def _looked_at(self, key: str) -> Slot[_Shard] | None:
        """The slot of an id, for reading. Returns and raises as `_slot`.

        Also raises RetryError(NOT_COORDINATOR) while the id is handed over, because its next coordinator may have newer state.
        """
        slot = self._slot(key)
        if slot is not None and slot.log.refusal is not None:
            raise RetryError(Reason.NOT_COORDINATOR, f"another broker becomes the coordinator. id=`{key}`")
        return slot

    async def _ensure_topic(self) -> None:
        topic = self._engine.manifest.topics.get(self.topic_name)
        if topic is not None:
            await self._protect(topic)
            return
        async with self._creating:
            if self.topic_name in self._engine.manifest.topics:
                return
            try:
                await self._engine.create_topic(self.topic_name, self._partitions, self.topic_config)
            except InvalidError as error:
                if error.reason is not Reason.TOPIC_EXISTS:
                    raise
                topic = self._engine.manifest.topics.get(self.topic_name)
                if topic is None:
                    # The leader has just created it for another broker, and this broker hears of it in a moment.
                    raise RetryError(Reason.NOT_COORDINATOR, "this broker does not know the coordinator yet") from error
                await self._protect(topic)

    async def _protect(self, topic: Topic) -> None:
        """Make sure that retention by age deletes no state. A user may have created or changed the topic without that
        setting."""
        if topic.config.get("cleanup.policy") != self.topic_config["cleanup.policy"]:
            await self._engine.alter_topic_config(topic, lambda now: {**now.config, **self.topic_config})
            logger.warning(f"{self.name}_topic_protected", topic=topic.name, was=topic.config.get("cleanup.policy", "delete"))

    def _execute(self, slot: Slot[_Shard], effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self._answer(effect)
            elif isinstance(effect, Append):
                self._append(slot, effect.ticket, effect.rows)
            else:
                self._perform(slot, effect)

    def _perform(self, slot: Slot[_Shard], effect: object) -> None:
        """Execute an effect that only one kind of shard has."""
        raise AssertionError(f"unknown effect: {effect!r}")

    def _answer(self, answer: Answer) -> None:
        token = cast("asyncio.Future[object]", answer.token)
        # A token is cancelled when the connection of its client is closed.
        if token is not None and not token.done():
            token.set_result(answer.response)

    def _append(self, slot: Slot[_Shard], ticket: int, rows: list[Row]) -> None:
        def stored(error: HeadgateError | None) -> None:
            reason = None if error is None else _reason(error)
            self._execute(slot, slot.shard.stored(ticket, reason, self._clock.now()))
            self._wake_for(slot)

        try:
            self._write(slot, rows)
        except HeadgateError as error:
            stored(error)
            return
        self._engine.on_durable(stored)
        if slot.shard.rows_appended >= slot.snapshot_rows and slot.snapshotting is None:
            self._consider_snapshot(slot)

    def _write(self, slot: Slot[_Shard], rows: list[Row]) -> None:
        now_ms = self._clock.now().wall_ms
        batch = encode_batch([Record(0, now_ms, key, value) for key, value in rows])
        self._engine.append(slot.log, memoryview(bytearray(batch)))

    # -- time

    def _wake_for(self, slot: Slot[_Shard]) -> None:
        deadline_ms = slot.shard.next_deadline_ms
        if deadline_ms is not None and deadline_ms < self._wake_ms and not self._closed:
            self._wake_at(deadline_ms, self._clock.now().timer_ms)

    def _wake_at(self, at_ms: int, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_ms = at_ms
        # One ms later, because a timer that fires a fraction of a millisecond early would find no deadline reached.
        self._timer = self._loop.call_later(max(at_ms - now_ms + 1, 0) / 1000, self._wake)

    def _wake(self) -> None:
        now = self._clock.now()
        next_ms = now.timer_ms + int(TICK_S * 1000)
        for slot in self._live():
            deadline_ms = slot.shard.next_deadline_ms
            if deadline_ms is not None and deadline_ms <= now.timer_ms:
                self._execute(slot, slot.shard.tick(now))
                deadline_ms = slot.shard.next_deadline_ms
            if deadline_ms is not None:
                next_ms = min(next_ms, deadline_ms)
        at_s = self._loop.time()
        if self._cuts and at_s >= self._cut_at_s and self._cutting is None:
            self._cut_at_s = at_s + CUT_INTERVAL_S
            self._cutting = self._spawn(self._cut(), f"{self.name}-cut")
        if at_s >= self._clean_at_s and self._cleaning is None:
            self._clean_at_s = at_s + self._settings.offsets_retention_check_interval_ms / 1000
            self._cleaning = self._spawn(self._clean(), f"{self.name}-clean")
        self._wake_at(next_ms, now.timer_ms)

    # -- the length of the log

    def _consider_snapshot(self, slot: Slot[_Shard]) -> None:
        slot.snapshot_rows = max(SNAPSHOT_ROWS_MIN, 2 * slot.shard.live_count())
        if slot.shard.rows_appended >= slot.snapshot_rows:
            slot.snapshotting = self._spawn(self._snapshot(slot), f"{self.name}-snapshot")

    async def _snapshot(self, slot: Slot[_Shard]) -> None:
        first_offset = slot.log.next_offset
        rows_written = 0
        try:
            for rows in slot.shard.snapshot():
                for start in range(0, len(rows), ROWS_PER_APPEND_MAX):
                    self._write(slot, rows[start : start + ROWS_PER_APPEND_MAX])
                if (rows_written + len(rows)) // SLICE_ROWS > rows_written // SLICE_ROWS:
                    await asyncio.sleep(0)
                rows_written += len(rows)
            await self._engine.durable()
            self._cuts[slot.log] = first_offset
            logger.debug(f"{self.name}_snapshot", partition=slot.log.number, rows=rows_written, first_offset=first_offset)
        except HeadgateError as error:
            # Nothing was cut, so no record is lost. Further rows start the next attempt.
            slot.snapshot_rows = slot.shard.rows_appended + SNAPSHOT_ROWS_MIN
            logger.warning(f"{self.name}_snapshot_failed", partition=slot.log.number, error=error.message)
        finally:
            slot.snapshotting = None

    async def _cut(self) -> None:
        """Cut off the rows that snapshots have replaced, of all partitions in one edit."""
        cuts, self._cuts = self._cuts, {}
        try:
            await self._engine.set_log_starts(cuts)
        except HeadgateError as error:
            for partition, offset in cuts.items():
                self._cuts.setdefault(partition, offset)
            logger.warning(f"{self.name}_cut_failed", error=error.message)
        finally:
            self._cutting = None


def _reason(error: HeadgateError) -> Reason:
    """The error for a client of a group when the log refuses its record."""
    if isinstance(error, FencedError | ClosedError) or error.reason is Reason.NOT_LEADER:
        return Reason.NOT_COORDINATOR
    if error.reason is Reason.MESSAGE_TOO_LARGE:
        return Reason.MESSAGE_TOO_LARGE
    return Reason.COORDINATOR_NOT_AVAILABLE
