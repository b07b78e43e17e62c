"""The driver of a coordinator: shards whose state is the fold of the partitions of an internal topic. Groups and transactions
use it.

The ids of one partition are one shard, a pure state machine. The driver passes requests and the time to it, appends the rows
that it returns, and reports when they are durable. The broker that leads a partition is the coordinator of its ids. When it
gains the lead, it replays the partition, and answers COORDINATOR_LOADING until the replay is complete. When it loses the lead,
it answers all waiting clients with NOT_COORDINATOR, and they look for the new coordinator.

The first id creates the topic. Until then, the leader of the cluster answers for all ids: none exists. A member does not answer,
because it hears of the topic later than the leader. Meanwhile the topic's lead may have acked a change.

`loading.py` replays a partition, and `shortening.py` keeps its log short.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast

from headgate.broker.coordination.effects import Answer, Append, Budget, Now, Row, shard_of
from headgate.broker.coordination.internal_topic import InternalTopic
from headgate.broker.coordination.loading import Loading
from headgate.broker.coordination.patient_clock import TICK_S, Alarm, PatientClock
from headgate.broker.coordination.shortening import Shortening
from headgate.broker.coordination.slot import ShardT, Slot
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import (
    ClosedError,
    FencedError,
    HeadgateError,
    Reason,
    RetryError,
)
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import watch

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog

logger = get_logger(__name__)


class Driver(Generic[ShardT]):
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
        self.topic = InternalTopic(engine, self.name, self.topic_name, partitions, self.topic_config)
        self._budget = Budget(ids_max)
        self._nothing = self.make_shard(Budget(0))
        """Used by the leader until the topic exists: knows no id, and creates none."""
        self._slots: dict[int, Slot[ShardT]] = {}
        """The slots of the partitions that this broker leads, by number."""
        self._loaded = False
        self._closed = False
        self._loader = Loading(engine, self.name, self.record_name, lambda: self.make_shard(self._budget), self._begin)
        self._shortening = Shortening(
            engine, self.name, lambda log, rows: self.topic.append(log, rows, self._clock.now().wall_ms), self._spawn
        )
        self._loading: asyncio.Task[None] | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._clean_at_s = 0.0
        self._alarm = Alarm(self._loop, self._wake)

    @abstractmethod
    def make_shard(self, budget: Budget) -> ShardT:
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
        self._alarm.stop()
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
        for task in (self._loading, self._cleaning):
            if task is not None:
                yield task
        yield from self._shortening.tasks()
        for slot in self._slots.values():
            for task in (slot.loading, slot.snapshotting):
                if task is not None:
                    yield task

    async def _load(self) -> None:
        started_s = self._loop.time()
        self._engine.leads.watch(self._on_lead)
        if self.topic.present is not None:
            try:
                await self.topic.protect()
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
        logger.info(f"{self.name}_loaded", **{self.name: self._budget.ids}, partitions=len(self._slots), seconds=seconds)

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
            slot.loading = self._spawn(self._loader.load(slot), f"{self.name}-load-partition")

    def _begin(self, slot: Slot[ShardT]) -> None:
        effects = slot.shard.loaded(self._clock.now())
        slot.loaded = True
        self._execute(slot, effects)
        self._wake_for(slot)

    def _lose(self, partition: PartitionLog) -> None:
        slot = self._slots.get(partition.number)
        if slot is None or slot.log is not partition:
            return
        del self._slots[partition.number]
        self._shortening.forget(partition)
        for task in (slot.loading, slot.snapshotting):
            if task is not None:
                task.cancel()
        self._execute(slot, slot.shard.unload(Reason.NOT_COORDINATOR))

    def _live(self) -> list[Slot[ShardT]]:
        """The slots with replayed partitions."""
        return [slot for slot in self._slots.values() if slot.loaded]

    def token(self) -> asyncio.Future[object]:
        """A token for an event. The coordinator sets the answer as its result."""
        return self._loop.create_future()

    async def _ask(self, key: str, act: Callable[[ShardT, Now], list[Any]], token: object, creates: bool = False) -> object:
        self._check()
        if creates and key:
            await self.topic.ensure()
            self._check()
        slot = self._slot(key)
        if slot is None:
            for effect in act(self._nothing, self._clock.now()):
                assert isinstance(effect, Answer)
                _answer(effect)
        else:
            self._execute(slot, act(slot.shard, self._clock.now()))
            self._wake_for(slot)
        return await cast(Awaitable[object], token)

    def _check(self) -> None:
        if self._closed:
            raise RetryError(Reason.NOT_COORDINATOR, "this broker is closing")
        if not self._loaded:
            raise RetryError(Reason.COORDINATOR_LOADING, f"{self.name} are being loaded")

    def _slot(self, key: str) -> Slot[ShardT] | None:
        """The slot of an id; None if the topic does not exist yet and this broker is the leader. Raises RetryError if another
        broker is its coordinator, or while it is loaded."""
        manifest, topic = self._engine.manifest, self.topic.present
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

    def _looked_at(self, key: str) -> Slot[ShardT] | None:
        """The slot of an id, for reading. Returns and raises as `_slot`.

        Also raises RetryError(NOT_COORDINATOR) while the id is handed over, because its next coordinator may have newer state.
        """
        slot = self._slot(key)
        if slot is not None and slot.log.refusal is not None:
            raise RetryError(Reason.NOT_COORDINATOR, f"another broker becomes the coordinator. id=`{key}`")
        return slot

    def _execute(self, slot: Slot[ShardT], effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                _answer(effect)
            elif isinstance(effect, Append):
                self._append(slot, effect.ticket, effect.rows)
            else:
                self._perform(slot, effect)

    def _perform(self, slot: Slot[ShardT], effect: object) -> None:
        """Execute an effect that only one kind of shard has."""
        raise AssertionError(f"unknown effect: {effect!r}")

    def _append(self, slot: Slot[ShardT], ticket: int, rows: list[Row]) -> None:
        def stored(error: HeadgateError | None) -> None:
            reason = None if error is None else _reason(error)
            self._execute(slot, slot.shard.stored(ticket, reason, self._clock.now()))
            self._wake_for(slot)

        try:
            self.topic.append(slot.log, rows, self._clock.now().wall_ms)
        except HeadgateError as error:
            stored(error)
            return
        self._engine.on_durable(stored)
        self._shortening.consider(slot)

    # -- time

    def _wake_for(self, slot: Slot[ShardT]) -> None:
        deadline_ms = slot.shard.next_deadline_ms
        if deadline_ms is not None and deadline_ms < self._alarm.at_ms and not self._closed:
            self._alarm.set(deadline_ms, self._clock.now().timer_ms)

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
        self._shortening.cut_if_due(at_s)
        if at_s >= self._clean_at_s and self._cleaning is None:
            self._clean_at_s = at_s + self._settings.offsets_retention_check_interval_ms / 1000
            self._cleaning = self._spawn(self._clean(), f"{self.name}-clean")
        self._alarm.set(next_ms, now.timer_ms)


def _answer(answer: Answer) -> None:
    token = cast("asyncio.Future[object]", answer.token)
    # A token is cancelled when the connection of its client is closed.
    if token is not None and not token.done():
        token.set_result(answer.response)


def _reason(error: HeadgateError) -> Reason:
    """The error for a client of a group when the log refuses its record."""
    if isinstance(error, FencedError | ClosedError) or error.reason is Reason.NOT_LEADER:
        return Reason.NOT_COORDINATOR
    if error.reason is Reason.MESSAGE_TOO_LARGE:
        return Reason.MESSAGE_TOO_LARGE
    return Reason.COORDINATOR_NOT_AVAILABLE
