"""How a plan reads the columns of a source, beside Spark: types and encodings of Parquet as several writers write them, names, JSON and
CSV, and files that differ.

Compared: the names and kinds of columns, or the refusal, of `source_columns.py` and `parquet_kinds.py` with the schema of `spark.read`; and
each advice of a plan with Spark's analysis. A kind that the plan does not know (None) is left to Spark. A mismatch means that `check`,
`plan` and Dagster refuse a source that `run` loads, or the reverse.
"""

# Rows of a table of messages are as long as the messages.
# ruff: noqa: E501

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.floods import judge
from headgate.pipelines.floods.analysis import analyse
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.judge import Columns, needs_spark
from headgate.pipelines.floods.measure import look
from headgate.pipelines.floods.model import Flood, Source
from headgate.pipelines.floods.planning import make_plan
from headgate.pipelines.floods.spans import span_of
from headgate.pipelines.names import BARE_FUNCTIONS, bare_function
from tests.support import floods

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIXTURES = Path(__file__).parents[2] / "fixtures" / "parquet"
"""Files of writers that are no dependency of the tests: `README.md` there says how they were made."""
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = "2026-01-01"
AT = datetime(2026, 1, 1, 1, 2, 3)
TS = pa.timestamp("us", "UTC")
arrow: Any = pa


# -- the kinds of columns


def of_arrow(kind: Any, value: Any, **options: Any) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table({"c": arrow.array([value], kind)}), path, **options)


def of_duckdb(sql: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        duckdb.sql(f"copy (select {sql}) to '{path}' (format parquet)")

    return write


ONE = decimal.Decimal("1.5")
WIDE: dict[Any, Any] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), 1),
    **dict.fromkeys((pa.float32(), pa.float64()), 1.5),
    pa.duration("us"): 1,
    **dict.fromkeys((pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")), AT),
    **dict.fromkeys((pa.decimal128(5, 2), pa.decimal128(18, 2)), ONE),
    pa.date32(): AT.date(),
    pa.bool_(): True,
    pa.null(): None,
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view(), pa.json_(), pa.dictionary(pa.int32(), pa.string())), "a"),
    **dict.fromkeys((pa.binary(), pa.binary(16)), b"0" * 16),
    pa.list_(pa.string()): ["a"],
    pa.list_(pa.int64(), 2): [1, 2],
    pa.map_(pa.string(), pa.int64()): [("a", 1)],
    pa.struct([("x", pa.timestamp("ns"))]): {"x": AT},
    pa.list_(pa.struct([("k", pa.string()), ("v", pa.string())])): [{"k": "a", "v": "b"}],
}
"""Types of Arrow that Spark reads, each with a value."""
DUCKDB = (
    "TIMESTAMP '2026-01-01'", "TIMESTAMPTZ '2026-01-01 00:00:00Z'", "TIMESTAMP_NS '2026-01-01'", "TIMESTAMP_MS '2026-01-01'",
    "DATE '2026-01-01'", "1::HUGEINT", "1::UBIGINT", "'a'::ENUM('a')", "'{}'::JSON", "1.5::DECIMAL(38,1)", "'a'::BLOB", "[1]", "MAP{'a':1}",
    "{'x':1}", "[{'k':'a','v':'b'}]", "NULL",
)  # fmt: skip
SPARK = (
    "timestamp'2026-01-01'", "timestamp_ntz'2026-01-01'", "date'2026-01-01'", "1.5bd", "x'00'", "'a'", "true", "1Y", "1L", "1f", "1d",
    "interval '1' year", "parse_json('1')", "array(1)", "map('a',1)", "named_struct('x',1)", "array(struct('a','b'))", "cast('a' as char(3))",
)  # fmt: skip
NAMES = ("event time", "user.id", "größe", "时间", "a`b", "User", "x,y")


def listed(texts: tuple[str, ...]) -> str:
    return ", ".join(f"{text} as c{number}" for number, text in enumerate(texts))


PARQUET: dict[str, Callable[[Path], None]] = {
    "arrow": lambda path: pq.write_table(pa.table({str(kind): arrow.array([one], kind) for kind, one in WIDE.items()}), path),
    "arrow names": lambda path: pq.write_table(pa.table({name: ["x"] for name in NAMES}), path),
    "arrow one name twice": lambda path: pq.write_table(pa.table([[1], [2]], names=["c", "C"]), path),
    "arrow decimal as integer": of_arrow(pa.decimal128(5, 2), ONE, store_decimal_as_integer=True),
    "arrow int96": of_arrow(pa.timestamp("us"), AT, use_deprecated_int96_timestamps=True),
    "arrow legacy list": of_arrow(pa.list_(pa.string()), ["a"], use_compliant_nested_type=False),
    **{f"arrow {kind}": of_arrow(kind, 1) for kind in (pa.time32("ms"), pa.time64("us"))},
    **{
        f"arrow {kind}": of_arrow(kind, one)
        for kind, one in ((pa.uuid(), b"0" * 16), (pa.float16(), 1.5), (pa.decimal256(50, 2), ONE))
    },
    "arrow struct with a time": of_arrow(pa.struct([("x", pa.time64("us"))]), {"x": 1}),
    "duckdb": of_duckdb(listed(DUCKDB)),
    **{f"duckdb {sql}": of_duckdb(f"{sql} as c") for sql in ("INTERVAL 1 DAY", "uuid()")},
}
"""Writers of one file each: of many columns that Spark reads, or of one that it may refuse."""
JSON = {
    "a column that comes late": '{"a":1}\n{"b":2}\n',
    "a list of rows": '[{"a":1},{"b":2}]\n',
    "single quotes": "{'a':1}\n",
    "names that differ in case": '{"a":1}\n{"A":2}\n',
    "one name twice": '{"a":1,"A":2}\n',
    "an empty object": '{"a":{},"b":1}\n',
    "nothing": '{"a":null,"b":[]}\n',
    "several kinds": '{"a":1,"b":{"x":1},"c":[1],"d":true,"e":1}\n{"a":"x","b":"s","c":{"x":1},"d":1,"e":1.5}\n',
    "a broken row": '{"a":1}\nxx\n',
    "a line separator in a text": '{"a":"x\u2028y\x85z"}\n',
    "numbers": '{"a":NaN,"b":123456789012345678901234567890,"c":1.5}\n',
    "names": '{"event time":1,"user.id":2,"größe":3}\n',
    "pairs": '{"h":[{"k":"a","v":"b"}],"l":[1]}\n',
    "two rows on a line": '{"a":1}{"b":2}\n',
}
CSV: dict[str, tuple[str, dict[str, str]]] = {
    "one name twice": ("a,b,a,A\n1,2,3,4\n", {}),
    "no name": ("a,,b\n1,2,3\n", {}),
    "empty lines before": ("\n\na,b\n1,2\n", {}),
    "a mark of the byte order": ("\ufeffa,b\n1,2\n", {}),
    "quotes": ('"a b","c,d"\n1,2\n', {}),
    "spaces": (" a , b\n1,2\n", {}),
    "a long field": (f"a,b\n{'x' * 140_000},1\n", {}),
    "a line separator in a name": ("a\u2028b,c\n1,2\n", {}),
    "carriage returns": ("a,b\r1,2\r", {}),
    "null in the header": ("a,NULL\n1,2\n", {"nullValue": "NULL"}),
    "inferred": ("a,b,c,d,e,f,g,h\n1,1.5,true,2026-01-01,2026-01-01 10:00:00,10:00,,x\n", {"inferSchema": "true"}),
    "inferred of two rows": ("a,b,c,d\n1,x,TRUE,2026-01\n1.5,1,no,x\n", {"inferSchema": "true"}),
}


def spark_kind(kind: Any) -> str:
    """The kind of one of Spark's types, written again: not as `parquet_kinds.py` finds it."""
    name = kind.typeName()
    if name == "array":
        return judge.PAIRS if kind.elementType.typeName() == "struct" and len(kind.elementType) == 2 else judge.LIST
    return {
        "timestamp": judge.TIME, "timestamp_ntz": judge.TIME, "date": judge.TIME, "string": judge.TEXT, "char": judge.TEXT, "varchar": judge.TEXT,
        "boolean": judge.BOOLEAN, "binary": judge.BYTES, "byte": judge.NUMBER, "short": judge.NUMBER, "integer": judge.NUMBER, "long": judge.NUMBER,
        "float": judge.FRACTION, "double": judge.FRACTION, "decimal": judge.FRACTION, "map": judge.MAP, "struct": judge.STRUCT, "variant": judge.VARIANT,
    }.get(name, name)  # fmt: skip


def seen(path: Path, format: str, options: dict[str, str]) -> Columns | str | None:
    """The columns of a source, or the refusal, as a plan sees them, for a flood that fits each source."""
    source = Source(path=str(path), format=format, options=options)
    flood = floods.flood(source=source, event_time="now()", value="'x'")
    try:
        return look(flood, [span_of(flood.partitions, DAY)], NOW).columns[DAY]
    except InvalidError as error:
        return error.message


def alike(ours: Columns | str | None, schema: Any, *, guessed: bool = False) -> str | None:
    """How the plan's columns differ from Spark's, None when they do not. `schema` None: Spark refuses the source.

    Args:
        guessed: Spark infers kinds from all rows. The plan, which sees the first ones, calls all their numbers fractional.
    """
    if ours is None:
        return None  # left to Spark
    if isinstance(ours, str) or schema is None:
        return None if isinstance(ours, str) == (schema is None) else f"{ours} beside {schema}"
    others = {field.name.lower(): spark_kind(field.dataType) for field in schema}
    nanoseconds = {judge.NANOSECONDS: judge.NUMBER, judge.EMPTY: judge.NUMBER}
    known = {name.lower(): nanoseconds.get(kind or "", kind) for name, kind in ours.kinds.items()}
    if guessed:
        others = {name: judge.FRACTION if kind == judge.NUMBER else kind for name, kind in others.items()}
    wrong = {name: (kind, others.get(name)) for name, kind in known.items() if kind is not None and kind != others.get(name)}
    # A column of JSON that had no value yet may be none for Spark.
    missing = others.keys() - known.keys()
    return f"{wrong} missing={missing}" if wrong or (missing and not ours.is_open) else None


def test_columns_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    cases: dict[str, tuple[Path, str, dict[str, str]]] = {}
    for number, (name, write) in enumerate(PARQUET.items()):
        write(tmp_path / f"{number}.parquet")
        cases[name] = (tmp_path / f"{number}.parquet", "parquet", {})
    spark.sql(f"select {listed(SPARK)}").coalesce(1).write.parquet(f"{tmp_path}/spark")
    cases["spark"] = (tmp_path / "spark", "parquet", {})
    cases |= {path.name: (path, "parquet", {}) for path in sorted(FIXTURES.glob("*.parquet"))}
    for number, (name, text) in enumerate(JSON.items()):
        (tmp_path / f"{number}.json").write_text(text)
        cases[f"json: {name}"] = (tmp_path / f"{number}.json", "json", {})
    for number, (name, (text, options)) in enumerate(CSV.items()):
        (tmp_path / f"{number}.csv").write_text(text)
        cases[f"csv: {name}"] = (tmp_path / f"{number}.csv", "csv", {"header": "true", **options})
    wrong = {}
    for name, (path, format, options) in cases.items():
        schema = None
        with refusals():
            schema = spark.read.format(format).options(**options).load(str(path)).schema
        if (text := alike(seen(path, format, options), schema, guessed="inferSchema" in options)) is not None:
            wrong[name] = text
    assert not wrong


def refusals() -> Any:
    """Spark's refusals of a source."""
    from pyspark.errors import PySparkException

    return suppress(PySparkException)


# -- the fields of a flood


MANY: dict[str, Any] = {
    "at": arrow.array([AT], TS),
    "local": arrow.array([AT], pa.timestamp("us")),
    "ns": arrow.array([AT], pa.timestamp("ns")),
    "day": arrow.array([AT.date()]),
    "event time": arrow.array([AT], TS),
    "größe": ["1"],
    "it's": ["1"],
    "user.id": ["u"],
    "long": [1],
    "double": [1.5],
    "int": arrow.array([1], pa.int32()),
    "float": arrow.array([1.5], pa.float32()),
    "unsigned": arrow.array([1], pa.uint64()),
    "price": [ONE],
    "bytes": [b"a"],
    "flag": [True],
    "is paid": [True],
    "list": [["a"]],
    "pairs": [[{"k": "a", "v": "b"}]],
    "map": arrow.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
    "struct": [{"x": 1}],
    "nulls": arrow.nulls(1),
}
FIELDS = {
    "event_time": None,
    "key": None,
    "where": None,
    "headers": None,
    "value": ("at", "map", "missing"),
    "late": ("flag", "at", "it's"),
}
"""The fields of a flood, with the columns to try; None: all."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "many.parquet"
    pq.write_table(pa.table(MANY), path)
    return path


def accepts(spark: SparkSession, flood: Flood, frame: Any = None) -> bool:
    """True when `run` accepts a flood's expressions. `frame`: the source, if it was read before."""
    job = job_of(flood, span_of(flood.partitions, DAY), "", 1)
    job = job if frame is None else replace(job, source=frame)
    if flood.late is not None and job.part is not None:
        job = replace(job, part=replace(job.part, conditions=(*job.part.conditions, flood.late)))
    try:
        job.rows(spark, now_ms=0)
    except InvalidError:
        return False
    return True


def planned(flood: Flood, spark: SparkSession | None = None) -> str | None:
    """The mistakes that a plan finds, as `check`, `plan` and Dagster make it."""
    judging = None if spark is None else lambda one, span: analyse(spark, one, span)
    try:
        make_plan(flood, [DAY], None, NOW, deadline=NOW, analyse=judging)
    except InvalidError as error:
        return error.message
    return None


def test_a_plan_and_a_run_accept_the_same_columns(spark: SparkSession, many: Path) -> None:
    """Without Spark, too; and what the plan advises instead is accepted."""
    usual = floods.flood(source=Source(path=str(many)), value="'x'")
    frame = spark.read.parquet(str(many))
    wrong = []
    for field, names in FIELDS.items():
        for name in names or (*MANY, "user", "current_date", "missing", "GRÖßE", "EVENT TIME"):
            flood = replace(usual, **{field: name})
            said = planned(flood)
            if (said is None) != accepts(spark, flood, frame):
                wrong.append((field, name, said))
            advised = re.findall(r"`((?:to_\w+|timestamp_\w+|map)\(.*?\))`(?= makes| of|[.,])|such as `(.+)`\.", said or "")
            advised = [one or other for one, other in advised]
            wrong += [(field, name, one) for one in advised if not accepts(spark, replace(usual, **{field: one}), frame)]
    assert not wrong


COMPARED = ("at", "ns", "user.id", "it's", "long", "double", "unsigned", "price", "bytes", "flag", "list", "map", "struct", "nulls")


def test_a_condition_that_is_judged_without_spark_is_one_that_it_accepts(spark: SparkSession, many: Path) -> None:
    usual = floods.flood(source=Source(path=str(many)), value="'x'")
    columns, frame = seen(many, "parquet", {}), spark.read.parquet(str(many))
    assert isinstance(columns, Columns)
    judged = set()
    for name in COMPARED:
        for form in ("`{}` = 'a b'", "`{}` >= -5", "`{}` IS NOT NULL"):
            flood = replace(usual, late=form.format(name))
            if "late" not in needs_spark(flood, columns):
                assert accepts(spark, flood, frame), flood.late
                judged.add(flood.late)
    assert {"`user.id` = 'a b'", "`long` >= -5", "`at` IS NOT NULL", "`list` IS NOT NULL"} <= judged
    assert not {"`long` = 'a b'", "`at` >= -5", "`flag` = 'a b'"} & judged, "Spark casts, or refuses"
    for text in ("upper(user) = 'a'", "long = 1 or flag", "long % 2 = 0", "missing = 1", "long >= 1 and flag"):
        assert "late" in needs_spark(replace(usual, late=text), columns), text


@pytest.mark.parametrize("text", ["concat(user, 'x')", "user", "coalesce(key, session_user)", "`user`", "at < current_timestamp"])
def test_a_function_without_brackets_is_refused_everywhere(spark: SparkSession, many: Path, text: str) -> None:
    flood = floods.flood(source=Source(path=str(many)), key=text, value="'x'")
    assert not accepts(spark, flood) and planned(flood, spark) is not None
    if "key" not in text:
        assert planned(flood) is not None


def test_spark_calls_these_functions_without_brackets(spark: SparkSession) -> None:
    """All functions that Spark resolves so are known, and have a form with brackets."""
    names = [row[0] for row in spark.sql("show functions").collect()]
    likely = [one for one in names if re.match("curr|local|now|ses|sys|us|cata|data|sch|pi|e$|rand|uuid|grouping|ver", one)]
    found = set()
    for name in likely:
        with refusals():
            spark.range(1).selectExpr(f"({name})")
            found.add(name)
    assert found == BARE_FUNCTIONS
    spark.range(1).selectExpr(*(f"{name}()" for name in BARE_FUNCTIONS))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("user", "user"),
        ("USER", "USER"),
        ("user()", None),
        ("user ()", None),
        ("payload.user", None),
        ("user.id", None),
        ("'user'", None),
        ("named_struct('user', 1)", None),
        ('"user"', None),
        ("`user`", "user"),
        ("`a user`", None),
        ("`payload`.`user`", None),
        ("'it\\'s' || user", "user"),
        ("at as user", None),
        ("transform(l, user -> user + 1)", None),
        ("at < current_date -- user", "current_date"),
        ("at /* user */", None),
        ("users", None),
        ("key", None),
    ],
)
def test_functions_without_brackets_are_found(text: str, found: str | None) -> None:
    assert bare_function(text, ["at", "key"]) == found
    assert bare_function(text, ["User", "current_date"]) is None


# -- files that differ


def test_the_first_file_has_the_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads Parquet with the columns of the first file by path, not of the largest one or of all."""
    first, second = {"at": MANY["at"], "a": ["x"]}, {"at": MANY["at"], "b": ["y"]}
    pq.write_table(pa.table(second), tmp_path / "b.parquet")
    pq.write_table(pa.table(first), tmp_path / "a.parquet")
    usual = floods.flood(source=Source(path=str(tmp_path)), value="'x'")
    for key, fits in (("a", True), ("b", False)):
        flood = replace(usual, key=key)
        assert (planned(flood) is None) == accepts(spark, flood) == fits
    by_path = replace(usual, partition_by="path")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "b.parquet")
    assert "the event time of all rows of a file is null" in str(planned(by_path))
    made = make_plan(replace(usual, key="a"), [DAY], None, NOW, deadline=NOW)
    assert made.rows == 1 and made.partitions[0].exact, "rows without a time belong to no day"


MIXED = [
    ("größe", "long"), ("flag", "größe"), ("at", "double"), ("day", "flag"), ("ns", "flag"), ("list", "long"), ("struct", "größe"),
    ("größe", "nulls"), ("int", "long"), ("double", "long"), ("nulls", "long"), ("float", "double"),
]  # fmt: skip
READ = [
    ("größe", "bytes"),
    ("at", "local"),
    ("long", "ns"),
    ("long", "int"),
    ("double", "int"),
    ("double", "float"),
    ("nulls", "int"),
]


@pytest.mark.parametrize(("first", "second", "fits"), [(*one, False) for one in MIXED] + [(*one, True) for one in READ])
def test_files_of_several_kinds(spark: SparkSession, tmp_path: Path, first: str, second: str, fits: bool) -> None:
    from pyspark.errors import PySparkException

    for file, kind in (("a", first), ("b", second)):
        pq.write_table(pa.table({"time": MANY["at"], "c": MANY[kind]}), tmp_path / f"{file}.parquet")
    said = planned(floods.flood(source=Source(path=str(tmp_path)), event_time="time"))
    assert (said is None) == fits
    frame = spark.read.parquet(str(tmp_path)).select("c")
    if fits:
        frame.collect()
    else:
        with pytest.raises((PySparkException, Exception)):
            frame.collect()


def test_int96_is_counted(many: Path, tmp_path: Path) -> None:
    """Spark's own default: times of INT96, also before 1677, for which nanoseconds have no number."""
    old = arrow.array([AT, datetime(1500, 1, 1)], pa.timestamp("us"))
    pq.write_table(pa.table({"at": old}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    made = make_plan(floods.flood(source=Source(path=str(tmp_path)), value="'x'"), [DAY], None, NOW, deadline=NOW)
    assert [(one.rows, one.exact) for one in made.partitions] == [(1, True)]


# -- what a sample does not show


def lines(tmp_path: Path, format: str, *files: str, **changes: Any) -> Flood:
    for number, text in enumerate(files):
        (tmp_path / f"{number}.{format}").write_text(text)
    options = {"header": "true"} if format == "csv" else {}
    usual = {"event_time": "to_timestamp(at)", "value": "'x'"}
    return floods.flood(source=Source(path=str(tmp_path), format=format, options=options), **{**usual, **changes})


def test_a_column_of_json_that_comes_late(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the sample, or in a file that is not the largest one: Spark judges all rows."""
    monkeypatch.setattr("headgate.pipelines.floods.measure.SAMPLE_BYTES", 200)
    row = json.dumps({"at": f"{DAY} 01:00:00"})
    late = json.dumps({"at": f"{DAY} 02:00:00", "late": "k"})
    for number, files in enumerate(([f"{row}\n" * 20 + late], [f"{row}\n" * 2, f"{late}\n"])):
        (tmp_path / str(number)).mkdir()
        flood = lines(tmp_path / str(number), "json", *files, key="late")
        assert planned(flood, spark) is None and accepts(spark, flood)
        flood = replace(flood, key="never")
        assert "key is no expression of this source. key=`never`" in str(planned(flood, spark)) and not accepts(spark, flood)
        assert planned(flood) is None, "without Spark a note says that the key is not judged"


def test_a_long_field_of_csv(spark: SparkSession, tmp_path: Path) -> None:
    flood = lines(tmp_path, "csv", f"at,key\n{DAY} 01:00:00,{'x' * 140_000}\n", key="key")
    assert planned(flood, spark) is None and accepts(spark, flood)
    assert "no such column: did you mean `key`" in str(planned(replace(flood, key="kee")))
