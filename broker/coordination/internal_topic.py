"""The internal topic whose partitions are the shards of a coordinator: who holds an id, and that the topic exists and is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headgate.broker.coordination.effects import Row, shard_of
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Incarnation, Topic
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog

logger = get_logger(__name__)


class InternalTopic:
    """One internal topic, as the manifest has it.

    Args:
        ids: their name, in logs.
        partitions: of the topic at its creation.
        config: settings without which the topic would lose state.
    """

    def __init__(self, engine: Engine, ids: str, name: str, partitions: int, config: dict[str, str]) -> None:
        self.name = name
        self._engine = engine
        self._ids = ids
        self._partitions = partitions
        self._config = config
        self._creating = asyncio.Lock()

    @property
    def present(self) -> Topic | None:
        """The topic; None until it exists."""
        return self._engine.manifest.topics.get(self.name)

    def holder(self, key: str) -> Incarnation | None:
        """The broker that is the coordinator of an id; None while its partition has no lead."""
        manifest, topic = self._engine.manifest, self.present
        if topic is None:
            return manifest.incarnations.get(manifest.leader)
        lead = self._engine.lead(topic.id, shard_of(key, topic.partitions))
        return None if lead is None else lead[0]

    async def ensure(self) -> None:
        """Create the topic if it does not exist, and protect it. Raises RetryError."""
        if self.present is None:
            async with self._creating:
                if self.present is not None:
                    return
                try:
                    await self._engine.create_topic(self.name, self._partitions, self._config)
                    return
                except InvalidError as error:
                    if error.reason is not Reason.TOPIC_EXISTS:
                        raise
                    if self.present is None:
                        # The leader has just created it for another broker, and this broker hears of it in a moment.
                        raise RetryError(Reason.NOT_COORDINATOR, "this broker does not know the coordinator yet") from error
        await self.protect()

    async def protect(self) -> None:
        """Make sure that retention by age deletes no state, if the topic exists. A user may have created or changed the topic
        without that setting. Raises RetryError."""
        topic = self.present
        if topic is not None and topic.config.get("cleanup.policy") != self._config["cleanup.policy"]:
            await self._engine.alter_topic_config(topic, lambda now: {**now.config, **self._config})
            logger.warning(f"{self._ids}_topic_protected", topic=topic.name, was=topic.config.get("cleanup.policy", "delete"))

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
        if self.present is None and proof.promised and not proof.holds:
            raise RetryError(Reason.NOT_COORDINATOR, "this broker does not reach the leader, and knows none yet")

    def append(self, partition: PartitionLog, rows: list[Row], now_ms: int) -> None:
        """Append rows to a partition of the topic, in one batch. Raises HeadgateError."""
        batch = encode_batch([Record(0, now_ms, key, value) for key, value in rows])
        self._engine.append(partition, memoryview(bytearray(batch)))
