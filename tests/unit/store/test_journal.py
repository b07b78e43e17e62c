"""The journal: versions, lost races, ambiguous appends, snapshots, deletion under readers and sleepers, damaged objects.

It runs on the memory store, with scripted faults where a case needs one exact moment. `tests/property/test_store_journal.py`
runs many writers at random. A mismatch means that two brokers could both believe that they own the manifest, or that one reads a
state that was never written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headgate.broker.runtime.errors import CorruptError, FatalError, FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store import journal as module
from headgate.broker.store.interface import ObjectInfo, Store
from headgate.broker.store.journal import SNAPSHOT_BYTES_MIN, SNAPSHOT_EDITS_MAX, Journal, Loaded, LostRaceError
from headgate.broker.store.memory import MemoryStore
from headgate.broker.testing.faults import Fault, FaultStore
from tests.support.errors import raises
from tests.support.waiting import begun

PREFIX = "cluster/manifest"


async def opened(store: Store, writer: str | None = None, kept: int = 2) -> Journal:
    journal = Journal(store, PREFIX, writer=writer, snapshots_kept=kept)
    await journal.load()
    return journal


async def versions(store: Store, kind: str) -> list[int]:
    return [int(row.key.rpartition("/")[2]) for row in await store.list(f"{PREFIX}/{kind}/")]


async def loaded(store: Store) -> Loaded:
    return await Journal(store, PREFIX).load()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_an_empty_journal(store: MemoryStore) -> None:
    assert await loaded(store) == Loaded(0, None, [])


async def test_edits_are_versions(store: MemoryStore) -> None:
    journal = await opened(store)
    for number in range(1, 6):
        assert await journal.append(b"edit %d" % number) == number == journal.version
    assert await loaded(store) == Loaded(5, None, [b"edit %d" % number for number in range(1, 6)])
    another = await opened(store)
    assert await another.append(b"") == 6
    assert (await loaded(store)).edits[-1] == b""


async def test_a_snapshot_takes_the_place_of_what_led_to_it(store: MemoryStore) -> None:
    journal = await opened(store)
    for number in range(1, 11):
        await journal.append(b"edit %d" % number)
        if number in (3, 6, 8):
            assert await journal.snapshot(b"state %d" % number) == number
    assert await loaded(store) == Loaded(10, b"state 8", [b"edit 9", b"edit 10"])
    assert await versions(store, "snapshot") == [6, 8]
    assert await versions(store, "edit") == [7, 8, 9, 10], "the edits since the oldest snapshot stay: it can be gone back to"


async def test_more_old_snapshots_can_be_kept(store: MemoryStore) -> None:
    journal = await opened(store, kept=4)
    for number in range(1, 9):
        await journal.append(b"")
        await journal.snapshot(b"state %d" % number)
    assert await versions(store, "snapshot") == [5, 6, 7, 8]
    assert await versions(store, "edit") == [6, 7, 8]


async def test_a_snapshot_of_the_empty_journal(store: MemoryStore) -> None:
    journal = await opened(store)
    assert await journal.snapshot(b"nothing") == 0
    assert await loaded(store) == Loaded(0, b"nothing", [])
    assert await journal.append(b"1") == 1
    assert await loaded(store) == Loaded(1, b"nothing", [b"1"])


async def test_a_repeated_snapshot_is_fine(store: MemoryStore) -> None:
    first, second = await opened(store), await opened(store)
    await first.append(b"1")
    await second.load()
    await first.snapshot(b"state")
    await second.snapshot(b"state")
    await first.snapshot(b"state")
    assert await loaded(store) == Loaded(1, b"state", [])


async def test_an_object_is_readable_by_a_person(store: MemoryStore) -> None:
    journal = await opened(store, "broker-7")
    await journal.append(b'{"topic": "a"}')
    assert await store.get(f"{PREFIX}/edit/{1:020d}") == b'headgate-edit 1 1 broker-7-1 ed696ce2 14\n{"topic": "a"}'


# -- races


async def test_of_two_writers_one_wins(store: MemoryStore) -> None:
    first, second = await opened(store), await opened(store)
    await first.append(b"same")
    with pytest.raises(LostRaceError) as caught:
        await second.append(b"same")
    assert isinstance(caught.value, FencedError) and caught.value.reason is Reason.FENCED
    assert (await second.load()).version == 1
    assert await second.append(b"again") == 2
    with pytest.raises(LostRaceError):
        await first.append(b"late")


async def test_of_16_writers_one_wins_each_version(store: MemoryStore) -> None:
    journals = [await opened(store) for _ in range(16)]
    for version in range(1, 6):
        results = await asyncio.gather(*(journal.append(b"same") for journal in journals), return_exceptions=True)
        assert sum(result == version for result in results) == 1
        assert sum(isinstance(result, LostRaceError) for result in results) == 15
        for journal in journals:
            await journal.load()


@pytest.mark.parametrize("fault", [Fault.AMBIGUOUS, Fault.REFUSED, Fault.LATE])
async def test_an_append_in_doubt_is_settled_by_the_same_call(store: MemoryStore, fault: Fault) -> None:
    faults = FaultStore(store, sleep=asyncio.sleep)
    journal = await opened(faults)
    await journal.append(b"1")
    faults.script("put_if_absent", fault)
    with pytest.raises(RetryError):
        await journal.append(b"2")
    assert journal.version == 1 and journal.in_doubt == b"2"
    with raises(InvalidError, Reason.INTERNAL):
        await journal.append(b"another")
    if fault is Fault.LATE:
        await faults.land()
    assert await journal.append(b"2") == 2
    assert journal.in_doubt is None
    assert (await loaded(store)).edits == [b"1", b"2"]


async def test_an_append_in_doubt_that_another_writer_overtook_is_lost(store: MemoryStore) -> None:
    faults = FaultStore(store, sleep=asyncio.sleep)
    journal, rival = await opened(faults), await opened(store)
    faults.script("put_if_absent", Fault.LATE)
    with pytest.raises(RetryError):
        await journal.append(b"same")
    assert await rival.append(b"same") == 1
    await faults.land()
    with pytest.raises(LostRaceError):
        await journal.append(b"same")
    assert journal.in_doubt is None
    assert (await loaded(store)).edits == [b"same"]


async def test_an_append_in_doubt_may_be_settled_by_loading(store: MemoryStore) -> None:
    faults = FaultStore(store, sleep=asyncio.sleep)
    journal = await opened(faults)
    faults.script("put_if_absent", Fault.AMBIGUOUS, Fault.REFUSED)
    with pytest.raises(RetryError):
        await journal.append(b"1")
    assert (await journal.load()).edits == [b"1"]
    with pytest.raises(RetryError):
        await journal.append(b"2")
    assert (await journal.load()).edits == [b"1"]
    assert await journal.append(b"3") == 2


@pytest.mark.parametrize("operation", ["get", "list"])
async def test_a_store_that_fails_while_an_append_is_settled(store: MemoryStore, operation: str) -> None:
    faults = FaultStore(store, sleep=asyncio.sleep)
    journal = await opened(faults)
    faults.script("put_if_absent", Fault.AMBIGUOUS)
    faults.script(operation, Fault.REFUSED)
    for _ in range(2):
        with pytest.raises(RetryError):
            await journal.append(b"1")
    assert await journal.append(b"1") == 1
    assert (await loaded(store)).edits == [b"1"]


async def test_a_cancelled_append_is_in_doubt(store: MemoryStore) -> None:
    async def sleep(seconds: float) -> None:
        await asyncio.Event().wait()

    faults = FaultStore(store, sleep=sleep)
    journal = await opened(faults)
    faults.script("put_if_absent", Fault.DELAYED)
    task = await begun(journal.append(b"1"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert journal.in_doubt == b"1"
    assert await journal.append(b"1") == 1


class Gated(MemoryStore):
    """A memory store that runs something before one operation, once: another process at the worst moment."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner._objects)
        self.gates: dict[str, list[Callable[[], Awaitable[object]]]] = {"put_if_absent": [], "get": [], "list": []}

    async def pass_gate(self, operation: str) -> None:
        if self.gates[operation]:
            await self.gates[operation].pop(0)()

    async def put_if_absent(self, key: str, data: object) -> bool:
        await self.pass_gate("put_if_absent")
        return await super().put_if_absent(key, data)  # type: ignore[arg-type]

    async def get(self, key: str) -> bytes:
        await self.pass_gate("get")
        return await super().get(key)

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        await self.pass_gate("list")
        return await super().list(prefix, start_after, limit)


async def advance(store: Store, snapshots: int, edits: int = 2) -> Callable[[], Awaitable[None]]:
    """Another process, ready to write some edits and a snapshot, `snapshots` times."""

    async def run() -> None:
        journal = await opened(store)
        for _ in range(snapshots):
            for _ in range(edits):
                await journal.append(b"rival's")
            await journal.snapshot(b"state %d" % journal.version)

    return run


@pytest.mark.parametrize("snapshots", [1, 2, 3, 5])
async def test_a_sleeper_never_wins_a_version_that_was_deleted(store: MemoryStore, snapshots: int) -> None:
    """The writer looked, and slept before its put. Meanwhile others wrote edits and snapshots, and deleted the edit that it now
    creates."""
    gated = Gated(store)
    sleeper = await opened(gated)
    gated.gates["put_if_absent"].append(await advance(store, snapshots))
    with pytest.raises(LostRaceError):
        await sleeper.append(b"sleeper's")
    version = 2 * snapshots
    state = await loaded(store)
    assert state == Loaded(version, b"state %d" % version, [])
    # The leftover edit harms no process, and the next snapshots remove it.
    await (await advance(store, 2))()
    assert min(await versions(store, "edit")) > 1
    assert (await sleeper.load()).version == version + 4


@pytest.mark.parametrize("snapshots", [0, 1])
async def test_a_winner_is_not_taken_for_a_sleeper(store: MemoryStore, snapshots: int) -> None:
    """Another process folded the writer's edit into a snapshot before the writer looked: the writer still won."""
    gated = Gated(store)
    journal = await opened(gated)
    gated.gates["list"].append(await advance(store, snapshots))
    assert await journal.append(b"mine") == 1
    assert (await loaded(store)).version == 1 + 2 * snapshots


@pytest.mark.parametrize("operation", ["list", "get"])
@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("snapshots", [1, 2, 3])
async def test_a_load_while_others_snapshot_and_delete(store: MemoryStore, operation: str, moment: int, snapshots: int) -> None:
    """At every moment of a load another process may write any number of snapshots: the load returns one of the journal's states."""
    journal = await opened(store)
    await journal.append(b"1")
    await journal.snapshot(b"state 1")
    for _ in range(3):
        await journal.append(b"x")
    gated = Gated(store)
    rival = await advance(store, snapshots)

    async def nothing() -> None: ...

    gated.gates[operation] = [nothing] * moment + [rival]
    result = await Journal(gated, PREFIX).load()
    assert result.snapshot is not None
    base = int(result.snapshot.split()[1])
    assert result.version == base + len(result.edits)
    assert 4 <= result.version <= 4 + 2 * snapshots


async def test_a_stray_edit_is_never_read(store: MemoryStore) -> None:
    """A reader that holds an old snapshot must not continue it with an edit that a sleeper created again after it."""
    journal = await opened(store)
    await journal.append(b"1")
    await journal.snapshot(b"state 1")
    gated = Gated(store)

    async def others() -> None:
        other = await opened(store)
        await other.append(b"2")
        await other.snapshot(b"state 2")
        await other.append(b"3")
        await other.append(b"4")
        await other.snapshot(b"state 4")
        assert await versions(store, "edit") == [3, 4]
        await store.put_if_absent(f"{PREFIX}/edit/{2:020d}", module._encode("edit", 2, "sleeper-1", b"stray"))

    gated.gates["get"].append(others)  # between listing the snapshots and reading the newest of them
    assert await Journal(gated, PREFIX).load() == Loaded(4, b"state 4", [])


async def test_a_load_that_never_comes_to_rest(store: MemoryStore) -> None:
    gated = Gated(store)
    await (await advance(store, 2))()
    for _ in range(100):
        gated.gates["get"].append(await advance(store, 2))
    with pytest.raises(RetryError, match="faster than it can be read"):
        await Journal(gated, PREFIX).load()


async def test_a_listing_that_misses_an_edit_is_read_again(store: MemoryStore) -> None:
    """A listing of a directory that grows meanwhile may show only the later of two new names."""

    class Patchy(MemoryStore):
        missing = 3

        async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
            rows = await super().list(prefix, start_after, limit)
            if prefix.endswith("edit/") and self.missing:
                self.missing -= 1
                rows = [row for row in rows if not row.key.endswith("2")]
            return rows

    journal = await opened(store)
    for number in range(1, 4):
        await journal.append(b"%d" % number)
    assert await Journal(Patchy(store._objects), PREFIX).load() == Loaded(3, None, [b"1", b"2", b"3"])


async def test_a_snapshot_beside_appends(store: MemoryStore) -> None:
    gated = Gated(store)
    journal = await opened(gated)
    await journal.append(b"1")

    async def append() -> None:
        assert await journal.append(b"2") == 2

    gated.gates["put_if_absent"].append(append)
    assert await journal.snapshot(b"state 1") == 1
    assert await loaded(store) == Loaded(2, b"state 1", [b"2"])


@pytest.mark.parametrize("operation", ["put_if_absent", "list", "delete"])
async def test_a_snapshot_that_fails_half_way_is_made_good_by_the_next(store: MemoryStore, operation: str) -> None:
    faults = FaultStore(store, sleep=asyncio.sleep)
    journal = await opened(faults)
    for number in range(1, 5):
        await journal.append(b"")
        await journal.append(b"")
        if number == 3:
            faults.script(operation, Fault.REFUSED)
            with pytest.raises(RetryError):
                await journal.snapshot(b"state")
        else:
            await journal.snapshot(b"state")
        assert (await loaded(store)).version == 2 * number
    await journal.snapshot(b"state")
    assert len(await versions(store, "snapshot")) == 2
    assert min(await versions(store, "edit")) == (await versions(store, "snapshot"))[0] + 1


# -- when to make a snapshot


async def test_snapshots_are_wanted_when_the_edits_have_cost_as_much(store: MemoryStore) -> None:
    journal = await opened(store)
    assert not journal.wants_snapshot
    await journal.append(bytes(SNAPSHOT_BYTES_MIN))
    assert not journal.wants_snapshot
    await journal.append(b"1")
    assert journal.wants_snapshot
    assert (await opened(store)).wants_snapshot, "what was loaded counts, too"
    await journal.snapshot(bytes(3 * SNAPSHOT_BYTES_MIN))
    assert not journal.wants_snapshot
    for _ in range(3):
        await journal.append(bytes(SNAPSHOT_BYTES_MIN))
    assert not journal.wants_snapshot
    await journal.append(b"1")
    assert journal.wants_snapshot and (await opened(store)).wants_snapshot


async def test_snapshots_are_wanted_when_there_are_many_edits(store: MemoryStore) -> None:
    journal = await opened(store)
    for _ in range(SNAPSHOT_EDITS_MAX - 1):
        await journal.append(b"")
    assert not journal.wants_snapshot
    await journal.append(b"")
    assert journal.wants_snapshot


async def test_more_edits_than_one_listing_holds(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LISTING_KEYS", 3)
    journal = await opened(store)
    for number in range(10):
        await journal.append(b"%d" % number)
    assert (await loaded(store)).edits == [b"%d" % number for number in range(10)]
    await journal.snapshot(b"a")
    await journal.append(b"")
    await journal.snapshot(b"b")
    assert await versions(store, "edit") == [11]


# -- damage


async def write(store: Store, kind: str, version: int, stored: bytes) -> None:
    await store.put(f"{PREFIX}/{kind}/{version:020d}", stored)


GOOD = module._encode("edit", 2, "w-1", b"data")

DAMAGED: dict[str, tuple[bytes, type[HeadgateError]]] = {
    "empty": (b"", CorruptError),
    "cut off in the line": (GOOD[:10], CorruptError),
    "cut off in the data": (GOOD[:-1], CorruptError),
    "longer": (GOOD + b"x", CorruptError),
    "another bit": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), CorruptError),
    "another version": (module._encode("edit", 3, "w-1", b"data"), CorruptError),
    "another kind": (module._encode("snapshot", 2, "w-1", b"data"), CorruptError),
    "no name": (GOOD.replace(b" w-1", b""), CorruptError),
    "something else": (b"\xff\xfe\x00\n\n", CorruptError),
    "a newer release's": (b"headgate-edit 2 whatever that is\n", FatalError),
}


@pytest.mark.parametrize("damage", sorted(DAMAGED))
async def test_damaged_edits(store: MemoryStore, damage: str) -> None:
    stored, error = DAMAGED[damage]
    journal = await opened(store)
    await journal.append(b"1")
    await write(store, "edit", 2, stored)
    with pytest.raises(error, match=f"{2:020d}"):
        await loaded(store)
    with pytest.raises(error, match=f"{2:020d}"):
        await journal.append(b"2")


BAD_SNAPSHOT = b"headgate-snapshot 1 %d w 00000000 5\nstate"


async def test_a_load_begins_before_a_damaged_snapshot(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    journal = await opened(store)
    await journal.append(b"1")
    await journal.snapshot(b"state 1")
    await write(store, "snapshot", 1, BAD_SNAPSHOT % 1)
    assert await loaded(store) == Loaded(1, None, [b"1"]), "there is no other snapshot, and every edit is still there"
    await write(store, "snapshot", 1, module._encode("snapshot", 1, "w", b"state 1"))
    for number in range(2, 8):
        await journal.append(b"%d" % number)
        if number in (3, 5):
            await journal.snapshot(b"state %d" % number)
    await write(store, "snapshot", 5, BAD_SNAPSHOT % 5)
    caplog.clear()
    another = Journal(store, PREFIX)
    assert await another.load() == Loaded(7, b"state 3", [b"4", b"5", b"6", b"7"])
    (told,) = [record for record in caplog.records if record.message == "snapshot_damaged"]
    assert told.levelname == "ERROR"
    assert await another.append(b"8") == 8
    await another.snapshot(b"state 8")
    assert await loaded(store) == Loaded(8, b"state 8", [])


async def test_a_damaged_snapshot_that_the_edits_do_not_reach_is_refused(store: MemoryStore) -> None:
    journal = await opened(store)
    await journal.append(b"1")
    await journal.snapshot(b"state")
    await write(store, "snapshot", 1, BAD_SNAPSHOT % 1)
    await store.delete(f"{PREFIX}/edit/{1:020d}")
    with pytest.raises(CorruptError, match=f"snapshot/{1:020d}"):
        await loaded(store)
    await write(store, "snapshot", 1, b"headgate-snapshot 3 1 w 00000000 5\nstate")
    with pytest.raises(FatalError, match="newer release"):
        await loaded(store)
    await write(store, "snapshot", 1, BAD_SNAPSHOT % 1)
    await write(store, "snapshot", 2, BAD_SNAPSHOT % 2)
    with pytest.raises(CorruptError):
        await loaded(store)


@pytest.mark.parametrize("lost", [1, 2, 4])
async def test_a_lost_edit_is_not_skipped(store: MemoryStore, lost: int) -> None:
    journal = await opened(store)
    for _ in range(5):
        await journal.append(b"")
    await store.delete(f"{PREFIX}/edit/{lost:020d}")
    with pytest.raises(CorruptError, match=f"{lost:020d}"):
        await loaded(store)


async def test_a_foreign_object_is_not_stepped_over(store: MemoryStore) -> None:
    await store.put(f"{PREFIX}/edit/readme.txt", b"")
    with pytest.raises(CorruptError, match=r"readme\.txt"):
        await loaded(store)


@pytest.mark.parametrize("arguments", [{"writer": ""}, {"writer": "a b"}, {"snapshots_kept": 1}])
def test_wrong_arguments(store: MemoryStore, arguments: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        Journal(store, PREFIX, **arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidError):
        Journal(store, "a//b")
