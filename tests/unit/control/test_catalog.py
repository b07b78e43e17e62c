"""Commits of a broker while its leader comes and goes, against stand-in leaders.

Compared: the numbers and edits that each path to the journal got. A mismatch means a commit that is executed twice, or never.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence

import pytest

from headgate.broker.cluster.edits.brokers import Committed
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.segments import SealSegment
from headgate.broker.cluster.edits.topics import CreateTopic
from headgate.broker.cluster.objects import Topic
from headgate.broker.control import routed_catalog as module
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.engine.base.catalog import DeposedError, LocalCatalog
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from tests.support.errors import raises
from tests.support.waiting import begun, until_async
from tests.unit.engine.world import MortalStore

ME = "a" * 32


class Way:
    """A leader that answers each commit with the next entry: an error, or None for success. After the last entry it always
    succeeds."""

    def __init__(self, *answers: HeadgateError | None) -> None:
        self.answers = list(answers)
        self.numbers: list[int] = []
        self.sent: list[int] = []
        """Edits of each commit, without its number."""

    async def commit(self, edits: Sequence[Edit]) -> None:
        await asyncio.sleep(0)
        numbered = edits[-1]
        assert isinstance(numbered, Committed) and numbered.incarnation_id == ME
        self.numbers.append(numbered.number)
        self.sent.append(len(edits) - 1)
        error = self.answers.pop(0) if self.answers else None
        if error is not None:
            raise error

    async def settle(self) -> None:
        """Expect that no commit is in doubt."""


def edit(name: str = "t") -> CreateTopic:
    return CreateTopic(Topic(id=uuid.uuid4(), name=name, partitions=1))


lost = RetryError(Reason.NOT_LEADER, "the stream ended")


async def test_a_commit_is_sent_again_under_its_number() -> None:
    catalog = RoutedCatalog(ME)
    way = Way(lost, lost)
    catalog.use(way)
    await catalog.commit(edit())
    await catalog.commit(edit("u"))
    assert way.numbers == [1, 1, 1, 2]


async def test_a_commit_goes_to_whoever_leads_by_then() -> None:
    catalog = RoutedCatalog(ME)
    first, second = Way(DeposedError(Reason.FENCED, "replaced")), Way()
    committing = asyncio.create_task(catalog.commit(edit()))
    await asyncio.sleep(0.01)
    assert not committing.done(), "nobody leads: it waits"
    catalog.use(first)
    await until_async(lambda: first.numbers)
    await asyncio.sleep(0.01)
    assert not committing.done() and first.numbers == [1], "who was replaced is not asked again"
    catalog.use(second)
    await committing
    assert second.numbers == [1]


@pytest.mark.parametrize("error", [InvalidError(Reason.TOPIC_EXISTS, "there"), FencedError(Reason.FENCED, "over")])
async def test_an_answer_is_an_answer(error: HeadgateError) -> None:
    catalog = RoutedCatalog(ME)
    way = Way(error)
    catalog.use(way)
    with pytest.raises(type(error)):
        await catalog.commit(edit())
    await catalog.commit(edit())
    assert way.numbers == [1, 2]


async def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_TIMEOUT_S", 0.02)
    catalog = RoutedCatalog(ME)
    with raises(RetryError, Reason.NOT_READY):
        await catalog.commit(edit())
    catalog.use(Way(*[lost] * 1000))
    with raises(RetryError, Reason.NOT_LEADER):
        await catalog.commit(edit())


async def test_commits_that_wait_behind_each_other_give_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_TIMEOUT_S", 0.02)
    catalog = RoutedCatalog(ME)
    waiting = [asyncio.create_task(catalog.commit(edit(str(number)))) for number in range(3)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    monkeypatch.setattr(module, "COMMIT_TIMEOUT_S", 3600.0)  # for a catalog that has just begun to count
    await asyncio.wait(waiting, timeout=10)
    assert all(isinstance(task.exception(), RetryError) for task in waiting if task.done()) and all(task.done() for task in waiting)
    way = Way()
    catalog.use(way)
    await catalog.commit(edit())
    assert len(way.numbers) == 1, "nothing of what was given up is left in the queue"


async def test_commits_go_one_after_the_other_and_outlive_their_callers() -> None:
    catalog = RoutedCatalog(ME)
    way = Way(lost)
    catalog.use(way)
    callers = [await begun(catalog.commit(edit(str(number)))) for number in range(3)]
    callers[0].cancel()
    await asyncio.wait(callers)
    assert callers[0].cancelled()
    assert way.numbers == [1, 1, 2, 3]


def seal(number: int) -> SealSegment:
    return SealSegment(number, [1], "state")


async def test_commits_that_wait_and_touch_different_things_go_together() -> None:
    """If each commit takes seconds, the last of them waits for one commit, and not for all earlier ones."""
    catalog = RoutedCatalog(ME)
    way = Way(lost)
    catalog.use(way)
    edits = [[seal(0)], [seal(1)], [seal(2), seal(3)], [seal(1)], [seal(4)], [edit()], [seal(5)]]
    await asyncio.gather(*(catalog.commit(*some) for some in edits))
    # While the first is under way, the others wait: three edits, then the second seal of 1 and what follows, then a topic.
    assert (way.numbers, way.sent) == ([1, 1, 2, 3, 4, 5], [1, 1, 3, 2, 1, 1])


async def test_of_commits_that_went_together_only_the_wrong_one_is_refused() -> None:
    wrong = InvalidError(Reason.INVALID_REQUEST, "sealed already")
    catalog = RoutedCatalog(ME)
    way = Way(None, wrong, None, wrong)
    catalog.use(way)
    committing = [asyncio.create_task(catalog.commit(seal(number))) for number in range(4)]
    await asyncio.wait(committing)
    assert [task.exception() for task in committing] == [None, None, wrong, None]
    assert (way.numbers, way.sent) == ([1, 2, 3, 4, 5], [1, 3, 1, 1, 1])
    over = FencedError(Reason.FENCED, "over")
    way.answers = [None, over]
    ended = await asyncio.gather(*(catalog.commit(seal(number)) for number in range(4)), return_exceptions=True)
    assert ended == [None, over, over, over]


class SlowWay(Way):
    """A leader that waits with the answers to some commits, by their number, until the test lets them come."""

    def __init__(self, *answers: HeadgateError | None) -> None:
        super().__init__(*answers)
        self.asked: list[int] = []
        self.held: dict[int, asyncio.Event] = {}

    async def commit(self, edits: Sequence[Edit]) -> None:
        numbered = edits[-1]
        assert isinstance(numbered, Committed)
        self.asked.append(numbered.number)
        if numbered.number in self.held:
            await self.held[numbered.number].wait()
        await super().commit(edits)


async def test_a_commit_that_gave_up_while_it_went_with_another_keeps_none_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = RoutedCatalog(ME)
    way = SlowWay(None, InvalidError(Reason.INVALID_REQUEST, "sealed already"))
    way.held = {1: asyncio.Event(), 2: asyncio.Event()}
    catalog.use(way)
    first = await begun(catalog.commit(seal(0)))
    await until_async(lambda: way.asked == [1])
    monkeypatch.setattr(module, "COMMIT_TIMEOUT_S", 0.2)
    together = [await begun(catalog.commit(seal(number))) for number in (1, 2)]
    way.held[1].set()
    await first
    gave_up, _ = await asyncio.wait(together, return_when=asyncio.FIRST_COMPLETED)
    assert all(isinstance(task.exception(), RetryError) for task in gave_up)
    monkeypatch.setattr(module, "COMMIT_TIMEOUT_S", 3600.0)
    way.held[2].set()
    await asyncio.wait(together)
    number = way.asked[-1] + 1
    way.held[number] = asyncio.Event()
    way.sent.clear()
    later = [await begun(catalog.commit(seal(at))) for at in range(4)]
    await until_async(lambda: way.asked[-1] == number)
    way.held[number].set()
    await asyncio.gather(*later)
    assert sum(way.sent) == len(later) > len(way.sent), "those that wait go together"


async def test_the_limits_grow_with_the_time_of_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = RoutedCatalog(ME)
    near_s = catalog.patience.limit_s
    way = Way()
    catalog.use(way)
    await catalog.commit(edit())
    assert catalog.patience.limit_s == near_s
    catalog.patience.ran_out()
    monkeypatch.setattr(module, "COMMIT_TIMEOUT_S", 0)  # what remains is the measured part
    way.answers = [lost, lost]
    await catalog.commit(edit())
    assert way.numbers[1:] == [2, 2, 2], "it is sent again although it took longer than the limit for a near leader"


async def test_a_broker_that_is_over_waits_for_nobody() -> None:
    catalog = RoutedCatalog(ME)
    waiting = await begun(catalog.commit(edit()))
    catalog.end(FencedError(Reason.FENCED, "over"))
    with pytest.raises(FencedError):
        await waiting
    with pytest.raises(FencedError):
        await catalog.commit(edit())


async def test_what_was_committed_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that rejoins, or joins another leader, gets exactly the edits that it missed; or None, and then it needs a
    snapshot."""
    objects = MemoryObjects()
    writer = LocalCatalog(MemoryStore(objects), ME)
    await writer.load()
    versions = []
    for number in range(5):
        await writer.commit(edit(f"t{number}"))
        versions.append(writer.version)
    assert writer.since(writer.version) == []
    missed = writer.since(versions[1])
    assert missed is not None and [version for version, _ in missed] == versions[2:]
    assert writer.since(writer.version + 1) is None, "whoever knows more was not here"
    reader = LocalCatalog(MemoryStore(objects), "b" * 32)
    await reader.load()
    assert reader.since(versions[1]) == missed
    assert reader.since(0) is not None
    monkeypatch.setattr("headgate.broker.engine.base.catalog.RECENT_BYTES_MAX", sum(len(data) for _, data in missed))
    await reader.commit(edit("more"))
    assert reader.since(versions[1]) is None
    assert reader.since(reader.version - 1) is not None


async def test_a_writer_that_was_replaced_leaves_the_manifest_alone() -> None:
    """The next leader's edits go to this copy of the manifest: a commit that was under way must not be applied twice."""
    objects = MemoryObjects()
    store = MortalStore(MemoryStore(objects), "memory:")
    writer = LocalCatalog(store, ME)
    await writer.load()
    await writer.commit(edit("before"))
    store.held["put_if_absent"], calls = threading.Event(), store.calls
    late = asyncio.create_task(writer.commit(edit("late")))
    await until_async(lambda: store.calls > calls)
    writer.retire()
    store.held.pop("put_if_absent").set()
    with pytest.raises(DeposedError):
        await late
    assert set(writer.manifest.topics) == {"before"}
    with pytest.raises(DeposedError):
        await writer.commit(edit("after"))
    reader = LocalCatalog(MemoryStore(objects), "b" * 32)
    await reader.load()
    assert set(reader.manifest.topics) == {"before", "late"}, "it was in time, and the next leader tells it"
