"""What a flood is known by. No Spark.

A mismatch means that a flood is taken for another one, whose rows are then never loaded, or for a new one, and is loaded twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.backfill import Backfill


def id_of(source: str, format: str = "parquet") -> str:
    return Backfill(topic="t", source=source, format=format).id()


def test_a_local_path_is_the_same_flood_only_in_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    here = id_of("data")
    assert here == id_of(f"{tmp_path}/one/data") == id_of("./data/") == id_of("../one/data")
    monkeypatch.chdir(tmp_path / "other")
    assert id_of("data") != here
    assert id_of("../one/data") == here


@pytest.mark.parametrize(
    ("source", "format"),
    [
        ("s3a://bucket/data/", "parquet"),
        ("file:/data", "csv"),
        ("SELECT * FROM events", "query"),
        ("catalog.events", "iceberg"),
        ("ignored", "jdbc"),
    ],
)
def test_what_is_no_local_path_is_the_same_flood_everywhere(
    source: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = id_of(source, format)
    monkeypatch.chdir(tmp_path)
    assert id_of(source, format) == before
