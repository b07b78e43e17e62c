"""Recipes of adopted files: what goes in comes out, and hostile bytes are refused.

Runs: the codec on good recipes, on every truncation, and on recipes whose parts contradict each other. A mismatch means that a
broker serves rows twice, or that one small object takes the memory of a broker.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from headgate.broker.log.compression import Codec, compress
from headgate.broker.log.recipe import (
    BYTES_MAX,
    CONDITION_CHARS_MAX,
    CONDITIONS_MAX,
    EXPANDED_BYTES_MAX,
    GROUPS_MAX,
    MAGIC,
    ROW_COLUMNS_MAX,
    ROW_NAMES_CHARS_MAX,
    UNIT_BYTES_MAX,
    UNIT_FILES_MAX,
    VERSION,
    VERSION_OF_CONDITIONS,
    VERSION_OF_ROWS,
    VERSIONS,
    AdoptedFile,
    Condition,
    Groups,
    Recipe,
    Share,
    Unit,
    decode_recipe,
    encode_recipe,
    owner_of,
    pin_key,
)
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.errors import raises

FILES = [AdoptedFile(f"topics/t/data/a.recipe-{number:06d}.parquet", 5000, 17 * number, 0xFFFFFFFF) for number in range(2)]
UNITS = [
    Unit([Groups(0, 0, 3)], 1 << 20, [Share(0, 5, -7, 3), Share(2, 1, 3, 3)]),
    Unit([Groups(0, 3, 4), Groups(1, 0, 2)], 1 << 20, [Share(2, 9, 3, 8)]),
]
GOOD = Recipe(version=VERSION, partitions=3, key="k", value="v", time="t", files=FILES, units=UNITS)


GIVEN = [msgspec.structs.replace(one, given={"day": '"2026-01-01"'}) for one in FILES]
ROWS = msgspec.structs.replace(GOOD, version=VERSION_OF_ROWS, value="", row=["t", "day", "offset", "k"], files=GIVEN)


NEWER = msgspec.structs.replace(
    ROWS,
    version=VERSION_OF_CONDITIONS,
    files=[msgspec.structs.replace(one, names={"offset": "day"}) for one in GIVEN],
    conditions=[Condition("n", "<", -5), Condition("text", "=", "x"), Condition("k", "is null")],
)


def newer(**fields: Any) -> Recipe:
    return msgspec.structs.replace(NEWER, **fields)


def rows(**fields: Any) -> Recipe:
    return msgspec.structs.replace(ROWS, **fields)


def changed(**fields: Any) -> Recipe:
    return msgspec.structs.replace(GOOD, **fields)


def unit(**fields: Any) -> Recipe:
    return changed(units=[msgspec.structs.replace(UNITS[0], **fields), UNITS[1]])


def file(**fields: Any) -> Recipe:
    return changed(files=[msgspec.structs.replace(FILES[0], **fields), FILES[1]])


def raw(value: Any) -> bytes:
    return MAGIC + compress(Codec.ZSTD, msgspec.msgpack.encode(value))


def test_round_trip() -> None:
    assert decode_recipe(encode_recipe(GOOD)) == GOOD
    assert decode_recipe(memoryview(encode_recipe(GOOD))) == GOOD
    assert GOOD.shares() == {0: [(0, Share(0, 5, -7, 3))], 2: [(0, Share(2, 1, 3, 3)), (1, Share(2, 9, 3, 8))]}
    assert [GOOD.files_of(one) for one in UNITS] == [[0], [0, 1]]
    assert decode_recipe(encode_recipe(ROWS)) == ROWS and ROWS.shape.columns(["day"]) == ["t", "k", "offset"]
    assert decode_recipe(encode_recipe(NEWER)) == NEWER
    assert NEWER.shape.columns(["day"], NEWER.files[0].names) == ["t", "k", "day", "n", "text"]
    assert [one.shape.version for one in (GOOD, ROWS, NEWER)] == list(VERSIONS)
    assert b"row" not in msgspec.msgpack.encode(GOOD), "older brokers read it"


def test_keys_of_pins_name_their_recipe() -> None:
    assert owner_of(pin_key("topics/t/data/adopted/g.000001.recipe", 12)) == "topics/t/data/adopted/g.000001.recipe"
    assert owner_of("topics/t/data/partition=0/g.parquet") == "topics/t/data/partition=0/g.parquet"


def test_a_newer_version_is_refused_whatever_else_it_holds() -> None:
    with raises(InvalidError, Reason.UNSUPPORTED, "a newer release made the recipe of adopted files: upgrade the brokers"):
        decode_recipe(raw({"version": max(VERSIONS) + 1, "units": "of another shape"}))


BAD = {
    "a row in the first version": rows(version=VERSION),
    "the order of the source in the first version": changed(by_source=True),
    "a given column in the first version": changed(files=GIVEN),
    "a row and a value": rows(value="v"),
    "a column twice in the row": rows(row=["t", "day", "day"]),
    "too many columns": rows(row=["day", *(f"{number}" for number in range(ROW_COLUMNS_MAX))]),
    "too long names": rows(row=["day", "x" * ROW_NAMES_CHARS_MAX]),
    "a given column that is not of the row": rows(row=["t", "offset"]),
    "a given key": rows(key="day"),
    "a span backwards": rows(low_us=5, high_us=5),
    "a span before all times": rows(low_us=-(1 << 63)),
    "a span after all times": rows(high_us=1 << 63),
    "long given values": rows(files=[msgspec.structs.replace(one, given={"day": "1" * (1 << 15)}) for one in FILES]),
    "other given columns": rows(files=[GIVEN[0], FILES[1]]),
    "a condition in the second version": newer(version=VERSION_OF_ROWS, files=GIVEN),
    "other names in the second version": newer(version=VERSION_OF_ROWS, conditions=[]),
    "two columns with one name": newer(files=[msgspec.structs.replace(one, names={"offset": "k"}) for one in GIVEN]),
    "a condition about a column that a file lacks": newer(conditions=[Condition("day", "=", "x")]),
    "a comparison without a constant": newer(conditions=[Condition("n", "<")]),
    "a constant without a comparison": newer(conditions=[Condition("n", "is null", 5)]),
    "a number of more than 64 bits": newer(conditions=[Condition("n", "<", 1 << 63)]),
    "too many conditions": newer(conditions=[Condition("n", "<", number) for number in range(CONDITIONS_MAX + 1)]),
    "too long conditions": newer(conditions=[Condition("n", "<", "x" * CONDITION_CHARS_MAX)]),
    "no partitions": changed(partitions=0),
    "negative partitions": changed(partitions=-1),
    "too many partitions": changed(partitions=1 << 40),
    "no files": changed(files=[]),
    "no units": changed(units=[]),
    "a column twice": changed(key="v"),
    "a column of history": changed(value="offset"),
    "a file without a name": file(path=""),
    "a file without bytes": file(size_bytes=0),
    "a negative size": file(size_bytes=-5),
    "a negative time": file(modified_ns=-1),
    "a negative checksum": file(footer_crc32c=-1),
    "a file twice": file(path=FILES[1].path),
    "no row groups": unit(groups=[]),
    "an unknown file": unit(groups=[Groups(2, 0, 3)]),
    "a negative file": unit(groups=[Groups(-1, 0, 3)]),
    "a negative row group": unit(groups=[Groups(0, -1, 3)]),
    "an empty range": unit(groups=[Groups(0, 2, 2)]),
    "a range backwards": unit(groups=[Groups(0, 3, 1)]),
    "a huge range": unit(groups=[Groups(0, 10, 10 + GROUPS_MAX)]),
    "a row group twice in a unit": unit(groups=[Groups(0, 0, 2), Groups(0, 1, 3)]),
    "a row group in two units": unit(groups=[Groups(0, 0, 4)]),
    "bytes of two units": unit(data_bytes=UNIT_BYTES_MAX + 1),
    "negative bytes": unit(data_bytes=-1),
    "a partition twice": unit(shares=[Share(0, 1, 0, 0), Share(0, 1, 0, 0)]),
    "partitions backwards": unit(shares=[Share(1, 1, 0, 0), Share(0, 1, 0, 0)]),
    "an unknown partition": unit(shares=[Share(3, 1, 0, 0)]),
    "a negative partition": unit(shares=[Share(-1, 1, 0, 0)]),
    "no rows": unit(shares=[Share(0, 0, 0, 0)]),
    "negative rows": unit(shares=[Share(0, -1, 0, 0)]),
    "more rows than offsets": unit(shares=[Share(0, 1 << 62, 0, 0)]),
    "times backwards": unit(shares=[Share(0, 1, 1, 0)]),
}


@pytest.mark.parametrize("recipe", BAD.values(), ids=BAD.keys())
def test_parts_that_contradict_each_other_are_refused_by_writer_and_reader(recipe: Recipe) -> None:
    for call in (lambda: encode_recipe(recipe), lambda: decode_recipe(raw(recipe))):
        with raises(InvalidError, Reason.INVALID_RECORD):
            call()


def test_files_of_one_unit_are_few() -> None:
    files = [AdoptedFile(str(number), 1, 0, 0) for number in range(UNIT_FILES_MAX + 1)]
    groups = [Groups(number, 0, 1) for number in range(UNIT_FILES_MAX + 1)]
    with pytest.raises(InvalidError):
        changed(files=files, units=[Unit(groups, 1, [Share(0, 1, 0, 0)])]).check()
    changed(files=files, units=[Unit(groups[:-1], 1, [Share(0, 1, 0, 0)])]).check()


def test_bytes_that_are_no_recipe_are_refused() -> None:
    good = encode_recipe(GOOD)
    nested: bytes = b"\x91" * 100_000 + b"\xc0"
    deep = MAGIC + compress(Codec.ZSTD, b"\x82\xa7version\x01\xa1x" + nested)
    bomb = MAGIC + compress(Codec.ZSTD, bytes(EXPANDED_BYTES_MAX + 1))
    # An array that says that it has four billion members.
    counted = MAGIC + compress(Codec.ZSTD, b"\x82\xa7version\x01\xa5units\xdd" + struct.pack(">I", 0xFFFFFFFF))
    some = [good[:size] for size in range(len(good))]
    some += [b"HGR2" + good[4:], deep, bomb, counted, raw([]), raw({"version": "1"}), raw({}), raw(None), MAGIC + bytes(100)]
    some += [good[:-1] + b"\xff", MAGIC + bytes(BYTES_MAX)]
    for data in some:
        with pytest.raises(InvalidError) as caught:
            decode_recipe(data)
        assert caught.value.reason is Reason.INVALID_RECORD, data[:40]
