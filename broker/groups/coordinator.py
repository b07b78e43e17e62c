"""The group coordinator. It drives the pure state machines of `groups` with the time, the log and the requests of
clients.

`driver.py` has what groups share with other coordinators: the shards of `__consumer_offsets`, their log, and the time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, cast

from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.coordination.driver import Driver
from headgate.broker.coordination.effects import Budget, Effect, Now, shard_of
from headgate.broker.groups.consumer_events import ConsumerConfig, ConsumerHeartbeat, ConsumerHeartbeatReply, Topology
from headgate.broker.groups.consumer_shard import ConsumerShard
from headgate.broker.groups.entry import DeleteReply, GroupListing, RowsReply
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
from headgate.broker.groups.positions import NEVER, continued
from headgate.broker.groups.records import OffsetValue
from headgate.broker.groups.shard import Commit
from headgate.broker.groups.standing import Standing
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine

logger = get_logger(__name__)

TOPIC = "__consumer_offsets"
TOPIC_CONFIG = {"cleanup.policy": "compact", "compression.type": "producer", "max.message.bytes": str(16 << 20)}
"""Settings of the groups' topic. A group's record holds the metadata and assignments of all members, so it may be much larger
than an ordinary record."""

EMPTY_GROUP_MS = 600_000
"""Ms after which a group without members and positions is forgotten."""
CLIENT_ID_CHARS_MAX = 255
"""Characters of a client id that its member id contains at most; the rest is cut off."""


TOPOLOGY_S = 0.5
"""Pause between two looks for new and deleted topics, for consumer groups (KIP-848)."""


class Coordinator(Driver[ConsumerShard]):
    """All groups of this broker.

    Methods raise RetryError(COORDINATOR_LOADING | NOT_COORDINATOR | ...) if a request cannot be served now. All other results
    are replies, which hold the reason of a refusal.
    """

    name = "groups"
    record_name = "group_record"
    topic_name = TOPIC
    topic_config = TOPIC_CONFIG

    def __init__(self, engine: Engine, settings: Settings, clock: Clock) -> None:
        self._config = GroupConfig(
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            session_timeout_ms_min=settings.group_min_session_timeout_ms,
            session_timeout_ms_max=settings.group_max_session_timeout_ms,
            members_max=settings.group_max_size,
        )
        self._consumer_config = ConsumerConfig(
            session_timeout_ms=settings.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
            members_max=settings.group_max_size,
        )
        self._topology = Topology(0, {})
        self._rules = engine.manifest.access, -1
        """The permissions, and their version, as of `_topology`."""
        self._topology_until_s = 0.0
        super().__init__(engine, settings, clock, partitions=settings.offsets_topic_num_partitions, ids_max=settings.groups_max)
        self.commits = 0
        """Number of positions that were acked."""
        self.rebalances = 0
        """Number of completed join phases: each ends with one answer to a group's leader."""

    def make_shard(self, budget: Budget) -> ConsumerShard:
        return ConsumerShard(self._config, self._consumer_config, budget, _resolve, self._topics)

    # -- requests of clients

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

    async def consumer_heartbeat(self, group_id: str, event: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
        """ConsumerGroupHeartbeat. The first one of a group creates it."""
        creates = event.epoch == 0

        def act(shard: ConsumerShard, now: Now) -> list[Effect]:
            return shard.consumer_heartbeat(group_id, event, now)

        return cast(ConsumerHeartbeatReply, await self._ask(group_id, act, event.token, creates))

    async def commit(self, group_id: str, event: Commit) -> RowsReply:
        """Store positions. The first commit creates a group that has no members."""
        reply = cast(RowsReply, await self._ask(group_id, lambda shard, now: shard.commit(group_id, event, now), event.token, True))
        self.commits += sum(error is None for error in reply.errors)
        return reply

    async def commit_pending(
        self,
        group_id: str,
        event: Commit,
        producer_id: int,
        epoch: int,
        consent: Callable[[tuple[str, int]], Awaitable[Reason | None]],
    ) -> RowsReply:
        """Store positions that count once their transaction is committed.

        Args:
            consent: asks the transaction's coordinator whether a partition, that of the group, is part of the transaction.
        """
        self._check()
        if group_id:
            await self.topic.ensure()
            self._check()
        slot = self._slot(group_id)
        if slot is None:
            raise RetryError(Reason.NOT_COORDINATOR, "the topic of groups was just created")
        token = slot.shard.producers.ask(producer_id)
        refusal = await consent((TOPIC, slot.log.number))
        if refusal is not None:
            return RowsReply(error=refusal)
        return cast(
            RowsReply,
            await self._ask(
                group_id,
                lambda shard, now: shard.commit_pending(group_id, event, producer_id, epoch, token, now),
                event.token,
                True,
            ),
        )

    async def partition_of(self, group_id: str) -> tuple[str, int]:
        """The partition that holds a group, also on another broker. Creates the topic if there is none. Raises RetryError."""
        await self.topic.ensure()
        topic = self._engine.manifest.topics.get(TOPIC)
        if topic is None:
            raise RetryError(Reason.COORDINATOR_NOT_AVAILABLE, "the topic of groups was just created")
        return TOPIC, shard_of(group_id, topic.partitions)

    async def end_transaction(self, partition: int, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Give a producer's pending positions in a partition of the groups' topic their outcome. Raises RetryError."""
        self._check()
        slot = self._slots.get(partition)
        if slot is None:
            raise RetryError(Reason.NOT_COORDINATOR, f"another broker holds the groups. partition=`{partition}`")
        if not slot.loaded:
            raise RetryError(Reason.COORDINATOR_LOADING, "groups are being loaded")
        token = self.token()
        self._execute(slot, list(slot.shard.end_transaction(producer_id, epoch, token, commit=commit)))
        reply = cast(RowsReply, await token)
        error = reply.error or next((error for error in reply.errors if error is not None), None)
        if error is not None:
            raise RetryError(error, "positions of a transaction were not stored")

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

    # -- requests that only read. Each needs `confirm` before, because only that proves that no other broker has newer state

    def position(self, group_id: str, topic: str, partition: int) -> OffsetValue | None:
        """A committed position, unless its topic was deleted or created again since."""
        shard = self.look(group_id)
        value = None if shard is None else shard.position(group_id, topic, partition)
        if value is None or not self._topic_exists(topic, value):
            return None
        return self._continued(topic, partition, value)

    def positions(self, group_id: str) -> list[tuple[str, int, OffsetValue]]:
        """All committed positions of a group in topics that still exist: topic, partition, value."""
        shard = self.look(group_id)
        rows = [] if shard is None else shard.positions(group_id)
        return [
            (topic, partition, self._continued(topic, partition, value))
            for topic, partition, value in rows
            if self._topic_exists(topic, value)
        ]

    def find(self, group_id: str) -> Standing | None:
        """A group, read-only; None if it does not exist."""
        shard = self.look(group_id)
        return None if shard is None else shard.find(group_id, self._clock.now())

    def look(self, group_id: str) -> ConsumerShard | None:
        """The shard of a group, read-only; None if there are no groups yet."""
        self._check()
        slot = self._looked_at(group_id)
        return None if slot is None else slot.shard

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

    def _topics(self) -> Topology:
        """The topics and who may see them, as of the last half second."""
        now_s = self._loop.time()
        if now_s >= self._topology_until_s:
            self._topology_until_s = now_s + TOPOLOGY_S
            topics, access = self._engine.manifest.topics, self._engine.manifest.access
            rules = access, access.version
            if topics != self._topology.topics or rules != self._rules:
                self._topology = Topology(self._topology.version + 1, dict(topics))
                self._rules = rules
        return self._topology

    def _topic_exists(self, name: str, value: OffsetValue) -> bool:
        topic = self._engine.manifest.topics.get(name)
        return topic is not None and value.topic_id in (None, topic.id)

    def _continued(self, name: str, partition: int, value: OffsetValue) -> OffsetValue:
        manifest = self._engine.manifest
        topic_id = manifest.topics[name].id
        if value.offset >= manifest.gates.window_end(topic_id, partition):
            return value
        return continued(value, manifest.gates.windows(topic_id, partition))

    async def _clean(self) -> None:
        """Forget expired positions, and the positions of deleted topics."""
        minutes = self._settings.offsets_retention_minutes
        retention_ms = minutes * 60_000 if minutes else NEVER
        cutoff_ms = self._engine.cutoff_ms(max(retention_ms, 0))
        try:
            await self.topic.protect()
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


def _resolve(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The users' topics that a pattern matches."""
    from headgate.broker.groups.patterns import matching  # it needs Arrow, and few groups have patterns

    return matching(pattern, (name for name in names if not is_internal(name)))
