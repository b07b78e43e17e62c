"""Rows as JSON, without Spark. `tests/e2e/test_columns.py` compares them with Spark's text; here they are compared with Python's
values, for slices, for columns that lack values in every place, and for bytes that are no text."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.broker.log.java_numbers import java_text
from headgate.broker.log.json_rows import UnlikeJavaError, is_writable, json_bytes_max, json_rows

arrow: Any = pa
ITEM = arrow.struct([("n", pa.int64()), ("words", pa.list_(pa.string()))])
VALUES: list[dict[str, Any]] = [
    {"text": 'a"\\\n\x01é', "items": [{"n": 1, "words": ["x", None]}, None], "counts": {"k": 1, "l": None}},
    {"text": "", "items": [], "counts": {}},
    {"text": "b", "items": [{"n": None, "words": None}], "counts": {"a\tb": 5}},
    {"text": None, "items": None, "counts": None},
]
KINDS: dict[str, Any] = {"text": pa.string(), "items": pa.list_(ITEM), "counts": pa.map_(pa.string(), pa.int64())}


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: arrow.array(
            [list(one[name].items()) if isinstance(one[name], dict) and name == "counts" else one[name] for one in rows], kind
        )
        for name, kind in KINDS.items()
    }


def expected(row: dict[str, Any]) -> dict[str, Any]:
    """The row without fields that have no value, also within others."""
    made = {name: value for name, value in row.items() if value is not None}
    if made.get("items"):
        made["items"] = [one and {name: value for name, value in one.items() if value is not None} for one in made["items"]]
    return made


@pytest.mark.parametrize("order", list(itertools.permutations(KINDS)), ids="-".join)
@pytest.mark.parametrize("rows", [VALUES, VALUES[:2], VALUES[3:], VALUES[1:2] * 3], ids=["some null", "none", "all", "empty"])
def test_rows_are_their_values(order: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    columns = table([*VALUES, *rows, *VALUES])
    ours = [columns[name].slice(len(VALUES), len(rows)) for name in order]
    found = json_rows(order, ours).to_pylist()
    assert sum(map(len, found)) <= json_bytes_max(order, ours)
    assert [json.loads(one) for one in found] == [expected(row) for row in rows]
    assert [list(json.loads(one)) for one in found] == [[name for name in order if row[name] is not None] for row in rows]


def test_times_of_any_year() -> None:
    day = 86_400_000_000
    years = {
        -719_163: "0000-12-31",
        -719_162: "0001-01-01",
        2_932_896: "9999-12-31",
        2_932_897: "+10000-01-01",
        -(10**6): "-0768-02-04",
    }
    for days, text in years.items():
        at = arrow.array([days * day + 1_999, None], pa.timestamp("us"))
        (found, nothing) = json_rows(
            ["at", "on"], [at, at.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.date32(), safe=False)]
        ).to_pylist()
        assert json.loads(found) == {"at": f"{text}T00:00:00.001", "on": text} and nothing == "{}"
    spread = [datetime.date(2026, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]
    assert [json.loads(one)["on"] for one in json_rows(["on"], [pa.array(spread)]).to_pylist()] == [
        one.isoformat() for one in spread
    ]


def test_text_that_is_no_text() -> None:
    broken = pa.array([b"a\xff", b"b", None], pa.binary()).view(pa.string())
    with pytest.raises(UnlikeJavaError, match="not UTF-8"):
        json_rows(["text"], [broken])
    assert json_rows(["text"], [broken], replaces=True).to_pylist() == ['{"text":"a\ufffd"}', '{"text":"b"}', "{}"]


@pytest.mark.parametrize(("kind", "bits"), [("double", ">f8"), ("float", ">f4")])
def test_numbers_have_the_digits_of_java(kind: str, bits: str) -> None:
    """Texts that Java 25 gave for the bits of numbers of all sizes, subnormal ones too. Java 19 was the first one with these
    digits. Recorded with Spark on that Java::

        frame = spark.createDataFrame([(number,) for number in numbers], "number double")  # or float
        texts = [row.text for row in frame.selectExpr("cast(number as string) text").collect()]
        found = {struct.pack(">d", number).hex(): text for number, text in zip(numbers, texts)}  # or ">f"
    """
    texts = json.loads(Path(__file__).with_name("java_numbers.json").read_text())[kind]
    numbers = np.frombuffer(bytes.fromhex("".join(texts)), bits).astype(bits.replace(">", "<"))
    assert java_text(pa.array(numbers)).to_pylist() == list(texts.values())


def test_numbers_have_the_form_of_java() -> None:
    numbers = [
        5e-324,
        2.5e-323,
        1e7,
        9_999_999.0,
        123_456_789.0,
        0.001,
        0.0001,
        -0.0,
        1e23,
        None,
        float("nan"),
        float("-inf"),
        12.0,
    ]
    texts = [
        "4.9E-324",
        "2.5E-323",
        "1.0E7",
        "9999999.0",
        "1.23456789E8",
        "0.001",
        "1.0E-4",
        "-0.0",
        "1.0E23",
        None,
        "NaN",
        "-Infinity",
        "12.0",
    ]
    assert java_text(pa.array(numbers)).to_pylist() == texts
    quoted = json_rows(["x"], [pa.array([float("nan"), 1.5])]).to_pylist()
    assert quoted == ['{"x":"NaN"}', '{"x":1.5}']


HALF = arrow.struct([("a", pa.float16())])
FOREIGN = [pa.timestamp("ns"), pa.time64("us"), arrow.map_(pa.float64(), pa.string()), pa.list_(pa.duration("us")), HALF]


@pytest.mark.parametrize("kind", FOREIGN, ids=str)
def test_what_spark_writes_in_another_way_is_not_written(kind: Any) -> None:
    assert not is_writable(kind)


LONG: dict[str, Any] = {
    "control characters": arrow.array(["\x01" * 100], pa.string()),
    "no text": arrow.array([b"\xff" * 100], pa.binary()).view(pa.string()),
    "bytes": arrow.array([b"1"], pa.binary()),
    "decimal": arrow.array([-decimal.Decimal("1" * 38).scaleb(-38)], pa.decimal128(38, 38)),
    "small decimal": arrow.array([-decimal.Decimal("1.11E-30")], pa.decimal128(38, 38)),
    "double": arrow.array([-1.2345678901234567e-300], pa.float64()),
    "time": arrow.array([-(1 << 63)], pa.timestamp("us", "UTC")),
    "date": arrow.array([-(1 << 31)], pa.date32()),
    "missing": arrow.array([[None] * 10], pa.list_(pa.bool_())),
    "lists": arrow.array([[[], [], None]], pa.list_(pa.list_(pa.int8()))),
    "names": arrow.array([[{"é" * 50: 1}] * 20], pa.list_(arrow.struct([("é" * 50, pa.int8())]))),
    "map": arrow.array([[("\n" * 30, None)] * 3], pa.map_(pa.string(), pa.int8())),
}


@pytest.mark.parametrize("name", LONG)
def test_sizes_are_bounded_from_above(name: str) -> None:
    (text,) = json_rows([name], [LONG[name]], replaces=True).to_pylist()
    assert len(text.encode()) <= json_bytes_max([name], [LONG[name]])
