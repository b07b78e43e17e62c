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
