"""Edits of topics: their settings, partitions, and which records are deleted. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from headgate.broker.cluster.edits.edit import Edit, live_topic
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Topic
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError

CUTS_MAX = 1000
"""Largest number of ranges of one partition that readers pass. Every read that begins below the last range checks all of them."""


class CreateTopic(Edit, frozen=True, tag="create_topic"):
    topic: Topic

    def check(self, state: Manifest) -> None:
        if self.topic.name in state.topics:
            raise InvalidError(Reason.TOPIC_EXISTS, f"topic exists already. topic=`{self.topic.name}`")

    def apply(self, state: Manifest) -> None:
        if self.topic.name not in state.topics:
            state.put_topic(self.topic)


class DeleteTopic(Edit, frozen=True, tag="delete_topic"):
    topic_id: uuid.UUID

    def check(self, state: Manifest) -> None:
        live_topic(state, self.topic_id)

    def apply(self, state: Manifest) -> None:
        state.drop_topic(self.topic_id)


class SetPartitions(Edit, frozen=True, tag="set_partitions"):
    topic_id: uuid.UUID
    partitions: int

    def check(self, state: Manifest) -> None:
        topic = live_topic(state, self.topic_id)
        if self.partitions <= topic.partitions:
            raise InvalidError(
                Reason.INVALID_PARTITIONS,
                f"a topic's number of partitions can only grow. topic=`{topic.name}` has=`{topic.partitions}` "
                f"asked=`{self.partitions}`",
            )

    def apply(self, state: Manifest) -> None:
        state.change_topic(self.topic_id, partitions=self.partitions)
        state.segments.grow_topic(self.topic_id, self.partitions)


class SetTopicConfig(Edit, frozen=True, tag="set_topic_config"):
    """The overrides of a topic.

    `was`: the overrides from which the author made them. If the topic has others by now, the edit is refused. None: no such
    check.
    """

    topic_id: uuid.UUID
    config: dict[str, str]
    was: dict[str, str] | None = None

    def check(self, state: Manifest) -> None:
        topic = live_topic(state, self.topic_id)
        if self.was is not None and self.was != topic.config:
            raise InvalidError(
                Reason.CHANGED_MEANWHILE, f"another client changed the topic's settings meanwhile. topic=`{topic.name}`"
            )

    def apply(self, state: Manifest) -> None:
        state.change_topic(self.topic_id, config=self.config)


class SetLogStart(Edit, frozen=True, tag="set_log_start"):
    """Records below these offsets are deleted, by DeleteRecords or retention. Offsets never go back.

    `by_age`: retention made this edit. It must not pass a gate that its author did not know.
    """

    topic_id: uuid.UUID
    offsets: dict[int, int]
    by_age: bool = False

    def check(self, state: Manifest) -> None:
        if not self.by_age:
            return
        for gate in state.gates.of(self.topic_id).values():
            if gate.state == "open" and any(
                self.offsets.get(window.partition, 0) > window.base_offset for window in gate.windows if window.rows
            ):
                raise RetryError(Reason.NOT_READY, f"retention must not pass an open gate. gate=`{gate.id}`")

    def apply(self, state: Manifest) -> None:
        if self.topic_id in state.topics_by_id:
            state.readable.raise_starts(self.topic_id, self.offsets)


class SkipRecords(Edit, frozen=True, tag="skip_records"):
    """Readers pass the offsets in [base_offset, end_offset) of a partition for ever. Both are boundaries of batches."""

    topic_id: uuid.UUID
    partition: int
    base_offset: int
    end_offset: int

    def check(self, state: Manifest) -> None:
        topic = live_topic(state, self.topic_id)
        assert 0 <= self.base_offset < self.end_offset, "a range has an offset"
        for window, gate in state.gates.windows(self.topic_id, self.partition):
            if self.base_offset < window.end_offset and window.base_offset < self.end_offset:
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    f"records of a gate cannot be skipped. topic=`{topic.name}` partition=`{self.partition}` gate=`{gate.id}` "
                    f"first=`{window.base_offset}` end=`{window.end_offset}`",
                )
        check_cuts(topic, self.partition, state.readable.cuts_of(self.topic_id, self.partition))

    def apply(self, state: Manifest) -> None:
        if self.topic_id in state.topics_by_id:
            state.readable.cut(self.topic_id, self.partition, self.base_offset, self.end_offset)


class Reassign(Edit, frozen=True, tag="reassign"):
    """Stands in journals of older releases, in which clients chose the replicas of partitions. Without effect."""

    def apply(self, state: Manifest) -> None:
        pass


def check_cuts(topic: Topic, partition: int, cuts: Sequence[tuple[int, int]]) -> None:
    """Raise InvalidError if a partition can have no further range that readers pass."""
    if len(cuts) >= CUTS_MAX:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "too many ranges of the partition have no record: delete the records below them. "
            f"topic=`{topic.name}` partition=`{partition}` max=`{CUTS_MAX}`",
        )
