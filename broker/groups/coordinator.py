"""The group coordinator. It drives the pure state machines of `groups` with the time, the log and the requests of
clients.

The groups of one partition of `__consumer_offsets` are one `Shard`. A shard keeps its state as records of that partition. The
coordinator answers a request only after the engine has reported that the records of this request are durable. The broker that
leads a partition holds the partition's groups. When it gains the lead, it replays the partition, and answers COORDINATOR_LOADING
until the replay is complete. When it loses the lead, it answers all waiting clients with NOT_COORDINATOR, and they look for the
new coordinator.

The first group creates the topic. Until then, the leader of the cluster answers for all groups: none exists. A member does not
answer, because it hears of the topic later than the leader. Meanwhile the topic's lead may have acked a position.

The coordinator keeps the log of a partition short. When the log has many more rows than live keys, the coordinator appends the
live rows again and cuts off all rows before them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, cast

from headgate.broker.groups.events import (
    GroupConfig,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    Sync,
    SyncReply,
)
from headgate.broker.groups.group import Group
from headgate.broker.groups.positions import NEVER
from headgate.broker.groups.records import OffsetValue
from headgate.broker.groups.shard import (
    ROWS_PER_APPEND_MAX,
    Answer,
    Budget,
    Commit,
    DeleteReply,
    Effect,
    GroupListing,
    Now,
    Row,
    RowsReply,
    Shard,
    shard_of,
)
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
    from headgate.broker.cluster.manifest import Incarnation, Topic
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog

logger = get_logger(__name__)

TOPIC = "__consumer_offsets"
TOPIC_CONFIG = {"cleanup.policy": "compact", "compression.type": "producer", "max.message.bytes": str(16 << 20)}
"""Settings of the groups' topic. A group's record holds the metadata and assignments of all members, so it may be much larger
than an ordinary record."""

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
EMPTY_GROUP_MS = 600_000
"""Ms after which a group without members and positions is forgotten."""
CLIENT_ID_CHARS_MAX = 255
"""Characters of a client id that its member id contains at most; the rest is cut off."""


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


class _Slot:
    """A shard and its partition, for as long as this broker leads the partition."""

    __slots__ = ("loaded", "loading", "log", "settled", "shard", "snapshot_rows", "snapshotting")

    def __init__(self, shard: Shard, partition: PartitionLog) -> None:
        self.shard = shard
        self.log = partition
        self.loaded = False
        self.loading: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()
        """Set once loading has succeeded, has ended, or waits for an operator."""
        self.snapshotting: asyncio.Task[None] | None = None
        self.snapshot_rows = SNAPSHOT_ROWS_MIN
        """Number of rows in the log from which the coordinator considers a snapshot."""


class Coordinator:
    """All groups of this broker.

    Methods raise RetryError(COORDINATOR_LOADING | NOT_COORDINATOR | ...) if a request cannot be served now. All other results
    are replies, which hold the reason of a refusal.
    """

    def __init__(self, engine: Engine, settings: Settings, clock: Clock) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = PatientClock(clock)
        self._loop = asyncio.get_running_loop()
        self._config = GroupConfig(
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            session_timeout_ms_min=settings.group_min_session_timeout_ms,
            session_timeout_ms_max=settings.group_max_session_timeout_ms,
            members_max=settings.group_max_size,
        )
        self._budget = Budget(settings.groups_max)
        self._nothing = Shard(self._config, Budget(0))
        """Used by the leader until the topic exists: knows no group, and creates none."""
        self._slots: dict[int, _Slot] = {}
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
        self.commits = 0
        """Number of positions that were acked."""
        self.rebalances = 0
        """Number of completed join phases: each ends with one answer to a group's leader."""

    # -- life

    def start(self) -> None:
        """Begin to load groups. The engine must be open."""
        self._loading = self._spawn(self._load(), "groups-load")

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
        # If a task of the coordinator fails, groups no longer change. Then the broker must end; otherwise clients would wait for
        # ever without an error.
        watch(task, "group coordinator", self._engine.fail)
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
        topic = self._engine.manifest.topics.get(TOPIC)
        if topic is not None:
            try:
                await self._protect(topic)
            except RetryError as error:
                # The cluster's leader does not answer. `_clean` tries again.
                logger.warning("groups_topic_not_protected", error=error.message)
            for partition in list(self._engine.all_logs()):
                if partition.topic.name == TOPIC and partition.number not in self._slots:
                    self._gain(partition)
            for slot in list(self._slots.values()):
                if slot.loading is not None:
                    await slot.settled.wait()
        self._loaded = True
        self._clean_at_s = self._loop.time() + self._settings.offsets_retention_check_interval_ms / 1000
        self._wake()
        seconds = round(self._loop.time() - started_s, 3)
        logger.info("groups_loaded", groups=self._budget.groups, partitions=len(self._slots), seconds=seconds)

    def _on_lead(self, partition: PartitionLog) -> None:
        """Called when this broker gains or loses the lead of a partition."""
        if partition.topic.name != TOPIC or self._closed:
            return
        if partition.closed is None:
            self._gain(partition)
        else:
            self._lose(partition)

    def _gain(self, partition: PartitionLog) -> None:
        slot = self._slots[partition.number] = _Slot(Shard(self._config, self._budget), partition)
        if partition.log_start == partition.high_watermark:
            self._begin(slot)
        else:
            slot.loading = self._spawn(self._load_slot(slot), "groups-load-partition")

    async def _load_slot(self, slot: _Slot) -> None:
        """Replay a partition until that succeeds or until this broker loses the lead."""
        try:
            await self._load_until_done(slot)
        finally:
            slot.settled.set()

    async def _load_until_done(self, slot: _Slot) -> None:
        reported = ""
        while slot.log.closed is None:
            slot.shard = Shard(self._config, self._budget)
            try:
                rows = await self._replay(slot)
            except RetryError as error:
                logger.warning("groups_load_waits", partition=slot.log.number, error=error.message)
                slot.shard.unload(Reason.NOT_COORDINATOR)
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            except (CorruptError, InvalidError) as error:
                # The groups of this partition wait for an operator. Without the damaged records they would lose positions.
                if error.message != reported:
                    reported = error.message
                    logger.error("groups_damaged", topic=TOPIC, partition=slot.log.number, error=error.message)
                slot.shard.unload(Reason.NOT_COORDINATOR)
                slot.settled.set()
                await asyncio.sleep(DAMAGED_RETRY_S)
                continue
            slot.loading = None
            self._begin(slot)
            logger.debug("groups_partition_loaded", partition=slot.log.number, records=rows)
            return

    def _begin(self, slot: _Slot) -> None:
        slot.shard.loaded(self._clock.now())
        slot.loaded = True
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

    def _live(self) -> list[_Slot]:
        """The slots with replayed partitions."""
        return [slot for slot in self._slots.values() if slot.loaded]

    async def _replay(self, slot: _Slot) -> int:
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

    def _replay_record(self, slot: _Slot, record: Record) -> None:
        try:
            if record.key is not None:
                slot.shard.replay(record.key, record.value)
        except CorruptError as error:
            # A coordinator did not write this record. Skipping it loses no state of the broker, and a failure would make all groups
            # unavailable.
            logger.warning("group_record_skipped", partition=slot.log.number, offset=record.offset, error=error.message)

    # -- requests of clients

    def token(self) -> asyncio.Future[object]:
        """A token for an event. The coordinator sets the answer as its result."""
        return self._loop.create_future()

    def fresh_member_id(self, prefix: str) -> str:
        """A member id that was never given before. `prefix` is the client's or the instance's id, for people who read the member
        id."""
        return f"{prefix[:CLIENT_ID_CHARS_MAX]}-{uuid.uuid4()}"

    async def join(self, group_id: str, event: Join) -> JoinReply:
        reply = cast(JoinReply, await self._ask(group_id, lambda shard, now: shard.handle(group_id, event, now), event.token, True))
        self.rebalances += bool(reply.members)
        return reply

    async def sync(self, group_id: str, event: Sync) -> SyncReply:
        return cast(SyncReply, await self._ask(group_id, lambda shard, now: shard.handle(group_id, event, now), event.token))

    async def heartbeat(self, group_id: str, event: Heartbeat) -> HeartbeatReply:
        return cast(HeartbeatReply, await self._ask(group_id, lambda shard, now: shard.handle(group_id, event, now), event.token))

    async def leave(self, group_id: str, event: Leave) -> LeaveReply:
        return cast(LeaveReply, await self._ask(group_id, lambda shard, now: shard.handle(group_id, event, now), event.token))

    async def commit(self, group_id: str, event: Commit) -> RowsReply:
        """Store positions. The first commit creates a group that has no members."""
        reply = cast(RowsReply, await self._ask(group_id, lambda shard, now: shard.commit(group_id, event, now), event.token, True))
        self.commits += sum(error is None for error in reply.errors)
        return reply

    async def delete_positions(self, group_id: str, rows: list[tuple[str, int]]) -> RowsReply:
        """Forget positions, by (topic, partition)."""
        token = self.token()
        return cast(
            RowsReply, await self._ask(group_id, lambda shard, now: shard.delete_positions(group_id, rows, token, now), token)
        )

    async def delete_group(self, group_id: str) -> DeleteReply:
        """Forget an empty group and its positions."""
        token = self.token()
        return cast(DeleteReply, await self._ask(group_id, lambda shard, now: shard.delete_group(group_id, token, now), token))

    async def _ask(
        self, group_id: str, act: Callable[[Shard, Now], list[Effect]], token: object, makes_group: bool = False
    ) -> object:
        self._check()
        if makes_group and group_id:
            await self._ensure_topic()
            self._check()
        slot = self._slot(group_id)
        if slot is None:
            for effect in act(self._nothing, self._clock.now()):
                assert isinstance(effect, Answer)
                self._answer(effect)
        else:
            self._execute(slot, act(slot.shard, self._clock.now()))
            self._wake_for(slot)
        return await cast(Awaitable[object], token)

    # -- requests that only read. Each needs `confirm` before, because only that proves that no other broker has newer state

    async def confirm(self) -> None:
        """Make sure that no other broker had taken over this one's groups when the request arrived; see `Engine.confirm`.

        Until the topic of groups exists, this broker's own fence marker proves nothing, because the topic may exist under another
        leader. Then only a promise counts.

        Raises RetryError(NOT_COORDINATOR).
        """
        try:
            await self._engine.confirm()
        except RetryError as error:
            raise RetryError(Reason.NOT_COORDINATOR, error.message) from error
        proof = self._engine.proof
        if TOPIC not in self._engine.manifest.topics and proof.promised and not proof.holds:
            raise RetryError(Reason.NOT_COORDINATOR, "this broker does not reach the leader, and knows no groups yet")

    def position(self, group_id: str, topic: str, partition: int) -> OffsetValue | None:
        """A committed position, unless its topic was deleted or created again since."""
        self._check()
        slot = self._looked_at(group_id)
        value = None if slot is None else slot.shard.position(group_id, topic, partition)
        return value if value is not None and self._topic_exists(topic, value) else None

    def positions(self, group_id: str) -> list[tuple[str, int, OffsetValue]]:
        """All committed positions of a group in topics that still exist: topic, partition, value."""
        self._check()
        slot = self._looked_at(group_id)
        rows = [] if slot is None else slot.shard.positions(group_id)
        return [row for row in rows if self._topic_exists(row[0], row[2])]

    def find(self, group_id: str) -> Group | None:
        """A group, read-only; None if it does not exist."""
        self._check()
        slot = self._looked_at(group_id)
        return None if slot is None else slot.shard.find(group_id, self._clock.now())

    def list_groups(self) -> Iterator[GroupListing]:
        self._check()
        for slot in self._live():
            yield from slot.shard.list_groups()

    def count_states(self) -> dict[tuple[str, ...], float]:
        """The number of groups in each state; {} while groups are loaded."""
        counts: dict[tuple[str, ...], float] = {}
        if self._loaded and not self._closed:
            for listing in self.list_groups():
                key = (listing.state.value,)
                counts[key] = counts.get(key, 0) + 1
        return counts

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """All committed positions: group, topic, partition, offset; none while groups are loaded."""
        if self._loaded and not self._closed:
            for listing in self.list_groups():
                for topic, partition, value in self.positions(listing.group_id):
                    yield listing.group_id, topic, partition, value.offset

    # -- internal steps

    def _check(self) -> None:
        if self._closed:
            raise RetryError(Reason.NOT_COORDINATOR, "this broker is closing")
        if not self._loaded:
            raise RetryError(Reason.COORDINATOR_LOADING, "groups are being loaded")

    def holder(self, group_id: str) -> Incarnation | None:
        """The broker that answers for a group; None while its partition has no lead."""
        manifest = self._engine.manifest
        topic = manifest.topics.get(TOPIC)
        if topic is None:
            return manifest.incarnations.get(manifest.leader)
        lead = self._engine.lead(topic.id, shard_of(group_id, topic.partitions))
        return None if lead is None else lead[0]

    def _slot(self, group_id: str) -> _Slot | None:
        """The slot of a group; None if the topic does not exist yet and this broker is the leader. Raises RetryError if another
        broker holds the group, or while it is loaded."""
        manifest = self._engine.manifest
        topic = manifest.topics.get(TOPIC)
        if topic is None:
            # A promise of the leader proves nothing here: it concerns only the partitions that this broker leads.
            if manifest.leader != self._engine.incarnation_id:
                raise RetryError(Reason.NOT_COORDINATOR, f"only the leader answers before the first group. group=`{group_id}`")
            return None
        slot = self._slots.get(shard_of(group_id, topic.partitions))
        if slot is None:
            raise RetryError(Reason.NOT_COORDINATOR, f"another broker holds the group. group=`{group_id}`")
        if not slot.loaded:
            raise RetryError(Reason.COORDINATOR_LOADING, "groups are being loaded")
        return slot

    def _looked_at(self, group_id: str) -> _Slot | None:
        """The slot of a group, for reading. Returns and raises as `_slot`.

        Also raises RetryError(NOT_COORDINATOR) while the group is handed over, because its next broker may have newer state.
        """
        slot = self._slot(group_id)
        if slot is not None and slot.log.refusal is not None:
            raise RetryError(Reason.NOT_COORDINATOR, f"the group is being handed over to another broker. group=`{group_id}`")
        return slot

    async def _ensure_topic(self) -> None:
        topic = self._engine.manifest.topics.get(TOPIC)
        if topic is not None:
            await self._protect(topic)
            return
        async with self._creating:
            if TOPIC in self._engine.manifest.topics:
                return
            try:
                await self._engine.create_topic(TOPIC, self._settings.offsets_topic_num_partitions, TOPIC_CONFIG)
            except InvalidError as error:
                if error.reason is not Reason.TOPIC_EXISTS:
                    raise
                topic = self._engine.manifest.topics.get(TOPIC)
                if topic is None:
                    # The leader has just created it for another broker, and this broker hears of it in a moment.
                    raise RetryError(Reason.NOT_COORDINATOR, "this broker does not know the lead of the groups yet") from error
                await self._protect(topic)

    async def _protect(self, topic: Topic) -> None:
        """Make sure that retention by age deletes no positions. A user may have created or changed the topic without that
        setting."""
        if topic.config.get("cleanup.policy") != TOPIC_CONFIG["cleanup.policy"]:
            await self._engine.alter_topic_config(topic, lambda now: {**now.config, **TOPIC_CONFIG})
            logger.warning("groups_topic_protected", topic=topic.name, was=topic.config.get("cleanup.policy", "delete"))

    def _topic_exists(self, name: str, value: OffsetValue) -> bool:
        topic = self._engine.manifest.topics.get(name)
        return topic is not None and value.topic_id in (None, topic.id)

    def _execute(self, slot: _Slot, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self._answer(effect)
            else:
                self._append(slot, effect.ticket, effect.rows)

    def _answer(self, answer: Answer) -> None:
        token = cast("asyncio.Future[object]", answer.token)
        # A token is cancelled when the connection of its client is closed.
        if token is not None and not token.done():
            token.set_result(answer.response)

    def _append(self, slot: _Slot, ticket: int, rows: list[Row]) -> None:
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

    def _write(self, slot: _Slot, rows: list[Row]) -> None:
        now_ms = self._clock.now().wall_ms
        batch = encode_batch([Record(0, now_ms, key, value) for key, value in rows])
        self._engine.append(slot.log, memoryview(bytearray(batch)))

    # -- time

    def _wake_for(self, slot: _Slot) -> None:
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
            self._cutting = self._spawn(self._cut(), "groups-cut")
        if at_s >= self._clean_at_s and self._cleaning is None:
            self._clean_at_s = at_s + self._settings.offsets_retention_check_interval_ms / 1000
            self._cleaning = self._spawn(self._clean(), "groups-clean")
        self._wake_at(next_ms, now.timer_ms)

    async def _clean(self) -> None:
        """Forget expired positions, and the positions of deleted topics."""
        minutes = self._settings.offsets_retention_minutes
        retention_ms = minutes * 60_000 if minutes else NEVER
        cutoff_ms = self._engine.cutoff_ms(max(retention_ms, 0))
        try:
            topic = self._engine.manifest.topics.get(TOPIC)
            if topic is not None:
                await self._protect(topic)
            for slot in self._live():
                now = self._clock.now()
                # The wall clock without the time that does not count for retention. While the clock is in doubt it is 0, so nothing
                # expires.
                aged = now._replace(wall_ms=0 if cutoff_ms is None else cutoff_ms + max(retention_ms, 0))
                effects = slot.shard.clean(
                    aged,
                    retention_ms=retention_ms,
                    empty_group_ms=EMPTY_GROUP_MS,
                    topic_exists=self._topic_exists,
                )
                self._execute(slot, effects)
                await asyncio.sleep(0)
        except HeadgateError as error:
            logger.warning("groups_clean_failed", error=error.message)
        finally:
            self._cleaning = None

    # -- the length of the log

    def _consider_snapshot(self, slot: _Slot) -> None:
        slot.snapshot_rows = max(SNAPSHOT_ROWS_MIN, 2 * slot.shard.live_count())
        if slot.shard.rows_appended >= slot.snapshot_rows:
            slot.snapshotting = self._spawn(self._snapshot(slot), "groups-snapshot")

    async def _snapshot(self, slot: _Slot) -> None:
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
            logger.debug("groups_snapshot", partition=slot.log.number, rows=rows_written, first_offset=first_offset)
        except HeadgateError as error:
            # Nothing was cut, so no record is lost. Further rows start the next attempt.
            slot.snapshot_rows = slot.shard.rows_appended + SNAPSHOT_ROWS_MIN
            logger.warning("groups_snapshot_failed", partition=slot.log.number, error=error.message)
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
            logger.warning("groups_cut_failed", error=error.message)
        finally:
            self._cutting = None


def _reason(error: HeadgateError) -> Reason:
    """The error for a client of a group when the log refuses its record."""
    if isinstance(error, FencedError | ClosedError) or error.reason is Reason.NOT_LEADER:
        return Reason.NOT_COORDINATOR
    if error.reason is Reason.MESSAGE_TOO_LARGE:
        return Reason.MESSAGE_TOO_LARGE
    return Reason.COORDINATOR_NOT_AVAILABLE
