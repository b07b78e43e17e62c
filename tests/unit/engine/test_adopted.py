"""Adopted files as Kafka clients get them: by offset, by time, from good files and from changed ones.

Runs: the reader of history on recipes, over a directory, memory, and memory behind the wrapper of brokers, with encoder processes
and without. Compared: every answer with that of plain Python over the same rows, and the number of decoded units with the necessary
one. A mismatch means that a consumer gets other records than the source has, or bytes that were written after the flood.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine.read.encoding import Encoders, UnitSource
from headgate.broker.engine.read.history import HistoryReader
from headgate.broker.log.batch import crc_matches, parse_header
from headgate.broker.log.compression import Codec
from headgate.broker.log.crc import crc32c
from headgate.broker.log.recipe import UnitBytes, encode_recipe
from headgate.broker.log.records import Record, iter_records
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import ClosedError, CorruptError, HeadgateError, InvalidError, Reason
from headgate.broker.store.interface import Store
from headgate.broker.store.local import LocalStore
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.store.wrappers import MeteredStore
from tests.support.adopted import EPOCH, Adopted, adopted
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.test_history import KeptEncoders, MakeReader
from tests.unit.engine.test_history import make_reader_of as make_reader

__all__ = ["make_reader"]  # a fixture

COUNT = 1500


class CountedEncoders(KeptEncoders):
    """Counts the units."""

    def __init__(self) -> None:
        super().__init__()
        self.units: list[list[int]] = []
        """The partitions that were wanted of each decoded unit."""

    def encode_unit(self, unit: UnitBytes, source: UnitSource) -> list[memoryview]:
        self.units.append([one.partition for one in unit.wanted])
        return super().encode_unit(unit, source)


@pytest.fixture(scope="module")
def kept() -> Iterator[CountedEncoders]:
    encoders = CountedEncoders()
    yield encoders
    Encoders.close(encoders)


@pytest.fixture
def encoders(kept: CountedEncoders) -> CountedEncoders:
    kept.units.clear()
    return kept


@pytest_asyncio.fixture(params=["directory", "memory", "metered memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store = (
        LocalStore(str(tmp_path / "store")) if request.param == "directory" else MemoryStore(MemoryObjects(ManualClock(0)))
    )
    yield MeteredStore(made, ManualClock(0)) if request.param.startswith("metered") else made
    await made.close()


@pytest_asyncio.fixture
async def directory(tmp_path: Path) -> AsyncIterator[LocalStore]:
    made = LocalStore(str(tmp_path / "store"))
    yield made
    await made.close()


async def put(store: Store, source: Adopted) -> dict[int, ParquetExtent]:
    """Upload the files and their recipe."""
    recipe = source.recipe
    for file, data in zip(recipe.files, source.files, strict=True):
        await store.put(file.path, data)
    await store.put(source.path, encode_recipe(recipe))
    return source.extents()


def shown(batches: list[memoryview]) -> list[Record]:
    assert all(crc_matches(batch) and parse_header(batch).leader_epoch == EPOCH for batch in batches)
    return [record for batch in batches for record in iter_records(batch)]


async def read_all(
    reader: HistoryReader, extent: ParquetExtent, offset: int | None = None, max_bytes: int = 1 << 20
) -> list[Record]:
    found: list[Record] = []
    offset = extent.base_offset if offset is None else offset
    while offset < extent.end_offset:
        found += [record for record in shown(await reader.read(extent, offset, max_bytes)) if record.offset >= offset]
        offset = found[-1].offset + 1
    return found


@pytest.mark.parametrize("alone", [False, True], ids=["processes", "threads"])
async def test_every_offset_from_any_start(store: Store, make_reader: MakeReader, encoders: CountedEncoders, alone: bool) -> None:
    source = adopted(COUNT)
    extents = await put(store, source)
    reader = make_reader(store, None if alone else encoders)
    for partition, extent in extents.items():
        wanted = source.records(partition, extent.base_offset)
        assert await read_all(reader, extent) == wanted
        for offset in range(extent.base_offset, extent.end_offset, 83):
            assert shown(await reader.read(extent, offset, 1))[0].offset <= offset
            assert await read_all(reader, extent, offset, 3000) == wanted[offset - extent.base_offset :]


async def test_the_bytes_of_an_offset_do_not_depend_on_the_reader(
    directory: LocalStore, make_reader: MakeReader, encoders: CountedEncoders
) -> None:
    source = adopted(COUNT)
    extents = await put(directory, source)

    async def all_bytes(reader: HistoryReader, extent: ParquetExtent, offset: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        while offset < extent.end_offset:
            for batch in await reader.read(extent, offset, 1):
                header = parse_header(batch)
                found[header.base_offset], offset = bytes(batch), header.next_offset
        return found

    together = make_reader(directory, encoders)
    first = await asyncio.gather(*(all_bytes(together, one, one.base_offset) for one in extents.values()))
    for extent, wanted in zip(extents.values(), first, strict=True):
        for how, cache in ((encoders, 0), (None, 64 << 20)):
            again = await all_bytes(make_reader(directory, how, cache), extent, extent.base_offset + len(wanted) // 2)
            assert again.items() <= wanted.items()


async def test_partitions_that_are_read_together_cost_one_decode_of_each_unit(
    directory: LocalStore, make_reader: MakeReader, encoders: CountedEncoders
) -> None:
    source = adopted(COUNT)
    extents = await put(directory, source)
    reader = make_reader(directory, encoders)
    await asyncio.gather(*(reader.read(one, one.base_offset, 1) for one in extents.values()))
    found = await asyncio.gather(*(read_all(reader, one) for one in extents.values()))
    assert [len(some) for some in found] == [one.rows for one in extents.values()]
    # The first unit may be decoded for the first reader before the others have come.
    shares = sum(len(unit.shares) for unit in source.recipe.units)
    assert len(encoders.units) <= len(source.units) + 2 and sum(map(len, encoders.units)) <= shares + 2, encoders.units


async def test_a_partition_alone_has_only_its_own_rows_decoded(
    directory: LocalStore, make_reader: MakeReader, encoders: CountedEncoders
) -> None:
    source = adopted(COUNT)
    extents = await put(directory, source)
    reader = make_reader(directory, encoders)
    assert await read_all(reader, extents[1]) == source.records(1, extents[1].base_offset)
    assert encoders.units == [[1]] * len(source.units)
    assert reader.encoded_rows == extents[1].rows


async def test_a_piece_is_read_beside_the_whole(directory: LocalStore, make_reader: MakeReader, encoders: CountedEncoders) -> None:
    """A fold has left a piece of an extent that another reader still has as a whole: both want the same rows of a unit."""
    source = adopted(COUNT)
    whole = (await put(directory, source))[1]
    rows = len(source.unit_rows(0)[1])
    piece = replace(whole, base_offset=whole.base_offset + rows, first_row=rows)
    last = replace(piece, base_offset=whole.end_offset - len(source.unit_rows(len(source.units) - 1)[1]))
    last = replace(last, first_row=last.base_offset - whole.base_offset)
    wanted = source.records(1, whole.base_offset)
    reader = make_reader(directory, encoders)
    found = await asyncio.gather(*(read_all(reader, one) for one in (whole, piece, last)))
    assert found == [wanted, wanted[rows:], wanted[-last.rows :]]
    assert await reader.first_at(last, 0, last.base_offset) == (wanted[-last.rows].timestamp_ms, last.base_offset)
    for bad in (
        replace(piece, first_row=rows + 1),
        replace(piece, first_row=rows - 1),
        replace(piece, end_offset=piece.end_offset - 1),
    ):
        with pytest.raises(CorruptError, match="another number of rows"):
            await reader.read(bad, bad.base_offset, 1)


async def test_look_ups_by_time(store: Store, make_reader: MakeReader, encoders: CountedEncoders) -> None:
    source = adopted(COUNT)
    extents = await put(store, source)
    reader = make_reader(store, encoders, codec=Codec.ZSTD)
    chance = random.Random(5)
    for partition, extent in extents.items():
        wanted = source.records(partition, extent.base_offset)
        for _ in range(60):
            time_ms = chance.choice(wanted).timestamp_ms + chance.choice((-1, 0, 1))
            offset = chance.randrange(extent.base_offset, extent.end_offset)
            later = [(one.timestamp_ms, one.offset) for one in wanted if one.offset >= offset]
            expected = next((one for one in later if one[0] >= time_ms), None)
            assert await reader.first_at(extent, time_ms, offset) == expected
            assert await reader.greatest(extent, offset) == max(time for time, _ in later)
        assert await reader.first_at(extent, wanted[-1].timestamp_ms + 1, extent.base_offset) is None


# -- files that are not those that were counted


def _missing(path: Path) -> None:
    path.unlink()


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _replaced(path: Path) -> None:
    data = adopted(1200).files[1]
    path.unlink()
    path.write_bytes(data)


def _overwritten(path: Path) -> None:
    """The same size, the same footer, other rows."""
    with path.open("r+b") as file:
        file.seek(200)
        file.write(b"\0" * 50)


def _spoil(path: Path, spoil: Callable[[Path], None]) -> None:
    before = path.stat()
    spoil(path)
    if path.exists() and path.stat().st_mtime_ns == before.st_mtime_ns:
        # A file system's clock may not have moved.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


@pytest.mark.parametrize("alone", [False, True], ids=["processes", "threads"])
@pytest.mark.parametrize("cached", [False, True], ids=["cold", "footers known"])
@pytest.mark.parametrize("spoil", [_missing, _truncated, _longer, _replaced, _overwritten])
async def test_a_changed_file_harms_its_own_offsets_alone(
    directory: LocalStore, make_reader: MakeReader, encoders: CountedEncoders, tmp_path: Path, alone: bool, cached: bool,
    spoil: Callable[[Path], None],
) -> None:  # fmt: skip
    source = adopted(COUNT)
    paths = [tmp_path / "store" / file.path for file in source.recipe.files]
    await put(directory, source)
    source.modified_ns = [os.stat(path).st_mtime_ns for path in paths]
    extents = await put_recipe(directory, source)
    reader = make_reader(directory, None if alone else encoders, cache_bytes_max=0)
    if cached:
        for extent in extents.values():
            await reader.read(extent, extent.end_offset - 1, 1)
    await asyncio.to_thread(_spoil, paths[1], spoil)
    for partition, extent in extents.items():
        # Units of the first file alone: those before the first unit with rows of the second one.
        good = sum(
            len(source.unit_rows(unit)[partition]) for unit, groups in enumerate(source.units) if {at[0] for at in groups} == {0}
        )
        wanted = source.records(partition, extent.base_offset)[:good]
        found: list[Record] = []
        while len(found) < good:
            found += shown(await reader.read(extent, extent.base_offset + len(found), 1))
        assert found == wanted
        for offset in (extent.base_offset + good, extent.end_offset - 1):
            with pytest.raises(HeadgateError) as caught:
                await reader.read(extent, offset, 1)
            assert isinstance(caught.value, CorruptError) or caught.value.reason is Reason.NOT_FOUND, caught.value


async def put_recipe(store: Store, source: Adopted) -> dict[int, ParquetExtent]:
    await store.delete(source.path)
    await store.put(source.path, encode_recipe(source.recipe))
    return source.extents()


async def test_a_damaged_recipe_harms_its_own_offsets_alone(
    directory: LocalStore, make_reader: MakeReader, encoders: CountedEncoders
) -> None:
    source, other = adopted(COUNT), adopted(900)
    other.path = source.path.replace("000000", "000001")
    extents, others = await put(directory, source), await put(directory, other)
    reader = make_reader(directory, encoders)
    data = encode_recipe(source.recipe)
    for bad in (data[:-1], data + b"x", data[:50] + bytes(1) + data[51:]):
        await directory.delete(source.path)
        await directory.put(source.path, bad)
        for extent in extents.values():
            with pytest.raises(CorruptError, match=source.path):
                await reader.read(extent, extent.base_offset, 1)
    # Whole, but not a recipe.
    await directory.delete(source.path)
    await directory.put(source.path, b"HGR1 nothing")
    for extent in extents.values():
        lying = replace(extent, size_bytes=12, footer_crc32c=crc32c(b"HGR1 nothing"))
        with pytest.raises(CorruptError, match="not a recipe"):
            await reader.read(lying, extent.base_offset, 1)
    await directory.delete(source.path)
    for extent in extents.values():
        with raises(InvalidError, Reason.NOT_FOUND):
            await reader.read(extent, extent.base_offset, 1)
    assert await read_all(reader, others[0]) == other.records(0, others[0].base_offset)
    await directory.put(source.path, data)
    assert await read_all(reader, extents[0]) == source.records(0, extents[0].base_offset), "no error is kept"


def descriptors() -> int:
    """The number of open ones, without memory that encoders share: that is used again."""
    found = 0
    for one in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += not os.readlink(f"/proc/self/fd/{one}").startswith("/memfd:")
    return found


async def test_closing_while_units_are_decoded_leaves_no_descriptor(directory: LocalStore, encoders: CountedEncoders) -> None:
    source = adopted(COUNT)
    extents = await put(directory, source)

    async def once(turns: int) -> None:
        reader = HistoryReader(lambda path: (directory, path), cache_bytes_max=0, parallel=2, encoders=encoders)
        reads = [asyncio.create_task(reader.read(one, one.base_offset, 1)) for one in extents.values()]
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns % 3 == 0:
            reads[0].cancel()
        await reader.close()
        for ended in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(ended, list | ClosedError | asyncio.CancelledError), ended

    await once(1000)
    before = descriptors()
    for turns in range(0, 120, 3):
        await once(turns)
    # A thread that has ended tells the loop, which then closes its files.
    await until_async(lambda: descriptors() <= before)


async def test_many_partitions_open_a_recipe_once(store: Store, make_reader: MakeReader, encoders: CountedEncoders) -> None:
    source = adopted(COUNT)
    source.partitions = 40
    extents = await put(store, source)
    reads: list[str] = []

    class Counting:
        async def get_range(self, key: str, start: int, length: int) -> bytes:
            reads.append(key)
            return bytes(await store.get_range(key, start, length))

    counting: Any = Counting()
    reader = HistoryReader(lambda path: (counting, path), cache_bytes_max=64 << 20, parallel=2, encoders=encoders)
    await asyncio.gather(*(reader.read(one, one.base_offset, 1) for one in extents.values()))
    await reader.close()
    assert reads.count(source.path) == 1
