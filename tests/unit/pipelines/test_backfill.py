"""The identity of a flood. No Spark.

A mismatch means that a flood is taken for another one, and its rows are never loaded, or for a new one, and its rows are loaded
twice.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.broker.client.gate_admin import Gate, GateState, Place
from headgate.broker.cluster.gates import DEFINITION_CHARS_MAX
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.backfill import Backfill


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


LINES = {"header": "true", "inferSchema": "true"}
SAME: list[list[tuple[str, str, dict[str, str], str]]] = [
    # One source under several spellings, each with the id that an earlier release gave to it.
    [
        ("s3://lake/day", "parquet", {}, "flood-4d314cca735ea666"),
        ("s3://lake/day/", "parquet", {}, "flood-c3da708e586c6d8a"),
        ("s3a://lake/day", "parquet", {}, "flood-73423dec0666430e"),
        ("s3n://lake/day/", "Parquet", {}, "flood-312a702453bf0093"),
        ("S3A://lake//day", "PARQUET", {"mergeSchema": "False", "recursivefilelookup": "false"}, ""),
    ],
    [
        ("/lake/day", "csv", LINES, "flood-da48ee83ad9ba272"),
        ("file:///lake/day", "csv", LINES, "flood-c04f8da19cc89dd1"),
        ("file:/lake/day/", "csv", LINES, "flood-642f1f9fb37157ff"),
        ("/lake/./day/", "csv", {"HEADER": "TRUE", "inferschema": "true", "delimiter": ",", "mode": "PERMISSIVE"}, ""),
    ],
    [("SELECT 1", "query", {}, "flood-9b04c4c0df707a9f")],
    [("cat.t", "iceberg", {"uri": "http://x"}, "flood-fa8a8679b1fb504e")],
    [("hdfs://n/lake", "json", {}, ""), ("hdfs://n/lake/", "json", {"multiLine": "false"}, "")],
]


def test_a_source_is_one_flood_under_all_spellings_and_is_found_as_earlier_releases_loaded_it() -> None:
    ids = set()
    for spelled in SAME:
        floods = [
            Backfill(topic="t", source=source, format=format, options=options, key="user") for source, format, options, _ in spelled
        ]
        (one,) = {flood.id() for flood in floods}
        ids.add(one)
        assert len({flood.definition() for flood in floods}) == 1
        known = {spelling[3] for spelling in spelled} - {""} - {"flood-312a702453bf0093"}
        for flood, (*_, before) in zip(floods, spelled, strict=True):
            former = list(flood.identity().former_ids())
            assert known <= {one, *former} and before in (one, "", *former) and len(former) <= 30
    assert len(ids) == len(SAME)
    for changed in ({"sep": ";"}, {"header": "false"}, {"nullValue": "TRUE"}):
        assert Backfill(topic="t", source="/lake/day", format="csv", options=LINES | changed, key="user").id() not in ids
    for path in ("s3://lake/Day", "s3://lake/d ay", "s3://lake/day%2F", "/lake/day"):
        assert Backfill(topic="t", source=path, key="user").id() not in ids


def test_a_gate_of_an_earlier_release_is_of_this_flood() -> None:
    ours = Backfill(topic="t", source="s3a://lake/day/", flood_id="f", key="user")
    before = ours.definition().replace("source=ce5c70aeeb84", "source=dbb33d1fa9c5")
    gate = Gate(
        topic="t", id="f", place=Place.NOW, state=GateState.OPEN, windows=(), store_url="", prefix="", opened_ms=1, expires_in_ms=1,
        definition=before,
    )  # fmt: skip
    assert before != ours.definition() and ours.differs_from(gate) == []
    assert replace(ours, source="s3a://lake/other").differs_from(gate) == ["source"]


def test_a_flood_stays_the_same_when_a_password_changes() -> None:
    def flood(**options: str) -> Backfill:
        return Backfill(topic="t", source="ignored", format="jdbc", options=options)

    before = flood(dbtable="events", password="old", AccessKey="a")
    after = flood(dbtable="events", password="new", AccessKey="b")
    assert (before.id(), before.definition()) == (after.id(), after.definition())
    assert flood(dbtable="other", password="old").id() != before.id()


def test_another_flood_under_an_id_is_told_what_differs_and_what_can_be_done() -> None:
    ours = Backfill(topic="t", source="/data", flood_id="f", key="user", options={"url": "jdbc:x?user=me&pass=secret"})
    gate = Gate(
        topic="t", id="f", place=Place.NOW, state=GateState.OPEN, windows=(), store_url="", prefix="", opened_ms=1, expires_in_ms=1,
        definition=ours.definition(),
    )  # fmt: skip
    ours.check_definition(gate)
    assert "secret" not in gate.definition and len(gate.definition) <= DEFINITION_CHARS_MAX
    for one, words in (
        (gate, "or release its gate. flood_id=`f` topic=`t` state=`open` differs=`key, where`"),
        (replace(gate, state=GateState.FILLED), "(--flood-id). flood_id=`f` topic=`t` state=`filled` differs=`key, where`"),
        (replace(gate, definition=""), "differs=`not a flood's gate`"),
    ):
        with pytest.raises(InvalidError) as caught:
            replace(ours, key="number", where="number < 3").check_definition(one)
        assert caught.value.reason is Reason.GATE_CONFLICT and words in caught.value.message
