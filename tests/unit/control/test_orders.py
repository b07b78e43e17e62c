"""The book of orders against a stand-in leader: which commit opens which successors, and how an order ends.

Compared: the requests to leads, and the segments that stay busy. A mismatch means segments that no broker opens, or that stay
busy for ever.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import OpenIncarnation
from headgate.broker.cluster.edits.segments import OpenSegment, SealSegment
from headgate.broker.cluster.edits.topics import CreateTopic, DeleteTopic
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Incarnation, Topic
from headgate.broker.cluster.order_book import Decision, OrderBook
from headgate.broker.cluster.segments import Order, OrderKind, SegmentInfo, Successor
from headgate.broker.control.orders import Orders
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from tests.support.errors import raises
from tests.support.waiting import until_async

A, B = "a" * 32, "b" * 32


class PaperLeader:
    """Two brokers; A leads segments 0 and 1 of a topic, B leads segment 2. `resign` waits until the test releases it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.manifest = Manifest()
        self.topic = Topic(id=uuid.uuid4(), name="t", partitions=6)
        edits: list[Edit] = [
            OpenIncarnation(Incarnation(id=name, broker_id=number, leader_epoch=number, opened_ms=0))
            for number, name in enumerate((A, B))
        ]
        edits.append(CreateTopic(self.topic))
        for number, lead in enumerate((A, A, B)):
            segment = SegmentInfo(
                id=number,
                topic_id=self.topic.id,
                first_partition=2 * number,
                end_partition=2 * number + 2,
                incarnation_id=lead,
                leader_epoch=2 + number,
                base_offsets=[0, 0],
            )
            edits.append(OpenSegment(segment))
        self.manifest.apply(edits)
        self.book = OrderBook()
        self.orders = Orders(self.book, self, self, self.clock, self)  # type: ignore[arg-type]  # it stands for the term's tasks, too
        self.asked: list[tuple[str, list[int]]] = []
        self.go = asyncio.Event()
        self.error: HeadgateError | None = None
        self.filled = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def resign(self, incarnation_id: str, segment_ids: list[int]) -> None:
        self.asked.append((incarnation_id, segment_ids))
        await self.go.wait()
        if self.error is not None:
            raise self.error

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self.spawn(work(), name)

    async def confirm(self) -> None:
        self.filled += 1

    def commit(self, *edits: Edit) -> tuple[list[Successor], set[tuple[uuid.UUID, int]]]:
        """Commit these edits. Returns the book's answer to the leader: the successors to open, and the partitions without one."""
        seals = {edit.segment_id for edit in edits if isinstance(edit, SealSegment)}
        answer = self.book.successors(seals, {A, B})
        self.manifest.apply(edits)
        self.orders.applied(edits)
        return answer

    def merge(self) -> tuple[Decision, Successor]:
        target = Successor(topic_id=self.topic.id, first_partition=2, end_partition=6, incarnation_id=B)
        return self.orders.begin(Order(kind=OrderKind.MERGE, seal=(1, 2), open=(target,), why="quiet")), target


async def test_the_last_seal_opens_the_successors() -> None:
    leader = PaperLeader()
    decision, target = leader.merge()
    assert leader.book.busy() == {1, 2}
    await until_async(lambda: len(leader.asked) == 2)
    assert sorted(leader.asked) == [(A, [1]), (B, [2])], "each lead is asked for its own"
    held = {(leader.topic.id, number) for number in range(2, 6)}
    assert leader.commit(SealSegment(2, [7, 7])) == ([], held), "half-way nobody opens anything there"
    assert leader.commit(SealSegment(1, [7, 7])) == ([target], set())
    leader.go.set()
    await leader.orders.wait(decision)
    assert (decision.error, decision.under_way, leader.filled) == (None, False, 0)
    assert 1 not in leader.book.busy()
    assert leader.book.successors({0}, {A, B}) == ([], set())


async def test_both_seals_in_one_commit() -> None:
    leader = PaperLeader()
    decision, target = leader.merge()
    assert leader.commit(SealSegment(1, [0, 0]), SealSegment(2, [0, 0])) == ([target], set())
    await leader.orders.wait(decision)


async def test_a_target_that_is_gone_is_left_to_placement() -> None:
    leader = PaperLeader()
    leader.merge()
    assert leader.book.successors({1, 2}, {A}) == ([], set())


@pytest.mark.parametrize("seal", [(), (7,), (0, 7)])
async def test_what_does_not_fit_is_refused(seal: tuple[int, ...]) -> None:
    leader = PaperLeader()
    with pytest.raises(InvalidError):
        leader.orders.begin(Order(kind=OrderKind.MOVE, seal=seal, open=(), why="-"))
    assert not leader.book.decisions and not leader.tasks


async def test_a_segment_is_in_one_order_at_a_time() -> None:
    leader = PaperLeader()
    leader.merge()
    with pytest.raises(InvalidError):
        leader.orders.begin(Order(kind=OrderKind.MOVE, seal=(0, 1), open=(), why="-"))
    leader.orders.begin(Order(kind=OrderKind.MOVE, seal=(0,), open=(), why="-"))


@pytest.mark.parametrize("error", [RetryError(Reason.TIMED_OUT, "too slow"), None])
async def test_a_lead_that_does_not_seal_ends_the_order(error: HeadgateError | None) -> None:
    """A broker that says that it resigned, but did not seal, ends the order too: its segments must not stay busy for ever."""
    leader = PaperLeader()
    decision, _ = leader.merge()
    leader.commit(SealSegment(2, [7, 7]))
    leader.error = error
    leader.go.set()
    with pytest.raises(RetryError):
        await leader.orders.wait(decision)
    assert 1 not in leader.book.busy()
    await asyncio.gather(*leader.tasks)
    assert leader.filled == 1, "what was sealed already gets a lead"
    assert leader.commit(SealSegment(1, [7, 7])) == ([], set()), "sealed late: placement's affair"


async def test_a_topic_that_is_deleted_ends_its_orders() -> None:
    leader = PaperLeader()
    decision, _ = leader.merge()
    leader.commit(DeleteTopic(leader.topic.id))
    with pytest.raises(InvalidError) as caught:
        await leader.orders.wait(decision)
    assert caught.value.reason is Reason.UNKNOWN_TOPIC
    leader.go.set()
    await asyncio.gather(*leader.tasks)
    assert leader.filled == 0 and decision.error is caught.value


async def test_the_end_of_a_term_ends_its_orders() -> None:
    leader = PaperLeader()
    decision, _ = leader.merge()
    leader.orders.stop()
    with raises(RetryError, Reason.NOT_LEADER):
        await leader.orders.wait(decision)


async def test_what_was_done_elsewhere_is_remembered() -> None:
    leader = PaperLeader()
    order = Order(kind=OrderKind.FAILOVER, seal=(1,), open=(), why="broker 2 was lost")
    now_s = leader.clock.monotonic()
    leader.book.note(order, leader.manifest, now_s, topic_ids=[leader.topic.id, uuid.uuid4()], began_s=now_s - 1)
    (decision,) = leader.book.decisions
    assert decision.topics == ("t",)
    assert not decision.under_way and decision.pause_s >= 1 and 1 not in leader.book.busy()
