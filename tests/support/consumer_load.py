"""Members of consumer groups (KIP-848), many in one event loop: the requests of real clients, without the CPU cost of these."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from headgate.broker.wire.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.support.group_load import Connection, connect

VERSION = 1
RETRIED = frozenset((14, 15, 16))
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""
PAUSE_S = 0.1


@dataclass
class ConsumerMember:
    """A consumer that joins, sends heartbeats as often as the broker asks for them, and owns what it is given at once."""

    port: int
    group: str
    topic: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    owned: frozenset[tuple[uuid.UUID, int]] = frozenset()
    interval_s: float = 0.0
    joined_at_s: float = 0.0
    changed_at_s: float = 0.0
    """When it was last given other partitions."""
    beats: int = 0
    errors: list[int] = field(default_factory=list)
    connection: Connection | None = None

    async def join(self) -> None:
        if self.connection is None:
            self.connection = await connect(self.port)
        self.epoch, self.owned = 0, frozenset()
        await self.beat()
        self.joined_at_s = time.perf_counter()

    async def beat(self) -> None:
        """Send one heartbeat, with all that a member may say."""
        assert self.connection is not None
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[self.topic],
            topic_partitions=_rows(self.owned),
        )
        while True:
            answer = await self.connection.call(request, VERSION, ConsumerGroupHeartbeatResponse)
            if answer.error_code not in RETRIED:
                break
            await asyncio.sleep(PAUSE_S)
        self.beats += 1
        if answer.error_code:
            self.errors.append(answer.error_code)
            return
        self.epoch, self.interval_s = answer.member_epoch, answer.heartbeat_interval_ms / 1000
        if answer.assignment is None:
            return
        rows = answer.assignment.topic_partitions
        given = frozenset((one.topic_id, number) for one in rows for number in one.partitions)
        if given != self.owned:
            self.owned = given
            self.changed_at_s = time.perf_counter()

    async def live(self, stop: asyncio.Event) -> None:
        """Send heartbeats until `stop`. A change of what the member has is reported at once, as clients do."""
        while not stop.is_set():
            before = self.owned
            await self.beat()
            if self.owned == before:
                try:
                    await asyncio.wait_for(stop.wait(), self.interval_s)
                except TimeoutError:
                    continue

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


def _rows(owned: frozenset[tuple[uuid.UUID, int]]) -> list[TopicPartitions]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic, number in sorted(owned):
        topics.setdefault(topic, []).append(number)
    return [TopicPartitions(topic_id=topic, partitions=numbers) for topic, numbers in topics.items()]


def are_settled(members: list[ConsumerMember], partitions: int) -> bool:
    """True if all members have the newest epoch, and together all partitions once."""
    owned = [one for member in members for one in member.owned]
    return len({member.epoch for member in members}) == 1 and len(owned) == len(set(owned)) == partitions
