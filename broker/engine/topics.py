"""Topics and their partitions: look-ups in the manifest, and changes through the catalog."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.topics import CreateTopic, DeleteTopic, SetPartitions, SetTopicConfig
from headgate.broker.cluster.gates import OFFSET_MAX
from headgate.broker.cluster.objects import ROOM, Incarnation, Topic
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.cluster.topics import (
    NewTopic,
    TopicLimits,
    check_new_topics,
    check_partitions,
    check_room,
    lots,
    partition_count,
)
from headgate.broker.engine.base.catalog import change
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.leads import Leads
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.openings import INSTALL_PARTITIONS_MAX
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.turns import Turns


class Held(NamedTuple):
    """Offsets of a partition that its lead reserves for a gate. `live`: there are live records before them."""

    partition: int
    base_offset: int
    segment_id: int
    leader_epoch: int
    live: bool


class Topics:
    """The topics of the cluster, and the partitions that this broker leads.

    Args:
        deleted: called after records or topics were deleted.
    """

    def __init__(self, lifecycle: Lifecycle, leads: Leads, turns: Turns, deleted: Callable[[], None]) -> None:
        self._lifecycle = lifecycle
        self._leads = leads
        self._turns = turns
        self._deleted = deleted
        self._lock = asyncio.Lock()
        """Lets one call at a time change topics."""

    # -- look-ups

    def topics(self) -> list[Topic]:
        return list(self._lifecycle.manifest.topics.values())

    def topic(self, name: str) -> Topic:
        topic = self._lifecycle.manifest.topics.get(name)
        if topic is None:
            raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic does not exist. topic=`{name}`")
        return topic

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic:
        topic = self._lifecycle.manifest.topics_by_id.get(topic_id)
        if topic is None:
            raise InvalidError(Reason.UNKNOWN_TOPIC_ID, f"no topic has this id. topic_id=`{topic_id}`")
        return topic

    def partition(self, topic: Topic, number: int) -> PartitionLog:
        logs = self._leads.by_id.get(topic.id)
        if logs is None or not 0 <= number < len(logs):
            raise InvalidError(Reason.UNKNOWN_TOPIC, f"partition does not exist. topic=`{topic.name}` partition=`{number}`")
        partition = logs[number]
        if partition is None:
            raise RetryError(
                Reason.NOT_LEADER, f"this broker does not lead the partition. topic=`{topic.name}` partition=`{number}`"
            )
        return partition

    def lead(self, topic_id: uuid.UUID, number: int) -> tuple[Incarnation, int] | None:
        """The broker that leads a partition (this one or another) and its leader epoch. None while no broker leads it."""
        leads = self._lifecycle.manifest.segments.leads.get(topic_id, ())
        segment = leads[number] if 0 <= number < len(leads) else None
        return None if segment is None else (self._lifecycle.manifest.incarnations[segment.incarnation_id], segment.leader_epoch)

    def is_on_its_way(self, topic_id: uuid.UUID, number: int) -> bool:
        """True if a partition that refuses records here is being handed over. Then no broker leads it at the moment, or the
        manifest still names this broker. `leads.next_change` tells when the caller should ask again."""
        if self._lifecycle.failed is not None or not self._lifecycle.ready:
            return False
        lead = self.lead(topic_id, number)
        return lead is None or lead[0].id == self._lifecycle.incarnation_id

    def brokers(self) -> list[Incarnation]:
        """The live brokers, by id. If a broker was restarted, the list has only its newest run.

        The last broker of a cluster stays in the list until it stops answering. A client that receives an empty list forgets all
        brokers that it knows, and librdkafka may then never look for one again (its issue 5301).
        """
        newest: dict[int, Incarnation] = {}
        for incarnation in self._lifecycle.manifest.incarnations.values():
            if not incarnation.sealed and not incarnation.is_lane:
                newest[incarnation.broker_id] = incarnation
        if not newest and (mine := self._lifecycle.manifest.incarnations.get(self._lifecycle.incarnation_id)) is not None:
            return [mine]
        return [newest[broker_id] for broker_id in sorted(newest)]

    def lanes(self) -> list[Incarnation]:
        """The live lanes, by id."""
        found = [
            incarnation
            for incarnation in self._lifecycle.manifest.incarnations.values()
            if incarnation.is_lane and not incarnation.sealed
        ]
        return sorted(found, key=lambda incarnation: incarnation.broker_id)

    # -- gates

    def hold(self, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int], term: int) -> list[Held]:
        """Reserve the next offsets of some partitions for a gate, all or none. Live records get offsets after them.

        Args:
            rows: number of offsets, by partition.
            term: the epoch of the leader that asks. When another leader follows before the gate is open, the gate is never
                opened.

        Raises:
            RetryError(NOT_LEADER): this broker does not lead all of them. InvalidError: the topic does not exist.
        """
        topic = self.topic_by_id(topic_id)
        logs = {number: self.partition(topic, number) for number in rows}
        for partition in logs.values():
            if partition.refusal is not None:
                raise partition.refusal
            if partition.next_offset + rows[partition.number] > OFFSET_MAX:
                raise InvalidError(Reason.INVALID_REQUEST, f"offsets end at 2^62. partition=`{partition.number}`")
        held: list[Held] = []
        for number, partition in logs.items():
            live = partition.has_live
            base_offset, _ = partition.hold(gate_id, rows[number], term)
            held.append(Held(number, base_offset, partition.segment_id, partition.leader_epoch, live))
        return held

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        """Release the offsets that were reserved for a gate. The gate will not be opened, so readers pass them."""
        for partition in self._leads.by_id.get(topic_id, []):
            if partition is not None:
                partition.drop_holds(gate_id)

    # -- changes

    async def create_topic(
        self, name: str, partitions: int | None, config: Mapping[str, str], *, validate_only: bool = False
    ) -> Topic:
        """Create one topic; see `create_topics`. Raises the error that the list would hold."""
        (created,) = await self.create_topics([NewTopic(name, partitions, config)], validate_only=validate_only)
        if isinstance(created, HeadgateError):
            raise created
        return created

    async def create_topics(self, asked: Sequence[NewTopic], *, validate_only: bool = False) -> list[Topic | HeadgateError]:
        """Create topics, many with one commit.

        Args:
            asked: the topics; every name at most once.

        Returns:
            For each the topic, or the error: an InvalidError (INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG,
            or POLICY_VIOLATION if the cluster would have too many partitions), or an error of `Catalog.commit`.
        """
        async with self._lock:
            results: list[Topic | HeadgateError] = []
            try:
                await self._lifecycle.catalog.settle()
            except HeadgateError as error:
                return [error for _ in asked]
            turn = self._turns.begin()
            for lot in lots(max(topic.partitions or self._lifecycle.settings.num_partitions, 1) for topic in asked):
                created_ms = self._lifecycle.clock.now_ms()
                made = [
                    partitions
                    if isinstance(partitions, HeadgateError)
                    else Topic(
                        id=uuid.uuid4(),
                        name=topic.name,
                        partitions=partitions,
                        config=dict(topic.config),
                        created_ms=created_ms,
                        replication_factor=topic.replication_factor,
                    )
                    for topic, partitions in zip(
                        asked[lot], check_new_topics(self._lifecycle.manifest.topics, asked[lot], self._topic_limits), strict=True
                    )
                ]
                topics = [topic for topic in made if isinstance(topic, Topic)]
                refused: dict[uuid.UUID, HeadgateError] = {}
                if not validate_only:
                    errors = await self._commit_each([CreateTopic(topic) for topic in topics])
                    refused = {topic.id: error for topic, error in zip(topics, errors, strict=True) if error is not None}
                results += [refused.get(topic.id, topic) if isinstance(topic, Topic) else topic for topic in made]
                await turn.pause()
            if (
                any(isinstance(result, Topic) and result.partitions > INSTALL_PARTITIONS_MAX for result in results)
                and not validate_only
            ):
                await self._leads.openings.opened()
            return results

    async def _commit_each(self, edits: Sequence[Edit]) -> list[HeadgateError | None]:
        """Commit edits that do not depend on each other, in one commit if all are valid. Returns for each edit its error, or
        None."""
        if not edits:
            return []
        try:
            await self._lifecycle.catalog.commit(*edits)
        except InvalidError as error:
            # Another broker has already made one of these changes. Commit one at a time, so that each edit gets its own answer.
            return [error] if len(edits) == 1 else [(await self._commit_each([edit]))[0] for edit in edits]
        except HeadgateError as error:
            return [error] * len(edits)
        return [None] * len(edits)

    @property
    def _topic_limits(self) -> TopicLimits:
        settings = self._lifecycle.settings
        return TopicLimits(settings.num_partitions, settings.partitions_per_topic_max, settings.partitions_max)

    async def delete_topic(self, topic: Topic) -> None:
        """Delete one topic; see `delete_topics`. Raises the error that the list would hold."""
        (error,) = await self.delete_topics([topic])
        if error is not None:
            raise error

    async def delete_topics(self, topics: Sequence[Topic]) -> list[HeadgateError | None]:
        """Delete topics and their records, many with one commit. A topic that is created later with the same name gets another
        id.

        Returns:
            For each None, or the error: InvalidError(UNKNOWN_TOPIC_ID) if the topic was deleted before, or an error of
                `Catalog.commit`.
        """
        async with self._lock:
            errors: list[HeadgateError | None] = []
            try:
                await self._lifecycle.catalog.settle()
            except HeadgateError as error:
                return [error for _ in topics]
            turn = self._turns.begin()
            for lot in lots(topic.partitions for topic in topics):
                errors += await self._commit_each([DeleteTopic(topic.id) for topic in topics[lot]])
                await turn.pause()
        self._deleted()
        return errors

    async def create_partitions(self, topic: Topic, total: int, *, validate_only: bool = False) -> Topic:
        """Give a topic more partitions.

        Raises:
            InvalidError: INVALID_PARTITIONS if `total` is not greater than the present number, POLICY_VIOLATION if the cluster
                would have too many.
        """
        async with self._lock:
            await self._lifecycle.catalog.settle()
            topic = self.topic_by_id(topic.id)
            check_partitions(total, self._topic_limits)
            if total <= topic.partitions:
                raise InvalidError(
                    Reason.INVALID_PARTITIONS,
                    f"a topic's number of partitions can only grow. topic=`{topic.name}` has=`{topic.partitions}` asked=`{total}`",
                )
            check_room(partition_count(self._lifecycle.manifest.topics), total - topic.partitions, self._topic_limits)
            if validate_only:
                return topic
            await self._lifecycle.catalog.commit(SetPartitions(topic.id, total))
            return self.topic_by_id(topic.id)

    async def alter_topic_config(
        self, topic: Topic, config: Mapping[str, str] | Callable[[Topic], Mapping[str, str]], *, validate_only: bool = False
    ) -> Topic:
        """Replace a topic's overrides with `config`. Raises InvalidError(INVALID_CONFIG), RetryError.

        Args:
            config: the new overrides, or a function that makes them from the current topic. With a function, two concurrent
                changes never overwrite each other, also if two different brokers make them.
        """
        async with self._lock:
            return await change(
                self._lifecycle.catalog,
                lambda: self._alter_topic_config(topic.id, config, validate_only),
                f"the settings of topic `{topic.name}`",
            )

    async def _alter_topic_config(
        self, topic_id: uuid.UUID, config: Mapping[str, str] | Callable[[Topic], Mapping[str, str]], validate_only: bool
    ) -> Topic:
        topic = self.topic_by_id(topic_id)
        made, was = (config(topic), topic.config) if callable(config) else (config, None)
        TopicConfig.parse(made)
        if int(made.get(ROOM, "0")) != topic.room:
            raise InvalidError(
                Reason.INVALID_CONFIG, f"a topic gets its room in front when it is created. key=`{ROOM}` has=`{topic.room}`"
            )
        if validate_only:
            return topic
        await self._lifecycle.catalog.commit(SetTopicConfig(topic_id, dict(made), was))
        return self.topic_by_id(topic_id)
