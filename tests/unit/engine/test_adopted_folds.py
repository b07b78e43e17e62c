"""Folds of adopted rows (`broker/engine/upkeep/adopted*.py`): the rows of a recipe become folded files, a unit once for all
partitions.

Runs: an engine alone, with the leader's part in gates, over memory and a directory; units whose file is missing or changed, deleted
records, late edits, the death of a broker at every call. Compared: the records that consumers read before and after, the number of
decoded units, the files that stay, and the layout for readers by reference. A mismatch means that a fold loses or changes records,
or lets go of a file that a reader needs.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.files import FoldToFiles
from headgate.broker.cluster.gates import Gate, GateWindow, ParquetExtent
from headgate.broker.cluster.manifest_format import decode_edits, decode_snapshot, encode_edits, encode_snapshot
from headgate.broker.engine.read.references import References
from headgate.broker.engine.upkeep import adopted_folder, adopted_work, file_writer
from headgate.broker.engine.upkeep.adopted_folds import AdoptedJob, AdoptedResult, keeper
from headgate.broker.engine.upkeep.inspection import check_store
from headgate.broker.engine.upkeep.merging import MERGE_FILES
from headgate.broker.log import adopted as log_adopted
from headgate.broker.log.adopted import UnitRows
from headgate.broker.log.json_rows import json_rows
from headgate.broker.log.records import Record
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.runtime.steps import finish
from headgate.broker.server.grpc.layout import layout
from headgate.broker.store.local import LocalStore
from headgate.broker.wire.grpc.headgate.v1 import gates_pb2
from tests.support.adopted import adopted, file_of
from tests.unit.engine.conftest import MakeMachine, machine_on
from tests.unit.engine.test_adopted_gates import HOUR_MS, World
from tests.unit.engine.test_offline import AT_ONCE, OFF, deaths_of_folds, files, folded, seen
from tests.unit.engine.world import Commit, Incarnation, Machine, at_next_commit

PARTITIONS = 3


machine = machine_on("memory")


class Decoded:
    """Counts the decoded units."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units: list[list[int]] = []
        decode = log_adopted.decode_unit

        def counted(unit: Any, data: Any) -> UnitRows:
            self.units.append([one.partition for one in unit.wanted])
            return decode(unit, data)

        monkeypatch.setattr(adopted_work, "decode_unit", counted)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    return Decoded(monkeypatch)


async def flooded(machine: Machine, rows: int = 600, config: dict[str, str] | None = None) -> World:
    """A topic with an adopted flood, five units in two files."""
    broker = await machine.start()
    here = World(broker, adopted(rows, group_rows=rows // 10, unit_groups=2))
    await here.open(config=AT_ONCE if config is None else config)
    await here.fill(await here.put(here.source.recipe))
    return here


async def all_seen(broker: Incarnation) -> list[list[tuple[Record, int]]]:
    return [await seen(broker, "t", number) for number in range(PARTITIONS)]


def adopted_left(broker: Incarnation) -> list[ParquetExtent]:
    return [one for gate in broker.leader.gates.list_all("t") for one in gate.extents if one.adopted]


async def lose(here: World, file: int) -> bytes:
    """Delete a kept file. Returns its bytes."""
    path = here.source.recipe.files[file].path
    data = await here.broker.engine.store.get(path)
    await here.broker.engine.store.delete(path)
    return data


async def test_a_unit_is_decoded_once_and_consumers_see_the_same_records(
    machine: Machine, decoded: Decoded, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(file_writer, "FILE_BYTES", 2_000)
    here = await flooded(machine)
    broker, files_of_gates = here.broker, here.broker.leader.gates.files
    before = await all_seen(broker)
    told = [(gate.digest, gate.rows, gate.files, gate.size_bytes) for gate in broker.leader.gates.list_all("t")]
    assert await folded(broker) == PARTITIONS
    assert decoded.units == [[0, 1, 2]] * 5 and not adopted_left(broker)
    for number in range(PARTITIONS):
        made = files(broker, "t", number)
        assert len(made) > 1 and all(one.history and one.dense for one in made)
        assert (made[0].base_offset, made[-1].end_offset) == (0, len(before[number]))
        # Direct readers find the folded files, and no hole.
        found = finish(layout(broker.engine.manifest, "/s", gates_pb2.LayoutRequest(topic="t"))).partitions[number]
        assert [one.path for one in found.files] == [one.path for one in made] and not found.holes
    assert await all_seen(broker) == before
    assert [(gate.digest, gate.rows, gate.files, gate.size_bytes) for gate in broker.leader.gates.list_all("t")] == told
    assert not broker.log().has_live, "history is not live"
    # Readers of an old layout have the time of the grace period. Then the recipe and the files that it kept go.
    made_paths = {one.path for number in range(PARTITIONS) for one in files(broker, "t", number)}
    for step_ms in (0, HOUR_MS // 2):
        clock.advance(step_ms)
        await broker.leader.tables.write_due()
        await files_of_gates.sweep(HOUR_MS)
        assert {one for one in await here.there() if not one.endswith((".json", ".avro"))} == here.objects | made_paths
    clock.advance(HOUR_MS)
    await files_of_gates.sweep(HOUR_MS)
    assert {one for one in await here.there() if not one.endswith((".json", ".avro"))} == made_paths
    assert not broker.engine.manifest.superseded and not broker.engine.manifest.condemned
    broker = await machine.restart(broker)
    assert await all_seen(broker) == before and await folded(broker) == 0


async def test_rows_as_json_are_made_in_steps(machine: Machine, monkeypatch: pytest.MonkeyPatch, decoded: Decoded) -> None:
    """A file is complete in the middle of a unit, and has the rows of its offsets."""
    monkeypatch.setattr(file_writer, "FILE_BYTES", 6_000)
    monkeypatch.setattr(adopted_work, "HELD_BYTES", 15_000)
    monkeypatch.setattr(log_adopted, "JSON_ROWS", 7)
    broker = await machine.start()
    here = World(broker, adopted(600, group_rows=60, unit_groups=3))
    await here.open(config=AT_ONCE)
    await here.fill(await here.put(replace(here.source.recipe, version=2, value="", row=["payload", "user"])))
    await broker.engine.delete_records(broker.log("t", 1), 11)
    before = await all_seen(broker)
    assert before[0][5][0].value is not None and before[0][5][0].value.startswith(b'{"payload":')
    assert await folded(broker) == PARTITIONS and len(decoded.units) == len(here.source.units)
    for number in range(PARTITIONS):
        made = files(broker, "t", number)
        assert 2 < len(made) < MERGE_FILES and all(one.dense for one in made)
    assert await all_seen(broker) == before

    # A row that cannot be made costs its unit alone.
    other = World(broker, adopted(600, group_rows=60, unit_groups=1))
    await other.open("u", config=AT_ONCE)
    await broker.leader.gates.fill("u", "g", await other.put(replace(other.source.recipe, version=2, value="", row=["payload"])))
    before = [await seen(broker, "u", number) for number in range(PARTITIONS)]
    made_rows, calls = json_rows, []

    def refuses(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 20:
            raise InvalidError(Reason.CORRUPT_MESSAGE, "a row is too large")
        return made_rows(*arguments, **options)

    monkeypatch.setattr(log_adopted, "json_rows", refuses)
    assert await folded(broker) == PARTITIONS and broker.engine.running.offline.adopted.units_stuck == 1
    monkeypatch.setattr(log_adopted, "json_rows", made_rows)
    assert [await seen(broker, "u", number) for number in range(PARTITIONS)] == before
    left = broker.leader.gates.list_all("u")[0].extents
    assert len({one.partition for one in left}) == len(left) and sum(one.rows for one in left) == 60


@pytest.mark.parametrize("broken", [0, 2, 4])
async def test_a_unit_that_cannot_be_folded_stays_and_is_tried_again(
    machine: Machine, decoded: Decoded, clock: ManualClock, caplog: pytest.LogCaptureFixture, broken: int
) -> None:
    # A file for each unit.
    broker = await machine.start()
    source = adopted(600, group_rows=60, unit_groups=1)
    rows = [group for file in source.groups for group in file]
    source.groups = [[group] for group in rows]
    source.files = [file_of(group) for group in rows]
    source.units = [[(number, 0, 1)] for number in range(len(rows))]
    here = World(broker, source)
    await here.open(config=AT_ONCE)
    await here.fill(await here.put(source.recipe))
    before = await all_seen(broker)
    data = await lose(here, broken)
    done = await folded(broker)
    assert done == PARTITIONS and broker.engine.running.offline.adopted.units_stuck == 1
    left = adopted_left(broker)
    assert [(one.partition, one.rows) for one in left] == [(one.partition, one.rows) for one in source.recipe.units[broken].shares]
    for one, share in zip(left, source.recipe.units[broken].shares, strict=True):
        assert (one.timestamp_min_ms, one.timestamp_max_ms) == (share.timestamp_min_ms, share.timestamp_max_ms)
    for number, part in enumerate(before):
        gone = next(one for one in left if one.partition == number)
        made = files(broker, "t", number)
        covered = sorted([*((one.base_offset, one.end_offset) for one in made), (gone.base_offset, gone.end_offset)])
        assert [low for low, _ in covered] == [0, *(high for _, high in covered[:-1])] and covered[-1][1] == len(part)
    # Nothing changes, and the log says nothing more, until the time has come.
    units = len(decoded.units)
    for _ in range(5):
        assert await folded(broker) == 0
    assert len(decoded.units) == units
    assert caplog.messages.count("adopted_rows_not_folded") == 1
    # The state is the same after a restart, from a snapshot too.
    manifest = broker.engine.manifest
    assert decode_snapshot(encode_snapshot(manifest)).gates.of(here.gate.topic_id)["g"].extents == left
    await machine.crash(broker)
    broker = here.broker = await machine.start()
    assert adopted_left(broker) == left
    path = source.recipe.files[broken].path
    references = References(broker.engine.store, "", broker.engine.turns)
    (damage,) = (await check_store(broker.engine.store, references, 0, deep=True, progress=lambda _d, _o: None)).damages
    assert path in damage.what and sum(one.end_offset - one.first_offset for one in damage.records) == len(rows[broken])
    # A file that no row needs any more is nobody's damage.
    await lose(here, (broken + 3) % len(rows))
    assert len((await check_store(broker.engine.store, references, 0, deep=True, progress=lambda _d, _o: None)).damages) == 1
    # The piece that stays keeps all files of its recipe.
    clock.advance(10 * HOUR_MS)
    await broker.leader.tables.write_due()
    await broker.leader.gates.files.sweep(HOUR_MS)
    assert len(here.objects - await here.there()) == 2
    assert await folded(broker) == 0
    await broker.engine.store.put(path, data)
    clock.advance(int(adopted_folder.AGAIN_S * 1000) + 1)
    assert await all_seen(broker) == before, "the piece is read as before"
    assert await folded(broker) == len(left) and not adopted_left(broker)
    assert await all_seen(broker) == before and broker.engine.running.offline.adopted.units_stuck == 0
    assert (await check_store(broker.engine.store, references, 0, deep=True, progress=lambda _d, _o: None)).is_whole
    await references.close()


async def test_a_file_that_was_written_over_is_not_folded(
    make_machine: MakeMachine, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path / "store"))

    async def as_a_process(_: object, job: AdoptedJob) -> AdoptedResult:
        return await adopted_work.fold_adopted(store, job)

    monkeypatch.setattr("headgate.broker.engine.upkeep.file_fold_process.LoopWorker.fold_adopted", as_a_process)
    broker = await make_machine("local").start()
    here = World(broker, adopted(600, group_rows=60, unit_groups=5))
    await here.open(config=AT_ONCE)
    pins = [tmp_path / "store" / file.path for file in here.source.recipe.files]
    here.source.modified_ns = [os.stat(pin).st_mtime_ns for pin in pins]
    await here.fill(await here.put(here.source.recipe))
    before = await all_seen(broker)
    os.utime(pins[1], ns=(0, here.source.modified_ns[1] + 1))
    assert await folded(broker) == PARTITIONS
    left = adopted_left(broker)
    assert sum(one.rows for one in left) == 300 and {one.first_row for one in left} == {one.base_offset for one in left}
    os.utime(pins[1], ns=(0, here.source.modified_ns[1]))
    clock.advance(int(adopted_folder.AGAIN_S * 1000) + 1)
    assert await folded(broker) == PARTITIONS and await all_seen(broker) == before and not adopted_left(broker)
    await store.close()


async def test_a_recipe_that_is_lost_stops_nothing_else(
    make_machine: MakeMachine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    here = await flooded(make_machine("memory"))
    broker = here.broker
    recipe = await broker.engine.store.get(here.source.path)
    await broker.engine.store.delete(here.source.path)
    other = World(broker, adopted(300))
    await other.open("u", config=AT_ONCE)
    await broker.leader.gates.fill("u", "g", await other.put(other.source.recipe))
    for _ in range(3):
        await folded(broker)
    assert [one.rows for number in range(PARTITIONS) for one in files(broker, "u", number)] == [
        len(other.source.rows_of(number)) for number in range(PARTITIONS)
    ]
    assert len(adopted_left(broker)) == PARTITIONS and caplog.messages.count("adopted_rows_not_folded") == 1
    await broker.engine.store.put(here.source.path, recipe)
    clock.advance(int(adopted_folder.AGAIN_S * 1000) + 1)
    assert await folded(broker) == PARTITIONS and not adopted_left(broker)


async def test_any_prefix_of_offsets_may_be_deleted(machine: Machine, decoded: Decoded, clock: ManualClock) -> None:
    here = await flooded(machine, config=OFF)
    broker = here.broker
    before = await all_seen(broker)
    sizes = [len(part) for part in before]
    # Inside of the first unit, inside of a later one, and all.
    starts = [5, sizes[1] // 2 + 3, sizes[2]]
    for number, start in enumerate(starts):
        await broker.engine.delete_records(broker.log("t", number), start)
    wanted = [part[start:] for part, start in zip(before, starts, strict=True)]
    assert await all_seen(broker) == wanted
    assert await folded(broker) == 0, "switched off"
    await broker.engine.alter_topic_config(broker.engine.topic("t"), AT_ONCE)
    assert await folded(broker) == 2
    assert await all_seen(broker) == wanted
    assert [[one.base_offset for one in files(broker, "t", number)] for number in range(3)] == [[starts[0]], [starts[1]], []]
    # Of the partitions without readable rows nothing is decoded.
    assert decoded.units[0] == [0] and decoded.units[-1] == [0, 1]
    clock.advance(HOUR_MS)
    # The first sweep forgets the extent without readable rows.
    for _ in range(2):
        await broker.leader.tables.write_due()
        await broker.leader.gates.files.sweep(0)
    assert not here.objects & await here.there() and not adopted_left(broker)
    await machine.crash(broker)
    assert await all_seen(await machine.start()) == wanted


async def test_a_topic_stays_a_view_of_the_lake(make_machine: MakeMachine) -> None:
    here = await flooded(make_machine("memory"), config={**AT_ONCE, "history.fold": "never"})
    broker = here.broker
    before = await all_seen(broker)
    assert await folded(broker) == 0 and len(adopted_left(broker)) == PARTITIONS
    assert await all_seen(broker) == before
    await broker.engine.alter_topic_config(broker.engine.topic("t"), AT_ONCE)
    assert await folded(broker) == PARTITIONS and await all_seen(broker) == before


async def test_age_decides(make_machine: MakeMachine, clock: ManualClock) -> None:
    here = await flooded(make_machine("memory"), config={"offline.after.ms": str(HOUR_MS), "offline.after.bytes": "0"})
    assert await folded(here.broker) == 0
    clock.advance(HOUR_MS + 1)
    assert await folded(here.broker) == PARTITIONS


async def test_many_partitions_hold_little_memory(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, decoded: Decoded
) -> None:
    monkeypatch.setattr(adopted_work, "HELD_BYTES", 3_000)
    here = await flooded(make_machine("memory"))
    before = await all_seen(here.broker)
    assert await folded(here.broker) == PARTITIONS
    assert len(decoded.units) == 5 and sum(len(files(here.broker, "t", number)) for number in range(PARTITIONS)) > 6
    assert await all_seen(here.broker) == before


async def test_a_large_recipe_takes_several_jobs(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, decoded: Decoded
) -> None:
    monkeypatch.setattr(adopted_folder, "JOB_BYTES", 1)
    here = await flooded(make_machine("memory"))
    before = await all_seen(here.broker)
    assert await folded(here.broker) == PARTITIONS * 5 and len(decoded.units) == 5
    assert await all_seen(here.broker) == before and not adopted_left(here.broker)


async def test_folds_that_come_too_late_change_nothing(make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the edits of written files, records are deleted, another broker folds the same, or the topic is deleted."""
    machine = make_machine("memory")
    here = await flooded(machine)
    broker = here.broker
    before = await all_seen(broker)
    kept: list[Edit] = []

    async def deletes_first(commit: Commit, edits: Sequence[Edit]) -> None:
        kept.extend(edits)
        await broker.engine.delete_records(broker.log("t", 0), 9)
        await commit()

    at_next_commit(monkeypatch, deletes_first)
    assert await folded(broker) >= PARTITIONS
    assert await all_seen(broker) == [before[0][9:], *before[1:]]
    # The same edits again, as another broker would propose them that folded at the same time.
    folds = [edit for edit in kept if isinstance(edit, FoldToFiles)]
    assert len(folds) == PARTITIONS and await broker.engine.running.offline.commit(folds) == 0
    assert decode_edits(encode_edits(folds)) == folds
    await machine.crash(broker)

    machine = make_machine("memory")
    here = await flooded(machine)
    broker = here.broker

    async def drops_first(commit: Commit, _: Sequence[Edit]) -> None:
        await broker.engine.delete_topic(broker.engine.topic("t"))
        await commit()

    at_next_commit(monkeypatch, drops_first)
    assert await folded(broker) == 0
    assert broker.engine.running.offline.adopted.units_stuck == 0


async def test_death_at_any_call_loses_nothing(machine: Machine, clock: ManualClock) -> None:
    here = await flooded(machine, 300)
    broker = here.broker
    before = await all_seen(broker)
    await machine.crash(broker)
    assert await deaths_of_folds(machine, all_seen, before) > 8
    broker = here.broker = await machine.start()
    await folded(broker)
    assert not adopted_left(broker) and await all_seen(broker) == before
    clock.advance(10 * HOUR_MS)
    await broker.leader.tables.write_due()
    await broker.leader.gates.files.sweep(HOUR_MS)
    left = {one for one in await here.there() if one.endswith(".parquet")}
    assert left == {one.path for number in range(PARTITIONS) for one in files(broker, "t", number)}, "no file of a dead fold stays"


async def test_a_process_that_dies_of_a_recipe_is_not_begun_for_ever(
    make_machine: MakeMachine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = await flooded(make_machine("memory"))
    broker = here.broker
    begun = []

    async def dies(*_: object) -> None:
        begun.append(1)
        raise RetryError(Reason.STORE_UNAVAILABLE, "the process ended: killed")

    with monkeypatch.context() as patch:
        patch.setattr("headgate.broker.engine.upkeep.file_fold_process.LoopWorker.fold_adopted", dies)
        for number in range(5):
            if number < adopted_folder.TRIES - 1:
                with pytest.raises(RetryError):
                    await folded(broker)
            else:
                assert await folded(broker) == 0
    assert len(begun) == adopted_folder.TRIES and caplog.messages.count("adopted_rows_not_folded") == 1
    clock.advance(int(adopted_folder.AGAIN_S * 1000) + 1)
    assert await folded(broker) == PARTITIONS


def test_the_recipes_of_a_gate_are_spread_over_partitions() -> None:
    windows = [GateWindow(number, 0, 0 if number == 2 else 10, 1) for number in range(4)]
    gate = Gate(id="g", topic_id=uuid.uuid4(), place="now", windows=windows, ttl_ms=1, opened_ms=0)
    one = ParquetExtent(0, 0, 5, 1, "r", 1, 0, 0, 0, adopted_bytes=1)
    assert {keeper(gate, replace(one, footer_crc32c=crc)) for crc in range(8)} == {0, 1, 3}
