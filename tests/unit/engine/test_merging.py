"""Files that are folded again (`broker/engine/upkeep/merging.py`): files of gates, small ones, and files with deleted records.

Runs: floods and publishes that become folded files, many small folds, DeleteRecords inside a file; edits that come too late, and
the death of a broker at every call. Compared: the records that consumers read before and after, the gates' own words, the layout
for readers by reference, and the files that are left. A mismatch means that a merge changes records, or a flood's certificate.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.objects import Topic
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.engine.partition.extents import AnyExtent, AnyRef, FileRef
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.upkeep import merging
from headgate.broker.engine.upkeep.merging import MERGE_FILES, choose_files, span_ms_max
from headgate.broker.log.buffers import BufferPool
from headgate.broker.log.tail import TailMemory
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.runtime.steps import finish
from headgate.broker.server.grpc.layout import layout
from headgate.broker.wire.grpc.headgate.v1 import gates_pb2
from tests.unit.engine.conftest import machine_on
from tests.unit.engine.gate_world import files_for, value_of
from tests.unit.engine.test_offline import AT_ONCE, HOUR_MS, chunk_extents, deaths_of_folds, files, filled, folded, seen
from tests.unit.engine.world import Commit, Incarnation, Machine, at_next_commit

DAY_MS = 24 * HOUR_MS


machine = machine_on("memory")


async def flood(broker: Incarnation, gate_id: str, rows: list[int], per_file: int = 1000) -> None:
    gate = await broker.leader.gates.open("t", gate_id, "now", rows, 60_000)
    await broker.leader.gates.fill("t", gate_id, await files_for(broker.engine, gate, per_file=per_file))


async def objects(broker: Incarnation) -> set[str]:
    return {one.key for one in await broker.store.list("topics/") if one.key.endswith(".parquet")}


async def start(machine: Machine, partitions: int = 2, **config: str) -> Incarnation:
    return await machine.begin(partitions, {**AT_ONCE, **config})


async def test_files_of_gates_become_one_and_their_gates_stay(machine: Machine) -> None:
    broker = await start(machine)
    for number in range(4):
        await flood(broker, f"flood-{number}", [5, 5])
    gates = broker.leader.gates
    before = [await seen(broker, "t", partition) for partition in range(2)]
    told = [(gate.id, gate.digest, gate.rows, gate.files, gate.size_bytes) for gate in gates.list_all("t")]
    refilled = [one for gate in gates.list_all("t") for one in gate.extents if gate.id == "flood-1"]
    assert [len(part) for part in before] == [20, 20] and not files(broker)
    assert await folded(broker) == 2
    for partition in range(2):
        (file,) = files(broker, "t", partition)
        assert (file.base_offset, file.end_offset, file.rows, file.history, file.dense) == (0, 20, 20, True, True)
        assert await seen(broker, "t", partition) == before[partition]
    assert [(gate.id, gate.digest, gate.rows, gate.files, gate.size_bytes) for gate in gates.list_all("t")] == told
    # The same fill again answers as the first time, although its files are no longer the topic's.
    assert (await gates.fill("t", "flood-1", refilled)).digest == told[1][1]
    with pytest.raises(InvalidError, match="filled with other files"):
        await gates.fill("t", "flood-1", refilled[:1])
    assert not broker.log().has_live, "history is not live"
    assert not (await gates.open("t", "next", "now", [1, 1], 60_000)).live
    await gates.release("t", "next")
    # Readers by reference find the rows, and no hole where they are.
    (merged,) = files(broker, "t", 1)
    found = finish(layout(broker.engine.manifest, "/s", gates_pb2.LayoutRequest(topic="t"))).partitions[1]
    assert [(one.base_offset, one.rows, one.path) for one in found.files] == [(0, 20, merged.path)] and not found.folded
    assert [(one.base_offset, one.end_offset) for one in found.holes] == [(20, 21)]
    request = gates_pb2.LayoutRequest(topic="t", wanted=gates_pb2.RecordRange())
    found = finish(layout(broker.engine.manifest, "/s", request)).partitions[1]
    assert [(one.file.path, one.end_offset) for one in found.folded] == [(merged.path, 20)] and not found.files
    broker = await machine.restart(broker)
    assert [await seen(broker, "t", partition) for partition in range(2)] == before
    assert not broker.log().has_live and not (await broker.leader.gates.open("t", "last", "now", [1, 1], 60_000)).live


async def test_replaced_files_stay_for_their_readers(machine: Machine, clock: ManualClock) -> None:
    broker = await start(machine, 1)
    await flood(broker, "flood", [50], per_file=10)
    old = await objects(broker)
    clock.advance(DAY_MS)  # the files are old when others take their place
    assert await folded(broker) == 1
    (file,) = files(broker)
    await broker.leader.tables.write_due()
    await broker.leader.gates.files.sweep(HOUR_MS)
    assert await objects(broker) == old | {file.path}
    broker = await machine.restart(broker)
    clock.advance(HOUR_MS // 2)
    await broker.leader.tables.write_due()
    await broker.leader.gates.files.sweep(HOUR_MS)
    assert await objects(broker) == old | {file.path}
    clock.advance(HOUR_MS)
    await broker.leader.tables.write_due()
    await broker.leader.gates.files.sweep(HOUR_MS)
    assert await objects(broker) == {file.path} and not broker.engine.manifest.superseded
    assert [record.value for record, _ in await seen(broker)] == [value_of("flood", 0, row) for row in range(50)]


async def test_small_files_are_merged(machine: Machine) -> None:
    broker = await start(machine, 1)
    for number in range(MERGE_FILES - 1):
        await filled(broker, 1, start=number)
        assert await folded(broker) == 1
    assert len(files(broker)) == MERGE_FILES - 1
    before = await seen(broker)
    await filled(broker, 1, start=MERGE_FILES - 1)
    assert await folded(broker) == 2
    (file,) = files(broker)
    after = await seen(broker)
    assert after[: len(before)] == before and len(after) == MERGE_FILES * 40 == file.rows
    assert not file.history and broker.log().has_live
    for number in range(MERGE_FILES, 3 * MERGE_FILES):
        await filled(broker, 1, start=number)
        await folded(broker)
    assert len(files(broker)) < MERGE_FILES, "a partition has a few small files at any time"
    assert len(await seen(broker)) == 3 * MERGE_FILES * 40
    await machine.crash(broker)
    assert len(await seen(await machine.start())) == 3 * MERGE_FILES * 40


async def test_a_merge_that_comes_too_late_changes_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await start(machine, 1)
    await flood(broker, "flood", [50], per_file=10)
    before = await seen(broker)
    offline = broker.engine.running.offline
    (late,) = [fold async for fold in offline.fold_each()]
    (first,) = [fold async for fold in offline.fold_each()]
    assert await offline.commit([first]) == 1
    assert await offline.commit([late]) == 0
    assert [one.path for one in files(broker)] == [one.path for one in first.files]
    # Records are deleted during a merge of folded files: the file that takes their place begins too early, and is written again.
    await broker.engine.delete_records(broker.log(), 7)
    assert await folded(broker) == 0

    async def late_commit(commit: Commit, _: Sequence[Edit]) -> None:
        await broker.engine.delete_records(broker.log(), 9)
        await commit()

    at_next_commit(monkeypatch, late_commit)
    assert await folded(broker) == 1
    assert [record.offset for record, _ in await seen(broker)] == list(range(9, 50))
    for _ in range(3):
        await folded(broker)
    (file,) = files(broker)
    assert (file.base_offset, file.rows) == (9, 41)
    assert await seen(broker) == before[9:]


async def test_files_of_a_fold_under_way_are_not_swept(
    machine: Machine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edit comes late, as that of a broker whose leader does not answer; a short grace period is over meanwhile."""
    broker = await start(machine, 1)
    await flood(broker, "flood", [50], per_file=10)
    before = await seen(broker)

    async def late_commit(commit: Commit, _: Sequence[Edit]) -> None:
        clock.advance(HOUR_MS // 2)
        for _ in range(2):
            await broker.leader.gates.files.sweep(1)
        await commit()

    at_next_commit(monkeypatch, late_commit)
    assert await folded(broker) == 1
    assert await seen(broker) == before
    # Files of a fold that never came to its edit go in the end, at once if their broker is gone.
    monkeypatch.setattr(broker.engine.running.offline, "commit", nothing)
    left = {one.path for one in files(broker)}
    for number, gone_by in enumerate((2 * HOUR_MS, 1)):
        await flood(broker, f"more-{number}", [5])
        await folded(broker)
        assert await objects(broker) > left | {one.path for gate in broker.leader.gates.list_all("t") for one in gate.extents}
        if number:
            broker = await machine.restart(broker)
        clock.advance(gone_by + 1)
        if not number:
            await broker.leader.gates.files.sweep(gone_by)  # they look old from now on
            clock.advance(HOUR_MS)
        await broker.leader.tables.write_due()
        await broker.leader.gates.files.sweep(gone_by)
        assert await objects(broker) == left | {one.path for gate in broker.leader.gates.list_all("t") for one in gate.extents}


async def test_files_of_a_fold_under_way_stay_with_a_clock_that_was_wrong_at_the_start(
    machine: Machine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that knows no other clock has no doubt, and takes each new file for an old one."""
    broker = await start(machine, 1)
    await flood(broker, "flood", [50], per_file=10)
    before = await seen(broker)

    async def late_commit(commit: Commit, _: Sequence[Edit]) -> None:
        clock.jump_wall(720 * HOUR_MS)
        broker.engine.clock.adopt(clock.now_ms())
        assert broker.engine.clock.doubt is None
        for _ in range(2):
            await broker.leader.gates.files.sweep(1)
        await commit()

    at_next_commit(monkeypatch, late_commit)
    assert await folded(broker) == 1
    assert await seen(broker) == before


async def nothing(*_: object) -> int:
    return 0


async def test_death_at_any_call_of_a_merge_loses_nothing(machine: Machine) -> None:
    broker = await start(machine)
    for number in range(3):
        await flood(broker, f"flood-{number}", [5, 5])
    await filled(broker, 2)
    before = [await seen(broker, "t", partition) for partition in range(2)]
    await machine.crash(broker)

    async def all_seen(check: Incarnation) -> object:
        return [await seen(check, "t", partition) for partition in range(2)]

    assert await deaths_of_folds(machine, all_seen, before) > 5
    broker = await machine.start()
    await folded(broker)
    assert not chunk_extents(broker) and not any(gate.extents for gate in broker.leader.gates.list_all("t"))


# -- the choice


KIB = 1 << 10


def log_with(sizes: list[int], *, path: str = "topics/", records: int = 10) -> PartitionLog:
    """A partition with files of these sizes, of ten offsets each."""
    topic = Topic(id=uuid.uuid4(), name="t", partitions=1)
    log = PartitionLog(topic, 0, TopicConfig.parse({}), 0, 1, TailMemory(BufferPool(0), 0), end_offset=10 * len(sizes))
    rows: list[tuple[AnyExtent, AnyRef]] = [
        (ParquetExtent(0, at * 10, at * 10 + 10, 1, f"{path}{at}", size, 0, 0, 0, records), FileRef("", at))
        for at, size in enumerate(sizes)
    ]
    log.restore(rows, [], [], 0)
    return log


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([KIB] * 7, None),
        ([KIB] * 8, (0, 8)),
        ([100 << 20, *[KIB] * 9], (1, 10)),
        # Small neighbours are merged among themselves before they join a larger one.
        ([100 * KIB, *[KIB] * 7], None),
        ([100 * KIB] * 7 + [KIB] * 3 + [100 * KIB], (0, 11)),
        ([100 * KIB] * 7 + [40 << 20] + [100 * KIB] * 7, None),
        ([8 << 20] * 8, (0, 8)),
        ([33 << 20] * 20, None),
    ],
)
def test_neighbours_of_a_size_are_chosen(sizes: list[int], chosen: tuple[int, int] | None) -> None:
    found = choose_files(log_with(sizes), frozenset(), at_rest=True, old_ms=1 << 60)
    rows = [extent.base_offset // 10 for extent, _ in found]
    assert rows == ([] if chosen is None else list(range(*chosen)))


def test_foreign_files_stay_where_they_are() -> None:
    assert choose_files(log_with([KIB] * 20, path="s3://other/", records=-1), frozenset(), at_rest=True, old_ms=1 << 60) == []
    assert len(choose_files(log_with([KIB] * 3, records=-1), frozenset(), at_rest=True, old_ms=1 << 60)) == 3
    assert len(choose_files(log_with([KIB] * 3, records=-1), frozenset(), at_rest=True, old_ms=2)) == 2, "those that are old"
    assert choose_files(log_with([KIB] * 3, records=-1), frozenset(), at_rest=True, old_ms=None) == [], "the clock is in doubt"


def test_a_merge_beside_a_deletion_brings_no_deleted_file_back() -> None:
    log, merged = log_with([KIB] * 4), log_with([2 * KIB] * 4)
    log.set_log_start(20)
    log.folded(0, 40, merged.sealed.extents, merged.sealed.refs)
    assert [extent.base_offset for extent in log.sealed.extents] == [20, 30]
    assert log.size_bytes == 4 * KIB


def test_a_merge_does_not_hold_back_retention() -> None:
    assert span_ms_max(TopicConfig.parse({"retention.ms": str(32 * DAY_MS)})) == 2 * DAY_MS
    assert span_ms_max(TopicConfig.parse({"retention.ms": str(DAY_MS // 2)})) == HOUR_MS
    assert span_ms_max(TopicConfig.parse({"retention.ms": "-1"})) == merging.SPAN_MS_ANY
    assert span_ms_max(TopicConfig.parse({"cleanup.policy": "compact"})) == merging.SPAN_MS_ANY
