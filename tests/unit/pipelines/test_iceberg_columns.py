"""Columns of data files as those of an Iceberg table: the rules of the specification, and files that were added to a table as they
were. Without Spark; `e2e/test_flood_iceberg.py` compares whole rows with PyIceberg's. A mismatch means a wrong value in records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.columns.kinds import of_kind
from headgate.pipelines.iceberg_columns import FIELD_ID, as_text, has_uuid, reading_of
from headgate.pipelines.iceberg_table import local_or_url, read_snapshot

arrow: Any = pa


def field(name: str, number: int | None, kind: Any = None) -> Any:
    return arrow.field(name, kind or pa.int64(), metadata=None if number is None else {FIELD_ID: str(number)})


def struct(*parts: Any) -> Any:
    return arrow.struct(list(parts))


@pytest.mark.parametrize(
    ("file", "fields", "values"),
    [
        ([field("a", 1), field("b", 2)], {"a": "a", "b": "b"}, {"c": "default"}),
        ([field("old", 1), field("gone", 9)], {"a": "old"}, {"b": "partition", "c": "default"}),
        ([field("b", 1), field("a", 2)], {"a": "b", "b": "a"}, {"c": "default"}),
        ([field("a", 8), field("b", 2)], {"b": "b"}, {"a": None, "c": "default"}),
        # Without ids: by the table's mapping of names.
        ([field("a", None), field("beta", None), field("c", None)], {"a": "a", "b": "beta"}, {"c": "default"}),
        ([field("A", None)], {}, {"a": None, "b": "partition", "c": "default"}),
    ],
)
def test_a_column_is_the_field_of_its_id_or_a_value(file: list[Any], fields: dict[str, str], values: dict[str, object]) -> None:
    table = pa.schema([field("a", 1), field("b", 2), field("c", 3)])
    found = reading_of(pa.schema(file), table, {2: "partition"}, {2: "unused", 3: "default"}, {"a": 1, "beta": 2})
    assert {name: one.name for name, one in found.fields.items()} == fields
    assert found.values == values and not found.nested


def test_parts_within_columns_are_compared_by_ids() -> None:
    table = pa.schema([field("s", 1, struct(field("x", 2), field("y", 3))), field("l", 4, arrow.list_(field("element", 5)))])
    same = reading_of(table, table, {}, {}, {})
    assert same.nested == frozenset()
    for kind in (struct(field("x", 2)), struct(field("x", 2), field("y", 9)), struct(field("y", 3), field("x", 2))):
        found = reading_of(pa.schema([field("s", 1, kind)]), table, {}, {}, {})
        assert found.nested == {"s"} and found.shape != same.shape
    with pytest.raises(InvalidError, match="without ids of fields has other parts"):
        reading_of(pa.schema([field("s", None, struct(field("z", None)))]), table, {}, {}, {"s": 1})


def test_files_that_were_added_as_they_were(tmp_path: Path) -> None:
    """They have no ids, and lie in directories whose names are no URL."""
    catalog: Any = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("web")
    table = catalog.create_table("web.added", Schema(NestedField(1, "n", LongType()), NestedField(2, "user", StringType())))
    path = tmp_path / "kind=%C3%B6 50%"
    path.mkdir()
    pq.write_table(pa.table({"n": [1, 2], "user": ["a", "b"]}), path / "one.parquet")
    table.add_files([f"file://{path}/one.parquet"])
    with table.update_schema() as update:
        update.rename_column("user", "person")
    (file,) = read_snapshot(table.metadata_location, {}).files
    assert file.path == f"{path}/one.parquet" and dict(file.reading.names) == {"n": "n", "person": "user"}
    Path(file.path).unlink()
    with pytest.raises(InvalidError, match="a data file of the table is not there"):
        read_snapshot(table.metadata_location, {})


def test_locations_are_not_decoded() -> None:
    for location, path in (
        ("file:///lake/a%2Fb/x", "/lake/a%2Fb/x"),
        ("file:/lake/#?/x", "/lake/#?/x"),
        ("/lake/ö", "/lake/ö"),
        ("s3://lake/a%2Fb", "s3://lake/a%2Fb"),
    ):
        assert local_or_url(location) == path


def test_uuids_are_text() -> None:
    kind = arrow.uuid()
    stored = pa.array([bytes(range(16)), None, b"\xff" * 16, bytes(16)], pa.binary(16))
    column = arrow.ExtensionArray.from_storage(kind, stored)
    texts = ["00010203-0405-0607-0809-0a0b0c0d0e0f", None, "ffffffff-ffff-ffff-ffff-ffffffffffff"]
    assert of_kind(column, "string").to_pylist()[:3] == texts
    assert of_kind(column[2:], "string").to_pylist() == [texts[2], "00000000-0000-0000-0000-000000000000"]
    assert of_kind(column[:0], "string").to_pylist() == []
    nested = struct(arrow.field("l", arrow.list_(kind)), arrow.field("m", arrow.map_(pa.string(), kind)))
    assert has_uuid(nested) and not has_uuid(as_text(nested)) and as_text(kind) == pa.string()
