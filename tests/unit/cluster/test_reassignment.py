"""Replicas that clients choose: the fold of the edits, and the orders of the leader.

Compared: which reassignments are in progress, and the segments that the orders seal and open. A mismatch means that a client waits
for a move that never comes, or that a lead moves that no client named.
"""

from __future__ import annotations

import uuid

import pytest

from headgate.broker.cluster.admission import check
from headgate.broker.cluster.edits.incarnations import OpenIncarnation
from headgate.broker.cluster.edits.segments import OpenSegment, SealSegment
from headgate.broker.cluster.edits.topics import CreateTopic, DeleteTopic, Reassign
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import decode_snapshot, encode_snapshot
from headgate.broker.cluster.objects import Incarnation, Topic
from headgate.broker.cluster.reassign_orders import MOVED_TOGETHER_MAX, orders, placed
from headgate.broker.cluster.segments import BrokerLoad, Order, SegmentInfo
from headgate.broker.runtime.errors import InvalidError, Reason

TOPIC = uuid.UUID(int=1)
BROKERS = [BrokerLoad(incarnation_id=name, broker_id=number) for number, name in enumerate("abc", 1)]


class World:
    """A topic whose six partitions are one segment of broker 1."""

    def __init__(self, partitions: int = 6) -> None:
        self.manifest = Manifest()
        self.epoch = 0
        for one in BROKERS:
            self.epoch += 1
            opened = Incarnation(id=one.incarnation_id, broker_id=one.broker_id, leader_epoch=self.epoch, opened_ms=0)
            self.manifest.apply([OpenIncarnation(opened)])
        self.manifest.apply([CreateTopic(Topic(id=TOPIC, name="t", partitions=partitions))])
        self.open(0, partitions, "a")

    def open(self, first: int, end: int, lead: str) -> None:
        self.epoch += 1
        segment = SegmentInfo(
            id=self.manifest.segments.next_id,
            topic_id=TOPIC,
            first_partition=first,
            end_partition=end,
            incarnation_id=lead,
            leader_epoch=self.epoch,
            base_offsets=[0] * (end - first),
        )
        self.manifest.apply([OpenSegment(segment)])

    def reassign(self, replicas: dict[int, list[int]]) -> None:
        edit = Reassign(TOPIC, replicas)
        check(self.manifest, edit, "a")
        self.manifest.apply([edit])
        self.manifest.check_invariants()

    def carry_out(self, order: Order) -> None:
        for key in order.seal:
            self.manifest.apply([SealSegment(key, [0] * len(self.manifest.segments.open[key].partitions))])
        for one in order.open:
            self.open(one.first_partition, one.end_partition, one.incarnation_id)
        self.manifest.check_invariants()

    @property
    def topic(self) -> Topic:
        return self.manifest.topics_by_id[TOPIC]

    def leads(self) -> list[int | None]:
        return [self.manifest.lead_id(TOPIC, number) for number in range(self.topic.partitions)]


def test_a_reassignment_moves_the_lead_of_its_partitions_only() -> None:
    world = World()
    world.reassign({1: [2, 1], 2: [2], 4: [3]})
    assert world.topic.targets == {1: [2, 1], 2: [2], 4: [3]} and not world.topic.replicas
    (order,) = orders(world.manifest, BROKERS, ())
    assert [(one.first_partition, one.end_partition, one.incarnation_id) for one in order.open] == [
        (0, 1, "a"),
        (1, 3, "b"),
        (3, 4, "a"),
        (4, 5, "c"),
        (5, 6, "a"),
    ]
    assert orders(world.manifest, BROKERS, set(order.seal)) == []  # it is being carried out
    world.carry_out(order)
    assert world.leads() == [1, 2, 2, 1, 3, 1]
    assert world.topic.targets == {} and world.topic.replicas == {1: [2, 1], 2: [2], 4: [3]}
    assert orders(world.manifest, BROKERS, ()) == [] and not world.manifest.reassigning
    assert placed(world.manifest) == {
        lead.id for number in (1, 4) if (lead := world.manifest.segments.leads[TOPIC][number]) is not None
    }


def test_a_list_that_begins_with_the_lead_is_done_at_once() -> None:
    world = World()
    world.reassign({0: [1, 3, 2]})
    assert world.topic.targets == {} and world.topic.replicas == {0: [1, 3, 2]}


def test_a_reassignment_waits_for_its_broker_and_can_be_given_up() -> None:
    world = World()
    world.reassign({0: [9], 5: [3]})
    gone = [one for one in BROKERS if one.broker_id != 3]
    assert orders(world.manifest, gone, ()) == []
    draining = [*gone, BrokerLoad(incarnation_id="c", broker_id=3, draining=True)]
    assert orders(world.manifest, draining, ()) == []
    world.reassign({0: []})
    assert world.topic.targets == {5: [3]}
    world.carry_out(orders(world.manifest, BROKERS, ())[0])
    assert world.leads() == [1, 1, 1, 1, 1, 3] and world.topic.replicas == {5: [3]}


def test_a_lead_that_moves_on_leaves_the_choice() -> None:
    world = World(1)
    world.reassign({0: [2, 3]})
    world.carry_out(orders(world.manifest, BROKERS, ())[0])
    world.manifest.apply([SealSegment(world.manifest.segments.next_id - 1, [0])])
    world.open(0, 1, "c")
    assert world.topic.replicas == {0: [2, 3]} and world.topic.targets == {}
    assert placed(world.manifest) == set()


def test_a_snapshot_has_reassignments_and_a_deleted_topic_none() -> None:
    world = World()
    world.reassign({0: [1], 3: [2]})
    copy = decode_snapshot(encode_snapshot(world.manifest))
    copy.check_invariants()
    assert list(copy.reassigning) == list(copy.placed) == [TOPIC]
    copy.apply([DeleteTopic(TOPIC)])
    copy.check_invariants()
    assert not copy.reassigning and not copy.placed


def test_few_segments_move_at_a_time() -> None:
    world = World(MOVED_TOGETHER_MAX + 5)
    world.manifest.apply([SealSegment(0, [0] * world.topic.partitions)])
    for number in range(world.topic.partitions):
        world.open(number, number + 1, "a")
    world.reassign({number: [2] for number in range(world.topic.partitions)})
    first = orders(world.manifest, BROKERS, ())
    assert len(first) == MOVED_TOGETHER_MAX
    assert len(orders(world.manifest, BROKERS, {one.seal[0] for one in first[3:]})) == 3


def test_partitions_that_do_not_exist_are_refused() -> None:
    world = World()
    for replicas in ({6: [1]}, {-1: [1]}):
        with pytest.raises(InvalidError) as refused:
            check(world.manifest, Reassign(TOPIC, replicas), "a")
        assert refused.value.reason is Reason.UNKNOWN_TOPIC
