"""Gates that are filled with adopted files: which recipes are refused, and when the files that a recipe keeps go.

Runs: an engine alone over memory, with the leader's part in gates. Compared: each recipe that contradicts its files gives an error
that names it, and none of its rows can be read; the objects in the store after each sweep with those that a partition still needs.
A mismatch means that a topic loses rows that it acknowledged, or keeps files for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.broker.cluster.edits.files import CondemnFiles
from headgate.broker.cluster.gates import Gate, ParquetExtent, data_prefix
from headgate.broker.engine.read.references import References
from headgate.broker.engine.upkeep.inspection import check_store, take_stock
from headgate.broker.engine.upkeep.inventory import Standing
from headgate.broker.log.adopted_columns import ranges_of
from headgate.broker.log.compression import Codec, compress
from headgate.broker.log.parquet import metadata_of
from headgate.broker.log.recipe import MAGIC, RECIPE, Groups, Recipe, encode_recipe, pin_key
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.store.local import LocalStore
from tests.support.adopted import Adopted, adopted, footer_of
from tests.support.errors import raises
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.gate_world import put_file
from tests.unit.engine.world import Incarnation, read_values

HOUR_MS = 3_600_000


class World:
    """A broker with an open gate, for the rows of a recipe that is uploaded."""

    def __init__(self, broker: Incarnation, source: Adopted) -> None:
        self.broker = broker
        self.source = source
        self.gate: Gate

    async def open(self, topic: str = "t", gate: str = "g", config: Mapping[str, str] = {}) -> None:
        await self.broker.engine.create_topic(topic, self.source.partitions, dict(config))
        counts = [len(self.source.rows_of(number)) for number in range(self.source.partitions)]
        self.gate = await self.broker.leader.gates.open(topic, gate, "now", counts, HOUR_MS)
        self.source.path = f"{data_prefix(self.gate.topic_id)}adopted/{gate}-0.000000{RECIPE}"
        for file, data in zip(self.source.recipe.files, self.source.files, strict=True):
            await self.broker.engine.store.put(file.path, data)

    async def put(self, recipe: Recipe | bytes) -> list[ParquetExtent]:
        """Upload a recipe. Returns what fills the gate."""
        data = recipe if isinstance(recipe, bytes) else encode_recipe(recipe)
        await self.broker.engine.store.delete(self.source.path)
        await self.broker.engine.store.put(self.source.path, data)
        bases = {window.partition: window.base_offset for window in self.gate.windows}
        found = []
        for one in self.source.extents(recipe=data).values():
            base = bases[one.partition]
            found.append(replace(one, base_offset=base, end_offset=base + one.rows, leader_epoch=-1))
        return found

    async def fill(self, extents: list[ParquetExtent]) -> Gate:
        return await self.broker.leader.gates.fill("t", "g", extents)

    async def there(self) -> set[str]:
        return {found.key for found in await self.broker.engine.store.list("topics/")}

    @property
    def objects(self) -> set[str]:
        return {self.source.path, *(file.path for file in self.source.recipe.files)}


async def world(make_machine: MakeMachine) -> World:
    made = World(await make_machine("memory").start(), adopted(600))
    await made.open()
    return made


def changed(**fields: Any) -> Callable[[World, Recipe], Recipe]:
    return lambda _, recipe: replace(recipe, **fields)


def first_file(**fields: Any) -> Callable[[World, Recipe], Recipe]:
    return lambda _, recipe: replace(recipe, files=[replace(recipe.files[0], **fields), *recipe.files[1:]])


def _other_path(path: Callable[[World], str]) -> Callable[[World, Recipe], Recipe]:
    return lambda here, recipe: replace(recipe, files=[replace(recipe.files[0], path=path(here)), *recipe.files[1:]])


def _fewer_rows(_: World, recipe: Recipe) -> Recipe:
    share = recipe.units[0].shares[0]
    unit = replace(recipe.units[0], shares=[replace(share, rows=share.rows - 1), *recipe.units[0].shares[1:]])
    return replace(recipe, units=[unit, *recipe.units[1:]])


def _moved_rows(_: World, recipe: Recipe) -> Recipe:
    """A unit has a row less, the next one a row more."""
    units = [*recipe.units]
    for number, change in ((0, -1), (1, 1)):
        share = units[number].shares[0]
        units[number] = replace(units[number], shares=[replace(share, rows=share.rows + change), *units[number].shares[1:]])
    return replace(recipe, units=units)


def _other_times(_: World, recipe: Recipe) -> Recipe:
    share = recipe.units[0].shares[0]
    unit = replace(
        recipe.units[0], shares=[replace(share, timestamp_min_ms=share.timestamp_min_ms - 1), *recipe.units[0].shares[1:]]
    )
    return replace(recipe, units=[unit, *recipe.units[1:]])


def _no_such_group(_: World, recipe: Recipe) -> Recipe:
    last = recipe.units[-1]
    groups = [*last.groups[:-1], Groups(last.groups[-1].file, last.groups[-1].first, last.groups[-1].end + 5)]
    return replace(recipe, units=[*recipe.units[:-1], replace(last, groups=groups)])


BAD: dict[str, tuple[Callable[[World, Recipe], Recipe], str]] = {
    "fewer rows": (_fewer_rows, "another number of rows"),
    "rows of another unit": (_moved_rows, "the files of a unit have another number of rows"),
    "other times": (_other_times, "times are"),
    "a row group that is not there": (_no_such_group, "there is no row group"),
    "a column that is not there": (changed(value="nothing"), "there is no column `nothing`"),
    "a key of another type": (changed(key="before"), "a key or a value is of another type: list"),
    "a missing file": (_other_path(lambda here: pin_key(here.source.path, 9)), "no such file"),
    "a file of another recipe": (_other_path(lambda here: pin_key(here.source.path.replace("-0.", "-1."), 0)), "not its own"),
    "a file of the topic": (_other_path(lambda here: f"{data_prefix(here.gate.topic_id)}x.parquet"), "not its own"),
    "a file of another topic": (_other_path(lambda here: pin_key("topics/other/data/a.recipe", 0)), "not under the topic's prefix"),
    "a file elsewhere": (_other_path(lambda here: "file:///etc/passwd"), "gate_allowed_prefixes"),
    "another size": (first_file(size_bytes=1000), "another size|Parquet file"),
    "another footer": (first_file(footer_crc32c=1), "another checksum"),
}


@pytest.mark.parametrize("name", BAD)
async def test_recipes_that_contradict_their_files_fill_nothing(name: str, make_machine: MakeMachine) -> None:
    here = await world(make_machine)
    spoil, expected = BAD[name]
    extents = await here.put(spoil(here, here.source.recipe))
    with pytest.raises(InvalidError, match=expected) as caught:
        await here.fill(extents)
    assert caught.value.reason is Reason.INVALID_REFERENCE and "path=`" in caught.value.message
    assert here.broker.leader.gates.describe("t", "g").state == "open"
    assert (await here.fill(await here.put(here.source.recipe))).state == "filled"
    for partition in range(here.source.partitions):
        assert await read_values(here.broker, "t", partition) == [row.value for row in here.source.rows_of(partition)]


async def test_objects_that_are_no_recipe_fill_nothing(make_machine: MakeMachine) -> None:
    here = await world(make_machine)
    newer = MAGIC + compress(Codec.ZSTD, b"\x81\xa7version\x63")
    for data, expected in ((b"HGR1", "not a recipe"), (b"PAR1" * 10, "not a recipe"), (newer, "a newer release made the recipe")):
        with pytest.raises(InvalidError, match=expected) as caught:
            await here.fill(await here.put(data))
        assert caught.value.reason is Reason.INVALID_REFERENCE and here.source.path in caught.value.message
    good = await here.put(here.source.recipe)
    for bad, expected in (
        ([*good[:-1], replace(good[-1], footer_crc32c=1)], "another size or checksum for another partition"),
        ([replace(one, footer_crc32c=1) for one in good], "another checksum than stated"),
        ([replace(one, size_bytes=one.size_bytes - 1) for one in good], "another size than stated"),
        ([replace(one, size_bytes=1 << 40) for one in good], "no recipe of adopted files"),
        ([replace(one, path=here.source.recipe.files[0].path) for one in good], "no recipe of adopted files"),
        ([replace(one, path=one.path.replace(RECIPE, f"{RECIPE}-x{RECIPE}")) for one in good], "no recipe of adopted files"),
        ([replace(good[0], adopted_bytes=-1), *good[1:]], "at least one row"),
        ([replace(one, adopted_bytes=0) for one in good], "twice"),
        ([*good, good[0]], "twice"),
    ):
        with raises(InvalidError, Reason.INVALID_REFERENCE, expected):
            await here.fill(bad)
    assert (await here.fill(good)).rows == 600


async def test_pins_stay_as_long_as_one_partition_needs_their_recipe(make_machine: MakeMachine, clock: ManualClock) -> None:
    here = await world(make_machine)
    engine, files = here.broker.engine, here.broker.leader.gates.files
    extents = await here.put(here.source.recipe)
    clock.advance(10 * HOUR_MS)  # links are as old as their source
    await files.sweep(0)
    assert await here.there() == here.objects, "the gate is open"
    await here.fill(extents)
    for partition in range(here.source.partitions):
        await files.sweep(0)
        assert await here.there() == here.objects and not engine.manifest.condemned
        stock = await take_stock(engine.store, 0)
        assert all(one.standing is Standing.NEEDED for one in stock.judged if one.found.key in here.objects)
        last = here.source.partitions - 1
        assert await read_values(here.broker, "t", last) == [row.value for row in here.source.rows_of(last)]
        for path in here.objects:
            with pytest.raises(InvalidError, match="in use"):
                await here.broker.leader.journal.commit_made(lambda _, path=path: [CondemnFiles([path])])  # type: ignore[misc]
        await engine.delete_records(here.broker.log("t", partition), len(here.source.rows_of(partition)))
    clock.advance(HOUR_MS)
    await files.sweep(HOUR_MS)
    assert await here.there() == set() and not engine.manifest.condemned


async def test_pins_of_a_flood_that_failed_go(make_machine: MakeMachine, clock: ManualClock) -> None:
    here = await world(make_machine)
    await here.put(here.source.recipe)
    clock.advance(HOUR_MS)
    await here.broker.leader.gates.release("t", "g")
    await here.broker.leader.gates.files.sweep(HOUR_MS)
    assert await here.there() == set()


async def test_a_recipe_with_a_condemned_pin_fills_nothing(make_machine: MakeMachine) -> None:
    here = await world(make_machine)
    extents = await here.put(here.source.recipe)
    await here.broker.leader.journal.commit_made(lambda _: [CondemnFiles([pin_key(here.source.path, 0)])])
    with pytest.raises(InvalidError, match="being deleted"):
        await here.fill(extents)


async def test_a_file_whose_name_looks_like_a_pin_is_kept_for_its_own_sake(make_machine: MakeMachine, clock: ManualClock) -> None:
    broker = await make_machine("memory").start()
    await broker.engine.create_topic("t", 1, {})
    gate = await broker.leader.gates.open("t", "g", "now", [20], HOUR_MS)
    plain = await put_file(broker.engine, gate, gate.windows[0], 0, 20)
    odd = replace(plain, path=f"{data_prefix(gate.topic_id)}my{RECIPE}-1.parquet")
    await broker.engine.store.put(odd.path, await broker.engine.store.get(plain.path))
    await broker.leader.gates.fill("t", "g", [odd])
    clock.advance(HOUR_MS)
    await broker.leader.gates.files.sweep(HOUR_MS)
    assert {one.key for one in await broker.engine.store.list("topics/")} == {odd.path}
    with pytest.raises(InvalidError, match="in use"):
        await broker.leader.journal.commit_made(lambda _: [CondemnFiles([odd.path])])


async def test_a_check_of_the_store_names_the_file_that_changed(make_machine: MakeMachine, tmp_path: Path) -> None:
    machine = make_machine("local")
    here = World(await machine.start(), adopted(600, compression="zstd", write_page_checksum=True))
    await here.open()
    root = tmp_path / "store"
    pins = [file.path for file in here.source.recipe.files]
    here.source.modified_ns = [os.stat(root / path).st_mtime_ns for path in pins]
    await here.fill(await here.put(here.source.recipe))
    store = LocalStore(str(root))
    references = References(store, "", here.broker.engine.turns)

    async def damages(*, deep: bool) -> list[tuple[str, str, int]]:
        found = await check_store(store, references, 0, deep=deep, progress=lambda _done, _of: None)
        return [(one.key, one.what, sum(some.end_offset - some.first_offset for some in one.records)) for one in found.damages]

    assert await damages(deep=False) == [] and await damages(deep=True) == []
    good = here.source.files[1]
    begin, size = ranges_of(metadata_of(footer_of(good)), 0, here.source.recipe.shape.columns(), len(good))[-1]
    for spoil, deep, expected in (
        (good[: begin + size - 9] + bytes(9) + good[begin + size :], True, "cannot be read"),
        (good[:200], False, "another size"),
        (None, False, "no such file"),
    ):
        await store.delete(pins[1])
        if spoil is not None:
            await store.put(pins[1], spoil)
            os.utime(root / pins[1], ns=(0, here.source.modified_ns[1]))
        ((key, what, rows),) = await damages(deep=deep)
        assert (key, rows) == (here.source.path, 600) and expected in what and pins[1] in what, what
    await store.put(pins[1], good)
    os.utime(root / pins[1], ns=(0, here.source.modified_ns[1] + 1))
    ((key, what, _),) = await damages(deep=False)
    assert "was written over after it was counted" in what and pins[1] in what
    os.utime(root / pins[1], ns=(0, here.source.modified_ns[1]))
    assert await damages(deep=True) == []
    await references.close()
    await store.close()
