"""Floods of CSV and JSON lines on columns against Spark's rows: the same records, or a reason why columns cannot read them.

Most run in the test's process, against one query of Spark's (`in_process.py`); some go through Spark's workers."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headgate.broker.runtime.errors import InvalidError, RetryError
from headgate.pipelines.columns import job as columns_job
from headgate.pipelines.columns import task_division, writing
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.job import read_source
from headgate.pipelines.spark_rows import SPARK, Rows, records
from headgate.pipelines.work import RowWork, work_and_counts
from tests.e2e.test_columns import NOW_MS, same_on_both_ways
from tests.support.in_process import PARTITIONS, assert_alike, assert_found, of_rows, of_spark, on_columns, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "user string, payload string, at timestamp, ms long, n int, good boolean, day date"
HEADER = "user,payload,at,ms,n,good,day"


def csv_line(dice: random.Random) -> str:
    fields = [
        dice.choice([f"u{dice.randrange(20)}", "é", '"a, b"', '""', ""]),
        dice.choice(["", "x" * dice.randrange(60), " spaces ", "'single'", '"quoted"']),
        f"2024-01-0{dice.randrange(1, 9)}{dice.choice('T ')}01:00:{dice.choice(['59', '07.5', '00.000001', '00Z'])}",
        str(dice.randrange(-(10**13), 10**13)),
        dice.choice(["", "0", "-7", "2147483647", "007"]),
        dice.choice(["true", "false", ""]),
        dice.choice(["2024-02-29", "0001-01-01", ""]),
    ]
    return ",".join(fields)


def csv_files(place: Path, line: str = "", count: int = 300) -> Path:
    return files(place, "csv", csv_line, [HEADER], line, count)


def files(place: Path, suffix: str, made: Callable[[random.Random], str], header: list[str], line: str, count: int) -> Path:
    """Three files of `count` lines: one without a line break at its end, one with empty lines. `line` replaces a line of the
    second file."""
    dice = random.Random(17)
    path = place / "lake"
    path.mkdir()
    for number in range(3):
        lines = [*header, *(made(dice) for _ in range(count))]
        if line and number == 1:
            lines[200] = line
        if number == 2:
            lines[50:50] = ["", ""]
        (path / f"{number}.{suffix}").write_text("\n".join(lines) + "\n" * (number > 0))
    return path


def json_line(dice: random.Random) -> str:
    row = {
        "user": dice.choice([f"u{dice.randrange(20)}", "é\u2028", None, "", '"\\/\b\f\n\r\t\x01', "\U0001f600"]),
        "payload": "x" * dice.randrange(60),
        "ms": dice.choice([dice.randrange(-(10**13), 10**13), 1]),
        "n": dice.choice([None, 0, -7, 2**31 - 1]),
        "good": dice.choice([True, False, None]),
        "unused": dice.choice([{"a": [1, {"b": None}]}, [], "x"]),
    }
    if dice.random() < 0.1:
        del row["n"]
    return json.dumps(row, ensure_ascii=dice.random() < 0.5, separators=dice.choice([(",", ":"), (" , ", " : ")]))


def json_files(place: Path, line: str = "", count: int = 300) -> Path:
    return files(place, "json", json_line, [], line, count)


JSON_SCHEMA = "user string, payload string, ms long, n int, good boolean"


def csv_rows(spark: SparkSession, path: Path, schema: str = SCHEMA, **changed: Any) -> Rows:
    options = {"header": "true", **changed.pop("options", {})}
    return lines_of(spark.read.options(**options).schema(schema).csv(str(path)), **changed)


def json_rows(spark: SparkSession, path: Path, schema: str = JSON_SCHEMA, **changed: Any) -> Rows:
    frame = spark.read.options(**changed.pop("options", {})).schema(schema).json(str(path))
    return lines_of(frame, **{"event_time": "timestamp_millis(ms)", **changed})


def lines_of(frame: DataFrame, **changed: Any) -> Rows:
    usual: dict[str, Any] = {
        "key": "user", "value": "payload", "event_time": "at", "headers": None, "order_by": (), "where": None, "now_ms": NOW_MS,
        "options": {},
    }  # fmt: skip
    return records(frame, **{**usual, **changed})


WHOLE_ROW: dict[str, Any] = {"value": None}
CHANGED: list[dict[str, Any]] = [{}, WHOLE_ROW, {"where": "n > 0 and good"}]
PIECES = (1024, 1 << 24, 100)
"""Bytes of the pieces into which columns divide a file. Most of the last ones have a line or none."""
FORMATS: dict[str, tuple[Callable[..., Path], Callable[..., Rows]]] = {
    "csv": (csv_files, csv_rows),
    "json": (json_files, json_rows),
}


@pytest.mark.parametrize("format", FORMATS)
def test_lines_give_the_same_records(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    made, rows_of = FORMATS[format]
    path = made(tmp_path, count=60)
    floods = {str(changed): rows_of(spark, path, **changed) for changed in CHANGED}
    records_of_spark = of_spark(floods)
    # Without times the order is that of the source, where Spark puts large files first.
    in_order = rows_of(spark, path / f"0.{format}", key=None, event_time=None)
    order_of_spark = of_rows(spark, in_order)
    for size in PIECES:
        monkeypatch.setattr(task_division, "LINES_BYTES", size)
        if size == PIECES[-1]:
            floods = {str(WHOLE_ROW): floods[str(WHOLE_ROW)]}
        counts = assert_found(floods, records_of_spark, tmp_path / str(size))
        assert all(some.total for some in counts.values())
        assert written(on_columns(in_order), tmp_path / f"order {size}")[1] == order_of_spark


@pytest.mark.parametrize("format", ["json", pytest.param("csv", marks=pytest.mark.slow)])
def test_whole_floods_of_lines_give_the_same_records(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr(task_division, "LINES_BYTES", PIECES[0])
    made, rows_of = FORMATS[format]
    assert same_on_both_ways(spark, rows_of(spark, made(tmp_path, count=60), **WHOLE_ROW), tmp_path).total > 0


def test_csv_without_a_schema_is_text(spark: SparkSession, tmp_path: Path) -> None:
    """Expressions make times and numbers of the text, as a user writes them."""
    path = csv_files(tmp_path)
    frame = spark.read.option("header", "true").csv(str(path))
    rows = lines_of(frame, event_time="to_timestamp(at)", value="cast(cast(ms as long) as string)", where="date(day) is not null")
    inferred = lines_of(spark.read.options(header="true", inferSchema="true", sep=",").csv(str(path)))
    counts = assert_alike({"text": rows, "inferred": inferred}, tmp_path / "found")
    assert counts["text"].total > 0 and counts["inferred"].total == 900


def test_csv_without_a_header_with_tabs(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"u{number % 7}\t{number},{number}\t{number}\n" for number in range(50)))
    frame = spark.read.options(sep="\t").schema("user string, payload string, ms long").csv(str(tmp_path / "a.tsv"))
    rows = lines_of(frame, event_time="timestamp_millis(ms)")
    assert assert_alike({"": rows}, tmp_path / "found")[""].total == 50


def test_lines_in_the_order_of_time_are_not_exchanged(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count finds the span of each piece."""
    monkeypatch.setattr(task_division, "LINES_BYTES", 1024)
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: 4 << 10)
    monkeypatch.setattr(writing, "exchange", None)
    (tmp_path / "a.json").write_text("".join(f'{{"user":"u{one % 7}","payload":"x","ms":{one}}}\n' for one in range(2000)))
    assert assert_alike({"": json_rows(spark, tmp_path / "a.json")}, tmp_path / "found")[""].total == 2000


def assert_unlike(rows: Rows, why: str) -> None:
    """Columns do not read these rows, for this reason. In this process."""
    with pytest.raises(UnlikeError) as raised:
        on_columns(rows).count()
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("format", "line", "why"),
    [
        ("csv", "u1,a,2024-02-30 00:00:00,1,1,true,2024-01-01", "no timestamp"),
        ("json", '{"user":"a","ms":1.0}', "couldn't parse"),
    ],
)
def test_lines_that_columns_do_not_read_take_rows(spark: SparkSession, tmp_path: Path, format: str, line: str, why: str) -> None:
    """Through Spark's workers. The tests below have all reasons, in this process."""
    path = (csv_files if format == "csv" else json_files)(tmp_path, line=line)
    time = "at" if format == "csv" else "ms"
    rows = FORMATS[format][1](spark, path, where=f"{time} is not null", value="to_json(struct(*))")
    work, counts = work_and_counts(spark, rows, PARTITIONS)
    assert (work.engine, counts) == (SPARK, RowWork(spark, rows, PARTITIONS, "").count())
    assert why in work.why


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("u1,a,2024-01-01 00:00:00,1,1,true", "Expected 7 columns"),
        ("u1,a,2024-01-01 00:00:00,1,1,true,2024-01-01,8", "Expected 7 columns"),
        ("u1,a,2024-01-01 00:00:00,+1,1,true,2024-01-01", "form of long"),
        ("u1,a,2024-01-01 00:00:00,0x1F,1,true,2024-01-01", "form of long"),
        ("u1,a,2024-01-01 00:00:00,1,2147483648,true,2024-01-01", "no integer"),
        ("u1,a,2024-02-30 00:00:00,1,1,true,2024-01-01", "no timestamp"),
        ("u1,a,0000-01-01 00:00:00,1,1,true,2024-01-01", "year 0"),
        ("u1,a,2024-01-01,1,1,true,2024-01-01", "form of timestamp"),
        ("u1,a,2024-01-01 00:00:00,1,1,True,2024-01-01", "form of boolean"),
        ('u1,"a ""b"" c",2024-01-01 00:00:00,1,1,true,2024-01-01', "quote"),
        ('u1,a"b",2024-01-01 00:00:00,1,1,true,2024-01-01', "quote"),
        ('u1,"a\nb",2024-01-01 00:00:00,1,1,true,2024-01-01', "quote"),
        ("u1,a\\,2024-01-01 00:00:00,1,1,true,2024-01-01", "backslash"),
        ("u1,a,2024-01-01 00:00:00,1,1,true,2024-01-01\r", "carriage return"),
        ("u1,a\0,2024-01-01 00:00:00,1,1,true,2024-01-01", "zero bytes"),
        ("  ", "Expected 7 columns"),
    ],
)
def test_csv_that_columns_do_not_read(spark: SparkSession, tmp_path: Path, line: str, why: str) -> None:
    rows = csv_rows(spark, csv_files(tmp_path, line=line), where="at is not null", value="to_json(struct(*))")
    assert_unlike(rows, why)


@pytest.mark.parametrize(
    ("separator", "lines", "why"),
    [
        ("\t", ["a\tb", "\t", "c\td"], "only spaces or tabs"),
        (",", ["a", " ", "c"], "the CSV has one column"),
        (" ", ["a b", " ", "c d"], "another kind of separator"),
    ],
)
def test_a_line_of_empty_fields_that_spark_drops(
    spark: SparkSession, tmp_path: Path, separator: str, lines: list[str], why: str
) -> None:
    (tmp_path / "a.csv").write_text("\n".join(["user" + (f"{separator}payload" if len(lines[0]) > 1 else ""), *lines, ""]))
    frame = spark.read.options(header="true", sep=separator).csv(str(tmp_path / "a.csv"))
    rows = lines_of(frame, value="user", event_time="timestamp_millis(1)")
    assert rows.frame.count() == 2
    assert_unlike(rows, why)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"user":"a","user":"b","ms":1}', "specified twice"),
        ('{"user":"a","ms":1}{"user":"b","ms":2}', "several JSON objects"),
        ('[{"user":"a","ms":1}]', "no JSON object"),
        ("{'user':'a','ms':1}", "Missing a name"),
        ('{"user":1,"ms":1}', "changed from"),
        ('{"user":"a","ms":1.0}', "couldn't parse"),
        ('{"user":"a","ms":9223372036854775808}', "couldn't parse"),
        ('{"user":"\\ud800","ms":1}', "surrogate"),
        ('{"user":"a","ms":1', "no JSON object"),
        ('{"user":"a","ms":1} ', "no JSON object"),
        ("corrupt", "no JSON object"),
    ],
)
def test_json_that_columns_do_not_read(spark: SparkSession, tmp_path: Path, line: str, why: str) -> None:
    rows = json_rows(spark, json_files(tmp_path, line=line), where="ms is not null", value="to_json(struct(*))")
    assert_unlike(rows, why)


def test_doubles_of_json(spark: SparkSession, tmp_path: Path) -> None:
    schema = "user string, payload double, ms long"
    floods = {}
    for number, text in enumerate(("1.5e3", "7", "-0", "NaN")):
        path = tmp_path / f"{number}.json"
        path.write_text(f'{{"user":"a","payload":{text},"ms":1}}\n')
        floods[text] = json_rows(spark, path, schema, value="user", where="payload is not null")
    assert_unlike(floods.pop("-0"), "-0 or none")
    assert_unlike(floods.pop("NaN"), "-0 or none")
    assert_alike(floods, tmp_path / "found")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "FAILFAST"}, "options of its own: mode"),
        ({"sep": "||"}, "another kind of separator"),
        ({"quote": "'"}, "options of its own: quote"),
        ({"multiLine": "true"}, "options of its own: multiline"),
    ],
    ids=str,
)
def test_options_that_columns_do_not_know(spark: SparkSession, tmp_path: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(UnlikeError, match=why):
        read_source(csv_rows(spark, csv_files(tmp_path), options=options))


def test_files_that_columns_do_not_read(spark: SparkSession, tmp_path: Path) -> None:
    path = csv_files(tmp_path)
    with pytest.raises(UnlikeError, match="rows that Spark cannot read"):
        read_source(csv_rows(spark, path, f"{SCHEMA}, _corrupt_record string"))
    with pytest.raises(UnlikeError, match=r"of the text is of type decimal\(9,2\)"):
        read_source(csv_rows(spark, path, SCHEMA.replace("n int", "n decimal(9,2)"), key="n"))
    (path / "3.csv.gz").write_bytes(gzip.compress((path / "0.csv").read_bytes()))
    with pytest.raises(UnlikeError, match="compressed"):
        read_source(csv_rows(spark, path))
    (path / "3.csv.gz").unlink()
    (path / "0.csv").write_bytes(b"\xef\xbb\xbf" + (path / "0.csv").read_bytes())
    assert_unlike(csv_rows(spark, path), "byte order mark")
    (path / "0.csv").write_bytes(b"\n" + (path / "1.csv").read_bytes())
    assert_unlike(csv_rows(spark, path), "empty line")
    (path / "0.csv").write_bytes((path / "1.csv").read_bytes() + b"\xff")
    assert_unlike(csv_rows(spark, path, where="at is not null"), "not UTF-8")


def test_lines_that_change_meanwhile_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """The size and the time stay as they were."""
    path = csv_files(tmp_path)
    work = on_columns(csv_rows(spark, path))
    state = os.stat(path / "1.csv")
    (path / "1.csv").write_bytes((path / "1.csv").read_bytes()[:-1] + b" ")
    os.utime(path / "1.csv", ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(RetryError, match=f"changed or vanished.*file=`{path}/1.csv`"):
        work.count()


def test_a_time_out_of_range_is_named_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("".join(f"u,x,{1 << 62 if number == 593 else number}\n" for number in range(600)))
    frame = spark.read.schema("user string, payload string, ms long").csv(str(path))
    with pytest.raises(InvalidError, match=rf"no value for a row.* file=`{path}` from_byte=`0` row=`593`"):
        work_and_counts(spark, lines_of(frame, event_time="timestamp_millis(ms)"), PARTITIONS)
