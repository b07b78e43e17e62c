"""Units of adopted files as records, against plain Python: hash, order, columns of many types, and files that lie.

Runs: `unit_rows` and `encode_unit` on files of several writers' kinds. Compared: every partition's rows with those that a loop over
the rows computes, and the batches with a digest of those of the first release. A mismatch means that two brokers, or two releases,
serve other records at an offset.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.log import adopted as module
from headgate.broker.log import adopted_columns
from headgate.broker.log.adopted import Group, described, encode_unit
from headgate.broker.log.adopted_columns import ranges_of
from headgate.broker.log.batch import parse_header
from headgate.broker.log.compression import Codec
from headgate.broker.log.parquet import metadata_of
from headgate.broker.log.recipe import Shape, UnitBytes, Wanted
from headgate.broker.log.records import Record, iter_records
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.adopted import EPOCH, PARTITIONS, Adopted, Row, adopted, checked, file_of, footer_of, rows, table_of, unit_rows

SHAPE = Shape("at", "user", "payload", [], False)
COLUMNS = SHAPE.columns()
ALL = range(PARTITIONS)
arrow: Any = pa


def groups_of(data: bytes, numbers: Sequence[int] | None = None) -> list[Group]:
    """Row groups of a file with the bytes of their columns alone."""
    metadata = metadata_of(footer_of(data))
    found: list[Group] = []
    for number in range(metadata.num_row_groups) if numbers is None else numbers:
        ranges = ranges_of(metadata, number, COLUMNS, len(data))
        found.append(Group(metadata, number, [(begin, memoryview(data)[begin : begin + size]) for begin, size in ranges], {}, {}))
    return found


def found_rows(groups: Sequence[Group], wanted: Sequence[int] = ALL, partitions: int = PARTITIONS) -> list[list[Row]]:
    tables = unit_rows(groups, SHAPE, partitions, list(wanted))
    return [
        [
            Row(*row)
            for row in zip(
                table.column("timestamp").cast(pa.int64()).to_pylist(), table.column("key").to_pylist(),
                table.column("value").to_pylist(), strict=True,
            )
        ]
        for table in tables
    ]  # fmt: skip


def oracle(some: list[Row], partitions: int = PARTITIONS) -> list[list[Row]]:
    return Adopted([b""], [[some]], [[(0, 0, 1)]], partitions).unit_rows(0)


def shuffled(count: int) -> list[Row]:
    """Rows out of order, many of the same time, some before 1970."""
    return [row._replace(time_us=(at * 7919 % 50) * 1_000_300 - 20_000_000) for at, row in enumerate(rows(count))]


FIXED = [row._replace(key=b"%04d" % (at % 37), value=b"%016d" % at) for at, row in enumerate(shuffled(500))]
KINDS: list[Any] = [
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
    arrow.dictionary(pa.int32(), pa.string()), arrow.dictionary(pa.int32(), pa.binary()),
]  # fmt: skip
DELTA = "DELTA_BYTE_ARRAY"
WRITERS: list[dict[str, Any]] = [
    {"compression": "none", "use_dictionary": False},
    {"compression": "gzip", "data_page_version": "2.0", "write_page_checksum": True},
    {"compression": "snappy", "use_dictionary": False, "column_encoding": {"user": DELTA, "payload": DELTA}},
    {"use_dictionary": False, "compression": "zstd",
     "column_encoding": {"payload": "DELTA_LENGTH_BYTE_ARRAY", "at": "DELTA_BINARY_PACKED"}},
    {"compression": "brotli", "dictionary_pagesize_limit": 300, "data_page_size": 500},
    {"compression": "lz4", "write_statistics": False, "write_page_index": True, "store_schema": False},
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dictionary", [True, False])
def test_keys_and_values_of_every_type(kind: Any, dictionary: bool) -> None:
    some = shuffled(400)
    data = file_of(table_of(some, kind, kind), 64, use_dictionary=dictionary)
    assert found_rows(groups_of(data)) == oracle(some)


@pytest.mark.parametrize("options", WRITERS, ids=lambda options: options["compression"])
def test_files_of_every_kind_of_writer(options: dict[str, Any]) -> None:
    some = shuffled(1000)
    assert found_rows(groups_of(file_of(some, 150, **options))) == oracle(some)


def test_keys_and_values_of_a_fixed_size() -> None:
    data = file_of(table_of(FIXED, pa.binary(4), pa.binary(16)), 64)
    assert found_rows(groups_of(data)) == oracle(FIXED)


@pytest.mark.parametrize(
    "time", [pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("s", "UTC")], ids=str
)
def test_times_of_every_unit(time: Any) -> None:
    unit = {"ms": 1000, "us": 1, "s": 1_000_000}[time.unit]
    some = [row._replace(time_us=row.time_us // unit * unit) for row in shuffled(300)]
    table = table_of(some, time=pa.timestamp("us", "UTC"))
    table = table.set_column(1, "at", table.column("at").cast(time))
    assert found_rows(groups_of(file_of(table, 50))) == oracle(some)


def test_times_of_96_bits() -> None:
    some = shuffled(300)
    data = file_of(some, 50, use_deprecated_int96_timestamps=True)
    assert found_rows(groups_of(data)) == oracle(some)
    assert checked(data, range(6), SHAPE) == [50] * 6


@pytest.mark.parametrize("partitions", [1, 2, 7, 100])
def test_some_partitions_have_the_same_rows_as_all(partitions: int) -> None:
    some = shuffled(700)
    groups = groups_of(file_of(some, 100))
    whole = oracle(some, partitions)
    assert found_rows(groups, range(partitions), partitions) == whole
    for wanted in ([0], [partitions - 1], list(range(0, partitions, 3))):
        assert found_rows(groups, wanted, partitions) == [whole[number] for number in wanted]


def test_the_order_of_the_row_groups_decides_among_rows_of_one_time() -> None:
    some = [Row(5, b"k", b"%d" % at) for at in range(40)]
    data = file_of(some, 10)
    swapped = [*groups_of(data, [2, 3]), *groups_of(data, [0, 1])]
    assert [row.value for row in found_rows(swapped, [0], 1)[0]] == [b"%d" % at for at in (*range(20, 40), *range(20))]


def test_empty_row_groups_and_keys_change_nothing() -> None:
    out = io.BytesIO()
    some = [row._replace(key=b"") for row in rows(20)]
    with pq.ParquetWriter(out, table_of(some).schema) as writer:
        for part in (some[:0], some[:15], some[:0], some[15:], some[:0]):
            writer.write_table(table_of(part))
    groups = groups_of(out.getvalue())
    assert len(groups) == 5
    assert found_rows(groups) == oracle(some)


# -- batches


def unit_bytes(source: Adopted, number: int, wanted: list[Wanted], codec: Codec = Codec.NONE) -> tuple[UnitBytes, Any]:
    recipe = source.recipe
    files = [source.files[file] for file in recipe.files_of(recipe.units[number])]
    unit = described(recipe, number, [footer_of(data) for data in files], codec, wanted)
    data = [
        [[(begin, memoryview(data)[begin : begin + size]) for begin, size in ranges] for ranges in file.ranges]
        for data, file in zip(files, unit.files, strict=True)
    ]
    return unit, data


def wanted_of(source: Adopted, number: int) -> list[Wanted]:
    return [Wanted(share.partition, 100 * share.partition, share.rows, EPOCH) for share in source.recipe.units[number].shares]


def test_batches_are_the_records_of_each_partition_and_the_same_for_ever() -> None:
    """The digest is that of the first release. A change of it means a new version of recipes."""
    source = adopted(1500)
    digest = hashlib.sha256()
    for number in range(len(source.units)):
        wanted = wanted_of(source, number)
        batches = list(encode_unit(*unit_bytes(source, number, wanted)))
        found = [record for batch in batches for record in iter_records(batch)]
        some = source.unit_rows(number)
        assert found == [
            Record(one.base_offset + at, row.time_us // 1000, row.key, row.value, ())
            for one in wanted
            for at, row in enumerate(some[one.partition])
        ]
        assert {parse_header(batch).leader_epoch for batch in batches} == {EPOCH}
        for batch in batches:
            digest.update(batch)
        for one in wanted:
            alone = list(encode_unit(*unit_bytes(source, number, [one])))
            assert all(batch in batches for batch in alone), "the same bytes, whatever is decoded beside them"
    assert digest.hexdigest() == "2fa2fc790cc26cbd3d03177a8d56d2f44daa7d6aef711d725e93165be6d88d51"


def test_a_unit_of_two_files_is_one_order() -> None:
    source = adopted(600, 100, 6)
    assert len(source.units) == 1 and len(source.recipe.files_of(source.recipe.units[0])) == 2
    wanted = wanted_of(source, 0)
    batches = list(encode_unit(*unit_bytes(source, 0, wanted, Codec.ZSTD)))
    values = [record.value for batch in batches for record in iter_records(batch)]
    assert values == [row.value for some in source.unit_rows(0) for row in some]


# -- files that lie


def refused(call: Any) -> str:
    with pytest.raises(InvalidError) as caught:
        call()
    assert caught.value.reason is Reason.CORRUPT_MESSAGE
    return caught.value.message


BAD_TABLES: dict[str, Any] = {
    "there is no column": pa.table({"at": arrow.array([1], pa.timestamp("us")), "user": [b"a"]}),
    "of another type: int64": table_of(rows(5)).set_column(1, "at", arrow.array(range(5), pa.int64())),
    "of another type: timestamp\\[ns\\]": table_of(rows(5), time=pa.timestamp("ns")),
    "of another type: double": table_of(rows(5)).set_column(2, "user", arrow.array(range(5), pa.float64())),
    "of another type: list": table_of(rows(5)).set_column(2, "user", arrow.array([["a"]] * 5)),
}


@pytest.mark.parametrize("table", BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_other_columns_are_refused_at_the_fill_and_at_the_read(table: pa.Table) -> None:
    data = file_of(table)
    refused(lambda: checked(data, [0], SHAPE))
    refused(lambda: unit_rows(groups_of(data), SHAPE, 3, [0]))


def test_rows_without_key_or_time_are_refused() -> None:
    some = table_of(rows(5))
    nulls = {"user": arrow.array([b"a", None, b"b", b"c", b"d"]), "at": arrow.array([1, 2, 3, None, 5], pa.timestamp("us"))}
    for name, column in nulls.items():
        data = file_of(some.set_column(some.schema.get_field_index(name), name, column))
        assert "a row has no" in refused(lambda: unit_rows(groups_of(data), SHAPE, 3, [0]))  # noqa: B023


def test_ranges_outside_of_the_file_are_refused() -> None:
    data = file_of(rows(500), 100)
    metadata = metadata_of(footer_of(data))
    assert "there is no row group" in refused(lambda: ranges_of(metadata, 5, COLUMNS, len(data)))
    assert "lies outside" in refused(lambda: ranges_of(metadata, 4, COLUMNS, len(data) // 2))


def test_other_rows_than_counted_are_refused() -> None:
    source = adopted(600)
    (first, *rest) = wanted_of(source, 0)
    bad = [Wanted(first.partition, 0, first.rows + 1, 0), *rest]
    assert "instead of" in refused(lambda: list(encode_unit(*unit_bytes(source, 0, bad))))


def test_broken_pages_are_refused() -> None:
    source = adopted(600, compression="zstd", write_page_checksum=True)
    unit, data = unit_bytes(source, 0, wanted_of(source, 0))
    for at in (0, 5, 40):
        for file in range(len(data)):
            position, part = data[file][0][0]
            broken = bytearray(part)
            broken[at : at + 20] = b"\xff" * 20
            bad = [*data]
            bad[file] = [[(position, memoryview(broken)), *data[file][0][1:]], *data[file][1:]]
            refused(lambda: list(encode_unit(unit, bad)))  # noqa: B023


def test_a_unit_without_rows_is_refused() -> None:
    out = io.BytesIO()
    pq.write_table(table_of([]), out)
    refused(lambda: unit_rows(groups_of(out.getvalue()), SHAPE, 3, [0]))


def test_decoded_bytes_are_bounded_where_one_value_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNIT_BYTES_MAX", 8 << 20)
    some = [Row(at, b"k%d" % at, b"v" * 100_000) for at in range(2000)]
    data = file_of(some, 2000, compression="zstd", dictionary_pagesize_limit=1 << 20)
    assert len(data) < 1 << 16, "200 MB of values"
    before = pa.total_allocated_bytes()
    assert "more than 8 MiB" in refused(lambda: unit_rows(groups_of(data), SHAPE, 3, [0]))
    assert pa.total_allocated_bytes() - before < 80 << 20


def test_a_row_group_that_says_that_it_is_too_large_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopted_columns, "UNIT_BYTES_MAX", 8 << 20)
    some = [Row(at, b"k%d" % at, b"v" * 100_000) for at in range(200)]
    data = file_of(some, 2000, compression="zstd", use_dictionary=False)
    assert "more than 8 MiB" in refused(lambda: checked(data, [0], SHAPE))
    assert "more than 8 MiB" in refused(lambda: groups_of(data))


def test_partitions_have_as_many_batches_as_the_largest_one() -> None:
    """A fetch has one batch of each partition: so they come to the next unit together, and it is decoded once."""
    some = [Row(at, b"k%d" % (at % 23), b"v" * 3000) for at in range(2000)]
    source = Adopted([file_of(some)], [[some]], [[(0, 0, 1)]], 3)
    unit = msgspec.structs.replace(source.recipe.units[0], data_bytes=2000 * 3050)
    recipe = msgspec.structs.replace(source.recipe, units=[unit])
    wanted = [Wanted(one.partition, 0, one.rows, 0) for one in unit.shares]
    made = described(recipe, 0, [footer_of(source.files[0])], Codec.NONE, wanted)
    headers = [parse_header(batch) for batch in encode_unit(made, columns_of(source.files[0]))]
    firsts = [place for place, header in enumerate(headers) if header.base_offset == 0]
    counts = {end - first for first, end in pairwise([*firsts, len(headers)])}
    assert counts == {3} and sum(header.record_count for header in headers) == 2000


def columns_of(data: bytes) -> list[list[list[tuple[int, memoryview]]]]:
    metadata = metadata_of(footer_of(data))
    return [[[(begin, memoryview(data)[begin : begin + size]) for begin, size in ranges_of(metadata, 0, COLUMNS, len(data))]]]
